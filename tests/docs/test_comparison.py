"""docs/coming-from/comparison.md: what it shows of other systems, where they are installed."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks_of

PAGE = Path(__file__).parents[2] / "docs" / "coming-from" / "comparison.md"
BLOCKS = list(blocks_of(PAGE.read_text()))
WAIT_S = 30


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [name for name in programs if shutil.which(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def with_output(word: str) -> list[tuple[Block, str]]:
    """Return the blocks that have this word and are followed by what they print."""
    found = [(block, after.text) for block, after in pairwise(BLOCKS) if word in block.text and after.is_shown_output]
    assert found
    return found


@contextmanager
def listening(directory: Path, *command: str) -> Iterator[int]:
    """Run a server. `PORT` in its command is a free port, which is yielded when the server listens there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    words = [word.replace("PORT", str(port)) for word in command]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=directory, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + WAIT_S
        while True:
            is_over = process.poll() is not None or time.monotonic() > deadline
            assert not is_over, (directory / "log").read_text()
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait(WAIT_S)


@needs("redis-server", "redis-cli")
def test_redis_prints_what_the_page_shows(tmp_path: Path) -> None:
    command = ("redis-server", "--port", "PORT", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    with listening(tmp_path, *command) as port:
        for block, shown in with_output("redis-cli"):
            script = block.text.replace("redis-cli", f"redis-cli -p {port}")
            done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=WAIT_S)
            assert (done.returncode, done.stdout.strip()) == (0, shown.strip()), done.stderr


@needs("nats-server")
def test_jetstream_prints_what_the_page_shows(tmp_path: Path) -> None:
    pytest.importorskip("nats")
    [(block, shown)] = with_output("import nats")
    with listening(tmp_path, "nats-server", "-js", "-a", "127.0.0.1", "-p", "PORT", "-sd", str(tmp_path)) as port:
        program = block.text.replace(":4222", f":{port}")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stdout) == (0, shown), done.stderr
