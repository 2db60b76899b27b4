"""An expectation on the records that are archived: a condition of Spark SQL, evaluated before each commit.

The lake stays complete: records that do not meet the condition are counted, and on request copied to a topic. Or the
run ends before it commits them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import xxhash
from msgspec import Struct

from topics.errors import TopicsError
from topics.model.names import check_topic
from topics.plurals import counted
from topics.spark.failures import BadUsage, Failed
from topics.spark.pipelines.rounds import with_value
from topics.spark.pipelines.run.job import PipelineJob
from topics.spark.source.plan import Span
from topics.spark.sql.text import lenient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY = "_topics_rejected"  # in the meta of a copy: topic, epoch and seq of the record
NEEDS_SPARK = "--expect is a condition of Spark SQL"


class Expectation(Struct, frozen=True, kw_only=True):
    """A condition, and what to do about records that do not meet it. NULL does not meet it."""

    condition: str
    reject_to: str | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if self.reject_to is not None:
            if self.strict:
                raise BadUsage("--reject-to and --strict: give one of them")
            try:
                check_topic(self.reject_to)
            except TopicsError as error:
                raise BadUsage(f"--reject-to: {error.message}") from None

    def check(self, job: PipelineJob, url: str, spans: Sequence[Span]) -> dict[str, int]:
        """Return how many records of each topic do not meet the condition. Copy them to the topic for them.

        Raise `Failed` if there are some and the expectation is strict. A dry run only counts.
        """
        job.tasks(spark_only=NEEDS_SPARK)
        rows = self._unmet(job, url, spans).persist()
        try:
            found = {one.topic: one for one in rows.groupBy("topic").agg({"*": "count", "seq": "min"}).collect()}
            if found and self.strict and not job.dry_run:
                topic, row = min(found.items())
                raise Failed(
                    f"{counted(row['count(1)'], 'record')} of topic {topic}, the first with seq {row['min(seq)']}, do "
                    f"not meet {self.condition!r}: nothing of this round was archived",
                    next="correct or delete these records, or use --reject-to instead of --strict",
                )
            if found and self.reject_to is not None and not job.dry_run:
                self._reject(rows, job, url)
        finally:
            rows.unpersist()
        return {topic: row["count(1)"] for topic, row in found.items()}

    def _unmet(self, job: PipelineJob, url: str, spans: Sequence[Span]) -> DataFrame:
        starts: dict[str, int] = {}
        stops: dict[str, int] = {}
        for span in spans:  # a topic may have two: seqs that are known to be lost, and records
            starts[span.topic] = min(span.start, starts.get(span.topic, span.start))
            stops[span.topic] = max(span.stop, stops.get(span.topic, span.stop))
        options = job.reading(url) | {
            "subscribe": ",".join(starts),
            "failOnDataLoss": "false",
            "startingOffsets": msgspec.json.encode(starts).decode(),
            "endingOffsets": msgspec.json.encode(stops).decode(),
        }
        rows = with_value(job.spark.read.format("topics").options(**options).load())
        return rows.where(f"kind = 'record' AND NOT coalesce(({lenient(self.condition)}), false)")

    def _reject(self, rows: DataFrame, job: PipelineJob, url: str) -> None:
        """Append copies. A run after a kill repeats them under the same keys."""
        origin = "named_struct('topic', topic, 'epoch', epoch, 'seq', seq)"
        copies = rows.selectExpr(
            "topic AS source_topic", "seq", "node", "tag", "data",
            f"named_struct('{KEY}', {origin}, 'meta', try_parse_json(meta)) AS meta",
        )  # fmt: skip
        write_id = f"expect-{xxhash.xxh3_64_hexdigest(self.condition.encode())}"
        options = job.reading(url) | {"topic": self.reject_to or "", "writeId": write_id}
        copies.write.format("topics").options(**options).mode("append").save()
