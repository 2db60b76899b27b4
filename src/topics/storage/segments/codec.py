"""Sealed segments: a run of one topic's records in one file. Pure: no files, no clock.

    offset      size  field
    0           8     magic      b"TOPICSEG"
    8           D     data       the records' rendered bytes, comma after each
    8+D         8*C   chunk sums u64 LE; XXH3-64 of each 64 KiB chunk of data, the last one shorter
    …           I     index      see below
    …           N     flags      one byte a record: 0xA5 live, 0x5A deleted, 0x3C lost; flipped in place
    …           104   footer     see below

The three flag values differ from each other in four bits or more, so one flipped bit is not only seen but known.

Footer, little-endian:

    0    4    version      u32, 1
    4    4    sections     u32; bit i set where index section i is there. Bits 8 and up: how often the run was
                           rewritten without its removed records, which have no bytes of data since then
    8    8    topic id     u64
    16   8    epoch        u64
    24   8    first        u64; seq of the first record
    32   8    count        u64; N, at least 1
    40   8    min ts       u64
    48   8    max ts       u64
    56   8    data size    u64; D
    64   8    index size   u64; I
    72   8    index sum    u64; XXH3-64 of chunk sums and index
    80   8    magic        b"TOPICEND"
    88   8    flag count   u64; N again, so that flags can be found from the file's size alone
    96   8    footer sum   u64; XXH3-64 of the 96 bytes before

Index sections, in this order, each padded with zeros to a multiple of 8 bytes:

    0  offsets   u32 × (N+1)
    1  ts        u64 × N
    2  tags      u32 × N       ids into the tag names, 0 for none     (only if a record has a tag)
    3  nodes     u32 × N       the same for nodes                     (only if a record has a node)
    4  metas     u32 × N       bytes of `,"meta":{…}`                 (only if a record has meta)
    5  tag names               u32 count, u32 blob size, u32 × count ends, blob; sorted by bytes
    6  node names              the same
    7  extras                  MessagePack map: position → bytes
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from topics.errors import Corrupt
from topics.storage.segments.columns import Column, Columns, GrowingNames, SortedNames
from topics.storage.worker import INLINE, Worker, rested

MAGIC = b"TOPICSEG"
END_MAGIC = b"TOPICEND"
VERSION = 1
HEADER_BYTES = 8
CHUNK_BYTES = 64 << 10
LIVE, DELETED, LOST = 0xA5, 0x5A, 0x3C

_GENERATION_BIT = 8
_FOOTER = struct.Struct("<IIQQQQQQQQQ8sQ")
_SUMMED_FOOTER = struct.Struct(_FOOTER.format + "Q")
FOOTER_BYTES = _SUMMED_FOOTER.size
_FLAG_TO_DISK = bytes([LIVE, DELETED, LOST])
_FLAG_FROM_DISK = bytes(
    next((mark for mark, flag in enumerate(_FLAG_TO_DISK) if (byte ^ flag).bit_count() <= 1), 2) for byte in range(256)
)

sum64 = xxhash.xxh3_64_intdigest


class Footer(NamedTuple):
    """The footer of a segment file: the range of the records, and the offsets of the parts."""

    sections: int
    topic_id: int
    epoch: int
    first: int
    count: int  # type: ignore[assignment]  # hides `tuple.count`, which has no caller here
    min_ts: int
    max_ts: int
    data_bytes: int
    index_bytes: int
    index_sum: int

    @property
    def generation(self) -> int:
        return self.sections >> _GENERATION_BIT

    @property
    def chunks(self) -> int:
        return -(-self.data_bytes // CHUNK_BYTES)

    @property
    def sums_at(self) -> int:
        return HEADER_BYTES + self.data_bytes

    @property
    def flags_at(self) -> int:  # every topic of a start needs it: no call
        return HEADER_BYTES + self.data_bytes - self.data_bytes // -CHUNK_BYTES * 8 + self.index_bytes

    @property
    def file_bytes(self) -> int:
        return self.flags_at + self.count + FOOTER_BYTES


def encode(
    columns: Columns,
    rendered: bytes | bytearray | memoryview,
    deleted: bytes | bytearray | None,
    *,
    topic_id: int,
    epoch: int,
    generation: int = 0,
    worker: Worker = INLINE,
) -> list[bytes | memoryview]:
    """Return the whole file in pieces, to be written one after the other. `rendered` is not copied.

    The worker rests between the checksums, which take up to 15 ms.
    """
    count = len(columns)
    data = memoryview(rendered)
    chunks = rested(worker, (data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)))
    sums = b"".join(sum64(chunk).to_bytes(8, "little") for chunk in chunks)
    sections, index = _encode_index(columns)
    flags = bytes([LIVE]) * count if deleted is None else encode_flags(deleted)
    footer = Footer(
        sections | generation << _GENERATION_BIT,
        topic_id,
        epoch,
        columns.first,
        count,
        columns.ts[0],
        columns.ts[-1],
        len(data),
        len(index),
        sum64(sums + index),
    )
    return [
        MAGIC,
        rendered if isinstance(rendered, bytes) else data,
        sums,
        index,
        flags,
        encode_footer(footer),
    ]


def encode_footer(footer: Footer) -> bytes:
    packed = _FOOTER.pack(VERSION, *footer, END_MAGIC, footer.count)
    return packed + sum64(packed).to_bytes(8, "little")


def encode_flags(marks: bytes | bytearray) -> bytes:
    return bytes(marks).translate(_FLAG_TO_DISK.ljust(256, b"\0"))


def decode_footer(tail: bytes, *, path: str, file_bytes: int) -> Footer:
    """Decode the footer from the last `FOOTER_BYTES` of a file. Raise `Corrupt`."""
    at = file_bytes - FOOTER_BYTES
    fields = _SUMMED_FOOTER.unpack(tail) if len(tail) == FOOTER_BYTES else None
    if fields is None or fields[-1] != sum64(tail[:-8]):
        raise Corrupt(path, max(at, 0), "the footer of a segment is damaged or cut short")
    version, footer = fields[0], tuple.__new__(Footer, fields[1:-3])  # faster than `_make`
    if fields[-3] != END_MAGIC or fields[-2] != footer.count:
        raise Corrupt(path, at, "this is not the end of a segment")
    if version != VERSION:
        raise Corrupt(path, at, f"segment version {version} is not one this program reads")
    if footer.flags_at + footer.count != at:
        raise Corrupt(path, at, f"the file has {file_bytes} bytes where its footer says {footer.file_bytes}")
    return footer


def decode_index(block: bytes, footer: Footer, *, path: str) -> tuple[memoryview, Columns]:
    """Decode chunk sums and columns from the bytes between data and flags. Raise `Corrupt`."""
    if sum64(block) != footer.index_sum:
        raise Corrupt(path, footer.sums_at, "the index of a segment does not match its checksum")
    sums = memoryview(block)[: 8 * footer.chunks].cast("Q")
    n, at = footer.count, 8 * footer.chunks
    columns = Columns(footer.first)

    def take(bit: int, size_bytes: int, item: Literal["I", "Q"]) -> Column | None:
        nonlocal at
        if not footer.sections >> bit & 1:
            return None
        start, at = at, at + _padded(size_bytes)
        view = memoryview(block)[start : start + size_bytes]
        return view.cast("I") if item == "I" else view.cast("Q")

    columns.offsets = take(0, 4 * (n + 1), "I") or columns.offsets
    columns.ts = take(1, 8 * n, "Q") or columns.ts
    columns.tags = take(2, 4 * n, "I")
    columns.nodes = take(3, 4 * n, "I")
    columns.metas = take(4, 4 * n, "I")
    if footer.sections >> 5 & 1:
        columns.tag_names, at = _decode_names(block, at)
    if footer.sections >> 6 & 1:
        columns.node_names, at = _decode_names(block, at)
    if footer.sections >> 7 & 1:
        columns.extras = msgspec.msgpack.decode(
            block[at + 8 : at + 8 + int.from_bytes(block[at : at + 8], "little")], type=dict[int, bytes]
        )
    return sums, columns


def check(data: bytes, *, path: str) -> Footer:
    """Compare every checksum of a whole file, and return its footer. Raise `Corrupt`."""
    footer = decode_footer(data[-FOOTER_BYTES:], path=path, file_bytes=len(data))
    end = sum_at = HEADER_BYTES + footer.data_bytes
    if sum64(data[end : -FOOTER_BYTES - footer.count]) != footer.index_sum:
        raise Corrupt(path, end, "the index of a segment does not match its checksum")
    for at in range(HEADER_BYTES, end, CHUNK_BYTES):
        if sum64(data[at : min(at + CHUNK_BYTES, end)]) != int.from_bytes(data[sum_at : sum_at + 8], "little"):
            raise Corrupt(path, at, "a chunk of data does not match its checksum")
        sum_at += 8
    return footer


def decode(data: bytes, *, path: str) -> tuple[Footer, Columns, bytes, bytes]:
    """Decode a whole file and compare every checksum. Return footer, columns, data and flags. Raise `Corrupt`."""
    footer = check(data, path=path)
    _, columns = decode_index(data[footer.sums_at : footer.flags_at], footer, path=path)
    return footer, columns, data[HEADER_BYTES : footer.sums_at], flags_of(data, footer)


def all_live(data: bytes, footer: Footer) -> bool:
    """Return whether the flags of a whole file say that every record is live."""
    return data.count(LIVE, -FOOTER_BYTES - footer.count, -FOOTER_BYTES) == footer.count


def flags_of(data: bytes, footer: Footer) -> bytes:
    return data[-FOOTER_BYTES - footer.count : -FOOTER_BYTES]


def decode_flags(block: bytes) -> bytearray | None:
    """Return the marks (0 live, 1 deleted, 2 lost), or None if every record is live.

    A byte more than one bit away from all three says nothing certain about its record, so the record counts as lost.
    """
    if block.count(LIVE) == len(block):
        return None
    return bytearray(block.translate(_FLAG_FROM_DISK))


def damaged_flags(block: bytes) -> list[int]:
    """Return the positions of flag bytes that are none of the three values."""
    if not block.translate(None, _FLAG_TO_DISK):
        return []
    known = np.isin(np.frombuffer(block, np.uint8), np.array([LIVE, DELETED, LOST], np.uint8))
    return [int(at) for at in np.flatnonzero(~known)]


def _encode_index(columns: Columns) -> tuple[int, bytes]:
    tags, tag_names = _sorted_ids(columns.tags, columns.tag_names)
    nodes, node_names = _sorted_ids(columns.nodes, columns.node_names)
    extras = b""
    if columns.extras:
        packed = msgspec.msgpack.encode(columns.extras)
        extras = len(packed).to_bytes(8, "little") + packed
    parts = [_raw(columns.offsets), _raw(columns.ts), tags, nodes, _raw(columns.metas), tag_names, node_names, extras]
    sections = sum(1 << bit for bit, part in enumerate(parts) if part)
    return sections, b"".join([part.ljust(_padded(len(part)), b"\0") for part in parts if part])


def _raw(column: Column | None) -> bytes:
    return b"" if column is None else column.tobytes()


def _sorted_ids(column: Column | None, names: GrowingNames | SortedNames) -> tuple[bytes, bytes]:
    """Return the id column and the dictionary, renumbered so that ids follow the byte order of the names."""
    if column is None:
        return b"", b""
    if isinstance(names, SortedNames):
        head = struct.pack("<II", len(names), len(names.blob))
        return column.tobytes(), head + names.ends.tobytes() + names.blob
    ids, names = sorted_names(np.frombuffer(column, np.uint32), names.names)
    return _sorted_ids(ids, names)


def sorted_names(ids: npt.NDArray[np.uint32], names: Sequence[str]) -> tuple[Column, SortedNames]:
    """Return ids that begin with 1, renumbered so that they follow the byte order of their names, and the names."""
    encoded = [name.encode() for name in names]
    order = sorted(range(len(encoded)), key=encoded.__getitem__)
    renumber = np.zeros(len(encoded) + 1, np.uint32)
    renumber[np.asarray(order, np.intp) + 1] = np.arange(1, len(order) + 1, dtype=np.uint32)
    some = [encoded[at] for at in order]
    ends = memoryview(array("I", accumulate(map(len, some))))
    return memoryview(renumber[ids].tobytes()).cast("I"), SortedNames(ends, b"".join(some))


def _decode_names(block: bytes, at: int) -> tuple[SortedNames, int]:
    count, blob_bytes = struct.unpack_from("<II", block, at)
    ends_at = at + 8
    blob_at = ends_at + 4 * count
    names = SortedNames(memoryview(block)[ends_at:blob_at].cast("I"), block[blob_at : blob_at + blob_bytes])
    return names, at + _padded(8 + 4 * count + blob_bytes)


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // 8) * 8
