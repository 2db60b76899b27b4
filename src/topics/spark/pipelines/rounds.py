"""Process a topic range by range and write the results to an output: the loop that `compact` and `rollup` share.

A step reads the next range, transforms it, writes the resulting rows in tasks, and saves the position. The output is a
topic or a Delta table, and has the position beside its rows: a table in the same commit, a topic among the positions of
its server. For a topic the plan of a step is saved before the step writes, so that the run after a kill repeats it.

If the output was deleted, it is filled again from the first seq. If the source topic was recreated, the run continues
with seq 1 of the new epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec
import pyarrow as pa
import xxhash
from msgspec import Struct, structs

from topics.client import Client
from topics.client.request import State
from topics.clock import SystemClock
from topics.lake import Conflict, Gap, Lake
from topics.lake.errors import Moved, NoLake, NoTable
from topics.lake.files import RowsFile
from topics.lake.output import KEPT_HOURS, OutputTable
from topics.lake.table import fact_of_gap
from topics.spark.failures import BadUsage, Failed
from topics.spark.options import range_options
from topics.spark.pipelines.run.delivery import target_of
from topics.spark.pipelines.run.job import PipelineJob
from topics.spark.pipelines.run.positions import Positions
from topics.spark.pipelines.run.report import ReportedGap
from topics.spark.pipelines.run.trimmed import trimmed
from topics.spark.sink.chunks import Sent, framed
from topics.spark.source.catalog import state_of
from topics.spark.topic_names import unknown_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STEP_SEQS = 1_000_000
MAX_RECORDS = 1000  # in one request to an output topic
OTHER_OUTPUT = "use another output, or start again with --full, which writes all results again"
PLACE = "give --table a new or an empty directory, or a URL such as s3://bucket/table"
_encode = msgspec.json.Encoder().encode


class RoundsPosition(Struct, frozen=True, kw_only=True):
    """How far the output has processed the source topic."""

    declaration: int  # a hash of what the pipeline computes: the results of two declarations must not mix
    epoch: int
    done: int = 0
    generation: int = 0  # counts restarts from the first seq; part of every write's key
    target_epoch: int = 0  # epoch of the output topic; 0 if it does not exist or the output is not a topic


At = TypeVar("At", bound=RoundsPosition)
Result = TypeVar("Result", bound=Sent)


class SourceTopic:
    """One topic of a server. With a lake, records that the server no longer has come from there."""

    def __init__(self, job: PipelineJob, client: Client, topic: str, *, lake: str | None = None) -> None:
        self.topic, self.job, self.client = topic, job, client
        self._lake = None if lake is None else Lake(lake).existing().path

    def state(self) -> State:
        state = state_of(self.client, self.topic)
        if state is None:
            raise unknown_topic(self.client, self.topic)
        return state

    def load(self, start: int, stop: int) -> DataFrame:
        """Return the rows of the seqs [start, stop). A lost range is a row of kind gap."""
        options = self.job.reading(self.client.url) | range_options({self.topic: (start, stop)})
        if self._lake is not None:
            options["lake"] = self._lake
        self.job.tasks(spark_only=f"{self.job.report.pipeline} needs Spark SQL")
        return self.job.spark.read.format("topics").options(**options).load()

    def warn_if_trimmed(self, epoch: int, start: int) -> None:
        """Warn if the topic begins after `start` because it was trimmed, and no lake was given."""
        found = None if self._lake is not None else trimmed(self.client, self.topic, epoch=epoch, start=start)
        if found is not None:
            self.job.warn(
                f"topic {self.topic}: seqs {found[0]} to {found[1]} were trimmed after they were archived, and are "
                "left out; --lake DIR reads them from the lake"
            )

    def check_same(self, epoch: int) -> None:
        """Raise `Failed` if the topic was recreated while it was read: the rows may be of either epoch."""
        if self.state().epoch != epoch:
            raise Failed(
                f"topic {self.topic} was deleted and recreated while it was read",
                next="run the same command again: it continues with the new epoch of the topic",
            )


def with_value(rows: DataFrame) -> DataFrame:
    """Return the rows with `value`: `data` as a VARIANT, for `value:user.id::string` etc."""
    return rows.selectExpr("*", "try_parse_json(data) AS value")


# --- the loop


class Rounds(Generic[At]):
    """Processes one topic in rounds, and writes the results to a topic or a Delta table. A dry run writes nothing.

    A position in a table is a set of facts, which are numbers; the positions of a server hold it as it is.
    """

    lost: str  # what is lost if the source topic was recreated
    begun: ClassVar[Mapping[str, Any]]  # fields of the position before the first seq of a new epoch
    kept_hours = KEPT_HOURS  # how long replaced files of a table stay
    gaps: Sequence[ReportedGap] = ()  # recorded with the next position, if the output is a table
    restarts = False  # whether the next rows replace all rows of the output
    schema: pa.Schema = pa.schema([])  # of the table
    adds: Sequence[RowsFile] = ()  # files of the table for the next commit
    removes: Sequence[str] = ()

    def __init__(
        self, source: SourceTopic, declared: Any, start: At, *,
        into: str | None, table: str | None, positions: str, prefix: str, step_seqs: int, full: bool,
    ) -> None:  # fmt: skip
        """`declared` says what the pipeline computes; `start` is the position before the first seq of any epoch."""
        self._source, self._declared, self._start, self._step_seqs = source, declared, start, step_seqs
        self._job, self._client = source.job, source.client
        self._table: OutputTable | None = None
        self.name = into or ""
        self._positions = Positions(self._client, prefix, run=self._job.report.run_id, topic=positions)
        if into is not None:
            known = self._positions.load(type(start)).get("")
        else:
            try:
                self._table = OutputTable(table or "", self._job.report.pipeline, kept_hours=self.kept_hours)
                found, self.name = self._table.load(), self._table.uri
            except (NoLake, NoTable) as error:
                raise BadUsage(str(error), next=PLACE) from None
            known = self.of_facts(found) if found else None
        self._row = self._job.report.topic(source.topic, into=self.name)
        self._generation = 0 if known is None else known.generation + int(full)
        if known is not None and not full and known.declaration != start.declaration:
            raise BadUsage(f"{self.name} holds the result of another declaration", next=OTHER_OUTPUT)
        self._at = None if full else known
        self._held: list[DataFrame] = []
        self._note_reached()

    # --- what each pipeline declares

    def of_facts(self, facts: Mapping[str, int]) -> At:
        return msgspec.convert(dict(facts), type(self._start))

    def facts_of(self, at: At) -> dict[str, int]:
        return {"declaration": at.declaration, "epoch": at.epoch, "done": at.done, "generation": at.generation}

    def planned(self, at: At) -> int | None:
        """Return the last seq of the plan that an interrupted run has saved, or None."""
        raise NotImplementedError

    def transform(self, at: At, last: int) -> tuple[At, DataFrame | None]:
        """Return the plan of the step up to `last`, and the rows to write; None if there are none."""
        raise NotImplementedError

    def write(self, rows: DataFrame, at: At) -> Any:
        """Write the rows of a step in tasks, and return their result; in a dry run, what it would be."""
        raise NotImplementedError

    def after(self, at: At, outcome: Any) -> At:
        """Return the position after the planned step."""
        raise NotImplementedError

    def note(self, outcome: Any) -> None:
        """Add the result of a step to the report."""
        self._row.records += outcome.records
        self._row.repeated += outcome.repeated

    def finish(self) -> None:
        """Add the figures that are known only at the end of a run."""

    # --- the run

    def run(self, *, follow: bool, every_s: float) -> None:
        follow = follow and not self._job.dry_run
        self._job.repeat(lambda: self._catch_up(follow=follow), follow=follow, every_s=every_s)
        if self._job.dry_run and self._row.records:
            is_there = self.target()[0] if self._table is None else self._table.exists()
            if not is_there:
                self._row.would.append(f"create {'topic' if self._table is None else 'table'} {self.name}")
        self.finish()

    def _catch_up(self, *, follow: bool) -> bool:
        """Process all ranges up to the present head. Return whether there were any.

        A job that follows waits for a topic that does not exist yet.
        """
        if follow and self._at is None and state_of(self._client, self._source.topic) is None:
            self._job.warn(f"topic {self._source.topic} does not exist on {self._client.url} yet: waiting for it")
            return False
        head, worked = self._source.state().head_seq, False
        while self.step(head):
            self._note_reached()
            worked = True
        return worked

    def step(self, head: int) -> bool:
        """Process the next range, or the plan of an interrupted run. Return False if there is neither."""
        at = self._at = self._position()
        planned = self.planned(at)
        last = min(head, at.done + self._step_seqs) if planned is None else planned
        if last > at.done:
            self._job.step(f"{self._source.topic}: seqs {at.done + 1} to {last}")
            self._source.warn_if_trimmed(at.epoch, at.done + 1)
            self._row.epoch, self._row.to_seq = at.epoch, last
            self._row.from_seq = self._row.from_seq or at.done + 1
        elif planned is None:
            return False
        try:
            plan, rows = self.transform(at, last)
            self._at = self._written(plan, rows)
        finally:
            while self._held:
                self._held.pop().unpersist()
        return True

    def hold(self, rows: DataFrame) -> DataFrame:
        """Return rows that are computed once, however often the step uses them."""
        self._held.append(rows.persist())
        return self._held[-1]

    def _written(self, plan: At, rows: DataFrame | None) -> At:
        """Write the rows and save the position. Another program may merge files of a table meanwhile: write again."""
        outcome, at = None, None
        if rows is None:
            return plan if self._job.dry_run else self.save(plan)
        if self._job.dry_run:
            outcome = self.write(rows, plan)
            at = self.after(plan, outcome)
        else:
            plan = self.plan(plan)
        while at is None:
            outcome = self.write(rows, plan)
            self._source.check_same(plan.epoch)
            with suppress(Conflict):
                at = self.save(self.after(plan, outcome))
        self.note(outcome)
        return at

    def _position(self) -> At:
        state, at = self._source.state(), self._at
        if at is not None and self.is_lost(at):
            self._job.warn(f"topic {self.name} was deleted: it is filled again from the first seq")
            self._generation, at = at.generation + 1, None
        if at is None:
            self.restarts = True
            at = structs.replace(self._start, epoch=state.epoch, generation=self._generation)
        if at.epoch == state.epoch and state.head_seq >= at.done:
            return at
        self._row.gaps.append(ReportedGap(from_seq=at.done + 1, to_seq=at.done + 1, reason="recreated", epoch=at.epoch))
        self._job.warn(f"topic {self._source.topic} was recreated; {self.lost}")
        return structs.replace(at, epoch=state.epoch, done=0, generation=at.generation + 1, **self.begun)

    def _note_reached(self) -> None:
        """Set the position from which the job computes the lag."""
        at = self._at
        self._job.reached[self._client.url, self._source.topic] = (0, 0) if at is None else (at.epoch, at.done)

    # --- the output

    def target(self) -> tuple[int, int]:
        """Return epoch and head of the output topic, or zeros if there is none."""
        return target_of(self._client, self.name) if self._table is None else (0, 0)

    def is_lost(self, at: At) -> bool:
        """Return whether the results up to this position were deleted as a whole."""
        return at.target_epoch != 0 and self.target()[0] != at.target_epoch

    def plan(self, at: At) -> At:
        """Save the plan of a step before it writes to a topic. Return the position with it."""
        return self.save(at) if self._table is None else at

    def save(self, at: At) -> At:
        """Save the position; in a table, in one commit with files and gaps, which after a restart removes all rows."""
        if self._table is None:
            self._positions.check_alone()
            self._positions.save({"": at})
        else:
            now_ms = SystemClock().now_ms()
            of_gaps = [fact_of_gap(gap.epoch, Gap(gap.from_seq, gap.to_seq, gap.reason, now_ms)) for gap in self.gaps]
            try:
                self._table.commit(
                    self.facts_of(at), self.adds, () if self.restarts else self.removes,
                    facts=dict(of_gaps), schema=self.schema if self.restarts else None,
                    note={"run": self._job.report.run_id},
                )  # fmt: skip
            except Moved as error:
                raise Failed(str(error), next="stop one of the two runs") from None
            self.gaps = self.adds = self.removes = ()
        self.restarts = False
        return at


# --- tasks

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def run_tasks(parts: DataFrame, task: Task, outcome: type[Result]) -> Result:
    """Send each partition through a task, which writes its rows. Return the sum of the results."""
    done = parts.mapInArrow(task, "outcome BINARY").collect()
    # Spark does not run a task if it knows that there are no rows.
    found = [bytes(row.outcome) for row in done] or [next(task(iter(()))).column(0)[0].as_py()]
    total = outcome()
    for one in found:
        total.add(msgspec.json.decode(one, type=outcome))
    return total


def answered(outcome: Struct) -> pa.RecordBatch:
    """Return the result of a task as the batch that `run_tasks` expects."""
    return pa.RecordBatch.from_pydict({"outcome": pa.array([_encode(outcome)], pa.binary())})


def key(run: str, part: int, records: list[bytes]) -> str:
    """Return the key of a request. It has a digest, so that a repetition with other records is written, not dropped."""
    return f"{run}/{part}/{xxhash.xxh3_64_hexdigest(framed(records))}"
