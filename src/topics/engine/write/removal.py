"""The records that a delete takes: found before the delete is staged, used when it takes effect.

A delete takes effect on the event loop. At that moment it may not wait for a disk, and it may not look at millions of
tags. So the records are found beforehand, one segment per step; a segment whose columns are not in memory is looked at
by a pool thread. The result is one bit per record (`Chosen`). The delete turns these bits into marks, and looks at a
segment again that has changed in between.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from topics.engine import past_damage, retention
from topics.engine.state.topic import Topic
from topics.engine.steps import Steps
from topics.model.records import TagMatch
from topics.storage.segments.cold import Cold, Needs
from topics.storage.segments.columns import Columns
from topics.storage.segments.sealed import SealedSegment
from topics.storage.segments.segment import Damaged, Segment

Positions = npt.NDArray[np.intp]
Pick = Callable[[Columns], Positions]


class Chosen(Struct, eq=False):
    """The live records among positions [low, high) of a segment that a delete takes, and their bytes."""

    low: int
    high: int
    bits: npt.NDArray[np.uint8]
    count: int
    size_bytes: int
    segment_count: int  # of the segment when it was looked at
    segment_live: int
    asked: int | None  # how many positions were named; None for a delete by tag

    @property
    def taken(self) -> npt.NDArray[np.uint8]:
        """Return one byte for each position from `low` on: 1 if the delete takes the record there."""
        return np.unpackbits(self.bits, count=self.high - self.low)

    def fits(self, segment: Segment, low: int, high: int, asked: int | None = None) -> bool:
        """Return whether the segment has not changed, and the delete means the records at positions [low, high).

        Records are never revived, so count and live together show every change. A segment that grows between two steps
        is looked at in parts, and this may be the last one only. A delete by seq may take fewer of the named records
        than were looked at (`asked`), but never others.
        """
        now = segment.count, segment.live, low, high, asked
        return (self.segment_count, self.segment_live, self.low, self.high, self.asked) == now


class Removal(Struct, eq=False):
    """What a delete has found. Columns in `kept` stay in memory for as long as this exists.

    A delete with an empty removal may wait for the disk when it takes effect.
    """

    chosen: dict[int, Chosen] = {}  # by the first seq of the segment: a segment may be sealed in between
    kept: list[object] = []


def below(topic: Topic, before_seq: int) -> Removal:
    """Prepare a delete of all records below `before_seq`. Raises `Cold`.

    Only the segment that `before_seq` cuts is looked into.
    """
    segment = topic.segment_of(before_seq) if topic.earliest < before_seq <= topic.head else None
    if isinstance(segment, SealedSegment) and segment.first < before_seq and segment.live:
        try:
            segment.check_loaded()
        except Damaged as damage:
            retention.lose_segment(topic, segment, damage)
        return Removal({}, [segment.resident])
    return Removal()


def by_tag(topic: Topic, match: TagMatch, before_seq: int) -> Steps[Removal]:
    """Find the records below `before_seq` whose tag matches, in steps of one segment each.

    A step takes 1 ms for a segment of 65,536 records, up to 5 ms if each has another tag.
    """
    found = Removal()

    def look(segment: Segment, low: int, high: int) -> None:
        found.chosen[segment.first] = choose_by_tag(segment, match, low, high)

    yield from past_damage.look_through(topic, topic.earliest, before_seq, look)
    return found


def choose_by_tag(segment: Segment, match: TagMatch, low: int, high: int) -> Chosen:
    """Find the live records at positions [low, high) whose tag matches. Raises `Cold` and `Damaged`."""
    return _look(segment, ("tag", match.op, match.text), low, high, lambda columns: columns.matching(match, low, high))


def by_seq(topic: Topic, seqs: list[int]) -> Removal:
    """Find the live records among `seqs`, which ascend. Raises `Cold`. Bounded by the number of seqs."""
    if not seqs or seqs[0] >= topic.segments[-1].first:  # the open segment is in memory
        return Removal()
    found, needs = Removal(), Needs()
    at = bisect_left(seqs, topic.earliest)
    while at < len(seqs) and seqs[at] <= topic.head:
        segment = topic.segment_of(seqs[at])
        upto = bisect_left(seqs, segment.end, at)
        if isinstance(segment, SealedSegment) and segment.live and seqs[upto - 1] >= segment.first:
            try:
                _look_for_seqs(found, segment, seqs[at:upto])
            except Cold as cold:
                needs.add(cold)
            except Damaged as damage:
                retention.lose_segment(topic, segment, damage)
        at = max(upto, at + 1)
    needs.check()
    return found


def _look_for_seqs(found: Removal, segment: SealedSegment, seqs: list[int]) -> None:
    """Add seqs of one segment. Columns that are in memory are kept there, which costs less than a look."""
    loaded = segment.resident
    if loaded is not None:
        found.kept.append(loaded)
        return
    positions = np.array([seq - segment.first for seq in seqs if seq >= segment.first], np.intp)
    low, high = int(positions[0]), int(positions[-1]) + 1
    key = ("seqs", positions.tobytes())
    found.chosen[segment.first] = _look(segment, key, low, high, lambda columns: positions, asked=len(positions))


def _look(segment: Segment, key: Hashable, low: int, high: int, pick: Pick, *, asked: int | None = None) -> Chosen:
    """Choose the live ones among the positions that `pick` finds in [low, high)."""

    def choose(columns: Columns, _: bytearray | None) -> Chosen:
        # This may run on a pool thread while the event loop marks records: read `live` before the marks, so that a
        # change in between shows up in `fits`.
        count, live = segment.count, segment.live
        positions, marks = pick(columns), segment.marks
        if marks is not None:
            positions = positions[np.frombuffer(marks, np.uint8)[positions] == 0]
        taken = np.zeros(high - low, np.bool_)
        taken[positions - low] = True
        bits = np.packbits(taken)
        return Chosen(low, high, bits, len(positions), columns.size_of(positions), count, live, asked)

    return segment.look((key, low, high), choose)
