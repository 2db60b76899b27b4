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


class TopicExtent(Struct, frozen=True, kw_only=True):
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


SeqAt = Callable[[TopicExtent, int], int]  # the first seq of a topic at or after a time


def spans(options: ReadOptions, extents: Iterable[TopicExtent], seq_at: SeqAt) -> list[Span]:
    """What a batch read covers, in the order of servers and topics. Raises `Impossible`."""
    found: list[Span] = []
    for extent in extents:
        found += _extent_spans(options, extent, seq_at)
    return found


def _extent_spans(options: ReadOptions, extent: TopicExtent, seq_at: SeqAt) -> list[Span]:
    start = first_seq(options, extent, seq_at, otherwise="earliest")
    if options.ending_ts is not None:
        stop = seq_at(extent, options.ending_ts)
    else:
        stop = at_offset(extent, options.ending, otherwise="latest")
        if stop > extent.head + 1:
            raise Impossible(
                f"endingOffsets: topic {extent.topic} has no seq {stop - 1} yet; its head is {extent.head}"
            )
    if start > extent.head + 1:
        # A cursor past the head comes from an earlier life of the topic; diff tells that in the same words.
        lost = Span(
            server=extent.server,
            topic=extent.topic,
            epoch=extent.epoch,
            start=1,
            stop=extent.head + 1,
            lost="recreated",
        )
        start = extent.earliest
        return [lost, *_span(extent, start, stop)]
    return _span(extent, start, stop)


def _span(extent: TopicExtent, start: int, stop: int) -> list[Span]:
    if start >= stop:
        return []
    return [Span(server=extent.server, topic=extent.topic, epoch=extent.epoch, start=start, stop=stop)]


def first_seq(options: ReadOptions, extent: TopicExtent, seq_at: SeqAt, *, otherwise: Offset) -> int:
    """Where reading a topic begins; `otherwise` where no option says it."""
    if options.starting_ts is not None:
        return seq_at(extent, options.starting_ts)
    return at_offset(extent, options.starting, otherwise=otherwise)


def at_offset(extent: TopicExtent, offsets: Offsets | None, *, otherwise: Offset) -> int:
    """An offset as a seq."""
    offset = otherwise if offsets is None else offsets.of(extent.server, extent.topic)
    if offset == "earliest":
        return extent.earliest
    if offset == "latest":
        return extent.end
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
