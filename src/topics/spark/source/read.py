"""Read one span as record batches, on an executor. Each seq is delivered, reported as lost, deleted or filtered out.

Batch queries and streams both read through this module, from a server, from files, or from a lake.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TypeAlias, TypeVar

import pyarrow as pa
from msgspec import structs

from topics.arrow import GAP
from topics.client import request
from topics.client.request import State
from topics.engine.offline import directory
from topics.engine.offline.directory import Excerpt
from topics.engine.read.read import Query, Tombstone
from topics.errors import Code, TopicsError
from topics.lake import Gap as ArchivedGap
from topics.lake import Lake
from topics.lake.heal import OTHER_LAKE, Healer
from topics.spark.options import ReadOptions
from topics.spark.source.catalog import client_for, state_of
from topics.spark.source.layout import Batches, Layout
from topics.spark.source.plan import Span
from topics.storage.fs import Fs
from topics.storage.segments.record_run import Run

PLAIN_LAYOUT = Layout()
Item = TypeVar("Item")
Result = TypeVar("Result")


class DataLoss(RuntimeError):
    """A range that a query asked for is lost."""

    def __init__(self, span: Span, gap_from: int, gap_to: int, reason: str) -> None:
        other_lake = (
            "an archive reported to the server that a lake has them, but this lake does not: it is another lake, "
            "an older copy, or lacks its last versions; restore the right one; "
        )
        super().__init__(
            f"seqs {gap_from} to {gap_to} of topic {span.topic} in {span.server} are lost ({reason}); "
            f"{other_lake if reason == OTHER_LAKE else ''}"
            "with failOnDataLoss=false the query continues, and the lost range is a row of kind gap"
        )


class Incomplete(RuntimeError):
    """A read did not return the range that was requested, and no gap explains it."""


LostRange: TypeAlias = request.Tombstone | Tombstone  # of a server, or of files
# An int is the seq after the last one examined.
Piece: TypeAlias = Run | pa.RecordBatch | LostRange | ArchivedGap | int


def read_span(
    span: Span, options: ReadOptions, layout: Layout = PLAIN_LAYOUT, excerpt: Excerpt | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a span, from files if there is an excerpt.

    Raise `DataLoss` if gaps are not allowed, and `Incomplete` if the rows do not cover the span.
    """
    batches, at = Batches(layout), span.start
    where = f"reading topic {span.topic} in {span.server}"
    for piece in _pieces(span, options, excerpt, batches.stored):
        if isinstance(piece, int):
            at = max(at, piece)
        elif isinstance(piece, Run | pa.RecordBatch):
            first, last = _ends(piece)
            if not at <= first <= last < span.stop:
                raise Incomplete(
                    f"{where} returned seqs {first} to {last}, where seqs from {at} to {span.stop - 1} were expected"
                )
            at = last + 1
            yield batches.records(piece, span)
        else:  # clipped to the span: the reader of a neighbouring span reports the rest
            low, high = _ends(piece)
            first, last = max(low, at), min(high, span.stop - 1)
            if first > last:
                continue
            if options.fail_on_data_loss:
                raise DataLoss(span, first, last, piece.reason)
            at = last + 1
            yield batches.gap(span, first, last, piece.reason)
    if at < span.stop:
        raise Incomplete(f"{where} ended at seq {at - 1}, before the last requested seq {span.stop - 1}")


