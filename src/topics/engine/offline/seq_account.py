"""Account for every seq of a topic, and compare the segments with the counters of the topic."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from topics.engine import retention
from topics.engine.state.topic import Topic
from topics.storage.segments.columns import runs
from topics.storage.segments.marks import LOST

Span = tuple[int, int]  # seqs, both ends inclusive


class SeqAccount(Struct, kw_only=True):
    """Every seq from 1 to the head is in one of `live`, `deleted` and `lost`.

    `skipped` seqs after the head are not in the files; a start does not assign them.
    """

    topic: str
    topic_id: int
    durability: str
    head_seq: int
    earliest_seq: int
    live: int
    bytes: int
    deleted: int
    lost: dict[str, int]  # by reason
    skipped: int = 0


class Covered(Struct):
    """The seqs from `earliest` on, as the segments have them."""

    live: list[Span] = []
    lost: list[Span] = []  # within a segment
    missing: list[Span] = []  # in no segment
    live_records: int = 0
    live_bytes: int = 0
    deleted_records: int = 0
    lost_records: int = 0


def account(topic: Topic) -> tuple[SeqAccount, list[str]]:
    """Return the account and its contradictions. Read the columns of every segment."""
    covered = look_at_segments(topic)
    losses = topic.losses
    lost = losses.by_reason()
    # A damaged flag byte makes its record unreadable, but no counter has it as lost.
    silent = covered.lost_records - sum(losses.within(*span)[0] for span in covered.lost)
    if silent:
        lost["corrupt"] = lost.get("corrupt", 0) + silent
    deleted_in_front = topic.earliest - 1 - losses.within(1, topic.earliest - 1)[0]
    found = SeqAccount(
        topic=topic.name,
        topic_id=topic.topic_id,
        durability=topic.config.durability,
        head_seq=topic.head,
        earliest_seq=topic.earliest,
        live=covered.live_records,
        bytes=topic.bytes,
        deleted=covered.deleted_records + deleted_in_front,
        lost=lost,
    )
    wrong = [*_wrong_ranges(topic, covered), *_wrong_marks(topic, covered)]
    return found, [*wrong, *_wrong_sums(topic, found, covered, silent)]


def look_at_segments(topic: Topic) -> Covered:
    covered = Covered()
    at = topic.earliest
    for segment in list(topic.segments):
        low = max(topic.earliest - segment.first, 0)
        if low >= segment.count or not retention.ready(topic, segment):
            continue
        if segment.first > at:
            covered.missing.append((at, segment.first - 1))
        at = segment.end
        covered.live_bytes += segment.live_within(low, segment.count)[1]
        if segment.marks is None:  # all are live
            covered.live_records += segment.count - low
            covered.live.append((segment.first + low, segment.end - 1))
            continue
        marks = np.frombuffer(segment.marks, np.uint8)[low:]
        live, deleted, lost = np.bincount(marks, minlength=3)[:3].tolist()
        covered.live_records += live
        covered.deleted_records += deleted
        covered.lost_records += lost
        covered.live += _spans(segment.first + low, marks == 0)
        covered.lost += _spans(segment.first + low, marks == LOST)
    if at <= topic.head:
        covered.missing.append((at, topic.head))
    return covered


def _wrong_ranges(topic: Topic, covered: Covered) -> list[str]:
    wrong = []
    for low, high in covered.missing:
        if silent := high - low + 1 - topic.losses.within(low, high)[0]:
            wrong.append(f"{silent} of seqs {low} to {high} are in no segment and not counted as lost")
    for low, high in covered.live:
        if topic.losses.within(low, high)[0]:
            wrong.append(f"seqs {low} to {high} are live, and some of them are counted as lost")
    lost = topic.losses.runs
    if any(before[1] >= after[0] for before, after in pairwise(lost)):
        wrong.append("ranges of lost seqs overlap")
    if any(not 0 < first <= last <= topic.head for first, last, _ in lost):
        wrong.append("a range of lost seqs reaches past the head")
    return wrong


def _wrong_marks(topic: Topic, covered: Covered) -> list[str]:
    floor, earliest, head = topic.evict_floor, topic.earliest, topic.head
    if not 1 <= floor <= earliest <= head + 1:
        return [f"watermarks out of order: floor {floor}, earliest {earliest}, head {head}"]
    wrong = []
    if any(floor <= last < earliest for _, last, _ in topic.losses.runs):
        wrong.append(f"something below seq {earliest} was lost, but the floor {floor} does not report it")
    first_live = covered.live[0][0] if covered.live else head + 1
    if first_live != earliest and not covered.lost:
        wrong.append(f"the first live seq is {first_live}, and {earliest} is said to be")
    return wrong


def _wrong_sums(topic: Topic, found: SeqAccount, covered: Covered, silent: int) -> list[str]:
    wrong = []
    if found.live + silent != topic.count:
        wrong.append(f"{topic.count} records are counted as live, and {found.live} are")
    if not silent and covered.live_bytes != topic.bytes:
        wrong.append(f"{topic.bytes} bytes are counted as live, and {covered.live_bytes} are")
    total = found.live + found.deleted + sum(found.lost.values())
    if total != topic.head or found.deleted < 0:
        wrong.append(f"live, deleted and lost seqs come to {total}, and the head is {topic.head}")
    return wrong


def _spans(first: int, hit: npt.NDArray[np.bool_]) -> list[Span]:
    return [(first + low, first + high) for low, high in runs(np.flatnonzero(hit))]
