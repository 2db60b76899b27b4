"""`spark.read.format("topics")`: the driver plans partitions, executors read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from msgspec import structs
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from topics.engine.offline.directory import Excerpt
from topics.spark.options import BadOption, ReadOptions
from topics.spark.pyspark_api import INHERITED_PUSH_FILTERS
from topics.spark.source import plan
from topics.spark.source.catalog import Catalog, catalog_of
from topics.spark.source.plan import Span, TopicExtent
from topics.spark.source.read import read_span
from topics.spark.source.schema_layout import layout_of
from topics.spark.source.where import Narrowing, narrowing, of_filters

CARRIED_BYTES = 16 << 20  # most bytes that a partition carries of records that are in no segment file


class ReadPartition(InputPartition):
    """The spans that one task reads, each with an excerpt if it is read from a data directory."""

    def __init__(self, spans: list[tuple[Span, Excerpt | None]]) -> None:
        super().__init__(None)
        self.spans = spans


class PushFilters:
    """The method `pushFilters` of a reader, in a form that works whether or not Spark has filter pushdown enabled.

    Spark rejects a reader that overrides the method while `spark.sql.python.filterPushdown.enabled` is off, and a
    reader cannot find out the setting. Spark compares the function behind the method (`__func__`) with the inherited
    one; this class presents the inherited one.

    It is used only if the option `pushFilters` is true. Spark 4.3 reuses the plan of one query of a DataFrame for its
    later queries: after `df.where("seq < 10")` a `df.count()` would silently count nine records.
    """

    __func__ = staticmethod(INHERITED_PUSH_FILTERS)

    def __init__(self, reader: TopicsReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        return self._reader.push(filters)


class TopicsReader(DataSourceReader):
    """Plans and reads one batch query."""

    def __init__(self, options: ReadOptions, schema: StructType | None = None) -> None:
        if options.max_offsets is not None:
            raise BadOption("maxOffsetsPerTrigger: only streams have this option; a batch reads its whole range")
        if options.consumer is not None:
            raise BadOption("consumer: only streams have this option; a batch has no progress to show")
        self.options = options
        self.schema = schema
        layout = layout_of(options, schema)
        self.narrowing = layout.narrowing()
        if options.push_filters:
            if INHERITED_PUSH_FILTERS is None:
                raise BadOption("pushFilters: needs Spark 4.1 or newer; narrow the read with the options tag and node")
            self.pushFilters: Any = PushFilters(self)

    def push(self, filters: list[Any]) -> Iterable[Any]:
        """Remember the filters that narrow the read. Return all of them, so that Spark still evaluates each one."""
        layout = layout_of(self.options, self.schema)
        self.narrowing = narrowing(
            [*layout.implied(), *of_filters(filters)], kafka=layout.shape.kafka, typed=layout.typed
        )
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
        # Spark would turn an empty list into one partition of its own, which `read` does not accept.
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
        layout, options = layout_of(self.options, self.schema), with_tag(self.options, self.narrowing)
        for span, excerpt in partition.spans:
            yield from read_span(span, options, layout, excerpt)


def with_tag(options: ReadOptions, narrow: Narrowing) -> ReadOptions:
    """Return the options with the tag that the condition of a read implies, unless they have one."""
    return structs.replace(options, tag=options.tag or narrow.tag)


def _portable(part: list[tuple[Span, Excerpt | None]]) -> Iterator[list[tuple[Span, Excerpt | None]]]:
    """Split a partition so that each piece carries at most `CARRIED_BYTES` to its executor, or one excerpt."""
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
