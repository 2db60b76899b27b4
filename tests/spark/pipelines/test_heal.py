"""Lake and live topic as one history: to Spark, in batches and streams."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.spark.lakes import archive
from tests.spark.streams import drain, source
from tests.spark.world import Seen, by_diff, by_spark, load
from topics.client import Client
from topics.lake import Lake, NoLake
from topics.spark.options import BadOption, read_options
from topics.spark.source.read import DataLoss
from topics.spark.source.readers import TopicDeleted, TopicsReader, TopicsStreamReader


def write(client: Client, topic: str, count: int, **config: Any) -> list[Seen]:
    """Write this many records of all kinds. Return them as a reader sees them."""
    client.put_topic(topic, **config)
    first = client.topic(topic).head_seq + 1
    records: list[dict[str, Any]] = []
    for seq in range(first, first + count):
        record: dict[str, Any] = {"data": {"n": seq, "text": 'ä "quoted"'}}
        record |= {"tag": f"t{seq % 3}"} if seq % 5 else {}
        record |= {"node": f"n{seq % 2}"} if seq % 7 else {}
        record |= {"meta": {"trace": seq}} if seq % 4 == 0 else {}
        records.append(record)
    client.append(topic, records)
    return by_diff(client, topic, from_seq=first - 1)


def read(client: Client, lake: Path | None, **options: str) -> list[Seen]:
    """Return the rows of a batch read, in order."""
    given = {"url": client.url, "failOnDataLoss": "false", **options}
    return list(seen(TopicsReader(read_options(given if lake is None else given | {"lake": str(lake)}))))


def seen(reader: TopicsReader) -> Iterator[Seen]:
    return (row for part in reader.partitions() for batch in reader.read(part) for row in rows_of(batch))


def rows_of(batch: pa.RecordBatch) -> Iterator[Seen]:
    for row in batch.to_pylist():
        ms = None if row["ts"] is None else round(row["ts"].timestamp() * 1000)
        yield Seen(row["seq"], ms, *(row[name] for name in ("node", "tag", "meta", "data", "gap_to", "reason")))


def test_evicted_but_archived_records_are_read(spark: SparkSession, client: Client, topic: str, tmp_path: Path):
    written = write(client, topic, 60)
    archive(client, tmp_path, topic, upto=50)
    client.put_topic(topic, cap_records=20)
    assert by_diff(client, topic)[0] == Seen(1, gap_to=40, reason="cap")

    healed = load(spark, url=client.url, subscribe=topic, lake=str(tmp_path), minPartitions="3")
    assert by_spark(healed) == {topic: written}
    assert read(client, tmp_path, subscribe=topic) == written  # and in this order


def test_only_ranges_that_neither_has_are_gaps(client: Client, topic: str, tmp_path: Path):
    written = write(client, topic, 30)
    archive(client, tmp_path, topic, upto=10)
    client.put_topic(topic, cap_records=12)
    expected = [*written[:10], Seen(11, gap_to=18, reason="cap"), *written[18:]]

    assert read(client, tmp_path, subscribe=topic) == expected
    with pytest.raises(DataLoss, match=r"seqs 11 to 18 of topic .* are lost \(cap\)"):
        read(client, tmp_path, subscribe=topic, failOnDataLoss="true")

    archive(client, tmp_path, topic)  # the gap is in the ledger now, and stays when the rest is evicted, too
    client.put_topic(topic, cap_records=1)
    assert read(client, tmp_path, subscribe=topic) == expected


def test_trimmed_records_are_read_and_deleted_ones_are_not(client: Client, topic: str, tmp_path: Path):
    written = write(client, topic, 40)
    archive(client, tmp_path, topic, upto=20, trim=True)
    archive(client, tmp_path, topic)
    client.delete(topic, before_seq=31)  # on request: 21 to 30 are archived, and not trimmed
    client.delete(topic, match="t0")
    expected = [*written[:20], *(one for one in written[30:] if one.tag != "t0")]

    assert by_diff(client, topic)[0].seq > 30
    assert read(client, tmp_path, subscribe=topic) == expected


@pytest.mark.parametrize(("first", "end"), [(1, 10), (1, 41), (5, 20), (1, 40), (39, 41)])
def test_range_within_a_trim_is_read_exactly(client: Client, topic: str, tmp_path: Path, first: int, end: int):
    written = write(client, topic, 40)
    archive(client, tmp_path, topic, trim=True)
    write(client, topic, 5)
    bounds = {"startingOffsets": f'{{"{topic}": {first}}}', "endingOffsets": f'{{"{topic}": {end}}}'}
    assert read(client, tmp_path, subscribe=topic, **bounds) == written[first - 1 : end - 1]


def test_trim_between_planning_and_reading_loses_nothing(client: Client, topic: str, tmp_path: Path):
    written = write(client, topic, 30)
    archive(client, tmp_path, topic, upto=5)
    reader = TopicsReader(read_options({"url": client.url, "subscribe": topic, "lake": str(tmp_path)}))
    parts = reader.partitions()
    archive(client, tmp_path, topic, upto=25, trim=True)
    reader.partitions = lambda: parts  # type: ignore[method-assign]
    assert list(seen(reader)) == written


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"tag": "t1"}, {"filter": ["tag", "Eq", "t1"]}),
        ({"tag": "t*"}, {"filter": ["tag", "Glob", "t*"]}),
        ({"node": "n0"}, {"node": "n0"}),
        ({"node": "n0,n1", "tag": "t2"}, {"node": ["n0", "n1"], "filter": "t2"}),
    ],
)
@pytest.mark.parametrize("dedupe_node", [True, False])
def test_filters_apply_to_lake_and_topic_alike(
    client: Client, topic: str, tmp_path: Path, options: Any, fields: Any, dedupe_node: bool
):
    write(client, topic, 60, dedupe_node=dedupe_node)
    expected = by_diff(client, topic, **fields)
    assert 0 < len(expected)
    archive(client, tmp_path, topic, upto=20, trim=True)
    archive(client, tmp_path, topic, upto=45)
    client.put_topic(topic, cap_records=22)

    assert read(client, tmp_path, subscribe=topic, **options) == expected


def test_dropped_topic_is_read_from_the_lake_until_recreated(client: Client, topic: str, tmp_path: Path):
    written = write(client, topic, 12)
    archive(client, tmp_path, topic)
    client.drop_topic(topic)
    assert read(client, tmp_path, subscribe=topic) == written

    again = write(client, topic, 3)
    assert read(client, tmp_path, subscribe=topic) == again


def test_topic_recreated_during_a_read_continues_in_the_lake(client: Client, topic: str, tmp_path: Path):
    written = write(client, topic, 12)
    archive(client, tmp_path, topic, upto=10)
    reader = TopicsReader(
        read_options({"url": client.url, "subscribe": topic, "lake": str(tmp_path), "failOnDataLoss": "false"})
    )
    parts = reader.partitions()
    client.drop_topic(topic)
    write(client, topic, 3)
    reader.partitions = lambda: parts  # type: ignore[method-assign]
    assert list(seen(reader)) == [*written[:10], Seen(11, gap_to=12, reason="recreated")]


def test_starting_time_may_lie_in_the_lake(client: Client, topic: str, tmp_path: Path):
    written = write(client, topic, 10)
    while written[-1].ts_ms == written[0].ts_ms:  # until the clock has moved on
        written += write(client, topic, 10)
    since = written[-1].ts_ms
    assert since is not None
    expected = [one for one in written if one.ts_ms is not None and one.ts_ms >= since]
    assert len(expected) < len(written)
    archive(client, tmp_path, topic)
    client.put_topic(topic, cap_records=1)

    assert read(client, tmp_path, subscribe=topic, startingTimestamp=str(since)) == expected
    assert read(client, tmp_path, subscribe=topic, startingTimestamp=str(since + 100_000)) == []


def test_stream_begins_in_the_lake_and_continues_live(spark: SparkSession, client: Client, topic: str, tmp_path: Path):
    written = write(client, topic, 50)
    archive(client, tmp_path / "lake", topic, upto=30)
    client.put_topic(topic, cap_records=20)
    frame = source(spark, client.url, subscribe=topic, lake=tmp_path / "lake", maxOffsetsPerTrigger=20)
    batches = drain(frame, tmp_path / "checkpoint")
    assert [[row.seq for row in rows] for rows in batches] == [
        list(range(1, 21)), list(range(21, 41)), list(range(41, 51)),
    ]  # fmt: skip
    assert [row.data for rows in batches for row in rows] == [one.data for one in written]

    more = write(client, topic, 10)
    assert [row.seq for rows in drain(frame, tmp_path / "checkpoint") for row in rows] == [one.seq for one in more]


def batch_of(reader: TopicsStreamReader, at: dict[str, Any], **limit: int) -> tuple[dict[str, Any], list[Seen]]:
    """Return the next rows of a stream and its new offset, without a session, as Spark would call it."""
    end = reader.latestOffset(at, ReadMaxRows(**limit) if limit else ReadAllAvailable())
    parts = reader.partitions(at, end)
    return end, [row for part in parts for batch in reader.read(part) for row in rows_of(batch)]


StreamOf = Callable[..., TopicsStreamReader]


@pytest.fixture
def stream_of(client: Client) -> Iterator[StreamOf]:
    made: list[TopicsStreamReader] = []

    def stream(lake: Path | None, **options: str) -> TopicsStreamReader:
        given = {"url": client.url, "startingOffsets": "earliest", **options}
        made.append(TopicsStreamReader(read_options(given if lake is None else given | {"lake": str(lake)})))
        return made[-1]

    yield stream
    for reader in made:
        reader.stop()


def test_stream_by_prefix_includes_archived_only_topics(
    client: Client, stream_of: StreamOf, topic: str, tmp_path: Path
):
    live, gone = write(client, f"{topic}.live", 10), write(client, f"{topic}.gone", 6)
    for name in ("live", "gone"):
        archive(client, tmp_path, f"{topic}.{name}")
    client.drop_topic(f"{topic}.gone")
    for subscription in ({"subscribePrefix": f"{topic}."}, {"subscribePattern": f"{topic}[.](live|gone)"}):
        assert Counter(read(client, tmp_path, **subscription)) == Counter(live + gone)
        stream = stream_of(tmp_path, **subscription)
        at, found = batch_of(stream, stream.initialOffset())
        assert Counter(found) == Counter(live + gone)
        assert batch_of(stream, at) == (at, [])

    again = write(client, f"{topic}.gone", 3)  # the new epoch is reported
    lenient = stream_of(tmp_path, subscribePrefix=f"{topic}.", failOnDataLoss="false")
    assert batch_of(lenient, at)[1] == [Seen(1, gap_to=3, reason="recreated"), *again]
    latest = stream_of(tmp_path, subscribePrefix=f"{topic}.", startingOffsets="latest")
    assert batch_of(latest, latest.initialOffset())[1] == []


def test_stream_continues_a_dropped_topic_from_the_lake(
    client: Client, stream_of: StreamOf, topic: str, tmp_path: Path
):
    written = write(client, topic, 20)
    stream = stream_of(tmp_path, subscribe=topic)
    archive(client, tmp_path, topic, upto=10)
    at, found = batch_of(stream, stream.initialOffset(), max_rows=5)
    assert found == written[:5]
    archive(client, tmp_path, topic)
    client.drop_topic(topic)
    for reader in (stream, stream_of(tmp_path, subscribe=topic)):  # that one was started again
        end, found = batch_of(reader, at)
        assert found == written[5:]
        assert batch_of(reader, end) == (end, [])
    again = write(client, topic, 3)
    lenient = stream_of(tmp_path, subscribe=topic, failOnDataLoss="false")
    assert batch_of(lenient, end)[1] == [Seen(1, gap_to=3, reason="recreated"), *again]


@pytest.mark.parametrize("archived_to", [None, 0, 3, 12])
def test_unread_end_of_a_dropped_topic_is_an_error_or_a_gap(
    client: Client, stream_of: StreamOf, topic: str, tmp_path: Path, archived_to: int | None
):
    """None: there is no lake. It has read five, knows of twenty, and the lake has less, or more, than it has read."""
    written = write(client, topic, 20)
    lake = None if archived_to is None else tmp_path
    if archived_to is not None:
        Lake(str(tmp_path)).create()
        if archived_to:
            archive(client, tmp_path, topic, upto=archived_to)
    strict, lenient = (stream_of(lake, subscribe=topic, failOnDataLoss=word) for word in ("true", "false"))
    for reader in (strict, lenient):
        at, found = batch_of(reader, reader.initialOffset(), max_rows=5)
        assert found == written[:5]
    client.drop_topic(topic)

    end, found = batch_of(lenient, at)
    known = max(archived_to or 0, 5)
    assert found == [*written[5:known], Seen(known + 1, gap_to=20, reason="dropped")]
    assert batch_of(lenient, end) == (end, [])
    if known > 5:
        with pytest.raises(DataLoss, match=r"seqs 13 to 20 .* are lost \(dropped\)"):
            batch_of(strict, at)
    else:
        with pytest.raises(TopicDeleted, match=r"read up to seq 5, was deleted(.|\n)*\nnext: .* failOnDataLoss=false"):
            batch_of(strict, at)
    with pytest.raises(TopicDeleted, match="read up to seq 20, was deleted"):
        batch_of(stream_of(lake, subscribe=topic), end)


def test_earlier_archived_epoch_does_not_replace_a_dropped_one(
    client: Client, stream_of: StreamOf, topic: str, tmp_path: Path
):
    write(client, topic, 5)
    archive(client, tmp_path, topic)
    client.drop_topic(topic)
    written = write(client, topic, 3)
    stream = stream_of(tmp_path, subscribe=topic)
    at, found = batch_of(stream, stream.initialOffset())
    assert found == written
    client.drop_topic(topic)
    with pytest.raises(TopicDeleted, match="does not have all of that"):
        batch_of(stream, at)
    lenient = stream_of(tmp_path, subscribe=topic, failOnDataLoss="false")
    assert batch_of(lenient, at) == (at, [])


def test_lake_is_read_without_a_server(client: Client, topic: str, tmp_path: Path):
    written = write(client, topic, 20)
    archive(client, tmp_path, topic, upto=15)
    options = {"subscribe": topic, "lake": str(tmp_path), "lakeOnly": "true"}
    assert list(seen(TopicsReader(read_options(options)))) == written[:15]
    assert list(seen(TopicsReader(read_options(options | {"tag": "t1"})))) == [
        one for one in written[:15] if one.tag == "t1"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lakeOnly": "true"}, "the option lake is missing"),
        ({"lakeOnly": "true", "lake": "/x", "url": "http://h:1"}, "remove one of them"),
        ({"lake": "/x", "path": "/y"}, "path and lake: give one of them"),
        ({"lake": "hdfs://x"}, "a lake is a directory, or a URL"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], message: str):
    with pytest.raises(BadOption, match=message):
        read_options({"subscribe": "t", **options})


def test_directory_without_a_lake_fails_before_the_read(client: Client, topic: str, tmp_path: Path):
    write(client, topic, 3)
    with pytest.raises(NoLake):
        read(client, tmp_path / "nothing", subscribe=topic)


def test_schemas_of_lake_and_source_agree():
    from topics.lake import SCHEMA
    from topics.spark.source.layout import Layout

    plain = {one.name: one.arrow for one in Layout().outputs}
    assert all(SCHEMA.field(name).type == plain[name] for name in SCHEMA.names if name != "epoch")
    assert Lake("/x").path == "/x"
