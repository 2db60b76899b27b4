"""Replay: append records of a lake, a data directory or a topic to a topic again, in order, each once.

A replay is identified by its arguments: a second call continues where the first one stopped. The position is saved on
the target server before and after each step (`positions`).

One task writes the rows of a plan (`delivery.CopyTask`). Every record has its origin in its meta:

    {"trace": "abc", "_topics_replay": {"id": "9f…", "topic": "orders", "epoch": 1794715944778, "seq": 17,
                                        "ts": 1794715950000, "node": "till-1"}}

The rest of its meta is unchanged.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import msgspec
import pyarrow as pa
import xxhash
from msgspec import UNSET, Struct, UnsetType, structs

from topics.client import Client
from topics.lake.storage import real_location
from topics.spark.failures import explain
from topics.spark.options import offset_option, range_options, read_options
from topics.spark.pipelines.rounds import answered, run_tasks
from topics.spark.pipelines.run import delivery, positions
from topics.spark.pipelines.run.delivery import CopyPosition, CopyTask, DeliveryResult, Fields, OutgoingRow
from topics.spark.pipelines.run.job import BadUsage, Failed, PipelineJob, ReadingOptions
from topics.spark.pipelines.run.positions import Positions
from topics.spark.pipelines.run.report import RunReport, TopicReport
from topics.spark.pipelines.run.tasks import Tasks
from topics.spark.source import plan
from topics.spark.source.catalog import NoSuchTopic, catalog_of
from topics.spark.source.plan import GRID, Span
from topics.spark.source.read import read_span
from topics.spark.sql.text import lenient
from topics.spark.topic_names import check_name, missing_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from topics.spark.sql.on_spark import SparkTables


STEP_SEQS = 50_000
STEP_S = 20.0  # duration of one step of a replay with a rate
NEXT_AT_GAP = "use --allow-gaps to continue with a record that reports the gap, or start after the gap"
ONE_PARTITION = str(1 << 40)  # one task reads a whole step, in order
SQL_CONDITION = "where is an expression of Spark SQL"


class ReplayPosition(CopyPosition, frozen=True, kw_only=True):
    """The position of a replay."""

    records: int = 0


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
            check_name(name)

    def options(self, job: PipelineJob) -> dict[str, str]:
        """Return the source as options of `format("topics")`."""
        lake_only = "true" if self.lake is not None and self.source_url is None else None
        found = {"lake": self.lake, "lakeOnly": lake_only, "path": self.path, "tag": self.tag}
        server = {} if self.source_url is None else job.reaching(self.source_url)
        return server | {name: value for name, value in found.items() if value is not None}


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
    **options: Unpack[ReadingOptions],
) -> RunReport:
    """Append the selected records of `topic` to the topic `into` of the server `url`, with their origin in their meta.

    Seqs are inclusive. `rate` limits the records per second, and `max_bytes_per_second` what is written. A lost range
    fails the replay; with `allow_gaps` a record reports it instead. `node` replaces the node of every record, for
    readers that filter out their own node.
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
        if rate is not None and where is None:
            step_seqs = min(max(int(rate * STEP_S), GRID), step_seqs)
        _ReplayRun(job, wanted, client, known).run(rate=rate, allow_gaps=allow_gaps, step_seqs=step_seqs)
    return job.report


