"""The oldest supported PySpark, with older pyarrow and pandas, in an environment of its own."""

import json
from pathlib import Path

import pytest

from tests.conftest import ServerProcess
from tests.spark.environments import environment
from tests.spark.processes import Process
from tests.spark.streams import check_exact, numbers, read_numbers
from topics.client import Client

OLDEST = {"pyspark": "4.2.0", "pyarrow": "18.0.0", "pandas": "2.2.2", "numpy": "2.0.0"}
RECORDS = 4000


@pytest.mark.torture
def test_oldest_spark_reads_writes_streams_and_archives(
    server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    python = str(environment(OLDEST))
    numbers(client, topic, range(RECORDS))
    script = [python, "-m", "tests.spark.driver", "local[2]", "report", server.url, topic, f"{topic}.batch"]
    stream = ["copy", server.url, topic, f"{topic}.stream", str(tmp_path / "checkpoint"), "all", "2"]
    first = run([*script, *stream], tmp_path / "first.log", python)
    [shown] = [json.loads(line) for line in first.splitlines() if line.startswith('{"count"')]
    assert (shown["count"], shown["sum"]) == (RECORDS, RECORDS * (RECORDS + 1) // 2)
    assert sorted(read_numbers(client, f"{topic}.batch")) == list(range(RECORDS))
    check_exact(client, f"{topic}.stream", RECORDS)

    numbers(client, topic, range(RECORDS, RECORDS + 100))
    run([python, "-m", "tests.spark.driver", "local[2]", *stream], tmp_path / "second.log", python)
    check_exact(client, f"{topic}.stream", RECORDS + 100)

    archive = [python, "-m", "topics", "pipeline", "archive", "--spark", "--url", server.url, "--topic", topic]
    shown_archive = run([*archive, "--lake", str(tmp_path / "lake")], tmp_path / "archive.log", python)
    assert f"wrote {RECORDS + 100} records" in shown_archive.replace(",", "")


@pytest.mark.torture
def test_oldest_spark_keeps_options_of_tables_and_pushes_filters(
    server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    python = str(environment(OLDEST))
    numbers(client, topic, range(RECORDS))
    script = [python, "-m", "tests.spark.driver", "local[2]", "tables", server.url, topic, str(tmp_path / "warehouse")]
    printed = run(script, tmp_path / "tables.log", python)
    [shown] = [json.loads(line) for line in printed.splitlines() if line.startswith('{"typed"')]
    few, every = shown.pop("partitions")
    assert few == 1 < every, "the filter reached the plan of the source"
    assert shown == {
        "typed": [RECORDS, RECORDS * (RECORDS - 1) // 2, RECORDS],
        "by_hand": RECORDS,
        "with_option": [1, 2, 3],
        "pushed": list(range(1, 11)),
    }


def run(command: list[str], log: Path, python: str) -> str:
    running = Process(command, log, PYSPARK_PYTHON=python, SPARK_HOME=None)
    try:
        running.succeed()
    finally:
        running.kill()
    return running.log()
