"""Process a topic range by range and write the results to an output: the loop that `compact` and `rollup` share.

The output stores a `RoundsPosition` beside its data. If the output was deleted, it is filled again from the first seq.
If the source topic was recreated, the run continues with seq 1 of the new epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct, field

from topics.client import Client
from topics.spark.pipelines.rounds.source_frames import SourceTopic
from topics.spark.pipelines.run.delivery import target_of
from topics.spark.pipelines.run.job import PipelineJob
from topics.spark.pipelines.run.lags import heads
from topics.spark.pipelines.run.positions import Positions
from topics.spark.pipelines.run.report import ReportedGap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STEP_SEQS = 1_000_000
_encode = msgspec.json.Encoder().encode


class RoundsPosition(Struct, frozen=True, kw_only=True):
    """How far the output has processed the source topic."""

    epoch: int
    done: int = 0
    generation: int = field(default=0, name="life")  # counts restarts from the first seq; part of every write's key
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
        """Return the name of the topic, directory or file that would be created, or None if it exists."""
        raise NotImplementedError

    def close(self) -> None: ...


class InTopic(Output[At]):
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


class Rounds(Generic[At]):
    """Processes one topic in rounds. A dry run writes nothing to the output."""

    def __init__(
        self, job: PipelineJob, source: SourceTopic, output: Output[At], *, step_seqs: int, full: bool
    ) -> None:
        self._job = job
        self._source = source
        self._output = output
        self._step_seqs = step_seqs
        self._row = job.report.topic(source.topic, into=output.name)
        known = output.load()
        self._generation = 0 if known is None else known.generation + int(full)
        if known is not None and not full:
            self.check_fits(known)
        self._at = None if full else known
        job.lags(source.url, self._note_lag, self._forget_lag)

    # --- the parts that each pipeline implements

    def check_fits(self, known: At) -> None:
        """Raise `BadUsage` if the output holds the result of another declaration."""
        raise NotImplementedError

    def beginning(self, epoch: int, generation: int) -> At:
        """Return the position before the first seq."""
        raise NotImplementedError

    def recreated(self, at: At, epoch: int) -> At:
        """Return the position before the first seq of the topic's new epoch."""
        raise NotImplementedError

    def finish_interrupted(self, at: At) -> At | None:
        """Finish the step of an interrupted run and return the new position, or None if there is no such step."""
        return None

    def upto(self, at: At, head: int) -> int:
        """Return the last seq of the next range."""
        return min(head, at.done + self._step_seqs)

    def take(self, at: At, stop: int) -> At:
        """Process the seqs after `at.done` and before `stop`. Return the new position."""
        raise NotImplementedError

    # --- the run

    def run(self, *, follow: bool, every_s: float) -> None:
        follow = follow and not self._job.dry_run
        for _ in self._job.rounds(follow=follow):
            state = self._source.state()
            while self.step(state.head_seq):
                pass
            self._job.rest()
            if follow and not self._job.stopping.wait(every_s):
                self._source.wait(state)
        if self._job.dry_run and (created := self._output.creates()) is not None and self._row.records:
            self._row.would.append(f"create {created}")
        self.finish()

    def step(self, head: int) -> bool:
        """Finish an interrupted step, or else process the next range. Return False if there is neither."""
        at = self._at = self._position()
        finished = self.finish_interrupted(at)
        if finished is not None:
            self._at = finished
            return True
        last = self.upto(at, head)
        if last <= at.done:
            return False
        self._job.step(f"{self._source.topic}: seqs {at.done + 1} to {last}")
        self._source.warn_if_trimmed(at.epoch, at.done + 1)
        self._row.epoch, self._row.to_seq = at.epoch, last
        self._row.from_seq = self._row.from_seq or at.done + 1
        self._at = self.take(at, last + 1)
        return True

    def _position(self) -> At:
        """Return the position in the present epoch of the topic."""
        state, at = self._source.state(), self._at
        if at is not None and self._output.is_lost(at):
            self._job.warn(f"topic {self._output.name} was deleted: it is filled again from the first seq")
            self._generation, at = at.generation + 1, None
        at = at or self.beginning(state.epoch, self._generation)
        if at.epoch == state.epoch and state.head_seq >= at.done:
            return at
        self._row.gaps.append(ReportedGap(from_seq=at.done + 1, to_seq=at.done + 1, reason="recreated", epoch=at.epoch))
        return self.recreated(at, state.epoch)

    def finish(self) -> None:
        """Add the figures that are known only at the end of a run."""

    def _note_lag(self, client: Client) -> None:
        state, at = heads(client, [self._source.topic]).get(self._source.topic), self._at
        if state is None:
            self._row.lag = None
        else:
            done = at.done if at is not None and at.epoch == state.epoch else 0
            self._row.lag = max(state.head_seq - done, 0)

    def _forget_lag(self) -> None:
        self._row.lag = None

    def add(self, **counts: int) -> None:
        """Add counts to the figures of the report. Zeros are left out."""
        figures = self._row.figures
        figures.update({name: figures.get(name, 0) + count for name, count in counts.items() if count})


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
    return pa.RecordBatch.from_pydict({"outcome": pa.array([_encode(outcome)], pa.binary())})
