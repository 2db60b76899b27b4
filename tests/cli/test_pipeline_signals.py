"""A signal ends a pipeline with a report, at any time and for any process of its group."""

import importlib
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartServer
from topics.cli import options, pipeline
from topics.cli.main import main
from topics.client import Client

pytestmark = pytest.mark.skipif(not find_spec("pyspark"), reason="needs the extra spark")


def signal_self(*args: object) -> Any:
    os.kill(os.getpid(), signal.SIGTERM)
    raise AssertionError("a signal is taken at once")


def check_interrupted(said: str) -> None:
    report = json.loads(said)
    assert (report["pipeline"], report["state"], report["error"]["kind"]) == ("audit", "failed", "interrupted")


def test_signal_before_imports_has_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(importlib, "import_module", signal_self)
    assert main(["pipeline", "audit", "--json"]) == 130
    check_interrupted(capsys.readouterr().out)
    assert signal.getsignal(signal.SIGTERM) is before


def test_import_cut_off_by_a_signal_is_an_interruption(capsys: pytest.CaptureFixture[str]) -> None:
    class Args:
        json, dry_run = True, False

    def execute(args: object) -> Any:
        try:
            signal_self()
        except KeyboardInterrupt:
            raise ImportError("half a module") from None

    assert pipeline.run("audit", execute, Args(), pipeline.describe) == 130  # type: ignore[arg-type]
    check_interrupted(capsys.readouterr().out)


def test_signal_to_process_and_group_counts_once() -> None:
    with pipeline._stoppable(follows=True) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set()
        stop.last_s -= pipeline.ECHO_S
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("line", ["archive", "--bogus", "archive --every abc", "archive --topic a --lake x --bogus"])
def test_refused_options_have_a_report(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", *line.split(), "--json"])
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert (ended.value.code, report["error"]["kind"], report["ok"]) == (2, "usage", False)
    assert f"topics: {report['error']['message']}\nnext: {options.CORRECT}\n" in said.err


def test_only_the_jvm_ignores_sigterm() -> None:
    from topics.spark.jvm import quiet_start

    show = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGTERM).name)"]

    def start() -> bytes:
        return subprocess.check_output(show, preexec_fn=lambda: None)

    with quiet_start():
        assert start() == b"SIG_IGN\n"
    assert start() == b"SIG_DFL\n"


def test_interrupted_start_ends_the_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext

    from topics.spark.jvm import quiet_start

    monkeypatch.setattr(SparkContext, "_gateway", None)
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    started = []

    def start() -> None:
        with quiet_start():
            started.append(subprocess.Popen(sleep, preexec_fn=lambda: None))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start()
    assert started[0].wait(60) == -signal.SIGKILL


@pytest.mark.torture
@pytest.mark.parametrize(("follow", "status", "state"), [(True, 0, "stopped"), (False, 130, "failed")])
def test_sigterm_to_the_whole_group_ends_a_run_in_order(
    start_server: StartServer, tmp_path: Path, *, follow: bool, status: int, state: str
) -> None:
    server = start_server()
    with Client(server.url) as client:
        client.append("a", [{"data": 1}])
    command = [sys.executable, "-m", "topics", "pipeline", "archive", "--url", server.url, "--topic", "a", "--json"]
    command += ["--spark", "--lake", str(tmp_path / "lake"), *(["--follow"] if follow else [])]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        _wait_until_begun(running, tmp_path / "lake", committed=follow)
        os.killpg(running.pid, signal.SIGTERM)
        out, err = running.communicate(timeout=60)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    report = json.loads(out)
    assert (running.returncode, report["state"]) == (status, state), err
    assert report["run_id"]
    if follow:
        assert [row["records"] for row in report["topics"]] == [1]
    else:
        assert report["error"]["kind"] == "interrupted"


def _wait_until_begun(running: "subprocess.Popen[bytes]", lake: Path, *, committed: bool) -> None:
    """Wait for a commit, or for the JVM that makes it."""
    from tests.spark import processes

    def begun() -> bool:
        assert running.poll() is None, running.communicate()
        if committed:
            return any(b"topics/archived" in path.read_bytes() for path in lake.glob("*/_delta_log/*.json"))
        return bool(processes.running(running.pid, "java"))

    processes.wait_for(begun, "the run to begin")
