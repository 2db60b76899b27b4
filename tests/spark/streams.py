"""Streams for tests: from topics to a list of rows, or to a topic, until nothing is left to read."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from topics.client import Client
from topics.client.request import Record

WAIT_S = 90


def source(spark: SparkSession, url: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("topics").option("url", url)
    for name, value in ({"startingOffsets": "earliest"} | options).items():
        reader = reader.option(name, str(value))
    return reader.load()


def drain(frame: DataFrame, checkpoint: Path) -> list[list[Row]]:
    """Return the present records as the rows of each micro-batch."""
    batches: list[list[Row]] = []
    done = frame.writeStream.foreachBatch(lambda batch, _: batches.append(batch.collect()))
    finish(done.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())
    return batches


def copy(frame: DataFrame, url: str, checkpoint: Path, **options: object) -> StreamingQuery:
    """Copy the present records into a topic."""
    writer = frame.writeStream.format("topics").option("url", url).option("checkpointLocation", str(checkpoint))
    for name, value in options.items():
        writer = writer.option(name, str(value))
    return finish(writer.trigger(availableNow=True).start())


def finish(query: StreamingQuery) -> StreamingQuery:
    assert query.awaitTermination(WAIT_S), "the stream does not end"
    return query


def numbers(client: Client, topic: str, values: Iterable[int], **record: Any) -> None:
    """Writes {"n": value} for each."""
    listed = list(values)
    for at in range(0, len(listed), 5000):
        client.append(topic, [{"data": {"n": value}, **record} for value in listed[at : at + 5000]])


def read_numbers(client: Client, topic: str) -> list[int]:
    return [record.value["n"] for record in client.read(topic) if isinstance(record, Record)]


def check_exact(client: Client, topic: str, count: int) -> None:
    """Every number once."""
    times = Counter(read_numbers(client, topic))
    assert [n for n in range(count) if n not in times] == [], "lost"
    assert [n for n, seen in times.items() if seen > 1] == [], "doubled"
    assert len(times) == count


def fails(run: Callable[[], Any]) -> str:
    """The message that a run ends with, the Python part of it included."""
    try:
        run()
    except Exception as error:
        return str(error)
    raise AssertionError("it did not fail")
