"""Data is safe without assertions: `python -O` removes them, and nothing may depend on one."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUBSET = ["tests/engine/write/test_commit.py", "tests/faults/test_torn_writes.py", "tests/storage/log/test_wal.py"]


def test_tests_of_the_write_path_pass_without_assertions():
    # The warning says that only assertions of test modules are checked, which is the point.
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestConfigWarning"]
    command = [sys.executable, "-O", "-m", "pytest", *options, *SUBSET]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
