"""The readers of the data source. The driver plans partitions, and executors read them.

`spark.read.format("topics")` plans one range. `spark.readStream.format("topics")` compares offsets with the heads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from msgspec import structs
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from topics.engine.offline.directory import Excerpt
from topics.spark.options import BadOption, EpochSeq, ReadOptions
from topics.spark.source import offsets, plan
from topics.spark.source.catalog import Catalog, ServerCatalog, TopicsWatch, catalog_of
from topics.spark.source.filters import Narrowing, narrowing, with_fields
from topics.spark.source.offsets import StreamPositions
from topics.spark.source.plan import Span, TopicExtent
from topics.spark.source.read import read_span
from topics.spark.source.schema_layout import layout_of

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
LIMITED_PARTITIONS = 4  # of a read with maxBytesPerSecond


class ReadPartition(InputPartition):
    """The spans that one task reads, each with an excerpt if it is read from a data directory.

    `bytes_per_second` is the task's share of the limit, if there is one.
    """

    def __init__(self, spans: list[tuple[Span, Excerpt | None]], bytes_per_second: int | None = None) -> None:
        super().__init__(None)
        self.spans, self.bytes_per_second = spans, bytes_per_second


def _cut(
    options: ReadOptions, spans: list[Span], bytes_per_seq: Callable[[Span], float]
) -> tuple[list[list[Span]], int | None]:
    """Return partitions, and the limit of each. With a limit there are few, because all may run at the same time."""
    limit = options.max_bytes_per_second
    least, most = (options.min_partitions, options.partition_bytes) if limit is None else (LIMITED_PARTITIONS, 1 << 62)
    parts = plan.cut(spans, bytes_per_seq, min_partitions=least, partition_bytes=most)
    return parts, None if limit is None else max(limit // max(len(parts), 1), 1)


def _rows(partition: InputPartition, options: ReadOptions, schema: StructType | None) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, ReadPartition)
    options = structs.replace(options, max_bytes_per_second=partition.bytes_per_second)
    layout = layout_of(options, schema)
    for span, excerpt in partition.spans:
        yield from read_span(span, options, layout, excerpt)


class TopicsReader(DataSourceReader):
    """Plans and reads one batch query."""

    def __init__(self, options: ReadOptions, schema: StructType | None = None) -> None:
        if options.max_offsets is not None:
            raise BadOption("maxOffsetsPerTrigger: only streams have this option; a batch reads its whole range")
        if options.consumer is not None:
            raise BadOption("consumer: only streams have this option; a batch has no progress to show")
        self.options = options
        self.schema = schema
        layout_of(options, schema)
        self.narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        with catalog_of(self.options) as catalog:
            extents = [extent for extent in catalog.extents() if self.narrowing.wants(extent.topic)]
            spans = self._spans(catalog, extents)
            of = {extent.topic: extent for extent in extents}
            parts, limit = _cut(self.options, spans, lambda span: of[span.topic].bytes_per_seq)
            carried = [[(plan.located(span, of[span.topic]), catalog.excerpt(span)) for span in part] for part in parts]
        # Spark would turn an empty list into one partition of its own, which `read` does not accept.
        return [ReadPartition(part, limit) for part in carried] or [ReadPartition([])]

    def _spans(self, catalog: Catalog, extents: list[TopicExtent]) -> list[Span]:
        found: list[Span] = []
        for extent in extents:
            given = plan.spans(self.options, [extent], catalog.seq_at)
            found += self.narrowing.spans(given, extent, catalog.seq_at)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        options = structs.replace(self.options, tag=self.options.tag or self.narrowing.tag)
        return _rows(partition, options, self.schema)


class FilteringReader(TopicsReader):
    """The reader with the option `pushFilters`. Spark refuses it while `PUSHDOWN` is off.

    It is not the default: Spark 4.3 reuses the plan of one query of a DataFrame for its later queries, so after
    `df.where("seq < 10")` a `df.count()` would silently count nine records.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Remember the filters that narrow the read. Return all of them, so that Spark still evaluates each one."""
        layout = layout_of(self.options, self.schema)
        self.narrowing = narrowing(filters, typed=layout.typed)
        if self.schema is not None and layout.typed:
            names = {field.name for field in layout.fields}
            fields = StructType([field for field in self.schema.fields if field.name in names])
            self.options = structs.replace(self.options, where=with_fields(self.options.where, filters, fields))
        return filters


# An idle query asks for the latest offset a hundred times a second, so the answer waits for new records. The wait is
# short because a query that is being stopped waits for the answer.
WAIT_MS = 500
PAUSE_S = 0.1  # after a change that brought nothing to read, such as a record in a topic of a similar name
GUESSED_BYTES_PER_SEQ = 256.0


class TopicDeleted(RuntimeError):
    """A topic of the stream was deleted, and how many unread records it held is unknown."""

    def __init__(self, server: str, topic: str, seq: int, *, lake: str | None) -> None:
        archived = "" if lake is None else f", and {lake} does not have all of that"
        super().__init__(
            f"topic {topic} in {server}, read up to seq {seq - 1}, was deleted{archived}: later records, "
            "if there were any, are lost\n"
            "next: if the delete was intended, start the query again with failOnDataLoss=false: it continues without "
            "the topic, and reports the loss as a row of kind gap if the topic is recreated; or remove the topic from "
            "the subscription. If a topic is archived before it is deleted, the option lake reads it to its end"
        )


class TopicsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the micro-batches of one stream. All state is a cache: a restarted query does not need it."""

    def __init__(self, options: ReadOptions, schema: StructType | None = None) -> None:
        for is_given, refusal in (
            (options.path, "path: a directory does not grow while it is read; read it as a batch"),
            (options.lake_only, "lakeOnly: only batch reads have this option; give a stream lake and url"),
            (options.push_filters, "pushFilters: only batch reads have this option; narrow a stream with tag and node"),
            (options.ending, "endingOffsets: only batch reads have this option; a stream has no end"),
            (options.ending_ts is not None, "endingTimestamp: only batch reads have this option; a stream has no end"),
        ):
            if is_given:
                raise BadOption(refusal)
        self.options = options
        self.schema = schema
        layout_of(options, schema)
        self._servers: ServerCatalog | None = None
        self._initial: dict[str, Any] | None = None
        self._target: list[TopicExtent] | None = None  # for AvailableNow: the topics when the query started
        self._seen: dict[str, TopicExtent] = {}
        self._published: StreamPositions = {}  # see `commit`
        self._watch: TopicsWatch | None = None  # while there is nothing to read
        self._ends: StreamPositions = {}  # the last known end of each topic on the server

    # --- offsets

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of the stream. Spark asks more than once, and the answer must be the same each time."""
        if self._initial is None:
            extents = self._refresh() if self._target is None else self._target
            at = {extent.topic: self._first_position(extent) for extent in extents}
            at = self._deleted_starts() | at
            self._initial = offsets.dump(at, at)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self.options.max_offsets is None else ReadMaxRows(self.options.max_offsets)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._refresh()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        _, at = offsets.load(start)
        budget = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        begin, end = self._next(at, budget) if self._target is None else self._advance(at, self._target, budget)
        # Spark takes an equal offset for "nothing new".
        return start if begin == end else offsets.dump(begin, end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the last known ends of the topics, for Spark's progress report."""
        ends = {key: offsets.StreamPosition(extent.epoch, extent.end) for key, extent in self._seen.items()}
        return offsets.dump(ends, ends) if ends else None

    # --- batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch. The end offset contains the start of its batch: see `offsets`."""
        if start == end:
            return []

        def bytes_per_seq(span: Span) -> float:
            extent = self._seen.get(span.topic)
            return GUESSED_BYTES_PER_SEQ if extent is None else extent.bytes_per_seq

        begin, stop = offsets.load(end)
        parts, limit = _cut(self.options, offsets.spans(self.options.connection.server, begin, stop), bytes_per_seq)
        return [ReadPartition([(self._located(span), None) for span in part], limit) for part in parts]

    def _located(self, span: Span) -> Span:
        extent = self._seen.get(span.topic)
        return span if extent is None else plan.located(span, extent)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self.options, self.schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Show the progress of the stream as the position of a named consumer. Its checkpoint stays what counts."""
        if (name := self.options.consumer) is None:
            return
        for topic, position in offsets.load(end)[1].items():
            if self._published.get(topic) != position:
                self._catalog.publish(topic, name, epoch=position.epoch, seq=position.seq - 1)
                self._published[topic] = position

    def stop(self) -> None:
        self._end_watch()
        if self._servers is not None:
            self._servers.__exit__(None, None, None)
            self._servers = None

    # --- inside

    @property
    def _catalog(self) -> ServerCatalog:
        if self._servers is None:
            self._servers = ServerCatalog(self.options)
        return self._servers

    def _advance(
        self, at: StreamPositions, extents: list[TopicExtent], budget: int | None
    ) -> tuple[StreamPositions, StreamPositions]:
        there: dict[str, TopicExtent] = {}
        for extent in extents:
            key = extent.topic
            there[key] = extent
            if extent.only_archived:
                end = self._ends.get(key)
                if key in at and at[key] > (extent.epoch, extent.end):
                    del there[key]  # the archive of the deleted topic does not reach the position of the stream
                elif end is not None and end.epoch == extent.epoch and end.seq > extent.end:
                    there[key] = structs.replace(extent, head=end.seq - 1)  # the last known head of the deleted topic
        self._check_deleted(at, set(there))
        for key, end in self._ends.items():  # a deleted topic with unread seqs, so that the gap is reported
            if key not in there and key in at and at[key].epoch == end.epoch and at[key].seq < end.seq:
                there[key] = TopicExtent(
                    server=self.options.connection.server, topic=key, epoch=end.epoch, earliest=end.seq,
                    head=end.seq - 1, only_archived=True,
                )  # fmt: skip
        return offsets.advance(at, there.values(), first_seq=self._first_seq_of_new, budget=budget)

    def _check_deleted(self, at: StreamPositions, there: set[str]) -> None:
        """Raise `TopicDeleted` if a subscribed topic with a position is gone and loss is not allowed."""
        options = self.options
        for topic, position in sorted(at.items()) if options.fail_on_data_loss else ():
            if topic not in there and options.wants(topic):  # a restarted query may subscribe to fewer topics
                raise TopicDeleted(options.connection.server, topic, position.seq, lake=options.lake)

    def _refresh(self) -> list[TopicExtent]:
        extents = self._catalog.present()
        self._seen = {extent.topic: extent for extent in extents}
        self._ends |= {
            key: offsets.StreamPosition(extent.epoch, extent.end)
            for key, extent in self._seen.items()
            if not extent.only_archived
        }
        return extents

    def _next(self, at: StreamPositions, budget: int | None) -> tuple[StreamPositions, StreamPositions]:
        """Return where the next batch begins and ends. If there is nothing to read, wait without asking the servers."""
        was_idle = self._watch is not None
        if self._watch is not None and not self._watch.wait(WAIT_MS):
            return at, at
        self._end_watch()
        begin, end = self._advance(at, self._refresh(), budget)
        if begin == end:
            if was_idle:
                time.sleep(PAUSE_S)
            self._watch = self._catalog.watch(self._seen)
            begin, end = self._advance(at, self._refresh(), budget)  # the watch reports only later changes
        if begin != end:
            self._end_watch()
        return begin, end

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _first_position(self, extent: TopicExtent) -> offsets.StreamPosition:
        """Return where the stream starts in a topic. A stale position stays, so that it is reported as recreated."""
        seq = plan.first_seq(self.options, extent, self._catalog.seq_at, otherwise="latest")
        if plan.is_stale(extent, starting := self.options.starting):
            assert starting is not None
            return offsets.StreamPosition(starting.epoch_of(extent.topic) or 0, seq)
        plan.check_written(extent, seq)
        return offsets.StreamPosition(extent.epoch, seq)

    def _deleted_starts(self) -> StreamPositions:
        """Return the starts that name an epoch. If their topic does not exist, its deletion must be reported."""
        given = {} if self.options.starting is None else self.options.starting.by_topic
        return {topic: offsets.StreamPosition(*at) for topic, at in given.items() if isinstance(at, EpochSeq)}

    def _first_seq_of_new(self, extent: TopicExtent) -> int:
        """Return the first seq of a topic created after the start: 1, unless startingOffsets names the topic."""
        starting = self.options.starting
        if starting is not None and extent.topic in starting.by_topic:
            return plan.first_seq(self.options, extent, self._catalog.seq_at, otherwise=1)
        return 1
