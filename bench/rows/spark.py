"""w13: Spark reads a whole topic, as records and as typed columns, from the server, the data directory and a lake."""

from __future__ import annotations

import http.client
import os
import shutil
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from api import Api
from fill import send_all
from payload import appends
from peers import running, start_topics
from plan import Plan
from row import Ask, Outcome, Reading, Row, at_least
from turns import Contender, ratio, take_turns

CORES = 2
WARM_UPS = 2
KEYS = ("server", "directory", "typed, server", "typed, directory", "typed, lake")
TYPED_SCHEMA = "sku STRING, total BIGINT"
JSON_SCHEMA = "`$seq` BIGINT, `$ts` BIGINT, `$node` STRING, `$tag` STRING, meta STRING, data STRING"


def measure(plan: Plan) -> Outcome:
    if not (find_spec("pyspark") and find_spec("pyarrow")):
        note = "pip install 'topics-engine[spark]'"
        return Outcome([Reading(key=key, value=None, missing=True, note=note) for key in KEYS])
    records = plan.scale.records
    lines = plan.fresh_dir("lines") / "t.jsonl"
    stopped = plan.fresh_dir("stopped")
    with running(start_topics(plan, plan.fresh_dir("topics"))) as server:
        Api(server.port).create("t", durability="disk")
        send_all(server.port, appends("t", records, per_request=1_000))
        _save_lines(server.port, lines)
        server.stop()  # so that a directory is compared whose records are in segments, not in the log
    shutil.copytree(plan.work_dir / "topics", stopped, dirs_exist_ok=True)
    with ExitStack() as stack:
        server = stack.enter_context(running(start_topics(plan, plan.work_dir / "topics")))
        url = f"http://127.0.0.1:{server.port}"
        lake = str(plan.fresh_dir("lake"))
        _archive(url, lake)
        spark = session()
        stack.callback(spark.stop)
        # Every round builds a new DataFrame, because a DataFrame keeps the plan of its first query.
        ways = {
            "topics, from the server": lambda: _source(spark).option("url", url).load(),
            "topics, from the directory": lambda: _source(spark).option("path", str(stopped)).load(),
            "spark.read.json with a schema": lambda: (
                spark.read.schema(JSON_SCHEMA).json(str(lines)).withColumnRenamed("$seq", "seq")
            ),
        }
        typed_ways = {
            "typed, from the server": lambda: _source(spark).option("url", url).schema(TYPED_SCHEMA).load(),
            "typed, from the directory": lambda: (
                _source(spark).option("path", str(stopped)).schema(TYPED_SCHEMA).load()
            ),
            "typed, from the lake": lambda: _lake_table(spark, lake),
            "spark.read.json, typed": lambda: (
                spark.read.schema(f"data STRUCT<{TYPED_SCHEMA}>").json(str(lines)).selectExpr("data.*")
            ),
        }
        runs = [(name, way, _rate) for name, way in ways.items()]
        runs += [(name, way, _typed_rate) for name, way in typed_ways.items()]
        for _, way, rate in runs * WARM_UPS:
            rate(way, records)
        contenders = [
            Contender(name=name, unit="records/s", run=lambda way=way, rate=rate: rate(way, records))
            for name, way, rate in runs
        ]
        sides = take_turns(contenders, rounds=plan.scale.rounds)
    ours, directory, peer, *typed, typed_peer = sides
    pairs = [(ours, peer), (directory, peer), *((one, typed_peer) for one in typed)]
    return Outcome([ratio(key, *pair) for key, pair in zip(KEYS, pairs, strict=True)], sides)


def session() -> Any:
    from topics import spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    config = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": 1,
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    return spark.session("bench", master=f"local[{CORES}]", config=config)


def _source(spark: Any) -> Any:
    return spark.read.format("topics").option("subscribe", "t").option("minPartitions", CORES)


def _archive(url: str, lake: str) -> None:
    """Archive the topic with typed columns, without Spark."""
    from topics.spark.pipelines.archive.driver import archive

    archive(url=url, lake=lake, topics=["t"], columns=TYPED_SCHEMA, spark=False)


def _lake_table(spark: Any, lake: str) -> Any:
    """Return the typed columns as `topics sql --lake` reads them."""
    from topics.spark.sql.on_spark import SparkTables

    SparkTables(spark, {"lake": lake, "lakeOnly": "true"}).run("SELECT sku, total FROM t")
    return spark.table("t").select("sku", "total")  # the view of the statement


def _rate(way: Any, records: int) -> float:
    """Return the records per second, planning included, of a query for count and sum of seq."""
    started = time.perf_counter()
    [(count, total)] = way().selectExpr("count(seq)", "sum(seq)").collect()
    elapsed = time.perf_counter() - started
    assert (count, total) == (records, records * (records + 1) // 2), f"read {count} records that sum to {total}"
    return records / elapsed


def _typed_rate(way: Any, records: int) -> float:
    """Return the records per second, planning included, of a query that groups by a field and sums another."""
    started = time.perf_counter()
    rows = way().groupBy("sku").agg({"total": "sum", "*": "count"}).collect()
    elapsed = time.perf_counter() - started
    assert [row["count(1)"] for row in rows] == [records], f"read {rows}"
    return records / elapsed


def _save_lines(port: int, path: Path) -> None:
    """Return the same records as JSON lines with tags, without the last line of a bulk read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"content-type": "application/json", "accept": "application/x-ndjson"}
    connection.request("POST", "/v0/topics/t/scan", b'{"include_tags":true}', headers)
    body = connection.getresponse().read()
    connection.close()
    end = body.rindex(b'{"end"')
    path.write_bytes(body[:end])


ROW = Row(
    id="w13",
    title="Spark reads 1 M records of a topic: count and sum of seq; typed: a sum grouped by a field of data",
    peer="spark.read.json with a schema over the same records as JSON lines",
    asks=(
        Ask(key="server", bar=at_least(1), goal=at_least(2), cpu_bound=False),
        Ask(key="directory", bar=at_least(1), goal=at_least(2), cpu_bound=False),
        Ask(key="typed, server", bar=at_least(1.5), goal=at_least(3), cpu_bound=False),
        Ask(key="typed, directory", bar=at_least(1.5), goal=at_least(3), cpu_bound=False),
        Ask(key="typed, lake", bar=at_least(2.5), goal=at_least(4), cpu_bound=False),
    ),
    measure=measure,
    needs=(),
    time_limit_s=420,
)
