"""Every way in which clients can make a server hold bytes for them, until the server refuses.

A way takes a `Hoard` and goes on until the server has refused a few times. What it has opened stays open until the
hoard is closed. `python -m tests.security.hoarding BUDGET_MIB [NAME...]` prints what each way costs a server.
"""

from __future__ import annotations

import gzip
import json
import select
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.conftest import ServerProcess
from tests.security.fairness import CONTINUATION, TEXT, frame
from topics.server.budget import CONNECTION_BYTES

MIB = 1 << 20
WAIT_S = 60
RECORD_BYTES = 512 << 10
BIG, QUEUE, CAPPED, QUIET = "big", "queue", "capped", "quiet"
PIPELINED = 64  # requests of one connection that the server begins before it has answered the first
UNIT_BYTES = 8 * MIB  # of one answer or body: the system's own buffers take the first megabytes of it
REFUSALS = 3
POLL_MS = 30_000
RELEASE_S = 30  # until the server has noticed that clients are gone, and has given memory back
LEFT_BYTES = 64 << 10  # connections that were not noticed to be closed yet
SLACK_BYTES = 32 * MIB  # of resident memory: allocations do not fit each other


class Connection:
    """A client that reads no more than it is told to. Its system holds as little as possible for it."""

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
            readable, writable, _ = select.select([self.sock], [self.sock], [], 1)
            if readable:
                return
            if writable:
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
        return bool(select.select([self.sock], [], [], wait_s)[0])

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


# --- requests that do not come to their end


def unfinished_bodies(hoard: Hoard) -> None:
    head = f"POST /v0/topics/{BIG} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    for n in range(hoard.most):
        connection = hoard.connect()
        if n % 2:
            connection.send(head.encode() + b"content-length: %d\r\n\r\n" % UNIT_BYTES)
            connection.send_patiently(b" " * (UNIT_BYTES - 100))
        else:
            connection.send(head.encode() + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % UNIT_BYTES)
            connection.send_patiently(b" " * (UNIT_BYTES - 100))
        hoard.count_answered()
        if hoard.enough:
            return


def unfinished_heads(hoard: Hoard) -> None:
    """As many connections as the budget allows, each with a head that does not come to its end; and some more."""
    allowed = hoard.budget_bytes // (4 * CONNECTION_BYTES)
    for n in range(allowed + 20):
        connection = hoard.connect()
        connection.send(b"GET /v0/topics/" + b"x" * 30_000)
        if n >= allowed - 20 and connection.answered(0.2):
            hoard.refusals += connection.was_refused()
        if hoard.enough:
            break
    for connection in hoard.connections[:10]:  # room for the requests that ask how the server is
        connection.sock.close()
    hoard.connections = hoard.connections[10:]


def packed_bodies(hoard: Hoard) -> None:
    """Bodies that grow a thousandfold, behind as many unanswered requests as a connection may have."""
    packed = gzip.compress(b'{"records":[{"data":1}]}' + b" " * UNIT_BYTES)
    write = request("POST", f"/v0/topics/{CAPPED}", packed, fields=("content-encoding: gzip",))
    head = send(hoard.port, "GET", f"/v0/topics/{QUIET}")[1]["head_seq"]
    for _ in range(hoard.most):
        hoard.connect().send(poll(QUIET, head) * PIPELINED + write)
    hoard.wait_until_full()
    for connection in hoard.connections:
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    send(hoard.port, "POST", f"/v0/topics/{QUIET}", {"records": [{"data": 1}]})
    for connection in hoard.connections:
        while not hoard.enough and connection.got.count(b'"performance"') <= PIPELINED:
            connection.got += connection.sock.recv(1 << 16)
        if b" 429 " in connection.got:
            assert b'"limit":"memory_budget_bytes"' in connection.got
            hoard.refusals += 1


def pipelined_requests(hoard: Hoard) -> None:
    """Hundreds of small requests behind unanswered ones. Holds little: there are no refusals."""
    head = send(hoard.port, "GET", f"/v0/topics/{QUIET}")[1]["head_seq"]
    for _ in range(200):
        hoard.connect().send(poll(QUIET, head) * PIPELINED + b"GET /healthz HTTP/1.1\r\nhost: [::1]\r\n\r\n" * 400)
    hoard.refusals = REFUSALS


def long_polls(hoard: Hoard) -> None:
    """Polls with large bodies, all woken by one write."""
    head = send(hoard.port, "GET", f"/v0/topics/{BIG}")[1]["head_seq"]
    for n in range(hoard.most):
        hoard.connect().send(poll(BIG, head, padding=50_000 * (n % 2)))
    status, answer = send(hoard.port, "POST", f"/v0/topics/{BIG}", {"records": [{"data": "x" * 900_000}] * 9})
    assert status == 200, answer
    hoard.count_answered(0.5)


# --- answers that nobody reads


