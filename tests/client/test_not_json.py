"""Values that JSON does not have: the Python clients raise, and send nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import Raw

from tests.conftest import ServerProcess
from topics.client import AsyncTopics, Client, NewRecord, Topics

NAN, INFINITY = float("nan"), float("inf")


@dataclass
class Price:
    amount: float


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Topics]:
    with Topics(server.url) as made:
        yield made


CALLS: dict[str, Callable[[Topics, str, Any], object]] = {
    "append": lambda topics, name, bad: topics.append(name, bad),
    "append in an object": lambda topics, name, bad: topics.append(name, {"a": [1, {"b": bad}]}),
    "append of an object of a class": lambda topics, name, bad: topics.append(name, Price(bad)),
    "append with meta": lambda topics, name, bad: topics.append(name, 1, meta={"a": bad}),
    "append_many": lambda topics, name, bad: topics.append_many(name, [NewRecord(data=1), {"data": bad}]),
    "append beside JSON text": lambda topics, name, bad: topics.append(name, [Raw(b"null"), bad]),
    "put_topic": lambda topics, name, bad: topics.put_topic(name, ttl_ms=bad),
    "put_consumer": lambda topics, name, bad: topics.put_consumer(name, "reader", meta={"a": bad}),
    "delete": lambda topics, name, bad: topics.delete(name, before_seq=bad),
    "redrive": lambda topics, name, bad: topics.redrive(name, limit=bad),
    "put_router": lambda topics, name, bad: topics.put_router("r", source=name, dest="d", from_seq=bad),
    "follow": lambda topics, name, bad: next(topics.follow(name, from_seq=bad)),
    "watch": lambda topics, name, bad: next(topics.watch([name], heartbeat_ms=bad)),
}


@pytest.mark.parametrize("bad", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("call", CALLS)
def test_number_that_json_does_not_have_is_refused(client: Topics, name: str, call: str, bad: float) -> None:
    client.put_topic(name, type="queue")
    with pytest.raises(ValueError, match=f"is {bad}, which JSON does not have: send None or a string"):
        CALLS[call](client, name, bad)
    assert client.topic(name).head_seq == 0


def test_error_names_the_place_of_the_number(client: Topics, name: str) -> None:
    with pytest.raises(ValueError, match=r"^records\[1\]\.data\.prices\[0\] is nan,"):
        client.append_many(name, [{"data": None}, {"data": {"prices": [NAN, 1.0]}}])


def test_null_is_written(client: Topics, name: str) -> None:
    values = [None, {"a": None, "null": [1.5, None]}, "null"]
    for value in values:
        client.append(name, value)
    assert [record.data for record in client.read(name)] == values  # type: ignore[union-attr]


def test_writer_refuses_at_the_append_and_continues(client: Topics, name: str) -> None:
    with client.writer(name) as writer:
        writer.append(1)
        writer.flush()  # from here on, the writer takes its fast path
        for options in ({}, {"tag": "a"}):
            with pytest.raises(ValueError, match="is inf, which JSON"):
                writer.append({"a": INFINITY}, **options)
        with pytest.raises(ValueError, match="is nan, which JSON"):
            writer.append(1, meta={"a": NAN})
        writer.append(2)
    assert [record.data for record in client.read(name)] == [1, 2]  # type: ignore[union-attr]


@pytest.mark.anyio
async def test_async_client_refuses(topics: AsyncTopics, name: str) -> None:
    with pytest.raises(ValueError, match="is nan, which JSON"):
        await topics.append(name, NAN)


def test_raw_client_refuses(server: ServerProcess, name: str) -> None:
    with Client(server.url) as client:
        with pytest.raises(ValueError, match="is nan, which JSON"):
            client.append(name, [{"data": NAN}])
        assert client.append(name, [Raw(b'{"data":null}'), {"data": None}]).last_seq == 2
