"""What all work on the event loop shares: the engine, the clock, the loop, the thread pool, and loads from the disk.

Work raises `Cold` if it needs data that is only on the disk. A pool thread then fetches everything that the `Cold`
names in one trip, and the work runs again on the loop while that data is held in memory. The number of attempts has no
limit: data stays held until the work has ended, so every attempt gets further than the one before. At most `AT_ONCE`
pieces of work hold data at a time: see `topics.storage.segments.cold` for what one hold may take.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Protocol, TypeVar

from topics import logs
from topics.clock import Clock
from topics.config import Settings
from topics.engine.engine import Engine
from topics.errors import Code, TopicsError, storage_unavailable
from topics.server.limits.loop_holds import LoopHolds
from topics.storage.segments.cold import Cold, Hold

AT_ONCE = 8
IO_THREADS = 4

Work = Callable[[], None]  # may raise `Cold`
Failed = Callable[[BaseException], None]

log = logs.Log("server")
loads_log = logs.Log("loads")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Loading:
    """One piece of work that needs the disk. `waiting` is true while the disk is read, false while the work runs."""

    cold: Cold
    work: Work | None  # None once the work has ended or was cancelled
    failed: Failed | None
    hold: Hold = field(default_factory=Hold)
    waiting: bool = True

    def cancel(self) -> None:
        """Do not run the work again, and fetch nothing more for it."""
        # Both refer to the owner of this load. Dropping them breaks the reference cycle.
        self.work = self.failed = None
        self.waiting = False


NOT_LOADING = Loading(Cold([]), lambda: None, lambda failure: None)  # for work that has ended
NOT_LOADING.cancel()


class Loads:
    """Loads of one event loop. Used on its thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Executor) -> None:
        self.loop = loop
        self.pool = pool
        self._running: set[Loading] = set()
        self._waiting: deque[Loading] = deque()
        self._stopped = False

    @property
    def held_bytes(self) -> int:
        """Bytes that all work together holds in memory."""
        return sum(loading.hold.size_bytes for loading in self._running)

    def attempt(self, work: Work, failed: Failed) -> Loading:
        """Run `work` now, and as `load` does if it raises `Cold`. Return the load, or `NOT_LOADING` if work ended."""
        try:
            work()
        except Cold as cold:
            return self.load(cold, work, failed)
        return NOT_LOADING

    def load(self, cold: Cold, work: Work, failed: Failed) -> Loading:
        """Fetch everything that `cold` names on a pool thread, then run `work` on the loop while it is in memory.

        `work` may raise `Cold` again: that is fetched as well, and `work` runs once more, with everything fetched
        before still in memory as far as the bound on a hold allows. Call `failed` instead if the disk cannot be read.
        """
        loading = Loading(cold, work, failed)
        if len(self._running) < AT_ONCE:
            self._start(loading)
        else:
            self._waiting.append(loading)
        return loading

    def stop(self) -> None:
        self._stopped = True
        self._waiting.clear()

    def _start(self, loading: Loading) -> None:
        if self._stopped:
            return
        self._running.add(loading)
        trip = self.loop.run_in_executor(self.pool, partial(loading.hold.load, loading.cold))
        trip.add_done_callback(lambda done: self._loaded(loading, done))

    def _loaded(self, loading: Loading, done: asyncio.Future[None]) -> None:
        failure = asyncio.CancelledError() if done.cancelled() else done.exception()
        work, failed = loading.work, loading.failed
        if work is not None and failed is not None and not self._stopped:
            loading.waiting = False
            try:
                if failure is None:
                    work()
                else:
                    failed(failure)
            except Cold as again:
                if loading.work is not None:
                    loading.cold, loading.waiting = again, True
                    self._start(loading)
                    return
            except Exception as error:
                loads_log.failure("work_failed", error)
        loading.cancel()
        self._running.discard(loading)
        loading.hold.release()
        while self._waiting and len(self._running) < AT_ONCE:
            following = self._waiting.popleft()
            if following.work is not None:
                self._start(following)


def unreadable(failure: BaseException) -> TopicsError:
    """Log a failed read, and return the error for the client that asked for the records."""
    loads_log.failure("cannot_read", failure)
    if isinstance(failure, OSError):
        return storage_unavailable(failure)
    return TopicsError(Code.INTERNAL, "stored records cannot be read from the disk; the server's log says why")


class OpenEnded(Protocol):
    """A request or a stream that waits without a limit of its own, so that a drain must end it."""

    def end(self) -> None: ...  # answer with what is there, or close the stream


class Runtime(Loads):
    def __init__(
        self, settings: Settings, clock: Clock, loop: asyncio.AbstractEventLoop, engine: Engine, *, holds: LoopHolds
    ) -> None:
        super().__init__(loop, ThreadPoolExecutor(max_workers=IO_THREADS, thread_name_prefix="topics-io"))
        self.settings = settings
        self.clock = clock
        self.engine = engine
        self.holds = holds
        self.open_ended: set[OpenEnded] = set()
        self.draining = False
        self.slow_readers_total = 0
        # Answers to `diff` since the process started, and the records in them. Handlers add to them directly.
        self.reads = self.records_read = 0

    def note_slow_reader(self, stream: str) -> None:
        self.slow_readers_total += 1
        log.info("slow_reader", stream=stream, timeout_ms=self.settings.slow_consumer_timeout_ms)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(delay_ms / 1000, callback)

    def in_pool(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return self.loop.run_in_executor(self.pool, work)

    def begin_drain(self) -> None:
        """End every request and stream that would wait without limit. New ones must not wait."""
        self.draining = True
        for one in list(self.open_ended):
            one.end()

    def stop(self) -> None:
        super().stop()
        self.pool.shutdown(wait=True)


class Ticker:
    """Calls `take` at an interval, from the end of the first one on."""

    interval_ms: ClassVar[int]

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._engine = runtime, runtime.engine
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._timer = self._runtime.call_later(self.interval_ms, self._tick)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self) -> None: ...

    def _tick(self) -> None:
        self.take()
        self._timer = self._runtime.call_later(self.interval_ms, self._tick)
