"""Bulk reads: a range of a topic in slices of a few hundred kilobytes, by the same function as all reads.

Only a cursor is held between two slices, so a slow reader costs no memory and the topic may change in between: a
tombstone reports records that are lost before their slice is read, like in a series of `diff` requests.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from topics.engine.read.read import Query, Reading, Tombstone
from topics.engine.state.topic import Topic
from topics.storage.segments.record_run import Slice
from topics.storage.segments.segment import Rendered, Segment

SLICE_BYTES = 384 << 10
NO_LIMIT = 1 << 62
NEAR = 64  # seqs that may be skipped between two parts of one run

Read = Callable[[Query], tuple[Topic, Reading]]


class ScanStep(Struct, eq=False):
    """One slice. The tombstone, if there is one, lies before the records."""

    topic: Topic
    tombstone: Tombstone | None
    slices: list[Slice]
    next_from_seq: int
    done: bool  # whether the range is read to its end


class Scan:
    """A cursor over (from_seq, upto_seq] of a topic, or up to the head at the first step."""

    def __init__(self, query: Query, *, upto_seq: int | None, slice_bytes: int = SLICE_BYTES) -> None:
        query.limit, query.max_bytes, query.spans = NO_LIMIT, slice_bytes, True
        query.upto = upto_seq
        self.query = query
        self._upto_seq = upto_seq
        self._begun = False

    def step(self, read: Read) -> ScanStep:
        """Return the next slice. If the read raises, `Cold` above all, nothing has changed: call again."""
        query = self.query
        topic, reading = read(query)
        gap = reading.tombstone
        if not self._begun or (gap is not None and gap.reason == "recreated"):  # a new epoch has an end of its own
            query.upto = topic.head if self._upto_seq is None else min(topic.head, self._upto_seq)
            self._begun = True
        assert query.upto is not None
        query.epoch, query.from_ts, query.from_seq = topic.epoch, None, reading.next_from_seq
        return ScanStep(topic, gap, slices_of(reading), reading.next_from_seq, reading.next_from_seq >= query.upto)


def slices_of(reading: Reading) -> list[Slice]:
    """Return what was read with its columns. Parts that are close together in one segment become one slice."""
    assert reading.spans is not None, "the query asked for spans"
    runs: list[tuple[Segment, list[tuple[int, int]], list[Rendered]]] = []
    for (segment, low, high), part in zip(reading.spans, reading.parts, strict=True):
        if not runs or segment is not runs[-1][0] or low - runs[-1][1][-1][1] > NEAR:
            runs.append((segment, [], []))
        _, spans, parts = runs[-1]
        if spans and spans[-1][1] == low:
            spans[-1] = (spans[-1][0], high)
        else:
            spans.append((low, high))
        parts.append(part)
    return [Slice.of(segment.columns, spans, parts) for segment, spans, parts in runs]
