"""Outputs of `compact` and `rollup`: a topic, or Parquet files. An output stores results and the position of the run.

This module owns what both pipelines do with an output: load and save the position, create the topic or path, publish a
file atomically, append rows in repeatable requests, and count them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct, field

from topics.client import Client
from topics.spark.pipelines.run.delivery import target_of
from topics.spark.pipelines.run.job import PipelineJob
from topics.spark.pipelines.run.positions import Positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


class OutputPath(Output[At]):
    """An output of Parquet: one file, or a directory of files."""

    def __init__(self, path: str) -> None:
        self.name = os.path.abspath(path)

    def creates(self) -> str | None:
        return None if os.path.exists(self.name) else self.name


# --- files


def publish(staged: str, path: str) -> None:
    """Rename a synced file to its path, and sync the folder, so that the rename survives a power failure."""
    os.replace(staged, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def replace_file(path: str, data: bytes) -> None:
    """Write or replace a small file atomically."""
    staged = f"{path}.tmp"
    with open(staged, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    publish(staged, path)


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
