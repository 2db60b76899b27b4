"""One span to record batches, on an executor. Every seq of it is delivered, told as lost, or was rightly skipped.

Batch and stream both read through here, from a server or from files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
from msgspec import Struct

from topics.client import request
from topics.engine import offline
from topics.engine.offline import Excerpt
from topics.engine.read import Query
from topics.errors import Code, TopicsError
from topics.model.records import TagMatch
from topics.spark.arrow import Batches
from topics.spark.catalog import client_for
from topics.spark.options import Connection, ReadOptions
from topics.spark.plan import Span
from topics.spark.schema import Shape, shape_of
from topics.storage.fs import RealFs
from topics.storage.run import Run


class DataLoss(RuntimeError):
    """A range that a query asked for is gone."""

    def __init__(self, span: Span, gap_from: int, gap_to: int, reason: str) -> None:
        super().__init__(
            f"seqs {gap_from} to {gap_to} of topic {span.topic} in {span.server} are lost ({reason}); "
            "with failOnDataLoss=false they come as a row of kind gap, and the query goes on"
        )


class Incomplete(RuntimeError):
    """A read ended before the end of its range though nothing says why."""


class Gap(Protocol):
    """A tombstone, the engine's or the client's."""

    @property
    def gap_from(self) -> int: ...
    @property
    def gap_to(self) -> int: ...
    @property
    def reason(self) -> str: ...


class How(Struct, frozen=True, kw_only=True):
    """How spans are read: what executors need of the options."""

    connection: Connection = Connection()
    nodes: tuple[str, ...] = ()
    tag: TagMatch | None = None
    fail_on_data_loss: bool = True
    shape: Shape = Shape()


def how_of(options: ReadOptions, *, tag: TagMatch | None = None) -> How:
    """`tag` is a condition that a filter of the query allows besides."""
    return How(
        connection=options.connection,
        nodes=options.nodes,
        tag=options.tag or tag,
        fail_on_data_loss=options.fail_on_data_loss,
        shape=shape_of(options),
    )


def read_span(span: Span, how: How, excerpt: Excerpt | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a span; from files where there is an excerpt. Raises `DataLoss`."""
    rows = Rows(span, how)
    if span.lost is not None:
        yield from rows.lose(span.start, span.stop - 1, span.lost)
        return
    pieces = _from_server(span, how) if excerpt is None else _from_files(span, how, excerpt)
    for piece in pieces:
        if isinstance(piece, Run):
            yield rows.take(piece)
        elif isinstance(piece, int):
            rows.at = max(rows.at, piece)
        elif piece.reason in ("recreated", DROPPED):
            yield from rows.lose(rows.at, span.stop - 1, piece.reason)  # what follows is of another life
            return
        else:
            yield from rows.lose(piece.gap_from, piece.gap_to, piece.reason)
    rows.check_complete()


class Rows:
    """Batches of one span, and an account of how far they have come."""

    def __init__(self, span: Span, how: How) -> None:
        self.at = span.start
        self._span = span
        self._fails = how.fail_on_data_loss
        self._batches = Batches(how.shape)

    def take(self, run: Run) -> pa.RecordBatch:
        assert self.at <= run.first <= run.last < self._span.stop, "a server answers with the range it was asked for"
        self.at = run.last + 1
        return self._batches.records(run, self._span.server, self._span.topic)

    def lose(self, gap_from: int, gap_to: int, reason: str) -> Iterator[pa.RecordBatch]:
        """The gap clipped to the span: what lies outside is told by whoever reads there."""
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
                f"reading topic {self._span.topic} in {self._span.server} ended at seq {self.at - 1} "
                f"where {self._span.stop - 1} was the last one asked for"
            )


DROPPED = "dropped"  # our word for a topic that was there when the query was planned and is not any more


def _from_server(span: Span, how: How) -> Iterator[Run | Gap | int]:
    """Runs, losses, and at last the seq after the last one looked at."""
    fields = {
        "upto_seq": span.stop - 1,
        "epoch": span.epoch,
        "node": list(how.nodes) or None,
        "filter": None if how.tag is None else how.tag.wire(),
    }
    with client_for(how.connection, span.server) as client:
        try:
            for piece in client.scan(span.topic, from_seq=span.start - 1, **fields):
                yield piece.next_from_seq + 1 if isinstance(piece, request.End) else piece
        except TopicsError as error:
            if error.code is not Code.TOPIC_NOT_FOUND:
                raise
            yield request.Tombstone(span.start, span.stop - 1, DROPPED)


def _from_files(span: Span, how: How, excerpt: Excerpt) -> Iterator[Run | Gap | int]:
    query = Query(from_seq=span.start - 1, epoch=span.epoch, nodes=frozenset(how.nodes) or None, match=how.tag)
    yield from offline.scan(RealFs(), excerpt, query, upto_seq=span.stop - 1)
    yield span.stop
