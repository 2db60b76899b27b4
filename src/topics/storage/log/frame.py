"""WAL frames: one log entry to bytes and back. Pure: no files, no clock.

    offset  size  field
    0       4     magic   b"TFR1"
    4       4     length  u32 LE; n, the size of the body
    8       4     check   u32 LE; low half of the XXH3-64 of length and head
    12      17    head    kind u8 (permanent, never reuse a number; 0x80 is added to it if the next frame belongs to the
                          same write), topic id u32, first seq u64, count u32; LE
    29      n     body    see entry.py
    29+n    17    head    the same bytes again
    46+n    8     sum     u64 LE; XXH3-64 of everything from the length to here
    54+n    1     last    0xE7; 0x18 in a frame that an earlier version refused after it had written it

The head is at both ends, so the seqs of a frame are known even if its middle, beginning or end is damaged.
The last byte is never zero, and no single bit makes it so: where zeros follow the frames, a frame that was cut short
ends in one.

The frames of one write take effect together: a reader holds frames with the bit 0x80 until it has the frame without it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import xxhash

MAGIC = b"TFR1"
_START = struct.Struct("<4sII")
_HEAD = struct.Struct("<BIQI")
_SUM = struct.Struct("<QB")
BODY_AT = _START.size + _HEAD.size
OVERHEAD_BYTES = BODY_AT + _HEAD.size + _SUM.size
MAX_BODY_BYTES = 1 << 30
MORE = 0x80  # the next frame belongs to the same write
LAST = 0xE7
REFUSED = 0x18  # differs from LAST in every bit
NOTHING = 0  # the kind that a reader gets for a refused frame
LARGE_BYTES = 32 << 10  # from this size on, a checksum over the pieces is faster than a copy of the body

Buffer = bytes | bytearray | memoryview

_sum64 = xxhash.xxh3_64_intdigest
_pack_head = _HEAD.pack
_pack_length = struct.Struct("<I").pack
_pack_sum = _SUM.pack


class Head(NamedTuple):
    """The topic and the seqs of a frame. Readable even if the body is damaged."""

    kind: int
    topic_id: int
    first: int
    count: int  # type: ignore[assignment]  # hides `tuple.count`, which has no caller here


class Frame(NamedTuple):
    head: Head
    body: memoryview
    more: bool = False  # whether the next frame belongs to the same write


class LargeFrame:
    """A frame with a large body, behind other frames: in parts, so that the body is not copied.

    The parts may change until `seal`, which takes some ten milliseconds for 64 MiB and lets other threads run.
    """

    __slots__ = ("_after", "_body", "_guarded", "_head", "_sum")

    def __init__(self, kind: int, topic_id: int, first: int, count: int, *body: Buffer, after: bytes = b"") -> None:
        self._after = after
        self._body = body
        self._head = head = _pack_head(kind, topic_id, first, count)
        length = _pack_length(sum(map(len, body)))
        self._guarded = b"".join((length, _pack_length(_sum64(length + head) & 0xFFFFFFFF), head))
        self._sum = b""

    def seal(self) -> None:
        """Compute the checksum. Any thread may do so."""
        guard = xxhash.xxh3_64(self._guarded)
        for part in (*self._body, self._head):
            guard.update(part)
        self._sum = _pack_sum(guard.intdigest(), LAST)

    def parts(self) -> list[Buffer]:
        assert self._sum, "the frame is not sealed"
        return [self._after + MAGIC + self._guarded, *self._body, self._head + self._sum]

    def __len__(self) -> int:
        return len(self._after) + OVERHEAD_BYTES + sum(map(len, self._body))

    def __radd__(self, before: bytes) -> LargeFrame:
        self._after = before + self._after
        return self


Frames = bytes | LargeFrame  # one or more whole frames


def parts_of(frames: Sequence[Frames]) -> list[Buffer]:
    found: list[Buffer] = []
    for one in frames:
        found += one.parts() if isinstance(one, LargeFrame) else (one,)
    return found


def encode(kind: int, topic_id: int, first: int, count: int, *body: bytes, after: bytes = b"") -> bytes:
    """Return the frame with these parts as its body, behind the frames `after`. Add `MORE` to `kind` if one follows."""
    if len(body[-1]) >= LARGE_BYTES:  # avoids a second copy of the body
        large = LargeFrame(kind, topic_id, first, count, *body, after=after)
        large.seal()
        return b"".join(large.parts())
    head, whole = _pack_head(kind, topic_id, first, count), b"".join(body)
    length = _pack_length(len(whole))
    guarded = b"".join((length, _pack_length(_sum64(length + head) & 0xFFFFFFFF), head, whole, head))
    return b"".join((after, MAGIC, guarded, _pack_sum(_sum64(guarded), LAST)))


def decode(buf: memoryview, at: int) -> tuple[Frame, int] | None:
    """Return the frame at `at` and the offset after it; None if it is truncated or damaged.

    A refused frame is returned with the kind `NOTHING`.
    """
    found = peek(buf, at)
    if found is None:
        return None
    head, end = found
    sum_at = end - _SUM.size
    if end > len(buf):
        return None
    guard, last = _SUM.unpack_from(buf, sum_at)
    if last not in (LAST, REFUSED) or guard != _sum64(buf[at + 4 : sum_at]):
        return None
    if last == REFUSED:
        return Frame(head._replace(kind=NOTHING), buf[:0]), end
    return Frame(head, buf[at + BODY_AT : sum_at - _HEAD.size], buf[at + _START.size] >= MORE), end


def peek(buf: memoryview, at: int) -> tuple[Head, int] | None:
    """Return head and end of the frame at `at` from its first bytes. The body may be damaged or truncated."""
    if at + BODY_AT > len(buf):
        return None
    magic, length, check = _START.unpack_from(buf, at)
    packed = bytes(buf[at + _START.size : at + BODY_AT])
    if magic != MAGIC or length > MAX_BODY_BYTES or check != _sum64(_pack_length(length) + packed) & 0xFFFFFFFF:
        return None
    return _unpack_head(packed), at + OVERHEAD_BYTES + length


def _unpack_head(packed: bytes) -> Head:
    kind, topic_id, first, count = _HEAD.unpack(packed)
    return Head(kind & ~MORE, topic_id, first, count)


def trailing_head(buf: memoryview, end: int) -> Head | None:
    """Return the second copy of the head of a frame that ends at `end`, if the first copy is unreadable.

    There is no checksum of its own: believe it only as far as it agrees with what else is known.
    """
    at = end - _SUM.size - _HEAD.size
    return _unpack_head(bytes(buf[at : at + _HEAD.size])) if at >= 0 else None


def head_by_end(buf: memoryview, at: int, end: int) -> Head | None:
    """Return the head of a frame at [at, end) of which only the bytes before the body are damaged.

    The size and the second copy of the head give the missing bytes. The checksum over the whole frame shows whether
    they are the original ones.
    """
    length = end - at - OVERHEAD_BYTES
    if length < 0:
        return None
    size = _pack_length(length)
    packed = bytes(buf[end - _SUM.size - _HEAD.size : end - _SUM.size])
    check = _pack_length(_sum64(size + packed) & 0xFFFFFFFF)
    guarded = b"%b%b%b%b" % (size, check, packed, bytes(buf[at + BODY_AT : end - _SUM.size]))
    return _unpack_head(packed) if _sum64(guarded) == _SUM.unpack_from(buf, end - _SUM.size)[0] else None


def find(buf: bytes, at: int) -> int:
    """Return the offset of the next whole frame at or after `at`, also of a refused one; -1 if there is none."""
    view = memoryview(buf)
    while (at := buf.find(MAGIC, at)) >= 0:
        if decode(view, at) is not None:
            return at
        at += 1
    return -1
