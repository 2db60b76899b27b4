"""The clock interface. The engine takes a `Clock` and never reads the system time, so tests control it."""

import time
from collections.abc import Callable
from time import clock_gettime_ns, monotonic_ns, perf_counter_ns
from typing import Protocol

CHECK_NS = 1_000_000_000  # how often the wall clock is looked at
NEAR_NS = 1_000_000  # a smaller difference is none
JUMP_NS = 1_000_000_000  # a larger difference is a jump
SET_NS = 1_577_836_800_000_000_000  # the beginning of 2020: a clock that shows an earlier time was never set

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine sleeps


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall time in milliseconds since the Unix epoch. It can jump in either direction, to 0 at least."""

    def monotonic_ns(self) -> int:
        """Return a time for measuring durations. It never decreases; its zero has no meaning."""


class SystemClock:
    """The clocks of the machine. `now_ms` follows the wall clock without its jumps, and never goes back.

    If the wall clock is set, `now_ms` runs at twice or at half its speed until both agree. So a jump ends no TTL, lease
    or window at once, and each lasts between half and twice as long. A wall clock before 2020 was never set:
    `now_ms` takes its first correction over at once. So does every start.
    """

    def __init__(self, on_jump: Callable[[int], object] = lambda by_ms: None) -> None:
        self._on_jump = on_jump
        self._jumped = False
        self._ahead_ns = 0  # how far the wall clock was ahead when `_follow` looked at it
        self._elapsed_ns, self._now_ns = clock_gettime_ns(_ELAPSED), _wall_ns()  # at that time
        self._look_again()

    def now_ms(self) -> int:
        tick_ns = monotonic_ns()
        if tick_ns >= self._follow_ns:
            return self._follow() // 1_000_000
        return (tick_ns + self._offset_ns) // 1_000_000

    monotonic_ns = staticmethod(perf_counter_ns)  # no method: one call less on the hottest paths

    def _follow(self) -> int:
        """Return the time: it runs at twice or half its speed while the wall clock is ahead or behind."""
        elapsed_ns = clock_gettime_ns(_ELAPSED)
        passed_ns = elapsed_ns - self._elapsed_ns
        now_ns = self._now_ns + passed_ns + max(min(self._ahead_ns, passed_ns), -passed_ns // 2)
        ahead_ns = _wall_ns() - now_ns
        jumped = abs(ahead_ns) > JUMP_NS
        if jumped and not self._jumped:
            self._on_jump(ahead_ns // 1_000_000)
        if 0 < ahead_ns < NEAR_NS or now_ns < SET_NS <= now_ns + ahead_ns:
            now_ns, ahead_ns = now_ns + ahead_ns, 0
        self._jumped, self._ahead_ns = jumped, ahead_ns if abs(ahead_ns) >= NEAR_NS else 0
        self._elapsed_ns, self._now_ns = elapsed_ns, now_ns
        self._look_again()
        return now_ns

    def _look_again(self) -> None:
        """Let `now_ms` run on its own until the wall clock is looked at again: at once while the clocks differ."""
        tick_ns = monotonic_ns()  # read last: while the machine sleeps it stops, and `_follow` makes up for that
        self._offset_ns = self._now_ns - tick_ns
        self._follow_ns = tick_ns if self._ahead_ns else tick_ns + CHECK_NS


def _wall_ns() -> int:
    """Return the wall time. Stored times are unsigned: a clock before 1970 counts as 1970."""
    return max(time.time_ns(), 0)
