"""`topics serve --dev` and `topics demo`: they start in one command and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import Cli, Terminal, plain


def test_serve_dev_keeps_nothing(home: Cli, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with home.start(
        "serve", "--dev", TMPDIR=str(temporary), TOPICS_DATA_DIR=str(tmp_path / "data"), TOPICS_PORT="1"
    ) as running:
        started = running.line()
        assert "listening on http://127.0.0.1:" in started
        user = Cli(tmp_path / "home", started.rpartition(" ")[2])
        assert user.pipe("append", "x", "1").status == 0
        running.process.send_signal(signal.SIGTERM)
        done = running.wait()
    assert (done.status, done.err) == (0, "")
    assert os.listdir(temporary) == []
    assert not (tmp_path / "data").exists()


def test_serve_prints_only_json_lines_if_asked(home: Cli) -> None:
    with Terminal(home, "serve", "--dev", "--json", "--log-level", "info") as terminal:
        terminal.wait_for('"urls"')
        terminal.wait_for('"listening"')
        assert terminal.interrupt() == 0
    lines = [json.loads(line) for line in plain(terminal.seen).replace("^C", "").splitlines() if line]
    [started] = [line for line in lines if "urls" in line]
    assert started["urls"][0].startswith("http://127.0.0.1:")
    assert "listening" in [line.get("event") for line in lines]
    done = home.pipe("serve", "--json", "--log-format", "human")
    assert (done.status, "--json prints JSON lines only" in done.err) == (2, True)


def test_serve_dev_refuses_a_data_directory(home: Cli, tmp_path: Path) -> None:
    done = home.pipe("serve", "--dev", "--data-dir", str(tmp_path / "data"))
    assert (done.status, "--dev keeps records in memory only" in done.err) == (2, True)


def test_demo_plays_a_shop_and_removes_it(home: Cli, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with home.start("demo", TMPDIR=str(temporary)) as running:
        url = json.loads(running.line())["url"]
        user = Cli(tmp_path / "home", url)
        wait_until(user, lambda: len(user.pipe("queue", "dead", "emails").lines) >= 1)
        wait_until(user, lambda: "tombstone" in user.pipe("read", "clicks", "--limit", "1").out)
        topics = {json.loads(line)["topic"] for line in user.pipe("ls").lines}
        assert topics == {"orders", "orders-eu", "clicks", "emails", "emails.dead"}
        wait_until(user, lambda: lag_of(user, "search") > 0)
        assert len(user.pipe("router", "ls").lines) == 1
        running.process.send_signal(signal.SIGINT)
        done = running.wait()
    assert (done.status, "nothing was left behind" in done.err) == (0, True)
    assert os.listdir(temporary) == []


def test_demo_says_what_to_look_at(home: Cli) -> None:
    with Terminal(home, "demo") as terminal:
        terminal.wait_for("Ctrl-C stops the shop")
        assert terminal.interrupt() == 0
    for command in ("topics top", "topics queue dead emails", "topics consumer ls orders", "export TOPICS_URL="):
        assert command in terminal.seen


def lag_of(user: Cli, consumer: str) -> int:
    rows = [json.loads(line) for line in user.pipe("consumer", "ls", "orders").lines]
    return next(row["lag_records"] for row in rows if row["consumer"] == consumer)


def wait_until(user: Cli, look: object) -> None:
    assert callable(look)
    for _ in range(200):
        if look():
            return
    raise AssertionError("not seen in time")


@pytest.mark.parametrize("words", [["--help"], ["settings"], ["--version"]], ids=" ".join)
def test_closed_pipe_ends_a_command_without_a_traceback(words: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        command = [sys.executable, "-m", "topics", *words]
        done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (1, "")
