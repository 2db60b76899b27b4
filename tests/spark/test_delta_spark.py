"""Delta Lake's own reader for Spark reads a lake without any of our code."""

import json
from pathlib import Path

import pytest

from tests.lake.test_reading import COLUMNS, LEFT, TYPED, changed_table
from tests.spark.environments import environment, jars
from tests.spark.processes import Process
from topics.lake import Lake

SPARK = {"pyspark": "4.2.0"}
JARS = ("io.delta:delta-spark_4.2_2.13:4.4.0", "io.delta:delta-storage:4.4.0", "org.antlr:antlr4-runtime:4.13.1")
SCRIPT = """
import json, sys
from pyspark.sql import SparkSession

jars, path = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
table = spark.read.format("delta").load(path)
rows = [(row.seq, row.n, row.data) for row in table.orderBy("seq").collect()]
pruned = spark.sql(f"SELECT count(*) AS n FROM delta.`{path}` WHERE seq > 20").collect()[0].n
print(json.dumps({"columns": table.columns, "rows": rows, "above_20": pruned}))
"""


@pytest.mark.torture
def test_delta_spark_reads_a_lake_that_was_archived_erased_and_merged(tmp_path: Path):
    lake = Lake(str(tmp_path / "lake"))
    path = changed_table(lake)
    script = tmp_path / "read.py"
    script.write_text(SCRIPT)
    python = str(environment(SPARK))
    reader = Process(
        [python, str(script), ",".join(map(str, jars(*JARS))), path],
        tmp_path / "log", PYSPARK_PYTHON=python, SPARK_HOME=None,
    )  # fmt: skip
    try:
        reader.succeed()
    finally:
        reader.kill()
    [shown] = [json.loads(line) for line in reader.log().splitlines() if line.startswith('{"columns"')]
    assert shown["columns"] == [*COLUMNS, "n"]
    assert [tuple(row) for row in shown["rows"]] == [
        (seq, typed, f'{{"n":{seq}}}') for seq, typed in zip(LEFT, TYPED, strict=True)
    ]
    assert shown["above_20"] == sum(seq > 20 for seq in LEFT)
