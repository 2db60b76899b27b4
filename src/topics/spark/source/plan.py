"""Which seqs of which topics a query reads, and how they are cut into partitions. Pure: asks nobody, needs no Spark.

Cuts lie on an absolute grid, at multiples of `GRID` seqs. That is what makes the keys of written ranges stable:
whatever the number of partitions or the rate, a chunk that is cut on the grid has the same bounds the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from msgspec import Struct, structs

from topics.spark.options import Offset, Offsets, ReadOptions

GRID = 1000
MAX_PARTITIONS = 10_000


class Place(Struct, frozen=True, kw_only=True):
    """A topic as it is now. `latest` is where "latest" is: one past the last seq that a reader of now may ask for."""

    server: str  # URL, or path of a directory
    topic: str
    epoch: int
    earliest: int
    head: int
    count: int = 0
    size_bytes: int = 0
    latest: int = 0
    gone: bool = False  # from the servers: all that is left of it is in the lake

    @property
    def end(self) -> int:
        return self.latest or self.head + 1

    @property
    def bytes_per_seq(self) -> float:
        """Bytes a seq costs to read; deleted ones cost nearly nothing, so it is the mean over all that are retained."""
        return self.size_bytes / max(self.head + 1 - self.earliest, 1)


class Span(Struct, frozen=True, kw_only=True):
    """Seqs [start, stop) of one life of one topic. `lost` says that they are known to be gone, and why."""

    server: str
    topic: str
    epoch: int
    start: int
    stop: int
    lost: str | None = None


class Impossible(ValueError):
    """A range that cannot be read because it was never written."""


SeqAt = Callable[[Place, int], int]  # the first seq of a topic at or after a time


def spans(options: ReadOptions, places: Iterable[Place], seq_at: SeqAt) -> list[Span]:
    """What a batch read covers, in the order of servers and topics. Raises `Impossible`."""
    found: list[Span] = []
    for place in places:
        found += _place_spans(options, place, seq_at)
    return found


def _place_spans(options: ReadOptions, place: Place, seq_at: SeqAt) -> list[Span]:
    start = first_seq(options, place, seq_at, otherwise="earliest")
    if options.ending_ts is not None:
        stop = seq_at(place, options.ending_ts)
    else:
        stop = at_offset(place, options.ending, otherwise="latest")
        if stop > place.head + 1:
            raise Impossible(f"endingOffsets: topic {place.topic} has no seq {stop - 1} yet; its head is {place.head}")
    if start > place.head + 1:
        # A cursor past the head comes from an earlier life of the topic; diff tells that in the same words.
        lost = Span(
            server=place.server, topic=place.topic, epoch=place.epoch, start=1, stop=place.head + 1, lost="recreated"
        )
        start = place.earliest
        return [lost, *_span(place, start, stop)]
    return _span(place, start, stop)


def _span(place: Place, start: int, stop: int) -> list[Span]:
    if start >= stop:
        return []
    return [Span(server=place.server, topic=place.topic, epoch=place.epoch, start=start, stop=stop)]


def first_seq(options: ReadOptions, place: Place, seq_at: SeqAt, *, otherwise: Offset) -> int:
    """Where reading a topic begins; `otherwise` where no option says it."""
    if options.starting_ts is not None:
        return seq_at(place, options.starting_ts)
    return at_offset(place, options.starting, otherwise=otherwise)


def at_offset(place: Place, offsets: Offsets | None, *, otherwise: Offset) -> int:
    """An offset as a seq."""
    offset = otherwise if offsets is None else offsets.of(place.server, place.topic)
    if offset == "earliest":
        return place.earliest
    if offset == "latest":
        return place.end
    return offset


def narrow(given: Iterable[Span], *, low: int | None, high: int | None) -> list[Span]:
    """The part of each span that lies within [low, high)."""
    found = []
    for span in given:
        start = span.start if low is None else max(span.start, low)
        stop = span.stop if high is None else min(span.stop, high)
        if start < stop:
            found.append(structs.replace(span, start=start, stop=stop))
    return found


def cut(
    given: Iterable[Span], bytes_per_seq: Callable[[Span], float], *, min_partitions: int, partition_bytes: int
) -> list[list[Span]]:
    """Partitions of about equal size, no more than `partition_bytes` where the grid allows it.

    A large span is cut on the grid; small ones share a partition, or ten thousand small topics would be as many tasks.
    """
    sized = [(span, max((span.stop - span.start) * bytes_per_seq(span), 1.0)) for span in given]
    total = sum(size for _, size in sized)
    share = max(min(total / min_partitions, partition_bytes), total / MAX_PARTITIONS, 1.0)
    partitions: list[list[Span]] = []
    room = 0.0
    for span, size in sized:
        pieces = cut_on_grid(span, max(round(size / share), 1))
        for piece in pieces:
            piece_bytes = size * (piece.stop - piece.start) / (span.stop - span.start)
            if not partitions or piece_bytes > room + share / 100:  # a hair too much still goes in
                partitions.append([])
                room = share
            partitions[-1].append(piece)
            room -= piece_bytes
    return partitions


def cut_on_grid(span: Span, parts: int) -> list[Span]:
    """The span in about so many parts of equal length, cut at multiples of `GRID` only."""
    length = span.stop - span.start
    wanted = [span.start + length * part // parts for part in range(1, parts)]
    inner = {-(-at // GRID) * GRID for at in wanted}
    edges = [span.start, *sorted(at for at in inner if span.start < at < span.stop), span.stop]
    return [structs.replace(span, start=low, stop=high) for low, high in pairwise(edges)]
