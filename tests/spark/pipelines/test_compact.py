"""The latest record of every key, as a table and as a topic, updated with new records."""

from __future__ import annotations

import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import topics.spark.pipelines.compact as task
from tests.conftest import ServerProcess, StartServer
from tests.spark.pipelines.kills import killed_at
from topics.client import Client
from topics.client.request import Record
from topics.errors import TopicsError
from topics.lake.delta_folder import FactsReader
from topics.lake.files import RowsWriter, read_rows
from topics.lake.output import OutputTable
from topics.lake.storage import Storage
from topics.lake.table import epochs_of
from topics.spark.failures import BadUsage, Failed, kind_of
from topics.spark.options import ConnectionOptions
from topics.spark.pipelines import compact as module
from topics.spark.pipelines.compact import compact
from topics.spark.pipelines.run.report import RunReport


def write(client: Client, topic: str, *pairs: tuple[str | None, Any]) -> None:
    client.append(topic, [{"data": data} if tag is None else {"data": data, "tag": tag} for tag, data in pairs])


def in_table(path: Path) -> dict[str, Any]:
    """Fails where a key has two rows."""
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: msgspec.json.decode(row["data"]) for row in rows}


def in_topic(client: Client, topic: str) -> dict[str, Any]:
    """Fails where a key has two records."""
    found: dict[str, Any] = {}
    for item in client.read(topic, include_tags=True):
        assert isinstance(item, Record)
        assert item.tag is not None
        assert item.tag not in found
        found[item.tag] = item.value
    return found


def test_table_holds_latest_record_per_tag_and_adds_new_ones(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path
):
    path = tmp_path / "latest"

    def run() -> RunReport:
        return compact(url=client.url, topic=topic, table=str(path), spark=spark)

    write(client, topic, ("a", 1), ("b", 1), ("a", 2), (None, 0))
    first = run().topics[0]
    assert in_table(path) == {"a": 2, "b": 1}
    assert (first.from_seq, first.to_seq, first.records, first.lag) == (1, 4, 2, 0)
    assert first.figures == {"looked_at": 4, "without_key": 1, "keys": 2}

    write(client, topic, ("b", 2), ("c", 1))
    second = run().topics[0]
    assert in_table(path) == {"a": 2, "b": 2, "c": 1}
    assert (second.from_seq, second.records, second.figures["looked_at"]) == (5, 2, 2)
    assert dict(pl.read_delta(str(path)).select("key", "seq").iter_rows()) == {"a": 3, "b": 5, "c": 6}

    version = DeltaTable(path).version()
    assert run().topics[0].to_seq == 0, "nothing is new"
    assert DeltaTable(path).version() == version


