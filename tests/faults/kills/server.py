"""Server processes that start quickly, and a raw HTTP connection to them.

Importing the package takes ten times longer than starting the server. A `Spawner` is a process that has imported
everything and forks: the child runs `topics serve` through its ordinary entry point. `fresh=True` starts a new
interpreter instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

ANSWER_S = 60  # a server that takes longer to answer hangs
LOST = (OSError, EOFError)  # what a client sees when the server is killed; IncompleteReadError is an EOFError


class Violation(Exception):
    """The server broke a promise."""


def require(condition: object, message: str) -> None:
    """Raise `Violation` unless the condition holds. Not an assert: these checks also run with `python -O`."""
    if not condition:
        raise Violation(message)


class Spawner:
    """Starts one server after the other."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.faults.kills.server"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def start(self, settings: dict[str, object], log: Path, *, fresh: bool = False) -> int:
        """Return the process id of a new server."""
        return int(self._ask({"start": {name: str(value) for name, value in settings.items()}, "log": str(log),
                              "fresh": fresh}))  # fmt: skip

    def kill(self, pid: int) -> int:
        """Kill the server, wait until it has gone, return its wait status."""
        return int(self._ask({"kill": pid}))

    def close(self) -> None:
        """End the spawner. It kills a server that still runs."""
        self._process.communicate(timeout=ANSWER_S)

    def _ask(self, order: dict[str, object]) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        answer: bytes = self._process.stdout.readline()
        require(answer, "the process that starts servers has ended")
        return answer


def main() -> None:
    """Carry out the orders of a `Spawner`, one JSON line each, until its end of the pipe is closed."""
    for name in ("topics.cli.main", "topics.cli.servers.serve", "topics.server.run", "topics.server.app"):
        importlib.import_module(name)
    importlib.import_module("topics.cli.options").build_parser()  # it imports the commands
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the command decides what to end
    running: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "start" in order:
            answer = _start(order["start"], order["log"], fresh=order["fresh"])
            running.add(answer)
        else:
            os.kill(order["kill"], signal.SIGKILL)
            answer = os.waitpid(order["kill"], 0)[1]
            running.discard(order["kill"])
        print(answer, flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _start(settings: dict[str, str], log: str, *, fresh: bool) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        for target, path, flags in ((0, os.devnull, os.O_RDONLY), (1, os.devnull, os.O_WRONLY),
                                    (2, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)):  # fmt: skip
            os.dup2(os.open(path, flags, 0o644), target)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name in [name for name in os.environ if name.startswith("TOPICS_")]:
            del os.environ[name]
        os.environ.update({f"TOPICS_{name.upper()}": value for name, value in settings.items()})
        if fresh:
            os.execv(sys.executable, [sys.executable, "-m", "topics", "serve"])
        os._exit(importlib.import_module("topics.cli.main").main(["serve"]))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(70)


def free_port() -> int:
    """A port that no client socket takes by chance: below the range of ephemeral ports."""
    for port in range(10_000 + os.getpid() % 20_000, 32_000):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise Violation("no free port between 10000 and 32000")


@dataclass
class Request:
    """One request; `done` receives the status and the decoded answer, if one arrives."""

    method: str
    path: str
    body: Any
    done: Callable[[int, Any], None]


class Connection:
    """One keep-alive connection. Requests are pipelined: all are sent before the first answer is read."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        """Connect. Raise ConnectionRefusedError while no server listens."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 26)

    async def send(self, requests: Sequence[Request]) -> None:
        """Send the requests and pass on their answers in order. Raise one of `LOST` when the server dies."""
        await self.open()
        assert self._reader is not None
        assert self._writer is not None
        self._writer.write(b"".join(_head_and_body(request) for request in requests))
        try:
            async with asyncio.timeout(ANSWER_S):
                for request in requests:
                    request.done(*await _answer(self._reader))
        except TimeoutError:
            raise Violation(f"no answer to {requests[0].method} {requests[0].path} in {ANSWER_S} s") from None

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answers: list[tuple[int, Any]] = []
        await self.send([Request(method, path, body, lambda status, answer: answers.append((status, answer)))])
        return answers[0]

    async def must(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer to a request that nothing allows the server to refuse."""
        while True:
            status, answer = await self.ask(method, path, body)
            if status not in (429, 503):  # 429: a busy machine
                require(status in (200, 201), f"{method} {path}: {status} {answer}")
                return answer
            await asyncio.sleep(0.01)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()


def _head_and_body(request: Request) -> bytes:
    body = b"" if request.body is None else msgspec.json.encode(request.body)
    head = f"{request.method} {request.path} HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n"
    head += f"content-length: {len(body)}\r\n"
    return head.encode() + (b"content-type: application/json\r\n\r\n" if body else b"\r\n") + body


async def _answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
    body = await reader.readexactly(length)
    return int(head[9:12]), msgspec.json.decode(body)


if __name__ == "__main__":
    main()
