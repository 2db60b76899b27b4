"""Two servers that mirror each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import SMALL_PARTS, ServerProcess
from tests.spark.pipelines.mirror.pairs import Pair, Side
from topics.client import Client


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    directory = tmp_path_factory.mktemp("pair")
    running = [
        ServerProcess(directory / name, {"data_dir": directory / name / "data", **SMALL_PARTS})
        for name in ("one", "other")
    ]
    yield running
    for server in running:
        server.stop()


@pytest.fixture
def pair(servers: list[ServerProcess]) -> Iterator[Pair]:
    with Client(servers[0].url) as one, Client(servers[1].url) as other:
        yield Pair(Side(servers[0].url, one), Side(servers[1].url, other))
