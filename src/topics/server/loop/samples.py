"""Samples of a server's figures: a ring of fixed size with the last hour, for the console.

A sample is taken every `INTERVAL_MS`, whether or not a client looks. It costs one call per column. The ring holds
`CAPACITY` samples of 8 bytes per column: about 120 KiB with 21 columns.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from topics.server.loop.runtime import Runtime

INTERVAL_MS = 5_000
CAPACITY = 720


class Column(Struct, frozen=True):
    """One figure. The column of a counter has its growth since the sample before."""

    name: str
    read: Callable[[], float]
    counter: bool = False


class Samples:
    """The ring and its timer. Counters count the replay of the log until `is_replayed` returns True."""

    def __init__(self, runtime: Runtime, columns: list[Column], *, is_replayed: Callable[[], bool]) -> None:
        self._runtime = runtime
        self._is_replayed = is_replayed
        self._columns = columns
        self._rings = [array("d", bytes(8 * CAPACITY)) for _ in range(len(columns) + 1)]  # the first has the times
        self._before = [0.0] * len(columns)
        self._taken = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def names(self) -> list[str]:
        """Return the names of the columns of `rows`."""
        return ["ts", *(column.name for column in self._columns)]

    def begin(self) -> None:
        """Start the timer. The first sample is the first interval from now."""
        self._rebase()
        self._schedule()

    def end(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self) -> None:
        """Add a sample. The oldest one is overwritten if the ring is full."""
        if not self._is_replayed():
            self._rebase()
        at = self._taken % CAPACITY
        self._rings[0][at] = self._runtime.clock.now_ms()
        for number, column in enumerate(self._columns):
            value = float(column.read())
            self._rings[number + 1][at] = value - self._before[number] if column.counter else value
            self._before[number] = value
        self._taken += 1

    def rows(self, after_ms: int = 0) -> Iterator[list[float]]:
        """Yield the samples after a time, oldest first."""
        for number in range(max(self._taken - CAPACITY, 0), self._taken):
            at = number % CAPACITY
            if self._rings[0][at] > after_ms:
                yield [int(value) if (value := ring[at]).is_integer() else value for ring in self._rings]

    def _rebase(self) -> None:
        """Count from now on."""
        self._before = [float(column.read()) for column in self._columns]

    def _schedule(self) -> None:
        self._timer = self._runtime.call_later(INTERVAL_MS, self._tick)

    def _tick(self) -> None:
        self.take()
        self._schedule()
