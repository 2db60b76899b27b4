"""The async client against a real server: every verb, errors, following, writing, working."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.client.conftest import until_extended
from tests.conftest import ServerProcess
from topics.client import AsyncTopics, FileCursor, Gap, MemoryCursor, NewRecord, Position, Record, Start, errors

pytestmark = pytest.mark.anyio


async def take(items: AsyncIterator[Any], count: int) -> list[Any]:
    found = []
    async with asyncio.timeout(20):
        async for item in items:
            found.append(item)
            if len(found) == count:
                break
    return found


async def test_append_returns_seqs_and_read_returns_records(topics: AsyncTopics, name: str) -> None:
    first = await topics.append(name, {"sku": "V60"}, tag="a", node="till-1", meta={"k": 1})
    more = await topics.append_many(name, [NewRecord(data=2), {"data": 3, "tag": "b"}])
    assert (first.seq, first.created, more.first_seq, more.last_seq) == (1, True, 2, 3)
    records = [item async for item in topics.read(name)]
    assert [(r.seq, r.tag, r.node, r.meta, r.data) for r in records if isinstance(r, Record)] == [
        (1, "a", "till-1", {"k": 1}, {"sku": "V60"}), (2, None, None, {}, 2), (3, "b", None, {}, 3),
    ]  # fmt: skip


async def test_same_key_appends_once(topics: AsyncTopics, name: str) -> None:
    first = await topics.append(name, 1, key="k")
    again = await topics.append(name, 1, key="k")
    assert (first.seq, again.seq, again.deduped) == (1, 1, True)


async def test_lost_records_come_as_a_gap(topics: AsyncTopics, name: str) -> None:
    await topics.put_topic(name, cap_records=2)
    await topics.append_many(name, [NewRecord(data=n) for n in range(5)])
    gap, *records = [item async for item in topics.read(name)]
    assert isinstance(gap, Gap)
    assert (gap.first_seq, gap.last_seq, gap.reason) == (1, 3, "cap")
    assert [record.data for record in records] == [3, 4]


async def test_half_a_surrogate_pair_is_kept(topics: AsyncTopics, server: ServerProcess, name: str) -> None:
    body = b'{"records":[{"data":"\\ud83d"}]}'
    httpx.post(f"{server.url}/v0/topics/{name}", content=body, headers={"content-type": "application/json"})
    [record] = [item async for item in topics.read(name)]
    assert record.data == "\ud83d"


@pytest.mark.parametrize(
    ("call", "kind", "status"),
    [
        (lambda t, n: t.topic(n), errors.TopicNotFound, 404),
        (lambda t, n: t.router(n), errors.RouterNotFound, 404),
        (lambda t, n: t.schedule(n), errors.ScheduleNotFound, 404),
        (lambda t, n: t.put_topic(n, cap_records=-1), errors.InvalidRequest, 400),
        (lambda t, n: t.claim(n, node="w"), errors.TopicNotFound, 404),
    ],
)
async def test_each_code_is_its_own_exception(
    topics: AsyncTopics, name: str, call: Callable[[AsyncTopics, str], Any], kind: type[errors.TopicsError], status: int
) -> None:
    with pytest.raises(kind) as caught:
        await call(topics, name)
    assert (caught.value.status, caught.value.retryable) == (status, False)


async def test_full_topic_is_retried_and_then_raised(server: ServerProcess, name: str) -> None:
    async with AsyncTopics(server.url, retries=1) as topics:
        await topics.put_topic(name, cap_records=1, discard="reject")
        await topics.append(name, 1)
        with pytest.raises(errors.TopicFull) as caught:
            await topics.append(name, 2)
    assert caught.value.retryable
    assert caught.value.code == "topic_full"


async def test_server_that_is_not_there_is_unreachable() -> None:
    async with AsyncTopics("http://127.0.0.1:9", retries=0) as topics:
        assert not await topics.is_ready()
        with pytest.raises(errors.Unreachable, match="no answer from http://127"):
            await topics.health()


@pytest.mark.parametrize("url", ["nowhere", "ftp://host", "http://"])
def test_bad_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(errors.BadUrl, match="not the URL of a server"):
        AsyncTopics(url)


async def test_every_record_names_its_topic(topics: AsyncTopics, name: str) -> None:
    await topics.put_topic(name, cap_records=2)
    await topics.append_many(name, [NewRecord(data=n) for n in range(3)])
    page = await topics.diff(name)
    assert [record.topic for record in page.records] == [name, name]
    assert page.gap is not None
    assert page.gap.topic == name
    for items in (topics.read(name), topics.scan(name), topics.follow(name), topics.watch([name])):
        assert [item.topic for item in await take(items, 3)] == [name] * 3


async def test_follow_resumes_from_a_file(topics: AsyncTopics, name: str, tmp_path: Path) -> None:
    cursor = FileCursor(tmp_path / "cursor")
    await topics.append_many(name, [NewRecord(data=n) for n in range(4)])
    first = await take(topics.follow(name, cursor=cursor, page_records=2, wait_ms=100), 3)
    assert [record.seq for record in first] == [1, 2, 3]
    assert cursor.load() == Position(2, (await topics.topic(name)).epoch)
    again = await take(topics.follow(name, cursor=cursor, wait_ms=100), 2)
    assert [record.seq for record in again] == [3, 4]


async def test_follow_reports_a_topic_that_was_created_again(topics: AsyncTopics, name: str) -> None:
    await topics.append(name, "old")
    cursor = MemoryCursor()
    seen: list[Any] = []

    async def read() -> None:
        async for item in topics.follow(name, cursor=cursor, wait_ms=100):
            seen.append(item)
            if isinstance(item, Record) and item.data == "new":
                return

    reading = asyncio.ensure_future(read())
    while cursor.load() is None:
        await asyncio.sleep(0.01)
    await topics.drop_topic(name)
    await topics.append(name, "new")
    await asyncio.wait_for(reading, 20)
    assert [item.reason if isinstance(item, Gap) else item.data for item in seen] == ["old", "recreated", "new"]


async def test_follow_from_a_seq_of_an_earlier_epoch_starts_over(topics: AsyncTopics, name: str) -> None:
    epoch = (await topics.put_topic(name)).epoch
    await topics.append(name, "old")
    await topics.drop_topic(name)
    await topics.append(name, "new")
    seen: list[str] = []
    async with asyncio.timeout(20):
        async for item in topics.follow(name, from_seq=1, epoch=epoch):
            seen.append(item.reason if isinstance(item, Gap) else item.data)
            if len(seen) == 2:
                break
    assert seen == ["recreated", "new"]


async def test_follow_raises_for_a_topic_that_never_was(topics: AsyncTopics, name: str) -> None:
    with pytest.raises(errors.TopicNotFound):
        await take(topics.follow(name), 1)


async def test_follow_waits_for_a_topic_if_asked(topics: AsyncTopics, name: str) -> None:
    reading = asyncio.ensure_future(take(topics.follow(name, wait_for_topic=True, wait_ms=100), 1))
    await topics.append(name, 1)
    assert [record.data for record in await reading] == [1]


async def test_follow_reports_that_it_has_caught_up(topics: AsyncTopics, name: str) -> None:
    await topics.append_many(name, [NewRecord(data=n) for n in range(5)])
    seen: list[Any] = []

    async def caught_up() -> None:
        seen.append("head")
        if seen.count("head") == 1:
            await topics.append(name, "live")  # at the head: delivered without falling behind

    async with asyncio.timeout(20):
        async for item in topics.follow(name, page_records=2, on_caught_up=caught_up):
            seen.append(item.seq)
            if item.seq == 6:
                await topics.append_many(name, [NewRecord(data=n) for n in range(3)])
            if item.seq == 9:
                await topics.append(name, "last")
            if item.seq == 10:
                break
    assert seen == [1, 2, 3, 4, 5, "head", 6, 7, 8, 9, "head", 10]


async def test_watch_follows_names_and_patterns(topics: AsyncTopics, name: str) -> None:
    await topics.put_topic(f"{name}.small", cap_records=1)
    await topics.append_many(f"{name}.small", [NewRecord(data=n) for n in range(3)])
    watching = asyncio.ensure_future(take(topics.watch({f"{name}.small": None, f"{name}.chat-*": Start()}), 3))
    await topics.append(f"{name}.chat-1", "hello")
    items = await watching
    assert {item.topic: item for item in items}.keys() == {f"{name}.small", f"{name}.chat-1"}
    [gap] = [item for item in items if isinstance(item, Gap)]
    assert (gap.first_seq, gap.last_seq, gap.reason) == (1, 2, "cap")


async def test_writer_batches_and_returns_each_seq(topics: AsyncTopics, name: str) -> None:
    async with topics.writer(name, max_records=100) as writer:
        futures = [await writer.append(n) for n in range(1000)]
        await writer.flush()
        assert [future.result() for future in futures] == list(range(1, 1001))
    assert [record.data async for record in topics.read(name)] == list(range(1000))


async def test_writer_waits_while_too_much_is_pending(topics: AsyncTopics, name: str) -> None:
    async with topics.writer(name, max_pending_bytes=2000, max_records=10) as writer:
        for n in range(200):
            await writer.append(f"{n:0100}")
            assert writer._pending_bytes <= 2000
    assert (await topics.topic(name)).count == 200


async def test_writer_fails_futures_of_records_that_cannot_be_written(topics: AsyncTopics, name: str) -> None:
    await topics.put_topic(name, type="queue")
    writer = topics.writer(f"{name}/bad")
    future = await writer.append(1)
    with pytest.raises(errors.TopicsError):
        await future


async def test_flush_raises_what_could_not_be_written(topics: AsyncTopics, name: str) -> None:
    await topics.put_topic(name, cap_bytes=2000)
    writer = topics.writer(name, max_records=2)
    for data in ("a", "b", "x" * 5000, "c", "d"):
        await writer.append(data)
    with pytest.raises(errors.TopicsError) as caught:
        await writer.flush()
    assert caught.value.__notes__ == [f"2 records of {name} failed"]
    await writer.flush()  # raised once
    assert [record.data async for record in topics.read(name)] == ["a", "b", "d"]
    await writer.append("e")
    await writer.aclose()


async def test_end_of_a_writer_raises_what_could_not_be_written(topics: AsyncTopics, name: str) -> None:
    await topics.put_topic(name, cap_bytes=2000)
    with pytest.raises(errors.TopicsError):
        async with topics.writer(name) as writer:
            await writer.append("x" * 5000)

    async def fail() -> None:
        async with topics.writer(name) as writer:
            await writer.append("x" * 5000)
            raise ValueError("the program's own")

    with pytest.raises(ValueError, match="the program's own") as caught:
        await fail()
    [note] = caught.value.__notes__
    assert note.startswith(f"The writer of {name} failed, too: ")


async def test_writer_at_a_wrong_address_fails_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.client.call.LONGEST_S", 0.01)
    async with AsyncTopics("http://127.0.0.1:9") as nowhere, asyncio.timeout(20):
        with pytest.raises(errors.Unreachable):
            async with nowhere.writer("log") as writer:
                await writer.append(1)


async def test_writer_sends_parts_to_a_server_that_takes_fewer_records(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, {"max_batch_records": 10})
    async with AsyncTopics(server.url) as topics, topics.writer("log", linger_ms=50) as writer:
        futures = [await writer.append(n) for n in range(25)]
        await writer.flush()
        assert [future.result() for future in futures] == list(range(1, 26))
        assert [await future for future in [await writer.append(n) for n in range(12)]] == list(range(26, 38))
        assert [record.data async for record in topics.read("log")] == [*range(25), *range(12)]
    server.stop()


async def test_writer_reports_which_part_of_a_batch_failed() -> None:
    answers = iter([(400, "batch_too_large"), (200, ""), (422, "topic_not_found")])

    def answer(request: httpx.Request) -> httpx.Response:
        status, code = next(answers)
        if code:
            return httpx.Response(status, json={"error": {"code": code, "message": "no", "detail": {"max": 2}}})
        return httpx.Response(200, json={"first_seq": 7, "last_seq": 8, "head_seq": 8})

    async with AsyncTopics(transport=httpx.MockTransport(answer)) as topics, topics.writer("log") as writer:
        futures = [await writer.append(n) for n in range(4)]
        with pytest.raises(errors.TopicNotFound) as caught:
            await writer.flush()
    assert caught.value.__notes__ == ["2 records of log failed"]
    assert [future.result() for future in futures[:2]] == [7, 8]
    for future in futures[2:]:
        assert isinstance(future.exception(), errors.TopicNotFound)
        with pytest.raises(errors.TopicNotFound):
            await future


async def test_future_of_a_seq_calls_back(topics: AsyncTopics, name: str) -> None:
    called: list[int] = []
    async with topics.writer(name) as writer:
        (await writer.append(1)).add_done_callback(lambda future: called.append(future.result()))
        await writer.flush()
        await asyncio.sleep(0)
    assert called == [1]


async def test_worker_acks_retries_and_dead_letters(topics: AsyncTopics, name: str) -> None:
    await topics.put_topic(name, type="queue", max_deliveries=2, dead_letter=f"{name}.dead")
    await topics.append_many(name, [NewRecord(data=n) for n in range(6)])
    done: list[int] = []
    failed: list[tuple[int, int]] = []

    @topics.worker(
        name, concurrency=3, retry_delay_ms=lambda deliveries: 0,
        on_error=lambda job, error: failed.append((job.data, job.deliveries)),
        on_done=lambda job, seconds: done.append(job.data),
    )  # fmt: skip
    async def work(job: Any) -> None:
        if job.data == 2:
            raise ValueError("bad")

    running = asyncio.ensure_future(topics.run())
    async with asyncio.timeout(20):
        while (await topics.topic(name)).count:
            await asyncio.sleep(0.02)
    topics.stop()
    await asyncio.wait_for(running, 20)
    assert (sorted(done), failed) == ([0, 1, 3, 4, 5], [(2, 1), (2, 2)])
    assert [record.data async for record in topics.read(f"{name}.dead")] == [2]


async def test_lease_is_extended_while_the_handler_runs(topics: AsyncTopics, name: str) -> None:
    await topics.put_topic(name, type="queue")
    await topics.append(name, "long")
    deliveries: list[int] = []

    @topics.worker(name, lease_ms=4500)
    async def work(job: Any) -> None:
        deliveries.append(job.deliveries)
        await until_extended(topics, job)
        topics.stop()

    await asyncio.wait_for(topics.run(), 20)
    assert deliveries == [1]
    assert (await topics.topic(name)).count == 0


async def test_job_that_takes_too_long_goes_back(topics: AsyncTopics, name: str) -> None:
    await topics.put_topic(name, type="queue")
    await topics.append(name, 1)
    seen: list[int] = []

    @topics.worker(name, timeout_s=0.1, retry_delay_ms=lambda deliveries: 0, on_error=lambda job, error: None)
    async def work(job: Any) -> None:
        seen.append(job.deliveries)
        if job.deliveries == 1:
            await asyncio.sleep(30)
        topics.stop()

    await asyncio.wait_for(topics.run(), 20)
    assert seen == [1, 2]


async def test_routers_queues_and_the_server_are_complete(topics: AsyncTopics, name: str) -> None:
    await topics.append(name, 1, tag="public:1")
    made = await topics.put_router(
        f"{name}->copy", source=name, dest=f"{name}.copy", filter=("tag", "Glob", "public:*")
    )
    assert made.created
    assert [row.router async for row in topics.routers(source=name)] == [f"{name}->copy"]
    assert (await topics.router(f"{name}->copy")).dest == f"{name}.copy"
    assert (await topics.preview_router(f"{name}->copy")).matched == 1
    assert await topics.drop_router(f"{name}->copy")
    assert not await topics.drop_router(f"{name}->copy")
    assert (await topics.delete(name, before_seq=2)).deleted == 1
    assert name in [row.topic async for row in topics.topics(prefix=name)]
    assert (await topics.health()).status == "ok"
    assert "read" in (await topics.whoami()).scopes
    assert (await topics.samples()).columns
    assert [part.state for part in (await topics.timeline(name)).ranges] == ["deleted"]
    assert "topics_topics" in await topics.metrics("prometheus")
    assert await topics.drop_topic(name)
