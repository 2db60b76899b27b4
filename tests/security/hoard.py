"""Clients that make a server hold bytes for them: connections that read little, and what they have opened together."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from topics.server.limits.budget import CONNECTION_BYTES

MIB = 1 << 20
WAIT_S = 60
BIG, QUEUE, CAPPED, KEYED, QUIET = "big", "queue", "capped", "keyed", "quiet"  # topics
UNIT_BYTES = 8 * MIB  # of one answer or body: the system's own buffers take the first megabytes of it
REFUSALS = 3  # after which a way has shown what it was to show
POLL_MS = 30_000


class Connection:
    """A client that reads only on request, with the smallest possible receive buffer."""

    def __init__(self, port: int) -> None:
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(("127.0.0.1", port))
        self.got = b""

    def send(self, data: bytes) -> bool:
        """Send it all; False if the server would not take it because it has answered already."""
        try:
            self.sock.sendall(data)
        except ConnectionError:
            return False
        return True

    def send_patiently(self, data: bytes) -> None:
        """Send until all is taken, or the server answers."""
        view = memoryview(data)
        deadline = time.monotonic() + WAIT_S
        while len(view) and time.monotonic() < deadline:
            ready = self._ready(select.POLLIN | select.POLLOUT, 1)
            if ready & ~select.POLLOUT:
                return
            if ready:
                self.sock.setblocking(False)
                try:
                    view = view[self.sock.send(view[:MIB]) :]
                except BlockingIOError:
                    pass
                except ConnectionError:
                    return
                finally:
                    self.sock.settimeout(WAIT_S)

    def answered(self, wait_s: float = 0) -> bool:
        return bool(self._ready(select.POLLIN, wait_s))

    def _ready(self, wanted: int, wait_s: float) -> int:
        """Return what the socket is ready for. There may be more sockets than `select` can count."""
        asked = select.poll()
        asked.register(self.sock, wanted)
        found = asked.poll(wait_s * 1000)
        return found[0][1] if found else 0

    def head(self) -> bytes:
        """Read as far as the end of the answer's head; a refusal whole."""
        try:
            while b"\r\n\r\n" not in self.got and (more := self.sock.recv(512)):
                self.got += more
            if b" 429 " in self.got[:20]:
                while b'"performance"' not in self.got and (more := self.sock.recv(512)):
                    self.got += more
        except ConnectionError:
            pass
        return self.got

    def was_refused(self) -> bool:
        """Whether the answer is a refusal, which then is clear."""
        head = self.head()
        if b" 429 " not in head[:20]:
            return False
        assert b"retry-after: 1\r\n" in head, head
        assert b'"limit":"memory_budget_bytes"' in head or b'"limit":"max_connections"' in head, head
        return True


def request(method: str, path: str, body: Any = None, *, fields: tuple[str, ...] = ()) -> bytes:
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", *fields]
    if content:
        lines += ["content-type: application/json", f"content-length: {len(content)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def send(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """A request on a connection of its own, and its answer; again if there was no room for the connection."""
    deadline = time.monotonic() + WAIT_S
    while True:
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as sock:
            sock.sendall(request(method, path, body, fields=("connection: close", "accept: application/json")))
            data = b""
            while more := sock.recv(1 << 16):
                data += more
        if b'"limit":"max_connections"' not in data or time.monotonic() > deadline:
            head, _, content = data.partition(b"\r\n\r\n")
            return int(head.split()[1]), json.loads(content)
        time.sleep(0.01)


def charged(port: int) -> dict[str, int]:
    """What is charged to the budget, but for the connection that asks."""
    _, metrics = send(port, "GET", "/v0/metrics")
    found: dict[str, int] = metrics["topics_memory_charged_bytes"]
    found["connections"] -= CONNECTION_BYTES
    return found


def poll(topic: str, head_seq: int, *, padding: int = 0) -> bytes:
    """A request for records that are not there yet."""
    wanted = {"wait_ms": POLL_MS, "from_seq": head_seq, "max_batch_bytes": UNIT_BYTES}
    return request("POST", f"/v0/topics/{topic}/diff", json.dumps(wanted).encode() + b" " * padding)


class Hoard:
    """What one way has opened, and how often the server has refused."""

    def __init__(self, port: int, budget_bytes: int) -> None:
        self.port = port
        self.most = 4 * budget_bytes // UNIT_BYTES + 8  # connections of a unit each: far more than the budget allows
        self.budget_bytes = budget_bytes
        self.refusals = 0
        self.connections: list[Connection] = []

    def connect(self) -> Connection:
        self.connections.append(Connection(self.port))
        return self.connections[-1]

    def ask(self, method: str, path: str, body: Any = None, *, fields: tuple[str, ...] = ()) -> Connection:
        """Send a request on a connection of its own and read the head of its answer."""
        connection = self.connect()
        connection.send(request(method, path, body, fields=fields))
        self.refusals += connection.was_refused()
        return connection

    def wait_until_full(self) -> None:
        """Wait until most of the budget is charged and no more comes, or a deadline has passed."""
        before, deadline = -1, time.monotonic() + WAIT_S
        while (now := sum(charged(self.port).values())) != before or now < self.budget_bytes // 2:
            assert time.monotonic() < deadline, now
            before = now
            time.sleep(0.3)

    def count_answered(self, wait_s: float = 0) -> None:
        """Count refusals of requests that the server has not received in full."""
        for connection in self.connections:
            if not connection.got and connection.answered(wait_s):
                self.refusals += connection.was_refused()

    @property
    def enough(self) -> bool:
        return self.refusals >= REFUSALS

    def close(self) -> None:
        for connection in self.connections:
            connection.sock.close()


Way = Callable[[Hoard], None]
