"""Search in records: the records of a segment that match a filter on their fields.

The rendered bytes of many records are searched at once for texts that a matching record must have (needles). Only
records with one of them are cut out and decoded. Work is counted in estimated nanoseconds, so that a read can end
before it holds the loop for long: what a filter examines never depends on the clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import partial

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from topics.clock import Clock
from topics.engine import past_damage, retention
from topics.engine.read.field_tests import BACKSLASH, EXPONENT, UNICODE, CompiledFilter, Fields, compiled
from topics.engine.state.topic import Topic
from topics.engine.steps import Steps, once_loaded
from topics.errors import topic_not_found
from topics.model import record_bytes
from topics.model.records import TagMatch
from topics.storage.segments.cold import Cold, Needs
from topics.storage.segments.columns import Columns, runs
from topics.storage.segments.segment import Damaged, Rendered, Segment

AHEAD_BYTES = 1 << 20  # fetched at once if records are not in memory
STRETCH_BYTES = 128 << 10  # searched at once
SEARCH_NS = 2_000_000  # work after which a search pauses
DECODE_NS = 2000  # for one record,
CONDITION_NS = 800  # for each condition on it,
DECODE_BYTE_NS = 10  # for each byte of it,
SCAN_BYTE_NS = 8  # and for each byte and condition that looks at all of a text or an array, after the first one

Positions = npt.NDArray[np.intp]


def stretch(columns: Columns, low: int, high: int, size_bytes: int = 0) -> int:
    """Return the end of the positions from `low` on that are searched at once: one, or as many as the size allows."""
    offsets, size_bytes = columns.offsets, size_bytes or STRETCH_BYTES
    if offsets[high] - offsets[low] <= size_bytes:
        return high
    return max(bisect_right(offsets, offsets[low] + size_bytes, low, high) - 1, low + 1)


def eligible(segment: Segment, match: TagMatch | None, low: int, high: int) -> tuple[Positions, int]:
    """Return the positions in [low, high) of live records that match, and the position up to which it has looked.

    That is `high` unless a search pauses before. Raise `Cold` and `Damaged` like a read.
    """
    columns, marks = segment.columns, segment.marks
    searches = match is not None and match.op == "Where"
    positions = np.arange(low, high) if match is None or searches else columns.matching(match, low, high)
    if marks is not None:
        positions = positions[np.frombuffer(marks, np.uint8)[positions] == 0]
    return matching(segment, match, positions, high)[:2] if match is not None and searches else (positions, high)


def matching(segment: Segment, match: TagMatch, positions: Positions, stop: int) -> tuple[Positions, int, int]:
    """Return those of the positions that match a `Where`, where the search paused, and its work in nanoseconds.

    It pauses after `SEARCH_NS`, else at `stop`.
    """
    if not len(positions):
        return positions, stop, 0
    where, columns = compiled(match.text), segment.columns
    low, high = int(positions[0]), int(positions[-1]) + 1
    block = read_around(segment, positions)
    offsets, base = columns.offsets, columns.offsets[low]
    candidates: list[int] = positions[_has_needle(block, columns, where, low, high)[positions - low]].tolist()
    kept, work_ns = [], len(block)
    record_ns = DECODE_NS + CONDITION_NS * where.conditions
    byte_ns = DECODE_BYTE_NS + SCAN_BYTE_NS * max(where.scans - 1, 0)
    for at in candidates:
        row = block[offsets[at] - base : offsets[at + 1] - base]
        work_ns += record_ns + byte_ns * len(row)
        if _matches(where, columns, at, row):
            kept.append(at)
        if work_ns > SEARCH_NS:
            stop = at + 1
            break
    return np.array(kept, np.intp), stop, work_ns


def _matches(where: CompiledFilter, columns: Columns, at: int, row: bytes) -> bool:
    head = record_bytes.head_bytes(columns.first + at, columns.ts[at], columns.node_at(at))
    part_bytes = 0 if columns.metas is None else columns.metas[at]
    meta = record_bytes.meta_of(row, part_bytes) if part_bytes else None
    return where.matches(Fields(record_bytes.data_of(row, head, part_bytes), meta, columns.tag_at(at)))


def _has_needle(block: bytes, columns: Columns, where: CompiledFilter, low: int, high: int) -> npt.NDArray[np.bool_]:
    """Return for each position in [low, high) whether its record may match. All may if half of them have a needle."""
    if where.needles is None:
        return np.ones(high - low, np.bool_)
    offsets, base = columns.offsets, columns.offsets[low]
    found = np.zeros(high - low, np.bool_)
    most = (high - low) // 2
    for needle in where.needles:
        if needle is EXPONENT:
            starts = np.frombuffer(offsets, np.uint32)[low : high + 1]
            found[np.searchsorted(starts, _exponents(block) + base, "right") - 1] = True
            continue
        if needle is UNICODE and BACKSLASH not in block:  # a single character is found much faster
            continue
        count, at = 0, block.find(needle)
        while at >= 0:
            row = bisect_right(offsets, at + base, low, high) - 1
            found[row - low] = True
            count += 1
            if count > most:
                return np.ones(high - low, np.bool_)
            at = block.find(needle, offsets[row + 1] - base)
    return found


def _exponents(block: bytes) -> npt.NDArray[np.int64]:
    """Return where a digit is followed by an `e`."""
    text = np.frombuffer(block, np.uint8)
    letters = np.flatnonzero((text | 0x20) == ord("e"))
    before = text[letters - 1]
    return letters[(before >= ord("0")) & (before <= ord("9"))]


def read_around(segment: Segment, positions: npt.NDArray[np.intp]) -> bytes:
    """Return the bytes from the first position to the last. Damaged bytes that no position needs are zero."""
    start, stop = int(positions[0]), int(positions[-1]) + 1
    try:
        return bytes(read_ahead(segment, start, stop))
    except Damaged as damage:
        if damage.concerns(positions):
            raise
    offsets, base = segment.columns.offsets, segment.columns.offsets[start]
    blob, needs = bytearray(offsets[stop] - base), Needs()
    for first, last in runs(positions):
        try:
            blob[offsets[first] - base : offsets[last + 1] - base] = segment.read(first, last + 1)
        except Cold as cold:
            needs.add(cold)
    needs.check()
    return bytes(blob)


def read_ahead(segment: Segment, start: int, stop: int) -> Rendered:
    """Return the records of [start, stop). `Cold` asks for more: the records behind them are probably not in memory."""
    try:
        return segment.read(start, stop)
    except Cold:
        held = segment.read_held(start, stop)
        if held is not None and held.upto == stop:
            return held.data
        raise Cold([segment.need(start, stop, at_least_bytes=AHEAD_BYTES)]) from None


# --- previews


class Preview(Struct, gc=False):
    """What a filter finds: how many live records it was tried on, how many match, their bytes, and their seqs."""

    scanned: int = 0
    matched: int = 0
    bytes: int = 0
    first: int | None = None
    last: int | None = None

    def look(
        self, topic: Topic, match: TagMatch | None, from_ts: int | None, segment: Segment, low: int, high: int
    ) -> int:
        """Look at records from `low` on, and return where to go on. Count nothing before all of them are in memory."""
        low = max(low, topic.earliest - segment.first)
        if segment not in topic.segments or low >= high:
            return high
        columns, marks = segment.columns, segment.marks
        if match is not None and match.op == "Where":
            high = stretch(columns, low, high)
        start = low if from_ts is None else bisect_left(columns.ts, from_ts, low, high)
        positions, high = eligible(segment, match, start, high)
        self.scanned += high - start if marks is None else marks.count(0, start, high)
        if len(positions):
            self.matched += len(positions)
            self.bytes += columns.size_of(positions)
            self.first = self.first or segment.first + int(positions[0])
            self.last = segment.first + int(positions[-1])
        return high


def preview(
    clock: Clock, topic: Topic, match: TagMatch | None, *, from_seq: int, from_ts: int | None
) -> Steps[Preview]:
    """Expire the topic's records, then count those that a filter finds behind `from_seq` among the others.

    In steps of one segment each: 1 ms for 65,536 records, up to 5 ms if each has another tag; if the records are
    searched, of 128 KiB. Records that are evicted or deleted between two steps may be counted or not.
    """
    yield from once_loaded(lambda: retention.expire_loaded(topic, clock.now_ms()))
    found = Preview()
    for segment, low, high in topic.walk(max(from_seq + 1, topic.earliest), topic.head + 1):
        while segment.live and low < high and (from_ts is None or segment.max_ts >= from_ts):
            look = partial(found.look, topic, match, from_ts, segment, low, high)
            low = yield from once_loaded(partial(past_damage.read, topic, look))
            yield None
    if topic.gone:
        raise topic_not_found(topic.name)
    return found
