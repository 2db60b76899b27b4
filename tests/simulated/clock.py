"""A simulated clock, which advances only when a test advances it."""


class SimClock:
    """A `Clock` that the test controls. `advance` lets time pass; `set` moves the wall clock, as NTP can."""

    __slots__ = ("_monotonic_ns", "_now_ms")

    def __init__(self, ms: int = 1_000_000) -> None:
        self._now_ms = ms
        self._monotonic_ns = 0

    def now_ms(self) -> int:
        return max(self._now_ms, 0)

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, *, ms: int) -> None:
        """Advance both clocks."""
        assert ms >= 0, "time cannot go backwards; use `set` to move the wall clock back"
        self._now_ms += ms
        self._monotonic_ns += ms * 1_000_000

    def set(self, *, ms: int) -> None:
        """Move the wall clock, also backwards. The monotonic clock does not change."""
        self._now_ms = ms
