"""Compare topics with Redis, NATS and the bare floor: every figure is a ratio inside one run.

python bench/run.py                 the whole table
python bench/run.py --only w4       one row (or several: --only w1,w4)
python bench/run.py --quick         a minute's look: one short round each, small topics
python bench/run.py --full          with the topic of 10 M records, and 1 M topics
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import chart
import page
import report
from plan import DEFAULT, FULL, HERE, INSTALL_HINT, QUICK, Plan, choose_cores, installed
from row import Outcome, Reading, Row
from rows import ROWS

DEFAULT_SERVER = f"{shlex.quote(sys.executable)} -m topics serve --port 0"


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows to run, by id, separated by commas")
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="one short round and small topics: a check, not a result")
    size.add_argument(
        "--full", action="store_true", help="add the topic of 10 M records to w14, and measure 1 M topics in w25"
    )
    parser.add_argument("--strict", action="store_true", help="end with 1 when a bar is missed")
    parser.add_argument("--server", default=DEFAULT_SERVER, help="the command that starts our server")
    parser.add_argument("--dir", default=None, help="where data directories go (a real disk, not tmpfs)")
    parser.add_argument("--results", default=str(HERE / "results"), help="where the results go")
    return parser.parse_args(argv)


def choose_rows(only: str) -> list[Row]:
    wanted = [part.strip() for part in only.split(",") if part.strip()]
    unknown = set(wanted) - {row.id for row in ROWS}
    if unknown:
        raise SystemExit(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(row.id for row in ROWS)}")
    return [row for row in ROWS if not wanted or row.id in wanted]


@contextmanager
def bounded(seconds: int) -> Iterator[None]:
    """Raise in the running row when its time is up, so that no row can block the table."""

    def give_up(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the row took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_row(row: Row, plan: Plan) -> report.Result:
    """Measure one row. A row that raises is reported as broken, and the run continues."""
    started = time.perf_counter()
    if not installed(*row.needs):
        note = f"needs {', '.join(row.needs)}"
        missing = [Reading(key=ask.key, value=None, missing=True, note=note) for ask in row.asks]
        return report.Result(row=row, outcome=Outcome(missing), took_s=0.0)
    try:
        with bounded(row.time_limit_s):
            outcome, error = row.measure(plan), ""
    except Exception as problem:
        notes = getattr(problem, "__notes__", [])
        outcome, error = Outcome(), "\n".join([f"{type(problem).__name__}: {problem}", *filter(None, notes)])
    return report.Result(row=row, outcome=outcome, took_s=time.perf_counter() - started, error=error)


def measure_all(rows: list[Row], arguments: argparse.Namespace, work_dir: Path) -> list[report.Result]:
    server_core, load_core = choose_cores()
    if load_core is not None:
        os.sched_setaffinity(0, {load_core})  # the generators inherit it; servers are moved by taskset
    plan = Plan(
        scale=QUICK if arguments.quick else FULL if arguments.full else DEFAULT,
        work_dir=work_dir,
        server_command=tuple(shlex.split(arguments.server)),
        server_core=server_core,
        load_core=load_core,
    )
    results = []
    for row in rows:
        print(f"{row.id:4} {row.title}", flush=True)
        result = run_row(row, plan)
        print(report.as_text(result), flush=True)
        results.append(result)
    return results


def main(argv: list[str]) -> int:
    arguments = parse(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that no server is left running
    rows = choose_rows(arguments.only)
    if arguments.list:
        print("\n".join(f"{row.id:4} {row.title}" for row in rows))
        return 0
    if not installed("wrk", "redis-server", "redis-benchmark", "nats-server"):
        print(f"Some peers are not installed and their rows will say so. To have them: {INSTALL_HINT}")
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=arguments.dir, ignore_cleanup_errors=True) as path:
        machine = report.describe_machine(Path(path))
        results = measure_all(rows, arguments, Path(path))
    name = "quick" if arguments.quick else "all" if len(rows) == len(ROWS) else "-".join(row.id for row in rows)
    target = Path(arguments.results)
    target.mkdir(parents=True, exist_ok=True)
    pictures = chart.write(results, target / name)
    report.write(results, target / name, pictures=pictures, machine=machine)
    print(f"written: {', '.join([f'{target / name}.md', '.json', *(picture.suffix for picture in pictures)])}")
    if name != "quick" and target.resolve() == page.RESULTS:
        page.main([])
    return report.exit_code(results, strict=arguments.strict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
