"""A lake whose writer is killed, at every point at which it asks something of the file system."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import amount

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("step", [17, pytest.param(amount(3, 1), marks=pytest.mark.torture)])
def test_killed_writer_leaves_the_state_before_or_after(tmp_path: Path, step: int):
    command = [sys.executable, "-m", "tests.lake.killing", str(tmp_path), str(step)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    assert int(run.stdout) > 100, "points at which it was killed"
