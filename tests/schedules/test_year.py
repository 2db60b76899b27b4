"""A year of schedules, with kills, stops and jumps of the clock: every tick appends exactly once.

Expressions with few ticks run through the year in every time zone. All others run around each change of the clock, and
in one more week: what they do on a day depends on nothing that is longer ago.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.schedules.driving import live_through, put, ticks
from tests.schedules.naive_cron import CASES, naive, zones_with_changes
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.engine.state.topics import SegmentLimits

# Those with fewer than `CAUGHT_UP` ticks in the longest time that a server is down.
CRONS = [cron for cron in CASES if cron != "*/20 * * * *"]
RARE = [cron for cron in CRONS if cron not in ("@hourly", "45 * * * *", "0 */2 * * *", "*/10 2 * * *")]
JANUARY, JULY = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 7, 1, tzinfo=UTC)
SEGMENTS = SegmentLimits(max_events=500, max_age_ms=100 * 86_400_000)


def check(zones: list[str], crons: list[str], low: datetime, days: int, seed: int) -> None:
    """Run a schedule per zone and expression through a period, and compare its ticks with brute force."""
    disk, clock = SimDisk(seed=seed), SimClock(int(low.timestamp() * 1000))
    server = SimServer.start(disk, clock=clock, wal_file_bytes=1 << 20, segments=SEGMENTS)
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
    for at, (zone, changes) in enumerate(list(zones_with_changes(2026).items())[part::8]):
        seed = 100 * part + at
        check([zone], RARE, JANUARY, 365, seed)
        for change in [*changes, JULY + timedelta(days=seed % 100)]:
            check([zone], CRONS, change.replace(hour=0, minute=0) - timedelta(days=3), 7, seed)
