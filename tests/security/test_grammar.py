"""Generated bad input over HTTP and WebSocket: no answer says that the server failed, and none is missing."""

import json
import os
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ServerProcess
from tests.sampling import amount
from tests.security.conftest import Caller
from tests.security.grammar import Grammar, frame

WAIT_S = 30  # an answer that takes longer counts as a hang
KEY, FULL = "the-key-with-a-prefix", "the-full-key"
SETTINGS = {
    "max_topics": 300, "max_routers": 50, "max_total_bytes": 64 << 20, "max_watch_sessions": 2000,
}  # fmt: skip
HANDSHAKE = (
    "GET /v0/ws HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
ON_ONE_CONNECTION = 25


class Target:
    """A server under test, and what became of the inputs that it got."""

    def __init__(self, running: ServerProcess, key: str | None) -> None:
        self.running = running
        self.key = key
        self.seen: Counter[str] = Counter()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.running.port), timeout=WAIT_S)

    # --- HTTP

    def ask_many(self, grammar: Grammar) -> int:
        """Requests in valid framing, one after the other: each has its answer before the next is sent."""
        sent = 0
        with self.connect() as sock:
            for _ in range(ON_ONE_CONNECTION):
                data = grammar.request(key=self.key)
                sock.sendall(data)
                sent += 1
                head, rest = _read_head(sock, data)
                status = int(head.split()[1])
                assert status < 500, (data, head, rest)
                self.seen[f"HTTP {status // 100}xx"] += 1
                if not _read_body(sock, head, rest, data) or b"connection: close" in head.lower():
                    break
        return sent

    def send_raw(self, grammar: Grammar) -> int:
        """Bytes that may be no request, and the end of the client's side behind them: the server ends its own side."""
        make = grammar.handshake if grammar.rolls.random() < 0.2 else grammar.raw_request
        data = b"".join(make(key=self.key) for _ in range(grammar.rolls.randrange(1, 3)))
        with self.connect() as sock:
            got = _until_the_end(sock, data)
        assert b"HTTP/1.1 5" not in got, (data, got)
        self.seen["raw, answered" if got.startswith(b"HTTP/1.1 ") else "raw, closed"] += 1
        return 1

    # --- WebSocket

    def talk(self, grammar: Grammar) -> int:
        """Frames on one connection, then a ping: it is answered, or the server has closed the connection."""
        with self.connect() as sock:
            extension = grammar.rolls.choice(("", "", "sec-websocket-extensions: permessage-deflate\r\n"))
            auth = "" if self.key is None else f"authorization: Bearer {self.key}\r\n"
            sock.sendall(f"{HANDSHAKE}{auth}{extension}\r\n".encode())
            head, rest = _read_head(sock, b"handshake")
            assert b" 101 " in head, head
            frames, followed = grammar.frames(ON_ONE_CONNECTION)
            sent = b"".join(frames)
            if followed:
                outcome = self._outcome(sock, rest, sent)
            else:
                got = rest + _until_the_end(sock, sent)
                assert b'"internal"' not in got, (sent, got)
                outcome = "unfinished"
        self.seen[f"frames, {outcome}"] += len(frames)
        return len(frames)

    def _outcome(self, sock: socket.socket, rest: bytes, sent: bytes) -> str:
        try:
            sock.sendall(sent + frame(0x1, b'{"op":"ping","request_id":"the end"}'))
        except ConnectionError:
            return "closed"
        for opcode, payload in _frames(sock, rest, sent):
            if opcode == 0x8:
                assert payload[:2] != b"\x03\xf3", (sent, payload)  # 1011: an error of the server
                return "closed"
            if opcode == 0x1:
                answer = json.loads(payload)
                assert answer.get("code") != "internal", (sent, answer)
                if answer.get("request_id") == "the end":
                    return "answered"
        return "closed"


