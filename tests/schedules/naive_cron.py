"""The ticks of cron expressions by brute force: every minute of a period in a time zone is looked at."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

MINUTE_S = 60

# Expressions, whether their hour and minute are fixed, and the local times that they match.
CASES: dict[str, tuple[bool, Callable[[datetime], bool]]] = {
    "30 2 * * *": (True, lambda t: (t.hour, t.minute) == (2, 30)),
    "0 0 * * *": (True, lambda t: (t.hour, t.minute) == (0, 0)),
    "@monthly": (True, lambda t: (t.day, t.hour, t.minute) == (1, 0, 0)),
    "5,15 1-3 * * SUN": (True, lambda t: t.weekday() == 6 and t.hour in (1, 2, 3) and t.minute in (5, 15)),
    "15 1,2,3 * * MON-FRI": (True, lambda t: t.weekday() < 5 and t.hour in (1, 2, 3) and t.minute == 15),
    "@hourly": (False, lambda t: t.minute == 0),
    "45 * * * *": (False, lambda t: t.minute == 45),
    "*/20 * * * *": (False, lambda t: t.minute % 20 == 0),
    "*/10 2 * * *": (False, lambda t: t.hour == 2 and t.minute % 10 == 0),
    "*/10 3 * OCT,APR sun": (False, lambda t: t.month in (4, 10) and (t.weekday(), t.hour, t.minute % 10) == (6, 3, 0)),
    "0 */2 * * *": (False, lambda t: t.hour % 2 == 0 and t.minute == 0),
    "*/30 1 1-7 * *": (False, lambda t: t.day <= 7 and t.hour == 1 and t.minute % 30 == 0),
}  # fmt: skip


def naive(cron: str, zone: str, low: datetime, high: datetime) -> list[int]:
    """Return the ticks after `low` and up to `high`, which are whole minutes."""
    is_fixed, matches = CASES[cron]
    start, end = int(low.timestamp()) // MINUTE_S, int(high.timestamp()) // MINUTE_S
    # A day before: a repeated time counts once, at the first one, which may be before `low`.
    walls = wall_clock(zone, start - 1440, end)
    if not is_fixed:
        return [(start - 1440 + at) * MINUTE_S * 1000 for at, wall in enumerate(walls) if at > 1440 and matches(wall)]
    found, shown, reached = set(), set[datetime](), walls[0] - timedelta(minutes=1)
    for at, wall in enumerate(walls):
        while reached < wall:  # every local time up to this one, also those that the clock skips
            reached += timedelta(minutes=1)
            if reached not in shown and matches(reached):
                found.add(start - 1440 + at)
        shown.add(wall)
    return sorted(minute * MINUTE_S * 1000 for minute in found if minute > start)


@lru_cache(maxsize=1)
def wall_clock(zone: str, first: int, last: int) -> list[datetime]:
    """Return what the local clock shows in each minute."""
    local = ZoneInfo(zone)
    return [
        datetime.fromtimestamp(minute * MINUTE_S, local).replace(tzinfo=None, fold=0)
        for minute in range(first, last + 1)
    ]


def zones_with_changes(year: int) -> dict[str, list[str]]:
    """Return all time zones whose clocks change in a year: one of each group with the same changes, and the group."""
    groups: dict[tuple[timedelta | None, ...], list[str]] = {}
    hours = [datetime(year, 1, 1, tzinfo=UTC) + timedelta(hours=at) for at in range(0, 366 * 24, 6)]
    for name in sorted(available_timezones()):
        if name.startswith(("posix/", "right/")):
            continue
        offsets = tuple(at.astimezone(ZoneInfo(name)).utcoffset() for at in hours)
        if len(set(offsets)) > 1:
            groups.setdefault(offsets, []).append(name)
    return {names[0]: names for names in groups.values()}
