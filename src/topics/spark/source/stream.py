"""`spark.readStream.format("topics")`: the driver looks how far topics have come, executors read as in a batch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from msgspec import structs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from topics.spark.options import BadOption, Offset, ReadOptions
from topics.spark.source import offsets, plan
from topics.spark.source.batch import ReadPartition
from topics.spark.source.catalog import ServerCatalog
from topics.spark.source.offsets import Key, OffsetCodec, StreamPositions
from topics.spark.source.plan import Span, TopicExtent
from topics.spark.source.read import how_of, read_span

# Spark asks for the latest offset a hundred times a second when there is nothing to do, and a query that is being
# stopped waits for the answer. So the answer is held back for as long as nobody minds.
WAIT_MS = 500
WAIT_AMONG_MANY_MS = 100
GUESSED_BYTES_PER_SEQ = 256.0


class TopicGone(RuntimeError):
    """A topic that the stream was reading is not there any more, and nobody can tell what it still held."""

    def __init__(self, server: str, topic: str, seq: int, *, lake: str | None) -> None:
        archived = "" if lake is None else f", and {lake} does not have all of that"
        super().__init__(
            f"topic {topic} in {server}, read up to seq {seq - 1}, was deleted{archived}: what was written to it "
            "behind that, if anything, is lost\n"
            "next: if that was meant, start the query again with failOnDataLoss=false: it goes on without the topic, "
            "and tells of the loss by a row of kind gap once it has been made again; or leave the topic out of what "
            "is subscribed to. A topic that is archived before it is deleted is read on from its lake (option lake)"
        )


class TopicsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Keeps nothing that it would miss: what is cached here can be asked for again."""

    def __init__(self, options: ReadOptions) -> None:
        _check(options)
        self.options = options
        self._names = OffsetCodec(options.connection.servers)
        self._servers: ServerCatalog | None = None
        self._initial: dict[str, Any] | None = None
        self._target: list[TopicExtent] | None = None  # of AvailableNow: what there was when the query began
        self._seen: dict[Key, TopicExtent] = {}
        self._ends: dict[Key, offsets.StreamPosition] = {}  # where topics ended when they were last there

    # --- offsets

    def initialOffset(self) -> dict[str, Any]:
        """Asked for more than once; it must be the same place each time."""
        if self._initial is None:
            at = {
                (extent.server, extent.topic): offsets.StreamPosition(
                    extent.epoch, self._first_seq(extent, otherwise="latest")
                )
                for extent in self._extents()
            }
            self._initial = self._names.dump(at, at)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self.options.max_offsets is None else ReadMaxRows(self.options.max_offsets)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._look()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        _, at = self._names.load(start)
        budget = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        extents = self._extents()
        begin, end = self._advance(at, extents, budget)
        if begin == end and self._target is None:
            self._wait(extents)
            begin, end = self._advance(at, self._look(), budget)
        # Spark takes an equal offset for "nothing new".
        return start if begin == end else self._names.dump(begin, end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the progress report: where the topics were when they were last looked at."""
        ends = {key: offsets.StreamPosition(extent.epoch, extent.end) for key, extent in self._seen.items()}
        return self._names.dump(ends, ends) if ends else None

    # --- batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The end says itself where its batch begins, so `start` is not needed: see `offsets`."""
        begin, stop = self._names.load(end)
        if start == end:
            return []
        return [
            ReadPartition([(span, None) for span in part])
            for part in plan.cut(
                offsets.spans(begin, stop),
                self._bytes_per_seq,
                min_partitions=self.options.min_partitions,
                partition_bytes=self.options.partition_bytes,
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadPartition)
        how = how_of(self.options)
        for span, _ in partition.spans:
            yield from read_span(span, how)

    def stop(self) -> None:
        if self._servers is not None:
            self._servers.__exit__(None, None, None)
            self._servers = None

    # --- inside

    def _advance(
        self, at: StreamPositions, extents: list[TopicExtent], budget: int | None
    ) -> tuple[StreamPositions, StreamPositions]:
        extents = [offsets.at_home(at, extent) for extent in extents]
        there = [self._with_unread(extent) for extent in extents if not extent.gone or offsets.is_readable(at, extent)]
        names = {(extent.server, extent.topic) for extent in there}
        if self.options.fail_on_data_loss:
            for (server, topic), position in sorted(at.items()):
                if (server, topic) not in names and self._is_wanted(server, topic):
                    raise TopicGone(server, topic, position.seq, lake=self.options.lake)
        return offsets.advance(at, [*there, *self._unread(at, names)], first_seq=self._first_of_new, budget=budget)

    def _unread(self, at: StreamPositions, there: set[Key]) -> list[TopicExtent]:
        """Topics that are gone, of which this stream has seen more than it has read: that is told, and by its range."""
        return [
            TopicExtent(server=key[0], topic=key[1], epoch=end.epoch, earliest=end.seq, head=end.seq - 1, gone=True)
            for key, end in self._ends.items()
            if key not in there and key in at and at[key].epoch == end.epoch and at[key].seq < end.seq
        ]

    def _is_wanted(self, server: str, topic: str) -> bool:
        """A restarted query may ask for fewer topics than the one that made the checkpoint."""
        return server in self.options.connection.servers and self.options.wants(topic)

    def _extents(self) -> list[TopicExtent]:
        return self._look() if self._target is None else self._target

    def _look(self) -> list[TopicExtent]:
        if self._servers is None:
            self._servers = ServerCatalog(self.options)
        extents = self._servers.present()
        self._seen = {(extent.server, extent.topic): extent for extent in extents}
        self._ends |= {
            key: offsets.StreamPosition(extent.epoch, extent.end)
            for key, extent in self._seen.items()
            if not extent.gone
        }
        return extents

    def _with_unread(self, extent: TopicExtent) -> TopicExtent:
        """A topic that only the lake has is as long as it was when it was last there, if the stream has seen that."""
        end = self._ends.get((extent.server, extent.topic))
        if not extent.gone or end is None or end.epoch != extent.epoch or end.seq <= extent.end:
            return extent
        return structs.replace(extent, head=end.seq - 1)

    def _wait(self, extents: list[TopicExtent]) -> None:
        assert self._servers is not None
        if len(extents) == 1 and not extents[0].gone:
            self._servers.wait(extents[0], WAIT_MS)
        else:
            time.sleep(WAIT_AMONG_MANY_MS / 1000)

    def _first_seq(self, extent: TopicExtent, *, otherwise: Offset) -> int:
        assert self._servers is not None
        return plan.first_seq(self.options, extent, self._servers.seq_at, otherwise=otherwise)

    def _first_of_new(self, extent: TopicExtent) -> int:
        """A topic that came up while the stream ran is read from its very first seq, unless it was named in a start."""
        starting = self.options.starting
        if starting is not None and extent.topic in starting.names():
            return self._first_seq(extent, otherwise=1)
        return 1

    def _bytes_per_seq(self, span: Span) -> float:
        extent = self._seen.get((span.server, span.topic))
        return GUESSED_BYTES_PER_SEQ if extent is None else extent.bytes_per_seq


def _check(options: ReadOptions) -> None:
    if options.path is not None:
        raise BadOption(
            "path: a directory does not grow while it is read; read it as a batch, or stream from its server"
        )
    if options.lake_only:
        raise BadOption("lakeOnly: read a lake as a batch; a stream goes from the lake on to its server")
    if options.push_filters:
        raise BadOption("pushFilters: for batch reads only; narrow a stream with the options tag and node")
    if options.ending is not None or options.ending_ts is not None:
        raise BadOption("endingOffsets, endingTimestamp: for batch reads only; a stream has no end")