def without_gaps(batches: Iterable[pa.RecordBatch], gaps: list[LostRange]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of records with plain columns. Add the gaps, which have a batch each, to `gaps`."""
    for batch in batches:
        if batch.num_rows == 1 and batch.column("kind")[0].as_py() == GAP:
            [row] = batch.to_pylist()
            gaps.append(request.Tombstone(row["seq"], row["gap_to"], row["reason"]))
        else:
            yield batch


def _ends(piece: Run | ArchivedGap | LostRange | pa.RecordBatch) -> tuple[int, int]:
    if isinstance(piece, Run | ArchivedGap):
        return piece.first, piece.last
    if isinstance(piece, LostRange):
        return piece.gap_from, piece.gap_to
    seqs = piece.column("seq")
    return seqs[0].as_py(), seqs[-1].as_py()


def _pieces(span: Span, options: ReadOptions, excerpt: Excerpt | None, typed: tuple[str, ...]) -> Iterator[Piece]:
    if span.lost is not None:
        yield request.Tombstone(span.start, span.stop - 1, span.lost)
        yield span.stop
    elif excerpt is not None:
        nodes = frozenset(options.nodes) or None
        query = Query(from_seq=span.start - 1, epoch=span.epoch, nodes=nodes, match=options.match)
        yield from directory.scan(Fs(), excerpt, query, upto_seq=span.stop - 1)
        yield span.stop
    elif options.lake is None:
        yield from _from_server(span, options)
    elif options.lake_only:
        yield from _healer(span, options, typed).lost(span.start, span.stop - 1, UNARCHIVED)
        yield span.stop
    else:
        yield from _healed(span, options, _healer(span, options, typed))


DROPPED = "dropped"  # reason of a gap: the topic was deleted after the query was planned
UNARCHIVED = "unarchived"  # reason of a gap: lakeOnly, and the lake does not cover the seqs


# The limit of the task that runs, which reads through functions that need not know it: see `limited`.
_TASK_BYTES_PER_SECOND: ContextVar[int | None] = ContextVar("bytes_per_second", default=None)


def limited(item: Item, *, task: Callable[[Item], Result], bytes_per_second: int) -> Result:
    """Run a task. All that it reads from a server together is limited."""
    before = _TASK_BYTES_PER_SECOND.set(bytes_per_second)
    try:
        return task(item)
    finally:
        _TASK_BYTES_PER_SECOND.reset(before)


def paced(pieces: Iterable[Item], bytes_per_second: int | None) -> Iterator[Item]:
    """Yield the pieces of a scan, and wait where it is faster than the limit."""
    began_s, size_bytes = time.monotonic(), 0
    for piece in pieces:
        if isinstance(piece, Run) and bytes_per_second is not None:
            size_bytes += len(piece.data)
            if (ahead_s := size_bytes / bytes_per_second - (time.monotonic() - began_s)) > 0:
                time.sleep(ahead_s)
        yield piece


def _from_server(span: Span, options: ReadOptions) -> Iterator[Run | LostRange | int]:
    """Yield runs and gaps, and last the seq after the last one examined."""
    at, lost, limit = span.start, DROPPED, _TASK_BYTES_PER_SECOND.get() or options.max_bytes_per_second
    fields = {
        "upto_seq": span.stop - 1,
        "epoch": span.epoch,
        "node": list(options.nodes) or None,
        "filter": None if options.match is None else options.match.wire(),
    }
    try:
        with client_for(options.connection) as client:
            for piece in paced(client.scan(span.topic, from_seq=span.start - 1, **fields), limit):
                if isinstance(piece, request.Tombstone) and piece.reason == "recreated":
                    lost = piece.reason  # later pieces belong to another epoch
                    break
                if isinstance(piece, Run):
                    at = piece.last + 1
                yield piece.next_from_seq + 1 if isinstance(piece, request.End) else piece
            else:
                return
    except TopicsError as error:
        if error.code is not Code.TOPIC_NOT_FOUND:
            raise
    yield request.Tombstone(at, span.stop - 1, lost)
    yield span.stop


def _healer(span: Span, options: ReadOptions, typed: tuple[str, ...]) -> Healer:
    assert options.lake is not None
    return Healer(
        lake=Lake(options.lake), topic=span.topic, epoch=span.epoch, match=options.match, nodes=options.nodes,
        planned=span.archived, typed=typed,
    )  # fmt: skip


def _healed(span: Span, options: ReadOptions, healer: Healer) -> Iterator[Piece]:
    """Yield the server's records, and the lake's where the server has none; see `topics.lake.heal`."""

    def state(epoch: int | None = None) -> State | None:
        with client_for(options.connection) as client:
            return state_of(client, span.topic, epoch=epoch)

    def trimmed_to() -> int:
        now = state(span.epoch)
        return 0 if now is None else now.trimmed_seq or 0

    healer.trimmed_to = trimmed_to
    # The server filters records of these nodes out, unless the topic does not want that.
    if healer.nodes and (now := state()) is not None and not now.config.dedupe_node:
        healer.nodes = ()
    at = span.start
    if at <= span.only_lake_to:
        last = min(span.only_lake_to, span.stop - 1)
        yield from healer.lost(at, last, OTHER_LAKE)
        at = last + 1
        yield at
        if at == span.stop:
            return
        span = structs.replace(span, start=at)
    for piece in _from_server(span, options):
        if isinstance(piece, int):
            # The server skips a trimmed range up to its first record, which may be after the end of the span.
            yield from healer.skipped(at, min(piece, span.stop) - 1)
            yield piece
            return
        if isinstance(piece, Run):
            yield from healer.skipped(at, piece.first - 1)
            yield piece
            at = piece.last + 1
        else:
            low, high = max(piece.gap_from, at), min(piece.gap_to, span.stop - 1)
            yield from healer.skipped(at, min(low, span.stop) - 1)
            yield from healer.lost(low, high, piece.reason)
            at = max(at, high + 1)
