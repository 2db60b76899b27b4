"""A real standalone cluster on loopback: nothing depends on driver and executors being one process."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ServerProcess
from tests.spark.processes import Cluster, application, reached
from tests.spark.streams import check_exact, numbers, read_numbers
from topics.client import Client

RECORDS = 24_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    found.stop()


@pytest.mark.torture
def test_a_cluster_reads_writes_and_streams_exactly_once_though_an_executor_is_killed(
    cluster: Cluster, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    numbers(client, topic, range(RECORDS))
    driver = application(
        tmp_path / "driver.log", cluster.url, "report", server.url, topic, f"{topic}.batch",
        "copy", server.url, topic, f"{topic}.stream", tmp_path / "checkpoint", 6000, 2,
    )  # fmt: skip
    try:
        reached(client, driver, f"{topic}.stream", range(6000, RECORDS), batch=1000)
        [_, *_] = executors = cluster.executors()
        os.kill(executors[0], signal.SIGKILL)
        driver.succeed()
    finally:
        driver.kill()

    [said] = [json.loads(line) for line in driver.log().splitlines() if line.startswith('{"count"')]
    assert said == {"count": RECORDS, "sum": RECORDS * (RECORDS + 1) // 2, "partitions": 4}
    assert sorted(read_numbers(client, f"{topic}.batch")) == list(range(RECORDS))
    check_exact(client, f"{topic}.stream", RECORDS)
