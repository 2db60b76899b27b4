"""Servers with keys, and a client that speaks just enough HTTP to look at the head of an endless answer too."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ServerProcess
from tests.security.keys import keys_setting

WAIT_S = 10
STREAMS_END_S = 2  # by then a stream whose client has shut its side has ended


class Reply:
    """An answer's status and fields; its body as far as it is JSON."""

    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.headers = dict(line.lower().split(": ", 1) for line in lines)
        self.text = body.decode("utf-8", "replace")
        self.json: Any = json.loads(body) if self.headers.get("content-type") == "application/json" else None


class Caller:
    """Sends single requests to a server, each on a connection of its own or on one that is kept."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._kept: socket.socket | None = None

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)

    def send(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, fields: tuple[str, ...] = ()
    ) -> Reply:
        """The answer; of a stream, its head."""
        if self._kept is None:
            self._kept = self.connect()
        self._kept.sendall(request(method, path, body, key=key, fields=fields))
        reply, reusable = read_reply(self._kept)
        if not reusable:
            self.close()
        return reply

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None


def request(method: str, path: str, body: Any = None, *, key: str | None = None, fields: tuple[str, ...] = ()) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", *fields]
    if not any(field.lower().startswith("host:") for field in fields):
        lines.append("host: 127.0.0.1")
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    if content:
        lines += ["content-type: application/json", f"content-length: {len(content)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def read_reply(sock: socket.socket) -> tuple[Reply, bool]:
    """An answer, and whether the connection can carry another."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65_536)
        assert piece, f"the connection ended within an answer's head: {data!r}"
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = _length(head)
    if length is None:
        return Reply(head, b""), False
    while len(body) < length:
        body += sock.recv(65_536)
    return Reply(head, body), b"connection: close" not in head


def _length(head: bytes) -> int | None:
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length: "):
            return int(line.removeprefix(b"content-length: "))
    return None


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """A server with a key for every set of scopes, each once for all names and once for those that begin with `in.`"""
    server = ServerProcess(tmp_path_factory.mktemp("guarded"), {"api_keys": keys_setting()})
    caller = Caller(server.port)
    yield caller
    caller.close()
    server.stop()


@pytest.fixture
def call(start_server: Any) -> Iterator[Any]:
    """Starts a server with settings of its own; a `Caller` for it."""
    callers: list[Caller] = []

    def start(**settings: object) -> Caller:
        callers.append(Caller(start_server(**settings).port))
        return callers[-1]

    yield start
    for caller in callers:
        caller.close()
