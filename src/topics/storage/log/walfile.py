"""WAL files: what is before the frames, and how to read frames back past any damage. Pure: no files, no clock.

A file begins with this header, twice; frames follow without a gap, and zeros (reserved space) end them.

    offset  size  field
    0       8     magic          b"TOPICWAL"
    8       4     version        u32 LE; 1
    12      4     zero
    16      8     number         u64 LE; the file's own
    24      8     resume number  u64 LE; see below, 0 for none
    32      8     resume offset  u64 LE
    40      8     sum            u64 LE; XXH3-64 of the 40 bytes before

A file that goes on where another one ended has a frame of kind 7 before all others (topic id 0; first: the offset at
which the file before it ended; body: u64 LE, the number of that file). The frame is no log entry. Neither file may have
been synced when the power failed. The end of the earlier one can then be missing, and this frame shows it.

A file that resumes says where the log before it ends: everything behind `resume offset` in file `resume number`, and
every file between that one and this, is void. So a torn tail can never come back; that is why one copy of the header is
not enough.

Earlier versions began such a file while they ran, after a failed write or sync. That file repeats the good frames of
the void part, frames of kind 7 included: these show which of the repeated entries a snapshot has that was taken at the
beginning of a void file. Frames of these versions that were refused (see `frame.py`) are no log entries.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

from topics.errors import Corrupt
from topics.storage.log import frame

MAGIC = b"TOPICWAL"
VERSION = 1
FOLLOWS = 7  # the kind of a frame that is no entry; entry.py has the kinds of entries
_NO_ENTRIES = (FOLLOWS, frame.NOTHING)
_HEADER = struct.Struct("<8sIIQQQ")
_COPY_BYTES = _HEADER.size + 8
HEADER_BYTES = 2 * _COPY_BYTES
_sum64 = xxhash.xxh3_64_intdigest
_ZEROS = bytes(1 << 16)


class Header(NamedTuple):
    number: int
    resume_number: int = 0
    resume_offset: int = 0


def encode_header(header: Header) -> bytes:
    packed = _HEADER.pack(MAGIC, VERSION, 0, *header)
    return (packed + _sum64(packed).to_bytes(8, "little")) * 2


def decode_header(data: bytes, *, path: str, number: int) -> Header:
    """Decode the first copy that is complete. Raise `Corrupt` if neither is, or if it is that of another file."""
    damaged = damaged_headers(data)
    if len(damaged) == 2:
        raise Corrupt(path, 0, "the header of a log file is damaged or cut short")
    at = _COPY_BYTES if 0 in damaged else 0
    magic, version, _, *fields = _HEADER.unpack_from(data, at)
    if magic != MAGIC or version != VERSION:
        raise Corrupt(path, at, f"this is not a log file of version {VERSION}")
    header = Header(*fields)
    if header.number != number:
        raise Corrupt(path, at, f"the file has the bytes of log file {header.number}")
    return header


def damaged_headers(data: bytes) -> list[int]:
    """Return the offsets of the copies that do not match their checksum."""
    copies = {at: data[at : at + _COPY_BYTES] for at in (0, _COPY_BYTES)}
    sums = {at: int.from_bytes(copy[-8:], "little") for at, copy in copies.items() if len(copy) == _COPY_BYTES}
    return [at for at, copy in copies.items() if sums.get(at) != _sum64(copy[:-8])]


class FoundFrame(NamedTuple):
    """A whole frame."""

    at: int
    end: int
    frame: frame.Frame


class Damage(NamedTuple):
    """Bytes between two frames, or at the end, that are no frame. `head` is that of the damaged frame, if readable."""

    at: int
    end: int
    head: frame.Head | None
    torn: bool  # only the end of the log follows, as after an interrupted write
    begun: tuple[FoundFrame, ...] = ()  # of a torn write: its whole frames, before the damage
    certain: bool = False  # the bytes are those of one frame, with this head

    @property
    def write_at(self) -> int:
        """The offset at which the damaged write begins."""
        return self.begun[0].at if self.begun else self.at


def encode_follows(number: int, offset: int) -> bytes:
    """Return the first frame of a file that continues where file `number` ended, at `offset`."""
    return frame.encode(FOLLOWS, 0, offset, 0, number.to_bytes(8, "little"))


FIRST_BYTES = HEADER_BYTES + len(encode_follows(0, 0))  # the part of a file that can be written before any log entry


def has_begun(data: bytes) -> bool:
    """Return whether log entries may be in the file: not if the write of its first frame was cut short."""
    return written_end(data) >= FIRST_BYTES


def follows(data: bytes) -> tuple[int, int] | None:
    """Return the number of the file that this one follows and the offset at which it ended; None if it does not say."""
    found = frame.decode(memoryview(data), HEADER_BYTES)
    if found is None or found[0].head.kind != FOLLOWS:
        return None
    return int.from_bytes(found[0].body, "little"), found[0].head.first


def whole_end(data: bytes, *, damaged: bool = False) -> int:
    """Return the offset after the last frame that can be read, or with `damaged` after the last one at all."""
    ends = [item.end for item in scan(data) if damaged or isinstance(item, FoundFrame)]
    return after_other_frames(data, ends[-1] if ends else HEADER_BYTES)


def scan(data: bytes, *, start: int = HEADER_BYTES) -> Iterator[FoundFrame | Damage]:
    """Yield every log entry from `start` on that was not refused, and every stretch that should have been a frame.

    Entries of one write are yielded together. If the end of the log cuts off the rest of it, they are in the damage.
    """
    view = memoryview(data)
    at, written = start, written_end(data)
    begun: list[FoundFrame] = []  # of a write whose last frame has not been read yet
    while at < written:
        found = frame.decode(view, at)
        if found is not None:
            if found[0].more:
                begun.append(FoundFrame(at, found[1], found[0]))
            else:
                if found[0].head.kind not in _NO_ENTRIES:
                    yield from begun
                    yield FoundFrame(at, found[1], found[0])
                begun.clear()  # a write was refused as a whole, from its last frame on
            at = found[1]
            continue
        damage = _damage(data, view, at, written)
        if damage.torn:
            yield damage._replace(begun=tuple(begun))
        else:
            yield from begun
            yield damage
        begun.clear()
        at = damage.end
    if begun:
        yield Damage(at, at, None, torn=True, begun=tuple(begun))


def after_other_frames(data: bytes, at: int) -> int:
    """Return the offset after the frames at `at` that are no log entries; `at` itself where there are none."""
    view = memoryview(data)
    while (found := frame.decode(view, at)) is not None and found[0].head.kind in _NO_ENTRIES:
        at = found[1]
    return at


def entries_from(data: bytes, number: int) -> int:
    """Return the offset after the repeated entries that were first written to a file before log file `number`."""
    view, start, at = memoryview(data), HEADER_BYTES, HEADER_BYTES
    while at >= 0:
        found = frame.decode(view, at)
        if found is None:
            at = frame.find(data, at + 1)
            continue
        at = found[1]
        if found[0].head.kind == FOLLOWS and int.from_bytes(found[0].body, "little") < number:
            start = at
    return start


def written_end(data: bytes) -> int:
    """Return the offset of the zeros at the end of a reserved file, to within a block."""
    at = len(data)
    while at >= len(_ZEROS) and data[at - len(_ZEROS) : at] == _ZEROS:
        at -= len(_ZEROS)
    block = data[max(at - len(_ZEROS), 0) : at]
    return at - len(block) + len(block.rstrip(b"\0"))


def _damage(data: bytes, view: memoryview, at: int, written: int) -> Damage:
    """Return the damaged range from `at` on: a frame with a readable head, or the bytes up to the next whole frame."""
    following = frame.find(data, at + 1)
    limit = len(data) if following < 0 else following
    known = frame.peek(view, at)
    if known is not None and known[1] <= limit:
        head, end = known
        # A frame that has its last byte was written completely: the disk has damaged it.
        return Damage(at, end, head, torn=following < 0 and not view[end - 1], certain=True)
    end = written if following < 0 else following
    exact = frame.head_by_end(view, at, end)
    trailing = exact or _plausible(view, at, end)
    return Damage(at, end, trailing, torn=following < 0 and trailing is None, certain=exact is not None)


def _plausible(view: memoryview, at: int, end: int) -> frame.Head | None:
    """Return the trailing head, if the range ends with a frame. An interrupted write has no such end."""
    if end - at < frame.OVERHEAD_BYTES or view[end - 1] != frame.LAST:
        return None
    head = frame.trailing_head(view, end)
    if head is None or not 0 < head.kind < 64:
        return None
    return head if head.topic_id or not (head.first or head.count) else None  # a key has no topic, and no seqs
