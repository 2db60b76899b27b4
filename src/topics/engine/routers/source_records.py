"""Records as routers read them. Pure.

Those of a source come in pieces with one commit time, within a filter. In those of a destination, `Stamps` finds the
copies of `exactly_once` routers by the stamps in their `meta`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from topics.engine import retention
from topics.engine.read.search import eligible, read_ahead, read_around, stretch
from topics.engine.state.topic import Topic
from topics.engine.steps import Steps, once_loaded
from topics.model import surrogates
from topics.model.record_bytes import meta_of
from topics.model.records import TagMatch
from topics.model.router import STAMP
from topics.nesting import decode_again
from topics.storage.segments.segment import Segment

BATCH_RECORDS = 256
BATCH_BYTES = 1 << 20


class Piece(Struct):
    """Stored records of a source with one commit time. Contiguous if `blob` is set."""

    ts: int
    seqs: Sequence[int]
    rows: list[bytes]
    tags: list[str | None] | None
    nodes: list[str | None] | None
    metas: list[int] | None
    extras: list[bytes | None] | None
    blob: bytes | None

    def only(self, kept: list[int]) -> Piece:
        def of(column: Sequence[object] | None) -> list[object] | None:
            return None if column is None else [column[at] for at in kept]

        picked: Any = [of(column) for column in (self.seqs, self.rows, self.tags, self.nodes, self.metas, self.extras)]
        seqs, rows, tags, nodes, metas, extras = picked
        return Piece(self.ts, seqs, rows, tags, nodes, metas, extras, None)


Gathered = tuple[list[Piece], int]  # the records between the cursor of a router and a seq, and that seq


class Preview(Struct, gc=False):
    """What a filter finds: how many live records it was tried on, how many match, their bytes, and their seqs."""

    scanned: int = 0
    matched: int = 0
    bytes: int = 0
    first: int | None = None
    last: int | None = None


def gather(source: Topic, match: TagMatch | None, cursor: int, upto: int) -> Gathered:
    """Return the live records in (cursor, upto] that match, and how far a full batch goes. None there may be lost.

    Raises `Cold` and `Damaged` like a read.
    """
    for segment, low, high in source.spans(cursor + 1, upto + 1):
        high = min(high, low + BATCH_RECORDS)
        offsets = segment.columns.offsets
        while high - low > 1 and offsets[high] - offsets[low] > BATCH_BYTES:
            high = low + (high - low) // 2
        positions, high = eligible(segment, match, low, high)
        return list(_cut(segment, positions)) if len(positions) else [], segment.first + high - 1
    return [], upto


def preview(source: Topic, match: TagMatch | None, low_seq: int, from_ts: int | None) -> Steps[Preview]:
    """Return what a filter finds from `low_seq` on among records from `from_ts` on.

    A step looks at one segment, or at one stretch of it if the records are searched.
    """
    found = Preview()

    def look(segment: Segment, low: int, high: int) -> int:
        """Look at records from `low` on, and return where to go on. Count nothing before all of them are in memory."""
        low = max(low, source.earliest - segment.first)
        if segment not in source.segments or low >= high:
            return high
        columns, marks = segment.columns, segment.marks
        if match is not None and match.op == "Where":
            high = stretch(columns, low, high)
        start = low if from_ts is None else bisect_left(columns.ts, from_ts, low, high)
        positions, high = eligible(segment, match, start, high)
        found.scanned += high - start if marks is None else marks.count(0, start, high)
        if len(positions):
            found.matched += len(positions)
            found.bytes += columns.size_of(positions)
            found.first = found.first or segment.first + int(positions[0])
            found.last = segment.first + int(positions[-1])
        return high

    for segment, low, high in source.walk(low_seq, source.head + 1):
        while segment.live and low < high and (from_ts is None or segment.max_ts >= from_ts):
            low = yield from once_loaded(partial(retention.read_past, source, partial(look, segment, low, high)))
            yield None
    return found


def _cut(segment: Segment, positions: npt.NDArray[np.intp]) -> Iterator[Piece]:
    """Yield the records at `positions` in pieces. All records of a piece have the same commit time."""
    columns = segment.columns
    ats: list[int] = positions.tolist()
    offsets, base = columns.offsets, columns.offsets[ats[0]]
    blob = read_around(segment, positions)
    times = [columns.ts[at] for at in ats]
    begin = 0
    for end in range(1, len(ats) + 1):
        if end < len(ats) and times[end] == times[begin]:
            continue
        part = ats[begin:end]
        rows = [blob[offsets[at] - base : offsets[at + 1] - base] for at in part]
        unbroken = part[-1] - part[0] == len(part) - 1
        yield Piece(
            times[begin],
            [segment.first + at for at in part],
            rows,
            None if columns.tags is None else [columns.tag_at(at) for at in part],
            None if columns.nodes is None else [columns.node_at(at) for at in part],
            None if columns.metas is None else [columns.metas[at] for at in part],
            [columns.extras.get(at) for at in part] if columns.extras else None,
            blob[offsets[part[0]] - base : offsets[part[-1] + 1] - base] if unbroken else None,
        )
        begin = end


# --- stamps of copies


class Stamp(Struct):
    router: str
    source: str
    epoch: int
    seq: int
    key: str


_decode_stamp = msgspec.json.Decoder(Stamp).decode


class Stamps:
    """The stamps in a destination. The search looks at all of its records, and continues where it stopped."""

    def __init__(self, dest: Topic) -> None:
        self._dest = dest
        self._upto = 0  # the last seq that was looked at
        self._found: dict[str, tuple[int, ...]] = {}  # by key: a writer may have put the same one into several records

    def has(self, key: str) -> bool:
        return any(map(self._dest.is_live, self._found.get(key, ())))

    def look_on(self) -> None:
        """Look at new records of the destination. Raises `Cold`; the next call continues where this one stopped."""
        dest = self._dest
        for segment, low, high in dest.spans(max(self._upto + 1, dest.earliest), dest.head + 1):
            if segment.live and segment.columns.metas is not None:
                for at in range(low, high, BATCH_RECORDS):
                    self._look_at(segment, at, min(at + BATCH_RECORDS, high))
            self._upto = segment.first + high - 1

    def _look_at(self, segment: Segment, low: int, high: int) -> None:
        columns = segment.columns
        metas = columns.metas
        assert metas is not None
        ats = [at for at in segment.live_positions(low, high).tolist() if metas[at]]
        if ats:
            base = columns.offsets[ats[0]]
            block = read_ahead(segment, ats[0], ats[-1] + 1)
            for at in ats:
                row = bytes(block[columns.offsets[at] - base : columns.offsets[at + 1] - base])
                meta = meta_of(row, metas[at])
                raw = surrogates.members(meta).get(STAMP) if b"_topics_router" in meta else None
                with suppress(msgspec.MsgspecError):  # a client may have written anything under that name
                    if raw is not None:
                        key = decode_again(_decode_stamp, raw).key
                        self._found[key] = (*self._found.get(key, ()), segment.first + at)
        self._upto = segment.first + high - 1