def test_only_files_with_changed_keys_are_replaced(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "latest"
    write(client, topic, ("a", 1), ("b", 1))
    compact(url=client.url, topic=topic, table=str(path), spark=spark)
    split(path, "b")
    before = set(DeltaTable(path).file_uris())
    assert len(before) == 2

    write(client, topic, ("c", 1), ("b", 2), (None, 0))
    report = compact(url=client.url, topic=topic, table=str(path), spark=spark).topics[0]
    assert in_table(path) == {"a": 1, "b": 2, "c": 1}
    assert (report.records, report.figures["keys"]) == (2, 3)
    assert len(before & set(DeltaTable(path).file_uris())) == 1

    write(client, topic, ("", 7))
    compact(url=client.url, topic=topic, table=str(path), spark=spark)
    assert in_table(path) == {"": 7, "a": 1, "b": 2, "c": 1}


def split(path: Path, key: str) -> None:
    """Rewrite the file of the table as two, the second of which begins with the key."""
    table = OutputTable(str(path), "compact")
    position, [file] = table.load(), table.files()
    with RowsWriter(table.storage, task.COLUMNS) as writer:
        for batch in read_rows(table.storage, file.path, task.COLUMNS):
            keys = batch.column("key").to_pylist()
            writer.write(batch.slice(0, keys.index(key)))
            writer.cut()
            writer.write(batch.slice(keys.index(key)))
        table.commit(position, writer.finish(), [file.path])


def test_large_table_is_written_in_ranges_of_keys(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(task, "TASK_BYTES", 10_000)
    client.put_topic(topic, cap_records=600)
    path, latest = tmp_path / "latest", dict[str, Any]()
    for number in range(2):
        pairs = [(f"k{n * 7 % 331:03}", [number, n]) for n in range(400)]
        write(client, topic, *pairs, (None, "no key"))
        report = compact(url=client.url, topic=topic, table=str(path), null_removes=True, spark=spark)
        latest |= dict(pairs)
        assert in_table(path) == latest
        assert report.topics[0].figures["keys"] == len(latest)
        assert report.topics[0].figures["without_key"] == 1
        table = OutputTable(str(path), "compact")
        table.load()
        files = table.files("key")
        bounds = sorted((file.low, file.high) for file in files)
        assert len(bounds) > 1
        assert all(one[1] < other[0] for one, other in pairwise(bounds))


@pytest.mark.torture
def test_table_merged_by_another_program_is_continued(spark: SparkSession, client: Client, topic: str, tmp_path: Path):
    path = tmp_path / "latest"
    write(client, topic, ("a", 1), ("b", 1))
    compact(url=client.url, topic=topic, table=str(path), spark=spark)
    split(path, "b")
    DeltaTable(path).optimize.compact()
    DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    write(client, topic, ("b", 2))
    compact(url=client.url, topic=topic, table=str(path), spark=spark)
    assert in_table(path) == {"a": 1, "b": 2}


POINTS = [3, *(pytest.param(point, marks=pytest.mark.torture) for point in (0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11))]


@pytest.mark.parametrize("point", POINTS)
def test_table_of_a_killed_run_has_every_key_once(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: int
):
    options: dict[str, Any] = {"url": client.url, "topic": topic, "table": str(tmp_path / "latest"), "spark": spark}
    write(client, topic, ("a", 1), ("b", 1), ("a", 2), ("c", 1))
    with monkeypatch.context() as patch:
        killed_at(patch, point)
        with pytest.raises(MemoryError):
            compact(step_seqs=2, **options)
    write(client, topic, ("c", 2), ("d", 1))

    compact(step_seqs=2, **options)

    assert in_table(tmp_path / "latest") == {"a": 2, "b": 1, "c": 2, "d": 1}


def _dying_after_writing(save: Any) -> Any:
    """Replace `save`: die after the records are written and before the position is saved."""

    def dying(self: Any, at: Any) -> Any:
        if at.done == at.plan:
            raise MemoryError
        return save(self, at)

    return dying


def test_topic_holds_one_record_per_key_after_a_kill(
    spark: SparkSession, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
):
    into = f"{topic}.latest"

    def run() -> RunReport:
        return compact(url=client.url, topic=topic, into=into, spark=spark)

    client.append(topic, [{"data": {"n": 1}, "tag": "a", "node": "till", "meta": {"x": 1}}])
    write(client, topic, ("b", 1), ("a", 2))
    run()
    assert in_topic(client, into) == {"a": 2, "b": 1}

    write(client, topic, ("a", 3), ("c", 1))
    with monkeypatch.context() as patch:
        patch.setattr(module.Compaction, "save", _dying_after_writing(module.Compaction.save))
        with pytest.raises(MemoryError):
            run()
    again = run().topics[0]
    assert in_topic(client, into) == {"a": 3, "b": 1, "c": 1}
    assert (again.records, again.repeated) == (2, 2)
    head = client.topic(into).head_seq
    run()
    assert client.topic(into).head_seq == head == 4


def test_older_records_of_many_keys_are_deleted_together(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(task, "TASK_BYTES", 5_000)
    into, latest = f"{topic}.latest", dict[str, Any]()
    for number in range(2):
        pairs = [(f"k{n:03}", None if number and n % 10 == 0 else [number, n]) for n in range(200)]
        write(client, topic, *pairs, (None, "no key"))
        before = requests(server)
        report = compact(url=client.url, topic=topic, into=into, null_removes=True, spark=spark).topics[0]
        latest |= dict(pairs)
        assert in_topic(client, into) == {key: value for key, value in latest.items() if value is not None}
        assert (report.figures["keys"], report.figures.get("removed", 0)) == ((200, 0), (180, 20))[number]
        assert requests(server) - before < 150, "a delete for every key would be 200"


def requests(server: ServerProcess) -> int:
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        [line] = [one for one in answer.read().decode().splitlines() if one.startswith("topics_http_requests_total ")]
    return int(float(line.split()[1]))


@pytest.mark.parametrize("is_there", [False, pytest.param(True, marks=pytest.mark.torture)])
def test_missing_right_to_delete_is_found_before_a_write(
    spark: SparkSession, start_server: StartServer, topic: str, is_there: bool
):
    server = start_server(api_keys="all,writer:read+write")
    with Client(server.url, token="all") as client:
        write(client, topic, ("a", 1))
        if is_there:
            compact(url=server.url, topic=topic, into=f"{topic}.latest", token="all", spark=spark)
            write(client, topic, ("a", 2))

        with pytest.raises(TopicsError, match="delete"):
            compact(url=server.url, topic=topic, into=f"{topic}.latest", token="writer", spark=spark)

        there = {row.topic: row.head_seq for row in client.topics(f"{topic}.")}
        assert there == ({f"{topic}.latest": 1} if is_there else {})


def test_record_keeps_its_fields_and_names_its_origin(spark: SparkSession, client: Client, topic: str):
    client.append(topic, [{"data": {"id": 7, "x": 1.50}, "tag": "web", "node": "till", "meta": {"trace": 1}}])

    compact(url=client.url, topic=topic, into=f"{topic}.latest", by="value:id::string", spark=spark)

    [record] = client.read(f"{topic}.latest", include_tags=True)
    assert isinstance(record, Record)
    assert (record.tag, record.node, bytes(record.data)) == ("7", "till", b'{"id":7,"x":1.5}')
    epoch = client.topic(topic).epoch
    assert msgspec.json.decode(record.meta) == {
        "trace": 1, "_topics_compact": {"topic": topic, "epoch": epoch, "seq": 1, "tag": "web"},
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["table", pytest.param("topic", marks=pytest.mark.torture)])
def test_null_removes_its_key_on_request(spark: SparkSession, client: Client, topic: str, tmp_path: Path, kind: str):
    where = {"table": str(tmp_path / "latest")} if kind == "table" else {"into": f"{topic}.latest"}
    options: dict[str, Any] = {"url": client.url, "topic": topic, "null_removes": True, "spark": spark, **where}
    write(client, topic, ("a", 1), ("b", 1))
    compact(**options)
    write(client, topic, ("a", None))
    report = compact(**options)
    found = in_table(tmp_path / "latest") if kind == "table" else in_topic(client, f"{topic}.latest")
    assert found == {"b": 1}
    assert report.topics[0].figures["removed"] == 1


@pytest.mark.parametrize("kind", ["table", pytest.param("topic", marks=pytest.mark.torture)])
def test_full_run_drops_records_deleted_in_the_topic(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path, kind: str
):
    where = {"table": str(tmp_path / "latest")} if kind == "table" else {"into": f"{topic}.latest"}
    options: dict[str, Any] = {"url": client.url, "topic": topic, "spark": spark, **where}
    write(client, topic, ("a", 1), ("b", 1), ("b", 2))
    compact(**options)
    client.delete(topic, match="a")
    for _ in range(2):
        compact(full=True, **options)
        found = in_table(tmp_path / "latest") if kind == "table" else in_topic(client, f"{topic}.latest")
        assert found == {"b": 2}


@pytest.mark.parametrize(
    "recreated", [pytest.param(True, marks=pytest.mark.torture), False], ids=["recreated", "deleted"]
)
def test_deleted_output_topic_is_filled_again_without_new_records(
    spark: SparkSession, client: Client, topic: str, recreated: bool
):
    into = f"{topic}.latest"
    options: dict[str, Any] = {"url": client.url, "topic": topic, "into": into, "spark": spark}
    write(client, topic, ("a", 1), ("b", 1), ("b", 2))
    compact(**options)
    client.drop_topic(into)
    if recreated:
        client.put_topic(into)
    report = compact(**options)
    assert in_topic(client, into) == {"a": 1, "b": 2}
    assert "was deleted" in report.warnings[0]
    write(client, topic, ("a", 2))
    assert compact(**options).warnings == []
    assert in_topic(client, into) == {"a": 2, "b": 2}


def rows(*given: tuple[str, str]) -> pa.RecordBatch:
    """Return the input of the task that writes a topic."""
    found = [
        {"key": key, "n": 1, "epoch": 7, "seq": seq, "ts": None, "node": None, "tag": key, "meta": None, "data": data}
        for seq, (key, data) in enumerate(given, 1)
    ]
    losses = [pa.field("gap_to", pa.int64()), pa.field("reason", pa.string()), pa.field("n", pa.int64())]
    return pa.RecordBatch.from_pylist(found, schema=pa.schema([*task.COLUMNS, *losses]))


def test_rejected_record_becomes_a_gap_and_blocks_nothing(client: Client, topic: str):
    into = f"{topic}.latest"
    large = '"' + "x" * (1024 * 1024 - 30) + '"'
    position = task.CompactPosition(declaration=1, epoch=7, plan=3)
    for _ in range(2):
        writer = task.WriteLatestTopic(
            connection=ConnectionOptions(server=client.url), source=topic, topic=into, position=position,
            null_removes=False,
        )  # fmt: skip
        [answer] = writer(iter([rows(("a", "1"), ("b", large), ("c", '"\\ud800"'))]))
        outcome = msgspec.json.decode(answer.column(0)[0].as_py(), type=task.CompactResult)
        [gap] = outcome.gaps
        assert (gap.from_seq, gap.to_seq, outcome.keys) == (2, 2, 3)
        found = in_topic(client, into)
        assert (found["a"], found["c"], found["b"]["reason"]) == (1, "\ud800", gap.reason)


@pytest.mark.torture
def test_gaps_are_in_the_report_and_the_table(spark: SparkSession, client: Client, topic: str, tmp_path: Path):
    client.put_topic(topic, cap_records=2)
    write(client, topic, ("a", 1), ("a", 2), ("b", 1), ("c", 1))

    report = compact(url=client.url, topic=topic, table=str(tmp_path / "latest"), spark=spark)

    assert [(gap.from_seq, gap.to_seq, gap.reason) for gap in report.topics[0].gaps] == [(1, 2, "cap")]
    log = FactsReader(Storage(str(tmp_path / "latest")))
    [epoch] = epochs_of(log.at(DeltaTable(tmp_path / "latest").version()), "", {}).values()
    assert [(gap.first, gap.last, gap.reason) for gap in epoch.gaps] == [(1, 2, "cap")]


def test_unsuitable_outputs_are_refused(spark: SparkSession, client: Client, topic: str, tmp_path: Path):
    write(client, topic, ("a", 1))
    table = str(tmp_path / "latest")
    options: dict[str, Any] = {"url": client.url, "topic": topic, "spark": spark}
    compact(table=table, **options)
    with pytest.raises(BadUsage, match="holds the result of another declaration"):
        compact(table=table, by="node", **options)
    with pytest.raises(BadUsage, match="itself"):
        compact(into=topic, **options)
    with pytest.raises(BadUsage, match="choose one output"):
        compact(**options)
    with pytest.raises(BadUsage, match="does not exist"):
        compact(url=client.url, topic=f"{topic}.no", table=str(tmp_path / "new"), spark=spark)
    with pytest.raises(BadUsage, match="is not empty and is not a Delta table: it contains latest"):
        compact(table=str(tmp_path), **options)
    with pytest.raises(BadUsage, match="a URL that begins with s3://"):
        compact(table="ftp://somewhere/table", **options)
    write_deltalake(tmp_path / "other", pa.table({"key": ["a"]}))
    with pytest.raises(BadUsage, match="this pipeline has not written"):
        compact(table=str(tmp_path / "other"), full=True, **options)


def test_second_run_on_the_same_table_stops(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    options: dict[str, Any] = {"url": client.url, "topic": topic, "table": str(tmp_path / "latest"), "spark": spark}
    write(client, topic, ("a", 1))
    commit, calls = OutputTable.commit, []

    def late(self: OutputTable, *arguments: Any, **named: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            compact(**options)
        commit(self, *arguments, **named)

    monkeypatch.setattr(OutputTable, "commit", late)
    with pytest.raises(Failed, match="another run is writing to"):
        compact(**options)
    assert in_table(tmp_path / "latest") == {"a": 1}


@pytest.mark.parametrize("kind", ["table", pytest.param("topic", marks=pytest.mark.torture)])
def test_dry_run_reports_and_writes_nothing(spark: SparkSession, client: Client, topic: str, tmp_path: Path, kind: str):
    name = str(tmp_path / "latest") if kind == "table" else f"{topic}.latest"
    where = {"table": name} if kind == "table" else {"into": name}
    options: dict[str, Any] = {"url": client.url, "topic": topic, "null_removes": True, "spark": spark, **where}
    client.put_topic(topic, cap_records=4)
    write(client, topic, ("lost", 0), ("a", 1), ("b", 1), ("a", 2), (None, 0))
    [shown] = compact(dry_run=True, step_seqs=2, **options).topics
    assert (shown.from_seq, shown.to_seq, shown.records, shown.lag) == (1, 5, 2, 0)
    assert shown.would == [f"create {'table' if kind == 'table' else 'topic'} {name}"]
    assert list(tmp_path.iterdir()) == []
    assert [row.topic for row in client.topics(f"{topic}.")] == []
    done = compact(**options).topics[0]
    assert (done.records, done.gaps, done.figures) == (shown.records, shown.gaps, shown.figures)
    assert [(gap.from_seq, gap.to_seq) for gap in shown.gaps] == [(1, 1)]

    write(client, topic, ("b", None), ("c", 1))
    [shown] = compact(dry_run=True, **options).topics
    assert (shown.from_seq, shown.records, shown.would) == (6, 1, [])
    done = compact(**options).topics[0]
    assert (done.records, done.figures) == (shown.records, shown.figures)


@pytest.mark.torture
def test_key_of_another_type_is_null_and_invalid_tag_is_a_usage_error(
    spark: SparkSession, client: Client, topic: str
) -> None:
    write(client, topic, (None, {"id": 7}), (None, {"id": "seven"}))
    into = f"{topic}.latest"
    report = compact(url=client.url, topic=topic, into=into, by="value:id::int", spark=spark)
    assert report.topics[0].figures["without_key"] == 1
    assert in_topic(client, into) == {"7": {"id": 7}}
    with pytest.raises(Exception, match="cannot be a tag") as failed:
        compact(url=client.url, topic=topic, into=f"{topic}.long", by="repeat('k', 100000)", spark=spark)
    assert kind_of(failed.value).wire == "usage"
