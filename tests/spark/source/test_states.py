"""The states of many topics take one list, not a request for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ServerProcess
from topics.client import Client
from topics.model.names import AUDIT
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


@pytest.mark.parametrize("count", [2, 20])
def test_several_topics_of_a_query_are_listed(
    server: ServerProcess, client: Client, topic: str, singly: list[str], count: int
):
    names = [f"{topic}.{number}" for number in range(count)]
    for name in names:
        client.append(name, [{"data": 1}])
    options = read_options({"url": server.url, "subscribe": ",".join([*names, f"{topic}.none"])})
    with ServerCatalog(options) as servers:
        found = servers.present()
    assert [(one.topic, one.head) for one in found] == [(name, 1) for name in sorted(names)]
    assert singly == []


def test_key_with_exact_names_lists_its_topics(tmp_path: Path, singly: list[str]):
    settings = {"data_dir": tmp_path / "data", "api_keys": "all:read+write+admin"}
    server = ServerProcess(tmp_path, settings)
    with Client(server.url, token="all") as client:
        for name in ("orders", "orders.eu", "pay"):
            client.put_topic(name)
        one = client.create_token(scopes=["read"], names=["orders", "pay"]).token
        assert states_of(client, {"orders", AUDIT}).keys() == {"orders", AUDIT}
    assert singly == [AUDIT]
    with Client(server.url, token=one) as client:
        assert states_of(client, {"orders", "pay", "refunds"}).keys() == {"orders", "pay"}
    assert singly == [AUDIT]
    server.stop()


def test_few_topics_are_not_looked_for_among_many(
    client: Client, topic: str, singly: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(catalog, "FEW", 1)
    monkeypatch.setattr(catalog, "LISTED_FOR_ONE", 2)
    names = [f"{topic}.{number}" for number in range(9)]
    for name in names:
        client.append(name, [{"data": 1}])
    wanted = {names[0], names[8], f"{topic}.none"}
    assert set(states_of(client, wanted)) == {names[0], names[8]}
    assert singly == [names[8], f"{topic}.none"]
