"""Random histories with deletes, erasures, recreation and schema drift: three executors make identical tables."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.conftest import StartServer
from tests.spark.processes import Cluster, Process, slim_home, wait_for
from topics.client import Client
from topics.lake.delta_folder import FactsReader
from topics.lake.storage import Storage
from topics.spark.pipelines.archive import archive
from topics.spark.pipelines.erase import erase
from topics.spark.pipelines.maintain import maintain

FUNCTIONS: dict[str, Callable[..., Any]] = {"archive": archive, "erase": erase, "maintain": maintain}
OPTIONS = {"topics": "--topic", "merge_files": "--merge", "retention_hours": "--retention"}
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "127.0.0.1"}
KEY = "worker"  # it may not report what is archived: the lakes would be told of each other
STEPS = 4

Run = Callable[[str, dict[str, Any]], None]  # a pipeline and its arguments, without those that say where it runs


def in_program(url: str, lake: Path, spark: SparkSession | bool) -> Run:
    def run(name: str, arguments: dict[str, Any]) -> None:
        server = {} if name == "maintain" else {"url": url}
        FUNCTIONS[name](lake=str(lake), token=KEY, spark=spark, **server, **arguments)

    return run


def on_cluster(url: str, lake: Path, cluster: Cluster, log: Path, rng: random.Random) -> Run:
    """Return what runs a command on the cluster, and sometimes kills a worker when it has executors."""

    def run(name: str, arguments: dict[str, Any]) -> None:
        words = ["--lake", lake, "--token", KEY, "--master", cluster.url]
        words += [] if name == "maintain" else ["--url", url]
        for option, value in arguments.items():
            for one in value if isinstance(value, list) else [value]:
                words += [OPTIONS.get(option, f"--{option}"), one]
        command = [sys.executable, "-m", "topics", "pipeline", name, *map(str, words)]
        process = Process(command, log, SPARK_HOME=slim_home(), **LOOPBACK)
        try:
            if rng.random() < 0.3:
                wait_for(lambda: len(cluster.executors()) == 2 or not process.is_alive(), "the executors")
                cluster.kill_worker()
                cluster.add_worker()
            process.succeed()
        finally:
            process.kill()

    return run


def write(client: Client, topic: str, rng: random.Random) -> None:
    """Change the topic at random. Records have fields that fit the columns of the lake, and others that do not."""
    for _ in range(rng.randint(1, 4)):
        act = rng.choice(["append", "append", "append", "delete", "trim", "cap", "recreate"])
        if act == "append":
            payloads = [{"n": rng.randint(0, 99)}, {"n": "text", "s": 1.50}, {"s": {"a": 1}}, [1, 2], "plain", None]
            tags = [None, "a", "b:1", "b:2"]
            count = rng.randint(1, 300)
            client.append(topic, [{"data": rng.choice(payloads), "tag": rng.choice(tags)} for _ in range(count)])
        elif act == "delete":
            client.delete(topic, match=rng.choice(["a", "b:1"]))
        elif act == "trim":
            client.delete(topic, before_seq=rng.randint(1, client.topic(topic).head_seq + 1))
        elif act == "cap":
            client.put_topic(topic, cap_records=rng.choice([50, 200, 10_000]))
        else:
            client.drop_topic(topic)
            client.append(topic, [{"data": {"n": 1}}])


def pipelines(topic: str, step: int, rng: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what every executor runs after a change. A column is added in the middle of the history."""
    columns = "n INT" if step < STEPS // 2 else "n INT, s STRING"
    yield "archive", {"topics": [topic], "columns": columns, "merge_files": rng.choice([0, 2])}
    if rng.random() < 0.5:
        yield "erase", {"topics": [topic], "match": rng.choice(["a", "b:*"])}
    if rng.random() < 0.5:
        yield "maintain", {"retention_hours": 0}


def content(lake: Path, topic: str) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    """Return all rows of the table, and the facts in its log without the times at which gaps were found."""
    rows = DeltaTable(str(lake / topic)).to_pyarrow_table().sort_by([("epoch", "ascending"), ("seq", "ascending")])
    found = FactsReader(Storage(str(lake / topic))).at(DeltaTable(str(lake / topic)).version())
    facts = sorted((re.sub(r"(gap/\d+/\d+)/\d+/", r"\1/", name), value) for name, value in found.items())
    return rows.to_pylist(), facts


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(3))
def test_three_executors_make_identical_tables(
    spark: SparkSession, start_server: StartServer, tmp_path: Path, seed: int
):
    rng, topic = random.Random(seed), "t"
    server = start_server(api_keys=f"all,{KEY}:read+write+delete")
    (tmp_path / "cluster").mkdir()
    cluster = Cluster(tmp_path / "cluster")
    lakes = {name: tmp_path / name for name in ("process", "spark", "far")}
    executors = {
        "process": in_program(server.url, lakes["process"], False),
        "spark": in_program(server.url, lakes["spark"], spark),
        "far": on_cluster(server.url, lakes["far"], cluster, tmp_path / "far.log", random.Random(seed)),
    }
    try:
        with Client(server.url, token="all") as client:
            client.append(topic, [{"data": {"n": 0}}])
            for step in range(STEPS):
                write(client, topic, rng)
                for name, arguments in list(pipelines(topic, step, rng)):
                    for run in executors.values():
                        run(name, arguments)
                expected = content(lakes["process"], topic)
                assert content(lakes["spark"], topic) == expected
                assert content(lakes["far"], topic) == expected
    finally:
        cluster.stop()
