"""Run a list of work items on Spark executors and collect their results.

Some work is not a transformation of rows but a list of ranges, each processed in order by one task. It needs no shuffle
and works over Spark Connect.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result", bound=Struct)

MAX_TASKS = 64
_SCHEMA = pa.schema([pa.field("at", pa.int64()), pa.field("result", pa.binary())])


def run_on_executors(
    spark: SparkSession,
    items: Sequence[Item],
    task: Callable[[Item], Result],
    *,
    result: type[Result],
    weight: Callable[[Item], int],
) -> list[Result]:
    """Run `task(item)` for each item on some executor. Return the results in the order of the items."""
    if not items:
        return []
    bins = pack([weight(item) for item in items], min(len(items), MAX_TASKS))
    given = [[(at, items[at]) for at in one] for one in bins]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = [{"at": at, "result": msgspec.json.encode(task(item))} for at, item in given[number]]
                yield pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)

    frame = spark.range(0, len(given), 1, len(given)).mapInArrow(run, "at BIGINT, result BINARY")
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