def unread_answers(hoard: Hoard) -> None:
    fields: tuple[str, ...]
    for n in range(hoard.most):
        fields = ("accept-encoding: gzip",) if n % 4 == 3 else ()
        hoard.ask(
            "POST", f"/v0/topics/{BIG}/diff", {"max_batch_bytes": UNIT_BYTES, "include_tags": n % 2 == 1}, fields=fields
        )
        if hoard.enough:
            return


def unread_pipelined_answers(hoard: Hoard) -> None:
    read = request("POST", f"/v0/topics/{BIG}/diff", {"max_batch_bytes": UNIT_BYTES})
    for _ in range(hoard.most):
        connection = hoard.connect()
        connection.send(read * 20)
        hoard.refusals += connection.was_refused()
        if hoard.enough:
            return


def unread_claims(hoard: Hoard) -> None:
    for n in range(hoard.most):
        hoard.ask("POST", f"/v0/topics/{QUEUE}/claim", {"node": f"w{n}", "max": 1000, "lease_ms": 100})
        if hoard.enough:
            return


def unread_work(hoard: Hoard) -> None:
    for n in range(hoard.most):
        connection = hoard.ask(
            "GET", f"/v0/topics/{QUEUE}/work?node=s{n}&max=1000&lease_ms=100", fields=("accept: text/event-stream",)
        )
        connection.answered(0.2)
        if hoard.enough:
            return


def unread_scans(hoard: Hoard) -> None:
    for n in range(hoard.most * 4):
        accept = ("application/x-ndjson", "application/vnd.topics.segments")[n % 2]
        hoard.ask("POST", f"/v0/topics/{BIG}/scan", {}, fields=(f"accept: {accept}",))
        if hoard.enough:
            return


def unread_streams(hoard: Hoard) -> None:
    body = {"topics": {BIG: {}, CAPPED: {}}, "max_batch_bytes": UNIT_BYTES, "limit": 1000}
    for _ in range(hoard.most):
        made = Connection(hoard.port)
        made.send(request("POST", "/v0/watch", body))
        if made.was_refused():
            hoard.refusals += 1
        else:
            answer = made.got.partition(b"\r\n\r\n")[2]
            while b"}}" not in answer or not answer.endswith(b"}"):
                answer += made.sock.recv(4096)
            url = json.loads(answer)["stream_url"]
            hoard.ask("GET", url, fields=("accept: text/event-stream",)).answered(0.2)
        made.sock.close()
        if hoard.enough:
            return


UPGRADE = (
    "connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13",
    "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
)  # fmt: skip


def unread_sockets(hoard: Hoard) -> None:
    command = {"op": "subscribe", "topic": BIG, "max_batch_bytes": UNIT_BYTES, "limit": 1000}
    for _ in range(hoard.most):
        connection = hoard.ask("GET", "/v0/ws", fields=UPGRADE)
        connection.send(frame(TEXT, json.dumps(command).encode()))
        connection.answered(0.2)
        if hoard.enough:
            return


# --- what WebSockets send, and what is kept between requests


def unfinished_messages(hoard: Hoard) -> None:
    piece = frame(CONTINUATION, b" " * MIB, fin=False)
    for _ in range(hoard.most):
        connection = hoard.ask("GET", "/v0/ws", fields=UPGRADE)
        if hoard.enough:
            return
        connection.send(frame(TEXT, b" ", fin=False))
        connection.send_patiently(piece * 8)
        for other in hoard.connections:
            if b"throttled" not in other.got and b" 101 " in other.got[:20] and other.answered():
                other.got += other.sock.recv(4096)
                if b"throttled" in other.got:
                    hoard.refusals += 1
        if hoard.enough:
            return


