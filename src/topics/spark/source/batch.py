"""`spark.read.format("topics")`: plans on the driver, reads on executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from topics.engine.offline.directory import Excerpt
from topics.spark.options import BadOption, ReadOptions
from topics.spark.source import plan
from topics.spark.source.catalog import Catalog, catalog_of
from topics.spark.source.filters import Narrowing, narrowing
from topics.spark.source.plan import Span, TopicExtent
from topics.spark.source.read import how_of, read_span

CARRIED_BYTES = 16 << 20  # that a partition takes along of what is in no file


class ReadPartition(InputPartition):
    """What one task reads."""

    def __init__(self, spans: list[tuple[Span, Excerpt | None]]) -> None:
        super().__init__(None)
        self.spans = spans


class PushFilters:
    """`pushFilters` of a reader, whether or not filter pushdown is switched on in Spark.

    Spark refuses a reader that overrides the method while `spark.sql.python.filterPushdown.enabled` is off, and cannot
    tell a reader which of the two it is. It looks at the function behind the method; this one shows the inherited one.

    It is used only where the option `pushFilters` asks for it. Spark 4.3 keeps what was planned for one query of a
    DataFrame for all its later ones: after `df.where("seq < 10")` a `df.count()` would count nine records, in silence.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: TopicsReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.push(filters)


class TopicsReader(DataSourceReader):
    """A batch read."""

    def __init__(self, options: ReadOptions) -> None:
        if options.max_offsets is not None:
            raise BadOption("maxOffsetsPerTrigger: for streams only; a batch reads its whole range")
        self.options = options
        self.narrowing = Narrowing()
        if options.push_filters:
            self.pushFilters: Any = PushFilters(self)

    def push(self, filters: list[Filter]) -> Iterable[Filter]:
        """Takes note of what narrows the read. All come back, so that Spark's own answer decides in every case."""
        self.narrowing = narrowing(filters, kafka=self.options.kafka_columns)
        return filters

    def partitions(self) -> list[InputPartition]:
        with catalog_of(self.options) as catalog:
            extents = [extent for extent in catalog.extents() if self.narrowing.wants(extent.topic)]
            spans = self._spans(catalog, extents)
            size_of = {(extent.server, extent.topic): extent.bytes_per_seq for extent in extents}
            parts = plan.cut(
                spans,
                lambda span: size_of[span.server, span.topic],
                min_partitions=self.options.min_partitions,
                partition_bytes=self.options.partition_bytes,
            )
            carried = [[(span, catalog.excerpt(span)) for span in part] for part in parts]
        # No partition at all would be taken for one without a range.
        return [ReadPartition(spans) for part in carried for spans in _portable(part)] or [ReadPartition([])]

    def _spans(self, catalog: Catalog, extents: list[TopicExtent]) -> list[Span]:
        narrow, found = self.narrowing, []
        for extent in extents:
            low, high = narrow.low_seq, narrow.high_seq
            if narrow.low_ms is not None:
                low = max(catalog.seq_at(extent, narrow.low_ms), low or 0)
            if narrow.high_ms is not None:
                by_time = catalog.seq_at(extent, narrow.high_ms)
                high = by_time if high is None else min(by_time, high)
            found += plan.narrow(plan.spans(self.options, [extent], catalog.seq_at), low=low, high=high)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadPartition)
        how = how_of(self.options, tag=self.narrowing.tag)
        for span, excerpt in partition.spans:
            yield from read_span(span, how, excerpt)


def _portable(part: list[tuple[Span, Excerpt | None]]) -> Iterator[list[tuple[Span, Excerpt | None]]]:
    """A partition in pieces that are not too heavy to send to an executor."""
    held: list[tuple[Span, Excerpt | None]] = []
    size_bytes = 0
    for span, excerpt in part:
        more = 0 if excerpt is None else excerpt.carried_bytes
        if held and size_bytes + more > CARRIED_BYTES:
            yield held
            held, size_bytes = [], 0
        held.append((span, excerpt))
        size_bytes += more
    if held:
        yield held
