"""A strict reader of event streams: unexpected input fails the test."""

from __future__ import annotations

import base64
import json
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tools.docs.pushed import EVENTS

WAIT_S = 10.0


@dataclass(frozen=True)
class Frame:
    """One event. `seqs` are those of its records."""

    event: str
    data: Any
    id: str | None

    @property
    def seqs(self) -> list[int]:
        return [record["$seq"] for record in self.data["records"]]

    @property
    def cursor(self) -> Any:
        assert self.id is not None
        return decode_id(self.id)


def decode_id(text: str) -> Any:
    assert "=" not in text
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def encode_id(cursor: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(cursor).encode()).rstrip(b"=").decode()


def as_documented(kinds: dict[str, type[msgspec.Struct]], name: str, data: Any) -> Any:
    """Return the data of an event or a message, if the reference documents all of it."""
    kind = kinds[name]
    known = {field.encode_name for field in msgspec.structs.fields(kind)} | {"op"}
    assert data.keys() <= known, f"{name} has fields that are not documented: {data.keys() - known}"
    records = [{"data": None} | record for record in data.get("records", ())]  # a watcher may want none
    msgspec.convert(data | {"records": records} if "records" in data else data, kind)
    return data


class Events:
    """One connection to a stream. The head is read at once, so that a refusal shows as `status` and `body`."""

    def __init__(
        self, url: str, path: str, *, last_id: str | None = None, receive_bytes: int = 0, **headers: str
    ) -> None:
        address = urlsplit(url)
        self.sock = socket.socket()
        if receive_bytes:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.sock.settimeout(WAIT_S)
        self.sock.connect((address.hostname, address.port))
        lines = [
            f"GET {path} HTTP/1.1",
            "host: 127.0.0.1",
            *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items()),
        ]
        if "accept" not in headers:
            lines.append("accept: text/event-stream")
        if last_id is not None:
            lines.append(f"last-event-id: {last_id}")
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode())
        self.comments: list[str] = []
        self.retries: list[int] = []
        self.opening_id: str | None = None  # of the block without an event
        self._buffer = b""
        head = self._until(b"\r\n\r\n").decode()
        self.status = int(head.split()[1])
        self.headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head.split("\r\n")[1:] if line)}
        self.last_id: str | None = last_id

    def body(self) -> Any:
        """Return the JSON body of a refusal."""
        size = int(self.headers["content-length"])
        while len(self._buffer) < size:
            self._buffer += self.sock.recv(65536)
        return json.loads(self._buffer[:size])

    def _until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            piece = self.sock.recv(1 << 20)
            if not piece:
                raise EOFError(self._buffer)
            self._buffer += piece
        found, _, self._buffer = self._buffer.partition(end)
        return found

    def next(self) -> Frame:
        """Return the next event. Comments and `retry` before it are kept."""
        while True:
            block = self._until(b"\n\n").decode()
            fields: dict[str, str] = {}
            for line in block.split("\n"):
                name, _, value = line.partition(": ")
                if line.startswith(": "):
                    self.comments.append(line.removeprefix(": "))
                elif name == "retry":
                    self.retries.append(int(value))
                else:
                    assert name in ("id", "event", "data"), line
                    assert name not in fields, block
                    fields[name] = value
            if fields:
                self.last_id = fields.get("id", self.last_id)
                if fields.keys() == {"id"}:
                    assert self.opening_id is None, "an id without an event is sent only once, at open"
                    self.opening_id = fields["id"]
                    continue
                data = as_documented(EVENTS, fields["event"], json.loads(fields["data"]))
                return Frame(fields["event"], data, fields.get("id"))

    def expect(self, *events: str) -> list[Frame]:
        frames = [self.next() for _ in events]
        assert [frame.event for frame in frames] == list(events), frames
        return frames

    def until(self, event: str) -> list[Frame]:
        """Return all events up to and including one of that name."""
        frames = [self.next()]
        while frames[-1].event != event:
            frames.append(self.next())
        return frames

    def opening(self) -> str:
        """Return the id at the beginning of the stream, without reading the first event."""
        while (block := self._until(b"\n\n").decode()).startswith((":", "retry: ")):
            pass
        assert block.startswith("id: "), block
        assert "\n" not in block, block
        return block.removeprefix("id: ")

    def has_more(self) -> bool:
        """Wait until the server has sent more than was read."""
        return bool(self._buffer or self.sock.recv(1, socket.MSG_PEEK))

    def comment(self) -> str:
        """Return the next comment, which must be the next thing received."""
        known = len(self.comments)
        while len(self.comments) == known:
            block = self._until(b"\n\n").decode()
            assert block.startswith(": "), block
            self.comments.append(block.removeprefix(": "))
        return self.comments[-1]

    def rest(self) -> list[Frame]:
        """Return all events until the server ends the stream."""
        frames = []
        while True:
            try:
                frames.append(self.next())
            except EOFError:
                break
        assert not self._buffer, "the stream ended in the middle of a frame"
        return frames

    def quiet(self, seconds: float) -> bool:
        """Return whether nothing arrives for so long."""
        self.sock.settimeout(seconds)
        try:
            return not self._buffer and not self.sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(WAIT_S)

    def drop(self) -> None:
        """Reset the connection."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


def wait_for(look: Any, *, within_s: float = WAIT_S) -> Any:
    """Return the result of `look` once it is true."""
    deadline = time.monotonic() + within_s
    while not (seen := look()):
        assert time.monotonic() < deadline, "waited for nothing"
        time.sleep(0.005)
    return seen
