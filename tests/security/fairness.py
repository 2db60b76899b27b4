"""How long a polite client waits while another one does its worst: the measurement, and the frames of the floods.

`python -m tests.security.fairness [NAME...]` prints the figures of the floods in `floods.py`, all or those named.
"""

import base64
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

BYSTANDER = Path(__file__).parent / "bystander.py"
WAIT_S = 120
CALM_S = 0.1  # before and after a flood
ZERO_MASK = bytes(4)  # masks nothing, so that a frame is cheap to make
TEXT, CONTINUATION, PING, PONG = 1, 0, 9, 10


class Figures:
    """What the bystander saw."""

    def __init__(self, latencies_ms: list[float]) -> None:
        self.latencies_ms = sorted(latencies_ms)

    def at(self, share: float) -> float:
        last = len(self.latencies_ms) - 1
        return self.latencies_ms[min(last, int(share * len(self.latencies_ms)))]

    @property
    def p50_ms(self) -> float:
        return self.at(0.50)

    @property
    def p99_ms(self) -> float:
        return self.at(0.99)

    @property
    def worst_ms(self) -> float:
        return self.latencies_ms[-1]

    def __str__(self) -> str:
        n = len(self.latencies_ms)
        return f"p50 {self.p50_ms:8.1f} ms  p99 {self.p99_ms:8.1f} ms  worst {self.worst_ms:8.1f} ms  ({n} appends)"


class Bystander:
    """The polite client, running until `figures` is asked for."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(BYSTANDER), str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def figures(self) -> Figures:
        out, _ = self._process.communicate("stop\n", timeout=WAIT_S)
        return Figures(json.loads(out))


def measure(port: int, flood: Callable[[int], None]) -> Figures:
    """Run the flood beside a bystander; what the bystander saw of it, with some calm before and after."""
    bystander = Bystander(port)
    time.sleep(CALM_S)
    flood(port)
    time.sleep(CALM_S)
    return bystander.figures()


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True) -> bytes:
    """One masked frame as a client sends it (RFC 6455 section 5.2)."""
    first, size = opcode | (0x80 if fin else 0), len(payload)
    if size < 126:
        return bytes((first, 0x80 | size)) + ZERO_MASK + payload
    if size < 1 << 16:
        return bytes((first, 0x80 | 126)) + size.to_bytes(2, "big") + ZERO_MASK + payload
    return bytes((first, 0x80 | 127)) + size.to_bytes(8, "big") + ZERO_MASK + payload


@contextmanager
def upgraded(port: int) -> Iterator[socket.socket]:
    """A raw WebSocket connection, after the handshake."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as raw:
        key = base64.b64encode(os.urandom(16)).decode()
        raw.sendall(
            f"GET /v0/ws HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            f"sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n\r\n".encode()
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += raw.recv(1)
        assert head.startswith(b"HTTP/1.1 101 "), head
        yield raw


def exchange(port: int, method: str, path: str, body: bytes | None = None, **fields: str) -> tuple[int, Any]:
    """One request on a connection of its own: status, and the body, decoded if it is JSON."""
    head = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "connection: close"]
    if body is not None:
        head += ["content-type: application/json", f"content-length: {len(body)}"]
    head += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as raw:
        raw.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + (body or b""))
        answer = b"".join(iter(lambda: raw.recv(1 << 20), b""))
    start, _, content = answer.partition(b"\r\n\r\n")
    is_json = b"\r\ncontent-type: application/json\r\n" in start
    return int(start.split()[1]), json.loads(content) if is_json else content


def make_topics(port: int, count: int, *, named: str = "many.{:06}") -> None:
    """Create so many topics with one record each, over a few connections at once."""
    names = [named.format(at) for at in range(count)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda at: _make_some(port, names[at::4]), range(4)))


def _make_some(port: int, names: list[str]) -> None:
    body = b'{"records":[{"data":1}]}'
    rest = b"host: [::1]\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as raw:
        for at in range(0, len(names), 32):
            some = names[at : at + 32]
            raw.sendall(b"".join(b"POST /v0/topics/%b HTTP/1.1\r\n%b" % (name.encode(), rest) for name in some))
            answers = b""
            while answers.count(b"HTTP/1.1 20") < len(some) or not answers.endswith(b"}\n"):
                answers += (got := raw.recv(1 << 18))
                assert got, answers


def main(words: list[str]) -> None:
    """Measure the cases whose name has one of the words, or all."""
    from tests.conftest import ServerProcess
    from tests.security import floods

    plain = {name: floods.Case(flood) for name, flood in floods.FLOODS.items()}
    for topics, cases in ((1_000, plain), (99_000, floods.TOPIC_REQUESTS), (1, floods.RECORD_REQUESTS)):
        chosen = [name for name in cases if not words or any(word in name for word in words)]
        if not chosen:
            continue
        with TemporaryDirectory() as directory:
            server = ServerProcess(Path(directory), {"data_dir": Path(directory) / "data"})
            try:
                make_topics(server.port, topics)
                for name in chosen:
                    if (prepare := cases[name].prepare) is not None:
                        prepare(server.port)
                    print(f"{name:28} {measure(server.port, cases[name].flood)}", flush=True)
            finally:
                server.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
