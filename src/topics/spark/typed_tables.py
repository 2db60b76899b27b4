"""Typed access to `data`: a topic as a table whose columns are the fields of its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from topics.plurals import counted
from topics.spark.options import BadOption, read_options, with_absolute_paths
from topics.spark.source.catalog import client_for, state_of
from topics.spark.source.layout import PLAIN
from topics.spark.source.schema_layout import MALFORMED, SPARK_TYPES
from topics.spark.sql import kinds

SAMPLE = 1000


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
    record = [t.StructField(f"_{name}", SPARK_TYPES[ddl]) for name, ddl, _ in PLAIN]
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
    return frame if columns is None or len(fields) == len(columns) else frame.select(*map(_quoted, columns))


def infer_schema(spark: SparkSession, topic: str, *, sample: int = SAMPLE, **options: Any) -> t.StructType:
    """Return the schema of `data`: that of the topic, else one for the first `sample` records.

    Raise `ValueError` if none of these is a JSON object.
    """
    given = _given(topic, options)
    if (declared := _declared(topic, given)) is not None:
        return declared
    frame = spark.read.format("topics").options(**given).load()
    rows = frame.where("kind = 'record'").select("data").limit(sample).collect()
    kind = kinds.of_texts(row.data for row in rows)
    if not isinstance(kind, dict) or not kind:
        raise ValueError(f"topic {topic}: no JSON object among {counted(len(rows), 'record')}; pass a schema")
    return _struct(t.DataType.fromDDL(kinds.ddl(kind)))


def _declared(topic: str, given: dict[str, str]) -> t.StructType | None:
    """Return the fields that the schema of the topic names, if it has one and its server is read."""
    options = read_options(given)
    if options.path is not None or options.lake_only:
        return None
    with client_for(options.connection) as client:
        state = state_of(client, topic)
    kind = None if state is None else kinds.of_schema(state.config.schema)
    return _struct(t.DataType.fromDDL(kinds.ddl(kind))) if isinstance(kind, dict) and kind else None


def _given(topic: str, options: dict[str, Any]) -> dict[str, str]:
    given = {"subscribe": topic}
    for name, value in options.items():
        text = str(value).lower() if isinstance(value, bool) else value
        given[name] = str(text) if isinstance(text, str | int) else msgspec.json.encode(value).decode()
    return with_absolute_paths(given)


def _quoted(name: str) -> Column:
    return F.col("`{}`".format(name.replace("`", "``")))


def _struct(schema: t.DataType | str) -> t.StructType:
    found = t.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(found, t.StructType):
        raise BadOption(f"schema: {schema} is not a list of columns, such as sku STRING, qty INT")
    return found
