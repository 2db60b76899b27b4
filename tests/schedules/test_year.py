"""A year of schedules, with kills, stops and jumps of the clock: every tick appends exactly once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.schedules.driving import live_through, put, ticks
from tests.schedules.naive_cron import CASES, naive, zones_with_changes
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer

# Those with fewer than `CAUGHT_UP` ticks in the longest time that a server is down.
CRONS = [cron for cron in CASES if cron != "*/20 * * * *"]


def check(zones: list[str], crons: list[str], low: datetime, days: int, seed: int) -> None:
    """Run a schedule per zone and expression through a period, and compare its ticks with brute force."""
    server = SimServer.start(SimDisk(seed=seed), clock=SimClock(int(low.timestamp() * 1000)), wal_file_bytes=1 << 20)
    names = {f"{at}-{number}": (zone, cron) for at, zone in enumerate(zones) for number, cron in enumerate(crons)}
    for at, (name, (zone, cron)) in enumerate(names.items()):
        server.put(name, durability=("fsync", "disk")[at % 2], idempotency_window_ms=0)
        put(server, name, topic=name, cron=cron, timezone=zone, catch_up="all")
    server, latest = live_through(server, int((low + timedelta(days=days)).timestamp() * 1000), seed)
    high = datetime.fromtimestamp(latest // 60_000 * 60, UTC)
    for name, (zone, cron) in names.items():
        assert ticks(server, name) == naive(cron, zone, low, high), (zone, cron)


@pytest.mark.parametrize(("zone", "low"), [("Europe/Berlin", (10, 20)), ("Australia/Lord_Howe", (4, 1))])
def test_days_around_a_change_of_the_clock(zone: str, low: tuple[int, int]) -> None:
    check([zone], ["30 2 * * *", "*/10 2 * * *", "@hourly"], datetime(2026, *low, tzinfo=UTC), 10, seed=low[1])


@pytest.mark.torture
@pytest.mark.parametrize("part", range(8))
def test_year_in_every_time_zone(part: int) -> None:
    for at, zone in enumerate(list(zones_with_changes(2026))[part::8]):
        check([zone], CRONS, datetime(2026, 1, 1, tzinfo=UTC), 365, seed=100 * part + at)
