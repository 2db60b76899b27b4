"""An archive that is killed, with all its processes, and started again: the lake is exact after every restart."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.archives import Written, archived_epoch_of, check_exact
from tests.spark.processes import Process, Server, slim_home, wait_for
from topics.client import Client
from topics.lake import Lake
from topics.spark.pipelines.archive.driver import archive

ROUND_BYTES = 20_000


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.kill()


class Writing:
    """Writes to a topic during the whole test."""

    def __init__(self, url: str, topic: str, **config: int) -> None:
        self._stop = threading.Event()
        self._client = Client(url, retries=20)
        self.written = Written(self._client, topic, **config)
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        while not self._stop.wait(0.05):
            self.written.numbers(50)

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()


def archiver(directory: Path, url: str, lake: Lake, topic: str, *more: str) -> Process:
    command = [sys.executable, "-m", "tests.spark.archiver", url, lake.path, topic, str(ROUND_BYTES), *more]
    return Process(command, directory / "archiver.log", SPARK_HOME=slim_home())


def version_of(lake: Lake, topic: str) -> int:
    return lake.table(topic).state().version


def reach(lake: Lake, process: Process, commits: int, *, topic: str = "in") -> None:
    """Waits until there are so many commits more."""
    target = commits + version_of(lake, topic)

    def look() -> bool:
        assert process.is_alive(), process.log()[-4000:]
        return version_of(lake, topic) >= target

    wait_for(look, f"{commits} commits", every_s=0.002)


@pytest.mark.torture
def test_lake_is_exact_after_the_archiver_is_killed(own_server: Server, tmp_path: Path, spark: object):
    lake = Lake(str(tmp_path / "lake"))
    with Writing(own_server.url, "in") as writing:
        process = archiver(tmp_path, own_server.url, lake, "in", "trim")
        try:
            reach(lake, process, 7)
        finally:
            process.kill()
    with Client(own_server.url) as client:
        written = writing.written
        written.client = client
        before = archived_epoch_of(lake, written)
        assert client.topic("in").earliest_seq <= before.trimmed_to + 1 <= before.archived_to + 1
        archive(url=own_server.url, lake=lake.path, topics=["in"], trim=True, spark=spark)  # type: ignore[arg-type]
        assert check_exact(lake, written) == len(written.records)
        assert client.topic("in").count == 0


def test_lake_is_exact_after_a_kill_in_one_process(own_server: Server, tmp_path: Path):
    lake = Lake(str(tmp_path / "lake"))
    with Writing(own_server.url, "in") as writing:
        process = archiver(tmp_path, own_server.url, lake, "in", "trim", "here")
        try:
            reach(lake, process, 5)
        finally:
            process.kill()
    with Client(own_server.url) as client:
        writing.written.client = client
        archive(url=own_server.url, lake=lake.path, topics=["in"], trim=True, spark=False)
        assert check_exact(lake, writing.written) == len(writing.written.records)
        assert client.topic("in").count == 0


@pytest.mark.torture
@pytest.mark.parametrize("way", ["spark", "here"])
@pytest.mark.parametrize("seed", range(3))
def test_lake_is_exact_after_many_kills_of_the_archiver(
    own_server: Server, tmp_path: Path, spark: object, seed: int, way: str
):
    chance = random.Random(seed)
    lake = Lake(str(tmp_path / "lake"))
    trim = ["trim"] if seed % 2 else []
    config = {"cap_records": 5000} if seed == 2 else {}
    with Writing(own_server.url, "in", **config) as writing:
        for _ in range(6):
            process = archiver(tmp_path, own_server.url, lake, "in", *trim, way)
            try:
                reach(lake, process, chance.randrange(1, 12))
                threading.Event().wait(chance.random() / 5)  # anywhere between two commits
            finally:
                process.kill()
            if chance.random() < 0.3:
                own_server.kill()
                own_server.start()
    with Client(own_server.url) as client:
        writing.written.client = client
        archive(url=own_server.url, lake=lake.path, topics=["in"], spark=spark)  # type: ignore[arg-type]
        rows = check_exact(lake, writing.written)
        assert rows == len(writing.written.records) or config
