"""A pytest plugin that makes the long tests resumable: `make torture`.

    python -m pytest -p tests.torture -m torture --torture-state .torture

The plugin records every passed test in the state directory, with its time, its counts (see the `counts` fixture) and a
digest of the code that it runs (see `Code`) and of the variables that `tests/sampling.py` reads. The next run skips the
tests that passed with the same digest; `--torture-fresh` runs all of them. `make torture-record` writes what has passed
with the present code to `tests/torture.json`, with which a run in another checkout begins. The plugin works with `-n`:
the controller keeps the state, and the workers skip tests. The first part of each test runs before the second part of
any; tests that measure times run last.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

PASSED = "torture_passed"  # passed from the controller to its workers
LAST = ("tests/spark/", "tests/security/test_fairness.py")  # heavy tests, then tests that need a quiet machine
CPU = "cpu_seconds"
RECORD = "tests/torture.json"  # what passed, in the repository
# The server does not import these packages; the import contracts hold that. The tests of the server do not run them.
BESIDE_THE_SERVER = (
    "topics/client/", "topics/lake/", "topics/spark/",
    "topics/cli/completion.py", "topics/cli/monitoring/", "topics/cli/pipelines.py", "topics/cli/queues/",
)  # fmt: skip
SERVER_TESTS = ("consumers", "engine", "faults", "live", "model", "queues", "routers", "server", "storage")
# These choose how much of a test is played, and which part.
VARIABLES = ("TORTURE", "TOPICS_FAULT_SEED", "TOPICS_FUZZ_SEED", "TOPICS_TAKEOVERS")


@dataclass
class Row:
    """The last run of one test."""

    outcome: str
    seconds: float
    cpu_seconds: float = 0.0
    digest: str = ""
    commit: str = ""
    counts: dict[str, int] = field(default_factory=dict)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torture")
    group.addoption("--torture-state", type=Path, help="directory that remembers which long tests have passed")
    group.addoption("--torture-fresh", action="store_true", help="run tests that have passed before, too")


def pytest_configure(config: pytest.Config) -> None:
    worker_input = getattr(config, "workerinput", None)
    if worker_input is not None:
        config.pluginmanager.register(LeaveOut(set(worker_input.get(PASSED, ()))))
    elif config.option.torture_state is not None:
        torture = Torture(config, config.option.torture_state, fresh=config.option.torture_fresh)
        config.pluginmanager.register(torture)
        config.pluginmanager.register(LeaveOut(torture.passed))


class LeaveOut:
    """Deselect the tests that have passed and sort the rest. Runs in the workers, if there are any."""

    def __init__(self, passed: set[str]) -> None:
        self._passed = passed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if plain_id(item.nodeid) in self._passed]
        items[:] = [item for item in items if plain_id(item.nodeid) not in self._passed]
        items[:] = in_order(items)
        config.hook.pytest_deselected(items=left_out)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        before = _cpu_seconds()
        try:
            return (yield)
        finally:
            item.user_properties.append((CPU, round(_cpu_seconds() - before, 1)))


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the first part of each test, then the second, and so on: an interrupted run has tried every kind of test.

    Tests of `LAST` follow all others.
    """
    parts: Counter[str] = Counter()
    keyed: list[tuple[int, int, pytest.Item]] = []
    for item in items:
        function = item.nodeid.partition("[")[0]
        group = max((at for at, path in enumerate(LAST, 1) if item.nodeid.startswith(path)), default=0)
        keyed.append((group, parts[function], item))
        parts[function] += 1
    return [item for _, _, item in sorted(keyed, key=lambda row: row[:2])]


