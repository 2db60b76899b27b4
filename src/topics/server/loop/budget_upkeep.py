"""Upkeep: gauges of the memory budget, expired idempotency keys and consumers, waiters, and freed memory.

The C library keeps much of the memory that is freed. After clients have released a lot, `malloc_trim` returns it to the
system. That takes about 10 ms, and blocks allocations meanwhile. It happens also if the process has grown by a quarter,
every five minutes at most: deleted topics and old columns leave holes, which clients have not charged.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from topics import logs
from topics.engine.state import idempotency
from topics.server.limits.budget import IDEMPOTENCY, REASONS, WRITES, MemoryBudget
from topics.server.limits.loop_holds import Cause
from topics.server.limits.os_limits import find_trim, resident_bytes
from topics.server.loop.runtime import NOT_LOADING, Runtime, Ticker

log = logs.Log("upkeep")

PERIOD_MS = 250
RELIEF_MS = 20  # after the budget has room again: many answers are often delivered at the same time
# One sweep over expired keys takes about 3 ms at most.
TOPICS_PER_SWEEP = 1000
KEYS_PER_SWEEP = 4000
TRIM_BYTES = 16 << 20  # released by clients, above which freed memory is returned to the system
RECLAIM_PERIOD_NS = 50_000_000
TRIM_PERIOD_NS = 5_000_000_000
LOOK_PERIOD_NS = 300_000_000_000  # between two looks at the memory of the process
COPIES_OF_A_WRITE = 2  # its rendered records, and the frame of the log


class Upkeep(Ticker):
    interval_ms = PERIOD_MS

    def __init__(self, runtime: Runtime, budget: MemoryBudget, *, writes: bool, on_relief: Callable[[], None]) -> None:
        """`writes` is False on a standby, whose state changes only as the log of the writer says."""
        super().__init__(runtime)
        self._writes = writes
        self._moving = NOT_LOADING
        self._budget = budget
        self._on_relief = on_relief
        self._relief: asyncio.TimerHandle | None = None
        self._trim = find_trim()
        self._trimmed_ns = self._reclaimed_ns = self._looked_ns = 0
        self._least_resident = 0  # the lowest resident memory since the last trim
        engine = runtime.engine
        budget.count(WRITES, lambda: COPIES_OF_A_WRITE * engine.commits.pending_bytes)
        budget.count(IDEMPOTENCY, lambda: engine.state.totals.key_bytes)
        budget.count(REASONS, lambda: engine.state.totals.reasons.bytes)
        budget.reclaimers.append(self._reclaim)
        budget.listeners.append(self._changed)
        engine.staging.admit_key = budget.check

    def end(self) -> None:
        super().end()
        if self._relief is not None:
            self._relief.cancel()
            self._relief = None
        self._budget.listeners.remove(self._changed)

    def take(self) -> None:
        tick_ns = self._runtime.clock.monotonic_ns
        began_ns = tick_ns()
        for reclaim in self._budget.reclaimers:
            reclaim()
        if self._writes and self._runtime.engine.state.expiring:
            self._runtime.engine.consumers.sweep(topics=TOPICS_PER_SWEEP // 4)
        if self._writes and not self._moving.waiting:
            move = partial(self._runtime.engine.queues.move_exhausted, TOPICS_PER_SWEEP)
            self._moving = self._runtime.attempt(move, partial(log.failure, "cannot_read"))
        self._budget.refresh()
        # Return freed memory to the system if clients have released at least half of what they held.
        budget = self._budget
        released_bytes = budget.peak_bytes - budget.charged_bytes
        if began_ns - self._looked_ns >= LOOK_PERIOD_NS:
            self._looked_ns = began_ns
            self._trim_grown()
        if self._trim is not None and released_bytes >= max(TRIM_BYTES, budget.peak_bytes // 2):
            if began_ns - self._trimmed_ns >= TRIM_PERIOD_NS:
                self._trimmed_ns, budget.peak_bytes = began_ns, budget.charged_bytes
                self._runtime.in_pool(partial(self._trim, 0))
        self._runtime.holds.note(Cause.UPKEEP, tick_ns() - began_ns)

    def _trim_grown(self) -> None:
        """Return freed memory if the process has grown: deleted topics and old columns leave holes in the heap."""
        resident = resident_bytes()
        self._least_resident = min(self._least_resident or resident, resident)
        if self._trim is not None and resident >= self._least_resident + max(TRIM_BYTES, self._least_resident // 4):
            self._least_resident = 0  # the next look begins with what is left
            self._runtime.in_pool(partial(self._trim, 0))

    def _reclaim(self) -> None:
        """Remove expired keys: in each turn, and before a request is refused, but not once per request of a burst."""
        now_ns = self._runtime.clock.monotonic_ns()
        state = self._runtime.engine.state
        if state.keyed and now_ns - self._reclaimed_ns >= RECLAIM_PERIOD_NS:
            self._reclaimed_ns = now_ns
            now_ms = self._runtime.engine.clock.now_ms()
            idempotency.sweep(state, now_ms, topics=TOPICS_PER_SWEEP, keys=KEYS_PER_SWEEP)

    def _changed(self) -> None:
        def relieve() -> None:
            self._relief = None
            self._on_relief()

        if not self._budget.full and self._relief is None:
            self._relief = self._runtime.call_later(RELIEF_MS, relieve)
