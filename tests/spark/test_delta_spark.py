"""Delta Lake's own reader for Spark reads a lake without any of our code, by its path and by a name in a catalog."""

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.lake.test_reading import COLUMNS, LEFT, TYPED, changed_table
from tests.spark.environments import environment, jars
from tests.spark.processes import Process
from topics.lake import Lake

SPARK = {"pyspark": "4.2.0"}
JARS = ("io.delta:delta-spark_4.2_2.13:4.4.0", "io.delta:delta-storage:4.4.0", "org.antlr:antlr4-runtime:4.13.1")
SESSION = """
import json, sys
from pyspark.sql import SparkSession

jars, path, home = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.catalogImplementation", "hive")
    .config("spark.sql.warehouse.dir", f"{home}/warehouse")
    .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={home}")
    .getOrCreate()
)


def shown(table):
    rows = [(row.seq, row.n, row.data) for row in table.orderBy("seq").collect()]
    return {"columns": table.columns, "rows": rows}
"""
BY_PATH = """
pruned = spark.sql(f"SELECT count(*) AS n FROM delta.`{path}` WHERE seq > 20").collect()[0].n
print(json.dumps({**shown(spark.read.format("delta").load(path)), "above_20": pruned}))
"""
NAME_IT = """
spark.sql("CREATE DATABASE shop")
spark.sql(f"CREATE TABLE shop.orders USING delta LOCATION '{path}'")
"""
BY_NAME = """
comments = {row.col_name: row.comment for row in spark.sql("DESCRIBE TABLE shop.orders").collect()}
print(json.dumps({**shown(spark.table("shop.orders")), "comments": comments}))
spark.sql("DROP TABLE shop.orders")
"""


def run(home: Path, path: str, statements: str) -> list[dict[str, Any]]:
    """Run statements in a Spark without topics, whose metastore is in `home`. Return what they print."""
    script = home / "script.py"
    script.write_text(SESSION + statements)
    python = str(environment(SPARK))
    reader = Process(
        [python, str(script), ",".join(map(str, jars(*JARS))), path, str(home)],
        home / "log", PYSPARK_PYTHON=python, SPARK_HOME=None,
    )  # fmt: skip
    try:
        reader.succeed()
    finally:
        reader.kill()
    return [json.loads(line) for line in reader.log().splitlines() if line.startswith('{"columns"')]


def check(shown: dict[str, Any]) -> None:
    assert shown["columns"] == [*COLUMNS, "n"]
    assert [tuple(row) for row in shown["rows"]] == [
        (seq, typed, f'{{"n":{seq}}}') for seq, typed in zip(LEFT, TYPED, strict=True)
    ]


@pytest.mark.torture
def test_delta_spark_reads_a_lake_that_was_archived_erased_and_merged(tmp_path: Path):
    path = changed_table(Lake(str(tmp_path / "lake")))
    [shown] = run(tmp_path, path, BY_PATH)
    check(shown)
    assert shown["above_20"] == sum(seq > 20 for seq in LEFT)


@pytest.mark.torture
def test_table_of_a_hive_metastore_is_the_lake(tmp_path: Path):
    path = changed_table(Lake(str(tmp_path / "lake")))
    run(tmp_path, path, NAME_IT)
    [shown] = run(tmp_path, path, BY_NAME)
    check(shown)
    assert shown["comments"]["ts"] == "commit time"
    assert sorted(DeltaTable(path).to_pandas()["seq"]) == LEFT
