"""Limits on the frames of one HTTP/2 connection. Pure: the time is an argument.

Frames that make the server work and ask nothing of it are free for an attacker: pings, settings, resets of streams that
were just opened, empty pieces of bodies. Each takes a token. A connection gets `TOKENS` at its start, `TOKENS_PER_S`
from then on, and more with every answer and every piece of an answer that the server sends, so that a client which uses
the server never runs out of them.

A header block is limited as a whole: its CONTINUATION frames may come without end (RFC 9113 section 6.10).
"""

from __future__ import annotations

HEAD_BYTES = 9  # of a frame
DATA, HEADERS, CONTINUATION = 0, 1, 9
END_STREAM, END_HEADERS = 0x1, 0x4  # flags

TOKENS = 1000
TOKENS_PER_S = 100


class FrameMeter:
    """Counts the frames of one connection."""

    __slots__ = ("_at", "_block_bytes", "_max_block_bytes", "_tokens", "in_block")

    def __init__(self, *, max_block_bytes: int, now: float) -> None:
        self._max_block_bytes = max_block_bytes
        self._block_bytes = 0
        self.in_block = False  # a header block has begun and not ended
        self._tokens = float(TOKENS)
        self._at = now

    def earn(self, frames: int) -> None:
        """Allow as many more frames: the server has sent something that was asked for."""
        self._tokens = min(self._tokens + frames, TOKENS)

    def take(self, kind: int, flags: int, length: int, now: float) -> bool:
        """Count a frame. Return False if the client sends too many, or too long a header block."""
        if kind in (HEADERS, CONTINUATION):
            self._block_bytes = length if kind == HEADERS else self._block_bytes + length
            self.in_block = not flags & END_HEADERS
            if self._block_bytes > self._max_block_bytes:
                return False
            if kind == HEADERS or length:
                return True
        elif kind == DATA and (length or flags & END_STREAM):
            return True
        self._tokens = min(self._tokens + (now - self._at) * TOKENS_PER_S, TOKENS)
        self._at = now
        self._tokens -= 1
        return self._tokens >= 0
