"""The stream reader for Spark 4.0 and 4.1, driven as these versions do: no start and no limit in `latestOffset`."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import ServerProcess
from tests.spark.streams import numbers
from topics.client import Client
from topics.spark.options import BadOption, read_options
from topics.spark.source.readers import ReadPartition, TopicDeleted, UnlimitedStreamReader


class Spark:
    """The checkpoint of a query, and the calls of an old Spark. A restart creates a new reader."""

    def __init__(self, url: str, **options: str) -> None:
        self._options = {"url": url, "startingOffsets": "earliest"} | options
        self._log: list[dict[str, Any]] = []
        self.reader = UnlimitedStreamReader(read_options(self._options))

    def restart(self) -> None:
        self.reader.stop()
        self.reader = UnlimitedStreamReader(read_options(self._options))

    def batch(self) -> list[tuple[str, int, str]]:
        """Run the next batch and return kind, seq and topic of each row, or nothing if there is nothing new."""
        end = self.reader.latestOffset()
        if self._log and end == self._log[-1]:
            return []
        return self.run(end)

    def run(self, end: dict[str, Any]) -> list[tuple[str, int, str]]:
        start = self._log[-1] if self._log else self.reader.initialOffset()
        rows = []
        for part in self.reader.partitions(start, end):
            assert isinstance(part, ReadPartition)
            rows += [row for batch in self.reader.read(part) for row in batch.to_pylist()]
        self._log.append(end)
        return [(row["kind"], row["seq"], row["topic"]) for row in rows]


@pytest.fixture
def start(server: ServerProcess) -> Iterator[Callable[..., Spark]]:
    started: list[Spark] = []

    def start(**options: str) -> Spark:
        started.append(Spark(server.url, **options))
        return started[-1]

    yield start
    for one in started:
        one.reader.stop()


def records(topic: str, *seqs: int) -> list[tuple[str, int, str]]:
    return [("record", seq, topic) for seq in seqs]


def test_stream_continues_with_and_without_a_restart(start: Callable[..., Spark], client: Client, topic: str):
    numbers(client, topic, range(3))
    spark = start(subscribe=topic)
    assert spark.batch() == records(topic, 1, 2, 3)
    assert spark.batch() == []
    numbers(client, topic, range(2))
    assert spark.batch() == records(topic, 4, 5)
    numbers(client, topic, range(1))
    spark.restart()
    assert spark.batch() == records(topic, 6)
    spark.restart()
    assert spark.batch() == []


def test_start_at_latest_survives_a_crash_in_the_first_batch(start: Callable[..., Spark], client: Client, topic: str):
    numbers(client, topic, range(3))
    spark = start(subscribe=topic, startingOffsets="latest")
    assert spark.batch() == []
    numbers(client, topic, range(2))
    first = start(subscribe=topic, startingOffsets='{"' + topic + '": 4}')
    end = first.reader.latestOffset()  # in the checkpoint, and the driver dies
    numbers(client, topic, range(2))
    spark._log.clear()
    spark.restart()
    assert spark.run(end) == records(topic, 4, 5)
    assert spark.batch() == records(topic, 6, 7)


def test_start_at_latest_survives_a_restart_without_records(start: Callable[..., Spark], client: Client, topic: str):
    numbers(client, topic, range(3))
    spark = start(subscribe=topic, startingOffsets="latest")
    assert spark.batch() == []
    numbers(client, topic, range(2))
    spark.restart()
    assert spark.batch() == records(topic, 4, 5)


def test_topic_created_during_a_restart_is_read_from_its_first_seq(
    start: Callable[..., Spark], client: Client, topic: str
):
    numbers(client, f"{topic}.a", range(1))
    spark = start(subscribePrefix=f"{topic}.", startingOffsets="latest")
    assert spark.batch() == []
    numbers(client, f"{topic}.b", range(2))
    spark.restart()
    assert spark.batch() == records(f"{topic}.b", 1, 2)


@pytest.mark.parametrize("restarts", [False, True])
def test_deleted_topic_fails_the_query_or_is_a_gap_once_recreated(
    start: Callable[..., Spark], client: Client, topic: str, *, restarts: bool
):
    numbers(client, topic, range(5))
    strict, lenient = start(subscribe=topic), start(subscribe=topic, failOnDataLoss="false")
    for spark in (strict, lenient):
        assert len(spark.batch()) == 5
    client.drop_topic(topic)
    if restarts:
        strict.restart()
        lenient.restart()
    with pytest.raises(TopicDeleted):
        strict.batch()
    assert lenient.batch() == []
    numbers(client, topic, range(2))
    assert lenient.batch() == [("gap", 1, topic), *records(topic, 1, 2)]


def test_rate_is_refused():
    with pytest.raises(BadOption, match=r"needs Spark 4\.2"):
        UnlimitedStreamReader(read_options({"subscribe": "t", "maxOffsetsPerTrigger": "5"}))