@pytest.fixture(scope="module", params=["keys", "no keys"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory = tmp_path_factory.mktemp("grammar")
    keyed = request.param == "keys"
    keys = {"api_keys": f"{FULL},{KEY}::in."} if keyed else {}
    running = ServerProcess(directory, SETTINGS | keys | {"data_dir": directory / "data"})
    caller = Caller(running.port)
    for name in ("in.plain", "in.queue", "in.dead", "out.plain", "out.queue"):
        kind = {"type": "queue", "max_deliveries": 1, "dead_letter": "in.dead"} if name.endswith("queue") else {}
        assert caller.send("PUT", f"/v0/topics/{name}", kind, key=FULL).status == 201
    caller.close()
    yield Target(running, KEY if keyed else None)
    running.stop()  # fails if the server logged an error


def _read_head(sock: socket.socket, sent: bytes) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = _receive(sock, sent)
        assert piece, f"no answer to {sent!r}: {data!r}"
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _read_body(sock: socket.socket, head: bytes, rest: bytes, sent: bytes) -> bool:
    """Whether the connection can carry another request."""
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: ")]
    if not lengths:
        return False
    left = int(lengths[0].split()[1]) - len(rest)
    while left > 0 and not sent.startswith(b"HEAD"):
        piece = _receive(sock, sent)
        if not piece:
            return False
        left -= len(piece)
    return True


def _receive(sock: socket.socket, sent: bytes) -> bytes:
    try:
        return sock.recv(65_536)
    except TimeoutError:
        raise AssertionError(f"the server hangs on {sent!r}") from None
    except ConnectionError:
        return b""


def _until_the_end(sock: socket.socket, sent: bytes) -> bytes:
    got = b""
    try:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        return got
    while piece := _receive(sock, sent):
        got += piece
    return got


def _frames(sock: socket.socket, data: bytes, sent: bytes) -> Iterator[tuple[int, bytes]]:
    """Frames of the server, to the end of the connection."""
    while True:
        if len(data) >= 2:
            size, at = data[1] & 0x7F, 2
            if size == 126 and len(data) >= 4:
                size, at = int.from_bytes(data[2:4], "big"), 4
            elif size == 127 and len(data) >= 10:
                size, at = int.from_bytes(data[2:10], "big"), 10
            elif size >= 126:
                size = len(data)  # its length has not come yet
            if len(data) >= at + size:
                yield data[0] & 0x0F, data[at : at + size]
                data = data[at + size :]
                continue
        piece = _receive(sock, sent)
        if not piece:
            return
        data += piece


def send_inputs(target: Any, count: int, *, seed: int) -> Counter[str]:
    """Send `count` inputs: more than half over WebSocket, the rest as requests and as raw bytes."""
    grammar = Grammar(seed)
    sent = 0
    while sent < count:
        roll = grammar.rolls.random()
        if roll < 0.15:
            sent += target.talk(grammar)
        elif roll < 0.25:
            sent += target.ask_many(grammar)
        else:
            sent += target.send_raw(grammar)
    with target.connect() as sock:
        sock.sendall(b"GET /v0/health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert _read_head(sock, b"health")[0].startswith(b"HTTP/1.1 200")
    target.seen["inputs"] += sent
    seen: Counter[str] = target.seen
    return seen


def test_some_generated_inputs_break_nothing(server: Any):
    seen = send_inputs(server, 1_500, seed=1)
    assert min(seen[kind] for kind in ("HTTP 2xx", "HTTP 4xx", "raw, answered", "frames, answered")) > 5, seen


@pytest.mark.torture
def test_many_generated_inputs_break_nothing(server: Any, capsys: pytest.CaptureFixture[str]):
    """10,000 for each of the two servers, 50,000 with `TORTURE=all`. `TOPICS_FUZZ_SEED` chooses others."""
    number = amount(10_000, 50_000)
    seen = send_inputs(server, number, seed=int(os.environ.get("TOPICS_FUZZ_SEED", "2")))
    with capsys.disabled():
        print(f"\n{dict(sorted(seen.items()))}")
    assert seen["inputs"] >= number
