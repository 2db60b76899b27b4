"""Which records of sealed segments a delete takes: found when it is staged, used when it takes effect.

A delete takes effect on the event loop, some time after it was decided, where nothing may wait for a disk. So all that
it needs of columns that may not be in memory is worked out before: on pool threads, segment by segment, a bit a record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from functools import partial

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from topics.engine import retention
from topics.engine.state.topic import Topic
from topics.model.records import TagMatch
from topics.storage.segments.cold import Cold, Needs
from topics.storage.segments.columns import Columns
from topics.storage.segments.sealed import SealedSegment
from topics.storage.segments.segment import Damaged, Segment

Positions = npt.NDArray[np.intp]


class Chosen(Struct, eq=False):
    """The live ones among positions [low, high) of a segment that a delete takes, and their bytes."""

    low: int
    high: int
    bits: npt.NDArray[np.uint8]
    count: int
    size_bytes: int
    live: int  # of the segment when it was looked at: it is smaller once anything in it has changed
    asked: int | None  # how many positions were named, if they were

    @property
    def positions(self) -> Positions:
        return np.flatnonzero(np.unpackbits(self.bits)[: self.high - self.low]) + self.low

    def fits(self, segment: Segment, high: int, asked: int | None = None) -> bool:
        """Whether the segment is as it was, and a delete means these records: up to `high`, or so many of those named.

        A delete may take fewer of the named records than were looked at, but never others.
        """
        return segment.live == self.live and high == self.high and asked == self.asked


class Removal(Struct, eq=False):
    """What a delete has to know beforehand. Columns in `kept` stay in memory for as long as this exists."""

    chosen: dict[Segment, Chosen]
    kept: list[object]

    @property
    def count(self) -> int:
        return sum(chosen.count for chosen in self.chosen.values())


def nothing() -> Removal:
    """For a delete that may wait for the disk when it takes effect."""
    return Removal({}, [])


def below(topic: Topic, upto: int) -> Removal:
    """All records below seq `upto`: only the segment that this cuts has to be looked into. Raises `Cold`."""
    segment = topic.segments[topic.index_of(upto)] if topic.earliest < upto <= topic.head else None
    if isinstance(segment, SealedSegment) and segment.first < upto and segment.live:
        try:
            segment.columns, segment.marks  # noqa: B018 - raises if they are not in memory
        except Damaged as damage:
            retention.lose_segment(topic, segment, damage)
        return Removal({}, [segment.resident])
    return nothing()


def by_tag(topic: Topic, match: TagMatch, upto: int) -> Removal:
    """The records below seq `upto` whose tag matches. Raises `Cold`."""
    search = _Search(topic)
    for segment, low, high in list(topic.spans(topic.earliest, upto)):
        if isinstance(segment, SealedSegment) and segment.live:
            search.look(segment, ("tag", match.op, match.text), low, high, partial(_matching, match, low, high), None)
    return search.end()


def by_seq(topic: Topic, seqs: list[int]) -> Removal:
    """Those of `seqs`, ascending, that are live. Raises `Cold`."""
    search = _Search(topic)
    at = bisect_left(seqs, topic.earliest)
    while at < len(seqs) and seqs[at] <= topic.head:
        segment = topic.segments[topic.index_of(seqs[at])]
        upto = bisect_left(seqs, segment.end, at)
        if isinstance(segment, SealedSegment) and segment.live and seqs[upto - 1] >= segment.first:
            search.take(segment, seqs[at:upto])
        at = max(upto, at + 1)
    return search.end()


def _matching(match: TagMatch, low: int, high: int, columns: Columns) -> Positions:
    return columns.matching(match, low, high)


class _Search:
    """A removal in the making."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._found = nothing()
        self._needs = Needs()

    def end(self) -> Removal:
        self._needs.check()
        return self._found

    def take(self, segment: SealedSegment, seqs: list[int]) -> None:
        """Adds seqs of one segment. Columns that are in memory are kept there, which costs less than a look."""
        loaded = segment.resident
        if loaded is not None:
            self._found.kept.append(loaded)
            return
        positions = np.array([seq - segment.first for seq in seqs if seq >= segment.first], np.intp)
        low, high = int(positions[0]), int(positions[-1]) + 1
        self.look(segment, ("seqs", positions.tobytes()), low, high, lambda columns: positions, len(positions))

    def look(
        self,
        segment: SealedSegment,
        what: Hashable,
        low: int,
        high: int,
        pick: Callable[[Columns], Positions],
        asked: int | None,
    ) -> None:
        """Adds the live ones among the positions that `pick` finds in [low, high)."""

        def choose(columns: Columns, marks: bytearray | None) -> Chosen:
            live = segment.live  # before the marks: if these change meanwhile, `fits` tells
            positions = pick(columns)
            if marks is not None:
                positions = positions[np.frombuffer(marks, np.uint8)[positions] == 0]
            ends = np.frombuffer(columns.offsets, np.uint32)
            size_bytes = int((ends[positions + 1].astype(np.int64) - ends[positions]).sum())
            taken = np.zeros(high - low, np.bool_)
            taken[positions - low] = True
            return Chosen(low, high, np.packbits(taken), len(positions), size_bytes, live, asked)

        try:
            self._found.chosen[segment] = segment.look((what, low, high), choose)
        except Cold as cold:
            self._needs.add(cold)
        except Damaged as damage:
            retention.lose_segment(self._topic, segment, damage)
