"""Loads for the event loop: one trip per attempt, data held between attempts, in order of arrival, and bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from topics.server.loop import runtime as module
from topics.server.loop.runtime import NOT_LOADING, Loads
from topics.storage.segments.cold import Cold, Need

WAIT_S = 20


class World:
    """A loop, a pool, and data to load. `loaded` lists its names in order; `gate` blocks the pool."""

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


def unexpected(failure: BaseException) -> None:
    raise AssertionError(failure)


def test_one_trip_off_the_loop_fetches_everything(world: World):
    done: list[str] = []
    world.loads.load(world.cold("a", "b", "c"), lambda: done.append("ran"), unexpected)
    world.until(lambda: done)
    assert (done, world.loaded, len(world.threads)) == (["ran"], ["a", "b", "c"], 1)
    assert threading.get_ident() not in world.threads
    assert world.loads.held_bytes == 0


def test_work_that_needs_nothing_runs_at_once(world: World):
    done: list[str] = []
    assert world.loads.attempt(lambda: done.append("ran"), unexpected) is NOT_LOADING
    assert done == ["ran"]


def test_loading_is_waiting_only_while_the_disk_is_read(world: World):
    waiting: list[bool] = []

    def work() -> None:
        waiting.append(loading.waiting)
        if len(waiting) < 3:
            raise world.cold(f"piece {len(waiting)}")

    loading = world.loads.load(world.cold("first"), work, unexpected)
    assert loading.waiting
    world.until(lambda: len(waiting) == 3)
    assert waiting == [False, False, False]
    assert not loading.waiting


def test_ended_work_keeps_no_reference_to_its_owner(world: World):
    done: list[str] = []
    loading = world.loads.load(world.cold("a"), lambda: done.append("ran"), unexpected)
    world.until(lambda: done)
    assert loading.work is None
    assert loading.failed is None


def test_work_runs_again_until_it_needs_nothing_more(world: World):
    tries: list[int] = []
    held: list[int] = []

    def work() -> None:
        tries.append(len(tries))
        held.append(world.loads.held_bytes)
        if len(tries) < 100:
            raise world.cold(f"piece {len(tries)}")

    world.loads.load(world.cold("first"), work, unexpected)
    world.until(lambda: len(tries) == 100)
    assert held == list(range(1, 101)), "fetched data stays held"
    world.until(lambda: world.loads.held_bytes == 0)


def test_failed_read_is_reported_and_work_does_not_run(world: World):
    ran: list[str] = []
    failures: list[BaseException] = []
    world.loads.load(
        world.cold("a", failure=OSError("no such disk")), lambda: ran.append("ran"), lambda e: failures.append(e)
    )
    world.until(lambda: failures)
    assert str(failures[0]) == "no such disk"
    assert not ran


def test_excess_work_waits_in_order_of_arrival(world: World):
    done: list[int] = []
    world.gate.clear()
    count = module.AT_ONCE * 3
    for number in range(count):
        world.loads.load(world.cold(str(number)), partial(done.append, number), unexpected)
    assert len(world.loads._running) == module.AT_ONCE
    world.gate.set()
    world.until(lambda: len(done) == count)
    assert set(done[: module.AT_ONCE]) <= set(range(module.AT_ONCE + 4)), "the first arrivals run first"
    assert not world.loads._running


def test_cancelled_work_is_not_run_and_not_fetched(world: World):
    done: list[int] = []
    world.gate.clear()
    handles = [
        world.loads.load(world.cold(str(number)), partial(done.append, number), unexpected)
        for number in range(module.AT_ONCE + 2)
    ]
    handles[0].cancel()
    handles[-1].cancel()
    world.gate.set()
    world.until(lambda: len(done) == module.AT_ONCE)
    assert sorted(done) == list(range(1, module.AT_ONCE + 1))
    assert str(module.AT_ONCE + 1) not in world.loaded


def test_work_cancelled_while_it_runs_is_not_loaded_again(world: World):
    tries: list[int] = []

    def work() -> None:
        tries.append(1)
        loading.cancel()
        raise world.cold("more")

    loading = world.loads.load(world.cold("first"), work, unexpected)
    world.until(lambda: tries and not world.loads._running)
    assert (len(tries), world.loaded) == (1, ["first"])


def test_work_that_raises_frees_its_slot(world: World, caplog: pytest.LogCaptureFixture):
    done: list[str] = []

    def work() -> None:
        raise ZeroDivisionError

    for number in range(module.AT_ONCE * 2):
        world.loads.load(world.cold(str(number)), work, unexpected)
    world.loads.load(world.cold("last"), lambda: done.append("ran"), unexpected)
    world.until(lambda: done)


def test_nothing_runs_after_stop(world: World):
    done: list[str] = []
    world.gate.clear()
    for number in range(module.AT_ONCE * 2):
        world.loads.load(world.cold(str(number)), partial(done.append, "ran"), unexpected)
    world.loads.stop()
    world.gate.set()
    world.until(lambda: not world.loads._running)
    assert not done
    world.loads.load(world.cold("late"), partial(done.append, "ran"), unexpected)
    assert not world.loads._running
