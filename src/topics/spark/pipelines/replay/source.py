"""The rows that a replay reads: in this process as Arrow batches, or on Spark as a DataFrame.

A condition (`where`) is an expression of Spark SQL, so that a replay with one needs Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from topics.spark.failures import BadUsage, Failed
from topics.spark.options import read_options
from topics.spark.pipelines.run.lenient_sql import lenient
from topics.spark.source import plan
from topics.spark.source.catalog import catalog_of
from topics.spark.source.layout import Layout
from topics.spark.source.read import how_of, read_span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from topics.spark.sql.tables import Tables

ONE_PARTITION = str(1 << 40)  # one task reads a whole step, in order


class ReplaySource:
    """The selected rows of one topic, and all of its gaps: the condition applies only to records."""

    def __init__(self, topic: str, options: dict[str, str], *, where: str | None, warn: Callable[[str], None]) -> None:
        self._topic, self._options, self._where, self._warn = topic, options, where, warn
        self._tables: Tables | None = None

    def batches(self, start: int, stop: int, *, allow_gaps: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows of seqs [start, stop). Raise `DataLoss` at a gap that is not allowed."""
        assert self._where is None, "a condition needs Spark"
        options = read_options(self._range(start, stop, allow_gaps=allow_gaps))
        with catalog_of(options) as catalog:
            spans = plan.spans(options, catalog.extents(), catalog.seq_at)
            parts = [(span, catalog.excerpt(span)) for span in spans]
        how = how_of(options, Layout())
        for span, excerpt in parts:
            yield from read_span(span, how, excerpt)

    def frame(self, spark: SparkSession, start: int, stop: int, *, allow_gaps: bool) -> DataFrame:
        """Return the rows of seqs [start, stop), in one partition."""
        given = self._range(start, stop, allow_gaps=allow_gaps) | {"maxPartitionBytes": ONE_PARTITION}
        frame = spark.read.format("topics").options(**given).load()
        if self._where is None:
            return frame
        from topics.spark.sql.tables import Tables, condition

        tables = self._tables = self._tables or Tables(spark, self._options)
        try:
            return condition(
                frame,
                f"kind = 'gap' OR ({lenient(self._where)})",
                lambda column: tables.fields(self._topic, column),
                self._warn,
            )
        except Failed as error:
            raise BadUsage(f"where: {error}") from None

    def _range(self, start: int, stop: int, *, allow_gaps: bool) -> dict[str, str]:
        return self._options | {
            "subscribe": self._topic,
            "startingOffsets": offset(self._topic, start),
            "endingOffsets": offset(self._topic, stop),
            "failOnDataLoss": str(not allow_gaps).lower(),
        }


def offset(topic: str, seq: int) -> str:
    """Return a seq of a topic as an option of the source."""
    return msgspec.json.encode({topic: seq}).decode()
