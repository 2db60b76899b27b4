"""The plugin of `make torture`: a run continues where the last one stopped."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture import record

ROOT = Path(__file__).parents[1]
TESTS = """
import os, pytest
from pathlib import Path

@pytest.mark.parametrize("number", [1, 2])
def test_good(number, record_property):
    record_property("counts", {"crash_points": 20 * number})

def test_bad():
    assert "HEALED" in os.environ
"""


long = pytest.mark.torture  # each test starts pytest twice


class Project:
    """A directory with a package and three tests, one of which fails unless it is healed."""

    def __init__(self, root: Path, *options: str) -> None:
        self.root, self._options = root, options
        for name, text in (
            ("src/topics/code.py", ""),
            ("tests/part/test_it.py", TESTS),
            ("pytest.ini", "[pytest]\n"),
        ):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)

    def change(self, path: str, text: str = "changed = True\n") -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def run(self, *options: str, **env: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.torture",
                   "--torture-state", str(self.root / "state"), *self._options, *options]  # fmt: skip
        env = {**os.environ, **env, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, check=False).stdout


@pytest.fixture(params=[(), ("-p", "xdist", "-n", "2")], ids=["alone", "workers"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    return Project(tmp_path, *request.param)


def test_second_run_leaves_out_what_passed(project: Project) -> None:
    first = project.run()
    assert "3 tests to run, 0 passed before" in first
    assert "[3/3]" in first
    assert "2 passed now, 0 passed before, 1 failed, 0 skipped, 0 not run" in first
    assert "FAILED tests/part/test_it.py::test_bad" in first
    second = project.run(HEALED="1")
    assert "1 tests to run, 2 passed before" in second
    assert "started tests/part/test_it.py::test_good" not in second
    assert "1 passed now, 2 passed before, 0 failed" in second
    assert "test_good, 2 tests, 60 crash points" in second, "counts of all runs are added up"


@pytest.mark.parametrize(
    "path", ["src/topics/code.py", "tests/part/helper.py", pytest.param("src/topics/spark/code.py", marks=long)]
)
def test_changed_code_runs_everything_again(tmp_path: Path, path: str) -> None:
    project = Project(tmp_path)
    project.run()
    project.change(path)
    assert "3 tests to run, 0 passed before" in project.run()


@pytest.mark.parametrize(
    ("path", "again"),
    [
        ("src/topics/spark/code.py", 0),
        ("src/topics/engine/code.py", 1),
        pytest.param("tests/engine/helper.py", 1, marks=long),
    ],
)
def test_code_that_no_server_imports_leaves_its_tests_passed(tmp_path: Path, path: str, again: int) -> None:
    (tmp_path / "tests/engine").mkdir(parents=True)
    (tmp_path / "tests/engine/test_engine.py").write_text("def test_engine(): pass\n")
    project = Project(tmp_path)
    project.run("tests/engine")
    project.change(path)
    assert f"{again} passed now, {1 - again} passed before" in project.run("tests/engine")


def test_changed_comment_runs_nothing_again(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.run()
    project.change("src/topics/code.py", '"""What the module does."""  # says more than before\n')
    assert "2 passed before" in project.run()


def test_other_sample_runs_everything_again(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.run()
    assert "3 tests to run, 0 passed before" in project.run(TORTURE="all")
    assert "3 tests to run, 0 passed before" in project.run(TOPICS_FAULT_SEED="8")


def test_fresh_run_leaves_nothing_out(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.run()
    assert "3 tests to run, 0 passed before" in project.run("--torture-fresh")


def test_first_part_of_each_test_runs_first(tmp_path: Path) -> None:
    output = Project(tmp_path).run()
    names = [line.rpartition("::")[2] for line in output.splitlines() if line.startswith("  started")]
    assert names == ["test_good[1]", "test_bad", "test_good[2]"]


def test_known_times_give_an_estimate(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.run()
    path = tmp_path / "state" / "state.json"
    rows = json.loads(path.read_text())
    for row in rows.values():
        row |= {"seconds": 3600.0, "digest": "other", "outcome": "passed"}
    path.write_text(json.dumps(rows))
    assert "0:00:00 elapsed, about 3:00:00 left" in project.run()


def test_other_checkout_begins_with_what_is_recorded(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.run()
    command = [sys.executable, "-m", "tests.torture", "state"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True
    )
    assert done.stdout == b"2 long tests have passed with this code: tests/torture.json\n"
    (tmp_path / "state/state.json").unlink()
    assert "1 failed, 0 skipped" in (again := project.run())
    assert "0 passed now, 2 passed before" in again
    project.change("src/topics/code.py")
    assert "3 tests to run, 0 passed before" in project.run()
    assert record(tmp_path, []) == 0
