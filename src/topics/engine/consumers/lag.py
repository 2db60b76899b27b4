"""How far a consumer is behind: unread records, the age of the oldest one, and records that it can no longer read."""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct

from topics.engine.state.consumers import Consumer
from topics.engine.state.topic import Topic
from topics.model.consumer import MAX_GAPS, Gap, Lost
from topics.storage.segments.segment import Damaged, Segment


class Lag(Struct):
    """The unread records of a consumer. `age_ms` is the age of the oldest one; 0 if there is none."""

    records: int
    age_ms: int


def rough_age_ms(topic: Topic, now_ms: int) -> int:
    """Return the age of the oldest live record without the disk, 0 if there is none. See `lag_of`."""
    segment = next((segment for segment in topic.segments if segment.live), None)
    if segment is None:
        return 0
    return max(now_ms - _first_ts(segment, max(topic.earliest - segment.first, 0), exact=False), 0)


def lag_of(topic: Topic, consumer: Consumer, now_ms: int, *, exact: bool = True) -> Lag:
    """Return the lag. Raises `Cold` if columns or marks of the segment with the first unread record must be loaded.

    If not `exact`, read nothing: where columns are not in memory, the first unread record counts as the first of its
    segment, and its deleted records may count.
    """
    start = max(consumer.seq + 1, topic.earliest)
    if start > topic.head or not topic.count:
        return Lag(0, 0)
    records, oldest_ts = 0, 0
    for segment in topic.segments[topic.index_of(start) :]:
        if not segment.live:
            continue
        low = max(start - segment.first, 0)
        count = segment.live if not low else _live_after(segment, low, exact=exact)
        if count and not records:
            oldest_ts = _first_ts(segment, low, exact=exact)
        records += count
    return Lag(records, max(now_ms - oldest_ts, 0) if records else 0)


def _live_after(segment: Segment, low: int, *, exact: bool) -> int:
    marks = None  # the records before `low` are evicted, not marked
    if segment.live < segment.count and (exact or segment.in_memory):
        with suppress(Damaged):  # the next read records the loss
            marks = segment.marks
    return min(segment.live, segment.count - low) if marks is None else marks.count(0, low, segment.count)


def _first_ts(segment: Segment, low: int, *, exact: bool) -> int:
    """Return the commit time of the first live record from position `low` on."""
    if not exact and not segment.in_memory:
        return segment.min_ts
    try:
        return segment.columns.ts[segment.first_live(low)]
    except Damaged:
        return segment.min_ts


def lost_of(topic: Topic, consumer: Consumer) -> Lost | None:
    """Return the records behind the position that were lost; None if there are none."""
    lost = topic.losses.lost_in(consumer.seq + 1, topic.head)
    if not lost:
        return None
    return Lost(sum(last - first + 1 for first, last, _ in lost), [Gap(*run) for run in lost[:MAX_GAPS]])
