"""What an HTTP/2 connection has: its input, cut into frames, and its streams, each a request and its answer. Pure.

Frames that make the server work and ask nothing of it are free for an attacker: pings, settings, resets of streams that
were just opened, empty pieces of bodies. Each takes a token. A connection gets `TOKENS` at its start, `TOKENS_PER_S`
from then on, and more with everything that the server sends. A header block is limited as a whole: its CONTINUATION
frames may come without end (RFC 9113 section 6.10).

Output takes one frame of each stream in turn, as far as the windows of the stream and of the connection allow (RFC 9113
section 5.2): a client that does not read one answer gets the others.
"""

from collections.abc import Callable
from enum import Enum

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from msgspec import field

from topics.server.http.exchange import PREFACE, Exchange
from topics.server.http.messages import Body, Stream, body_bytes
from topics.server.limits.budget import ANSWERS, STREAMS

MAX_STREAMS = 256  # open at a time on one connection
MAX_FRAME_BYTES = 1 << 14  # the smallest maximum that the RFC allows, and what every client expects
WINDOW_BYTES = 1 << 20  # of request bodies that a client may send before it hears of the server
CLOSED_STREAMS = 512  # streams that have ended and that `h2` remembers, for frames that come late


class Frames(H2Connection):
    """The state machine of one connection. It gets one frame at a time."""

    MAX_CLOSED_STREAMS = CLOSED_STREAMS

    def __init__(self, max_header_bytes: int) -> None:
        super().__init__(H2Configuration(client_side=False, header_encoding=None))
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                SettingCodes.MAX_HEADER_LIST_SIZE: max_header_bytes,
                SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
            },
        )
        self.initiate_connection()
        # A head that is a little too large is answered with 431, and a much larger one ends the connection.
        self.decoder.max_header_list_size = 2 * max_header_bytes
        self.increment_flow_control_window(WINDOW_BYTES)


HEAD_BYTES = 9  # of a frame
DATA, HEADERS, CONTINUATION = 0, 1, 9
END_STREAM, END_HEADERS = 0x1, 0x4  # flags

TOKENS = 1000
TOKENS_PER_S = 100


FRAMES_PER_TURN = 256
TURN_NS = 2_000_000  # of work on the input of one connection, after which the others come first


class SessionInput:
    __slots__ = (
        "_block_bytes", "_clock_ns", "_counted_at", "_data", "_ends_ns", "_frames_left", "_greeted", "_in_block",
        "_max_block_bytes", "_since", "_tokens", "error", "now",
    )  # fmt: skip

    def __init__(self, clock_ns: Callable[[], int], *, max_block_bytes: int, now: float) -> None:
        self._clock_ns = clock_ns
        self._data = bytearray()
        self._greeted = False  # the preface has come
        self._frames_left = self._ends_ns = 0
        self._max_block_bytes, self._block_bytes = max_block_bytes, 0
        self._in_block = False  # a header block has begun and not ended
        self._tokens, self._counted_at = float(TOKENS), now
        self._since = now  # when the input last was whole
        self.now = now  # the time of the last input, or of the last sweep
        self.error: ErrorCodes | None = None  # what is wrong with the input, after `next_frame` has returned None

    def add(self, data: bytes, now: float) -> None:
        self.now = now
        self._data += data

    def begin_turn(self) -> None:
        self._frames_left = FRAMES_PER_TURN
        self._ends_ns = self._clock_ns() + TURN_NS

    def take_share(self) -> bool:
        """Count a frame, or a request that is begun. Return False if the share of this turn is used up."""
        self._frames_left -= 1
        return self._frames_left >= 0 and self._clock_ns() <= self._ends_ns

    @property
    def has_frame(self) -> bool:
        """Whether a whole frame has come, or one that is too long."""
        length = int.from_bytes(self._data[:3], "big")
        return len(self._data) >= HEAD_BYTES + (length if length <= MAX_FRAME_BYTES else 0)

    def next_frame(self) -> bytes | None:
        """Return the next frame, or the preface; None if none has come, or if `error` is set."""
        data = self._data
        if not self._greeted:
            if not data.startswith(PREFACE):
                return None
            self._greeted = True
            del data[: len(PREFACE)]
            return PREFACE
        if not self.has_frame:
            return None
        length = int.from_bytes(data[:3], "big")
        if length > MAX_FRAME_BYTES:
            self.error = ErrorCodes.FRAME_SIZE_ERROR
        elif not self._count(data[3], data[4], length):
            self.error = ErrorCodes.ENHANCE_YOUR_CALM
        if self.error is not None:
            return None
        frame = bytes(data[: HEAD_BYTES + length])
        del data[: HEAD_BYTES + length]
        if not data and not self._in_block:
            self._since = self.now
        return frame

    def _count(self, kind: int, flags: int, length: int) -> bool:
        """Count a frame. Return False if the client sends too many, or too long a header block."""
        if kind in (HEADERS, CONTINUATION):
            self._block_bytes = length if kind == HEADERS else self._block_bytes + length
            self._in_block = not flags & END_HEADERS
            if self._block_bytes > self._max_block_bytes:
                return False
            if kind == HEADERS or length:
                return True
        elif kind == DATA and (length or flags & END_STREAM):
            return True
        self._tokens = min(self._tokens + (self.now - self._counted_at) * TOKENS_PER_S, TOKENS)
        self._counted_at = self.now
        self._tokens -= 1
        return self._tokens >= 0

    def earn(self, frames: int) -> None:
        """Allow as many more frames: the server has sent something that was asked for."""
        self._tokens = min(self._tokens + frames, TOKENS)

    def drop(self) -> None:
        self._data.clear()

    @property
    def unparsed_bytes(self) -> int:
        return len(self._data)

    def waits_since(self, now: float) -> float | None:
        """Return since when the rest of a frame or of a header block is missing; None if nothing is."""
        self.now = now
        if not self.unparsed_bytes and not self._in_block:
            self._since = now
            return None
        return self._since


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
