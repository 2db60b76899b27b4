"""Read one span as record batches, on an executor. Each seq is delivered, reported as lost, deleted or filtered out.

Batch queries and streams both read through this module, from a server, from files, or from a lake.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeAlias

import pyarrow as pa

from topics.client import request
from topics.engine.offline import directory
from topics.engine.offline.directory import Excerpt
from topics.engine.read.read import Query
from topics.errors import Code, TopicsError
from topics.lake import Gap as ArchivedGap
from topics.lake import Lake
from topics.lake.heal import OTHER_LAKE, Healer, RecordFilter
from topics.spark.options import ReadOptions
from topics.spark.source.catalog import client_for, state_of
from topics.spark.source.layout import Layout
from topics.spark.source.plan import Span
from topics.spark.source.record_batches import Batches
from topics.storage.fs import RealFs
from topics.storage.segments.record_run import Run

PLAIN_LAYOUT = Layout()
HINTS = {
    OTHER_LAKE: "an archive reported to the server that a lake has them, but this lake does not: it is another lake, "
    "an older copy, or lacks its last versions; restore the right one; ",
}


class DataLoss(RuntimeError):
    """A range that a query asked for is lost."""

    def __init__(self, span: Span, gap_from: int, gap_to: int, reason: str) -> None:
        super().__init__(
            f"seqs {gap_from} to {gap_to} of topic {span.topic} in {span.server} are lost ({reason}); "
            f"{HINTS.get(reason, '')}"
            "with failOnDataLoss=false the query continues, and the lost range is a row of kind gap"
        )


class Incomplete(RuntimeError):
    """A read did not return the range that was requested, and no gap explains it."""


class LostRange(Protocol):
    """A lost range: a tombstone of the engine or of the client."""

    @property
    def gap_from(self) -> int: ...
    @property
    def gap_to(self) -> int: ...
    @property
    def reason(self) -> str: ...


Piece: TypeAlias = Run | pa.RecordBatch | LostRange | int  # an int is the seq after the last one examined


def read_span(
    span: Span, options: ReadOptions, layout: Layout = PLAIN_LAYOUT, excerpt: Excerpt | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a span, from files if there is an excerpt. Raise `DataLoss` if gaps are not allowed."""
    rows = Rows(span, layout, fails=options.fail_on_data_loss)
    if span.lost is not None:
        yield from rows.lose(span.start, span.stop - 1, span.lost)
        return
    for piece in _pieces(span, options, excerpt):
        if isinstance(piece, Run):
            yield rows.take(piece)
        elif isinstance(piece, pa.RecordBatch):
            yield rows.take_archived(piece)
        elif isinstance(piece, int):
            rows.at = max(rows.at, piece)
        else:
            yield from rows.lose(piece.gap_from, piece.gap_to, piece.reason)
    rows.check_complete()


def _pieces(span: Span, options: ReadOptions, excerpt: Excerpt | None) -> Iterator[Piece]:
    if excerpt is not None:
        return _from_files(span, options, excerpt)
    if options.lake is None:
        return _from_server(span, options)
    return (_from_lake if options.lake_only else _healed)(span, options, options.lake)


