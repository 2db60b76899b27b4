"""The states of many topics take one list, not a request for each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import ServerProcess
from topics.client import Client
from topics.spark.options import read_options
from topics.spark.source import catalog
from topics.spark.source.catalog import ServerCatalog, states_of


@pytest.fixture
def singly(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []
    topic = Client.topic

    def counted(self: Client, name: str, **more: Any) -> Any:
        asked.append(name)
        return topic(self, name, **more)

    monkeypatch.setattr(Client, "topic", counted)
    return asked


def test_many_topics_of_a_query_are_listed(server: ServerProcess, client: Client, topic: str, singly: list[str]):
    names = [f"{topic}.{number}" for number in range(20)]
    for name in names:
        client.append(name, [{"data": 1}])
    options = read_options({"url": server.url, "subscribe": ",".join([*names, f"{topic}.none"])})
    with ServerCatalog(options) as servers:
        found = servers.present()
    assert [(one.topic, one.head) for one in found] == [(name, 1) for name in sorted(names)]
    assert singly == []


def test_few_topics_are_not_looked_for_among_many(
    client: Client, topic: str, singly: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(catalog, "ASKED_SINGLY", 1)
    monkeypatch.setattr(catalog, "LISTED_FOR_ONE", 2)
    names = [f"{topic}.{number}" for number in range(9)]
    for name in names:
        client.append(name, [{"data": 1}])
    wanted = {names[0], names[8], f"{topic}.none"}
    assert set(states_of(client, wanted)) == {names[0], names[8]}
    assert singly == [names[8], f"{topic}.none"]
