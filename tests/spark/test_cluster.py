"""A real standalone cluster on loopback: nothing depends on driver and executors being one process."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ServerProcess
from tests.spark.processes import Cluster, Process, application, reached, slim_home, wait_for
from tests.spark.streams import check_exact, numbers, read_numbers
from topics.client import Client

RECORDS = 24_000
PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    found.stop()


@pytest.mark.torture
def test_cluster_is_exactly_once_though_an_executor_is_killed(
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

    [shown] = [json.loads(line) for line in driver.log().splitlines() if line.startswith('{"count"')]
    assert shown == {"count": RECORDS, "sum": RECORDS * (RECORDS + 1) // 2, "partitions": 4}
    assert sorted(read_numbers(client, f"{topic}.batch")) == list(range(RECORDS))
    check_exact(client, f"{topic}.stream", RECORDS)


def pipeline(command: list[str], log: Path, *arguments: object) -> str:
    """Run `topics pipeline …` and return its output."""
    running = Process([*command, "pipeline", *map(str, arguments)], log, SPARK_HOME=slim_home(), **LOOPBACK)
    try:
        running.succeed()
    finally:
        running.kill()
    return running.log()


@pytest.mark.torture
def test_archive_and_replay_are_exact_though_a_worker_is_killed(
    cluster: Cluster, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    """A worker dies with its executor while tasks run. Spark repeats its tasks on the other worker."""
    names = [f"{topic}.{number}" for number in range(6)]
    for name in names:
        numbers(client, name, range(RECORDS))
    lake, plain = tmp_path / "lake", [sys.executable, "-m", "topics", "pipeline"]
    where = ["--url", server.url, "--lake", str(lake), "--master", cluster.url]
    every = ["--prefix", f"{topic}."]
    home = slim_home()
    archiving = Process([*plain, "archive", *where, *every], tmp_path / "archive.log", SPARK_HOME=home, **LOOPBACK)
    try:
        wait_for(
            lambda: len(cluster.executors()) == 2 and any(lake.rglob("*.parquet")), "the first file of the archive"
        )
        cluster.kill_worker()
        archiving.succeed()
    finally:
        archiving.kill()
    assert f"archive: wrote {len(names) * RECORDS:,} records" in archiving.log()
    audited = [part for name in names for part in ("--topic", name)]
    assert "0 unexplained" in pipeline(plain[:-1], tmp_path / "audit.log", "audit", *where, *audited)

    cluster.add_worker()
    into = f"{topic}.replayed"
    replay = [*plain, "replay", *where, "--topic", names[0], "--into", into]
    replaying = Process(replay, tmp_path / "replay.log", SPARK_HOME=home, **LOOPBACK)
    try:
        reached(client, replaying, into, range(1, RECORDS), batch=1)
        cluster.kill_worker()
        replaying.succeed()
    finally:
        replaying.kill()
    check_exact(client, into, RECORDS)


LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "127.0.0.1"}


@pytest.mark.torture
def test_pipelines_run_on_a_cluster_by_master_and_by_spark_submit(
    cluster: Cluster, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    [script] = re.findall(r"^```python\n(# file: submit.py\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "submit.py").write_text(script)
    where = ["--url", server.url, "--topic", topic, "--lake", tmp_path / "lake"]
    plain = [sys.executable, "-m", "topics"]
    submit = [f"{slim_home()}/bin/spark-submit", "--master", cluster.url, str(tmp_path / "submit.py")]

    numbers(client, topic, range(RECORDS))
    shown = pipeline(plain, tmp_path / "one.log", "archive", *where, "--master", cluster.url)
    assert f"archive: wrote {RECORDS:,} records of 1 topic" in shown
    numbers(client, topic, range(RECORDS, RECORDS + 1000))
    assert "archive: wrote 1,000 records of 1 topic" in pipeline(submit, tmp_path / "two.log", "archive", *where)
    assert "0 unexplained" in pipeline(plain, tmp_path / "three.log", "audit", *where, "--master", cluster.url)
    assert "0 unexplained" in pipeline(submit, tmp_path / "four.log", "audit", *where)
    applications = {folder.name for folder in tmp_path.glob("work*/app-*")}  # a short run may need one worker only
    assert len(applications) == 4, "executors of the cluster had no part in it"
