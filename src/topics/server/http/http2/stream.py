"""The streams of an HTTP/2 connection: a request, its answer, and the bytes of it that still have to go out. Pure.

`fill` takes one frame of each stream in turn, as far as the windows of the stream and of the connection allow (RFC 9113
section 5.2): a client that does not read one answer gets the others.
"""

from enum import Enum

from h2.connection import H2Connection
from h2.exceptions import ProtocolError
from msgspec import field

from topics.server.http.exchange import Exchange
from topics.server.http.messages import Body, Stream, body_bytes
from topics.server.limits.budget import ANSWERS, STREAMS


class Input(Enum):
    """What becomes of the body of a request."""

    COMING = 0  # it is kept until it is whole
    UNWANTED = 1  # the request was refused: the rest of the body is dropped
    WHOLE = 2  # the client has sent all of it


class Http2Stream(Exchange, kw_only=True, eq=False):
    """A request and its answer. It is `dropped` once the answer was sent, too: nothing more goes out or comes in."""

    number: int
    begun_at: float
    input: Input = Input.COMING
    admitted: bool = False  # the application has admitted the request, and was not asked to handle it
    body: bytearray = field(default_factory=bytearray)
    is_live: bool = False  # `answer` has no end, and is open
    unsent: bytearray = field(default_factory=bytearray)
    ends: bool = False  # nothing follows what is in `unsent`
    full: bool = False  # `answer` waits for `drained`
    given_up: bool = False  # the client was slow for long enough: it gets a short time for the rest
    # For the deadline of an answer: how much was unsent when it last changed, and when that was.
    seen: int = 0
    seen_at: float

    @property
    def unsent_bytes(self) -> int:
        return len(self.unsent)


FRAME_BYTES = 1 << 14  # of one stream, before the next stream has its turn


class SessionOutput:
    __slots__ = ("_frames", "_waiting", "_writable", "drained", "finished", "lost", "unsent")

    def __init__(self, frames: H2Connection) -> None:
        self._frames = frames
        self.unsent = {ANSWERS: 0, STREAMS: 0}  # bytes of answers that wait to go out, by account
        self._writable: dict[Http2Stream, None] = {}  # in turn; they have bytes to send, or their end
        self._waiting: dict[Http2Stream, None] = {}  # the same, but the client allows no bytes now
        self.finished: list[Http2Stream] = []  # streams whose end was sent
        self.drained: list[Http2Stream] = []  # streams that were full, and have sent everything
        self.lost: list[Http2Stream] = []  # streams that took no more bytes

    def __bool__(self) -> bool:
        return bool(self._writable)

    def queue(self, stream: Http2Stream, body: Body) -> None:
        for part in (body,) if isinstance(body, bytes) else body:
            stream.unsent += part
        self._count(stream, body_bytes(body))
        self._writable[stream] = None

    def end(self, stream: Http2Stream) -> None:
        """End a stream after what was queued, unless it has ended already."""
        if not stream.dropped and not stream.ends:
            stream.ends = True
            self._writable[stream] = None

    def remove(self, stream: Http2Stream) -> None:
        self._count(stream, -stream.unsent_bytes)
        stream.unsent.clear()
        self._writable.pop(stream, None)
        self._waiting.pop(stream, None)

    def _count(self, stream: Http2Stream, delta_bytes: int) -> None:
        self.unsent[STREAMS if isinstance(stream.answer, Stream) else ANSWERS] += delta_bytes

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
                data = bytes(stream.unsent[: min(window_bytes, frames.max_outbound_frame_size, FRAME_BYTES)])
                del stream.unsent[: len(data)]
                self._count(stream, -len(data))
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
