"""Sessions of other kinds: Spark Connect, and Declarative Pipelines, which run on it."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import ServerProcess
from tests.spark.processes import Process, application, slim_home
from tests.spark.streams import numbers, read_numbers
from topics.client import Client

pytest.importorskip("pandas")
pytest.importorskip("grpc")

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def block(language: str) -> str:
    """The one block in this language on the page for users."""
    [text] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.mark.torture
def test_connect_session_reads_writes_and_streams(server: ServerProcess, client: Client, topic: str, tmp_path: Path):
    numbers(client, topic, range(1500))
    driver = application(
        tmp_path / "driver.log", "connect:local[2]", "report", server.url, topic, f"{topic}.batch",
        "copy", server.url, topic, f"{topic}.stream", tmp_path / "checkpoint", 1000, 1,
        PYSPARK_PYTHON=None,  # `session` has to set it
    )  # fmt: skip
    try:
        driver.succeed()
    finally:
        driver.kill()
    [shown] = [json.loads(line) for line in driver.log().splitlines() if line.startswith('{"count"')]
    assert (shown["count"], shown["sum"]) == (1500, 1500 * 1501 // 2)
    assert sorted(read_numbers(client, f"{topic}.batch")) == list(range(1500))
    assert read_numbers(client, f"{topic}.stream") == list(range(1500))


@pytest.mark.torture
def test_declarative_pipeline_of_the_page_flows_between_topics(
    server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    """The source is found by its module's name: nothing registers it."""
    numbers(client, topic, range(100))
    (tmp_path / "transformations").mkdir()
    flows = block("py").replace("http://127.0.0.1:4000", server.url).replace("orders", topic)
    (tmp_path / "spark-pipeline.yml").write_text(block("yaml").replace("/checkpoints", str(tmp_path / "checkpoints")))
    (tmp_path / "transformations" / "flows.py").write_text(flows)
    command = [
        str(Path(sys.executable).with_name("spark-pipelines")), "run", "--remote", "local[2]",
        "--spec", str(tmp_path / "spark-pipeline.yml"), "--conf", "spark.ui.enabled=false",
        "--conf", f"spark.sql.warehouse.dir={tmp_path / 'warehouse'}",
    ]  # fmt: skip
    run = Process(command, tmp_path / "pipeline.log", SPARK_HOME=slim_home())
    try:
        run.succeed()
    finally:
        run.kill()
    assert read_numbers(client, f"{topic}.out") == list(range(100))
