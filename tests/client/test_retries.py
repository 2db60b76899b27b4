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
from topics.client import AsyncTopics, Record, Topics, errors
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
    monkeypatch.setattr("topics.client.call.LONGEST_S", 0.02)
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


def test_follow_reports_again_that_it_has_caught_up_after_an_outage(outage: Outage) -> None:
    with Topics(outage.proxy.url) as topics:
        topics.put_topic("orders", durability="fsync")
        topics.append("orders", "first")
        seen: list[str] = []
        starter = threading.Thread(target=outage.end_after, args=(3,))

        def caught_up() -> None:
            seen.append("head")
            if seen.count("head") == 1:
                outage.server.kill()
                starter.start()
            else:
                topics.append("orders", "last")

        for item in topics.follow("orders", on_caught_up=caught_up):
            assert isinstance(item, Record)
            seen.append(item.data)
            if item.data == "last":
                break
        starter.join()
    assert seen == ["first", "head", "head", "last"]


async def test_client_gives_up_after_the_time_limit(outage: Outage) -> None:
    async with AsyncTopics(outage.proxy.url, retry_for_s=0.4) as topics:
        await topics.put_topic("orders")
        outage.server.kill()
        for call in (topics.health(), anext(topics.scan("orders"))):
            with pytest.raises(errors.Unreachable):
                await call
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
        with pytest.raises(errors.Unreachable):
            await topics.health()  # may begin with the connection to the killed server, which does not count
        for call in (topics.append("orders", 1), topics.health(), anext(topics.scan("orders"))):
            outage.attempts = 0
            with pytest.raises(errors.Unreachable):
                await call
            assert outage.attempts == 3


async def test_answer_of_a_proxy_is_not_one_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.client.call.LONGEST_S", 0.001)
    asked: list[str] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(503, text="<html>")

    async with AsyncTopics(transport=httpx.MockTransport(refuse)) as topics:
        with pytest.raises(errors.TopicsError, match="answered 503"):
            await topics.health()
    assert len(asked) == 1 + FIRST_RETRIES


async def test_server_that_is_not_ready_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.client.call.LONGEST_S", 0.001)
    refusals = iter(range(4 * FIRST_RETRIES))

    def refuse(request: httpx.Request) -> httpx.Response:
        if next(refusals, None) is None:
            return httpx.Response(200, json={"first_seq": 1, "last_seq": 1, "head_seq": 1})
        return httpx.Response(503, json={"error": {"code": "not_ready", "message": "wait"}})

    async with AsyncTopics(transport=httpx.MockTransport(refuse)) as topics:
        assert (await topics.append("orders", 1)).seq == 1


@pytest.mark.parametrize("key", ["key\n", "schlüssel", "a\x00b"])
def test_key_that_no_header_can_hold_is_refused_at_once(key: str) -> None:
    for make in (Topics, AsyncTopics):
        with pytest.raises(ValueError, match="token: a key consists of printable ASCII characters"):
            make("http://127.0.0.1:1", token=key)
