"""Clients through cut connections and killed servers: nothing is lost, and nothing is written twice."""

import asyncio
import random
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.client.proxy import CuttingProxy
from tests.conftest import Counts, ServerProcess
from topics.client import AsyncTopics, Cursor, Gap, MemoryCursor, NewRecord, Record, ServerCursor

RECORDS = 40
ROOM = 20  # records in a topic that becomes full
DELETED_AT_ONCE = 5
LARGEST_BATCH = ROOM - DELETED_AT_ONCE  # a larger one might wait without end: the reader leaves up to four records
JOBS = 5
LIMIT_S = 90
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
    monkeypatch.setattr("topics.client._async.work.CLAIM_WAIT_MS", 100)
    made = World(tmp_path, seed=1)
    with made.proxy:
        yield made
    made.server.stop()


async def write(topics: AsyncTopics, topic: str, chance: random.Random) -> list[int]:
    """Append the numbers in order, and return the seqs that the writer reported."""
    async with topics.writer(
        topic, max_records=chance.randint(1, LARGEST_BATCH), linger_ms=chance.randint(0, 5), max_pending_bytes=4000
    ) as writer:
        futures = [await writer.append(number) for number in range(RECORDS)]
    return [future.result() for future in futures]


async def read(topics: AsyncTopics, topic: str, chance: random.Random, *, deletes: bool) -> list[int]:
    """Read until the last number, with readers that give up in the middle and resume from the cursor.

    A reader that `deletes` what it has read makes room in a full topic.
    """
    cursor: Cursor | ServerCursor = ServerCursor("reader") if chance.random() < 0.5 else MemoryCursor()
    seen = set[int]()
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
            if deletes and item.seq % DELETED_AT_ONCE == 0:
                await topics.delete(topic, before_seq=item.seq + 1)
            leave_after -= 1
            if not leave_after or len(seen) == RECORDS:
                break
    return sorted(seen)


async def work(topics: AsyncTopics, queue: str) -> set[int]:
    """Work until the queue is empty, and return the jobs that were done. Leases can end while the server is away."""
    done: set[int] = set()

    @topics.worker(queue, concurrency=4, lease_ms=1000, retry_delay_ms=lambda deliveries: 0)
    async def handle(job: Any) -> None:
        done.add(job.data)
        if len(done) == JOBS:
            worker.stop()

    worker = handle
    await worker.run()
    return done


async def play(world: World, topics: AsyncTopics, seed: int) -> None:
    """Write, read and work with one topic and one queue of its own, and check all of it."""
    chance = random.Random(seed)
    topic, queue = f"log{next(_numbers)}", f"queue{next(_numbers)}"
    small = seed % 3 == 0
    await topics.put_topic(topic, durability="fsync", cap_records=ROOM if small else 0, discard="reject")
    await topics.put_topic(queue, type="queue", durability="fsync")
    await topics.append_many(queue, [NewRecord(data=number) for number in range(JOBS)])
    seqs, seen, done = await asyncio.gather(
        write(topics, topic, chance), read(topics, topic, chance, deletes=small), work(topics, queue)
    )
    kept = [item async for item in topics.read(topic)]
    assert not [item for item in kept if isinstance(item, Gap)]
    assert seqs == list(range(1, RECORDS + 1)), f"seed {seed}"
    written = [(seq, seq - 1) for seq in seqs]
    assert [(item.seq, item.data) for item in kept] == written[RECORDS - len(kept) :], f"seed {seed}"
    assert small or len(kept) == RECORDS, f"seed {seed}"
    assert seen == list(range(RECORDS)), f"seed {seed}"
    assert done == set(range(JOBS)), f"seed {seed}"


async def play_all(world: World, seeds: range, *, kills: int = 0, pauses: int = 0) -> None:
    """Play several games at a time against one server, which is killed, or stopped for a while, in the middle."""
    chance = random.Random(seeds[0])
    async with AsyncTopics(world.proxy.url, timeout_s=5, retries=20) as topics, asyncio.timeout(LIMIT_S):
        games = [asyncio.ensure_future(play(world, topics, seed)) for seed in seeds]
        for _ in range(kills):
            await asyncio.sleep(chance.random() * 0.3)
            await asyncio.to_thread(world.restart)
        for _ in range(pauses):
            await asyncio.sleep(chance.random() * 0.1)
            world.server.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(1.1)  # longer than a lease
            world.server.process.send_signal(signal.SIGCONT)
        await asyncio.gather(*games)


def test_cut_connections_lose_and_double_nothing(world: World) -> None:
    for first in (0, 10):
        asyncio.run(play_all(world, range(first, first + 10), pauses=first // 10))
    assert world.proxy.cuts > 5
    assert world.proxy.full_answers


def test_killed_servers_lose_and_double_nothing(world: World) -> None:
    asyncio.run(play_all(world, range(100, 110), kills=2))


@pytest.mark.torture
@pytest.mark.parametrize("block", range(10))
def test_many_cuts_and_kills_lose_and_double_nothing(world: World, block: int, counts: Counts) -> None:
    kills = 0
    for first in range(1000 + 100 * block, 1100 + 100 * block, 5):
        asyncio.run(play_all(world, range(first, first + 5), kills=first // 5 % 3, pauses=first // 5 % 2))
        kills += first // 5 % 3
    proxy = world.proxy
    counts(f"in block {block}", client_runs=100, cuts=proxy.cuts, kills=kills, full_topics=proxy.full_answers)
