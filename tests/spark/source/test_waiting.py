"""An idle stream waits with one request, and notices each kind of change."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.conftest import ServerProcess
from tests.spark.streams import numbers
from topics.client import Client
from topics.client.call import Request
from topics.client.connection import Connection
from topics.spark.options import read_options
from topics.spark.source.readers import TopicDeleted, TopicsStreamReader


class Stream:
    """A reader that is called as Spark calls it."""

    def __init__(self, url: str, **options: str) -> None:
        given = {"url": url, "startingOffsets": "earliest"} | options
        self.reader = TopicsStreamReader(read_options(given))
        self.at = self.reader.initialOffset()

    def look(self) -> bool:
        """Ask once for the latest offset, and return whether it is a new one."""
        found = self.reader.latestOffset(self.at, ReadAllAvailable())
        is_new, self.at = found != self.at, found
        return is_new

    def idle(self) -> None:
        while self.look():
            pass

    def sees(self, change: Callable[[], Any]) -> bool:
        """Return whether an idle stream notices a change that is made while it waits."""
        self.idle()
        change()
        return any(self.look() for _ in range(20))


@pytest.fixture
def start(server: ServerProcess) -> Iterator[Callable[..., Stream]]:
    started: list[Stream] = []

    def start(**options: str) -> Stream:
        started.append(Stream(server.url, **options))
        return started[-1]

    yield start
    for one in started:
        one.reader.stop()


@pytest.mark.parametrize("by", ["names", "prefix"])
def test_idle_stream_of_many_topics_asks_nothing(
    start: Callable[..., Stream], client: Client, topic: str, by: str, monkeypatch: pytest.MonkeyPatch
):
    names = [f"{topic}.{number}" for number in range(20)]
    for name in names:
        numbers(client, name, range(2))
    stream = start(**({"subscribe": ",".join(names)} if by == "names" else {"subscribePrefix": f"{topic}."}))
    stream.idle()
    asked: list[str] = []
    exchange = Connection._exchange
    here = threading.current_thread()

    def counted(self: Connection, *arguments: Any) -> Any:
        if threading.current_thread() is here and self is not client:
            asked.extend(one.path for one in arguments if isinstance(one, Request))
        return exchange(self, *arguments)

    monkeypatch.setattr(Connection, "_exchange", counted)
    assert [stream.look() for _ in range(3)] == [False] * 3
    assert asked == []
    numbers(client, names[7], range(1))
    assert stream.look()


def test_idle_stream_notices_new_and_awaited_topics(start: Callable[..., Stream], client: Client, topic: str):
    by_prefix, awaited = start(subscribePrefix=f"{topic}."), start(subscribe=f"{topic}.a,{topic}.late")
    assert by_prefix.sees(lambda: numbers(client, f"{topic}.a", range(3)))
    awaited.idle()
    assert awaited.sees(lambda: numbers(client, f"{topic}.late", range(3)))
    by_pattern = start(subscribePattern=f"{topic}[.]x.*")
    assert by_pattern.sees(lambda: numbers(client, f"{topic}.x1", range(3)))


def test_idle_stream_notices_a_deleted_topic(start: Callable[..., Stream], client: Client, topic: str):
    numbers(client, topic, range(3))
    stream = start(subscribe=topic)
    with pytest.raises(TopicDeleted):
        stream.sees(lambda: client.drop_topic(topic))
