"""Several servers behind one client, by prefixes of names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ServerProcess
from topics.client import Topics
from topics.client._sync.transport import Prefixes
from topics.client.errors import InvalidRequest


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    folder: Path = tmp_path_factory.mktemp("two")
    started = [ServerProcess(folder / name, {}) for name in ("eu", "us")]
    yield started
    for server in started:
        server.kill()


def test_longest_prefix_of_a_name_counts():
    found = Prefixes({"": 1, "eu.": 2, "eu.fast.": 3})
    assert [found.of_name(name) for name in ("us.a", "eu.a", "eu.fast.a", "eu.")] == [1, 2, 3, 2]
    with pytest.raises(InvalidRequest, match=r"no server has 'us\.a'"):
        Prefixes({"eu.": 1}).of_name("us.a")


def test_requests_go_to_the_server_of_their_prefix(servers: list[ServerProcess]):
    eu, us = (server.url for server in servers)
    with Topics({"eu.": eu, "us.": us}) as topics:
        for name in ("eu.orders", "us.orders"):
            topics.append(name, {"at": name})
            assert [record.data for record in topics.read(name)] == [{"at": name}]
        topics.put_topic("us.work", type="queue")
        topics.append("us.work", 1)
        for job in topics.jobs("us.work"):
            assert job.data == 1
            break
        topics.put_router("eu.copy", source="eu.orders", dest="eu.copies")
        for item in topics.follow("us.orders", from_seq=0):
            assert item.seq == 1
            break
        assert topics.server("us.").topic("us.orders").head_seq == 1
    for url, prefix, other in ((eu, "eu.", "us."), (us, "us.", "eu.")):
        with Topics(url) as one:
            names = [topic.topic for topic in one.topics()]
            assert any(name.startswith(prefix) for name in names)
            assert not any(name.startswith(other) for name in names)


def test_what_cannot_span_servers_is_refused(servers: list[ServerProcess]):
    eu, us = (server.url for server in servers)
    with Topics({"eu.": eu, "us.": us}) as topics:
        with pytest.raises(InvalidRequest, match="a router, with its source and its destination, belongs to one"):
            topics.put_router("eu.copy", source="eu.orders", dest="us.copies")
        with pytest.raises(InvalidRequest, match="a watch belongs to one"):
            next(iter(topics.watch(["eu.orders", "us.orders"])))
        with pytest.raises(InvalidRequest, match="ask it with `server"):
            topics.ready()
        with pytest.raises(ValueError, match="no prefix"):
            topics.server("asia.")
