"""Read a whole segment once and check all of it. `verify`, `repair`, backups and the scrub all find damage here.

Servers check each part of a segment when a reader needs it. `taken` gets every byte, so a backup checks a segment while
it copies it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import numpy as np

from topics.errors import Corrupt, DamageReport
from topics.storage.fs import Fs, absence
from topics.storage.segments import codec
from topics.storage.segments.columns import Columns, runs

PIECE_BYTES = 16 * codec.CHUNK_BYTES

Read = Callable[[int, int], bytes]  # size, offset
Offsets = np.ndarray[tuple[int], np.dtype[np.uint32]]
Taken = Callable[[int, bytes], None]  # offset, bytes


class Problem(NamedTuple):
    """A contradiction or a wrong checksum. The records at positions [low, high) are unreadable because of it."""

    offset: int
    what: str
    low: int = 0
    high: int = 0
    whole: bool = False  # not even the columns can be read

    def report(self, path: str, topic: str, first: int, *, earliest: int = 1, offset: int = 0) -> DamageReport:
        """Return the report for a segment at `offset` of a file, whose first record has the seq `first`."""
        low, high = max(first + self.low, earliest), first + self.high - 1
        seqs = (low, high) if low <= high else None
        return DamageReport(path, offset + self.offset, self.what, topic=topic, seqs=seqs, harmless=seqs is None)


class Examined(NamedTuple):
    """The readable content of a segment, and its problems."""

    footer: codec.Footer | None
    columns: Columns | None
    flags: bytes  # as they are in the file
    problems: list[Problem]


def pass_by(at: int, data: bytes) -> None:
    """Take bytes that nothing but the check needs."""


def examine_file(
    fs: Fs, path: str, known: codec.Footer | None, *, part: tuple[int, int] | None = None, stored: bool = False,
    taken: Taken = pass_by,
) -> Examined:  # fmt: skip
    """Check the segment in a file, or in a part of it (offset and size). With `stored`, bypass the page cache.

    A file that is missing or cannot be read is a problem of all records.
    """
    try:
        with closing(fs.open(path)) as file:
            start, size_bytes = part or (0, file.size())
            pread = file.pread_stored if stored else file.pread
            return examine(lambda size, at: pread(size, start + at), size_bytes, path=path, known=known, taken=taken)
    except OSError as error:
        return Examined(known, None, b"", [Problem(0, absence(error), 0, known.count if known else 0, whole=True)])


def examine(
    read: Read, size_bytes: int, *, path: str, known: codec.Footer | None = None, taken: Taken = pass_by
) -> Examined:
    """Check a segment. `known` is its footer in a snapshot; with it, a damaged footer in the file loses no record."""
    problems: list[Problem] = []
    footer = _footer(read, size_bytes, path=path, known=known, problems=problems)
    if footer is None:
        _pass_on(read, 0, size_bytes, taken)
        return Examined(None, None, b"", problems)
    header = read(codec.HEADER_BYTES, 0)
    taken(0, header)
    if header != codec.MAGIC:
        problems.append(Problem(0, "the first bytes of a segment are damaged"))
    index = read(footer.flags_at - footer.sums_at, footer.sums_at)
    columns, sums = None, None
    try:
        sums, columns = codec.decode_index(index, footer, path=path)
        problems += _columns_problems(columns, footer)
    except Corrupt as error:
        problems.append(Problem(error.offset, error.what, 0, footer.count, whole=True))
    _data(read, footer, sums, columns, problems, taken)
    taken(footer.sums_at, index)
    flags = read(footer.count, footer.flags_at)
    taken(footer.flags_at, flags)
    _pass_on(read, footer.flags_at + len(flags), size_bytes, taken)
    problems += _flag_problems(flags, footer)
    return Examined(footer, columns, flags, problems)


def _footer(
    read: Read, size_bytes: int, *, path: str, known: codec.Footer | None, problems: list[Problem]
) -> codec.Footer | None:
    try:
        at = max(size_bytes - codec.FOOTER_BYTES, 0)
        found = codec.decode_footer(read(codec.FOOTER_BYTES, at), path=path, file_bytes=size_bytes)
    except Corrupt as error:
        lost = known is None
        problems.append(Problem(error.offset, error.what, whole=lost))
        return known
    if known is not None and found != known:
        problems.append(Problem(at, f"this is not the segment that the snapshot names: {found} instead of {known}"))
    return known or found


def _data(
    read: Read,
    footer: codec.Footer,
    sums: memoryview | None,
    columns: Columns | None,
    problems: list[Problem],
    taken: Taken,
) -> None:
    for at in range(0, footer.data_bytes, PIECE_BYTES):
        size = min(PIECE_BYTES, footer.data_bytes - at)
        piece = read(size, codec.HEADER_BYTES + at)
        taken(codec.HEADER_BYTES + at, piece)
        if sums is None or columns is None:
            continue
        offsets = np.frombuffer(columns.offsets, np.uint32)
        good = True
        for start in range(0, size, codec.CHUNK_BYTES):
            chunk = piece[start : start + codec.CHUNK_BYTES]
            if codec.sum64(chunk) != sums[(at + start) // codec.CHUNK_BYTES]:
                low, high = columns.records_in(at + start, at + start + codec.CHUNK_BYTES)
                what = "a chunk of data does not match its checksum"
                problems.append(Problem(codec.HEADER_BYTES + at + start, what, low, high))
                good = False
        if good and not _begins_and_ends(piece, offsets, at):
            problems.append(Problem(codec.HEADER_BYTES + at, "a record does not begin or end where the index says"))


def _begins_and_ends(piece: bytes, offsets: Offsets, at: int) -> bool:
    """Return whether every record that begins in this piece begins with a brace and follows a comma."""
    low, high = np.searchsorted(offsets[:-1], [at, at + len(piece)], "left")
    starts = offsets[low:high][np.diff(offsets[low : high + 1]) > 0].astype(np.int64) - at
    view = np.frombuffer(piece, np.uint8)
    return bool(np.all(view[starts] == ord("{")) and np.all(view[starts[starts > 0] - 1] == ord(",")))


def _columns_problems(columns: Columns, footer: codec.Footer) -> list[Problem]:
    """Return the contradictions in columns whose checksum is right."""
    whats = []
    offsets = np.frombuffer(columns.offsets, np.uint32).astype(np.int64)
    if offsets[0] or offsets[-1] != footer.data_bytes or np.any(np.diff(offsets) < (0 if footer.generation else 1)):
        whats.append("the offsets in the index do not cut the data into records")
    ts = np.frombuffer(columns.ts, np.uint64)
    if np.any(ts[1:] < ts[:-1]) or int(ts[0]) != footer.min_ts or int(ts[-1]) != footer.max_ts:
        whats.append("the times in the index go backwards or differ from the footer")
    for column, names in ((columns.tags, columns.tag_names), (columns.nodes, columns.node_names)):
        if column is not None and int(np.frombuffer(column, np.uint32).max()) > len(names):
            whats.append("the index names a tag or node that is not in its dictionary")
    return [Problem(footer.sums_at, what) for what in whats]


def _flag_problems(flags: bytes, footer: codec.Footer) -> list[Problem]:
    if len(flags) != footer.count:
        return [Problem(footer.flags_at, "the flags of a segment are cut short", 0, footer.count)]
    what = "a flag byte is damaged: it is unknown whether the record was deleted"
    bad = runs(np.asarray(codec.damaged_flags(flags), np.intp))
    return [Problem(footer.flags_at + low, what, low, high + 1) for low, high in bad]


def _pass_on(read: Read, start: int, stop: int, taken: Taken) -> None:
    for at in range(start, stop, PIECE_BYTES):
        taken(at, read(min(PIECE_BYTES, stop - at), at))
