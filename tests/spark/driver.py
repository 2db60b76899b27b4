"""A Spark application in a process of its own, for tests that end it or need a session of another kind.

    python -m tests.spark.driver <master> report <url> <source> <destination>
    python -m tests.spark.driver <master> tables <url> <topic> <warehouse>
    python -m tests.spark.driver <master> copy <url> <source> <destination> <checkpoint> <rate> <partitions>

Or the first and the last, one behind the other. `rate` is a number, or `all` for Spark versions without a rate.
`master` is a Spark master, or `connect:` and a remote.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.conftest import CONFIG
from tests.spark.streams import copy, source
from topics.spark import register, session
from topics.spark.source.readers import PUSHDOWN

CLUSTER = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": 1,
}


def start(master: str, config: dict[str, str] | None = None) -> SparkSession:
    if master.startswith("connect:"):
        return session("tests", remote=master.removeprefix("connect:"))
    return session(
        "tests", master=master, config=CONFIG | (CLUSTER if master.startswith("spark://") else {}) | (config or {})
    )


def stream(spark: SparkSession, url: str, topic: str, into: str, checkpoint: str, rate: str, partitions: str) -> None:
    limits = {} if rate == "all" else {"maxOffsetsPerTrigger": rate}
    frame = source(spark, url, subscribe=topic, minPartitions=partitions, **limits)
    copy(frame, url, Path(checkpoint), topic=into)


def report(spark: SparkSession, url: str, topic: str, into: str) -> None:
    """Read a topic in several tasks, copy it, and print the counts."""
    frame = spark.read.format("topics").options(url=url, subscribe=topic, minPartitions="4").load()
    frame.write.format("topics").options(url=url, topic=into).mode("append").save()
    count, total = frame.selectExpr("count(*)", "sum(seq)").collect()[0]
    partitions = frame.selectExpr("spark_partition_id()").distinct().count()
    print(json.dumps({"count": count, "sum": total, "partitions": partitions}), flush=True)


def tables(spark: SparkSession, url: str, topic: str) -> None:
    """Read a topic as tables of the catalog and with a filter that Spark pushes, and print what was read."""
    register(spark, url=url, subscribePrefix=topic, schemas={topic: "n INT, _seq BIGINT"})
    spark.sql(f"CREATE TABLE topics.by_hand USING topics OPTIONS (url '{url}', subscribe '{topic}')")
    ending = json.dumps({topic: 4})
    late = spark.sql(f"SELECT seq FROM topics.by_hand WITH (endingOffsets = '{ending}')")
    spark.conf.set(PUSHDOWN, "true")
    reader = spark.read.format("topics").options(url=url, subscribe=topic, minPartitions="4", pushFilters="true")
    every, few = reader.load(), reader.load().where("seq <= 10")  # a DataFrame keeps the plan of its first query
    found = {
        "typed": list(spark.sql(f"SELECT count(*), sum(n), max(_seq) FROM topics.{topic}").collect()[0]),
        "by_hand": spark.table("topics.by_hand").count(),
        "with_option": sorted(row.seq for row in late.collect()),
        "pushed": sorted(row.seq for row in few.select("seq").collect()),
        "partitions": [few.rdd.getNumPartitions(), every.rdd.getNumPartitions()],
    }
    print(json.dumps(found), flush=True)


def main() -> None:
    master, *arguments = sys.argv[1:]
    if arguments[:1] == ["tables"]:
        _, url, topic, warehouse = arguments
        spark = start(master, {"spark.sql.warehouse.dir": warehouse})
        tables(spark, url, topic)
        spark.stop()
        return
    spark = start(master)
    if arguments[:1] == ["report"]:
        report(spark, *arguments[1:4])
        arguments = arguments[4:]
    if arguments[:1] == ["copy"]:
        stream(spark, *arguments[1:])
    spark.stop()


if __name__ == "__main__":
    main()
