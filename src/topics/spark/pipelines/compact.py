"""Compact: the latest record of every tag, or of every value of an expression, as a Delta table or a topic.

A run reads only new records. In a table, the files whose keys change are replaced; the rows and the position are one
commit. In a topic, the latest record of a key is appended and its older ones are deleted; the position is stored in
`positions`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Unpack

import msgspec
import xxhash
from msgspec import structs

from topics.client import Client
from topics.errors import Code, TopicsError
from topics.lake.files import RowsFile
from topics.lake.output import LiveFile
from topics.spark.failures import BadUsage
from topics.spark.pipelines.compact_task import (
    COLUMNS,
    GAPS_KEPT,
    CompactPosition,
    CompactResult,
    Count,
    FindFiles,
    LatestFiles,
    ReadFiles,
    WriteLatestTable,
    WriteLatestTopic,
)
from topics.spark.pipelines.rounds import STEP_SEQS, Rounds, SourceTopic, TableOutput, TopicOutput, one_task
from topics.spark.pipelines.run import positions
from topics.spark.pipelines.run.job import JobOptions, PipelineJob, check_may_delete
from topics.spark.pipelines.run.report import RunReport
from topics.spark.sql.text import lenient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ALL_SEQS = 1 << 62
EVERY_S = 10.0
KEPT_HOURS = 1  # how long replaced files stay: each round may replace all of them

ROW = ("epoch", "seq", "ts", "node", "tag", "meta", "data", "gap_to", "reason")
KNOWN = "key STRING, epoch BIGINT, seq BIGINT, ts TIMESTAMP, node STRING, tag STRING, meta STRING, data STRING"


def compact(
    *,
    url: str,
    topic: str,
    into: str | None = None,
    table: str | None = None,
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
    if (into is None) == (table is None):
        raise BadUsage("choose one output: a topic (into) or a Delta table (table)")
    if into == topic:
        raise BadUsage(f"{topic} cannot be compacted into itself: its readers would lose the older records")
    with PipelineJob("compact", servers=[url], **options) as job, job.client(url) as client:
        source = SourceTopic(job, client, topic, lake=lake)
        if not source.wait_until_exists(follow=follow):
            return job.report
        output: CompactTable | CompactTopic
        if into is None:
            output = CompactTable(job, table or "", topic, null_removes=null_removes)
        else:
            output = CompactTopic(job, client, topic, into, positions_topic=positions_topic, null_removes=null_removes)
            if not job.dry_run:
                output.check_rights()
        # A dry run writes nothing that a second step could build on, so it reads everything in one step.
        step_seqs = ALL_SEQS if job.dry_run else step_seqs
        Compaction(job, source, output, by=by, step_seqs=step_seqs, full=full).run(follow=follow, every_s=every_s)
    return job.report


class Compaction(Rounds[CompactPosition]):
    """One run that compacts a topic."""

    _output: CompactTable | CompactTopic

    def __init__(
        self,
        job: PipelineJob,
        source: SourceTopic,
        output: CompactTable | CompactTopic,
        *,
        by: str,
        step_seqs: int,
        full: bool,
    ) -> None:
        self._by = by
        self._declaration = declaration_of(source.topic, by)
        super().__init__(job, source, output, step_seqs=step_seqs, full=full)

    def check_fits(self, known: CompactPosition) -> None:
        if known.declaration != self._declaration:
            raise BadUsage(
                f"{self._output.name} holds something else than the latest of {self._source.topic} by {self._by}",
                next="use another output, or start again with --full",
            )

    def beginning(self, epoch: int, generation: int) -> CompactPosition:
        return CompactPosition(declaration=self._declaration, epoch=epoch, generation=generation)

    def recreated(self, at: CompactPosition, epoch: int) -> CompactPosition:
        self._job.warn(f"topic {self._source.topic} was recreated; unread records of its earlier epoch are lost")
        return structs.replace(at, epoch=epoch, done=0, plan=0, generation=at.generation + 1)

    def planned(self, at: CompactPosition) -> int | None:
        return at.plan if at.plan > at.done else None

    def transform(self, at: CompactPosition, last: int) -> tuple[CompactPosition, DataFrame]:
        rows = self._source.load(at.done + 1, last + 1)
        return structs.replace(at, plan=last), latest_of(rows, by=self._by, epoch=at.epoch)

    def count(self, rows: DataFrame) -> CompactResult:
        return self._output.count(rows)

    def after(self, at: CompactPosition, outcome: CompactResult) -> CompactPosition:
        outcome.gaps = self._output.gaps = [structs.replace(gap, epoch=at.epoch) for gap in outcome.gaps]
        return structs.replace(at, done=at.plan, stale_to=0, gaps=[*at.gaps, *outcome.gaps][-GAPS_KEPT:])

    def note(self, outcome: CompactResult) -> None:
        super().note(outcome)
        self._row.gaps += outcome.gaps
        self._row.add(looked_at=outcome.looked_at, without_key=outcome.without_key, removed=outcome.removed)
        if outcome.keys:
            self._row.figures["keys"] = outcome.keys


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


class CompactTable(TableOutput[CompactPosition]):
    """A Delta table with one row per key. Its files are sorted by key and do not overlap."""

    def __init__(self, job: PipelineJob, where: str, topic: str, *, null_removes: bool) -> None:
        super().__init__(job, where, kept_hours=KEPT_HOURS)
        self._job = job
        self._topic = topic
        self._null_removes = null_removes
        self._files: list[RowsFile] = []
        self._replaced: list[LiveFile] = []
        self._kept: list[LiveFile] = []

    def load(self) -> CompactPosition | None:
        found = self.load_position()
        return msgspec.convert(dict(found), CompactPosition) if found else None

    def _rows(self, latest: DataFrame) -> DataFrame:
        """Return the latest rows of a range and of the files that they change. Choose these files."""
        files = [] if self.restarts else self.table.files("key")
        changed = set(self._changed(latest, files))
        self._replaced = [file for at, file in enumerate(files) if at in changed]
        self._kept = [file for at, file in enumerate(files) if at not in changed]
        if not self._replaced:
            return latest
        paths = [file.path for file in self._replaced]
        numbers = self._job.spark.range(0, len(paths), 1, len(paths))
        return with_known(latest, numbers.mapInArrow(ReadFiles(self.table.storage, paths), KNOWN))

    def _changed(self, latest: DataFrame, files: list[LiveFile]) -> Iterable[int]:
        """Return the numbers of the files that the rows change; all if the files overlap or lack statistics.

        Sort the files by their first keys.
        """
        if len(files) < 2 or any(file.low is None or file.high is None for file in files):
            return range(len(files))
        files.sort(key=lambda file: str(file.low))
        if any(one.high >= other.low for one, other in pairwise(files)):
            return range(len(files))
        keys = latest.where("key IS NOT NULL AND gap_to IS NULL").select("key")
        found = keys.mapInArrow(FindFiles([file.low for file in files]), "number INT").distinct().collect()
        return [row.number for row in found]

    def count(self, latest: DataFrame) -> CompactResult:
        """Return what `write` would return, without writing."""
        return self._with_kept(one_task(self._rows(latest), Count(null_removes=self._null_removes), CompactResult))

    def write(self, latest: DataFrame, at: CompactPosition) -> CompactResult:
        self.table.create(COLUMNS, name=f"latest of {self._topic}")
        latest = latest.persist()
        try:
            rows = self._rows(latest)
            cuts = [str(file.low) for file in self._kept]
            task = WriteLatestTable(storage=self.table.storage, cuts=cuts, null_removes=self._null_removes)
            outcome = one_task(rows, task, LatestFiles, order=("key", "seq"))
        finally:
            latest.unpersist()
        self._files = outcome.files
        return self._with_kept(outcome)

    def _with_kept(self, outcome: CompactResult) -> CompactResult:
        """Return the result with the keys of the files that stay."""
        outcome.keys += sum(file.rows for file in self._kept)
        return outcome

    def save(self, at: CompactPosition) -> CompactPosition:
        position = {"declaration": at.declaration, "epoch": at.epoch, "done": at.done, "generation": at.generation}
        self.commit(position, COLUMNS, self._files, [file.path for file in self._replaced])
        return at


def with_known(latest: DataFrame, known: DataFrame) -> DataFrame:
    """Return the latest rows of a new range and of existing files; `n` counts only records of the new range."""
    none = ("CAST(NULL AS BIGINT) AS gap_to", "CAST(NULL AS STRING) AS reason")
    before = known.selectExpr("key", "CAST(0 AS BIGINT) AS n", *ROW[:7], *none, "CAST(NULL AS BIGINT) AS lost")
    return _latest(latest.selectExpr("*", "IF(gap_to IS NULL, NULL, seq) AS lost").unionByName(before))


class CompactTopic(TopicOutput[CompactPosition]):
    """A topic with one record per key, which has the key as its tag."""

    def __init__(
        self, job: PipelineJob, client: Client, topic: str, into: str, *, positions_topic: str, null_removes: bool
    ) -> None:
        super().__init__(job, client, into, CompactPosition, prefix=f"compact:{into}:", positions=positions_topic)
        self._topic = topic
        self._null_removes = null_removes

    def check_rights(self) -> None:
        """Raise if the API key may not delete: without deletes each run would add one more record per key."""
        try:
            check_may_delete(self._client, self.name)
        except TopicsError as error:
            if error.code is not Code.TOPIC_NOT_FOUND:  # returned only to a key that may delete
                raise

    def plan(self, at: CompactPosition) -> CompactPosition:
        epoch, head = self.target()
        stale_to = head if self.restarts else at.stale_to
        return super().plan(structs.replace(at, target_epoch=epoch, target_seq=head, stale_to=stale_to))

    def count(self, latest: DataFrame) -> CompactResult:
        """Return what `write` would return, without writing."""
        return one_task(latest, Count(null_removes=self._null_removes), CompactResult)

    def write(self, latest: DataFrame, at: CompactPosition) -> CompactResult:
        task = WriteLatestTopic(
            connection=self._connection, source=self._topic, topic=self.name, position=at,
            fresh=at.target_seq == 0, null_removes=self._null_removes,
        )  # fmt: skip
        outcome = one_task(latest, task, CompactResult, order=("seq",))
        if at.stale_to:
            self._client.delete(self.name, before_seq=at.stale_to + 1)
        return outcome

    def save(self, at: CompactPosition) -> CompactPosition:
        """Save the position. The first records create the topic, so its epoch is known only now."""
        self.restarts = False
        return super().save(structs.replace(at, target_epoch=at.target_epoch or self.target()[0]))


# --- helpers


def declaration_of(topic: str, by: str) -> int:
    """Return a hash of the topic and the key expression."""
    return xxhash.xxh3_64_intdigest(msgspec.json.encode((topic, by))) >> 1
