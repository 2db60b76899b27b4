"""Reads from the disk for the event loop: the one place where work that met `Cold` is loaded for and run again.

    try:
        self._work()
    except Cold as cold:
        loads.load(cold, self._again)       # calls self._again(None), which may raise `Cold` in its turn

Everything that the work needs is fetched by a pool thread in one trip, and is held in memory while the work runs again
on the loop. There is no count of tries: what was fetched stays held until the work has ended, so every try gets further
than the one before, whatever the kernel does with the pages meanwhile.

At most `AT_ONCE` pieces of work hold anything at a time; the others wait in order of arrival. That bounds the memory:
see `topics.storage.segments.cold` for what a hold may take.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from topics import logs
from topics.errors import Code, TopicsError
from topics.storage.segments.cold import Cold, Hold

AT_ONCE = 8

Then = Callable[[BaseException | None], None]

log = logs.Log("loads")


class Loading:
    """One piece of work that waits for the disk."""

    __slots__ = ("cold", "hold", "then")

    def __init__(self, cold: Cold, then: Then) -> None:
        self.cold = cold
        self.then: Then | None = then
        self.hold = Hold()

    def cancel(self) -> None:
        """Nobody wants the work done any more: it is not run again, and nothing more is fetched for it."""
        self.then = None


class Loads:
    """Loads of one event loop. Used on its thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Executor) -> None:
        self._loop = loop
        self._pool = pool
        self._running: set[Loading] = set()
        self._waiting: deque[Loading] = deque()
        self._stopped = False

    @property
    def held_bytes(self) -> int:
        """What all work together holds in memory."""
        return sum(loading.hold.size_bytes for loading in self._running)

    def load(self, cold: Cold, then: Then) -> Loading:
        """Fetch all that `cold` asks for on a pool thread, then call `then` on the loop while it is in memory.

        `then` gets the failure, or None. It may raise `Cold` again: that is fetched as well, and `then` called once
        more, with everything from before still in memory as far as the bound on a hold allows.
        """
        loading = Loading(cold, then)
        if len(self._running) < AT_ONCE:
            self._start(loading)
        else:
            self._waiting.append(loading)
        return loading

    def stop(self) -> None:
        """The server ends: nothing is fetched and nothing run again from here on."""
        self._stopped = True
        self._waiting.clear()

    def _start(self, loading: Loading) -> None:
        if self._stopped:
            return
        self._running.add(loading)
        trip = self._loop.run_in_executor(self._pool, partial(loading.hold.load, loading.cold))
        trip.add_done_callback(lambda done: self._loaded(loading, done))

    def _loaded(self, loading: Loading, done: asyncio.Future[None]) -> None:
        failure = asyncio.CancelledError() if done.cancelled() else done.exception()
        then = loading.then
        if then is not None and not self._stopped:
            try:
                then(failure)
            except Cold as again:
                loading.cold = again
                self._start(loading)
                return
            except Exception as error:
                log.failure("work_failed", error)
        self._running.discard(loading)
        loading.hold.release()
        while self._waiting and len(self._running) < AT_ONCE:
            following = self._waiting.popleft()
            if following.then is not None:
                self._start(following)


def unreadable(failure: BaseException) -> TopicsError:
    """The error for a client whose records the disk did not give."""
    log.failure("cannot_read", failure)
    return TopicsError(Code.INTERNAL, "stored records cannot be read from the disk; the server's log says why")
