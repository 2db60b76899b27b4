"""Commands that are forks end, print and are stopped as processes of their own are."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.forks import template

WAIT_S = 20


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The variables of a shell whose `python` and `topics` start forks."""
    for name in ("python", "topics"):
        (tmp_path / name).write_text(template().launcher(name))
        (tmp_path / name).chmod(0o755)
    return os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}


def test_fork_gets_arguments_variables_files_and_directory(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import os, sys\nprint(sys.argv, __name__, os.environ['x'], os.getcwd(), input())\nsys.exit(3)\n"
    )
    script = "export x='a=b'; echo typed | python program.py 'two words' ''; exit $?"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout == f"['program.py', 'two words', ''] __main__ a=b {tmp_path} typed\n", done.stderr
    assert done.returncode == 3


def test_fork_ends_with_the_signal_that_its_launcher_gets(env: dict[str, str]) -> None:
    sleeping = "import time; print('here', flush=True); time.sleep(60)"
    with subprocess.Popen(["python", "-c", sleeping], env=env, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "here\n"
        launcher.terminate()
        assert launcher.wait(WAIT_S) == -signal.SIGTERM


def test_fork_is_killed_with_its_launcher(env: dict[str, str]) -> None:
    sleeping = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with subprocess.Popen(["python", "-c", sleeping], env=env, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline())
        launcher.kill()
    deadline = time.monotonic() + WAIT_S
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "the fork still runs"
        time.sleep(0.01)


def test_failure_of_a_program_is_printed(env: dict[str, str]) -> None:
    done = subprocess.run(["python", "-c", "1 / 0"], env=env, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")
