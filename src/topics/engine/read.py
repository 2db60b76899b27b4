"""The one way records are read: `diff`, streams and bulk readers all come through here.

In this order, for every seq from the cursor on: the floor (a tombstone where something was lost below it), TTL,
deleted, node filter, tag filter, deliver. A skipped seq moves the cursor like a delivered one. Where nothing in the
range is skipped, the answer is one slice of the stored bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from topics.engine import retention
from topics.engine.state import Topic
from topics.model.records import DEFAULT_BATCH_BYTES, MAX_EXAMINED, STORED_FORM, Projection, TagMatch
from topics.storage.columns import render_without, runs
from topics.storage.segments import Cold, Damaged, Rendered, Segment

Span = tuple[Segment, int, int]  # first position, position after the last

STRETCH = 256  # seqs looked at in one go where some are skipped
LENT_BYTES = 64 << 10  # a smaller piece is copied: it may be put together with others, which only the kernel may do


class Query(Struct, kw_only=True, gc=False):
    """What a reader wants: already checked and clamped."""

    from_seq: int = 0
    limit: int = 256
    max_bytes: int = DEFAULT_BATCH_BYTES
    nodes: frozenset[str] | None = None
    match: TagMatch | None = None
    projection: Projection = STORED_FORM
    from_ts: int | None = None
    epoch: int | None = None
    upto: int | None = None  # highest seq this reader may see; None for the head
    examine: int = MAX_EXAMINED
    plain: bool = False  # whether it asks for nothing but a cursor, a limit and a byte budget
    lend: bool = False  # whether what is found goes to a socket as it is: large pieces are lent then (`Segment.lend`)
    spans: bool = False  # whether to tell where each part comes from, for a reader that goes on with the columns


class Tombstone(Struct, gc=False):
    """A range the reader wanted and nobody has any more."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class Reading(Struct, gc=False):
    """What came of it. `parts` are rendered records, each with a comma behind it."""

    parts: list[Rendered]
    count: int
    next_from_seq: int
    scanned: int
    tombstone: Tombstone | None = None
    spans: list[Span] | None = None  # of each part, where asked for

    def body(self) -> list[bytes | memoryview]:
        """The parts without the last comma: what stands between the brackets of a JSON array."""
        if not self.parts:
            return []
        return [*self.parts[:-1], memoryview(self.parts[-1])[:-1]]


def expire_and_read(topic: Topic, query: Query, now_ms: int) -> Reading:
    """Expire the topic's records up to `now_ms`, then return everything `query` may have of it.

    Raises `Cold` where that needs the disk: load, and ask again.
    """
    try:
        if query.plain and (reading := _read_whole(topic, query)) is not None:
            return reading
        return _read(topic, query, now_ms)
    except Damaged as damage:
        return retention.read_past(topic, damage, lambda: _read(topic, query, now_ms))


def _read_whole(topic: Topic, query: Query) -> Reading | None:
    """What `_read` says in the case nearly all readers are in: within one segment, where nothing can be missing.

    None where it might be.
    """
    from_seq, segment, is_open = query.from_seq, topic.segments[-1], True
    if from_seq + 1 < topic.earliest or from_seq > topic.head or topic.config.ttl_ms or topic.has_holes:
        return None
    if from_seq + 1 < segment.first:
        segment, is_open = topic.segments[topic.index_of(from_seq + 1)], False
    low, count = from_seq + 1 - segment.first, segment.count
    if low < 0 or segment.marks is not None:
        return None
    stop = low + query.limit
    if stop > count:
        if not is_open:
            return None
        stop = count
    if low == stop:
        return Reading([], 0, from_seq, 0)
    offsets = segment.columns.offsets
    size = offsets[stop] - offsets[low]
    if size > query.max_bytes:
        return None
    piece = segment.lend(low, stop) if query.lend and size >= LENT_BYTES else segment.read(low, stop)
    return Reading([piece], stop - low, from_seq + stop - low, stop - low)


def _read(topic: Topic, query: Query, now_ms: int) -> Reading:
    if topic.config.ttl_ms:
        retention.expire(topic, now_ms)
    start, tombstone = _gate(topic, query)
    head = topic.head if query.upto is None else min(topic.head, query.upto)
    reading = Reading([], 0, start - 1, 0, tombstone, [] if query.spans else None)
    if start > head:
        return reading
    stop = min(head + 1, start + query.examine)
    if topic.has_holes:
        if topic.losses.covering(start) is not None:  # a tombstone an answer: this one is for the next
            return reading
        if (hole := topic.losses.next_from(start)) is not None:
            stop = min(stop, hole)
    segment = topic.segments[-1]
    if start >= segment.first:  # the tail, where most readers are
        _take(segment, start - segment.first, stop - segment.first, query, topic, reading, query.max_bytes)
    else:
        left = query.max_bytes
        for segment, low, high in topic.spans(start, stop):
            left = _take(segment, low, high, query, topic, reading, left)
            if left <= 0 or reading.count >= query.limit:
                break
        else:
            reading.next_from_seq = stop - 1
    reading.scanned = reading.next_from_seq - start + 1
    return reading


