"""Plan which seqs of which topics a query reads, and cut them into partitions. Pure: no server, no Spark.

Cuts lie on an absolute grid, at multiples of `GRID` seqs. This keeps the idempotency keys of written ranges stable:
a chunk that is cut on the grid has the same bounds in every run, whatever the number of partitions or the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from msgspec import Struct, structs

from topics.lake import ArchivedEpoch
from topics.spark.options import Offset, Offsets, ReadOptions

GRID = 1000
MAX_PARTITIONS = 10_000


class TopicExtent(Struct, frozen=True, kw_only=True):
    """The seqs of one topic that can be read now, earliest to head."""

    server: str  # URL, or path of a directory
    topic: str
    epoch: int
    earliest: int
    head: int
    count: int = 0
    size_bytes: int = 0
    latest: int = 0  # the seq of the offset "latest"; 0 means head + 1
    only_archived: bool = False  # no server has the topic any more; the lake has its records
    archived: ArchivedEpoch | None = None  # with a lake
    live_from: int = 0  # the first seq of the server, if `earliest` is of the lake

    @property
    def end(self) -> int:
        return self.latest or self.head + 1

    @property
    def bytes_per_seq(self) -> float:
        """The mean size of a seq from earliest to head. Deleted seqs count as well: reading them is nearly free."""
        return self.size_bytes / max(self.head + 1 - self.earliest, 1)


class Span(Struct, frozen=True, kw_only=True):
    """Seqs [start, stop) of one epoch of a topic. `lost` is the reason if they are known to be lost.

    With a lake, `archived` is its part of the span: files, statistics and gaps, so that no task reads the log of the
    table. Seqs up to `only_lake_to` were trimmed, so the server is not asked for them.
    """

    server: str
    topic: str
    epoch: int
    start: int
    stop: int
    lost: str | None = None
    archived: ArchivedEpoch | None = None
    only_lake_to: int = 0


class Impossible(ValueError):
    """The requested range cannot be read because it was never written."""


SeqAt = Callable[[TopicExtent, int], int]  # the first seq of a topic at or after a time


def spans(options: ReadOptions, extents: Iterable[TopicExtent], seq_at: SeqAt) -> list[Span]:
    """Return the spans of a batch read, in the order of `extents`. Raise `Impossible` if one was never written."""
    found: list[Span] = []
    for extent in extents:
        topic = extent.topic
        start = first_seq(options, extent, seq_at, otherwise="earliest")
        if options.ending_ts is not None:
            stop = seq_at(extent, options.ending_ts)
        else:
            stop = at_offset(extent, options.ending, otherwise="latest")
            if is_stale(extent, options.ending):
                raise Impossible(f"endingOffsets: topic {topic} was created again; its epoch is {extent.epoch}")
            if stop > extent.head + 1:
                raise Impossible(f"endingOffsets: topic {topic} has no seq {stop - 1} yet; its head is {extent.head}")
        span = Span(server=extent.server, topic=topic, epoch=extent.epoch, start=start, stop=stop)
        if is_stale(extent, options.starting):
            found.append(structs.replace(span, start=1, stop=extent.head + 1, lost="recreated"))
            span = structs.replace(span, start=extent.earliest)
        else:
            check_written(extent, start)
        if span.start < span.stop:
            found.append(span)
    return found


def is_stale(extent: TopicExtent, offsets: Offsets | None) -> bool:
    """Return whether the offset of the topic belongs to an earlier epoch."""
    epoch = None if offsets is None else offsets.epoch_of(extent.topic)
    return epoch is not None and epoch != extent.epoch


def check_written(extent: TopicExtent, start: int) -> None:
    """Raise `Impossible` if a read would start after the next seq of the topic.

    An offset without an epoch may be stale or wrong. Neither a gap nor records of another range would be the answer.
    """
    if start > extent.head + 1:
        raise Impossible(
            f"startingOffsets: topic {extent.topic} has no seq {start - 1} yet; its head is {extent.head}. If the "
            f'offset is of an earlier epoch, name it: {{"{extent.topic}": {{"epoch": …, "seq": {start}}}}}; '
            f"the present epoch is {extent.epoch}"
        )


def first_seq(options: ReadOptions, extent: TopicExtent, seq_at: SeqAt, *, otherwise: Offset) -> int:
    """Return the first seq to read of a topic; `otherwise` applies if no option sets it."""
    if options.starting_ts is not None:
        return seq_at(extent, options.starting_ts)
    return at_offset(extent, options.starting, otherwise=otherwise)


def at_offset(extent: TopicExtent, offsets: Offsets | None, *, otherwise: Offset) -> int:
    """Return the seq of the offset that applies to the topic."""
    offset = otherwise if offsets is None else offsets.of(extent.topic)
    if offset == "earliest":
        return extent.earliest
    if offset == "latest":
        return extent.end
    return offset


def narrow(given: Iterable[Span], *, low: int | None, high: int | None) -> list[Span]:
    """Return the part of each span within [low, high)."""
    found = []
    for span in given:
        start = span.start if low is None else max(span.start, low)
        stop = span.stop if high is None else min(span.stop, high)
        if start < stop:
            found.append(structs.replace(span, start=start, stop=stop))
    return found


def located(span: Span, extent: TopicExtent) -> Span:
    """Return the span with what the lake has of it."""
    if (archived := extent.archived) is None or archived.epoch != span.epoch or span.lost is not None:
        return span
    only_lake_to = archived.archived_to if extent.only_archived else min(archived.trimmed_to, extent.live_from - 1)
    return structs.replace(span, archived=archived.within(span.start, span.stop - 1), only_lake_to=only_lake_to)


def cut(
    given: Iterable[Span], bytes_per_seq: Callable[[Span], float], *, min_partitions: int, partition_bytes: int
) -> list[list[Span]]:
    """Return partitions of about equal size, at most `partition_bytes` each as far as the grid allows.

    A large span is cut on the grid. Small spans share a partition: ten thousand small topics must not be as many tasks.
    """
    sized = [(span, max((span.stop - span.start) * bytes_per_seq(span), 1.0)) for span in given]
    total = sum(size for _, size in sized)
    share = max(min(total / min_partitions, partition_bytes), total / MAX_PARTITIONS, 1.0)
    partitions: list[list[Span]] = []
    room = 0.0
    for span, size in sized:
        length, parts = span.stop - span.start, max(round(size / share), 1)
        wanted = {-(-(span.start + length * part // parts) // GRID) * GRID for part in range(1, parts)}
        edges = [span.start, *sorted(at for at in wanted if span.start < at < span.stop), span.stop]
        for low, high in pairwise(edges):
            piece_bytes = size * (high - low) / length
            if not partitions or piece_bytes > room + share / 100:  # tolerate 1 % above the share
                partitions.append([])
                room = share
            partitions[-1].append(structs.replace(span, start=low, stop=high))
            room -= piece_bytes
    return partitions
