"""The plan of a read carries what the lake has of each span: no task reads the log of a table."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrameReader, SparkSession

from tests.conftest import ServerProcess
from tests.lake.making import EPOCH, archive, merge
from topics.client import Client
from topics.lake import Lake
from topics.lake.delta_folder import DeltaFolder
from topics.spark.failures import BadUsage
from topics.spark.options import read_options
from topics.spark.pipelines import archive as archiving
from topics.spark.pipelines.audit import audit
from topics.spark.pipelines.compact import compact
from topics.spark.pipelines.erase import erase
from topics.spark.pipelines.mirror import mirror
from topics.spark.pipelines.rollup import rollup
from topics.spark.pipelines.windows import Declaration
from topics.spark.source.readers import LIMITED_PARTITIONS, TopicsReader

Tasks = list[Callable[[], list[tuple[int, int | None]]]]


def planned(**options: Any) -> Tasks:
    """Plan a read. Return a task for each partition, which returns the seqs, and for gaps their ends."""
    reader = TopicsReader(read_options({name: str(value) for name, value in options.items()}))

    def task(part: bytes) -> Callable[[], list[tuple[int, int | None]]]:
        def read() -> list[tuple[int, int | None]]:
            batches = reader.read(pickle.loads(part))
            return [(row["seq"], row["gap_to"]) for batch in batches for row in batch.to_pylist()]

        return read

    return [task(pickle.dumps(part)) for part in reader.partitions()]


@pytest.fixture
def no_log(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def forbid() -> None:
        def opened(folder: DeltaFolder) -> None:
            raise AssertionError(f"a task reads the log of {folder.uri}")

        monkeypatch.setattr(DeltaFolder, "open", opened)

    return forbid


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(str(tmp_path / "lake"))
    made.create()
    for at in range(40):
        archive(made, "a", 1 + 100 * at, 100 + 100 * at, lost=5 if at % 10 == 0 else 0)
    return made


def test_tasks_of_a_lake_read_no_log(lake: Lake, no_log: Callable[[], None]):
    size = sum(file.bytes for file in lake.table("a").state().epoch(EPOCH).files)
    tasks = planned(
        lake=lake.path, lakeOnly=True, subscribe="a", failOnDataLoss=False, maxPartitionBytes=max(size // 4, 1)
    )  # fmt: skip
    assert 1 < len(tasks) <= 4, "by bytes, not by file"
    no_log()
    found = [row for task in tasks for row in task()]
    expected: list[tuple[int, int | None]] = []
    for first in range(1, 4001, 100):
        lost = 5 if (first - 1) % 1000 == 0 else 0
        expected += [(first, first + 4)] if lost else []
        expected += [(seq, None) for seq in range(first + lost, first + 100)]
    assert found == expected[1:], "earliest is the first record"


def test_task_whose_files_were_replaced_reads_the_new_ones(lake: Lake):
    [task] = planned(lake=lake.path, lakeOnly=True, subscribe="a", failOnDataLoss=False)
    before = task()
    assert merge(Lake(lake.path)) > 0
    lake.table("a").vacuum(retention_hours=0)
    assert task() == before


def test_trimmed_records_are_read_without_the_server(
    server: ServerProcess, client: Client, topic: str, tmp_path: Path, no_log: Any, monkeypatch: pytest.MonkeyPatch
):
    lake = str(tmp_path / "lake")
    client.append(topic, [{"data": n} for n in range(20)])
    client.delete(topic, seqs=[3])
    archiving.archive(url=server.url, lake=lake, topics=[topic], trim=True)
    client.append(topic, [{"data": n} for n in range(5)])
    client.delete(topic, seqs=[21])
    [task] = planned(url=server.url, lake=lake, subscribe=topic)
    expected = [(seq, None) for seq in range(1, 26) if seq not in (3, 21)]
    assert task() == expected
    asked: list[int] = []
    scan = Client.scan

    def counted(self: Client, name: str, *, from_seq: int, **more: Any) -> Any:
        asked.append(from_seq)
        return scan(self, name, from_seq=from_seq, **more)

    monkeypatch.setattr(Client, "scan", counted)
    [task] = planned(url=server.url, lake=lake, subscribe=topic, endingOffsets=f'{{"{topic}": 21}}')
    no_log()
    assert task() == expected[:19]
    assert asked == []


def test_trim_after_the_plan_is_noticed(server: ServerProcess, client: Client, topic: str, tmp_path: Path):
    lake = str(tmp_path / "lake")
    client.append(topic, [{"data": n} for n in range(20)])
    archiving.archive(url=server.url, lake=lake, topics=[topic])
    [task] = planned(url=server.url, lake=lake, subscribe=topic)
    client.delete(topic, seqs=[7])
    assert task() == [(seq, None) for seq in range(1, 21) if seq != 7]
    client.append(topic, [{"data": n} for n in range(5)])
    archiving.archive(url=server.url, lake=lake, topics=[topic], trim=True)
    assert len(task()) == 20


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that limited reads have waited."""
    waited_s = [0.0]

    def sleep(seconds: float) -> None:
        waited_s[0] += seconds

    monkeypatch.setattr("topics.spark.source.read.time", SimpleNamespace(monotonic=lambda: waited_s[0], sleep=sleep))
    return waited_s


