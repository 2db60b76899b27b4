"""Clients through cut connections and killed servers: nothing is lost, and nothing is written twice."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.client.proxy import CuttingProxy
from tests.conftest import Counts, ServerProcess
from topics.client import AsyncTopics, Gap, MemoryCursor, Record

RECORDS = 40
JOBS = 5
_numbers = count(1)


class World:
    """A durable server behind a proxy that cuts connections; `restart` kills it and starts it again."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.server = self._start()
        self.proxy = CuttingProxy(lambda: self.server.port, seed=seed)

    def _start(self) -> ServerProcess:
        return ServerProcess(self.directory, {"data_dir": self.directory / "data"})

    def restart(self) -> None:
        self.server.kill()
        self.server = self._start()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("topics.client._async.work.worker.CLAIM_WAIT_MS", 100)
    made = World(tmp_path, seed=1)
    with made.proxy:
        yield made
    made.server.stop()


async def write(topics: AsyncTopics, topic: str, chance: random.Random) -> list[int]:
    """Append the numbers in order, and return the seqs that the writer reported."""
    async with topics.writer(
        topic, max_records=chance.randint(1, 40), linger_ms=chance.randint(0, 5), max_pending_bytes=4000
    ) as writer:
        futures = [await writer.append(number) for number in range(RECORDS)]
    return [future.result() for future in futures]


async def read(topics: AsyncTopics, topic: str, chance: random.Random) -> list[int]:
    """Read until the last number, with readers that give up in the middle and resume from the cursor."""
    cursor, seen = MemoryCursor(), set[int]()
    while len(seen) < RECORDS:
        last = 0
        leave_after = chance.randint(1, RECORDS)
        async for item in topics.follow(
            topic, cursor=cursor, page_records=chance.randint(1, 50), wait_ms=200, wait_for_topic=True
        ):
            assert isinstance(item, Record), item
            assert item.seq > last, "a reader goes backwards"
            last = item.seq
            seen.add(item.data)
            leave_after -= 1
            if not leave_after or len(seen) == RECORDS:
                break
    return sorted(seen)


async def work(topics: AsyncTopics, queue: str) -> set[int]:
    """Work until the queue is empty, and return the jobs that were done."""
    done: set[int] = set()

    @topics.worker(queue, concurrency=4, lease_ms=300, retry_delay_ms=lambda deliveries: 0)
    async def handle(job: Any) -> None:
        done.add(job.data)
        if len(done) == JOBS:
            topics.stop()

    await topics.run()
    return done


async def play(world: World, seed: int, *, kills: int) -> None:
    chance = random.Random(seed)
    topic, queue = f"log{next(_numbers)}", f"queue{next(_numbers)}"
    async with AsyncTopics(world.server.url) as direct:
        await direct.put_topic(topic, durability="fsync")
        await direct.put_topic(queue, type="queue", durability="fsync")
        for number in range(JOBS):
            await direct.append(queue, number)
    async with AsyncTopics(world.proxy.url, timeout_s=5, retries=20) as topics:
        tasks = [
            asyncio.ensure_future(task)
            for task in (write(topics, topic, chance), read(topics, topic, chance), work(topics, queue))
        ]
        for _ in range(kills):
            await asyncio.sleep(chance.random() * 0.3)
            await asyncio.to_thread(world.restart)
        async with asyncio.timeout(90):
            seqs, seen, done = await asyncio.gather(*tasks)
    async with AsyncTopics(world.server.url) as direct:
        kept = [item async for item in direct.read(topic)]
    assert not [item for item in kept if isinstance(item, Gap)]
    assert [(item.seq, item.data) for item in kept] == list(zip(seqs, range(RECORDS), strict=True)), f"seed {seed}"
    assert seen == list(range(RECORDS)), f"seed {seed}"
    assert done == set(range(JOBS)), f"seed {seed}"


def test_cut_connections_lose_and_double_nothing(world: World) -> None:
    for seed in range(45):
        with asyncio.Runner() as runner:
            runner.run(play(world, seed, kills=0))
    assert world.proxy.cuts > 20


def test_killed_servers_lose_and_double_nothing(world: World) -> None:
    for seed in range(100, 105):
        with asyncio.Runner() as runner:
            runner.run(play(world, seed, kills=1))


@pytest.mark.torture
@pytest.mark.parametrize("block", range(10))
def test_many_cuts_and_kills_lose_and_double_nothing(world: World, block: int, counts: Counts) -> None:
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        with asyncio.Runner() as runner, suppress(asyncio.CancelledError):
            runner.run(play(world, seed, kills=seed % 3))
    counts(f"in block {block}", client_runs=100, cut_connections=world.proxy.cuts)
