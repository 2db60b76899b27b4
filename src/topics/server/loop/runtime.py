"""What all work on the event loop shares: the engine, the clock, the loop, the thread pool, and loads from the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from topics import logs
from topics.clock import Clock
from topics.config import Settings
from topics.engine.engine import Engine
from topics.server.limits.loop_holds import LoopHolds
from topics.server.loop.cold_loads import Failed, Loading, Loads, Work
from topics.storage.segments.cold import Cold

log = logs.Log("server")

IO_THREADS = 4

T = TypeVar("T")


class OpenEnded(Protocol):
    """A request or a stream that waits without a limit of its own, so that a drain must end it."""

    def end(self) -> None:
        """Answer with what is there, or close the stream: the server stops."""


class Runtime:
    """The runtime of one server, from the end of its recovery until it stops."""

    __slots__ = (
        "clock", "draining", "engine", "holds", "loads", "loop", "open_ended", "pool", "settings", "slow_readers_total",
    )  # fmt: skip

    def __init__(
        self, settings: Settings, clock: Clock, loop: asyncio.AbstractEventLoop, engine: Engine, *, holds: LoopHolds
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.loop = loop
        self.engine = engine
        self.holds = holds
        self.pool = ThreadPoolExecutor(max_workers=IO_THREADS, thread_name_prefix="topics-io")
        self.loads = Loads(loop, self.pool)
        self.open_ended: set[OpenEnded] = set()
        self.draining = False
        self.slow_readers_total = 0

    def note_slow_reader(self, stream: str) -> None:
        """Count and log a client whose stream is closed because it does not read."""
        self.slow_readers_total += 1
        log.info("slow_reader", stream=stream, timeout_ms=self.settings.slow_consumer_timeout_ms)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `callback` on the loop after `delay_ms`."""
        return self.loop.call_later(delay_ms / 1000, callback)

    def attempt(self, work: Work, failed: Failed) -> Loading:
        """Run `work`, and again whenever it raises `Cold`; see `Loads.attempt`."""
        return self.loads.attempt(work, failed)

    def load(self, cold: Cold, work: Work, failed: Failed) -> Loading:
        """Run `work` once what `cold` names is in memory; see `Loads.load`."""
        return self.loads.load(cold, work, failed)

    def in_pool(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` on a thread of the pool. The future is resolved on the loop."""
        return self.loop.run_in_executor(self.pool, work)

    def begin_drain(self) -> None:
        """End every request and stream that would wait for ever. New ones must not wait."""
        self.draining = True
        for one in list(self.open_ended):
            one.end()

    def stop(self) -> None:
        """Stop loading, and wait for the threads of the pool."""
        self.loads.stop()
        self.pool.shutdown(wait=True)
