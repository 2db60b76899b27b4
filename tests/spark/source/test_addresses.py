"""Several addresses in `url`: a read replica that is listed first answers a read, and the writer is spared."""

from __future__ import annotations

import json
import pickle
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ServerProcess
from topics.client import Client
from topics.spark.options import read_options
from topics.spark.pipelines.archive.driver import archive
from topics.spark.source.readers import TopicsReader, TopicsStreamReader

RECORDS = 3000
FAST = {"replica_interval_ms": 50, "checkpoint_interval_ms": 300, "sync_interval_ms": 10}
WAIT_S = 60


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """A writer with records, and a read replica that has all of them."""
    started: list[ServerProcess] = []
    try:
        for name, more in (("writer", {}), ("replica", {"standby": True, "takeover_after_ms": 600_000})):
            settings = {"data_dir": tmp_path / name, "replica": f"file://{tmp_path}/bucket", **FAST, **more}
            started.append(ServerProcess(tmp_path / f"{name}-server", settings))
        writer, replica = started
        with Client(writer.url) as client:
            client.append("orders", [{"data": {"qty": number}} for number in range(RECORDS)])
        with Client(replica.url) as client:
            deadline = time.monotonic() + WAIT_S
            while not any(one.topic == "orders" and one.head_seq == RECORDS for one in client.topics("orders")):
                assert time.monotonic() < deadline, "the replica does not follow"
                time.sleep(0.05)
        yield writer, replica
    finally:
        for server in started:
            server.kill()


def requests(server: ServerProcess) -> int:
    """Return how many requests a server has answered, without those for this number."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        [found] = re.findall(r"^topics_http_requests_total (\d+)", answer.read().decode(), re.MULTILINE)
    asked = getattr(server, "asked", 0)
    server.asked = asked + 1  # type: ignore[attr-defined]
    return int(found) - asked


def seqs(reader: Any, *ends: Any) -> list[int]:
    """Read as executors do, each partition in a copy of the reader."""
    tasks = [(pickle.loads(pickle.dumps(reader)), part) for part in reader.partitions(*ends)]
    return [seq for task, part in tasks for batch in task.read(part) for seq in batch.column("seq").to_pylist()]


def test_read_with_the_replica_first_sends_the_writer_nothing(servers: tuple[ServerProcess, ServerProcess]):
    writer, replica = servers
    before, replica_before = requests(writer), requests(replica)
    options = read_options({"url": f"{replica.url},{writer.url}", "subscribe": "orders", "minPartitions": "3"})
    assert seqs(TopicsReader(options)) == list(range(1, RECORDS + 1))
    assert requests(writer) == before
    assert requests(replica) >= replica_before + 4, "one for the plan, and one for each partition"


def test_stream_with_the_replica_first_sends_the_writer_nothing(servers: tuple[ServerProcess, ServerProcess]):
    writer, replica = servers
    before = requests(writer)
    options = {"url": f"{replica.url},{writer.url}", "subscribe": "orders", "startingOffsets": "earliest"}
    stream = TopicsStreamReader(read_options(options))
    start = json.loads(json.dumps(stream.initialOffset()))
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    parts = stream.partitions(start, end)
    assert sum(batch.num_rows for part in parts for batch in stream.read(part)) == RECORDS
    stream.stop()
    assert requests(writer) == before


def test_read_goes_to_the_writer_while_the_replica_is_down(servers: tuple[ServerProcess, ServerProcess]):
    writer, replica = servers
    replica.kill()
    options = read_options({"url": f"{replica.url},{writer.url}", "subscribe": "orders"})
    assert seqs(TopicsReader(options)) == list(range(1, RECORDS + 1))


def test_archived_part_is_read_from_the_lake_alone(servers: tuple[ServerProcess, ServerProcess], tmp_path: Path):
    """A read of the lake up to the archived position, as docs/pipelines.md shows it, needs no server."""
    writer, _ = servers
    lake = str(tmp_path / "lake")
    archive(url=writer.url, topics=["orders"], lake=lake, spark=False)
    for server in servers:
        server.kill()
    options = read_options({"lake": lake, "lakeOnly": "true", "subscribe": "orders"})
    assert seqs(TopicsReader(options)) == list(range(1, RECORDS + 1))
