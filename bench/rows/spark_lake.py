"""w30: Spark reads a lake with 10,000 small files through our source, and the same Parquet files by itself."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from plan import Plan
from row import Ask, Outcome, Reading, Row, at_least
from rows.spark import CORES, session
from turns import Contender, ratio, take_turns

WARM_UPS = 1
PER_FILE = 100  # records
TOPIC, EPOCH, COLUMNS = "t", 7, "total BIGINT"
DAY_US = 1_709_208_000_000_000
KEYS = ("seqs", "typed", "typed, topics sql")


def measure(plan: Plan) -> Outcome:
    if not (find_spec("pyspark") and find_spec("deltalake")):
        note = "pip install 'topics-engine[spark]'"
        return Outcome([Reading(key=key, value=None, missing=True, note=note) for key in KEYS])
    records = plan.scale.records
    lake = str(plan.fresh_dir("lake"))
    paths = make(lake, records // PER_FILE)
    with ExitStack() as stack:
        spark = session()
        stack.callback(spark.stop)
        # Every round builds a new DataFrame, because a DataFrame keeps the plan of its first query.
        source = spark.read.format("topics").options(lake=lake, lakeOnly="true", subscribe=TOPIC, minPartitions=CORES)
        by_column = {
            "seq": {
                "topics": lambda: source.schema("seq BIGINT").load(),
                "spark.read.parquet": lambda: spark.read.schema("seq BIGINT").parquet(*paths),
            },
            "total": {
                "topics, typed": lambda: source.schema(COLUMNS).load(),
                "topics sql, typed": lambda: _statement(spark, lake),
                "spark.read.parquet with from_json": lambda: (
                    spark.read.schema("data STRING")
                    .parquet(*paths)
                    .selectExpr(f"from_json(data, '{COLUMNS}').total AS total")
                ),
                "spark.read.parquet of the typed column": lambda: spark.read.schema(COLUMNS).parquet(*paths),
            },
        }
        rates = {
            name: partial(_rate, way, column, records)
            for column, ways in by_column.items()
            for name, way in ways.items()
        }
        for rate in [*rates.values()] * WARM_UPS:
            rate()
        contenders = [Contender(name=name, unit="records/s", run=rate) for name, rate in rates.items()]
        sides = take_turns(contenders, rounds=plan.scale.rounds)
    seqs, seqs_peer, typed, statement, parsing_peer, column_peer = sides
    pairs = [(seqs, seqs_peer), (typed, parsing_peer), (statement, column_peer)]
    return Outcome([ratio(key, *pair) for key, pair in zip(KEYS, pairs, strict=True)], sides)


def make(place: str, files: int) -> list[str]:
    """Write a lake with one topic of this many files, with a typed column. Return the paths of the files."""
    import pyarrow as pa

    from topics.lake import Change, Lake, TypedColumns, write_files

    lake, typed, adds = Lake(place), TypedColumns.parse(COLUMNS), []
    lake.create()
    table = lake.table(TOPIC)
    table.add_columns(typed)
    nodes, tags = pa.array(["till-1"] * PER_FILE), pa.array(["order-7731"] * PER_FILE)
    metas = pa.nulls(PER_FILE, pa.string())
    for first in range(1, files * PER_FILE + 1, PER_FILE):
        seqs = range(first, first + PER_FILE)
        columns = {
            "seq": pa.array(seqs, pa.int64()),
            "ts": pa.array([DAY_US + seq for seq in seqs], pa.timestamp("us", "UTC")),
            "node": nodes,
            "tag": tags,
            "meta": metas,
            "data": pa.array([f'{{"sku":"AEROPRESS-GO","qty":1,"total":{seq}}}' for seq in seqs]),
        }
        adds += write_files(lake.storage, TOPIC, EPOCH, [pa.record_batch(columns)], typed=typed)
    lake.commit(
        table.state(),
        [Change(op="archive", topic=TOPIC, epoch=EPOCH, covered=(1, files * PER_FILE), adds=adds)],
    )
    return [str(Path(place, file.path)) for file in adds]


def _statement(spark: Any, lake: str) -> Any:
    """Return the typed column as `topics sql --lake` reads it."""
    from topics.spark.sql.on_spark import SparkTables

    SparkTables(spark, {"lake": lake, "lakeOnly": "true"}).run(f"SELECT total FROM {TOPIC}")
    return spark.table(TOPIC).select("total")  # the view of the statement


def _rate(way: Any, column: str, records: int) -> float:
    """Return the records per second, planning included, of a query for count and sum of a column."""
    started = time.perf_counter()
    [found] = way().selectExpr(f"count({column})", f"sum({column})").collect()
    elapsed = time.perf_counter() - started
    assert tuple(found) == (records, records * (records + 1) // 2), f"read {found}"
    return records / elapsed


ROW = Row(
    id="w30",
    title="Spark reads a lake of 10,000 small files, 1 M records: count and sum of seq; typed: of a field of data",
    peer="spark.read.parquet of the same files; typed: with from_json; topics sql: of the typed column",
    asks=(
        Ask(key="seqs", bar=at_least(0.5), goal=at_least(1), cpu_bound=False),
        Ask(key="typed", bar=at_least(0.5), goal=at_least(1), cpu_bound=False),
        Ask(key="typed, topics sql", bar=at_least(0.5), goal=at_least(0.9), cpu_bound=False),
    ),
    measure=measure,
    needs=(),
    time_limit_s=1200,
)