def _gate(topic: Topic, query: Query) -> tuple[int, Tombstone | None]:
    """Where reading starts, and what the reader has to be told first."""
    from_seq, earliest, head = query.from_seq, topic.earliest, topic.head
    start = from_seq + 1
    if from_seq > head or (query.epoch is not None and query.epoch != topic.epoch):
        if query.from_ts is not None:
            start = max(earliest, _first_at(topic, query.from_ts))
        else:
            start = earliest
        missed = topic.count + topic.losses.within(1, head)[0]
        return start, Tombstone(1, head, "recreated", missed, earliest, head)
    if query.from_ts is not None and query.from_ts > topic.lost_ts:
        start = max(start, _first_at(topic, query.from_ts))
    if start < topic.evict_floor:
        missed, reason = topic.losses.within(start, earliest - 1)
        tombstone = Tombstone(start, earliest - 1, reason, missed, earliest, head)
        start = earliest
        if query.from_ts is not None:
            start = max(start, _first_at(topic, query.from_ts))
        return start, tombstone
    start = max(start, earliest)
    if topic.has_holes and (run := topic.losses.covering(start)) is not None:
        _, last, reason = run
        return last + 1, Tombstone(start, last, reason, last - start + 1, earliest, head)
    return start, None


def _first_at(topic: Topic, from_ts: int) -> int:
    """The seq of the first retained record committed at or after `from_ts`; head + 1 if there is none."""
    for segment in topic.segments:
        if segment.count and segment.max_ts >= from_ts:
            return segment.first + bisect_left(segment.columns.ts, from_ts)
    return topic.head + 1


def _take(
    segment: Segment, low: int, high: int, query: Query, topic: Topic, reading: Reading, budget_bytes: int
) -> int:
    """Adds what [low, high) of one segment has to give; the byte budget that is left, 0 when it is spent."""
    stop = min(high, low + query.limit - reading.count)
    if query.nodes or query.match is not None or segment.marks is not None:
        nodes = query.nodes if topic.config.dedupe_node else None
        if not _unbroken(segment, low, stop, nodes, query.match):
            return _take_filtered(segment, low, high, query, nodes, reading, budget_bytes)
    offsets = segment.columns.offsets
    start_at = offsets[low]
    if offsets[stop] - start_at > budget_bytes:
        # Stops before the record that would pass the budget, but never before the first of the answer.
        stop = bisect_right(offsets, start_at + budget_bytes, low, stop) - 1
        if stop <= low:
            if reading.count:
                reading.next_from_seq = segment.first + low - 1
                return 0
            stop = low + 1
        spent = True
    else:
        spent = False
    blob = _read_piece(segment, low, stop, query)
    if query.projection is not STORED_FORM and not query.projection.is_stored_form:
        blob = _project(segment, blob, range(low, stop), query.projection)
    reading.parts.append(blob)
    if reading.spans is not None:
        reading.spans.append((segment, low, stop))
    reading.count += stop - low
    reading.next_from_seq = segment.first + stop - 1
    return 0 if spent else budget_bytes - (offsets[stop] - start_at)


def _unbroken(segment: Segment, low: int, high: int, nodes: frozenset[str] | None, match: TagMatch | None) -> bool:
    """Whether nothing in [low, high) is skipped, as far as that is cheap to know."""
    if match is not None:
        return False
    if segment.marks is not None and segment.marks.count(0, low, high) != high - low:
        return False
    return not nodes or not len(segment.columns.from_nodes(nodes, low, high))


def _take_filtered(
    segment: Segment,
    low: int,
    high: int,
    query: Query,
    nodes: frozenset[str] | None,
    reading: Reading,
    budget_bytes: int,
) -> int:
    """Like `_take` where some of the range is skipped, a stretch at a time so that a small read looks at little."""
    at = low
    while at < high and budget_bytes > 0 and reading.count < query.limit:
        stop = min(high, at + max(2 * (query.limit - reading.count), STRETCH))
        kept = _kept(segment, at, stop, nodes, query.match)
        budget_bytes = _take_some(segment, kept, stop, query, reading, budget_bytes)
        at = reading.next_from_seq + 1 - segment.first
    return budget_bytes


