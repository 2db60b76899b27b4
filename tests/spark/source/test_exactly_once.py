"""A stream from topic to topic under kills of driver, workers and server: no record is lost or repeated."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.processes import Server, application, children, reached, running
from tests.spark.streams import check_exact, numbers
from topics.client import Client

RECORDS = 24_000


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.kill()


@pytest.mark.torture
def test_kills_of_driver_workers_and_server_lose_and_repeat_nothing(own_server: Server, tmp_path: Path):
    """After its restart the query has other partitions and another rate: keys must not depend on them."""
    log, where = tmp_path / "driver.log", ("copy", own_server.url, "in", "out", tmp_path / "checkpoint")
    with Client(own_server.url, retries=10) as client:
        numbers(client, "in", range(RECORDS))

        driver = application(log, "local[2,4]", *where, 8000, 2)
        try:
            reached(client, driver, "out", range(RECORDS), batch=8000)
        finally:
            driver.kill()

        driver = application(log, "local[2,4]", *where, 3000, 3)
        try:
            reached(client, driver, "out", range(12_000, RECORDS), batch=1000)
            workers = [pid for pid in running(driver.pid, "pyspark.daemon pyspark.worker") if not children(pid)]
            assert workers
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            reached(client, driver, "out", range(16_000, RECORDS), batch=1000)
            own_server.kill()
            own_server.start()
            driver.succeed()
        finally:
            driver.kill()

        check_exact(client, "out", RECORDS)
