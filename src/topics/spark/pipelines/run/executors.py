"""Errands for executors: a list of things to do, spread over Spark's tasks, and what came of each.

Some work is not a transformation of rows but a list of ranges, each to be done in order by somebody. This runs such a
list as a Spark job; it needs no shuffle and works over Connect.
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

Errand = TypeVar("Errand")
Outcome = TypeVar("Outcome", bound=Struct)

MAX_TASKS = 64
_SCHEMA = pa.schema([pa.field("at", pa.int64()), pa.field("outcome", pa.binary())])


def spread(
    spark: SparkSession,
    errands: Sequence[Errand],
    do: Callable[[Errand], Outcome],
    *,
    outcome: type[Outcome],
    weight: Callable[[Errand], int],
) -> list[Outcome]:
    """`do(errand)` for each, somewhere; what they returned, in the order of the errands."""
    if not errands:
        return []
    bins = pack([weight(errand) for errand in errands], min(len(errands), MAX_TASKS))
    given = [[(at, errands[at]) for at in one] for one in bins]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = [{"at": at, "outcome": msgspec.json.encode(do(errand))} for at, errand in given[number]]
                yield pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)

    frame = spark.range(0, len(given), 1, len(given)).mapInArrow(run, "at BIGINT, outcome BINARY")
    found = {row.at: msgspec.json.decode(bytes(row.outcome), type=outcome) for row in frame.collect()}
    return [found[at] for at in range(len(errands))]


def pack(weights: Sequence[int], count: int) -> list[list[int]]:
    """Indices in so many bins of about the same weight: the heaviest first, each into the lightest bin."""
    bins: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for at in sorted(range(len(weights)), key=lambda at: (-weights[at], at)):
        total, number = heapq.heappop(heap)
        bins[number].append(at)
        heapq.heappush(heap, (total + max(weights[at], 1), number))
    return [sorted(one) for one in bins if one]
