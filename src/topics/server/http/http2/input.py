"""Input of one HTTP/2 connection: cut into frames, metered, and in bounded parts per turn of the event loop. Pure.

`h2` would take any number of frames at once, and looks at the length of a frame only once it has all of it.
"""

from __future__ import annotations

from collections.abc import Callable

from h2.errors import ErrorCodes

from topics.server.http.http2.frame_meter import HEAD_BYTES, FrameMeter
from topics.server.http.http2.frames import MAX_FRAME_BYTES
from topics.server.http.preface import PREFACE

FRAMES_PER_TURN = 256
TURN_NS = 2_000_000  # of work on the input of one connection, after which the others come first


class SessionInput:
    """Bytes of the client that are not parsed."""

    __slots__ = (
        "_at",
        "_clock_ns",
        "_data",
        "_ends_ns",
        "_frames_left",
        "_greeted",
        "_meter",
        "_since",
        "error",
        "now",
    )

    def __init__(self, clock_ns: Callable[[], int], *, max_block_bytes: int, now: float) -> None:
        self._clock_ns = clock_ns
        self._data, self._at = b"", 0
        self._greeted = False  # the preface has come
        self._frames_left = self._ends_ns = 0
        self._meter = FrameMeter(max_block_bytes=max_block_bytes, now=now)
        self._since = now  # when the input last was whole
        self.now = now  # the time of the last input, or of the last sweep
        self.error: ErrorCodes | None = None  # what is wrong with the input, after `next_frame` has returned None

    def add(self, data: bytes, now: float) -> None:
        """Add bytes of the client."""
        self.now = now
        self._data += data

    def begin_turn(self) -> None:
        """Begin a new turn of the event loop: the connection has its whole share again."""
        self._frames_left = FRAMES_PER_TURN
        self._ends_ns = self._clock_ns() + TURN_NS

    def take_share(self) -> bool:
        """Count a frame, or a request that is begun. Return False if the share of this turn is used up."""
        self._frames_left -= 1
        return self._frames_left >= 0 and self._clock_ns() <= self._ends_ns

    @property
    def has_frame(self) -> bool:
        """Whether a whole frame has come, or one that is too long."""
        waiting_bytes = len(self._data) - self._at
        if waiting_bytes < HEAD_BYTES:
            return False
        length = int.from_bytes(self._data[self._at : self._at + 3], "big")
        return length > MAX_FRAME_BYTES or waiting_bytes >= HEAD_BYTES + length

    def next_frame(self) -> bytes | None:
        """Return the next frame, or the preface; None if none has come, or if `error` is set."""
        data, at = self._data, self._at
        if not self._greeted:
            if not data.startswith(PREFACE):
                return None
            self._greeted, self._at = True, len(PREFACE)
            return PREFACE
        if not self.has_frame:
            return None
        length = int.from_bytes(data[at : at + 3], "big")
        if length > MAX_FRAME_BYTES:
            self.error = ErrorCodes.FRAME_SIZE_ERROR
        elif not self._meter.take(data[at + 3], data[at + 4], length, self.now):
            self.error = ErrorCodes.ENHANCE_YOUR_CALM
        if self.error is not None:
            return None
        end = self._at = at + HEAD_BYTES + length
        if end == len(data) and not self._meter.in_block:
            self._since = self.now
        return data[at:end]

    def earn(self, frames: int) -> None:
        """Allow as many more frames: the server has sent something that was asked for."""
        self._meter.earn(frames)

    def trim(self) -> None:
        """Free what is parsed."""
        if self._at:
            self._data, self._at = self._data[self._at :], 0

    def drop(self) -> None:
        """Free everything."""
        self._data, self._at = b"", 0

    @property
    def unparsed_bytes(self) -> int:
        return len(self._data) - self._at

    def waits_since(self, now: float) -> float | None:
        """Return since when the rest of a frame or of a header block is missing; None if nothing is."""
        self.now = now
        if not self.unparsed_bytes and not self._meter.in_block:
            self._since = now
            return None
        return self._since
