"""Routers and schedules on the event loop: when forwarding gets its turns, and the timer of the next tick.

`engine/delays.py` says how long forwarding rests.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from topics import logs
from topics.engine.delays import FEW_STEPS, FEW_WRITES, REST, SLICE_NS
from topics.server.limits.loop_holds import Cause
from topics.server.loop.runtime import NOT_LOADING, Runtime, unreadable
from topics.storage.segments.cold import Cold

log = logs.Log("routers")

RETRY_MS = 1000  # after an unexpected failure
NEAR_MS = 1000
# The timers of the loop stop while the machine sleeps, so none is longer than this.
MAX_TIMER_MS = 60_000


class Forwarding:
    def __init__(self, runtime: Runtime, requests_total: Callable[[], int]) -> None:
        self._runtime = runtime
        self._requests_total = requests_total
        self._routers = runtime.engine.routers
        self._routers.due.wake = self._wake
        self._timer: asyncio.Handle | None = None
        self._resting_until_ns = 0
        self._requests = 0
        self._loading = NOT_LOADING
        self._stopped = False
        # No turn runs or is about to run. A turn that is scheduled for later can be moved forward.
        self._patient = True

    def stop(self) -> None:
        """Stop forwarding. Records that are not forwarded yet are forwarded after the next start."""
        self._stopped = True
        self._loading.cancel()
        self._runtime.engine.commits.copy_now = None
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        if self._patient:
            self._schedule(0)

    def _schedule(self, wanted_ms: float) -> None:
        if self._stopped or self._loading.waiting:
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = self._runtime.loop
        rest_ms = (self._resting_until_ns - self._runtime.clock.monotonic_ns()) / 1e6
        delay_ms = max(wanted_ms, rest_ms)
        self._timer = loop.call_later(delay_ms / 1000, self._turn) if delay_ms > 0 else loop.call_soon(self._turn)
        self._patient = wanted_ms > 0
        self._runtime.engine.commits.copy_now = None if delay_ms > 0 else self._copy_now

    def _copy_now(self) -> None:
        """Make the copies of this turn if they are few. The loop reads no request before this ends."""
        commits = self._runtime.engine.commits
        commits.copy_now = None
        if commits.batch_writes <= FEW_WRITES and self._routers.due.are_few:
            if self._timer is not None:
                self._timer.cancel()
            self._turn(FEW_STEPS)

    def _turn(self, most: int = 0) -> None:
        self._patient = False
        self._runtime.engine.commits.copy_now = None
        self._loading = self._runtime.attempt(partial(self._forward, most), self._cannot_read)

    def _cannot_read(self, failure: BaseException) -> None:
        error = unreadable(failure)
        self._routers.forwarder.skip_cold(f"{error.code.wire}: {error.message}")
        self._timer = None
        self._schedule(RETRY_MS)

    def _forward(self, most: int) -> None:
        """Forward for a slice, or `most` steps, and schedule the next. Raise `Cold` if records must be loaded first."""
        clock, began = self._runtime.clock, self._runtime.clock.monotonic_ns()
        try:
            delay_ms = self._routers.forwarder.run(0 if most else SLICE_NS, most=most)
        except Cold:
            raise
        except Exception as error:
            log.failure("forwarding_failed", error)
            delay_ms = RETRY_MS
        ended = clock.monotonic_ns()
        self._runtime.holds.note(Cause.FORWARDING, ended - began)
        self._resting_until_ns = ended + REST * (ended - began) if self._should_rest(delay_ms) else 0
        self._timer = None
        self._patient = True
        if delay_ms is not None:
            self._schedule(delay_ms)

    def _should_rest(self, delay_ms: int | None) -> bool:
        """Return whether requests come first for a while, after a slice that wants its next turn after `delay_ms`."""
        engine = self._runtime.engine
        few = self._routers.forwarder.steps <= FEW_STEPS and engine.commits.batch_writes <= FEW_WRITES
        if delay_ms != 0 and few:
            return False
        before, self._requests = self._requests, self._requests_total()
        return self._requests != before  # requests arrived since the last such slice


class Scheduling:
    """One timer for the next tick of all schedules."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._schedules = runtime.engine.schedules
        self._schedules.wake, self._schedules.load = self._set_timer, runtime.load
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def stop(self) -> None:
        """Run no more ticks. Those that are due run after the next start, as `catch_up` says."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = self._schedules.delay_ms
        if delay_ms is None or self._stopped:
            return
        # Half of the time: after a jump of the wall clock, the clock of the server runs at up to twice its speed.
        delay_ms = delay_ms if delay_ms <= NEAR_MS else min(delay_ms // 2, MAX_TIMER_MS)
        self._timer = self._runtime.call_later(delay_ms, self._turn)

    def _turn(self) -> None:
        tick_ns = self._runtime.clock.monotonic_ns
        began_ns = tick_ns()
        try:
            self._schedules.run()
        finally:
            self._runtime.holds.note(Cause.UPKEEP, tick_ns() - began_ns)
            self._set_timer()
