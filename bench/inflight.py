"""A generator that keeps writes in flight, over any protocol: messages as bytes out, answers counted by a mark.

Its own cost does not count: the rows that use it compare the processor time of servers, and both sides get the same
loop.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator, Sequence
from itertools import islice

Source = tuple[socket.socket, Iterator[bytes]]  # a connection and what is sent on it
READ_BYTES = 1 << 18
TROUBLE = (b'"error"', b"-ERR", b'"skipped":[{')
KEY = b"\x37\xfa\x21\x3d"  # a client has to mask its frames; servers do the same work for every key
UPGRADE = (
    b"GET /v0/ws HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def connect(port: int, hello: bytes = b"") -> socket.socket:
    """Return a connection that has sent `hello`."""
    link = socket.create_connection(("127.0.0.1", port), timeout=60)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.sendall(hello)
    return link


def open_websocket(port: int) -> socket.socket:
    link, answer = connect(port, UPGRADE), b""
    while b"\r\n\r\n" not in answer:
        piece = link.recv(READ_BYTES)
        if not piece:
            raise RuntimeError(f"the WebSocket was refused: {answer[:200]!r}")
        answer += piece
    return link


def masked(text: bytes) -> bytes:
    """Return a text frame of a client."""
    size = len(text)
    head = bytes((0x81, 0x80 | size)) if size < 126 else b"\x81\xfe" + size.to_bytes(2, "big")
    key = (KEY * (size // 4 + 1))[:size]
    return head + KEY + (int.from_bytes(text, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")


class _Link:
    def __init__(self, link: socket.socket, messages: Iterator[bytes], mark: bytes) -> None:
        self.socket = link
        self._messages = messages
        self._mark = mark
        self._cut = b""  # the end of the last read: a mark may be in two pieces

    def receive(self) -> int:
        """Return the number of answers that have arrived. Raise if one is a refusal."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise RuntimeError("the server closed a connection of the generator")
        data = self._cut + data
        for trouble in TROUBLE:
            if trouble in data:
                raise RuntimeError(f"a write was refused: {data[max(data.index(trouble) - 100, 0) :][:300]!r}")
        self._cut = data[1 - len(self._mark) :]
        return data.count(self._mark)

    def send(self, count: int) -> int:
        """Send the next messages. Return how many there were."""
        chunk = list(islice(self._messages, count))
        self.socket.sendall(b"".join(chunk))
        return len(chunk)


def keep_in_flight(sources: Sequence[Source], mark: bytes, *, depth: int) -> int:
    """Send all messages of each connection, `depth` in flight on each. Return how many there were, all of which were
    answered. `mark` occurs exactly once in every answer to a success."""
    waiting = selectors.DefaultSelector()
    sent = answered = 0
    for connection, messages in sources:
        link = _Link(connection, messages, mark)
        waiting.register(connection, selectors.EVENT_READ, link)
        sent += link.send(depth)
    while answered < sent:
        ready = waiting.select(60)
        if not ready:
            raise RuntimeError("no answer for a minute")
        for key, _ in ready:
            arrived = key.data.receive()
            answered += arrived
            sent += key.data.send(arrived)
    waiting.close()
    return sent