def _kept(
    segment: Segment, low: int, high: int, nodes: frozenset[str] | None, match: TagMatch | None
) -> npt.NDArray[np.intp]:
    """Positions in [low, high) that are live and that no filter drops."""
    columns = segment.columns
    keep = np.ones(high - low, np.bool_)
    if segment.marks is not None:
        keep &= np.frombuffer(segment.marks, np.uint8)[low:high] == 0
    if nodes:
        keep[columns.from_nodes(nodes, low, high) - low] = False
    if match is not None:
        hit = np.zeros(high - low, np.bool_)
        hit[columns.matching(match, low, high) - low] = True
        keep &= hit
    return np.flatnonzero(keep) + low


def _take_some(
    segment: Segment, kept: npt.NDArray[np.intp], high: int, query: Query, reading: Reading, budget_bytes: int
) -> int:
    """Like `_take` where some of the range is skipped: the kept positions as few slices."""
    want = query.limit - reading.count
    chosen = kept[:want]
    offsets = np.frombuffer(segment.columns.offsets, np.uint32)
    used_bytes = np.cumsum(offsets[chosen + 1].astype(np.int64) - offsets[chosen])
    fits = int(np.searchsorted(used_bytes, budget_bytes, "right"))
    if not fits and not reading.count:
        fits = 1  # never less than one record an answer
    left = budget_bytes - (int(used_bytes[fits - 1]) if fits and len(chosen) else 0)
    if fits < len(chosen):
        # Everything up to the record that did not fit has been looked at, unless nothing at all is left to spend.
        stop_at = int(chosen[fits]) - 1 if left > 0 else int(chosen[fits - 1])
        left = 0
    elif len(chosen) == want or left <= 0:
        stop_at = int(chosen[-1])
    else:
        stop_at = high - 1
    chosen = chosen[:fits]
    for first, last, blob in _slices(segment, chosen, query):
        if not query.projection.is_stored_form:
            blob = _project(segment, blob, range(first, last + 1), query.projection)
        reading.parts.append(blob)
        if reading.spans is not None:
            reading.spans.append((segment, first, last + 1))
    reading.count += len(chosen)
    reading.next_from_seq = segment.first + stop_at
    return left


def _read_piece(segment: Segment, low: int, high: int, query: Query) -> Rendered:
    if query.lend and segment.columns.offsets[high] - segment.columns.offsets[low] >= LENT_BYTES:
        return segment.lend(low, high)
    return segment.read(low, high)


def _slices(segment: Segment, chosen: npt.NDArray[np.intp], query: Query) -> Iterator[tuple[int, int, Rendered]]:
    """The chosen records as unbroken runs with their bytes: read together where they lie close together."""
    pieces = runs(chosen)
    if len(pieces) < 2:
        for first, last in pieces:
            yield first, last, _read_piece(segment, first, last + 1, query)
        return
    offsets = segment.columns.offsets
    base = offsets[pieces[0][0]]
    span_bytes = offsets[pieces[-1][1] + 1] - base
    wanted_bytes = sum(offsets[last + 1] - offsets[first] for first, last in pieces)
    near = span_bytes <= 4 * wanted_bytes
    whole = _read_around(segment, chosen, query) if near else None
    if whole is None:
        for (first, last), blob in zip(pieces, read_runs(segment, pieces, query), strict=True):
            yield first, last, blob
    else:
        for first, last in pieces:
            yield first, last, whole[offsets[first] - base : offsets[last + 1] - base]


def _read_around(segment: Segment, chosen: npt.NDArray[np.intp], query: Query) -> Rendered | None:
    """Read from the first chosen record to the last in one piece. Return None if only records between are damaged."""
    try:
        return _read_piece(segment, int(chosen[0]), int(chosen[-1]) + 1, query)
    except Damaged as damage:
        if damage.concerns(chosen):
            raise
        return None


def read_runs(segment: Segment, pieces: list[tuple[int, int]], query: Query) -> list[Rendered]:
    """Read each run of positions, both ends inclusive, by itself. Raise one `Cold` for all that are not in memory."""
    found: list[Rendered] = []
    loads: list[Callable[[], None]] = []
    for first, last in pieces:
        try:
            found.append(_read_piece(segment, first, last + 1, query))
        except Cold as cold:
            loads.append(cold.load)
    if loads:
        raise Cold(lambda: [load() for load in loads])  # type: ignore[arg-type]
    return found


def _project(segment: Segment, blob: Rendered, positions: range, projection: Projection) -> bytes:
    """The same records in another form, one by one."""
    columns = segment.columns
    offsets = columns.offsets
    base = offsets[positions.start]
    return b"".join(
        render_without(
            blob[offsets[at] - base : offsets[at + 1] - base], columns, at,
            tags=projection.tags, meta=projection.meta, data=projection.data,
        )
        for at in positions
    )  # fmt: skip
