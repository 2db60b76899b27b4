"""Input of one HTTP/2 connection: cut into frames, metered, and in bounded parts per turn of the event loop. Pure.

Frames that make the server work and ask nothing of it are free for an attacker: pings, settings, resets of streams that
were just opened, empty pieces of bodies. Each takes a token. A connection gets `TOKENS` at its start, `TOKENS_PER_S`
from then on, and more with everything that the server sends. A header block is limited as a whole: its CONTINUATION
frames may come without end (RFC 9113 section 6.10).
"""

from collections.abc import Callable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings

from topics.server.http.exchange import PREFACE

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
