"""Reads of records: `diff`, streams and bulk readers all use `expire_and_read`.

The checks for every seq from the cursor on, in this order: the floor (a tombstone if records below it were lost), TTL,
deleted, node filter, filter, deliver. A skipped seq moves the cursor like a delivered one. If no seq in the range
is skipped, the answer is one slice of the stored bytes.

A read that meets records which are not in memory continues to find out what else it needs, and raises one `Cold` for
all of it. If evictions move the beginning of the answer after that was fetched, so that the read would need more again,
the answer ends there: this way a reader at the front of a topic that evicts records all the time is answered, too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from topics.engine import past_damage, retention
from topics.engine.read import search
from topics.engine.state.topic import Topic
from topics.model.records import DEFAULT_BATCH_BYTES, MAX_EXAMINED, STORED_FORM, Projection, TagMatch
from topics.model.wire import TombstoneAnswer
from topics.storage.segments.cold import Cold, Needs
from topics.storage.segments.columns import render_without, runs
from topics.storage.segments.segment import Damaged, Rendered, Segment

Span = tuple[Segment, int, int]  # first position, position after the last

AHEAD_BYTES = 64 << 10  # fetched at least at the beginning of a read, which evictions may move before the retry
NEAR_BYTES = 4096  # records that are no further apart than this are read together,
GROUP_BYTES = 1 << 20  # up to this many bytes of them
MAX_HOLES = 256  # deleted records of a range, and
FEW_HOLES = 8  # the share of a segment, up to which they are cut out of one piece
STRETCH = 256  # seqs examined at a time if some may be skipped
LENT_BYTES = 64 << 10  # a smaller piece is copied, so that it can be joined with others


class Query(Struct, kw_only=True, gc=False):
    """A read, with checked and clamped values."""

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
    plain: bool = False  # whether the query has only a cursor, a limit and a byte budget
    lend: bool = False  # whether the records go to a socket as they are: large pieces are lent then (`Segment.lend`)
    spans: bool = False  # whether to return the place of each part, for a reader that also needs the columns


Tombstone = TombstoneAnswer


class Reading(Struct, gc=False):
    """The answer to a query. `parts` are rendered records, each with a comma behind it."""

    parts: list[Rendered]
    count: int
    next_from_seq: int
    scanned: int
    tombstone: Tombstone | None = None
    spans: list[Span] | None = None  # of each part, if asked for
    missing: Needs | None = None  # set once records are missing: the read continues only to find out what it needs
    at_front: bool = False  # whether the answer begins at the front of the topic, which evictions move
    moved: bool = False  # whether evictions moved it since its records were fetched
    searched_ns: int = 0  # the work of a search in the records

    def body(self) -> list[bytes | memoryview]:
        """Return the parts without the last comma: the inside of a JSON array."""
        if not self.parts:
            return []
        return [*self.parts[:-1], memoryview(self.parts[-1])[:-1]]


def expire_and_read(topic: Topic, query: Query, now_ms: int) -> Reading:
    """Expire the topic's records up to `now_ms`, then return the records that `query` asks for.

    Raises `Cold` if records are not in memory: load them, and call again.
    """
    try:
        if query.plain:
            try:
                if (reading := _read_whole(topic, query)) is not None:
                    return reading
            except Cold:
                pass  # the slow path finds everything that is needed
        return _read(topic, query, now_ms)
    except Damaged:
        return past_damage.read(topic, partial(_read, topic, query, now_ms))  # a closure costs every read 80 ns


def _read_whole(topic: Topic, query: Query) -> Reading | None:
    """Fast path: return what `_read` returns if the range lies in one segment and no record in it can be missing.

    Return None otherwise.
    """
    from_seq, segment, is_open = query.from_seq, topic.segments[-1], True
    if from_seq + 1 < topic.earliest or from_seq > topic.head or topic.config.ttl_ms or topic.has_losses_above_floor:
        return None
    if from_seq + 1 < segment.first:
        segment, is_open = topic.segment_of(from_seq + 1), False
    low, count = from_seq + 1 - segment.first, segment.count
    if low < 0:
        return None
    if segment.marks is not None:
        found = _around(segment, low, count, query, query.limit, query.max_bytes)
        if found is None or (found[1] < query.limit and not is_open):
            return None
        parts, kept, stop = found
        return Reading(parts, kept, segment.first + stop - 1, stop - low)
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


def _around(
    segment: Segment, low: int, high: int, query: Query, limit: int, max_bytes: int
) -> tuple[list[Rendered], int, int] | None:
    """Return the live records of [low, high), `limit` at most, as parts; their number; and the position behind them.

    If few records are deleted, that takes one read, out of which they are cut: ten of a thousand records cost 8 µs, and
    50 µs on the slow path. Return None otherwise.
    """
    dead, holes, ranks, bounds = segment.holes()
    if dead * FEW_HOLES > segment.count:
        return None
    at = bisect_left(holes, low)
    # A deleted record lies before the end if fewer than `limit` live ones lie between `low` and it.
    end = bisect_left(ranks, low - at + limit, at)
    stop = low + limit + end - at
    if stop > high:
        stop, end = high, bisect_left(holes, high, at)
    offsets = segment.columns.offsets
    base = offsets[low]
    size = offsets[stop] - base
    if end - at > MAX_HOLES or stop - low > query.examine or size > max_bytes:
        return None
    whole = segment.lend(low, stop) if query.lend and size >= LENT_BYTES else segment.read(low, stop)
    count = stop - low - end + at
    if at == end:
        return [whole], count, stop
    runs_lent = segment.runs_lent() if type(whole) is memoryview else None
    if runs_lent:  # a view that is made now costs 2 µs
        parts = [whole[: bounds[2 * at] - base], *runs_lent[at : end - 1], whole[bounds[2 * end - 1] - base :]]
        return list(filter(None, parts)), count, stop
    view, begin = memoryview(whole), 0
    parts = []
    for number in range(2 * at, 2 * end, 2):
        upto = bounds[number] - base
        if begin < upto:
            parts.append(view[begin:upto])
        begin = bounds[number + 1] - base
    if begin < size:
        parts.append(view[begin:])
    return parts if size >= LENT_BYTES else [b"".join(parts)], count, stop


def _read(topic: Topic, query: Query, now_ms: int) -> Reading:
    if topic.config.ttl_ms:
        retention.expire_loaded(topic, now_ms)
    start, tombstone = _gate(topic, query)
    head = topic.head if query.upto is None else min(topic.head, query.upto)
    reading = Reading([], 0, start - 1, 0, tombstone, [] if query.spans else None)
    reading.at_front = start > query.from_seq + 1
    if start > head:
        return reading
    stop = min(head + 1, start + query.examine)
    if topic.has_losses_above_floor:
        if topic.losses.covering(start) is not None:  # one tombstone per answer: this one is for the next
            return reading
        if (lost_seq := topic.losses.next_from(start)) is not None:
            stop = min(stop, lost_seq)
    segment = topic.segments[-1]
    if start >= segment.first:  # the tail, where most readers are
        _take(segment, start - segment.first, stop - segment.first, query, topic, reading, query.max_bytes)
    else:
        _take_all(topic, start, stop, query, reading)
        if reading.missing is not None:
            reading.missing.check()
    reading.scanned = reading.next_from_seq - start + 1
    return reading


def _take_all(topic: Topic, start: int, stop: int, query: Query, reading: Reading) -> None:
    """Add the records with seqs [start, stop), segment by segment."""
    left = query.max_bytes
    for segment, low, high in topic.spans(start, stop):
        if not segment.live:
            continue
        try:
            left = _take(segment, low, high, query, topic, reading, left)
        except Cold as cold:
            if reading.moved or reading.searched_ns:  # what was found is answered before more is fetched
                reading.next_from_seq = max(reading.next_from_seq, segment.first + low - 1)
            else:
                _need_columns(topic, segment.first + low, stop, query, reading, cold)
            return
        if left <= 0 or reading.count >= query.limit:
            return
    reading.next_from_seq = stop - 1


def _need_columns(topic: Topic, start: int, stop: int, query: Query, reading: Reading, cold: Cold) -> None:
    """Note that columns are needed from seq `start` on: of all segments that the read is sure to look at."""
    missing = reading.missing = reading.missing or Needs()
    filtered = query.match is not None or bool(query.nodes)
    records, left_bytes = query.limit - reading.count, query.max_bytes
    for segment, low, high in topic.spans(start, stop):
        if missing.full or (not filtered and (records <= 0 or left_bytes <= 0)):
            break
        if not segment.live:
            continue
        try:
            segment.check_loaded()
        except Cold as this:
            if not filtered and segment.live == segment.count:
                # No record in the segment is skipped: its data can be fetched together with its columns.
                ahead_bytes = 0 if reading.count or missing.found else AHEAD_BYTES
                upto = min(high, low + records)
                need = segment.need(low, upto, at_least_bytes=ahead_bytes, max_bytes=left_bytes)
                missing.add(Cold([need]))
            else:
                missing.add(this)
        records -= min(high - low, segment.live)
        left_bytes -= segment.live_bytes * (high - low) // segment.count
    if not missing.found:
        missing.add(cold)  # the columns have come into memory since `cold` was raised: the retry finds them


def _gate(topic: Topic, query: Query) -> tuple[int, Tombstone | None]:
    """Return where reading starts, and the tombstone that comes before it."""
    from_seq, earliest, head = query.from_seq, topic.earliest, topic.head
    start = from_seq + 1
    # A standby may not have come to the cursor yet: then the reader waits.
    if (from_seq > head and not topic.totals.follows) or (query.epoch is not None and query.epoch != topic.epoch):
        if query.from_ts is not None:
            start = max(earliest, _first_at(topic, query.from_ts))
        else:
            start = earliest
        missed = topic.count + topic.losses.within(1, head)[0]
        return start, Tombstone(1, head, "recreated", missed, earliest, head)
    if query.from_ts is not None:
        newer = query.from_ts > topic.lost_ts
        start = max(start, _first_at(topic, query.from_ts) if newer else topic.losses.last_before(query.from_ts) + 1)
    if start < topic.evict_floor:
        missed, reason = topic.losses.within(start, earliest - 1)
        tombstone = Tombstone(start, earliest - 1, reason, missed, earliest, head)
        start = earliest
        if query.from_ts is not None:
            start = max(start, _first_at(topic, query.from_ts))
        return start, tombstone
    start = max(start, earliest)
    if topic.has_losses_above_floor and (run := topic.losses.covering(start)) is not None:
        _, last, reason = run
        return last + 1, Tombstone(start, last, reason, last - start + 1, earliest, head)
    return start, None


def _first_at(topic: Topic, from_ts: int) -> int:
    """Return the seq of the first live record committed at or after `from_ts`; head + 1 if there is none."""
    for segment in topic.segments:
        if segment.count and segment.max_ts >= from_ts:
            return segment.first + bisect_left(segment.columns.ts, from_ts)
    return topic.head + 1


def _take(
    segment: Segment, low: int, high: int, query: Query, topic: Topic, reading: Reading, budget_bytes: int
) -> int:
    """Add records at [low, high) of one segment. Return the byte budget that is left, 0 when it is spent."""
    stop = min(high, low + query.limit - reading.count)
    marks = segment.marks
    if query.nodes or query.match is not None or marks is not None:
        nodes = query.nodes if topic.config.dedupe_node else None
        if (
            marks is not None
            and not nodes
            and query.match is None
            and reading.spans is None
            and reading.missing is None
        ):
            with suppress(Cold, Damaged):  # the slow path finds everything that is needed
                if query.projection.is_stored_form and (
                    found := _around(segment, low, high, query, query.limit - reading.count, budget_bytes)
                ):
                    parts, count, stop = found
                    reading.parts += parts
                    reading.count += count
                    reading.next_from_seq = segment.first + stop - 1
                    return budget_bytes - sum(map(len, parts))
        # Whether a record is skipped, as far as that is cheap to find out.
        if (
            query.match is not None
            or (marks is not None and marks.count(0, low, stop) != stop - low)
            or (nodes and len(segment.columns.from_nodes(nodes, low, stop)))
        ):
            return _take_filtered(segment, low, high, query, nodes, reading, budget_bytes)
    offsets = segment.columns.offsets
    start_at = offsets[low]
    if offsets[stop] - start_at > budget_bytes:
        # Stop before the record that would pass the budget, but never before the first record of the answer.
        stop = bisect_right(offsets, start_at + budget_bytes, low, stop) - 1
        if stop <= low:
            if reading.count:
                reading.next_from_seq = segment.first + low - 1
                return 0
            stop = low + 1
        spent = True
    else:
        spent = False
    upto = _add(segment, [(low, stop - 1)], query, reading)
    if upto < stop:
        stop, spent = upto, True
    reading.count += stop - low
    reading.next_from_seq = segment.first + stop - 1
    return 0 if spent else budget_bytes - (offsets[stop] - start_at)


def _take_filtered(
    segment: Segment,
    low: int,
    high: int,
    query: Query,
    nodes: frozenset[str] | None,
    reading: Reading,
    budget_bytes: int,
) -> int:
    """Do what `_take` does if records may be skipped: a stretch at a time, so that a small read looks at little."""
    columns = segment.columns
    match, searches = query.match, query.match is not None and query.match.op == "Where"
    while low < high and budget_bytes > 0 and reading.count < query.limit:
        stop = min(high, low + max(2 * (query.limit - reading.count), STRETCH))
        if searches:
            stop = search.stretch(columns, low, high)
        keep = np.ones(stop - low, np.bool_)  # live and passing the filters
        if segment.marks is not None:
            keep &= np.frombuffer(segment.marks, np.uint8)[low:stop] == 0
        if nodes:
            keep[columns.from_nodes(nodes, low, stop) - low] = False
        if match is not None and not searches:
            hit = np.zeros(stop - low, np.bool_)
            hit[columns.matching(match, low, stop) - low] = True
            keep &= hit
        kept = np.flatnonzero(keep) + low
        if match is not None and searches:
            kept, stop, work_ns = search.matching(segment, match, kept, stop)
            reading.searched_ns += work_ns
        budget_bytes = _take_some(segment, kept, stop, query, reading, budget_bytes)
        low = reading.next_from_seq + 1 - segment.first
        if reading.searched_ns > search.SEARCH_NS:
            return 0
    return budget_bytes


def _take_some(
    segment: Segment, kept: npt.NDArray[np.intp], high: int, query: Query, reading: Reading, budget_bytes: int
) -> int:
    """Add the kept positions of a range in as few slices as possible."""
    want = query.limit - reading.count
    chosen = kept[:want]
    offsets = np.frombuffer(segment.columns.offsets, np.uint32)
    used_bytes = np.cumsum(offsets[chosen + 1].astype(np.int64) - offsets[chosen])
    fits = int(np.searchsorted(used_bytes, budget_bytes, "right"))
    if not fits and not reading.count:
        fits = 1  # an answer has at least one record
    left = budget_bytes - (int(used_bytes[fits - 1]) if fits and len(chosen) else 0)
    if fits < len(chosen):
        # All records before the one that did not fit are examined, unless the budget is spent.
        stop_at = int(chosen[fits]) - 1 if left > 0 else int(chosen[fits - 1])
        left = 0
    elif len(chosen) == want or left <= 0:
        stop_at = int(chosen[-1])
    else:
        stop_at = high - 1
    for pieces in _groups(segment, runs(chosen[:fits])):
        if not _add_group(segment, pieces, query, reading):
            return 0
    reading.next_from_seq = segment.first + stop_at
    return left


def _groups(segment: Segment, pieces: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield groups of contiguous runs, both ends inclusive, that are so close together that one read gets all."""
    offsets = segment.columns.offsets
    group: list[tuple[int, int]] = []
    begin = end = 0
    for piece in pieces:
        first, last = piece
        start, stop = offsets[first], offsets[last + 1]
        if group and (start - end > NEAR_BYTES or stop - begin > GROUP_BYTES):
            yield group
            group = []
        if not group:
            begin = start
        group.append(piece)
        end = stop
    if group:
        yield group


