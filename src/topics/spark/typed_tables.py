"""Typed access to `data`: a topic as a table whose columns are the fields of its records."""

from __future__ import annotations

from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructType

MALFORMED = "_malformed"
SAMPLE = 1000


def table(spark: SparkSession, topic: str, *, schema: StructType | str | None = None, **options: Any) -> DataFrame:
    """Return the topic with the fields of `data` as columns, typed by `schema`, or by a sample of the records.

    The other columns of the source have an underscore before their names: `_seq`, `_ts`, `_tag` and so on; `_data` is
    the JSON text as it was written. A record that does not fit the schema has its text in `_malformed`, so that no
    record is lost silently. With `failOnDataLoss=false` a lost range is a row whose `_kind` is gap. `options` are the
    options of the source.
    """
    wanted = infer_schema(spark, topic, **options) if schema is None else _struct(schema)
    frame = _load(spark, topic, options)
    parsed = StructType([*wanted.fields]).add(MALFORMED, StringType())
    value = F.from_json("data", parsed, {"columnNameOfCorruptRecord": MALFORMED}).alias("value")
    around = [F.col(f"`{name}`").alias(f"_{name}") for name in frame.columns]
    fields = [F.col("value").getField(name).alias(name) for name in [*wanted.fieldNames(), MALFORMED]]
    return frame.select(value, *around).select(*fields, *[f"_{name}" for name in frame.columns])


def infer_schema(spark: SparkSession, topic: str, *, sample: int = SAMPLE, **options: Any) -> StructType:
    """Return the schema of `data` in the first `sample` records. Raise `ValueError` if none is a JSON object."""
    frame = _load(spark, topic, options)
    rows = frame.where("kind = 'record'").select("data").limit(sample).collect()
    objects = [row.data for row in rows if row.data.startswith("{")]
    if not objects:
        raise ValueError(f"topic {topic}: none of {len(rows)} records is a JSON object; pass a schema")
    # One literal array of all samples: Spark merges its elements into one type. This works over Connect as well.
    [(ddl,)] = spark.range(1).select(F.schema_of_json(F.lit(f"[{','.join(objects)}]"))).collect()
    found = ArrayType.fromDDL(ddl)
    assert isinstance(found, ArrayType)
    assert isinstance(found.elementType, StructType)
    return found.elementType


def _load(spark: SparkSession, topic: str, options: dict[str, Any]) -> DataFrame:
    if any(name.lower() == "kafkacolumns" for name in options):
        raise ValueError("kafkaColumns: a table has its own columns; remove the option")
    reader = spark.read.format("topics").option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(
            name, value if isinstance(value, str | bool | int) else msgspec.json.encode(value).decode()
        )
    return reader.load()


def _struct(schema: StructType | str) -> StructType:
    found = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(found, StructType)
    return found
