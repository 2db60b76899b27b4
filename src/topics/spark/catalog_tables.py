"""Topics as tables of Spark's own catalog: `SELECT * FROM topics.orders`, `INSERT INTO topics.orders (data) …`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from topics.spark.options import BadOption, read_options, with_absolute_paths
from topics.spark.source.schema_layout import layout_of, plain_schema
from topics.spark.source.table_options import with_options
from topics.spark.sql.tables import LEDGER, names_of
from topics.spark.sql.text import quoted


def create_tables(
    spark: SparkSession, options: Mapping[str, str], *, database: str, schemas: Mapping[str, StructType | str]
) -> None:
    """Create or replace a table in `database` for each topic that the options can read.

    `subscribePrefix` in the options limits the topics. `schemas` gives the columns of typed tables, by topic.
    """
    options = with_absolute_paths(options)
    prefix = options.pop("subscribePrefix", "")
    names = {name for name in names_of(options) - {LEDGER} if name.startswith(prefix)}
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
            columns = StructType.fromDDL(schema) if isinstance(schema, str) else schema  # type: ignore[assignment]
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
