"""Upkeep of the memory budget: gauges, expired idempotency keys, what waited for room, and memory that was freed.

The C library keeps much of what is freed, in pieces between others that are still in use. When clients who held a lot
are gone, it is asked to give that back to the system. That takes some 10 ms, and memory cannot be had meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from topics.engine.state import idempotency
from topics.server.limits.budget import IDEMPOTENCY, WRITES
from topics.server.limits.machine import find_trim

if TYPE_CHECKING:
    from topics.server.app import TopicsApp

PERIOD_MS = 250
RELIEF_MS = 20  # after the budget has room again: many answers are often delivered at the same time
# One look at expired keys takes about 3 ms at most.
TOPICS_A_LOOK = 1000
KEYS_A_LOOK = 4000
TRIM_BYTES = 16 << 20  # that clients have let go of, above which freed memory is given back
RECLAIM_PERIOD_NS = 50_000_000
TRIM_PERIOD_NS = 5_000_000_000
COPIES_OF_A_WRITE = 2  # its rendered records, and the frame of the log


class Upkeep:
    """A timer, and what the budget asks for."""

    def __init__(self, app: TopicsApp) -> None:
        self._app = app
        self._timer: asyncio.TimerHandle | None = None
        self._relief: asyncio.TimerHandle | None = None
        self._trim = find_trim()
        self._trimmed_ns = self._reclaimed_ns = 0
        budget, engine = app.budget, app.engine
        budget.count(WRITES, lambda: COPIES_OF_A_WRITE * engine.commits.pending_bytes)
        budget.count(IDEMPOTENCY, lambda: engine.state.totals.key_bytes)
        budget.reclaimers.append(self._reclaim)
        budget.listeners.append(self._changed)
        engine.admit_key = budget.check

    def begin(self) -> None:
        self._timer = self._app.call_later(PERIOD_MS, self._look)

    def end(self) -> None:
        for timer in (self._timer, self._relief):
            if timer is not None:
                timer.cancel()
        self._timer = self._relief = None

    def _look(self) -> None:
        self._forget_keys()
        self._app.budget.refresh()
        self._give_back()
        self.begin()

    def _give_back(self) -> None:
        budget, now_ns = self._app.budget, self._app.clock.monotonic_ns()
        let_go = budget.peak_bytes - budget.charged_bytes
        if self._trim is None or let_go < max(TRIM_BYTES, budget.peak_bytes // 2):
            return
        if now_ns - self._trimmed_ns >= TRIM_PERIOD_NS:
            self._trimmed_ns, budget.peak_bytes = now_ns, budget.charged_bytes
            self._app.loop.run_in_executor(self._app.pool, self._trim, 0)

    def _reclaim(self) -> None:
        """Forget keys before a request is refused, but not once for each of many."""
        now_ns = self._app.clock.monotonic_ns()
        if now_ns - self._reclaimed_ns >= RECLAIM_PERIOD_NS:
            self._reclaimed_ns = now_ns
            self._forget_keys()

    def _forget_keys(self) -> None:
        state = self._app.engine.state
        if state.keyed:
            idempotency.sweep(state, self._app.clock.now_ms(), topics=TOPICS_A_LOOK, keys=KEYS_A_LOOK)

    def _changed(self) -> None:
        if not self._app.budget.full and self._relief is None:
            self._relief = self._app.call_later(RELIEF_MS, self._relieve)

    def _relieve(self) -> None:
        """Offer jobs to workers that were not given any while the budget was full."""
        self._relief = None
        self._app.desks.poke()
