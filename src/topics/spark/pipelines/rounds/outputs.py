"""Outputs of `compact` and `rollup`: a topic or a Delta table. An output stores results and the position of the run.

This module owns what both pipelines do with an output: load and save the position, create the topic or table, commit
the files that tasks wrote, and run a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct

from topics.client import Client
from topics.clock import SystemClock
from topics.lake import Gap, facts
from topics.lake.delta.output import OutputTable
from topics.lake.delta.rows import RowsFile
from topics.lake.errors import Moved, NoLake, NoTable
from topics.spark.failures import BadUsage, Failed
from topics.spark.pipelines.run.delivery import target_of
from topics.spark.pipelines.run.job import PipelineJob
from topics.spark.pipelines.run.positions import Positions
from topics.spark.pipelines.run.report import ReportedGap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLACE = "give --table a new or an empty directory, or a URL such as s3://bucket/table"
_encode = msgspec.json.Encoder().encode


class RoundsPosition(Struct, frozen=True, kw_only=True):
    """How far the output has processed the source topic."""

    epoch: int
    done: int = 0
    generation: int = 0  # counts restarts from the first seq; part of every write's key
    target_epoch: int = 0  # epoch of the output topic; 0 if it does not exist or the output is not a topic


At = TypeVar("At", bound=RoundsPosition)
Result = TypeVar("Result", bound=Struct)


class Output(Generic[At]):
    """Receives results and stores the position."""

    name: str

    def load(self) -> At | None:
        raise NotImplementedError

    def save(self, at: At) -> None:
        raise NotImplementedError

    def target(self) -> tuple[int, int]:
        """Return epoch and head of the output topic, or zeros if there is none."""
        return 0, 0

    def is_lost(self, at: At) -> bool:
        """Return whether the results up to this position were deleted as a whole."""
        return False

    def creates(self) -> str | None:
        """Return the topic or table that would be created, or None if it exists."""
        raise NotImplementedError

    def restart(self) -> None:
        """Prepare for a run that starts again at the first seq."""

    def set_gaps(self, gaps: Iterable[ReportedGap]) -> None:
        """Set the gaps that are recorded with the next position, if the output has a place for them."""


class OutputTopic(Output[At]):
    """An output topic. Its position is stored among the positions of its server."""

    def __init__(
        self, job: PipelineJob, client: Client, into: str, kind: type[At], *, prefix: str, positions: str
    ) -> None:
        self.name = into
        self._client = client
        self._kind = kind
        self._connection = job.connection(client.url)
        self._positions = Positions(client, prefix, run=job.report.run_id, topic=positions)

    def load(self) -> At | None:
        return self._positions.load(self._kind).get("")

    def save(self, at: At) -> None:
        self._positions.check_alone()
        self._positions.save({"": at})

    def target(self) -> tuple[int, int]:
        return target_of(self._client, self.name)

    def is_lost(self, at: At) -> bool:
        return at.target_epoch != 0 and self.target()[0] != at.target_epoch

    def creates(self) -> str | None:
        return None if self.target()[0] else f"topic {self.name}"


class TableOutput(Output[At]):
    """A Delta table. One commit has the rows of a round, its gaps, and the position."""

    def __init__(self, job: PipelineJob, where: str, *, kept_hours: int) -> None:
        try:
            self.table = OutputTable(where, job.report.pipeline, kept_hours=kept_hours)
        except NoLake as error:
            raise BadUsage(str(error), next=PLACE) from None
        self.name = self.table.uri
        self._note = {"run": job.report.run_id}
        self._gaps: dict[str, int] = {}
        self._restarts = False

    def creates(self) -> str | None:
        return None if self.table.exists() else f"table {self.name}"

    def restart(self) -> None:
        self._restarts = True

    def set_gaps(self, gaps: Iterable[ReportedGap]) -> None:
        now_ms = SystemClock().now_ms()
        self._gaps = {}
        for gap in gaps:
            self._gaps |= facts.of_gap(gap.epoch, Gap(gap.from_seq, gap.to_seq, gap.reason, now_ms))

    def load_position(self) -> Mapping[str, int]:
        """Return the position in the table. Raise `BadUsage` if the place holds something else."""
        try:
            return self.table.load()
        except NoTable as error:
            raise BadUsage(str(error), next=PLACE) from None

    def commit_rows(
        self, position: Mapping[str, int], schema: pa.Schema, adds: Sequence[RowsFile], removes: Sequence[str] = ()
    ) -> None:
        """Commit files and position. After a restart, the commit removes all earlier rows."""
        try:
            self.table.commit(
                position, adds, () if self._restarts else removes,
                facts=self._gaps, schema=schema if self._restarts else None, note=self._note,
            )  # fmt: skip
        except Moved as error:
            raise Failed(str(error), next="stop one of the two runs") from None
        self._gaps, self._restarts = {}, False


# --- tasks


class Task(Protocol):
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]: ...


def one_task(rows: DataFrame, task: Task, outcome: type[Result], *, order: tuple[str, ...] = ()) -> Result:
    """Send all rows, sorted by `order`, through one task, which writes them. Return the result of the task."""
    from pyspark.sql import functions as F

    together = rows.repartition(1)
    if order:
        together = together.sortWithinPartitions(*(F.col(name).asc_nulls_first() for name in order))
    done = together.mapInArrow(task, "outcome BINARY").collect()
    # Spark does not run a task if it knows that there are no rows.
    found: Any = bytes(done[0].outcome) if done else next(task(iter(()))).column(0)[0].as_py()
    return msgspec.json.decode(found, type=outcome)


def answered(outcome: Struct) -> pa.RecordBatch:
    """Return the result of a task as the batch that `one_task` expects."""
    return pa.RecordBatch.from_pydict({"outcome": pa.array([_encode(outcome)], pa.binary())})
