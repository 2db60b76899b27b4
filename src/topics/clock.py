"""Time as a seam: the engine never reads the real clock, so tests own it."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time in milliseconds since the Unix epoch; may step in either direction."""

    def monotonic_ns(self) -> int:
        """For durations only: never goes backwards, its zero means nothing."""


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        return time.perf_counter_ns()
