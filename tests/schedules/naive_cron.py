"""The ticks of cron expressions by brute force: every minute of a period in a time zone is looked at."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import numpy.typing as npt

MINUTE_S, DAY_MINUTES = 60, 1440
STEP = 360  # minutes: within this time, a clock changes once at most

Minutes = npt.NDArray[np.int64]  # since 1970, or of an offset
Matches = npt.NDArray[np.bool_]


class Local:
    """Local times by their parts, each an array."""

    def __init__(self, minutes: Minutes) -> None:
        days = minutes // DAY_MINUTES
        self.minute, self.hour = minutes % 60, minutes // 60 % 24
        self.weekday = (days + 3) % 7  # 1970-01-01 was a Thursday
        dates = days.astype("datetime64[D]")
        months = dates.astype("datetime64[M]")
        self.day = (dates - months).astype(np.int64) + 1
        self.month = months.astype(np.int64) % 12 + 1


# Expressions, whether their hour and minute are fixed, and the local times that they match.
CASES: dict[str, tuple[bool, Callable[[Local], Matches]]] = {
    "30 2 * * *": (True, lambda t: (t.hour == 2) & (t.minute == 30)),
    "0 0 * * *": (True, lambda t: (t.hour == 0) & (t.minute == 0)),
    "@monthly": (True, lambda t: (t.day == 1) & (t.hour == 0) & (t.minute == 0)),
    "5,15 1-3 * * SUN": (
        True, lambda t: (t.weekday == 6) & np.isin(t.hour, (1, 2, 3)) & np.isin(t.minute, (5, 15)),
    ),
    "15 1,2,3 * * MON-FRI": (True, lambda t: (t.weekday < 5) & np.isin(t.hour, (1, 2, 3)) & (t.minute == 15)),
    "@hourly": (False, lambda t: t.minute == 0),
    "45 * * * *": (False, lambda t: t.minute == 45),
    "*/20 * * * *": (False, lambda t: t.minute % 20 == 0),
    "*/10 2 * * *": (False, lambda t: (t.hour == 2) & (t.minute % 10 == 0)),
    "*/10 3 * OCT,APR sun": (
        False, lambda t: np.isin(t.month, (4, 10)) & (t.weekday == 6) & (t.hour == 3) & (t.minute % 10 == 0),
    ),
    "0 */2 * * *": (False, lambda t: (t.hour % 2 == 0) & (t.minute == 0)),
    "*/30 1 1-7 * *": (False, lambda t: (t.day <= 7) & (t.hour == 1) & (t.minute % 30 == 0)),
}  # fmt: skip


def naive(cron: str, zone: str, low: datetime, high: datetime) -> list[int]:
    """Return the ticks after `low` and up to `high`, which are whole minutes."""
    is_fixed, matches = CASES[cron]
    start, end = minute_of(low), minute_of(high)
    # A day before: a repeated time counts once, at the first one, which may be before `low`.
    first = start - DAY_MINUTES
    shown = wall_clock(zone, first, end)
    if is_fixed:  # the first minute that shows the local time, or a later one
        reached = np.maximum.accumulate(shown)
        local = np.arange(reached[0], reached[-1] + 1)
        found = np.unique(np.searchsorted(reached, local[matches(Local(local))])) + first
    else:
        found = np.flatnonzero(matches(Local(shown))) + first
    return [int(minute) * MINUTE_S * 1000 for minute in found[found > start]]


@lru_cache(maxsize=2)
def wall_clock(zone: str, first: int, last: int) -> Minutes:
    """Return what the local clock shows in each minute."""
    minutes = np.arange(first, last + 1)
    return minutes + offsets(zone, first, last)


def offsets(zone: str, first: int, last: int) -> Minutes:
    """Return how far the local clock is ahead in each minute. Where it changes, every minute is looked at."""
    steps = offsets_at(zone, range(first, last + STEP + 1, STEP))
    found = np.repeat(steps, STEP)
    for at in np.flatnonzero(np.diff(steps)):
        found[at * STEP : (at + 1) * STEP] = offsets_at(zone, range(first + at * STEP, first + (at + 1) * STEP))
    return found[: last - first + 1]


def offsets_at(zone: str, minutes: range) -> Minutes:
    local = ZoneInfo(zone)
    ahead = (datetime.fromtimestamp(minute * MINUTE_S, local).utcoffset() or timedelta() for minute in minutes)
    return np.array([offset // timedelta(minutes=1) for offset in ahead])


def minute_of(at: datetime) -> int:
    return int(at.timestamp()) // MINUTE_S


def zones_with_changes(year: int) -> dict[str, list[datetime]]:
    """Return one of each group of time zones whose clocks change at the same moments of a year, and these moments."""
    zones: dict[bytes, str] = {}
    changes: dict[str, list[datetime]] = {}
    first, last = minute_of(datetime(year, 1, 1, tzinfo=UTC)), minute_of(datetime(year + 1, 1, 1, tzinfo=UTC))
    for name in sorted(available_timezones()):
        if name.startswith(("posix/", "right/")):
            continue
        steps = offsets_at(name, range(first, last, STEP))
        if not np.diff(steps).any() or steps.tobytes() in zones:
            continue
        zones[steps.tobytes()] = name
        minutes = np.flatnonzero(np.diff(offsets(name, first, last))) + first + 1
        changes[name] = [datetime.fromtimestamp(int(minute) * MINUTE_S, UTC) for minute in minutes]
    return changes