class _ReplayRun:
    """One run of a replay, from the saved position to the present end of the source."""

    def __init__(self, job: PipelineJob, wanted: ReplayRequest, client: Client, known: Positions) -> None:
        self._job, self._wanted, self._client, self._positions = job, wanted, client, known
        self._at = known.load(ReplayPosition).get("at")
        self._tables: SparkTables | None = None  # for the types of fields in a condition
        self._tasks = Tasks()

    def run(self, *, rate: float | None, allow_gaps: bool, step_seqs: int) -> None:
        self._rate, self._allow_gaps, self._step_seqs = rate or math.inf, allow_gaps, step_seqs
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
        if at.target_epoch and epoch != at.target_epoch and not self._task(at).shown(self._client, from_seq=0):
            job.warn(f"topic {wanted.into} was deleted since this replay began: it starts again with the first seq")
            at = ReplayPosition(epoch=span.epoch, done=span.start - 1)
        goal = max(span.stop - 1, at.plan)
        if at.done >= goal and at.records:
            job.warn(f"all records up to seq {at.done} were replayed before ({at.records}); --name replays them again")
        if not job.dry_run:
            job.step(f"replaying {wanted.topic} into {wanted.into}")
        if at.done < goal:
            # One request follows the other, so Spark is needed only for a condition.
            self._tasks = job.tasks(spark_only=None if wanted.where is None else SQL_CONDITION)
        if job.dry_run:
            self._expect(at, goal, row)
            return
        while at.done < goal and not job.stopping.is_set():
            at = self._step(at, goal, row)

    def _span(self) -> Span:
        wanted = self._wanted
        bounds = {
            "startingOffsets": None if wanted.from_seq is None else offset_option(wanted.topic, wanted.from_seq),
            "endingOffsets": None if wanted.to_seq is None else offset_option(wanted.topic, wanted.to_seq + 1),
            "startingTimestamp": wanted.since,
            "endingTimestamp": wanted.until,
        }
        given = {name: value for name, value in bounds.items() if value is not None}
        try:
            options = read_options({**wanted.options(self._job), **given, "subscribe": wanted.topic})
            with catalog_of(options) as catalog:
                [extent] = catalog.extents()
                found = plan.spans(options, [extent], catalog.seq_at)
        except NoSuchTopic:
            with catalog_of(read_options({**wanted.options(self._job), "subscribePrefix": ""})) as catalog:
                names = [extent.topic for extent in catalog.extents()]
            raise missing_in(wanted.origin, wanted.topic, names) from None
        except plan.Impossible as error:
            raise BadUsage(str(error).replace("endingOffsets", "to_seq")) from None
        if any(span.lost is not None for span in found):
            raise BadUsage(f"from_seq: topic {wanted.topic} in {wanted.origin} ends at seq {extent.head}")
        return found[-1] if found else Span(
            server=extent.server, topic=extent.topic, epoch=extent.epoch, start=extent.end, stop=extent.end
        )  # fmt: skip

    def _step(self, at: ReplayPosition, goal: int, row: TopicReport) -> ReplayPosition:
        """Save the plan of the next step, carry it out, and save the new position."""
        present = 0  # the last seq that an interrupted run of this replay has written to the target
        if at.plan > at.done:
            from_seq = at.target_seq if self._target()[0] == at.target_epoch else 0
            present = max(at.done, self._task(at).shown(self._client, from_seq=from_seq))
        else:
            epoch, head = self._target()
            end = min(goal, (at.done // GRID) * GRID + self._step_seqs - 1)
            at = structs.replace(at, plan=max(end, at.done + 1), target_epoch=epoch, target_seq=head)
            self._positions.check_alone()
            self._positions.save({"at": at})
        outcome = self._through(structs.replace(self._task(at), present=present), allow_gaps=self._allow_gaps)
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
        self._job.progress.show(at.done, goal, unit="seqs")
        return at

    def _task(self, at: ReplayPosition) -> Sender:
        wanted = self._wanted
        return Sender(
            target=self._job.connection(self._client.url), into=wanted.into, id=wanted.id, topic=wanted.topic,
            epoch=at.epoch, start=at.done + 1, stop=at.plan + 1, node=wanted.node,
            rate=self._rate, bytes_per_second=self._job.max_bytes_per_second or math.inf,
        )  # fmt: skip

    def _through(self, sender: Sender, *, allow_gaps: bool) -> DeliveryResult:
        """Give the rows of the plan to the task, in order, on Spark or in this process."""
        task = partial(sender, is_dry=self._job.dry_run)
        wanted = range_options({sender.topic: (sender.start, sender.stop)}, fail_on_data_loss=not allow_gaps)
        given = self._wanted.options(self._job) | wanted
        try:
            if self._tasks.spark is None:
                options = read_options(given)
                with catalog_of(options) as catalog:
                    spans = plan.spans(options, catalog.extents(), catalog.seq_at)
                    parts = [(span, catalog.excerpt(span)) for span in spans]
                return task(batch for span, excerpt in parts for batch in read_span(span, options, excerpt=excerpt))
            rows = self._frame(self._tasks.spark, given).coalesce(1)
            return run_tasks(rows, lambda batches: iter([answered(task(batches))]), DeliveryResult)
        except Exception as error:
            text = explain(error)
            if "are lost (" not in text:
                raise
            raise Failed(text.partition("; with failOnDataLoss")[0], next=NEXT_AT_GAP) from None

    def _frame(self, spark: SparkSession, given: dict[str, str]) -> DataFrame:
        """Return the rows in one partition: the records for which the condition holds, and all gaps."""
        from topics.spark.sql.on_spark import SparkTables

        frame = spark.read.format("topics").options(**given, maxPartitionBytes=ONE_PARTITION).load()
        if self._wanted.where is None:
            return frame
        self._tables = self._tables or SparkTables(spark, self._wanted.options(self._job))
        try:
            condition = f"kind = 'gap' OR ({lenient(self._wanted.where)})"
            return self._tables.matching(frame, self._wanted.topic, condition, self._job.warn)
        except Failed as error:
            raise BadUsage(f"where: {error}") from None

    def _expect(self, at: ReplayPosition, goal: int, row: TopicReport) -> None:
        """Report what a run would do: count the records and list the gaps, also those at which a run would fail."""
        if at.done >= goal:
            return
        row.from_seq, row.to_seq = at.done + 1, goal
        found = self._through(self._task(structs.replace(at, plan=goal)), allow_gaps=True)
        row.gaps += found.gaps
        row.records += found.records - len(found.gaps) * (not self._allow_gaps)
        if row.gaps and not self._allow_gaps:
            self._job.warn(f"a run would fail at seq {row.gaps[0].from_seq}, which is lost")
            self._job.report.ok, self._job.report.next = False, NEXT_AT_GAP
        if not self._target()[0]:
            row.would.append(f"create topic {self._wanted.into} in {self._client.url}")

    def _target(self) -> tuple[int, int]:
        return delivery.target_of(self._client, self._wanted.into)


# --- the task

KEY = "_topics_replay"


class Origin(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The origin of a replayed record, under `_topics_replay` in its meta. `to` is the last seq of a gap."""

    id: str
    topic: str
    epoch: int
    seq: int
    ts: int | UnsetType = UNSET
    node: str | None = None
    to: int | UnsetType = UNSET

    @property
    def last(self) -> int:
        return self.seq if isinstance(self.to, UnsetType) else self.to


class Sender(CopyTask[DeliveryResult], kw_only=True):
    """Sends the rows of one plan."""

    meta_key: ClassVar[str] = KEY

    id: str
    node: str | None = None  # replaces the node of every record

    @property
    def run(self) -> str:
        return f"replay/{self.id}/{self.epoch}"

    def origin(self, seq: int, **more: Any) -> Origin:
        return Origin(id=self.id, topic=self.topic, epoch=self.epoch, seq=seq, **more)

    def row(self, one: Fields, outcome: DeliveryResult) -> OutgoingRow:
        meta = delivery.stamped(one.meta, KEY, self.origin(one.seq, ts=one.ts, node=one.node))
        return OutgoingRow(one.seq, one.seq, delivery.record_of(one.data, self.node or one.node, one.tag, meta))

    def seq_of(self, meta: bytes) -> int:
        origin = origin_of(meta)
        return 0 if origin is None or (origin.id, origin.epoch) != (self.id, self.epoch) else origin.last

    def __call__(self, batches: Iterable[pa.RecordBatch], *, is_dry: bool) -> DeliveryResult:
        outcome = DeliveryResult()
        return (self.rehearse if is_dry else self.send)(self.rows(batches, outcome), outcome)


def origin_of(meta: bytes | None) -> Origin | None:
    """Return the origin of a replayed record, or None for another record."""
    return delivery.stamp_in(meta, KEY, Origin)
