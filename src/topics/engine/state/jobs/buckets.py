"""Token buckets: how many jobs a queue, or a key of it, may deliver now. Memory only: a restart finds full buckets."""

from __future__ import annotations

from topics.model.topic import Rate

QUEUE = ""  # the bucket of the queue itself; the others have the name of their key
MS = 1_000_000


class Buckets:
    __slots__ = ("_full_ns", "_sweep_at")

    def __init__(self) -> None:
        self._full_ns: dict[str, int] = {}  # when each bucket is full again; a bucket that is full may be missing
        self._sweep_at = 1024

    def left(self, rate: Rate, name: str, now_ms: int) -> int:
        """Return how many tokens there are."""
        most = rate.burst * rate.cost_ns
        lacks = min(max(self._full_ns.get(name, 0) - now_ms * MS, 0), most)
        if lacks == most:  # not more than that, even if the clock was set back
            self._full_ns[name] = now_ms * MS + most
        return (most - lacks) // rate.cost_ns

    def take(self, rate: Rate, name: str, tokens: int, now_ms: int) -> None:
        """Take tokens, or with a negative number return them."""
        self._full_ns[name] = max(self._full_ns.get(name, 0), now_ms * MS) + tokens * rate.cost_ns
        if len(self._full_ns) > self._sweep_at:
            self._full_ns = {name: at_ns for name, at_ns in self._full_ns.items() if at_ns > now_ms * MS}
            self._sweep_at = 2 * len(self._full_ns) + 1024

    def next_ms(self, rate: Rate, name: str) -> int:
        """Return the first millisecond at which a bucket that is empty has a token."""
        return -(((rate.burst - 1) * rate.cost_ns - self._full_ns.get(name, 0)) // MS)
