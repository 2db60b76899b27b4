"""Reads that lose what is damaged, and go on with the rest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from topics.engine import retention
from topics.engine.state.topic import Topic
from topics.engine.steps import Steps, each_loaded
from topics.storage.segments.cold import waiting
from topics.storage.segments.segment import Damaged, Segment

IDLE_ROUNDS = 8  # see `read`

T = TypeVar("T")


def read(topic: Topic, look: Callable[[], T]) -> T:
    """Return what `look` finds. Lose what is damaged, and look again.

    A round loses nothing only if the records were deleted between the discovery of the damage and its report. After
    `IDLE_ROUNDS` of these in a row `look` keeps reading bytes that no live record needs: raise `Corrupt`.
    """
    idle = 0
    # Bound: all rounds but `IDLE_ROUNDS` in a row lose live records or a segment.
    while True:
        try:
            return look()
        except Damaged as damage:
            if idle == IDLE_ROUNDS:
                raise damage.cause from None
            idle = 0 if retention.lose_range(topic, damage) else idle + 1


def present(topic: Topic, look: Callable[[], T]) -> T | None:
    """Return what `look` finds, waiting for the disk; None if some of it turned out to be lost."""
    try:
        return waiting(look)
    except Damaged as damage:
        retention.lose_range(topic, damage)
        return None


def look_through(topic: Topic, low_seq: int, high_seq: int, look: Callable[[Segment, int, int], None]) -> Steps[None]:
    """Call `look` with each part of a segment in [low_seq, high_seq) that has live records, as one step each.

    A segment that leaves the topic in between is left out. Records that are damaged are lost.
    """

    def look_at(segment: Segment, low: int, high: int) -> None:
        low = max(low, topic.earliest - segment.first)  # records below `earliest` are not live, and have no mark
        if segment in topic.segments and low < high:
            try:
                look(segment, low, high)
            except Damaged as damage:
                retention.lose_range(topic, damage)

    yield from each_loaded(
        partial(look_at, segment, low, high) for segment, low, high in topic.walk(low_seq, high_seq) if segment.live
    )
