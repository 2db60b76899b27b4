"""One stream of an HTTP/2 connection: a request, its answer, and the bytes of it that still have to go out. Pure."""

from __future__ import annotations

from collections import deque
from enum import Enum

from topics.server.http.messages import Body, Deferred, Response, Stream, body_bytes
from topics.server.http.request.head import RequestHead


class Input(Enum):
    """What becomes of the body of a request."""

    COMING = 0  # it is kept until it is whole
    UNWANTED = 1  # the request was refused: the rest of the body is dropped
    WHOLE = 2  # the client has sent all of it


class Http2Stream:
    """A request and its answer."""

    __slots__ = (
        "_parts", "admitted", "answer", "begun_at", "body", "charged_bytes", "deferred", "ends", "full", "given_up",
        "head", "input", "is_live", "number", "over", "response", "seen", "seen_at", "unpacking",
        "unsent_bytes", "vary",
    )  # fmt: skip

    def __init__(self, number: int, head: RequestHead, now: float) -> None:
        self.number = number
        self.head = head
        self.begun_at = now
        self.input = Input.COMING
        self.admitted = False  # the application has admitted the request, and was not asked to handle it
        self.body = bytearray()
        self.unpacking = False  # a thread unpacks the body
        self.charged_bytes = 0  # of the request, to the memory budget
        self.deferred: Deferred | None = None
        self.answer: Stream | None = None  # an answer without end
        self.response: Response | None = None
        self.vary: tuple[tuple[bytes, bytes], ...] = ()
        self.is_live = False  # `answer` is open
        self._parts: deque[bytes | memoryview] = deque()
        self.unsent_bytes = 0  # in `_parts`
        self.ends = False  # nothing follows what is in `_parts`
        self.full = False  # `answer` waits for `drained`
        self.given_up = False  # the client was slow for long enough: it gets a short time for the rest
        self.over = False  # nothing more goes out, and nothing that comes in is looked at
        # For the deadline of an answer: how much was unsent when it last changed, and when that was.
        self.seen = 0
        self.seen_at = now

    def add(self, body: Body) -> None:
        """Add bytes to what has to go out."""
        if isinstance(body, bytes):
            if body:
                self._parts.append(body)
        else:
            self._parts.extend(part for part in body if len(part))
        self.unsent_bytes += body_bytes(body)

    def take(self, most_bytes: int) -> bytes:
        """Return and forget the next bytes that have to go out: from one part, and at most `most_bytes`."""
        part = self._parts.popleft()
        if len(part) > most_bytes:
            rest = memoryview(part)[most_bytes:]
            self._parts.appendleft(rest)
            part = part[:most_bytes]
        elif len(part) < most_bytes and self._parts:
            part = self._joined(part, most_bytes)
        self.unsent_bytes -= len(part)
        return bytes(part)

    def _joined(self, part: bytes | memoryview, most_bytes: int) -> bytes:
        """Return a small part with those after it that fit whole: many small writes go out as one frame."""
        pieces, size_bytes = [part], len(part)
        while self._parts and size_bytes + len(self._parts[0]) <= most_bytes:
            piece = self._parts.popleft()
            pieces.append(piece)
            size_bytes += len(piece)
        return b"".join(pieces)

    def drop(self) -> None:
        """Forget everything that has to go out."""
        self._parts.clear()
        self.unsent_bytes = 0
