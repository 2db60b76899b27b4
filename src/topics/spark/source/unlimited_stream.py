"""The stream reader for Spark 4.0 and 4.1, whose `latestOffset` gets neither the start of the next batch nor a limit.

A micro-batch reads everything up to the heads. The start of a batch is known only in `partitions`. The first batch is
the exception: `latestOffset` stores the start of the stream in the end offset, because Spark asks again for the initial
offset after a crash, and "latest" would then be another seq.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from topics.spark.options import BadOption, ReadOptions
from topics.spark.source import offsets
from topics.spark.source.offsets import StreamPosition, StreamPositions
from topics.spark.source.plan import Impossible
from topics.spark.source.stream import TopicsStreamReader

INITIAL = "initial"  # marks an initial offset, which is never stored in a checkpoint


class UnlimitedStreamReader(TopicsStreamReader):
    """Plans and reads the micro-batches of one stream, each up to the heads of its topics."""

    def __init__(self, options: ReadOptions, schema: StructType | None = None) -> None:
        if options.max_offsets is not None:
            raise BadOption("maxOffsetsPerTrigger: needs Spark 4.2 or newer; without it, a batch reads up to the heads")
        super().__init__(options, schema)
        self._at: StreamPositions | None = None  # the end of the last batch, as far as this reader knows it
        self._last: dict[str, Any] | None = None
        self._deleted: StreamPositions = {}  # positions that the end of a batch after a restart did not have

    def initialOffset(self) -> dict[str, Any]:
        return {**super().initialOffset(), INITIAL: True}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        extents = self._extents()
        at = self._at if self._at is not None else self._first_positions()
        begin, end = self._advance(at, extents, None)
        if begin == end and self._last is not None:
            self._wait(extents)
            begin, end = self._advance(at, self._refresh(), None)
        if begin == end and self._last is not None:
            return self._last  # Spark takes an equal offset for "nothing new"
        self._at, self._last = end, self._names.dump(begin, end)
        return self._last

    def _first_positions(self) -> StreamPositions:
        """Return the start of the stream, or nothing if it is invalid now: a restarted query does not need it."""
        try:
            return self._names.load(super().initialOffset())[1]
        except Impossible:
            return {}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = self._names.load(end)
        if not start.get(INITIAL):
            begin = self._names.load(start)[1]
        self._check_deleted(begin, set(stop))
        if missing := {key: begin[key] for key in begin.keys() - stop.keys()}:
            # A deleted topic keeps its position, so that a new epoch is reported: the next offset has it again.
            self._at, self._last = missing | (self._at or {}), None
            self._deleted |= missing
        begin = self._deleted | begin
        for key in stop.keys() - begin.keys():
            if (extent := self._seen.get(key)) is not None and extent.epoch == stop[key].epoch:
                first_seq = min(self._first_seq_of_new(extent), stop[key].seq)
                begin[key] = StreamPosition(extent.epoch, first_seq)
        return self._parts(offsets.spans(begin, stop))
