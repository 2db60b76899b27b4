"""The streams of an HTTP/2 connection: a request, its answer, and the bytes of it that still have to go out. Pure.

`SessionOutput` sends answers as frames, in turn for all streams, as far as the client's windows allow.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from h2.connection import H2Connection
from h2.exceptions import ProtocolError

from topics.server.http.messages import Body, Deferred, Response, Stream, body_bytes
from topics.server.http.request.head import RequestHead
from topics.server.limits.budget import ANSWERS, BODIES, EXCHANGE_BYTES, STREAMS, MemoryBudget, Receiver


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


class SessionCharges:
    """The bytes that one connection holds, by account. `note` charges what has changed since the last time."""

    __slots__ = ("_answer_bytes", "_body_bytes", "_budget", "_charged", "_received_bytes", "_stream_bytes")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._body_bytes = 0  # of requests without an answer
        self._answer_bytes = 0  # of answers that have not gone out
        self._stream_bytes = 0  # the same for answers without end
        self._received_bytes = 0
        self._charged = {BODIES: 0, ANSWERS: 0, STREAMS: 0}

    def request(self, stream: Http2Stream) -> None:
        """Count a request with what has come of its body."""
        size_bytes = EXCHANGE_BYTES + max(len(stream.body), len(stream.head.request.body))
        self._body_bytes += size_bytes - stream.charged_bytes
        stream.charged_bytes = size_bytes

    def unpacking(self, stream: Http2Stream, size_bytes: int) -> None:
        """Count the bytes that a body was unpacked to so far."""
        size_bytes += EXCHANGE_BYTES + len(stream.head.request.body)
        self._body_bytes += size_bytes - stream.charged_bytes
        stream.charged_bytes = size_bytes

    def finish(self, stream: Http2Stream) -> None:
        """Free the body of a request: its answer does not need it any more."""
        self._body_bytes -= stream.charged_bytes
        stream.charged_bytes = 0
        stream.head.request.body = b""
        stream.body = bytearray()

    def queued(self, stream: Http2Stream, delta_bytes: int) -> None:
        """Count bytes of an answer that wait to go out, or went."""
        if stream.answer is None:
            self._answer_bytes += delta_bytes
        else:
            self._stream_bytes += delta_bytes

    def note(self, receiver: Receiver, unparsed_bytes: int, unsent_bytes: int) -> None:
        """Charge the budget. `receiver` is the connection, which may have to give up its input."""
        held = {
            BODIES: self._body_bytes + unparsed_bytes,
            ANSWERS: self._answer_bytes + unsent_bytes,
            STREAMS: self._stream_bytes,
        }
        for account, held_bytes in held.items():
            if held_bytes != self._charged[account]:
                self._budget.charge(account, held_bytes - self._charged[account])
                self._charged[account] = held_bytes
        received_bytes = held[BODIES]
        if received_bytes != self._received_bytes:
            self._received_bytes = received_bytes
            self._budget.receive(receiver, received_bytes)


FRAME_BYTES = 1 << 14  # of one stream, before the next stream has its turn


class SessionOutput:
    """The streams that have something to send."""

    __slots__ = ("_charges", "_frames", "_waiting", "_writable", "drained", "finished", "lost")

    def __init__(self, frames: H2Connection, charges: SessionCharges) -> None:
        self._frames = frames
        self._charges = charges
        self._writable: dict[Http2Stream, None] = {}  # in turn; they have bytes to send, or their end
        self._waiting: dict[Http2Stream, None] = {}  # the same, but the client allows no bytes now
        self.finished: list[Http2Stream] = []  # streams whose end was sent
        self.drained: list[Http2Stream] = []  # streams that were full, and have sent everything
        self.lost: list[Http2Stream] = []  # streams that took no more bytes

    def __bool__(self) -> bool:
        return bool(self._writable)

    def queue(self, stream: Http2Stream, body: Body) -> None:
        """Send bytes of an answer, as far as the client allows."""
        before_bytes = stream.unsent_bytes
        stream.add(body)
        self._charges.queued(stream, stream.unsent_bytes - before_bytes)
        self._writable[stream] = None

    def end(self, stream: Http2Stream) -> None:
        """End a stream after what was queued."""
        stream.ends = True
        self._writable[stream] = None

    def remove(self, stream: Http2Stream) -> None:
        """Send nothing more of a stream."""
        self._charges.queued(stream, -stream.unsent_bytes)
        stream.drop()
        self._writable.pop(stream, None)
        self._waiting.pop(stream, None)

    def unblock(self, stream: Http2Stream | None) -> None:
        """Let one stream go on, or all if it is None: the client allows more bytes."""
        if stream is None:
            self._writable |= self._waiting
            self._waiting.clear()
        elif stream in self._waiting:
            del self._waiting[stream]
            self._writable[stream] = None

    def send(self, most_bytes: int) -> int:
        """Send about `most_bytes`, a frame of each stream in turn. Return the number of frames."""
        frames, writable, count = self._frames, self._writable, 0
        # Bound: each round sends a part of `most_bytes`, ends a stream, or removes it from `writable`.
        while most_bytes > 0 and writable:
            stream = next(iter(writable))
            del writable[stream]
            data = b""
            if stream.unsent_bytes:
                window_bytes = frames.local_flow_control_window(stream.number)
                if window_bytes <= 0:
                    self._waiting[stream] = None
                    continue
                data = stream.take(min(window_bytes, frames.max_outbound_frame_size, FRAME_BYTES))
                self._charges.queued(stream, -len(data))
            ends = stream.ends and not stream.unsent_bytes
            if data or ends:
                try:
                    frames.send_data(stream.number, data, end_stream=ends)
                except ProtocolError:  # the stream has ended
                    self.lost.append(stream)
                    continue
                most_bytes -= len(data)
                count += 1
            if ends:
                self.finished.append(stream)
            elif stream.unsent_bytes:
                writable[stream] = None
            elif stream.full:
                stream.full = False
                self.drained.append(stream)
        return count
