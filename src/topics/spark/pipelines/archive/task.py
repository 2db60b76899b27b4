"""Write spans of topics to Parquet files of a lake, on executors or in threads of one process.

A task reads its spans as `format("topics")` does, writes their records to files next to the table of the topic, and
returns the files and the gaps to the driver. Records do not pass through the JVM, which would take longer than all the
rest. The driver commits the returned files; files of failed or repeated tasks are not committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec
import pyarrow as pa
from msgspec import Struct

from topics.arrow import GAP
from topics.clock import SystemClock
from topics.lake import File, Gap, TypedColumns, write_files
from topics.lake.storage import Storage
from topics.lake.write import NO_COLUMNS
from topics.spark.options import ConnectionOptions
from topics.spark.pipelines.run.tasks import SparkTasks, Tasks, in_threads
from topics.spark.source.plan import Span
from topics.spark.source.read import How, read_span


class Done(Struct, frozen=True):
    """The result for a span: every seq is in a file, in a gap, or was deleted."""

    span: Span
    files: list[File]
    gaps: list[Gap]


_decode_done = msgspec.json.Decoder(list[Done]).decode


def archive_spans(
    tasks: Tasks,
    parts: Sequence[Sequence[Span]],
    *,
    connection: ConnectionOptions,
    lake: str,
    typed: Mapping[str, TypedColumns],
) -> list[Done]:
    """Run one task per part and return the results. `typed` has the typed columns of topics.

    On Spark it uses an RDD, because a data source would start three more Python processes for its planning.
    """
    how = How(connection=connection, fail_on_data_loss=False)
    work = partial(archive_part, how=how, lake=lake, typed=dict(typed))
    if isinstance(tasks, SparkTasks):
        rdd = tasks.spark.sparkContext.parallelize([list(part) for part in parts], len(parts))
        found: list[bytes] = rdd.map(work).collect()
    else:
        found = in_threads(parts, work, weight=_seqs)
    return [done for one in found for done in _decode_done(one)]


def _seqs(part: Sequence[Span]) -> int:
    return sum(span.stop - span.start for span in part)


def archive_part(spans: Sequence[Span], *, how: How, lake: str, typed: Mapping[str, TypedColumns]) -> bytes:
    """Archive the spans of one task. Return the results as JSON, so that the driver's decoder checks them."""
    storage = Storage(lake)
    done = [archive_span(span, how, storage=storage, typed=typed.get(span.topic, NO_COLUMNS)) for span in spans]
    return msgspec.json.encode(done)


def archive_span(span: Span, how: How, *, storage: Storage, typed: TypedColumns = NO_COLUMNS) -> Done:
    """Read a span to its end and write its records to files."""
    gaps: list[Gap] = []

    def records() -> Iterator[pa.RecordBatch]:
        for batch in read_span(span, how):
            if batch.num_rows == 1 and batch.column("kind")[0].as_py() == GAP:
                [row] = batch.to_pylist()
                gaps.append(Gap(row["seq"], row["gap_to"], row["reason"], SystemClock().now_ms()))
            else:
                yield batch

    return Done(span, write_files(storage, span.topic, span.epoch, records(), typed=typed), gaps)
