"""A stream from topic to topic while everything that can be killed is killed: nothing is lost and nothing comes twice."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.conftest import spark_home
from tests.spark.processes import Cluster, Process, Server, application, clusters, running, wait_for
from tests.spark.streams import numbers, read_numbers
from topics.client import Client
from topics.errors import TopicsError

RECORDS = 120_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    home = tmp_path / "home"
    home.mkdir()
    yield from clusters(tmp_path, spark_home(home))


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.kill()


def written(client: Client) -> int:
    try:
        return client.topic("out").head_seq
    except TopicsError:
        return 0


def reached(client: Client, driver: Process, count: int, batch: int) -> None:
    """So much is written, and the stream is in the middle of a micro-batch."""

    def look() -> bool:
        assert driver.is_alive(), driver.log()[-6000:]
        head = written(client)
        assert head < RECORDS, "it was over before anything could be killed"
        return head > count and head % batch != 0

    wait_for(look, f"{count} records", every_s=0.005)


def test_nothing_is_lost_and_nothing_doubled_when_driver_workers_executors_and_server_are_killed(
    cluster: Cluster, own_server: Server, tmp_path: Path
):
    """After each start, partitions and rate are others: keys must not depend on them."""
    log, where = tmp_path / "driver.log", ("copy", own_server.url, "in", "out", tmp_path / "checkpoint")
    with Client(own_server.url, retries=10) as client:
        numbers(client, "in", range(RECORDS))

        driver = application(log, cluster.url, *where, 20_000, 2)
        try:
            reached(client, driver, 20_000, batch=20_000)
        finally:
            driver.kill()

        driver = application(log, "local[2,4]", *where, 7000, 3)
        try:
            reached(client, driver, 45_000, batch=1000)
            for worker in running(driver.pid, "pyspark.daemon"):
                os.kill(worker, signal.SIGKILL)
            reached(client, driver, 60_000, batch=1000)
            own_server.kill()
            own_server.start()
            reached(client, driver, 75_000, batch=1000)
        finally:
            driver.kill()

        driver = application(log, cluster.url, *where, 10_000, 4)
        try:
            reached(client, driver, 90_000, batch=1000)
            for executor in cluster.executors()[:1]:
                os.kill(executor, signal.SIGKILL)
            driver.succeed()
        finally:
            driver.kill()

        counts = Counter(read_numbers(client, "out"))
    assert sorted(set(range(RECORDS)) - counts.keys()) == [], "lost"
    assert [value for value, times in counts.items() if times > 1] == [], "doubled"
    assert len(counts) == RECORDS
