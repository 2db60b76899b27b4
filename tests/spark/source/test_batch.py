"""Batch reads against a real server: every record, every gap, whatever the options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.conftest import ServerProcess, StartServer
from tests.spark.world import Seen, by_diff, by_spark, load
from topics.client import Client

AWKWARD = [
    {"data": "a }, b", "tag": "x:1", "node": 'quo"te'},
    {"data": {"k": [1, 2.5, "\u00e9"]}, "tag": "", "node": "K\u00f6ln", "meta": {"m": 1, "s": "t\u00e9xt"}},
    {"data": None},
    {"data": "w" * 90, "meta": {}, "tag": 'es\\c"aped\n'},
    {"data": 1.50, "node": "n\tab"},
]


@pytest.fixture
def orders(client: Client) -> Iterator[str]:
    """A topic of 40 records, 5 of them deleted."""
    client.put_topic("orders")
    for n in range(8):
        client.append("orders", [record | {"data": [n, record["data"]]} for record in AWKWARD])
    client.delete("orders", match="x:1", before_seq=24)
    yield "orders"
    client.drop_topic("orders")


def test_batch_read_returns_the_records_of_diff(
    spark: SparkSession, server: ServerProcess, client: Client, orders: str
):
    found = by_spark(load(spark, url=server.url, subscribe=orders))
    assert found == {orders: by_diff(client, orders)}
    assert len(found[orders]) == 35


def test_source_is_found_without_registration(spark: SparkSession, server: ServerProcess, orders: str):
    fresh = spark.newSession()
    assert load(fresh, url=server.url, subscribe=orders).count() == 35


def test_sql_reads_a_topic_through_a_view(spark: SparkSession, server: ServerProcess, orders: str):
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders_view USING topics OPTIONS (url '{server.url}', subscribe '{orders}')"
    )
    [row] = spark.sql("SELECT count(*) AS n, max(seq) AS last FROM orders_view WHERE kind = 'record'").collect()
    assert (row.n, row.last) == (35, 40)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"startingOffsets": '{"orders": 7}', "endingOffsets": '{"orders": 21}'}, {}),
        ({"node": "K\u00f6ln"}, {"node": "K\u00f6ln"}),
        ({"tag": "x:*"}, {"filter": ["tag", "Glob", "x:*"]}),
        (
            {"tag": "x:*", "where": "data.0 > 5 or data.1 = null"},
            {"filter": ["And", [["tag", "Glob", "x:*"], ["Where", "data.0 > 5 or data.1 = null"]]]},
        ),
    ],
)
def test_options_narrow_a_read(
    spark: SparkSession, server: ServerProcess, client: Client, orders: str, options: dict[str, str], fields: Any
):
    expected = by_diff(client, orders, **fields)
    if "endingOffsets" in options:
        expected = [seen for seen in expected if 7 <= seen.seq < 21]
    assert by_spark(load(spark, url=server.url, subscribe=orders, **options)) == {orders: expected}


def test_times_narrow_a_read(spark: SparkSession, server: ServerProcess, client: Client, orders: str):
    everything = by_diff(client, orders)
    times = sorted({seen.ts_ms for seen in everything if seen.ts_ms is not None})
    low, high = times[len(times) // 3], times[-1]
    found = by_spark(load(spark, url=server.url, subscribe=orders, startingTimestamp=low, endingTimestamp=high))
    assert found.get(orders, []) == [seen for seen in everything if low <= (seen.ts_ms or 0) < high]


def test_large_topic_is_read_in_parts(spark: SparkSession, server: ServerProcess, client: Client):
    client.put_topic("large")
    for _ in range(9):
        client.append("large", [{"data": 1}] * 500)
    frame = load(spark, url=server.url, subscribe="large", minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    [row] = frame.agg(F.count("*"), F.sum("seq"), F.countDistinct("seq")).collect()
    assert tuple(row) == (4500, 4500 * 4501 // 2, 4500)


# --- loss


@pytest.fixture
def capped(client: Client) -> Iterator[str]:
    client.put_topic("capped", cap_records=2000)
    for _ in range(7):
        client.append("capped", [{"data": 1}] * 500)
    yield "capped"
    client.drop_topic("capped")


def test_lost_range_fails_the_query_with_its_range(spark: SparkSession, server: ServerProcess, capped: str):
    frame = load(spark, url=server.url, subscribe=capped, startingOffsets='{"capped": 1}')
    with pytest.raises(PySparkException, match=r"seqs 1 to 1500 of topic capped .* are lost \(cap\)"):
        frame.count()


def test_gap_row_is_clipped_to_its_partition(spark: SparkSession, server: ServerProcess, capped: str):
    options = {"startingOffsets": '{"capped": 1}', "failOnDataLoss": "false"}
    [gap, *records] = by_spark(load(spark, url=server.url, subscribe=capped, **options))[capped]
    assert gap == Seen(1, gap_to=1500, reason="cap")
    assert [seen.seq for seen in records] == list(range(1501, 3501))
    found = by_spark(load(spark, url=server.url, subscribe=capped, minPartitions=4, **options))[capped]
    gaps = [seen for seen in found if seen.reason is not None]
    assert [(gap.seq, gap.gap_to) for gap in gaps] == [(1, 999), (1000, 1500)]


def test_earliest_is_the_first_retained_record(spark: SparkSession, server: ServerProcess, capped: str):
    assert load(spark, url=server.url, subscribe=capped).count() == 2000


def test_topic_recreated_after_planning_is_not_mixed_in(spark: SparkSession, server: ServerProcess, client: Client):
    client.append("reborn", [{"data": "old"}] * 10)
    frames = [load(spark, url=server.url, subscribe="reborn", failOnDataLoss=fails) for fails in ("true", "false")]
    for frame in frames:
        assert frame.count() == 10  # planned now, and for good
    client.drop_topic("reborn")
    with pytest.raises(PySparkException, match=r"seqs 1 to 10 of topic reborn .* are lost \(dropped\)"):
        frames[0].count()
    client.append("reborn", [{"data": "new"}] * 20)
    with pytest.raises(PySparkException, match=r"seqs 1 to 10 of topic reborn .* are lost \(recreated\)"):
        frames[0].count()
    assert by_spark(frames[1]) == {"reborn": [Seen(1, gap_to=10, reason="recreated")]}


def test_start_past_the_head_is_refused_and_a_stale_one_is_a_gap(
    spark: SparkSession, server: ServerProcess, client: Client
):
    client.append("short", [{"data": 1}] * 3)
    wrong = {"startingOffsets": '{"short": 5}', "failOnDataLoss": "false"}
    with pytest.raises(PySparkException, match="topic short has no seq 4 yet; its head is 3"):
        load(spark, url=server.url, subscribe="short", **wrong).count()
    stale = json.dumps({"short": {"epoch": client.topic("short").epoch - 1, "seq": 2}})
    found = by_spark(load(spark, url=server.url, subscribe="short", startingOffsets=stale, failOnDataLoss="false"))
    assert sorted((seen.seq, seen.reason) for seen in found["short"] if seen.reason) == [(1, "recreated")]
    assert sorted(seen.seq for seen in found["short"] if not seen.reason) == [1, 2, 3]
    with pytest.raises(PySparkException, match=r"are lost \(recreated\)"):
        load(spark, url=server.url, subscribe="short", startingOffsets=stale).count()


# --- shapes


def test_topics_are_selected_by_prefix_and_pattern(spark: SparkSession, server: ServerProcess, client: Client):
    for name in ("eu.a", "eu.b", "us.a"):
        client.append(name, [{"data": name}])
    assert set(by_spark(load(spark, url=server.url, subscribePrefix="eu."))) == {"eu.a", "eu.b"}
    assert set(by_spark(load(spark, url=server.url, subscribePattern=r"..\.a"))) == {"eu.a", "us.a"}
    assert load(spark, url=server.url, subscribePrefix="nobody").count() == 0


def test_key_is_read_from_its_file(spark: SparkSession, start_server: StartServer, tmp_path: Path):
    locked = start_server(api_keys="long-enough-secret-key")
    with Client(locked.url, token="long-enough-secret-key") as far:
        far.append("safe", [{"data": 1}])
    key = tmp_path / "key"
    key.write_text("long-enough-secret-key\n")
    assert load(spark, url=locked.url, subscribe="safe", tokenFile=str(key)).count() == 1
    with pytest.raises(AnalysisException, match=r"key"):
        load(spark, url=locked.url, subscribe="safe").count()


def test_unreadable_sources_are_refused_with_a_reason(spark: SparkSession, server: ServerProcess, client: Client):
    with pytest.raises(AnalysisException, match="topic 'nobody' does not exist"):
        load(spark, url=server.url, subscribe="nobody").count()
    with pytest.raises(AnalysisException, match="did you mean 'subscribe'"):
        load(spark, url=server.url, subscrib="x").count()
    with pytest.raises(AnalysisException, match="no answer from"):
        load(spark, url="http://127.0.0.1:9", subscribe="x", retries=0).count()
    client.append("few", [{"data": 1}])
    with pytest.raises(AnalysisException, match="no seq 8 yet"):
        load(spark, url=server.url, subscribe="few", endingOffsets='{"few": 9}').count()
    with pytest.raises(AnalysisException, match="only streams have this option"):
        load(spark, url=server.url, subscribe="few", maxOffsetsPerTrigger=5).count()