class Torture:
    """Record outcomes, print progress and a summary. Runs in the controller."""

    def __init__(self, config: pytest.Config, directory: Path, *, fresh: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "state.json"
        found = {**_load(config.rootpath / RECORD), **_load(self._path)}
        self._rows = {name: Row(**row) for name, row in found.items()}
        self._config, self._code = config, Code(config.rootpath)
        self._digest_at_start = self._code.digests(self._rows)
        self._commit = self._code.commit()
        self._workers = max(1, getattr(config.option, "numprocesses", None) or 1)
        self._began = time.monotonic()
        self._pending: set[str] = set()
        self._total = 0
        self._done: dict[str, Row] = {}
        self._started: dict[str, Row] = {}
        self.passed = set() if fresh else {name for name, row in self._rows.items() if self._still_passes(name, row)}

    def _still_passes(self, name: str, row: Row) -> bool:
        return row.outcome == "passed" and row.digest == self._digest_at_start[name]

    # --- which tests run ---

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[PASSED] = sorted(self.passed)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        if not self._total:
            self._begin(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:  # a controller with workers collects nothing
            self._begin([item.nodeid for item in session.items])

    def _begin(self, ids: list[str]) -> None:
        self._pending = {plain_id(name) for name in ids}
        self._total = len(self._pending)
        self._digest_at_start = self._code.digests(self._pending)
        self._say(f"{self._total} tests to run, {len(self.passed)} passed before with this code; {self._left()}")

    # --- progress ---

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._started.setdefault(plain_id(nodeid), Row("passed", 0.0))
        self._say(f"  started {plain_id(nodeid)}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = plain_id(report.nodeid)
        row = self._started.setdefault(name, Row("passed", 0.0))
        row.seconds += report.duration
        if report.outcome != "passed" and row.outcome != "failed":
            row.outcome = report.outcome
        if report.when not in ("setup", "call"):  # the teardown, or a worker that crashed
            row.counts = _sum_counts(report.user_properties)
            row.cpu_seconds = sum(value for name, value in report.user_properties if name == CPU)
            self._finish(name, row)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Print no dots between the lines of progress."""
        return ("passed", "", "") if report.passed and report.when == "call" else None

    def _finish(self, name: str, row: Row) -> None:
        self._done[name] = row
        self._pending.discard(name)
        row.commit, row.digest = self._commit, self._code.digest(name)
        changed = row.digest != self._digest_at_start.get(name, row.digest)
        if not changed:
            self._rows[name] = row
            _save(self._path, {name: asdict(row) for name, row in sorted(self._rows.items())})
        self._say(
            f"[{len(self._done)}/{self._total}] {row.outcome} in {row.seconds:.1f} s: {name}{_text(row.counts)}"
            f"{' (not recorded: the code has changed meanwhile)' if changed else ''}; {self._left()}"
        )

    def _left(self) -> str:
        """Return the elapsed time and an estimate of the rest, from this and earlier runs."""
        known = {**self._rows, **self._done}
        times = [row.seconds for row in known.values() if row.outcome == "passed"]
        by_function: dict[str, list[float]] = {}
        for name, row in known.items():
            if row.outcome == "passed":
                by_function.setdefault(name.partition("[")[0], []).append(row.seconds)
        left, guessed = 0.0, 0
        for name in self._pending:
            row_before = known.get(name)
            like = by_function.get(name.partition("[")[0], times)
            guessed += row_before is None
            left += row_before.seconds if row_before is not None else sum(like) / max(1, len(like))
        elapsed = _minutes(time.monotonic() - self._began)
        if not times:
            return f"{elapsed} elapsed"
        guess = f", {guessed} of {len(self._pending)} guessed from others" if guessed else ""
        return f"{elapsed} elapsed, about {_minutes(left / self._workers)} left{guess}"

    def _say(self, line: str) -> None:
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line)

    # --- summary ---

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        outcomes = Counter(row.outcome for row in self._done.values())
        terminalreporter.section("torture")
        terminalreporter.write_line(
            f"{outcomes['passed']} passed now, {len(self.passed)} passed before, {outcomes['failed']} failed, "
            f"{outcomes['skipped']} skipped, {len(self._pending)} not run; {_minutes(time.monotonic() - self._began)}"
            f" elapsed, {_minutes(sum(row.cpu_seconds for row in self._done.values()))} of CPU time"
        )
        for name, counts in sorted(self._counts().items()):
            terminalreporter.write_line(f"  {name}{_text(counts)}")
        for name, row in sorted(self._done.items()):
            if row.outcome == "failed":
                terminalreporter.write_line(f"  FAILED {name}")

    def _counts(self) -> dict[str, Counter[str]]:
        """Return the counts of passed tests, in this run and before, summed per test function."""
        found: dict[str, Counter[str]] = {}
        for name, row in self._rows.items():
            if row.outcome == "passed" and (name in self.passed or name in self._done):
                counter = found.setdefault(name.partition("[")[0], Counter())
                counter.update({"tests": 1, **row.counts, CPU: round(row.cpu_seconds)})
        return found


def plain_id(nodeid: str) -> str:
    """Return the id without the group that xdist appends."""
    return re.sub(r"@[\w-]+$", "", nodeid)


class Code:
    """Digests of the code that a test runs: the package, without what the server never imports for tests of the server,
    and the folder of the test.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[tuple[Path, int, int], bytes] = {}

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        """Return the digest of each test's code, computed once per folder."""
        folders = {name: name.partition("::")[0].rpartition("/")[0] for name in names}
        by_folder = {folder: self.digest(f"{folder}/") for folder in set(folders.values())}
        return {name: by_folder[folder] for name, folder in folders.items()}

    def digest(self, name: str) -> str:
        tree = hashlib.sha256(repr([os.environ.get(variable, "") for variable in VARIABLES]).encode())
        folder = name.partition("::")[0].rpartition("/")[0]
        unused = BESIDE_THE_SERVER if f"{folder}/".startswith(tuple(f"tests/{area}/" for area in SERVER_TESTS)) else ()
        for path in self._files("src"):
            if not path.relative_to(self._root / "src").as_posix().startswith(unused):
                tree.update(self._file(path))
        for path in self._files(folder):
            tree.update(self._file(path))
        return tree.hexdigest()[:16]

    def _files(self, folder: str) -> list[Path]:
        return sorted((self._root / folder).rglob("*.py"))

    def _file(self, path: Path) -> bytes:
        stat = path.stat()
        key = (path, stat.st_mtime_ns, stat.st_size)
        if key not in self._known:
            name = path.relative_to(self._root).as_posix()
            self._known[key] = hashlib.sha256(f"{name}\n{_without_comments(path.read_text())}".encode()).digest()
        return self._known[key]

    def commit(self) -> str:
        command = ["git", "-C", str(self._root), "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _without_comments(text: str) -> str:
    """Return the code as a tree without its comments and docstrings, which no test depends on."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            del node.body[0]
    return ast.dump(tree)


def _load(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _save(path: Path, rows: dict[str, Any]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(rows, indent=1) + "\n")
    fresh.replace(path)


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of the processes it has started and waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _sum_counts(properties: list[tuple[str, Any]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for name, value in properties:
        if name == "counts":
            counts.update(value)
    return dict(counts)


def _text(counts: dict[str, int]) -> str:
    return "".join(f", {value:,} {name.replace('_', ' ')}" for name, value in counts.items())


def _minutes(seconds: float) -> str:
    minutes = int(seconds) // 60
    return f"{minutes // 60}:{minutes % 60:02d}:{int(seconds) % 60:02d}"


def record(root: Path, directories: Iterable[Path]) -> int:
    """Record in the repository what passed with the present code. Return how many tests these are."""
    rows = _load(root / RECORD)
    for directory in directories:
        rows |= _load(directory / "state.json")
    digests = Code(root).digests(rows)
    passed = {
        name: row for name, row in sorted(rows.items()) if (row["outcome"], row["digest"]) == ("passed", digests[name])
    }
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in passed.items()]
    (root / RECORD).write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return len(passed)


if __name__ == "__main__":
    print(f"{record(Path.cwd(), map(Path, sys.argv[1:]))} long tests have passed with this code: {RECORD}")
