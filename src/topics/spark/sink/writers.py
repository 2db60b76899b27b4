"""Append the rows of a batch, or of a stream's micro-batches, to topics.

A repeated task or batch sends the same requests under the same idempotency keys (`chunks`), so it writes nothing twice.
Records are readable as soon as a task has sent them. A log cannot remove records, so there is no commit or abort.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from topics.spark.options import WriteOptions
from topics.spark.sink.chunks import GridChunks, OrderedChunks, Sent, send
from topics.spark.sink.rows import Renderer
from topics.spark.source.catalog import client_for, state_of

QUERY_ID = "sql.streaming.queryId"  # of the checkpoint: survives restarts
BATCH_ID = "streaming.sql.batchId"


class NotAppend(ValueError):
    """The write mode would have to remove records from a log."""


class ShortWindow(ValueError):
    """The idempotency window of the topic is shorter than the query needs."""


class TaskWrites(WriterCommitMessage):
    """What a task wrote, as Spark takes it."""

    def __init__(self, sent: Sent) -> None:
        self.records, self.repeated = sent.records, sent.repeated


class _Writer:
    not_append: str  # why rows cannot be replaced
    write_id: str | None = None  # of a batch

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise NotAppend(self.not_append)
        self._options = options
        self._renderer = Renderer(schema, topic=options.topic, data_format=options.data_format)
        check_window(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWrites:
        """Write the rows of a task. Keys have query and batch of a stream (also in `foreachBatch`), or the write id."""
        task, options = TaskContext.get(), self._options
        query = None if task is None else task.getLocalProperty(QUERY_ID)
        batch = None if task is None else task.getLocalProperty(BATCH_ID)
        if query is not None and batch is not None:
            run = f"spark/{query}/{batch}" + (f"/{options.write_id}" if options.write_id else "")
        elif self.write_id is None:
            raise RuntimeError("Spark did not name the query of a streaming task, so its rows cannot be written once")
        else:
            run = f"spark/{self.write_id}"
        return write_rows(iterator, options, self._renderer, run)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write`. Created once and sent to the tasks, so its id is the same in every attempt."""

    not_append = 'a topic is a log: its records cannot be replaced; write with mode("append")'

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self.write_id = options.write_id or uuid.uuid4().hex


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream`. Spark creates one per micro-batch."""

    not_append = (
        "output mode complete replaces earlier rows, and the records of a topic cannot be replaced: "
        'use outputMode("append"), or write the batches of foreachBatch'
    )


def write_rows(batches: Iterable[pa.RecordBatch], options: WriteOptions, renderer: Renderer, run: str) -> TaskWrites:
    task = TaskContext.get()
    grid = GridChunks(run, key_by=options.key_by)
    plain = OrderedChunks(run, 0 if task is None else task.partitionId(), sort=options.sort_rows)
    done = Sent()
    with client_for(options.connection) as client:
        for batch in batches:
            sourced_rows, plain_rows = renderer.rows(batch)
            send(client, options, grid.add(sourced_rows), done)
            send(client, options, plain.add(plain_rows), done)
        send(client, options, grid.finish(), done)
        send(client, options, plain.finish(), done)
    return TaskWrites(done)


def check_window(options: WriteOptions) -> None:
    """Raise `ShortWindow` if idempotencyWindowMs is set and the existing topic has a shorter window."""
    if options.window_ms is None or options.topic is None:
        return
    with client_for(options.connection) as client:
        state = state_of(client, options.topic)
    if state is not None and state.config.idempotency_window_ms < options.window_ms:
        raise ShortWindow(
            f"topic {options.topic} has an idempotency window of {state.config.idempotency_window_ms} ms, less than "
            f"idempotencyWindowMs={options.window_ms}; raise it with "
            f'PUT /v0/topics/{options.topic} {{"idempotency_window_ms": {options.window_ms}}}'
        )
