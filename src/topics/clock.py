"""The clock interface. The engine takes a `Clock` and never reads the system time, so tests control it."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall time in milliseconds since the Unix epoch. It can jump in either direction, to 0 at least."""

    def monotonic_ns(self) -> int:
        """Return a time for measuring durations. It never decreases; its zero has no meaning."""


class SystemClock:
    """The clocks of the machine."""

    def now_ms(self) -> int:
        now_ms = time.time_ns() // 1_000_000
        return now_ms if now_ms > 0 else 0  # stored times are unsigned: a clock before 1970 counts as 1970

    def monotonic_ns(self) -> int:
        return time.perf_counter_ns()
