"""Compact: the latest record of every tag, or of every value of an expression, as a Parquet file or a topic.

A run reads only new records. A Parquet file contains its position in its metadata, and is replaced atomically. In a
topic, the latest record of a key is appended and its older ones are deleted; the position is stored in `positions`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import structs

from topics.client import Client
from topics.errors import Code, TopicsError
from topics.spark.failures import BadUsage
from topics.spark.pipelines.compact.task import (
    GAPS_KEPT,
    META,
    CompactPosition,
    CompactResult,
    Count,
    Range,
    WriteLatestFile,
    WriteLatestTopic,
)
from topics.spark.pipelines.rounds.outputs import Output, OutputPath, OutputTopic, one_task, publish
from topics.spark.pipelines.rounds.rounds import STEP_SEQS, Rounds
from topics.spark.pipelines.rounds.source_frames import SourceTopic
from topics.spark.pipelines.run import positions
from topics.spark.pipelines.run.job import JobOptions, PipelineJob, check_may_delete
from topics.spark.pipelines.run.lenient_sql import lenient
from topics.spark.pipelines.run.report import ReportedGap, RunReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ALL_SEQS = 1 << 62
EVERY_S = 10.0

ROW = ("epoch", "seq", "ts", "node", "tag", "meta", "data", "gap_to", "reason")


def compact(
    *,
    url: str,
    topic: str,
    into: str | None = None,
    parquet: str | None = None,
    by: str = "tag",
    null_removes: bool = False,
    full: bool = False,
    follow: bool = False,
    every_s: float = EVERY_S,
    lake: str | None = None,
    step_seqs: int = STEP_SEQS,
    positions_topic: str = positions.TOPIC,
    **options: Unpack[JobOptions],
) -> RunReport:
    """Write the latest record for each value of `by`, a SQL expression over the record's columns and `value`.

    `null_removes`: a record whose data is null removes its key. `full`: start again with the first seq, so that
    records deleted from the topic disappear from the output as well.
    """
    if (into is None) == (parquet is None):
        raise BadUsage("choose one output: a topic (into) or a Parquet file (parquet)")
    if into == topic:
        raise BadUsage(f"{topic} cannot be compacted into itself: its readers would lose the older records")
    with PipelineJob("compact", servers=[url], **options) as job, job.client(url) as client:
        source = SourceTopic(job, client, topic, lake=lake)
        if not source.wait_until_exists(follow=follow):
            return job.report
        output: CompactOutput
        if parquet is not None:
            output = CompactFile(job, path_for(parquet, topic), null_removes=null_removes)
        else:
            assert into is not None
            output = CompactTopic(job, client, into, positions_topic=positions_topic, null_removes=null_removes)
        if not job.dry_run:
            output.check_rights()
        # A dry run writes nothing that a second step could build on, so it reads everything in one step.
        step_seqs = ALL_SEQS if job.dry_run else step_seqs
        Compaction(job, source, output, by=by, step_seqs=step_seqs, full=full).run(follow=follow, every_s=every_s)
    return job.report


class Compaction(Rounds[CompactPosition]):
    """One run that compacts a topic."""

    _output: CompactOutput

    def __init__(
        self, job: PipelineJob, source: SourceTopic, output: CompactOutput, *, by: str, step_seqs: int, full: bool
    ) -> None:
        self._by = by
        self._restarts = False  # whether this run starts at the first seq and replaces the output
        super().__init__(job, source, output, step_seqs=step_seqs, full=full)

    def check_fits(self, known: CompactPosition) -> None:
        topic = self._source.topic
        if (known.topic, known.by) != (topic, self._by):
            raise BadUsage(
                f"{self._output.name} holds the latest of {known.topic} by {known.by}, not of {topic} by {self._by}",
                next="use another output, or start again with --full",
            )

    def beginning(self, epoch: int, generation: int) -> CompactPosition:
        self._restarts = True
        return CompactPosition(topic=self._source.topic, by=self._by, epoch=epoch, generation=generation)

    def recreated(self, at: CompactPosition, epoch: int) -> CompactPosition:
        self._job.warn(f"topic {at.topic} was recreated; unread records of its earlier epoch are lost")
        return structs.replace(at, epoch=epoch, done=0, plan=0, generation=at.generation + 1)

    def upto(self, at: CompactPosition, head: int) -> int:
        """Return the end of the plan that an interrupted run has saved, or else of the next range."""
        return at.plan if at.plan > at.done else super().upto(at, head)

    def take(self, at: CompactPosition, stop: int) -> CompactPosition:
        part = Range(epoch=at.epoch, start=at.done + 1, stop=stop)
        planned = structs.replace(at, plan=stop - 1)
        latest = latest_of(self._source.load(part.start, part.stop), by=self._by, epoch=part.epoch)
        if self._job.dry_run:
            self._note(self._output.count(latest, restarts=self._restarts), part)
            return structs.replace(planned, done=planned.plan)
        planned = self._output.plan(planned, restarts=self._restarts)
        outcome = self._output.write(latest, planned, part, restarts=self._restarts)
        self._source.check_same(part.epoch)
        gaps = self._note(outcome, part)
        done = structs.replace(planned, done=planned.plan, stale_to=0, gaps=[*at.gaps, *gaps][-GAPS_KEPT:])
        self._restarts = False
        return self._output.commit(done)

    def _note(self, outcome: CompactResult, part: Range) -> list[ReportedGap]:
        gaps = [structs.replace(gap, epoch=part.epoch) for gap in outcome.gaps]
        self._row.gaps += gaps
        self._row.records += outcome.records
        self._row.repeated += outcome.repeated
        self.add(looked_at=outcome.looked_at, without_key=outcome.without_key, removed=outcome.removed)
        if outcome.keys:
            self._row.figures["keys"] = outcome.keys
        return gaps


def latest_of(rows: DataFrame, *, by: str, epoch: int) -> DataFrame:
    """Return one row per key, and one per gap (`key` NULL, `gap_to` set); `n` is the number of records of the key."""
    keyed = rows.selectExpr(
        f"IF(kind = 'gap', NULL, CAST(({lenient(by)}) AS STRING)) AS key", "IF(kind = 'gap', seq, NULL) AS lost",
        f"CAST({epoch} AS BIGINT) AS epoch", "CAST(1 AS BIGINT) AS n", *ROW[1:],
    )  # fmt: skip
    return _latest(keyed)


def _latest(keyed: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    last = F.max(F.struct(*ROW)).alias("last")
    return keyed.groupBy("key", "lost").agg(last, F.sum("n").alias("n")).select("key", "n", "last.*")


# --- outputs


class CompactOutput(Output[CompactPosition]):
    """Receives the latest records."""

    _null_removes: bool

    def check_rights(self) -> None:
        """Raise if the key lacks a right that `write` needs, before anything is written."""

    def rows(self, latest: DataFrame, *, restarts: bool) -> DataFrame:
        """Return the rows to write for the latest records of a range."""
        return latest

    def count(self, latest: DataFrame, *, restarts: bool) -> CompactResult:
        """Return what `write` would do, without writing."""
        return one_task(self.rows(latest, restarts=restarts), Count(self._null_removes), CompactResult)

    def plan(self, at: CompactPosition, *, restarts: bool) -> CompactPosition:
        """Save the plan before it is carried out, if the output needs that. Return the position with the plan."""
        return at

    def write(self, latest: DataFrame, at: CompactPosition, part: Range, *, restarts: bool) -> CompactResult:
        raise NotImplementedError

    def commit(self, at: CompactPosition) -> CompactPosition:
        """Make the written rows and the position permanent. Return the position."""
        raise NotImplementedError


class CompactFile(OutputPath[CompactPosition], CompactOutput):
    """One Parquet file, sorted by key, replaced atomically."""

    def __init__(self, job: PipelineJob, path: str, *, null_removes: bool) -> None:
        super().__init__(path)
        self._job = job
        self._null_removes = null_removes
        self._staged = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{job.report.run_id}.tmp")

    def load(self) -> CompactPosition | None:
        try:
            found = pq.read_metadata(self.name).metadata or {}
        except FileNotFoundError:
            return None
        except (NotADirectoryError, IsADirectoryError) as error:
            raise BadUsage(
                f"{self.name} cannot be a file: {error.strerror}", next="give --parquet a file or a directory"
            ) from None
        except pa.ArrowInvalid as error:
            raise BadUsage(f"{self.name} is not a Parquet file: {error}") from None
        if META not in found:
            raise BadUsage(f"{self.name} was not written by this pipeline, and is not replaced")
        return msgspec.json.decode(found[META], type=CompactPosition)

    def rows(self, latest: DataFrame, *, restarts: bool) -> DataFrame:
        return latest if restarts else with_known(latest, self._job.spark.read.parquet(self.name))

    def write(self, latest: DataFrame, at: CompactPosition, part: Range, *, restarts: bool) -> CompactResult:
        os.makedirs(os.path.dirname(self.name), exist_ok=True)
        self._tidy()
        task = WriteLatestFile(self._staged, structs.replace(at, done=at.plan), self._null_removes)
        return one_task(self.rows(latest, restarts=restarts), task, CompactResult, order=("key", "seq"))

    def commit(self, at: CompactPosition) -> CompactPosition:
        publish(self._staged, self.name)
        return at

    def _tidy(self) -> None:
        """Remove temporary files of killed runs. Only this pipeline uses such names."""
        folder, stem = os.path.split(self.name)
        for entry in os.scandir(folder):
            if entry.name.startswith(f".{stem}.") and entry.name.endswith(".tmp"):
                os.unlink(entry.path)


def with_known(latest: DataFrame, known: DataFrame) -> DataFrame:
    """Return the latest rows of a new range and of the existing file; `n` counts only records of the new range."""
    none = ("CAST(NULL AS BIGINT) AS gap_to", "CAST(NULL AS STRING) AS reason")
    before = known.selectExpr("key", "CAST(0 AS BIGINT) AS n", *ROW[:7], *none, "CAST(NULL AS BIGINT) AS lost")
    return _latest(latest.selectExpr("*", "IF(gap_to IS NULL, NULL, seq) AS lost").unionByName(before))


class CompactTopic(OutputTopic[CompactPosition], CompactOutput):
    """A topic with one record per key, which has the key as its tag."""

    def __init__(
        self, job: PipelineJob, client: Client, into: str, *, positions_topic: str, null_removes: bool
    ) -> None:
        super().__init__(job, client, into, CompactPosition, prefix=f"compact:{into}:", positions=positions_topic)
        self._null_removes = null_removes

    def check_rights(self) -> None:
        """Raise if the API key may not delete: without deletes each run would add one more record per key."""
        try:
            check_may_delete(self._client, self.name)
        except TopicsError as error:
            if error.code is not Code.TOPIC_NOT_FOUND:  # returned only to a key that may delete
                raise

    def plan(self, at: CompactPosition, *, restarts: bool) -> CompactPosition:
        epoch, head = self.target()
        at = structs.replace(at, target_epoch=epoch, target_seq=head, stale_to=head if restarts else at.stale_to)
        self.save(at)
        return at

    def write(self, latest: DataFrame, at: CompactPosition, part: Range, *, restarts: bool) -> CompactResult:
        task = WriteLatestTopic(
            connection=self._connection, topic=self.name, position=at, part=part, fresh=at.target_seq == 0,
            null_removes=self._null_removes,
        )  # fmt: skip
        outcome = one_task(latest, task, CompactResult, order=("seq",))
        if at.stale_to:
            self._client.delete(self.name, before_seq=at.stale_to + 1)
        return outcome

    def commit(self, at: CompactPosition) -> CompactPosition:
        """Save the position. The first records create the topic, so its epoch is known only now."""
        at = structs.replace(at, target_epoch=at.target_epoch or self.target()[0])
        self.save(at)
        return at


# --- helpers


def path_for(parquet: str, topic: str) -> str:
    """Return the path of the Parquet file: `parquet` itself, or a file named after the topic in that directory."""
    path = os.path.abspath(parquet)
    return path if path.endswith(".parquet") else os.path.join(path, f"{quote(topic, safe='')}.parquet")
