"""The class that Spark loads for `format("topics")`, and its writers, which append rows to topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import pyarrow as pa
from msgspec import structs
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructField, StructType

from topics.spark.options import BadOption, WriteOptions, patient, read_options, write_options
from topics.spark.sink.chunks import GridChunks, OrderedChunks, Sent, send
from topics.spark.sink.first_requests import FirstRequests
from topics.spark.sink.rows import Renderer
from topics.spark.source.catalog import client_for, state_of
from topics.spark.source.readers import FilteringReader, TopicsReader, TopicsStreamReader
from topics.spark.source.schema_layout import plain_schema

# --- options of a table in Spark's catalog: `CREATE TABLE orders USING topics OPTIONS (url '…', subscribe 'orders')`
#
# Spark passes the options of a table to a Python source only once, when CREATE TABLE asks for the schema. Later it
# passes the schema alone. So the schema carries the options, as metadata of its first column. Tables are for reading: a
# writer does not get the schema of its table, but that of the rows, which may come from another one.

KEY = "topics"
PREFIX = "option."  # CREATE TABLE passes each option twice, once with this prefix, between properties of the table
_CHOICES = ("subscribe", "subscribeprefix", "subscribepattern", "path")


def of_create_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of CREATE TABLE, or None if the options are those of a DataFrame or a view."""
    keys = list(given)
    if not any(key.lower() == "provider" for key in keys):
        return None
    return {key[len(PREFIX) :]: given[key] for key in keys if key.lower().startswith(PREFIX)}


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema with the options in its metadata. Raise `BadOption` for a key: catalogs are readable."""
    if any(name.lower() == "token" for name in options):
        raise BadOption("token: the catalog would store the key in plain text; use tokenFile for a table")
    first, *rest = schema.fields
    metadata = {**(first.metadata or {}), KEY: msgspec.json.encode(dict(options)).decode()}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *rest])


def for_reading(given: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """Return the options of a reader: those of the query, over those of the table if the schema has some."""
    stored = _stored(schema)
    if stored is None:
        if not len(given):
            raise BadOption(
                "the table has no options: Spark drops them if CREATE TABLE lists columns; create it without a list of "
                "columns, as a temporary view, or with topics.spark.register"
            )
        return given
    if any(key.lower() in _CHOICES for key in given):
        return given
    own = {key.lower() for key in given}
    return {key: stored[key] for key in stored if key.lower() not in own} | {key: given[key] for key in given}


def _stored(schema: StructType) -> dict[str, str] | None:
    for field in schema.fields:
        if (text := (field.metadata or {}).get(KEY)) is not None:
            return msgspec.json.decode(text, type=dict[str, str])
    return None


# --- writers
#
# A repeated task or batch sends the same requests under the same idempotency keys (`topics.spark.sink.chunks`), so it
# writes nothing twice. Records are readable as soon as a task has sent them. A log cannot remove records, so there is
# no commit or abort.

QUERY_ID = "sql.streaming.queryId"  # of the checkpoint: survives restarts
BATCH_ID = "streaming.sql.batchId"
ATTEMPT = "spark.jobGroup.id"  # of a stream: one for each start of the query
KEPT = "topics"  # in the checkpoint: see `FirstRequests`


class _Writer:
    not_append: str  # why rows cannot be replaced
    write_id: str | None = None  # of a batch

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise BadOption(self.not_append)
        self._options = options
        self._renderer = Renderer(schema, topic=options.topic, data_format=options.data_format)
        check_window(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task. Keys have query and batch of a stream (also in `foreachBatch`), or the write id."""
        task, options, first = TaskContext.get(), self._options, None
        query = None if task is None else task.getLocalProperty(QUERY_ID)
        batch = None if task is None else task.getLocalProperty(BATCH_ID)
        if task is not None and query is not None and batch is not None:
            if options.checkpoint is not None and options.key_by != "range":
                first = FirstRequests(
                    Path(options.checkpoint, KEPT, batch), task.getLocalProperty(ATTEMPT) or "",
                    f"{task.stageId()}.{task.partitionId()}",
                )  # fmt: skip
            run = f"spark/{query}/{batch}" + (f"/{options.write_id}" if options.write_id else "")
        elif self.write_id is None:
            raise RuntimeError("Spark did not name the query of a streaming task, so its rows cannot be written once")
        else:
            run = f"spark/{self.write_id}"
        write_rows(iterator, options, self._renderer, run, first)
        return WriterCommitMessage()


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


def write_rows(
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions,
    renderer: Renderer,
    run: str,
    first: FirstRequests | None = None,
) -> Sent:
    task = TaskContext.get()
    grid = GridChunks(run, key_by=options.key_by, repeated=None if first is None else first.repeated)
    plain = OrderedChunks(run, 0 if task is None else task.partitionId(), sort=options.sort_rows)
    done = Sent()
    with client_for(options.connection) as client:
        for batch in batches:
            sourced_rows, plain_rows = renderer.rows(batch)
            send(client, options, grid.add(sourced_rows), done)
            send(client, options, plain.add(plain_rows), done)
        send(client, options, grid.finish(), done)
        send(client, options, plain.finish(), done)
    return done


def check_window(options: WriteOptions) -> None:
    """Raise `BadOption` if idempotencyWindowMs is set and the existing topic has a shorter window."""
    if options.window_ms is None or options.topic is None:
        return
    with client_for(options.connection) as client:
        state = state_of(client, options.topic)
    if state is not None and state.config.idempotency_window_ms < options.window_ms:
        raise BadOption(
            f"topic {options.topic} has an idempotency window of {state.config.idempotency_window_ms} ms, less than "
            f"idempotencyWindowMs={options.window_ms}; raise it with "
            f'PUT /v0/topics/{options.topic} {{"idempotency_window_ms": {options.window_ms}}}'
        )


# --- the source


class TopicsSource(DataSource):
    """`format("topics")` for read, readStream, write and writeStream."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> StructType:
        table = of_create_table(self.options)
        schema = plain_schema(read_options(self.options if table is None else table))
        return schema if table is None else with_options(schema, table)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(for_reading(self.options, schema))
        return (FilteringReader if options.push_filters else TopicsReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        given = for_reading(self.options, schema)
        options = read_options(given)
        options = structs.replace(options, connection=patient(options.connection, given))
        return TopicsStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self._write_options(schema), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(self._write_options(schema), schema, overwrite=overwrite)

    def _write_options(self, schema: StructType) -> WriteOptions:
        if _stored(schema) is not None and not any(key.lower() in ("url", "topic") for key in self.options):
            raise BadOption('a table of topics is for reading; append rows with df.write.format("topics")')
        return write_options(self.options)
