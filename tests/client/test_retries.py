"""How long a client repeats a request: until a server that it knows is back, but not for long at a wrong address."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.client.proxy import CuttingProxy
from tests.conftest import ServerProcess
from topics.client import AsyncTopics, Topics, errors
from topics.client._async.transport import FIRST_RETRIES

pytestmark = pytest.mark.anyio


class Outage:
    """A durable server behind an address that stays the same when the server is killed and started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.server = self._start()
        self.attempts = 0  # while the server is away
        self.proxy = CuttingProxy(self._port, seed=1, cut_one_in=1 << 30)

    def _start(self) -> ServerProcess:
        return ServerProcess(self._directory, {"data_dir": self._directory / "data"})

    def _port(self) -> int:
        """Return the port of the server. Called for each connection."""
        if self.server.killed:
            self.attempts += 1
        return self.server.port

    def end_after(self, attempts: int) -> None:
        """Wait until a client has tried so often, and start the server again."""
        while self.attempts < attempts:
            time.sleep(0.01)
        self.server = self._start()


@pytest.fixture
def outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outage]:
    monkeypatch.setattr("topics.client.retry.LONGEST_S", 0.02)
    made = Outage(tmp_path)
    with made.proxy:
        yield made
    made.server.stop()


async def test_client_waits_for_a_server_that_restarts(outage: Outage) -> None:
    async with AsyncTopics(outage.proxy.url) as topics, asyncio.timeout(60):
        await topics.put_topic("orders", durability="fsync")
        outage.server.kill()
        calls = asyncio.gather(topics.append("orders", 1), topics.topic("orders"), anext(topics.scan("orders"), None))
        await asyncio.to_thread(outage.end_after, 10 * FIRST_RETRIES)
        done, _, _ = await calls
        assert done.seq == 1
        assert [record.data async for record in topics.read("orders")] == [1]


def test_sync_client_waits_for_a_server_that_restarts(outage: Outage) -> None:
    with Topics(outage.proxy.url) as topics:
        topics.put_topic("orders", durability="fsync")
        outage.server.kill()
        starter = threading.Thread(target=outage.end_after, args=(2 * FIRST_RETRIES,))
        starter.start()
        assert topics.append("orders", 1).seq == 1
        starter.join()


async def test_client_gives_up_after_the_time_limit(outage: Outage) -> None:
    async with AsyncTopics(outage.proxy.url, retry_for_s=0.4) as topics:
        await topics.put_topic("orders")
        outage.server.kill()
        for call in (topics.health(), anext(topics.scan("orders"))):
            outage.attempts = 0
            with pytest.raises(errors.Unreachable):
                await call
            assert outage.attempts > 1 + FIRST_RETRIES
        with pytest.raises(errors.OutcomeUnknown):
            await topics.append("orders", 1)


async def test_client_without_any_answer_gives_up_soon(outage: Outage) -> None:
    outage.server.kill()
    async with AsyncTopics(outage.proxy.url) as topics:
        for call in (topics.append("orders", 1), topics.health(), anext(topics.scan("orders"))):
            outage.attempts = 0
            with pytest.raises(errors.Unreachable):
                await call
            assert outage.attempts == 1 + FIRST_RETRIES


async def test_number_of_retries_is_kept_after_an_answer(outage: Outage) -> None:
    async with AsyncTopics(outage.proxy.url, retries=2) as topics:
        await topics.health()
        outage.server.kill()
        for call in (topics.append("orders", 1), topics.health(), anext(topics.scan("orders"))):
            outage.attempts = 0
            with pytest.raises(errors.Unreachable):
                await call
            assert outage.attempts == 3


@pytest.mark.parametrize(
    ("body", "patient"), [("<html>", False), ('{"error": {"code": "not_ready", "message": ""}}', True)]
)
async def test_answer_of_a_proxy_is_not_one_of_the_server(
    monkeypatch: pytest.MonkeyPatch, body: str, patient: bool
) -> None:
    monkeypatch.setattr("topics.client.retry.LONGEST_S", 0.001)
    asked: list[str] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(503, text=body)

    async with AsyncTopics(transport=httpx.MockTransport(refuse), retry_for_s=0.5) as topics:
        with pytest.raises(errors.TopicsError):
            await topics.health()
    assert (len(asked) > 1 + FIRST_RETRIES) == patient
    assert len(asked) >= 1 + FIRST_RETRIES
