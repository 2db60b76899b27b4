"""Sessions that know the data source."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from topics.spark.java import find_java
from topics.spark.source.data_source import TopicsSource

REGISTERED = "topics.source.registered"  # a setting of ours: it lives as long as what it tells of


def register(spark: SparkSession) -> SparkSession:
    """Makes `format("topics")` known to a session, Connect sessions included. May be called twice."""
    # Spark warns of a source that replaces one, even if it is the same.
    if spark.conf.get(REGISTERED, None) is None and not _is_found(spark):
        spark.dataSource.register(TopicsSource)
        spark.conf.set(REGISTERED, "true")
    return spark


def _is_found(spark: SparkSession) -> bool:
    """Whether Spark has found `pyspark_topics` by itself, in a way that executors can follow.

    What it finds is run by the driver's Python and without the files of `--py-files`, so with either of them the
    source is registered. A Connect session cannot be asked.
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
    """A session with the source registered: the running one, or a new one.

    Finds a Java where the machine has none, and has executors run the Python that runs this.
    """
    if remote is None:
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
    for name, value in (config or {}).items():
        builder = builder.config(name, str(value))
    return register(builder.getOrCreate())
