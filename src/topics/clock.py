"""The clock interface. The engine takes a `Clock` and never reads the system time, so tests control it."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall time in milliseconds since the Unix epoch. It can jump in either direction."""

    def monotonic_ns(self) -> int:
        """Return a time for measuring durations. It never decreases; its zero has no meaning."""


class SystemClock:
    """The clocks of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        return time.perf_counter_ns()
