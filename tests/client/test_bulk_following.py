"""Scans, and readers that catch up with them: complete and in order, whatever breaks."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.client.proxy import CuttingProxy
from tests.conftest import ServerProcess
from topics.client import AsyncTopics, Gap, MemoryCursor, NewRecord, errors

pytestmark = pytest.mark.anyio
RECORDS = 3000


@pytest.fixture
async def filled(topics: AsyncTopics, name: str) -> str:
    """A topic that has lost its first hundred records."""
    await topics.put_topic(name, cap_records=RECORDS - 100)
    await topics.append_many(
        name, [NewRecord(data=number, tag="odd" if number % 2 else None) for number in range(RECORDS)]
    )
    return name


def seqs(items: list[Any]) -> list[Any]:
    return [(item.first_seq, item.last_seq) if isinstance(item, Gap) else item.seq for item in items]


EVERYTHING = [(1, 100), *range(101, RECORDS + 1)]


async def test_scan_yields_the_gap_and_every_record(topics: AsyncTopics, filled: str) -> None:
    items = [item async for item in topics.scan(filled)]
    assert seqs(items) == EVERYTHING
    assert (items[1].topic, items[1].data, items[1].tag) == (filled, 100, None)
    assert (items[2].data, items[2].tag) == (101, "odd")


async def test_scan_ends_at_upto_seq_and_filters(topics: AsyncTopics, filled: str) -> None:
    items = [item async for item in topics.scan(filled, from_seq=200, upto_seq=210, filter="odd")]
    assert seqs(items) == [202, 204, 206, 208, 210]


async def test_scan_continues_after_cut_connections(server: ServerProcess, filled: str) -> None:
    with CuttingProxy(lambda: server.port, seed=3, cut_one_in=2, upto_bytes=100_000) as proxy:
        async with AsyncTopics(proxy.url, retries=20) as topics:
            for _ in range(10):
                assert seqs([item async for item in topics.scan(filled)]) == EVERYTHING
        assert proxy.cuts > 2


async def test_scan_bytes_are_what_the_server_sends(topics: AsyncTopics, filled: str) -> None:
    text = b"".join([chunk async for chunk in topics.scan_bytes(filled, "ndjson", from_seq=2990)])
    lines = text.splitlines()
    assert len(lines) == 11
    assert lines[-1].startswith(b'{"end":')


async def test_scan_of_a_missing_topic_raises(topics: AsyncTopics, name: str) -> None:
    with pytest.raises(errors.TopicNotFound):
        await anext(topics.scan(name))


async def take(items: AsyncIterator[Any], count: int) -> list[Any]:
    found = []
    async with asyncio.timeout(20):
        async for item in items:
            found.append(item)
            if len(found) == count:
                return found
    return found


@pytest.fixture
def scans_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.client._async.following.SCAN_RECORDS", 10)


@pytest.mark.usefixtures("scans_early")
async def test_reader_that_is_behind_catches_up_with_a_scan(server: ServerProcess, filled: str) -> None:
    asked: list[str] = []

    async def note(request: httpx.Request) -> None:
        asked.append(request.url.path.rsplit("/", 1)[1])

    async with AsyncTopics(server.url) as topics:
        topics._http._http.event_hooks = {"request": [note]}
        cursor = MemoryCursor()
        reading = topics.follow(filled, cursor=cursor, page_records=500)
        assert seqs(await take(reading, len(EVERYTHING))) == EVERYTHING
        assert asked == ["diff", "scan"]
        position = cursor.load()
        assert position is not None
        assert RECORDS - 500 <= position.seq < RECORDS, "the page that was not finished comes again"
        again = topics.follow(filled, cursor=cursor, page_records=500)
        await topics.append(filled, "last")
        rest = list(range(position.seq + 1, RECORDS + 2))
        assert seqs(await take(again, len(rest))) == rest


@pytest.mark.usefixtures("scans_early")
async def test_reader_goes_on_with_pages_when_its_scan_breaks(server: ServerProcess, filled: str) -> None:
    broken: list[errors.TopicsError] = []
    with CuttingProxy(lambda: server.port, seed=5, cut_one_in=2, upto_bytes=60_000) as proxy:
        async with AsyncTopics(proxy.url) as topics:
            for _ in range(10):
                reading = topics.follow(
                    filled, page_records=100, wait_ms=100, on_retry=lambda error, wait_s: broken.append(error)
                )
                assert seqs(await take(reading, len(EVERYTHING))) == EVERYTHING
    assert broken


@pytest.mark.usefixtures("scans_early")
async def test_scan_of_a_reader_reports_a_topic_created_again(topics: AsyncTopics, filled: str) -> None:
    reading = topics.follow(filled, page_records=5, wait_ms=100)
    first = await take(reading, 6)
    await topics.drop_topic(filled)
    await topics.append_many(filled, [NewRecord(data=number) for number in range(50)])
    again = topics.follow(filled, page_records=5, cursor=MemoryCursor(None), from_seq=0, wait_ms=100)
    assert seqs(await take(again, 50)) == list(range(1, 51))
    assert seqs(first) == EVERYTHING[:6]


async def test_write_gives_up_before_its_key_expires(name: str) -> None:
    def lose(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("cut")

    async with AsyncTopics(transport=httpx.MockTransport(lose), retries=100, retry_for_s=0.3) as topics:
        with pytest.raises(errors.OutcomeUnknown, match="no confirmation"):
            await topics.append(name, 1)
        with pytest.raises(errors.OutcomeUnknown):
            async with topics.writer(name) as writer:
                future = await writer.append(1)
        assert isinstance(future.exception(), errors.OutcomeUnknown)


async def test_write_that_was_only_refused_raises_the_refusal(name: str) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(429, json={"error": {"code": "throttled", "message": "busy"}})

    async with AsyncTopics(transport=httpx.MockTransport(refuse), retries=100, retry_for_s=0.3) as topics:
        with pytest.raises(errors.Throttled):
            await topics.append(name, 1)


@pytest.mark.parametrize(("gzip", "encoding"), [(False, "identity"), (True, "gzip")])
async def test_answers_are_compressed_only_if_asked(gzip: bool, encoding: str) -> None:
    asked: list[str] = []

    def note(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["accept-encoding"])
        return httpx.Response(404, json={"error": {"code": "topic_not_found", "message": "no"}})

    async with AsyncTopics(transport=httpx.MockTransport(note), gzip=gzip) as topics:
        with pytest.raises(errors.TopicNotFound):
            await topics.topic("a")
    assert asked == [encoding]


async def test_cancelled_wait_for_a_seq_leaves_the_batch_alone(topics: AsyncTopics, name: str) -> None:
    async with topics.writer(name, linger_ms=200) as writer:
        first, second = await writer.append("a"), await writer.append("b")
        waiting = asyncio.ensure_future(asyncio.wait_for(first, 0.01))
        with pytest.raises(TimeoutError):
            await waiting
        assert not second.done()
        assert [await first, await second] == [1, 2]
        await writer.flush()
