"""The streaming source against a real server: no record lost or repeated, and gaps reported."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import ServerProcess
from tests.spark.streams import drain, fails, finish, numbers, source
from topics.client import Client
from topics.spark import lag


def seqs(batches: list[list[object]]) -> list[list[int]]:
    return [sorted(row.seq for row in batch) for batch in batches]  # type: ignore[attr-defined]


def test_stream_continues_at_its_checkpoint(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    numbers(client, topic, range(5), tag="a", node="n")
    [first] = drain(source(spark, server.url, subscribe=topic), tmp_path)
    assert [(row.kind, row.topic, row.seq, row.tag, row.node, row.data) for row in first] == [
        ("record", topic, seq, "a", "n", f'{{"n":{seq - 1}}}') for seq in range(1, 6)
    ]
    assert drain(source(spark, server.url, subscribe=topic), tmp_path) == []
    numbers(client, topic, range(5, 7))
    assert seqs(drain(source(spark, server.url, subscribe=topic), tmp_path)) == [[6, 7]]


@pytest.mark.torture
def test_start_at_latest_survives_a_crash_in_the_first_batch(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    """Spark stores the end of a batch, not its start, and asks again for the start of the first batch."""
    numbers(client, topic, range(3))
    stream = source(spark, server.url, subscribe=topic, startingOffsets="latest")
    assert drain(stream, tmp_path) == [[]]
    numbers(client, topic, range(3, 5))
    assert seqs(drain(stream, tmp_path)) == [[4, 5]]

    # The checkpoint as it is if both arrived in one batch and the driver died before its commit.
    offsets = tmp_path / "offsets"
    (offsets / "1").replace(offsets / "0")
    for leftover in (*offsets.glob(".*.crc"), *(tmp_path / "commits").iterdir()):
        leftover.unlink()
    numbers(client, topic, range(5, 7))
    assert seqs(drain(stream, tmp_path)) == [[4, 5], [6, 7]]


@pytest.mark.torture
def test_rate_is_shared_fairly_with_new_topics(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    numbers(client, f"{topic}.small", range(5))
    numbers(client, f"{topic}.big", range(40))

    def run() -> list[dict[str, int]]:
        stream = source(spark, server.url, subscribePrefix=f"{topic}.", maxOffsetsPerTrigger=20, minPartitions=2)
        counts = []
        for batch in drain(stream, tmp_path):
            names = [row.topic.removeprefix(f"{topic}.") for row in batch]
            counts.append({name: names.count(name) for name in sorted(set(names))})
        return counts

    assert run() == [{"big": 15, "small": 5}, {"big": 20}, {"big": 5}]
    numbers(client, f"{topic}.new", range(3))
    numbers(client, f"{topic}.big", range(1))
    assert run() == [{"big": 1, "new": 3}]


@pytest.mark.torture
def test_recreated_topic_fails_the_query_or_is_a_gap_row(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    numbers(client, topic, range(10))
    assert seqs(drain(source(spark, server.url, subscribe=topic), tmp_path)) == [list(range(1, 11))]
    client.drop_topic(topic)
    assert f"topic {topic} in {server.url}, read up to seq 10, was deleted" in fails(
        lambda: drain(source(spark, server.url, subscribe=topic), tmp_path)
    )
    assert drain(source(spark, server.url, subscribe=topic, failOnDataLoss="false"), tmp_path) == []

    numbers(client, topic, range(100, 120))
    assert f"of topic {topic} in {server.url} are lost (recreated)" in fails(
        lambda: drain(source(spark, server.url, subscribe=topic), tmp_path)
    )
    [batch] = drain(source(spark, server.url, subscribe=topic, failOnDataLoss="false"), tmp_path)
    assert [(row.kind, row.seq, row.gap_to, row.reason) for row in batch if row.kind == "gap"] == [
        ("gap", 1, 20, "recreated")
    ]
    assert [row.seq for row in batch if row.kind == "record"] == list(range(1, 21))


@pytest.mark.torture
def test_start_past_the_head_fails_and_a_stale_one_is_a_gap(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    numbers(client, topic, range(3))
    wrong = {"subscribe": topic, "startingOffsets": json.dumps({topic: 5}), "failOnDataLoss": "false"}
    assert f"topic {topic} has no seq 4 yet" in fails(lambda: drain(source(spark, server.url, **wrong), tmp_path / "a"))
    stale = wrong | {"startingOffsets": json.dumps({topic: {"epoch": client.topic(topic).epoch - 1, "seq": 2}})}
    [batch] = drain(source(spark, server.url, **stale), tmp_path / "b")
    assert sorted((row.kind, row.seq) for row in batch) == [("gap", 1), ("record", 1), ("record", 2), ("record", 3)]
    client.drop_topic(topic)
    strict = stale | {"failOnDataLoss": "true"}
    assert "was deleted" in fails(lambda: drain(source(spark, server.url, **strict), tmp_path / "c"))


def test_lag_is_the_distance_to_the_latest_offset(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    numbers(client, topic, range(5))
    stream = source(spark, server.url, subscribe=topic, maxOffsetsPerTrigger=2).writeStream.foreachBatch(
        lambda *_: None
    )
    query = finish(stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())
    assert [lag(progress) for progress in query.recentProgress] == [{topic: 3}, {topic: 1}, {topic: 0}]
    assert lag(query) == {topic: 0}


@pytest.mark.torture
def test_evicted_range_is_a_gap_and_costs_nothing_of_the_rate(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    client.put_topic(topic, cap_records=10)
    numbers(client, topic, range(100))
    options = {"subscribe": topic, "startingOffsets": json.dumps({topic: 1}), "maxOffsetsPerTrigger": 6}
    assert f"seqs 1 to 90 of topic {topic}" in fails(
        lambda: drain(source(spark, server.url, **options), tmp_path / "strict")
    )
    batches = drain(source(spark, server.url, failOnDataLoss="false", **options), tmp_path / "lenient")
    shown = [[(row.kind, row.seq, row.gap_to) for row in batch] for batch in batches]
    assert shown == [
        [("gap", 1, 90), *[("record", seq, None) for seq in range(91, 97)]],
        [("record", seq, None) for seq in range(97, 101)],
    ]


@pytest.mark.torture
def test_continuous_stream_sees_new_records_soon(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    """The topic is not even there when the query begins."""
    seen: list[int] = []
    stream = source(spark, server.url, subscribe=topic)
    query = (
        stream.writeStream.foreachBatch(lambda batch, _: seen.extend(row.seq for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        for first in (1, 4):
            numbers(client, topic, range(3))
            query.processAllAvailable()
            assert seen[first - 1 :] == [first, first + 1, first + 2]
    finally:
        query.stop()


@pytest.mark.torture
def test_options_invalid_for_a_stream_are_refused(spark: SparkSession, server: ServerProcess, tmp_path: Path):
    for options, message in (
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"failOnDataLos": "false"}, "did you mean 'failOnDataLoss'?"),
    ):
        assert message in fails(
            lambda options=options: drain(source(spark, server.url, subscribe="t", **options), tmp_path)
        )
    directory = spark.readStream.format("topics").option("path", str(tmp_path)).option("subscribe", "t")
    assert "a directory does not grow" in fails(lambda: drain(directory.load(), tmp_path))
