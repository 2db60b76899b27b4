"""Replay: append records of a lake, a data directory or a topic to a topic again, in order, each once.

A replay is identified by its arguments: the same call is the same replay. A second call continues where the first one
stopped; another `name` makes it another replay. The position is saved on the target server before and after each step
(`positions`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

import msgspec
import xxhash
from msgspec import Struct, structs

from topics.arrow import GAP
from topics.client import Client
from topics.errors import TopicsError
from topics.lake.storage import real_location
from topics.model.names import check_topic
from topics.spark.failures import explain
from topics.spark.options import offset_option, read_options
from topics.spark.pipelines.replay_task import ReplaySource, Sender, origin_of
from topics.spark.pipelines.run import positions
from topics.spark.pipelines.run.delivery import DeliveryResult, last_shown, target_of
from topics.spark.pipelines.run.job import BadUsage, Failed, JobOptions, PipelineJob
from topics.spark.pipelines.run.positions import Positions
from topics.spark.pipelines.run.report import ReportedGap, RunReport, TopicReport
from topics.spark.pipelines.run.tasks import Tasks, Workload
from topics.spark.source import plan
from topics.spark.source.catalog import NoSuchTopic, catalog_of
from topics.spark.source.plan import GRID, Span
from topics.spark.source.read import DataLoss
from topics.spark.unknown_names import missing_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEP_SEQS = 50_000
STEP_S = 20.0  # duration of one step of a replay with a rate
NEXT_AT_GAP = "use --allow-gaps to continue with a record that reports the gap, or start after the gap"
SQL_CONDITION = "where is an expression of Spark SQL"


class ReplayPosition(Struct, frozen=True, kw_only=True):
    """The position of a replay. A killed run may have written the seqs after `done` up to `plan`."""

    epoch: int  # of the source
    done: int
    plan: int = 0
    records: int = 0
    target_epoch: int = 0
    target_seq: int = 0  # head of the target when the plan was made


class ReplayRequest(Struct, frozen=True, kw_only=True):
    """The arguments that identify a replay."""

    lake: str | None = None
    path: str | None = None
    source_url: str | None = None
    topic: str
    into: str
    where: str | None = None
    from_seq: int | None = None
    to_seq: int | None = None
    since: str | None = None
    until: str | None = None
    tag: str | None = None
    node: str | None = None
    name: str | None = None

    @property
    def id(self) -> str:
        return xxhash.xxh3_64_hexdigest(msgspec.json.encode(self))

    @property
    def origin(self) -> str:
        """The lake, directory or server that is replayed."""
        return self.lake or self.path or self.source_url or ""

    def check(self, url: str) -> None:
        if (self.path is not None) == (self.lake is not None or self.source_url is not None):
            raise BadUsage("choose one source: a lake, a data directory, or a server (a lake may complete a server)")
        if self.source_url == url and self.topic == self.into:
            raise BadUsage(f"topic {self.topic} would be replayed into itself; use another target topic")
        for given, other in (("from_seq", "since"), ("to_seq", "until")):
            if getattr(self, given) is not None and getattr(self, other) is not None:
                raise BadUsage(f"{given} and {other}: give one of them")
        for name in (self.topic, self.into):
            try:
                check_topic(name)
            except TopicsError as error:
                raise BadUsage(error.message) from None

    def options(self, job: PipelineJob) -> dict[str, str]:
        """Return the source as options of `format("topics")`."""
        found: dict[str, str] = {} if self.source_url is None else job.reading(self.source_url)
        if self.lake is not None:
            found["lake"] = self.lake
            if self.source_url is None:
                found["lakeOnly"] = "true"
        if self.path is not None:
            found["path"] = self.path
        if self.tag is not None:
            found["tag"] = self.tag
        return found

    def bounds(self) -> dict[str, str]:
        given: dict[str, str | None] = {
            "startingOffsets": None if self.from_seq is None else offset_option(self.topic, self.from_seq),
            "endingOffsets": None if self.to_seq is None else offset_option(self.topic, self.to_seq + 1),
            "startingTimestamp": self.since,
            "endingTimestamp": self.until,
        }
        return {name: value for name, value in given.items() if value is not None}


def replay(
    *,
    url: str,
    topic: str,
    into: str,
    lake: str | None = None,
    path: str | None = None,
    source_url: str | None = None,
    where: str | None = None,
    from_seq: int | None = None,
    to_seq: int | None = None,
    since: str | None = None,
    until: str | None = None,
    tag: str | None = None,
    rate: float | None = None,
    node: str | None = None,
    name: str | None = None,
    allow_gaps: bool = False,
    source_token_file: str | None = None,
    target_token_file: str | None = None,
    step_seqs: int = STEP_SEQS,
    positions_topic: str = positions.TOPIC,
    **options: Unpack[JobOptions],
) -> RunReport:
    """Append the selected records of `topic` to the topic `into` of the server `url`, with their origin in their meta.

    Seqs are inclusive. `rate` limits the records per second. A lost range fails the replay; with `allow_gaps` a record
    reports it instead. `node` replaces the node of every record, for readers that filter out their own node.
    """
    url = url.rstrip("/")
    if "" in (lake, path):
        raise BadUsage("--lake and --path: the path is empty: give a directory")
    if rate is not None and not 0 < rate < math.inf:
        raise BadUsage("rate: a number of records per second above 0")
    wanted = ReplayRequest(
        lake=None if lake is None else real_location(lake),
        path=None if path is None else os.path.realpath(path),
        source_url=None if source_url is None else source_url.rstrip("/"),
        topic=topic, into=into, where=where, from_seq=from_seq, to_seq=to_seq, since=since, until=until,
        tag=tag, node=node, name=name,
    )  # fmt: skip
    wanted.check(url)
    keys = {url: target_token_file}
    if wanted.source_url is not None and (wanted.source_url != url or source_token_file is not None):
        keys[wanted.source_url] = source_token_file
    with PipelineJob("replay", servers=[url], token_files=keys, **options) as job, job.client(url) as client:
        known = Positions(client, f"replay:{wanted.id}:", run=job.report.run_id, topic=positions_topic)
        _ReplayRun(job, wanted, client, known, rate=rate, allow_gaps=allow_gaps, step_seqs=step_seqs).run()
    return job.report


class _ReplayRun:
    """One run of a replay, from the saved position to the present end of the source."""

    def __init__(
        self,
        job: PipelineJob,
        wanted: ReplayRequest,
        client: Client,
        known: Positions,
        *,
        rate: float | None,
        allow_gaps: bool,
        step_seqs: int,
    ) -> None:
        self._job, self._wanted, self._client, self._positions = job, wanted, client, known
        self._rate, self._allow_gaps = rate, allow_gaps
        self._step_seqs = step_seqs
        if rate is not None and wanted.where is None:
            self._step_seqs = min(max(int(rate * STEP_S), GRID), step_seqs)
        self._at = known.load(ReplayPosition).get("at")
        self._source = ReplaySource(wanted.topic, wanted.options(job), where=wanted.where, warn=job.warn)
        self._bytes_per_seq = 0.0
        self._tasks = Tasks()

    def run(self) -> None:
        job, wanted = self._job, self._wanted
        job.step(f"looking at {wanted.topic} in {wanted.origin}")
        span = self._span()
        row = job.report.topic(wanted.topic, server=wanted.origin, into=wanted.into)
        row.epoch, row.figures["id"] = span.epoch, wanted.id
        at = self._at or ReplayPosition(epoch=span.epoch, done=span.start - 1)
        if at.epoch != span.epoch:
            raise Failed(
                f"topic {wanted.topic} in {wanted.origin} was recreated since this replay began",
                next="start a new replay with --name",
            )
        epoch, _ = self._target()
        if at.target_epoch and epoch != at.target_epoch and not self._shown(at, from_seq=0):
            job.warn(f"topic {wanted.into} was deleted since this replay began: it starts again with the first seq")
            at = ReplayPosition(epoch=span.epoch, done=span.start - 1)
        goal = max(span.stop - 1, at.plan)
        if at.done >= goal and at.records:
            job.warn(f"all records up to seq {at.done} were replayed before ({at.records}); --name replays them again")
        if not job.dry_run:
            job.step(f"replaying {wanted.topic} into {wanted.into}")
        if at.done < goal:
            self._tasks = self._choose_tasks(goal - at.done)
        if job.dry_run:
            self._expect(at, goal, row)
            return
        while at.done < goal and not job.stopping.is_set():
            at = self._step(at, goal, row)

    def _span(self) -> Span:
        wanted = self._wanted
        given = {**wanted.options(self._job), **wanted.bounds(), "subscribe": wanted.topic}
        try:
            options = read_options(given)
            with catalog_of(options) as catalog:
                [extent] = catalog.extents()
                found = plan.spans(options, [extent], catalog.seq_at)
        except NoSuchTopic:
            raise missing_in(wanted.origin, wanted.topic, self._names()) from None
        except plan.Impossible as error:
            raise BadUsage(str(error).replace("endingOffsets", "to_seq")) from None
        if any(span.lost is not None for span in found):
            raise BadUsage(f"from_seq: topic {wanted.topic} in {wanted.origin} ends at seq {extent.head}")
        self._bytes_per_seq = extent.bytes_per_seq
        return found[-1] if found else Span(
            server=extent.server, topic=extent.topic, epoch=extent.epoch, start=extent.end, stop=extent.end
        )  # fmt: skip

    def _names(self) -> list[str]:
        """Return the topics of the source, for the error message about an unknown topic."""
        with catalog_of(read_options({**self._wanted.options(self._job), "subscribePrefix": ""})) as catalog:
            return [extent.topic for extent in catalog.extents()]

    def _step(self, at: ReplayPosition, goal: int, row: TopicReport) -> ReplayPosition:
        """Save the plan of the next step, carry it out, and save the new position."""
        job = self._job
        present = 0
        if at.plan > at.done:
            present = self._present(at)
        else:
            epoch, head = self._target()
            end = min(goal, (at.done // GRID) * GRID + self._step_seqs - 1)
            at = structs.replace(at, plan=max(end, at.done + 1), target_epoch=epoch, target_seq=head)
            self._positions.check_alone()
            self._positions.save({"at": at})
        outcome = self._send(at, present)
        row.from_seq = row.from_seq or at.done + 1
        epoch, head = self._target()
        records = at.records + outcome.records
        at = structs.replace(at, done=at.plan, records=records, target_epoch=epoch, target_seq=head)
        self._positions.save({"at": at})
        row.to_seq = at.done
        row.records += outcome.records
        row.repeated += outcome.repeated
        row.gaps += outcome.gaps
        row.lag = max(goal - at.done, 0)
        job.progress.show(at.done, goal, unit="seqs")
        return at

    def _send(self, at: ReplayPosition, present: int) -> DeliveryResult:
        wanted = self._wanted
        sender = Sender(
            target=self._job.connection(self._client.url),
            into=wanted.into, id=wanted.id, topic=wanted.topic, epoch=at.epoch,
            start=at.done + 1, stop=at.plan + 1, present=present, rate=self._rate, node=wanted.node,
        )  # fmt: skip
        if self._tasks.spark is not None:
            return self._send_on_spark(self._tasks.spark, sender, at)
        try:
            return sender.deliver(self._source.batches(at.done + 1, at.plan + 1, allow_gaps=self._allow_gaps))
        except DataLoss as error:
            raise _failed_at_gap(str(error)) from None

    def _send_on_spark(self, spark: SparkSession, sender: Sender, at: ReplayPosition) -> DeliveryResult:
        from pyspark.errors import PySparkException

        frame = self._source.frame(spark, at.done + 1, at.plan + 1, allow_gaps=self._allow_gaps)
        rows = frame.coalesce(1).mapInArrow(sender, "outcome BINARY")
        try:
            found = [msgspec.json.decode(bytes(row.outcome), type=DeliveryResult) for row in rows.collect()]
        except PySparkException as error:
            text = explain(error)
            if "are lost (" not in text:
                raise
            raise _failed_at_gap(text) from None
        return found[0] if found else DeliveryResult()

    def _choose_tasks(self, seqs: int) -> Tasks:
        """Return where to replay: one request follows the other, so Spark is needed only for a condition."""
        work = Workload(seqs=seqs, size_bytes=round(seqs * self._bytes_per_seq))
        return self._job.tasks(work, spark_only=None if self._wanted.where is None else SQL_CONDITION, in_order=True)

    def _expect(self, at: ReplayPosition, goal: int, row: TopicReport) -> None:
        """Report what a run would do: count the records and list the gaps, also those at which a run would fail."""
        if at.done >= goal:
            return
        row.from_seq, row.to_seq = at.done + 1, goal
        for found in self._expected(at, goal):
            if isinstance(found, int):
                row.records += found
                continue
            row.gaps.append(found)
            row.records += int(self._allow_gaps)  # with --allow-gaps a gap is written as a record
        if row.gaps and not self._allow_gaps:
            self._job.warn(f"a run would fail at seq {row.gaps[0].from_seq}, which is lost")
            self._job.report.ok, self._job.report.next = False, NEXT_AT_GAP
        if not self._target()[0]:
            row.would.append(f"create topic {self._wanted.into} in {self._client.url}")

    def _expected(self, at: ReplayPosition, goal: int) -> Iterator[int | ReportedGap]:
        """Yield numbers of records, and the gaps in order."""
        if self._tasks.spark is not None:
            from pyspark.sql.functions import expr

            frame = self._source.frame(self._tasks.spark, at.done + 1, goal + 1, allow_gaps=True)
            alike = frame.groupBy("kind", expr("IF(kind = 'gap', seq, NULL) AS first"), "gap_to", "reason")
            for found in alike.count().orderBy("first").collect():
                if found.kind == "gap":
                    yield ReportedGap(from_seq=found.first, to_seq=found.gap_to, reason=found.reason, epoch=at.epoch)
                else:
                    yield found["count"]
            return
        for batch in self._source.batches(at.done + 1, goal + 1, allow_gaps=True):
            if batch.num_rows == 1 and batch.column("kind")[0].as_py() == GAP:
                [row] = batch.to_pylist()
                yield ReportedGap(from_seq=row["seq"], to_seq=row["gap_to"], reason=row["reason"], epoch=at.epoch)
            else:
                yield batch.num_rows

    def _target(self) -> tuple[int, int]:
        return target_of(self._client, self._wanted.into)

    def _present(self, at: ReplayPosition) -> int:
        """Return the last seq that an interrupted run of this replay has written to the target."""
        from_seq = at.target_seq if self._target()[0] == at.target_epoch else 0
        return max(at.done, self._shown(at, from_seq=from_seq))

    def _shown(self, at: ReplayPosition, *, from_seq: int) -> int:
        """Return the last seq of this replay in the target after `from_seq`, or 0 if there is none."""

        def seq_of(meta: bytes) -> int:
            origin = origin_of(meta)
            if origin is None or (origin.id, origin.epoch) != (self._wanted.id, at.epoch):
                return 0
            return origin.last

        return last_shown(self._client, self._wanted.into, from_seq=from_seq, seq_of=seq_of)


def _failed_at_gap(text: str) -> Failed:
    return Failed(text.partition("; with failOnDataLoss")[0], next=NEXT_AT_GAP)
