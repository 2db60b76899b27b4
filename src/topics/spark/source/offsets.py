"""Offsets of a stream: how far it has read, and how far its next micro-batch goes. Pure: no server, no Spark.

An offset is two maps, as JSON, with the names sorted because Spark compares offsets as text:

    {"from": {"orders": {"epoch": 7, "seq": 1}}, "to": {"orders": {"epoch": 7, "seq": 1001}}}

A seq is the next one to read, so `to` is exclusive. `from` is where the batch begins. It is stored because Spark keeps
only the ends of batches: after a crash in the first batch Spark asks for the start again, and "latest" would then be
another seq.

A topic that was deleted and recreated has another epoch. A topic restored from an older backup may end before the
position of the stream. Both are reported as a gap with the reason `recreated`; a stream never goes back silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from topics.spark.source.plan import GRID, Span, TopicExtent


class StreamPosition(NamedTuple):
    epoch: int
    seq: int  # the next one to read


StreamPositions = dict[str, StreamPosition]  # by topic


class ForeignOffset(ValueError):
    """The checkpoint was not written by a query with these options."""


def dump(begin: StreamPositions, end: StreamPositions) -> dict[str, Any]:
    """Return the offset as JSON. It does not name the server, whose URL may change."""
    return {
        name: {topic: at._asdict() for topic, at in sorted(of.items())} for name, of in (("from", begin), ("to", end))
    }


def load(offset: dict[str, Any]) -> tuple[StreamPositions, StreamPositions]:
    """Return the begin and the end of a batch."""
    try:
        begin, end = (
            {topic: StreamPosition(at["epoch"], at["seq"]) for topic, at in offset[name].items()}
            for name in ("from", "to")
        )
    except (KeyError, TypeError, AttributeError):
        raise ForeignOffset(f"the checkpoint holds {str(offset)[:200]}, which is not an offset of topics") from None
    return begin, end


def advance(
    at: StreamPositions, extents: Iterable[TopicExtent], *, first_seq: Callable[[TopicExtent], int], budget: int | None
) -> tuple[StreamPositions, StreamPositions]:
    """Return where the next batch begins and ends. The two are equal if there is nothing new.

    `first_seq` gives the start for a topic without a position. `budget` is a number of seqs. A lost range does not
    count, because it is not read.
    """
    starts: dict[str, tuple[StreamPosition, int, bool]] = {}
    rooms: dict[str, int] = {}
    for extent in extents:
        key = extent.topic
        start = at.get(key)
        recreated = start is not None and is_recreated(start, StreamPosition(extent.epoch, extent.end))
        if start is None or recreated:
            start = StreamPosition(extent.epoch, 1 if recreated else first_seq(extent))
        first = min(max(start.seq, extent.earliest), extent.end)  # the seqs before were lost
        starts[key], rooms[key] = (start, first, recreated), extent.end - first
    grants = share(rooms, budget, turn=sum(seq for _, seq in at.values()))
    begin, end = dict(at), dict(at)
    for key, (start, first, recreated) in starts.items():
        stop = first + grants[key]
        if 10 * GRID <= grants[key] < rooms[key]:
            stop = max(stop // GRID * GRID, first)  # whole grid cells give fewer and larger writes
        if stop > start.seq:
            end[key] = StreamPosition(start.epoch, stop)
            if not recreated:
                begin[key] = start
    return begin, end


def is_recreated(begin: StreamPosition, end: StreamPosition) -> bool:
    return end.epoch != begin.epoch or end.seq < begin.seq


def share(rooms: dict[str, int], budget: int | None, *, turn: int) -> dict[str, int]:
    """Divide the budget fairly: the part that a small topic does not need goes to the others.

    If the budget is less than one seq per topic, topics take turns, so that each of them advances.
    """
    if budget is None or sum(rooms.values()) <= budget:
        return rooms
    waiting = sorted(key for key, room in rooms.items() if room > 0)
    grants = dict.fromkeys(rooms, 0)
    if budget < len(waiting):
        for index in range(budget):
            grants[waiting[(turn + index) % len(waiting)]] = 1
        return grants
    remaining = budget
    for index, key in enumerate(sorted(waiting, key=lambda key: rooms[key])):
        grants[key] = min(rooms[key], remaining // (len(waiting) - index))
        remaining -= grants[key]
    return grants


def spans(server: str, begin: StreamPositions, end: StreamPositions) -> list[Span]:
    """Return the spans between two positions, sorted by name. Deterministic: a repeated batch reads the same spans."""
    found: list[Span] = []
    for topic, stop in sorted(end.items()):
        start = begin.get(topic, StreamPosition(stop.epoch, 1))
        first = start.seq
        if is_recreated(start, stop):
            first = 1
            found.append(Span(server=server, topic=topic, epoch=stop.epoch, start=1, stop=stop.seq, lost="recreated"))
        if first < stop.seq:
            found.append(Span(server=server, topic=topic, epoch=stop.epoch, start=first, stop=stop.seq))
    return found


# --- the lag of a stream


def lag(query: Any) -> dict[str, int] | None:
    """Return the unread seqs by topic, after the last batch of a streaming query.

    Spark fills `metrics` of a progress report only for sources written in Java. A Python source reports its latest
    offset, and the lag is the distance from there to the end of the last batch.

    `query` is a query, its `lastProgress`, or the progress of a listener's event. Return None if it has no report yet.
    """
    progress = query.lastProgress if hasattr(query, "lastProgress") else query
    if progress is None:
        return None
    found: dict[str, int] = {}
    for source in progress["sources"]:
        latest, end = _end_of(source["latestOffset"]), _end_of(source["endOffset"])
        for topic, (epoch, seq) in latest.items():
            read_epoch, read_seq = end.get(topic, (epoch, 1))
            found[topic] = max(seq - (read_seq if read_epoch == epoch else 1), 0)
    return found or None


def _end_of(offset: Any) -> StreamPositions:
    """Return the end of an offset; nothing if it is not one of topics."""
    try:
        return load(msgspec.json.decode(offset) if isinstance(offset, str | bytes) else offset)[1]
    except (msgspec.MsgspecError, ForeignOffset, TypeError):
        return {}