def sessions(hoard: Hoard) -> None:
    names = [f"node-{n:03}-" + "x" * 100 for n in range(256)]
    body = {"topics": {BIG: {"filter": "x" * (hoard.budget_bytes // 400)}}, "node": names}
    connection = hoard.connect()
    for _ in range(1000):
        connection.send(request("POST", "/v0/watch", body))
        connection.got = b""
        if connection.was_refused():
            hoard.refusals += 1
            connection = hoard.connect()
            if hoard.enough:
                return
            continue
        rest = connection.got.partition(b"\r\n\r\n")[2]
        size = int(connection.got.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(rest) < size:
            rest += connection.sock.recv(4096)


def idempotency_keys(hoard: Hoard) -> None:
    connection = hoard.connect()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    for n in range(hoard.budget_bytes // 512 // 100):
        batch = [
            request(
                "POST", f"/v0/topics/{CAPPED}", {"records": [{"data": 1}], "idempotency_key": f"{n}-{m}-" + "k" * 230}
            )
            for m in range(100)
        ]
        connection.send(b"".join(batch))
        answers, got = 0, b""
        while answers < 100:
            more = connection.sock.recv(1 << 16)
            assert more, got[-500:]
            got += more
            answers = got.count(b'"performance"')
        if b" 429 " in got:
            assert b'"limit":"memory_budget_bytes"' in got
            hoard.refusals = REFUSALS
            return


WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (
        unfinished_bodies, unfinished_heads, packed_bodies, pipelined_requests, long_polls, unread_answers,
        unread_pipelined_answers, unread_claims, unread_work, unread_scans, unread_streams, unread_sockets,
        unfinished_messages, sessions, idempotency_keys,
    )
}  # fmt: skip


# --- the server


class Target:
    """A server with a budget and something to read, and what it holds."""

    def __init__(self, directory: Path, budget_bytes: int, *, ulimit: str = "") -> None:
        self.budget_bytes = budget_bytes
        settings = {
            "data_dir": directory / "data", "memory_budget_bytes": budget_bytes, "session_ttl_ms": 3000,
            "max_body_bytes": 63 * MIB, "pressure_lag_ms": 0,
        }  # fmt: skip
        self.server = ServerProcess(directory, settings, ulimit=ulimit)
        self.send("PUT", f"/v0/topics/{QUIET}", {})
        self.send("PUT", f"/v0/topics/{QUEUE}", {"type": "queue"})
        self.send("PUT", f"/v0/topics/{CAPPED}", {"cap_records": 10, "idempotency_window_ms": 60_000})
        text = "x" * RECORD_BYTES
        for _ in range(16):
            self.send("POST", f"/v0/topics/{BIG}", {"records": [{"data": text, "tag": "t"}]})
        for _ in range(hoarded_jobs(budget_bytes)):
            self.send("POST", f"/v0/topics/{QUEUE}", {"records": [{"data": text}]})
        self.hoard("unread_answers", few=True)  # whatever is made once is made by now

    def hoard(self, name: str, *, few: bool = False) -> Hoard:
        hoard = Hoard(self.server.port, MIB if few else self.budget_bytes)
        if few:
            hoard.most = 2
        WAYS[name](hoard)
        if few:
            hoard.close()
        return hoard

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return send(self.server.port, method, path, body)

    def charged(self) -> dict[str, int]:
        return charged(self.server.port)

    def memory_bytes(self, row: str) -> int:
        """`VmRSS`, or `VmHWM` for the peak."""
        text = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(text.partition(f"{row}:")[2].split()[0]) * 1024

    def wait_for_release(self) -> int:
        """Return what is still charged once that is next to nothing, or a deadline has passed."""
        deadline = time.monotonic() + RELEASE_S
        while (left := sum(self.charged().values())) > LEFT_BYTES and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def wait_for_memory(self, most_bytes: int) -> int:
        deadline = time.monotonic() + RELEASE_S
        while (now := self.memory_bytes("VmRSS")) > most_bytes and time.monotonic() < deadline:
            time.sleep(0.02)
        return now

    def forget_peak(self) -> None:
        Path(f"/proc/{self.server.process.pid}/clear_refs").write_text("5")


def hoarded_jobs(budget_bytes: int) -> int:
    return min(2 * budget_bytes // RECORD_BYTES, 256)


class Figures:
    """What one way cost the server, in bytes of memory; and what was charged when the server refused."""

    def __init__(self, target: Target, name: str) -> None:
        target.forget_peak()
        self.base = target.memory_bytes("VmRSS")
        hoard = target.hoard(name)
        self.refusals = hoard.refusals
        self.held = target.memory_bytes("VmRSS")
        self.charged = target.charged()
        self.small = [
            target.send("POST", f"/v0/topics/{CAPPED}", {"records": [{"data": 1}]})[0],
            target.send("POST", f"/v0/topics/{CAPPED}/diff", {})[0],
            target.send("GET", "/v0/health")[0],
        ]
        hoard.close()
        for topic in (QUIET, BIG):  # answers polls: whoever is gone is noticed
            target.send("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]})
        self.left = target.wait_for_release()
        self.after = target.wait_for_memory(self.base + SLACK_BYTES)
        self.peak = target.memory_bytes("VmHWM")

    def __str__(self) -> str:
        sizes = " ".join(f"{size / MIB:6.0f}" for size in (self.base, self.peak, self.held, self.after))
        shown = {account: size // MIB for account, size in self.charged.items() if size >= MIB}
        return f"{sizes}  {self.refusals} refused, small requests {self.small}, charged {shown}"


def main() -> None:
    with TemporaryDirectory(prefix="hoarding") as directory:
        target = Target(Path(directory), int(sys.argv[1]) * MIB)
        print(f"{'MiB':26} {'base':>6} {'peak':>6} {'held':>6} {'after':>6}")
        for name in sys.argv[2:] or WAYS:
            began = time.monotonic()
            print(f"{name:26} {Figures(target, name)}, {time.monotonic() - began:.0f} s", flush=True)
        target.server.stop()


if __name__ == "__main__":
    main()
