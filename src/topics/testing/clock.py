"""Simulated time: stands still until a test moves it."""


class SimClock:
    """A `Clock` under the test's hand. `advance` lets time pass; `set` steps the wall clock, as NTP may."""

    __slots__ = ("_monotonic_ns", "_now_ms")

    def __init__(self, ms: int = 1_000_000) -> None:
        self._now_ms = ms
        self._monotonic_ns = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, *, ms: int) -> None:
        """Both clocks move on together."""
        assert ms >= 0, "time does not pass backwards; a wall clock that does is `set`"
        self._now_ms += ms
        self._monotonic_ns += ms * 1_000_000

    def set(self, *, ms: int) -> None:
        """The wall clock jumps, backwards if need be; the monotonic clock does not notice."""
        self._now_ms = ms
