"""Where the tasks of a job run: on Spark executors, or in threads of this process without PySpark or with `--no-spark`.

The results are the same: both run the same task functions.
"""

from __future__ import annotations

import heapq
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec
import pyarrow as pa

from topics.installation import is_installed
from topics.spark.pipelines.run.report import Execution
from topics.spark.source.read import limited

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_THREADS = 4
MAX_TASKS = 10_000
TASK_BYTES = 64 << 20  # a task gets about as much, if there is enough for all executors
ITEMS_A_JOB = 50_000  # every task receives the items of its job, in pieces that it does not decode
HERE, ON_SPARK = "in this process", "on Spark"
_SCHEMA = pa.schema([pa.field("at", pa.int64()), pa.field("result", pa.binary())])


class Tasks:
    """Runs tasks, several at the same time: on the executors of a Spark session, or in threads of this process."""

    def __init__(self, spark: SparkSession | None = None, *, max_bytes_per_second: int | None = None) -> None:
        """`max_bytes_per_second` limits what all tasks of a run together read from a server."""
        self.spark, self._max_bytes_per_second = spark, max_bytes_per_second

    @cached_property
    def parallelism(self) -> int:
        if self.spark is None:
            return min(os.cpu_count() or 1, MAX_THREADS)
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F

        try:
            return int(self.spark.sparkContext.defaultParallelism)
        except PySparkException:  # a Connect session does not say; a range without a number of partitions has as many
            return int(self.spark.range(1 << 12).select(F.spark_partition_id()).distinct().count())

    def run(
        self,
        items: Sequence[Item],
        task: Callable[[Item], Result],
        *,
        result: type[Result],
        weight: Callable[[Item], int],
    ) -> list[Result]:
        """Run `task(item)` for each item. Return the results in the order of the items. A weight is a size in bytes.

        On Spark each task processes a list of items, without a shuffle and without an RDD, which Spark Connect lacks.
        """
        if self._max_bytes_per_second is not None and items:
            share = max(self._max_bytes_per_second // min(len(items), self.parallelism), 1)
            task = partial(limited, task=task, bytes_per_second=share)
        if self.spark is None:
            return in_threads(items, task, weight=weight)
        found: list[Result] = []
        for at in range(0, len(items), ITEMS_A_JOB):
            found += self._on_executors(items[at : at + ITEMS_A_JOB], task, result, weight)
        return found

    def _on_executors(
        self, items: Sequence[Item], task: Callable[[Item], Result], result: type[Result], weight: Callable[[Item], int]
    ) -> list[Result]:
        assert self.spark is not None
        weights = [weight(item) for item in items]
        count = min(len(items), MAX_TASKS, max(-(-sum(weights) // TASK_BYTES), 2 * self.parallelism))
        given = [pickle.dumps([(at, items[at]) for at in one]) for one in pack(weights, count)]

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    mine = pickle.loads(given[number])
                    rows = [{"at": at, "result": msgspec.json.encode(task(item))} for at, item in mine]
                    yield pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)

        frame = self.spark.range(0, len(given), 1, len(given)).mapInArrow(work, "at BIGINT, result BINARY")
        found = {row.at: msgspec.json.decode(bytes(row.result), type=result) for row in frame.collect()}
        return [found[at] for at in range(len(items))]


def pack(weights: Sequence[int], count: int) -> list[list[int]]:
    """Distribute indices over `count` bins of similar weight: the heaviest first, each into the lightest bin."""
    bins: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for at in sorted(range(len(weights)), key=lambda at: (-weights[at], at)):
        total, number = heapq.heappop(heap)
        bins[number].append(at)
        heapq.heappush(heap, (total + max(weights[at], 1), number))
    return [sorted(one) for one in bins if one]


def choose(*, asked: bool | None = None, spark_only: str | None = None, why: str | None = None) -> Execution:
    """Return where tasks run, and why: on Spark, unless it is not installed or the caller wants this process.

    `asked` is the choice of the caller: True for Spark, False for this process. `spark_only` is the reason why only
    Spark can do the work; `why` is another reason for Spark, such as a session that has started already.
    """
    if spark_only is not None:
        return Execution(engine="spark", reason=f"{ON_SPARK}{f', {why}' if why else ''}: {spark_only}")
    if asked is not None:
        where = ON_SPARK if asked else HERE
        return Execution(engine="spark" if asked else "process", reason=f"{where}, as requested")
    if why is None and not is_installed("pyspark"):
        return Execution(engine="process", reason=f"{HERE}: PySpark is not installed")
    return Execution(engine="spark", reason=f"{ON_SPARK}{'' if why is None else f', {why}'}")


def in_threads(
    items: Sequence[Item], task: Callable[[Item], Result], *, weight: Callable[[Item], int] = lambda item: 1
) -> list[Result]:
    """Run `task(item)` for each item, the heaviest first. Return the results in the order of the items.

    If a task fails or the caller is interrupted, no further task begins. Those that run end with the process at the
    latest: the threads of the pool are daemons.
    """
    if len(items) < 2:
        return [task(item) for item in items]
    failed = threading.Event()

    def work(at: int) -> tuple[int, Result | None]:
        try:
            return at, None if failed.is_set() else task(items[at])
        except BaseException:
            failed.set()
            raise

    heaviest_first = sorted(range(len(items)), key=lambda at: -weight(items[at]))
    with ThreadPool(min(len(items), MAX_THREADS)) as pool:
        found = dict(pool.imap_unordered(work, heaviest_first))
    return [cast(Result, found[at]) for at in range(len(items))]