def _add_group(segment: Segment, pieces: list[tuple[int, int]], query: Query, reading: Reading) -> bool:
    """Add the records of a group and count them. Return False if the answer ends before the group.

    If only records between them are damaged, read them one run at a time.
    """
    try:
        upto = _add(segment, pieces, query, reading)
    except Damaged as damage:
        if len(pieces) == 1 or any(damage.concerns(np.arange(first, last + 1)) for first, last in pieces):
            raise
        return all(_add_group(segment, [piece], query, reading) for piece in pieces)
    if upto <= pieces[-1][1]:
        reading.next_from_seq = segment.first + pieces[0][0] - 1
        return False
    reading.count += sum(last + 1 - first for first, last in pieces)
    return True


def _add(segment: Segment, pieces: list[tuple[int, int]], query: Query, reading: Reading) -> int:
    """Add the records of a group. Return the position after the last one: before its end if the answer ends there.

    Once records are missing, nothing is added, and the group only counts, to find out what else is needed.
    """
    low, high = pieces[0][0], pieces[-1][1] + 1
    missing = reading.missing
    offsets = segment.columns.offsets
    lends = query.lend and len(pieces) == 1 and offsets[high] - offsets[low] >= LENT_BYTES
    try:
        whole = segment.lend(low, high) if lends else segment.read(low, high)
    except Cold as raised:
        if reading.moved:
            return low
        cold: Cold = raised
        held = None if reading.count else _held(segment, pieces, reading)
        if held is None:  # note that the data of [low, high) is needed
            if missing is None:
                missing = reading.missing = Needs()
                if not reading.count:
                    cold = Cold([segment.need(low, high, at_least_bytes=AHEAD_BYTES)])
            missing.add(cold)
            return low if missing.more else high
        whole, high = held
        if len(pieces) == 1:
            pieces = [(low, high - 1)]
    if missing is not None:
        return high
    projection, base = query.projection, offsets[low]
    for first, last in pieces:
        blob = whole if len(pieces) == 1 else bytes(whole[offsets[first] - base : offsets[last + 1] - base])
        if projection is not STORED_FORM and not projection.is_stored_form:
            columns, start = segment.columns, offsets[first]
            blob = b"".join(
                render_without(blob[offsets[at] - start : offsets[at + 1] - start], columns, at, projection)
                for at in range(first, last + 1)
            )
        reading.parts.append(blob)
        if reading.spans is not None:
            reading.spans.append((segment, first, last + 1))
    return high


def _held(segment: Segment, pieces: list[tuple[int, int]], reading: Reading) -> tuple[Rendered, int] | None:
    """Return the first records of an answer out of what was fetched for a try that may have begun earlier."""
    low, high = pieces[0][0], pieces[-1][1] + 1
    held = segment.read_held(low, high)
    if held is None:
        return None
    moved = reading.at_front and held.first != low
    if held.upto < high and (len(pieces) > 1 or not moved):
        return None
    reading.moved = moved
    return held.data, held.upto
