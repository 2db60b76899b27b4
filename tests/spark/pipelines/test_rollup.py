"""Windows of a topic, each written once, when it is over."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.spark.lakes import archive
from tests.spark.pipelines.kills import killed_at
from topics.client import Client
from topics.client.request import Record
from topics.lake import output
from topics.spark.failures import BadUsage
from topics.spark.pipelines import rollup as module
from topics.spark.pipelines.rollup import rollup
from topics.spark.pipelines.run.report import RunReport, TopicReport
from topics.spark.pipelines.windows import Declaration

MINUTE = 60_000
BASE = 1_700_000_040_000  # on a full minute


def sell(client: Client, topic: str, *sales: tuple[float, str, int]) -> None:
    """Each at a number of minutes."""
    client.append(topic, [{"data": {"at": BASE + int(at * MINUTE), "total": t}, "tag": tag} for at, tag, t in sales])


def declare(topic: str, **fields: Any) -> Declaration:
    shown = {
        "topic": topic, "window": "1 minute", "time": "timestamp_millis(value:at::bigint)", "watermark": "30 seconds",
        "by": ["tag"], "select": ["count(*) AS n", "sum(value:total::bigint) AS total"],
    }  # fmt: skip
    return msgspec.convert(shown | fields, Declaration)


def minute(text: str) -> int:
    from datetime import datetime

    return round((datetime.fromisoformat(text).timestamp() * 1000 - BASE) / MINUTE)


def in_topic(client: Client, topic: str) -> list[tuple[int, str, int, int]]:
    found = [item.value for item in client.read(topic) if isinstance(item, Record)]
    return [(minute(row["window"]["start"]), row["tag"], row["n"], row["total"]) for row in found]


def test_window_is_written_once_after_the_watermark(spark: SparkSession, client: Client, topic: str):
    declared = declare(topic, into=f"{topic}.sums")

    def run() -> RunReport:
        return rollup(url=client.url, declaration=declared, spark=spark)

    sell(client, topic, (0.1, "web", 5), (0.9, "shop", 7), (0.2, "web", 1), (1.4, "web", 2))
    first = run()
    report = first.topics[0]
    assert first.execution is not None
    assert first.execution.reason == "on Spark, which runs already: rollup needs Spark SQL"
    assert report.records == 0, "the watermark is at 0.9 minutes"
    assert (report.figures["open_windows"], report.figures["late"]) == (2, 0)

    sell(client, topic, (0.5, "shop", 3), (1.6, "web", 4))
    report = run().topics[0]
    assert in_topic(client, f"{topic}.sums") == [(0, "shop", 2, 10), (0, "web", 2, 6)]
    assert (report.records, report.figures["open_windows"]) == (2, 1)

    sell(client, topic, (0.3, "web", 9), (3, "web", 1))
    report = run().topics[0]
    assert report.figures["late"] == 1
    assert in_topic(client, f"{topic}.sums")[2:] == [(1, "web", 2, 6)]
    assert run().topics[0].records == 0


FOUR = ["count(*) AS n", "sum(value:total::decimal(10,2)) AS total", "min(tag) AS least", "avg(seq) AS mean"]


@pytest.mark.parametrize("kind", ["into", "table"])
def test_closing_window_does_not_need_its_earlier_records(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path, kind: str
):
    """They were deleted after the round that read them: a second read would not find them."""
    output = {"into": f"{topic}.sums"} if kind == "into" else {"table": str(tmp_path / "sums")}
    declared = declare(topic, by=["length(tag) AS size"], select=FOUR, **output)
    for sales in (
        ((0.1, "web", 5), (0.9, "shop", 7), (0.3, "web", 2)),
        ((0.5, "shop", 3), (0.2, "app", 1)),
        ((9, "", 1),),
    ):
        sell(client, topic, *sales)
        report = rollup(url=client.url, declaration=declared, spark=spark)
        client.delete(topic, before_seq=client.topic(topic).head_seq + 1)
    if kind == "into":
        rows = [item.value for item in client.read(f"{topic}.sums") if isinstance(item, Record)]
    else:
        rows = DeltaTable(tmp_path / "sums").to_pyarrow_table().to_pylist()
    found = sorted((row["size"], row["n"], float(row["total"]), row["least"], row["mean"]) for row in rows)
    assert found == [(3, 3, 8.0, "app", 3.0), (4, 2, 10.0, "shop", 3.0)]
    assert report.topics[0].figures["open_windows"] == 1


def test_state_that_is_too_large_is_not_kept(
    spark: SparkSession, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "STATE_ROWS", 1)
    declared = declare(topic, into=f"{topic}.sums")
    for sales in ((0.1, "web", 5), (0.9, "shop", 7)), ((0.5, "shop", 3), (2, "web", 1)):
        sell(client, topic, *sales)
        rollup(url=client.url, declaration=declared, spark=spark)
    assert in_topic(client, f"{topic}.sums") == [(0, "shop", 2, 10), (0, "web", 1, 5)]


@pytest.mark.parametrize("kind", ["into", pytest.param("table", marks=pytest.mark.torture)])
def test_many_groups_are_written_by_several_tasks_once(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    monkeypatch.setattr(module, "TASK_ROWS", 7)
    output = {"into": f"{topic}.sums"} if kind == "into" else {"table": str(tmp_path / "sums")}
    declared = declare(topic, **output)
    sell(client, topic, *((0.1, f"t{n}", n) for n in range(30)), (2, "web", 1))
    with monkeypatch.context() as patch:
        patch.setattr(module.Rolling, "save", dying_after_writing(module.Rolling.save))
        with pytest.raises(MemoryError):
            rollup(url=client.url, declaration=declared, spark=spark)
    report = rollup(url=client.url, declaration=declared, spark=spark).topics[0]
    found = in_topic(client, f"{topic}.sums") if kind == "into" else in_table(tmp_path / "sums")
    assert sorted(found) == sorted((0, f"t{n}", 1, n) for n in range(30))
    assert (report.records, report.repeated) == (30, 30 if kind == "into" else 0)
    if kind == "table":
        assert len(DeltaTable(tmp_path / "sums").file_uris()) > 1


def dying_after_writing(save: Any) -> Any:
    """Replace `save`: die after the windows are written and before the position is saved."""

    def dying(self: Any, at: Any) -> Any:
        if at.due is None and at.done:
            raise MemoryError
        return save(self, at)

    return dying


def test_windows_of_a_killed_run_are_written_once(
    spark: SparkSession, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
):
    """It dies when the windows are in the topic and before that is noted; new records come before the next run."""
    declared = declare(topic, into=f"{topic}.sums")
    sell(client, topic, (0.1, "web", 5), (2, "web", 1))
    with monkeypatch.context() as patch:
        patch.setattr(module.Rolling, "save", dying_after_writing(module.Rolling.save))
        with pytest.raises(MemoryError):
            rollup(url=client.url, declaration=declared, spark=spark)
    sell(client, topic, (0.2, "web", 100), (4, "web", 1))

    report = rollup(url=client.url, declaration=declared, spark=spark).topics[0]

    assert in_topic(client, f"{topic}.sums") == [(0, "web", 1, 5), (2, "web", 1, 1)]
    assert (report.records, report.repeated, report.figures["late"]) == (2, 1, 1)


@pytest.mark.parametrize("recreated_by", ["none", pytest.param("a writer", marks=pytest.mark.torture), "a backup"])
def test_deleted_output_topic_is_filled_again_unless_restored(
    spark: SparkSession, client: Client, topic: str, recreated_by: str
):
    into = f"{topic}.sums"
    declared = declare(topic, into=into)
    sell(client, topic, (0.1, "web", 5), (2, "web", 1))
    rollup(url=client.url, declaration=declared, spark=spark)
    written = [item for item in client.read(into) if isinstance(item, Record)]
    client.drop_topic(into)
    if recreated_by == "a writer":
        client.put_topic(into)
    if recreated_by == "a backup":
        client.append(into, [{"data": item.data, "meta": item.meta} for item in written])
    sell(client, topic, (4, "web", 1))

    report = rollup(url=client.url, declaration=declared, spark=spark)

    assert in_topic(client, into) == [(0, "web", 1, 5), (2, "web", 1, 1)]
    assert len(report.warnings) == (recreated_by != "a backup")


def in_table(path: Path) -> list[tuple[int, str, int, int]]:
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    found = [(minute(row["window"]["start"].isoformat()), row["tag"], row["n"], row["total"]) for row in rows]
    return sorted(found)


def test_table_has_each_window_once_for_every_reader(spark: SparkSession, client: Client, topic: str, tmp_path: Path):
    path = tmp_path / "sums"
    declared = declare(topic, table=str(path))

    def run(**options: Any) -> TopicReport:
        return rollup(url=client.url, declaration=declared, spark=spark, **options).topics[0]

    sell(client, topic, (0.1, "web", 5), (0.9, "shop", 7), (0.2, "web", 1), (1.4, "web", 2))
    report = run()
    assert (report.records, report.figures["open_windows"]) == (0, 2), "the watermark is at 0.9 minutes"
    assert in_table(path) == []

    sell(client, topic, (0.5, "shop", 3), (1.6, "web", 4), (2.5, "web", 1))
    report = run()
    assert in_table(path) == [(0, "shop", 2, 10), (0, "web", 2, 6), (1, "web", 2, 6)]
    assert (report.records, report.figures["open_windows"]) == (3, 1)
    assert pl.read_delta(str(path)).select("tag", "n", "total").sort("tag", "n").rows() == [
        ("shop", 2, 10), ("web", 2, 6), ("web", 2, 6),
    ]  # fmt: skip

    sell(client, topic, (0.3, "web", 9), (4, "web", 1))
    report = run()
    assert report.figures["late"] == 1
    assert in_table(path)[3:] == [(2, "web", 1, 1)]
    version = DeltaTable(path).version()
    assert (run().records, DeltaTable(path).version()) == (0, version)

    [state] = (path / "_open").iterdir()
    DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    state.rename(tmp_path / "state")
    with pytest.raises(BadUsage, match="another declaration"):
        run()
    run(full=True)
    assert in_table(path) == [(0, "shop", 2, 10), (0, "web", 3, 15), (1, "web", 2, 6), (2, "web", 1, 1)]


@pytest.mark.parametrize(
    "point", [5, *(pytest.param(point, marks=pytest.mark.torture) for point in (0, 1, 2, 3, 4, 6, 7, 8, 9))]
)
def test_table_of_a_killed_run_has_every_window_once(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: int
):
    options: dict[str, Any] = {"declaration": declare(topic, table=str(tmp_path / "sums")), "spark": spark}
    sell(client, topic, (0.1, "web", 5), (2, "web", 1), (2.1, "web", 2), (4, "web", 1))
    with monkeypatch.context() as patch:
        killed_at(patch, point)
        with pytest.raises(MemoryError):
            rollup(url=client.url, step_seqs=2, **options)
    sell(client, topic, (4.2, "web", 3), (6, "web", 1))

    report = rollup(url=client.url, step_seqs=2, **options).topics[0]

    assert in_table(tmp_path / "sums") == [(0, "web", 1, 5), (2, "web", 2, 3), (4, "web", 2, 4)]
    assert report.figures["late"] == 0


def test_columns_that_a_table_cannot_have_are_refused(spark: SparkSession, client: Client, topic: str, tmp_path: Path):
    sell(client, topic, (0.1, "web", 5), (9, "web", 1))

    def run(*select: str) -> RunReport:
        declared = declare(topic, table=str(tmp_path / "sums"), select=list(select))
        return rollup(url=client.url, declaration=declared, spark=spark)

    with pytest.raises(BadUsage, match=r"column 'count\(1\)' of the result: a table cannot have this name"):
        run("count(*)")
    with pytest.raises(BadUsage, match="column last of the result: a table cannot have the type variant"):
        run("max_by(value, seq) AS last")
    run(
        "collect_list(seq) AS seqs", "map('n', count(*)) AS counts", "sum(value:total::decimal(10,2)) AS total",
        "min(ts)::date AS day", "avg(seq) AS mean", "min(value:absent::string) AS none",
    )  # fmt: skip
    [row] = pl.read_delta(str(tmp_path / "sums")).to_dicts()
    assert (row["seqs"], row["total"], row["mean"], row["none"]) == ([1], Decimal("5.00"), 1.0, None)
    assert row["window"]["end"] - row["window"]["start"] == timedelta(minutes=1)
    assert DeltaTable(tmp_path / "sums").to_pyarrow_table()["counts"].to_pylist() == [[("n", 1)]]


def test_small_files_of_a_table_are_merged(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(output, "MERGE_FILES", 3)
    declared = declare(topic, table=str(tmp_path / "sums"))
    sell(client, topic, *((n, "web", n) for n in range(0, 8, 2)))
    rollup(url=client.url, declaration=declared, step_seqs=1, spark=spark)
    assert in_table(tmp_path / "sums") == [(n, "web", 1, n) for n in range(0, 6, 2)]
    assert len(DeltaTable(tmp_path / "sums").file_uris()) == 1


def test_overlapping_windows_count_a_record_in_each(spark: SparkSession, client: Client, topic: str):
    declared = declare(topic, into=f"{topic}.sums", window="2 minutes", slide="1 minute", watermark="0 seconds")
    sell(client, topic, (1.5, "web", 1), (10, "web", 1))
    rollup(url=client.url, declaration=declared, spark=spark)
    assert in_topic(client, f"{topic}.sums") == [(0, "web", 1, 1), (1, "web", 1, 1)]


def test_own_statement_and_tag_are_used(spark: SparkSession, client: Client, topic: str):
    sql = "SELECT tag, max_by(value:total::int, time) AS last FROM records WHERE tag <> 'no' GROUP BY window, tag"
    declared = declare(topic, into=f"{topic}.last", by=[], select=["count(*) AS count"], sql=sql, tag="tag")
    sell(client, topic, (0.5, "web", 1), (0.6, "web", 2), (0.1, "no", 3), (5, "web", 9))
    client.append(topic, [{"data": "no time"}])
    report = rollup(url=client.url, declaration=declared, spark=spark).topics[0]
    [record] = client.read(f"{topic}.last", include_tags=True)
    assert isinstance(record, Record)
    assert (record.value, record.tag) == ({"tag": "web", "last": 2}, "web")
    assert report.figures["without_time"] == 1


def test_windows_of_commit_time_need_no_time_expression(spark: SparkSession, client: Client, topic: str):
    declared = Declaration(topic=topic, window="10 ms", into=f"{topic}.counts")
    client.append(topic, [{"data": 1}, {"data": 2}])
    first = client.topic(topic).last_write_ts or 0
    while (client.topic(topic).last_write_ts or 0) < first + 20:
        client.append(topic, [{"data": 3}])
    rollup(url=client.url, declaration=declared, spark=spark)
    rows = [item.value for item in client.read(f"{topic}.counts") if isinstance(item, Record)]
    assert rows
    assert rows[0]["count"] >= 2


@pytest.mark.torture
def test_gaps_are_reported(spark: SparkSession, client: Client, topic: str):
    client.put_topic(topic, cap_records=2)
    sell(client, topic, *((n, "web", 1) for n in range(4)))
    report = rollup(url=client.url, declaration=declare(topic, into=f"{topic}.sums"), spark=spark)
    assert [(gap.from_seq, gap.to_seq) for gap in report.topics[0].gaps] == [(1, 2)]


def test_another_declaration_needs_another_output_or_full(spark: SparkSession, client: Client, topic: str):
    sell(client, topic, (0, "web", 1), (5, "web", 1))
    rollup(url=client.url, declaration=declare(topic, into=f"{topic}.sums"), spark=spark)
    other = declare(topic, into=f"{topic}.sums", watermark="1 minute")
    with pytest.raises(BadUsage, match="another declaration"):
        rollup(url=client.url, declaration=other, spark=spark)
    rollup(url=client.url, declaration=other, full=True, spark=spark)
    assert len(in_topic(client, f"{topic}.sums")) == 2


@pytest.mark.parametrize("kind", ["topic", pytest.param("table", marks=pytest.mark.torture)])
def test_dry_run_reports_and_writes_nothing(spark: SparkSession, client: Client, topic: str, tmp_path: Path, kind: str):
    client.put_topic(topic, cap_records=4)
    sell(client, topic, *((n, tag, 1) for n in (0, 1, 5) for tag in ("web", "shop")))
    sums, folder = f"{topic}.sums", tmp_path / "sums"
    declared = declare(topic, into=sums) if kind == "topic" else declare(topic, table=str(folder))
    [shown] = rollup(url=client.url, declaration=declared, step_seqs=4, follow=True, dry_run=True, spark=spark).topics
    made = f"topic {sums}" if kind == "topic" else f"table {folder}"
    assert (shown.to_seq, shown.records, shown.would) == (6, 2, [f"create {made}"])
    assert [(gap.from_seq, gap.to_seq) for gap in shown.gaps] == [(1, 2)]
    assert not list(client.topics(sums))
    assert not folder.exists()
    [done] = rollup(url=client.url, declaration=declared, spark=spark).topics
    assert (done.records, done.gaps, done.figures) == (shown.records, shown.gaps, shown.figures)


def test_trimmed_topic_is_warned_about_without_its_lake(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path
):
    sell(client, topic, *((n, "web", 1) for n in range(4)))
    archived_epoch = archive(client, tmp_path, topic, upto=2, trim=True)
    client.archived(topic, seq=2, epoch=archived_epoch.epoch)
    declared = declare(topic, into=f"{topic}.sums")
    without = rollup(url=client.url, declaration=declared, spark=spark, dry_run=True)
    assert "seqs 1 to 2 were trimmed after they were archived" in without.warnings[0]
    healed = rollup(url=client.url, declaration=declared, lake=str(tmp_path), spark=spark)
    assert (healed.warnings, [row[0] for row in in_topic(client, f"{topic}.sums")]) == ([], [0, 1])


def test_record_of_another_type_counts_as_null(spark: SparkSession, client: Client, topic: str) -> None:
    sell(client, topic, (0.1, "web", 5))
    client.append(topic, [{"data": {"at": BASE + 1, "total": "cheap"}, "tag": "web"}])
    client.append(topic, [{"data": {"at": "soon", "total": 1}, "tag": "web"}])
    sell(client, topic, (9, "web", 1))
    report = rollup(url=client.url, declaration=declare(topic, into=f"{topic}.sums"), spark=spark)
    assert report.topics[0].figures["without_time"] == 1
    assert in_topic(client, f"{topic}.sums") == [(0, "web", 2, 5)]


def test_declaration_is_kept_once_windows_are_planned(spark: SparkSession, client: Client, topic: str):
    sell(client, topic, (0.1, "web", 5), (9, "web", 1))

    def run(*select: str, **options: Any) -> RunReport:
        declared = declare(topic, select=list(select), into=f"{topic}.sums")
        return rollup(url=client.url, declaration=declared, spark=spark, **options)

    with pytest.raises(BadUsage, match="two columns of the result are called n"):
        run("count(*) AS n", "max(seq) AS N")
    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        run("sum(tag::int) AS n")
    assert run("count(*) AS n", full=True).topics[0].records == 1
    with pytest.raises(BadUsage, match="another declaration"):
        run("max(seq) AS n")
