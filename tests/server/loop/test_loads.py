"""Loads for the event loop: one trip for all that is needed, held for the retry, in order, and bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from topics.server.loop import loads as module
from topics.server.loop.loads import Loads
from topics.storage.segments.cold import Cold, Need

WAIT_S = 20


class World:
    """A loop, a pool, and things to load: `loaded` names them in order, `gate` keeps the pool from going on."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pool = ThreadPoolExecutor(4)
        self.loads = Loads(self.loop, self.pool)
        self.loaded: list[str] = []
        self.threads: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()

    def cold(self, *names: str, failure: Exception | None = None) -> Cold:
        def load(name: str) -> object:
            self.gate.wait(WAIT_S)
            self.threads.add(threading.get_ident())
            self.loaded.append(name)
            if failure is not None:
                raise failure
            return name

        return Cold([Need(name, 1, load=lambda name=name: load(name), trim=lambda: None) for name in names])

    def until(self, look: Callable[[], object]) -> None:
        async def wait() -> None:
            while not look():
                await asyncio.sleep(0)

        self.loop.run_until_complete(asyncio.wait_for(wait(), WAIT_S))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.gate.set()
    world.pool.shutdown(wait=True)
    world.loop.close()


def test_everything_is_fetched_in_one_trip_off_the_loop(world: World):
    done: list[Any] = []
    world.loads.load(world.cold("a", "b", "c"), done.append)
    world.until(lambda: done)
    assert (done, world.loaded, len(world.threads)) == ([None], ["a", "b", "c"], 1)
    assert threading.get_ident() not in world.threads
    assert world.loads.held_bytes == 0


def test_work_that_needs_more_is_run_again_without_a_bound_on_tries(world: World):
    tries: list[int] = []
    held: list[int] = []

    def then(failure: BaseException | None) -> None:
        tries.append(len(tries))
        held.append(world.loads.held_bytes)
        if len(tries) < 100:
            raise world.cold(f"piece {len(tries)}")

    world.loads.load(world.cold("first"), then)
    world.until(lambda: len(tries) == 100)
    assert held == list(range(1, 101)), "what was fetched before is still held"
    world.until(lambda: world.loads.held_bytes == 0)


def test_failure_reaches_the_work(world: World):
    done: list[Any] = []
    world.loads.load(world.cold("a", failure=OSError("no such disk")), done.append)
    world.until(lambda: done)
    assert str(done[0]) == "no such disk"


def test_no_more_hold_memory_at_once_than_allowed_and_others_wait_in_order(world: World):
    done: list[int] = []
    world.gate.clear()
    count = module.AT_ONCE * 3
    for number in range(count):
        world.loads.load(world.cold(str(number)), lambda failure, number=number: done.append(number))
    assert len(world.loads._running) == module.AT_ONCE
    world.gate.set()
    world.until(lambda: len(done) == count)
    assert set(done[: module.AT_ONCE]) <= set(range(module.AT_ONCE + 4)), "the first come first"
    assert not world.loads._running


def test_work_that_nobody_wants_any_more_is_not_run_and_not_fetched(world: World):
    done: list[int] = []
    world.gate.clear()
    handles = [
        world.loads.load(world.cold(str(number)), lambda failure, number=number: done.append(number))
        for number in range(module.AT_ONCE + 2)
    ]
    handles[0].cancel()
    handles[-1].cancel()
    world.gate.set()
    world.until(lambda: len(done) == module.AT_ONCE)
    assert sorted(done) == list(range(1, module.AT_ONCE + 1))
    assert str(module.AT_ONCE + 1) not in world.loaded


def test_work_that_breaks_keeps_no_place(world: World, caplog: pytest.LogCaptureFixture):
    done: list[Any] = []

    def then(failure: BaseException | None) -> None:
        raise ZeroDivisionError

    for number in range(module.AT_ONCE * 2):
        world.loads.load(world.cold(str(number)), then)
    world.loads.load(world.cold("last"), done.append)
    world.until(lambda: done)
    assert done == [None]


def test_nothing_is_run_once_the_server_ends(world: World):
    done: list[Any] = []
    world.gate.clear()
    for number in range(module.AT_ONCE * 2):
        world.loads.load(world.cold(str(number)), done.append)
    world.loads.stop()
    world.gate.set()
    world.until(lambda: not world.loads._running)
    assert not done
    world.loads.load(world.cold("late"), done.append)
    assert not world.loads._running