def test_reads_from_a_server_keep_to_their_limit(
    server: ServerProcess, client: Client, topic: str, tmp_path: Path, now_s: list[float]
):
    client.append(topic, [{"data": "x" * 400} for _ in range(250)])
    size_bytes = client.topic(topic).bytes
    tasks = planned(url=server.url, subscribe=topic, maxBytesPerSecond=10_000, minPartitions=9, maxPartitionBytes=1000)
    assert len(tasks) <= LIMITED_PARTITIONS
    assert sum(len(task()) for task in tasks) == 250
    assert now_s[0] * 10_000 / len(tasks) == pytest.approx(size_bytes / len(tasks), rel=0.2)
    before_s = now_s[0]
    lake = str(tmp_path / "lake")
    archiving.archive(url=server.url, lake=lake, topics=[topic], max_bytes_per_second=10_000, spark=False)
    assert now_s[0] - before_s == pytest.approx(size_bytes / 10_000, rel=0.2)


def test_every_pipeline_that_reads_a_server_keeps_to_its_limit(
    client: Client, topic: str, tmp_path: Path, now_s: list[float]
):
    client.append(topic, [{"data": "x" * 400, "tag": "t"} for _ in range(250)])
    expected_s, lake = client.topic(topic).bytes / 10_000, str(tmp_path / "lake")
    archiving.archive(url=client.url, lake=lake, topics=[topic], spark=False)
    other = ServerProcess(tmp_path / "other", {"data_dir": tmp_path / "other/data"})
    for run in (
        partial(audit, url=client.url, lake=lake, topics=[topic]),
        partial(mirror, source=client.url, target=other.url, topics=[topic]),
        partial(erase, url=client.url, match="t", topics=[topic], dry_run=True),
    ):
        before_s = now_s[0]
        run(max_bytes_per_second=10_000, spark=False)
        assert now_s[0] - before_s == pytest.approx(expected_s, rel=0.2), run.func
    other.stop()
    with pytest.raises(BadUsage, match="--max-bytes-per-second: 1 or more"):
        audit(url=client.url, lake=lake, max_bytes_per_second=0)


def test_reads_of_compact_and_rollup_keep_to_their_limit(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path, now_s: list[float], monkeypatch: pytest.MonkeyPatch
):
    """The tasks of their plans are repeated here, on a clock that shows how long they wait."""
    client.append(topic, [{"data": "x" * 400, "tag": f"t{n}"} for n in range(250)])
    asked, options, limit = list[dict[str, Any]](), DataFrameReader.options, 100_000
    monkeypatch.setattr(DataFrameReader, "options", lambda self, **given: asked.append(given) or options(self, **given))
    declared = Declaration(topic=topic, table=str(tmp_path / "sums"), window="1 hour", by=("tag",))
    for run in (
        partial(compact, url=client.url, topic=topic, table=str(tmp_path / "latest")),
        partial(rollup, url=client.url, declaration=declared),
    ):
        asked.clear()
        run(max_bytes_per_second=limit, spark=spark)
        reads = [given for given in asked if "subscribe" in given]
        assert reads
        for given in reads:
            began_s, tasks = now_s[0], planned(**given)
            assert sum(len(task()) for task in tasks) == 250
            took_s = (now_s[0] - began_s) / len(tasks)  # they run at the same time
            assert took_s == pytest.approx(client.topic(topic).bytes / limit, rel=0.2), run.func
