"""Signals that reach a command while it imports its modules, and a server that has stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.conftest import WAIT_S, ServerProcess

# `python -m topics`, which gets the signal SIGNAL when it imports MODULE, after it has written NEW_KEYS to KEYS.
PROGRAM = """
import os, pathlib, runpy, sys

class Hook:
    def find_spec(self, name, path, target=None):
        if name == os.environ["MODULE"]:
            if "KEYS" in os.environ:
                pathlib.Path(os.environ["KEYS"]).write_text(os.environ["NEW_KEYS"])
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))

sys.meta_path.insert(0, Hook())
runpy.run_module("topics", run_name="__main__", alter_sys=True)
"""
# `python -m topics`, which gets three more signals when the interpreter has removed its handlers.
LATE = """
import os, runpy, sys

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid()):
        for number in (1, 2, 15):
            kill(pid, number)

sys.late = Late()  # freed with the last module
runpy.run_module("topics", run_name="__main__", alter_sys=True)
"""
SERVE = ["serve", "--port", "0"]


def interrupted(words: list[str], module: str, number: signal.Signals) -> tuple[int, str]:
    env = {**os.environ, "MODULE": module, "SIGNAL": str(int(number))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], env=env, capture_output=True, text=True, timeout=WAIT_S
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["topics.cli.main", "topics.config", "topics.storage.fs"])
def test_server_that_is_stopped_during_its_imports_ends_quietly(module: str, number: signal.Signals):
    status, said = interrupted(SERVE, module, number)
    assert status == 0
    assert "Traceback" not in said


@pytest.mark.parametrize("module", ["topics.cli.main", "argparse"])
def test_command_that_is_interrupted_during_its_imports_ends_quietly(module: str):
    assert interrupted(["verify", "none"], module, signal.SIGINT) == (130, "")


@pytest.mark.parametrize("module", ["topics.cli.main", "topics.config", "topics.server.run"])
def test_hangup_during_imports_does_not_end_the_server_and_is_not_lost(tmp_path: Path, module: str):
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    variables = {"MODULE": module, "SIGNAL": str(int(signal.SIGHUP)), "KEYS": str(keys), "NEW_KEYS": "new\n"}
    program = ["-c", PROGRAM, "serve"]
    server = ServerProcess(tmp_path, {"api_keys_file": keys}, program=program, variables=variables, wait_ready=False)
    answer = httpx.get(f"{server.url}/v0/topics", headers={"authorization": "Bearer new"})
    server.stop()
    assert answer.status_code != 401


def test_signals_after_the_stop_do_not_change_the_status(tmp_path: Path):
    ServerProcess(tmp_path, {}, program=["-c", LATE, "serve"]).stop()
