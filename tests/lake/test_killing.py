"""A lake or an output table whose writer is killed, at every file call and at every request to the object store."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lake.killing import compile_shim
from tests.sampling import SEED, amount

ROOT = Path(__file__).parents[2]
SAMPLE, ALL = 3, 1_000_000  # kills
KILLS = [pytest.param(SAMPLE, id="sample"), pytest.param(ALL, id="all", marks=pytest.mark.torture)]


def run(place: str, most: int, *, about: int, kind: str = "lake", **env: str) -> int:
    """Kill a writer at about `most` points of about so many. Return how many there were, or 0 for a sample."""
    step = max(about // most, amount(3, 1))
    first = 1 + SEED * 7919 % step
    command = [sys.executable, "-m", "tests.lake.killing", place, str(first), str(step), str(most), kind]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False, env=os.environ | env
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return int(done.stdout)


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler to count file calls")
@pytest.mark.parametrize("kind", ["lake", "table"])
@pytest.mark.parametrize("most", KILLS)
def test_writer_killed_at_a_file_call_leaves_the_state_before_or_after(tmp_path: Path, most: int, kind: str):
    points = run(str(tmp_path), most, about=400, kind=kind, LD_PRELOAD=str(compile_shim(tmp_path)))
    assert most == SAMPLE or points > 150
