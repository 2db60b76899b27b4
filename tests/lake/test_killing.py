"""A lake whose writer is killed, at every file call and at every request to the object store."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lake.killing import compile_shim
from tests.sampling import SEED, amount

ROOT = Path(__file__).parents[2]
STEPS = [pytest.param(41, id="sample"), pytest.param(amount(3, 1), id="all", marks=pytest.mark.torture)]


def run(place: str, step: int, **env: str) -> int:
    command = [sys.executable, "-m", "tests.lake.killing", place, str(1 + SEED % step), str(step)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False, env=os.environ | env
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return int(done.stdout)


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler to count file calls")
@pytest.mark.parametrize("step", STEPS)
def test_writer_killed_at_a_file_call_leaves_the_state_before_or_after(tmp_path: Path, step: int):
    assert run(str(tmp_path), step, LD_PRELOAD=str(compile_shim(tmp_path))) > 150, "calls at which it was killed"
