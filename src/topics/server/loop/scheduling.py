"""Schedules on the event loop: one timer for the next tick of all of them."""

import asyncio

from topics.server.limits.loop_holds import Cause
from topics.server.loop.runtime import Runtime

NEAR_MS = 1000
# The timers of the loop stop while the machine sleeps, so none is longer than this.
MAX_TIMER_MS = 60_000


class Scheduling:
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
