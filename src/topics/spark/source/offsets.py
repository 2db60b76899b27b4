"""How far a stream has come, and how far its next micro-batch goes. Pure: asks nobody, needs no Spark.

An offset is two maps, as JSON, with the names sorted because Spark compares offsets as text:

    {"from": {"orders": {"epoch": 7, "seq": 1}}, "to": {"orders": {"epoch": 7, "seq": 1001}}}

A seq is the next one to read, so `to` is exclusive. With several servers the maps of topics are one level deeper, below
the server's URL. `from` is where the batch begins. Spark keeps only the ends of batches: after a crash in the first one
it would ask again where to begin, and "latest" would be another place by then.

A topic that was deleted and made again has another epoch; one that was set back to an older backup has an end before
what was read. Both are met as `recreated`, never as a step backwards that nobody notices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from msgspec import structs

from topics.spark.source.plan import GRID, Span, TopicExtent

Key = tuple[str, str]  # server, topic


class StreamPosition(NamedTuple):
    epoch: int
    seq: int  # the next one to read


StreamPositions = dict[Key, StreamPosition]


class ForeignOffset(ValueError):
    """A checkpoint that was not made by this query."""


class OffsetCodec(NamedTuple):
    """How positions are named in JSON. A single server has no name: it may move without spoiling a checkpoint."""

    servers: tuple[str, ...]

    def dump(self, begin: StreamPositions, end: StreamPositions) -> dict[str, Any]:
        return {"from": self._map(begin), "to": self._map(end)}

    def load(self, offset: dict[str, Any]) -> tuple[StreamPositions, StreamPositions]:
        try:
            return self._positions(offset["from"]), self._positions(offset["to"])
        except (KeyError, TypeError, AttributeError):
            raise ForeignOffset(f"the checkpoint holds {str(offset)[:200]}, which is no offset of topics") from None

    def _map(self, positions: StreamPositions) -> dict[str, Any]:
        if len(self.servers) == 1:
            return {topic: at._asdict() for (_, topic), at in sorted(positions.items())}
        found: dict[str, Any] = {}
        for (server, topic), at in sorted(positions.items()):
            found.setdefault(server, {})[topic] = at._asdict()
        return found

    def _positions(self, found: dict[str, Any]) -> StreamPositions:
        is_flat = all("seq" in value and "epoch" in value for value in found.values())
        if found and is_flat != (len(self.servers) == 1):
            raise ForeignOffset(
                "the checkpoint was made with one server and url has several, or the other way round; "
                "start a query with a checkpoint of its own"
            )
        if len(self.servers) == 1:
            found = {self.servers[0]: found}
        return {
            (server, topic): StreamPosition(at["epoch"], at["seq"])
            for server, topics in found.items()
            for topic, at in topics.items()
        }


class TopicStep(NamedTuple):
    """What one topic has for the next batch: seqs from `begin`, of which those from `first` on are there."""

    begin: StreamPosition
    first: int
    end: int
    again: bool  # it is another life than the one read so far

    @property
    def room(self) -> int:
        return self.end - self.first

    def upto(self, grant: int) -> StreamPosition:
        stop = self.first + grant
        if 10 * GRID <= grant < self.room:
            stop = max(stop // GRID * GRID, self.first)  # whole cells make fewer and larger writes
        return StreamPosition(self.begin.epoch, stop)


def advance(
    at: StreamPositions, extents: Iterable[TopicExtent], *, first_seq: Callable[[TopicExtent], int], budget: int | None
) -> tuple[StreamPositions, StreamPositions]:
    """Where the next batch begins and ends. The two are equal when there is nothing new.

    `first_seq` says where a topic begins that was not there before. `budget` is a number of seqs; a lost range costs
    none of it, since nothing of it is read.
    """
    steps = {(extent.server, extent.topic): _step(at, extent, first_seq) for extent in extents}
    grants = share({key: step.room for key, step in steps.items()}, budget, turn=sum(seq for _, seq in at.values()))
    begin, end = dict(at), dict(at)
    for key, step in steps.items():
        stop = step.upto(grants[key])
        if stop.seq > step.begin.seq:
            end[key] = stop
            if not step.again:
                begin[key] = step.begin
    return begin, end


def _step(at: StreamPositions, extent: TopicExtent, first_seq: Callable[[TopicExtent], int]) -> TopicStep:
    known = at.get((extent.server, extent.topic))
    again = known is not None and is_recreated(known, StreamPosition(extent.epoch, extent.end))
    if known is None:
        begin = StreamPosition(extent.epoch, first_seq(extent))
    elif again:
        begin = StreamPosition(extent.epoch, 1)
    else:
        begin = known
    return TopicStep(begin, min(max(begin.seq, extent.earliest), extent.end), extent.end, again)


def at_home(at: StreamPositions, extent: TopicExtent) -> TopicExtent:
    """A topic that is gone, of the server that had it: a lake does not say which of several that was, its life does."""
    if extent.gone:
        for (server, topic), known in at.items():
            if topic == extent.topic and known.epoch == extent.epoch:
                return structs.replace(extent, server=server)
    return extent


def is_readable(at: StreamPositions, extent: TopicExtent) -> bool:
    """Whether the lake has something for a reader who stands here, of a topic that is gone from its server.

    All that he has read and perhaps more, or a later life. Otherwise it knows less than he does.
    """
    known = at.get((extent.server, extent.topic))
    return known is None or (known.epoch, known.seq) <= (extent.epoch, extent.end)


def is_recreated(begin: StreamPosition, end: StreamPosition) -> bool:
    return end.epoch != begin.epoch or end.seq < begin.seq


def share(rooms: dict[Key, int], budget: int | None, *, turn: int) -> dict[Key, int]:
    """The budget in fair parts: what a small topic does not need goes to the others.

    Where there is less than one for each, topics take turns, so that none waits for ever.
    """
    if budget is None or sum(rooms.values()) <= budget:
        return rooms
    waiting = sorted(key for key, room in rooms.items() if room > 0)
    grants = dict.fromkeys(rooms, 0)
    if budget < len(waiting):
        for index in range(budget):
            grants[waiting[(turn + index) % len(waiting)]] = 1
        return grants
    left = budget
    for index, key in enumerate(sorted(waiting, key=lambda key: rooms[key])):
        grants[key] = min(rooms[key], left // (len(waiting) - index))
        left -= grants[key]
    return grants


def spans(begin: StreamPositions, end: StreamPositions) -> list[Span]:
    """What lies between the two, in the order of names. Deterministic: a batch that is repeated reads the same."""
    found: list[Span] = []
    for (server, topic), stop in sorted(end.items()):
        start = begin.get((server, topic), StreamPosition(stop.epoch, 1))
        first = start.seq
        if is_recreated(start, stop):
            first = 1
            found.append(Span(server=server, topic=topic, epoch=stop.epoch, start=1, stop=stop.seq, lost="recreated"))
        if first < stop.seq:
            found.append(Span(server=server, topic=topic, epoch=stop.epoch, start=first, stop=stop.seq))
    return found
