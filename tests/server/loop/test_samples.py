"""The ring of samples: fixed in size, and counters as growth."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tests.simulated.clock import SimClock
from topics.server.loop.runtime import Runtime
from topics.server.loop.samples import CAPACITY, INTERVAL_MS, Column, Samples


class Figures:
    """Two figures under control, and the clock."""

    def __init__(self) -> None:
        self.clock = SimClock(ms=1_000_000)
        self.count, self.level, self.engine = 100, 7, SimpleNamespace(is_replaying=False)
        runtime = SimpleNamespace(clock=self.clock, engine=self.engine, call_later=self._call_later)
        columns = [Column("count", lambda: self.count, counter=True), Column("level", lambda: self.level)]
        self.timers: list[Any] = []
        self.ring = Samples(cast(Runtime, runtime), columns)
        self.ring.begin()

    def _call_later(self, delay_ms: int, callback: Any) -> asyncio.TimerHandle:
        assert delay_ms == INTERVAL_MS
        self.timers.append(callback)
        return cast(asyncio.TimerHandle, SimpleNamespace(cancel=self.timers.clear))

    def tick(self) -> None:
        self.clock.advance(ms=INTERVAL_MS)
        self.timers.pop()()


def test_counter_column_has_growth_and_gauge_has_value() -> None:
    figures = Figures()
    figures.count, figures.level = 130, 9
    figures.tick()
    figures.count = 131
    figures.tick()
    assert figures.ring.names == ["ts", "count", "level"]
    assert list(figures.ring.rows()) == [[1_005_000, 30, 9], [1_010_000, 1, 9]]
    assert list(figures.ring.rows(1_005_000)) == [[1_010_000, 1, 9]]


def test_ring_keeps_the_last_hour() -> None:
    figures = Figures()
    for _ in range(CAPACITY + 10):
        figures.tick()
    rows = list(figures.ring.rows())
    assert len(rows) == CAPACITY
    assert rows[-1][0] - rows[0][0] == (CAPACITY - 1) * INTERVAL_MS
    assert CAPACITY * INTERVAL_MS == 3_600_000


def test_replay_after_a_start_is_not_counted() -> None:
    figures = Figures()
    figures.engine.is_replaying = True
    figures.count += 1_000_000
    figures.tick()
    figures.engine.is_replaying = False
    figures.count += 5
    figures.tick()
    assert [row[1] for row in figures.ring.rows()] == [0, 5]


def test_stopped_ring_takes_no_more_samples() -> None:
    figures = Figures()
    figures.ring.end()
    assert figures.timers == []