class Rows:
    """Builds the batches of one span, and checks that they cover it."""

    def __init__(self, span: Span, layout: Layout, *, fails: bool) -> None:
        self.at = span.start
        self._span = span
        self._fails = fails
        self._batches = Batches(layout)

    def take(self, run: Run) -> pa.RecordBatch:
        self._advance(run.first, run.last)
        return self._batches.records(run, self._span.server, self._span.topic)

    def take_archived(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        seqs = batch.column("seq")
        self._advance(seqs[0].as_py(), seqs[-1].as_py())
        return self._batches.archived(batch, self._span.server, self._span.topic)

    def _advance(self, first: int, last: int) -> None:
        """Move past the seqs of a piece. Raise `Incomplete` if they are not the next ones of the span."""
        span = self._span
        if not self.at <= first <= last < span.stop:
            raise Incomplete(
                f"reading topic {span.topic} in {span.server} returned seqs {first} to {last}, "
                f"where seqs from {self.at} to {span.stop - 1} were expected"
            )
        self.at = last + 1

    def lose(self, gap_from: int, gap_to: int, reason: str) -> Iterator[pa.RecordBatch]:
        """Yield the gap, clipped to the span. The reader of a neighbouring span reports the rest."""
        span = self._span
        gap_from, gap_to = max(gap_from, self.at), min(gap_to, span.stop - 1)
        if gap_from > gap_to:
            return
        if self._fails:
            raise DataLoss(span, gap_from, gap_to, reason)
        self.at = gap_to + 1
        yield self._batches.gap(span.server, span.topic, gap_from, gap_to, reason)

    def check_complete(self) -> None:
        if self.at < self._span.stop:
            raise Incomplete(
                f"reading topic {self._span.topic} in {self._span.server} ended at seq {self.at - 1}, "
                f"before the last requested seq {self._span.stop - 1}"
            )


DROPPED = "dropped"  # reason of a gap: the topic was deleted after the query was planned
UNARCHIVED = "unarchived"  # reason of a gap: lakeOnly, and the lake does not cover the seqs


def _from_server(span: Span, options: ReadOptions) -> Iterator[Run | LostRange | int]:
    """Yield runs and gaps, and last the seq after the last one examined."""
    at = span.start
    for piece in _scan(span, options):
        if isinstance(piece, request.Tombstone) and piece.reason in ("recreated", DROPPED):
            yield request.Tombstone(at, span.stop - 1, piece.reason)  # later pieces belong to another epoch
            yield span.stop
            return
        if isinstance(piece, Run):
            at = piece.last + 1
        yield piece


def _scan(span: Span, options: ReadOptions) -> Iterator[Run | request.Tombstone | int]:
    fields = {
        "upto_seq": span.stop - 1,
        "epoch": span.epoch,
        "node": list(options.nodes) or None,
        "filter": None if options.tag is None else options.tag.wire(),
    }
    with client_for(options.connection, span.server) as client:
        try:
            for piece in client.scan(span.topic, from_seq=span.start - 1, **fields):
                yield piece.next_from_seq + 1 if isinstance(piece, request.End) else piece
        except TopicsError as error:
            if error.code is not Code.TOPIC_NOT_FOUND:
                raise
            yield request.Tombstone(span.start, span.stop - 1, DROPPED)


def _from_files(span: Span, options: ReadOptions, excerpt: Excerpt) -> Iterator[Piece]:
    query = Query(from_seq=span.start - 1, epoch=span.epoch, nodes=frozenset(options.nodes) or None, match=options.tag)
    yield from directory.scan(RealFs(), excerpt, query, upto_seq=span.stop - 1)
    yield span.stop


def _healed(span: Span, options: ReadOptions, lake: str) -> Iterator[Piece]:
    """Yield the server's records, and the lake's where the server has none; see `topics.lake.heal`."""
    wanted = RecordFilter(tag=options.tag, nodes=_filtered_nodes(span, options))
    healer = Healer(Lake(lake), span.topic, span.epoch, wanted, trimmed_to=lambda: _trimmed_to(span, options))
    at = span.start
    for piece in _from_server(span, options):
        if isinstance(piece, int):
            # The server skips a trimmed range up to its first record, which may be after the end of the span.
            yield from _as_tombstones(healer.skipped(at, min(piece, span.stop) - 1))
            yield piece
            return
        if isinstance(piece, Run):
            yield from _as_tombstones(healer.skipped(at, piece.first - 1))
            yield piece
            at = piece.last + 1
        else:
            low, high = max(piece.gap_from, at), min(piece.gap_to, span.stop - 1)
            yield from _as_tombstones(healer.skipped(at, min(low, span.stop) - 1))
            yield from _as_tombstones(healer.lost(low, high, piece.reason))
            at = max(at, high + 1)


def _from_lake(span: Span, options: ReadOptions, lake: str) -> Iterator[Piece]:
    healer = Healer(Lake(lake), span.topic, span.epoch, RecordFilter(tag=options.tag, nodes=options.nodes))
    yield from _as_tombstones(healer.lost(span.start, span.stop - 1, UNARCHIVED))
    yield span.stop


def _as_tombstones(pieces: Iterator[pa.RecordBatch | ArchivedGap]) -> Iterator[Piece]:
    """Yield the pieces, with each archived gap converted to a tombstone."""
    for piece in pieces:
        if isinstance(piece, ArchivedGap):
            yield request.Tombstone(piece.first, piece.last, piece.reason)
        else:
            yield piece


def _filtered_nodes(span: Span, options: ReadOptions) -> tuple[str, ...]:
    """Return the nodes whose records the server would filter out of this topic."""
    if not options.nodes:
        return ()
    with client_for(options.connection, span.server) as client:
        state = state_of(client, span.topic)
    return options.nodes if state is None or state.config.dedupe_node else ()


def _trimmed_to(span: Span, options: ReadOptions) -> int:
    """Return the last trimmed seq that the server knows for this epoch of the topic."""
    with client_for(options.connection, span.server) as client:
        state = state_of(client, span.topic, epoch=span.epoch)
    return 0 if state is None else state.trimmed_seq or 0
