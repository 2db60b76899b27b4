"""The sweep of deadlines: a turn of the loop has a bounded part of it."""

import asyncio
from typing import Any

import pytest

from tests.server.harness import FakeApp
from topics.server.http import server as module
from topics.server.http.server import HttpServer


class Swept:
    def __init__(self, times: list[float]) -> None:
        self._times = times

    def sweep(self, now: float) -> None:
        self._times.append(now)


def test_many_connections_are_swept_in_parts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_SWEPT_AT_ONCE", 2)
    times: list[float] = []
    turns: list[int] = []

    async def scenario() -> None:
        server: Any = HttpServer(FakeApp())
        server.connections.update(Swept(times) for _ in range(5))
        server._sweep()
        while len(times) < 5:
            turns.append(len(times))
            await asyncio.sleep(0.001)
        server._sweeping.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 5))
    assert turns[0] == 2
    assert len(times) == 5
