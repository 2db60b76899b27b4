"""Named consumers: their calls, and readers that keep their positions on the server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tests.client.proxy import CuttingProxy
from tests.conftest import ServerProcess
from topics.client import AsyncTopics, Gap, NewRecord, ServerCursor, Start, Topics, errors

pytestmark = pytest.mark.anyio
LIMIT_S = 20


@pytest.fixture
async def filled(topics: AsyncTopics, name: str) -> str:
    await topics.append_many(name, [NewRecord(data=number) for number in range(10)])
    return name


async def take(items: AsyncIterator[Any], count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(LIMIT_S), aclosing(items) as reading:  # type: ignore[type-var]
        async for item in reading:
            found.append(item.reason if isinstance(item, Gap) else item.seq)
            if len(found) == count:
                break
    return found


async def test_consumer_is_stored_moved_listed_and_dropped(topics: AsyncTopics, filled: str) -> None:
    made = await topics.put_consumer(filled, "billing", seq=4, meta={"owner": "ada"}, if_new=True)
    assert (made.created, made.seq) == (True, 4)
    with pytest.raises(errors.ConsumerMoved) as caught:
        await topics.put_consumer(filled, "billing", seq=9, if_seq=3)
    assert caught.value.detail == {"topic": filled, "consumer": "billing", "seq": 4}
    found = await topics.consumer(filled, "billing")
    assert (found.seq, found.lag_records, found.meta, found.lost) == (4, 6, {"owner": "ada"}, None)
    done = await topics.commit([(filled, "billing", 5), (filled, "nobody", 5)])
    assert (done.committed, [row.consumer for row in done.refused]) == (1, ["nobody"])
    assert (await topics.consumer(filled, "billing")).seq == 5
    assert [row.consumer async for row in topics.consumers(filled)] == ["billing"]
    assert [(row.topic, row.consumer) async for row in topics.consumers(prefix=filled)] == [(filled, "billing")]
    assert await topics.drop_consumer(filled, "billing")
    assert not await topics.drop_consumer(filled, "billing")
    with pytest.raises(errors.ConsumerNotFound):
        await topics.consumer(filled, "billing")


async def test_diff_reads_from_a_consumer_and_commits(topics: AsyncTopics, filled: str) -> None:
    first = await topics.diff(filled, consumer="billing", limit=4)
    again = await topics.diff(filled, consumer="billing", limit=4)
    rest = await topics.diff(filled, consumer="billing", commit=True)
    assert [[record.seq for record in page.records] for page in (first, again, rest)] == [
        [1, 2, 3, 4], [1, 2, 3, 4], [5, 6, 7, 8, 9, 10],
    ]  # fmt: skip
    assert [page.committed_seq for page in (first, again, rest)] == [0, 0, 4]
    assert (await topics.diff(filled)).committed_seq is None


async def test_follow_keeps_its_position_on_the_server(topics: AsyncTopics, filled: str) -> None:
    cursor = ServerCursor("billing")
    assert await take(topics.follow(filled, cursor=cursor, page_records=4), 6) == [1, 2, 3, 4, 5, 6]
    assert (await topics.consumer(filled, "billing")).seq == 4
    assert await take(topics.follow(filled, cursor=cursor), 6) == [5, 6, 7, 8, 9, 10]


async def test_new_consumer_begins_where_the_reader_says(topics: AsyncTopics, filled: str) -> None:
    cursor = ServerCursor("new", expire_ms=60_000)
    assert await take(topics.follow(filled, cursor=cursor, from_seq=8), 2) == [9, 10]
    assert (await topics.consumer(filled, "new")).expire_ms == 60_000


async def test_idle_reader_does_not_let_its_consumer_expire(topics: AsyncTopics, filled: str) -> None:
    reading = asyncio.ensure_future(
        take(topics.follow(filled, cursor=ServerCursor("idle", expire_ms=6000), wait_ms=100), 11)
    )
    async with asyncio.timeout(LIMIT_S):
        while not [row async for row in topics.consumers(filled) if row.seq == 10]:
            await asyncio.sleep(0.02)
        begun = (await topics.consumer(filled, "idle")).updated_ms
        while (used := await topics.consumer(filled, "idle")).updated_ms == begun:
            await asyncio.sleep(0.02)
    assert used.seq == 10
    await topics.append(filled, "last")
    assert (await reading)[-1] == 11


async def test_reader_goes_on_when_its_topic_is_created_again(topics: AsyncTopics, filled: str) -> None:
    reading = asyncio.ensure_future(take(topics.follow(filled, cursor=ServerCursor("billing"), wait_ms=100), 12))
    async with asyncio.timeout(LIMIT_S):
        while not [row async for row in topics.consumers(filled) if row.seq == 10]:
            await asyncio.sleep(0.02)
        await topics.drop_topic(filled)
        await topics.append(filled, "new")
        assert (await reading)[-2:] == ["recreated", 1]


async def test_reader_waits_for_a_server_that_restarts(tmp_path: Path) -> None:
    running = [ServerProcess(tmp_path, {"data_dir": tmp_path / "data"})]
    seen: list[int] = []
    with CuttingProxy(lambda: running[-1].port, seed=1, cut_one_in=1 << 30) as proxy:
        async with AsyncTopics(proxy.url) as topics, asyncio.timeout(LIMIT_S):
            await topics.append_many("log", [NewRecord(data=number) for number in range(10)])
            reading = topics.follow("log", cursor=ServerCursor("billing"), page_records=5, wait_ms=100)
            async for item in reading:
                seen.append(item.seq)  # type: ignore[union-attr]
                if len(seen) == 5:  # the position of this page is saved when the server is back
                    running[-1].kill()
                    running.append(ServerProcess(tmp_path, {"data_dir": tmp_path / "data"}))
                if len(seen) == 10:
                    break
            assert seen == list(range(1, 11))
            assert (await topics.consumer("log", "billing")).seq == 5
    running[-1].stop()


async def test_watch_begins_at_a_consumer(topics: AsyncTopics, filled: str) -> None:
    await topics.put_consumer(filled, "billing", seq=7)
    assert await take(topics.watch({filled: Start(consumer="billing")}), 3) == [8, 9, 10]


def test_sync_reader_keeps_its_position_on_the_server(server: ServerProcess, name: str) -> None:
    with Topics(server.url) as topics:
        topics.append_many(name, [NewRecord(data=number) for number in range(4)])
        reading = topics.follow(name, cursor=ServerCursor("billing"), page_records=2)
        assert [next(reading).seq for _ in range(3)] == [1, 2, 3]  # type: ignore[union-attr]
        assert topics.consumer(name, "billing").seq == 2
