"""The sinks against a real server: written records, refused writes, and repeated writes."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import Raw
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from tests.conftest import ServerProcess, StartServer
from tests.spark.lakes import archive
from tests.spark.streams import copy, fails, finish, numbers, read_numbers, source
from tests.spark.world import load
from topics.client import Client
from topics.client.request import Record
from topics.errors import TopicsError
from topics.spark.data_source import write_rows
from topics.spark.options import write_options
from topics.spark.sink.rows import Renderer

TYPES = """
SELECT named_struct(
    'b', true, 'i', 1, 'l', 9007199254740993, 'f', CAST(1.5 AS FLOAT), 'd', 1e300, 'nan', double('NaN'),
    'inf', double('-Infinity'), 'dec', CAST('12345678901234567890.12' AS DECIMAL(30, 2)), 's', 'é"\\n', 'null', NULL,
    'bin', X'00FF', 'date', DATE'2024-02-29', 'ts', TIMESTAMP'2024-02-29 12:00:00.123Z',
    'ntz', TIMESTAMP_NTZ'2024-02-29 12:00:00', 'arr', array(1, NULL, 3), 'map', map('k', 1.5D, 'n', NULL),
    'ids', map(7, 'seven'), 'deep', array(named_struct('x', NULL, 'y', array()))
) AS data
"""


def save(frame: DataFrame, url: str, **options: Any) -> None:
    writer = frame.write.format("topics").option("url", url).mode("append")
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


def texts(client: Client, topic: str) -> list[str]:
    return [bytes(record.data).decode() for record in client.read(topic) if isinstance(record, Record)]


def forget_commits(checkpoint: Path) -> None:
    """Set a checkpoint to the state after a driver died between the last write and its commit."""
    for file in (checkpoint / "commits").iterdir():
        file.unlink()


def test_every_type_is_written_as_in_to_json(spark: SparkSession, server: ServerProcess, client: Client, topic: str):
    frame = spark.sql(TYPES)
    save(frame, server.url, topic=topic)
    [expected] = frame.select(F.to_json("data")).first()  # type: ignore[misc]
    [written] = texts(client, topic)
    assert json.loads(written) == json.loads(expected)
    assert "9007199254740993" in written
    assert "12345678901234567890.12" in written


def test_variant_is_written_as_its_json(spark: SparkSession, server: ServerProcess, client: Client, topic: str):
    rows = """SELECT parse_json('{"a":[1,2.50,null]}') AS data, named_struct('v', parse_json('"x"')) AS meta"""
    save(spark.sql(rows), server.url, topic=topic)
    [record] = client.read(topic)
    assert isinstance(record, Record)
    assert (record.value, json.loads(bytes(record.meta))) == ({"a": [1, 2.5, None]}, {"v": "x"})  # type: ignore[arg-type]


def test_rows_go_to_their_topic_with_tag_node_and_meta(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str
):
    frame = spark.range(4).selectExpr(
        f"concat('{topic}.', id % 2) AS topic", "id AS data", "concat('tag', id) AS tag", "'n' AS node",
        "map('id', id) AS meta",
    )  # fmt: skip
    save(frame.coalesce(1), server.url, topicConfig='{"ttl_ms": 3600000}')
    for parity in (0, 1):
        found = list(client.read(f"{topic}.{parity}", include_tags=True))
        assert [(row.value, row.tag, row.node, bytes(row.meta)) for row in found] == [  # type: ignore[union-attr,arg-type]
            (n, f"tag{n}", "n", b'{"id":%d}' % n) for n in (parity, parity + 2)
        ]
        config = client.topic(f"{topic}.{parity}").config
        assert (config.ttl_ms, config.idempotency_window_ms) == (3_600_000, 7 * 24 * 3_600_000)


def test_invalid_writes_are_refused_with_a_reason(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str
):
    one = spark.range(1).selectExpr("id AS data")
    writer = one.write.format("topics").option("url", server.url).option("topic", topic)
    assert 'write with mode("append")' in fails(lambda: writer.mode("overwrite").save())
    assert "is not part of a record" in fails(lambda: save(spark.range(1), server.url, topic=topic))
    assert "did you mean 'topic'" in fails(lambda: save(one, server.url, topik=topic))
    bad = one.selectExpr("'hello' AS data")
    assert 'set the option dataFormat to "text"' in fails(lambda: save(bad, server.url, topic=topic))
    save(bad, server.url, topic=topic, dataFormat="text")
    assert texts(client, topic) == ['"hello"']
    assert "does not exist" in fails(lambda: save(one, server.url, topic=f"{topic}.no", createTopics="false"))
    client.put_topic(topic, idempotency_window_ms=1000)
    assert "has an idempotency window of 1000 ms" in fails(
        lambda: save(one, server.url, topic=topic, idempotencyWindowMs=60_000)
    )


def test_write_with_an_id_can_be_repeated(spark: SparkSession, server: ServerProcess, client: Client, topic: str):
    frame = spark.range(10).selectExpr("named_struct('n', id) AS data")
    save(frame, server.url, topic=topic, writeId="daily-2024-02-29")
    save(frame, server.url, topic=topic, writeId="daily-2024-02-29")
    assert sorted(read_numbers(client, topic)) == list(range(10))
    save(frame, server.url, topic=topic)
    assert len(read_numbers(client, topic)) == 20


def test_stream_repeated_after_a_crash_writes_nothing_twice(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    numbers(client, topic, range(5500))
    out = f"{topic}.out"
    first = source(spark, server.url, subscribe=topic, maxOffsetsPerTrigger=2500)
    copy(first, server.url, tmp_path, topic=out)
    assert read_numbers(client, out) == list(range(5500))

    for name in ("2", ".2.crc"):
        (tmp_path / "commits" / name).unlink()
    numbers(client, topic, range(5500, 6000))
    again = source(spark, server.url, subscribe=topic, maxOffsetsPerTrigger=700, minPartitions=3)
    by_cell = again.repartition(2, "topic", F.floor(F.col("seq") / 1000))
    copy(by_cell, server.url, tmp_path, topic=out)
    assert sorted(read_numbers(client, out)) == list(range(6000))


@pytest.mark.parametrize("key_by", ["rows", "source", "range"])
def test_delete_before_a_repeated_batch_writes_nothing_twice(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path, key_by: str
):
    numbers(client, topic, range(5000))
    out, stream = f"{topic}.out", source(spark, server.url, subscribe=topic)
    copy(stream, server.url, tmp_path, topic=out, keyBy=key_by)
    for seq in (1500, 5000):
        forget_commits(tmp_path)
        client.delete(topic, seqs=[seq])
        copy(stream, server.url, tmp_path, topic=out, keyBy=key_by)
        assert read_numbers(client, out) == list(range(5000))
    numbers(client, topic, range(5000, 5010))
    copy(stream, server.url, tmp_path, topic=out, keyBy=key_by)
    assert read_numbers(client, out) == list(range(5010))
    first_kept = sorted(path.name for path in tmp_path.glob("topics/*"))
    numbers(client, topic, range(5010, 5020))
    copy(stream, server.url, tmp_path, topic=out, keyBy=key_by)
    kept = sorted(path.name for path in tmp_path.glob("topics/*"))
    assert (first_kept, kept) == (([], []) if key_by == "range" else (["0", "1"], ["1", "2"]))


@pytest.mark.torture
def test_aggregates_repeated_after_a_crash_are_written_once(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    numbers(client, topic, range(100))
    value = F.get_json_object("data", "$.n").cast("int")
    counts = source(spark, server.url, subscribe=topic).groupBy((value % 7).alias("k")).count()
    for _ in range(2):
        writer = counts.select(F.struct("*").alias("data")).writeStream.outputMode("update")
        each = writer.foreachBatch(lambda batch, _: save(batch, server.url, topic=f"{topic}.out"))
        finish(each.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())
        forget_commits(tmp_path)
    assert sorted(json.loads(text)["k"] for text in texts(client, f"{topic}.out")) == list(range(7))


@pytest.mark.torture
def test_repeated_write_in_foreach_batch_changes_nothing(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    numbers(client, topic, range(10))
    for _ in range(2):
        writer = source(spark, server.url, subscribe=topic).writeStream.foreachBatch(
            lambda batch, _: save(batch, server.url, topic=f"{topic}.out")
        )
        finish(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())
        forget_commits(tmp_path)
    assert read_numbers(client, f"{topic}.out") == list(range(10))


@pytest.mark.torture
def test_two_branches_are_both_written_and_complete_mode_is_refused(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    numbers(client, topic, range(10))
    stream = source(spark, server.url, subscribe=topic)
    both = stream.withColumn("tag", F.lit("a")).union(stream.withColumn("tag", F.lit("b")))
    copy(both, server.url, tmp_path / "both", topic=f"{topic}.out")
    assert sorted(read_numbers(client, f"{topic}.out")) == sorted([*range(10), *range(10)])

    counts = stream.groupBy("tag").count().select(F.struct("*").alias("data")).writeStream.outputMode("complete")
    options = {"url": server.url, "topic": f"{topic}.out", "checkpointLocation": str(tmp_path / "complete")}
    query = counts.format("topics").options(**options).trigger(availableNow=True)
    assert "output mode complete replaces" in fails(lambda: finish(query.start()))


def test_copied_gap_shows_in_the_copy(spark: SparkSession, server: ServerProcess, client: Client, topic: str):
    client.put_topic(topic, cap_records=2)
    numbers(client, topic, range(5))
    options = {"subscribe": topic, "startingOffsets": json.dumps({topic: 1}), "failOnDataLoss": "false"}
    save(load(spark, url=server.url, **options), server.url, topic=f"{topic}.out")
    gap, *rest = [json.loads(text) for text in texts(client, f"{topic}.out")]
    assert (gap["topic"], gap["gap_from"], gap["gap_to"]) == (topic, 1, 3)
    assert rest == [{"n": 3}, {"n": 4}]


# --- a task's own work, without Spark around it


def batches(numbers: range, size: int) -> list[pa.RecordBatch]:
    listed = list(numbers)
    return [
        pa.RecordBatch.from_pydict({"data": [f'{{"n":{n}}}' for n in part], "topic": ["in"] * len(part), "seq": part})
        for part in (listed[at : at + size] for at in range(0, len(listed), size))
    ]


SCHEMA = t.StructType().add("data", t.StringType()).add("topic", t.StringType()).add("seq", t.LongType())


def test_repeated_task_finds_its_records_written(server: ServerProcess, client: Client, topic: str):
    options = write_options({"url": server.url, "topic": topic})
    renderer = Renderer(SCHEMA, topic=topic)
    half = write_rows(batches(range(1, 3000), 700), options, renderer, "spark/q/0")
    whole = write_rows(batches(range(1, 5000), 333), options, renderer, "spark/q/0")
    assert (half.records, half.repeated) == (2999, 0)
    assert (whole.records, whole.repeated) == (4999, 2999)
    assert read_numbers(client, topic) == list(range(1, 5000))


def test_by_range_a_larger_write_of_the_same_range_is_not_lost(
    server: ServerProcess, client: Client, topic: str, start_server: StartServer
):
    options = write_options({"url": server.url, "topic": topic, "keyBy": "range"})
    renderer = Renderer(SCHEMA, topic=topic)
    for stop in (500, 900, 500):
        write_rows(batches(range(1, stop), 300), options, renderer, "spark/q/0")
    assert sorted(read_numbers(client, topic)) == sorted([*range(1, 500), *range(1, 900)])
    small = start_server(max_batch_records=100)
    options = write_options({"url": small.url, "topic": "t", "keyBy": "range"})
    with Client(small.url) as other:
        for _ in range(2):
            write_rows(batches(range(1, 900), 300), options, Renderer(SCHEMA, topic="t"), "spark/q/0")
        assert read_numbers(other, "t") == list(range(1, 900))


def test_server_with_a_low_limit_gets_small_requests(start_server: StartServer):
    small = start_server(max_batch_records=100, max_meta_bytes=512, max_record_bytes=1024, max_body_bytes=4096)
    options = write_options({"url": small.url, "topic": "t"})
    with Client(small.url) as client:
        for repeated in (0, 1500):
            done = write_rows(batches(range(1500), 1000), options, Renderer(SCHEMA, topic="t"), "spark/q/0")
            assert (done.records, done.repeated) == (1500, repeated)
        assert read_numbers(client, "t") == list(range(1500))


def test_full_topic_is_retried_until_the_timeout(server: ServerProcess, client: Client, topic: str):
    client.put_topic(topic, cap_records=1, discard="reject")
    numbers(client, topic, range(1))
    options = write_options({"url": server.url, "topic": topic, "timeoutMs": "1"})
    with pytest.raises(Exception, match="the topic is full"):
        write_rows(batches(range(5), 5), options, Renderer(SCHEMA, topic=topic), "spark/q/0")


ODD = [
    (b'"\\ud800x"', b'{"k":"\\ud83d","\\udc00":[1.50,"\\udfff"],"plain":"text"}'),
    (b'{"\\udc00":[1.50,"\\ud83d\\ude00"]}', b'{"\\ud800\\ud800":{"\\ud800":null}}'),
    (b'"\\\\ud800"', b'{"k":"\\\\ud800"}'),
]  # half a surrogate pair, which is JSON and no Unicode text; and what only looks like it


@pytest.mark.torture
def test_half_surrogate_pair_passes_reads_streams_lake_and_sink(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    for field in (b'"tag"', b'"node"'):
        with pytest.raises(TopicsError, match="must be Unicode text"):
            client.append(topic, [Raw(b'{"data":1,%b:"\\ud800"}' % field)])
    client.append(topic, [Raw(b'{"data":%b,"meta":%b,"tag":"t","node":"n"}' % pair) for pair in ODD])
    archive(client, tmp_path / "lake", topic, upto=2, trim=True)

    options = {"subscribe": topic, "lake": tmp_path / "lake"}
    save(load(spark, url=server.url, **options), server.url, topic=f"{topic}.plain")
    copy(source(spark, server.url, **options), server.url, tmp_path / "checkpoint", topic=f"{topic}.stream")
    for name in (f"{topic}.plain", f"{topic}.stream"):
        found = [item for item in client.read(name, include_tags=True) if isinstance(item, Record)]
        assert [(bytes(one.data), bytes(one.meta)) for one in found] == ODD, name  # type: ignore[arg-type]
        assert {(one.tag, one.node) for one in found} == {("t", "n")}
