"""The times of a schedule's ticks. Pure.

A cron expression whose minute and hour are fixed has one tick per matching local time: if the clock skips that time, at
the moment of the change; if it repeats the time, at the first one. Any other expression ticks whenever the local clock
matches it: never at a time that is skipped, and twice at a time that is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count, islice, pairwise, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from topics.errors import invalid
from topics.model.schedule import MAX_CRON_CHARS, MAX_TIME_MS, Timing

_EPOCH = datetime(1970, 1, 1)
_DAY_S = 86_400
_NICKNAMES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip


def check(timing: Timing, since_ms: int, *, jitter_ms: int = 0) -> None:
    """Raise `invalid_request` unless the timing is valid and has a tick after `since_ms`."""
    if (timing.cron is None) == (timing.every_ms is None):
        raise invalid("set either cron or every_ms", field="cron")
    if timing.cron is None and timing.timezone != "UTC":
        raise invalid("timezone is for cron: every_ms counts milliseconds", field="timezone")
    found = list(islice(ticks(timing, since_ms, since_ms), 10))
    if not found:
        raise invalid("the schedule has no tick: check cron, starts_at and ends_at", field="ends_at")
    if any(after - before < jitter_ms for before, after in pairwise(found)):
        raise invalid("jitter_ms is longer than the time between two ticks", field="jitter_ms")


def ticks(timing: Timing, since_ms: int, after_ms: int) -> Iterator[int]:
    """Yield the ticks after `after_ms` in order. Raise `invalid_request` if the expression or the zone is invalid."""
    starts_at, ends_at = timing.starts_at, MAX_TIME_MS if timing.ends_at is None else timing.ends_at
    if starts_at is not None:
        after_ms = max(after_ms, starts_at - 1)
    if timing.every_ms is not None:
        anchor = since_ms if starts_at is None else starts_at
        steps = max((after_ms - anchor) // timing.every_ms + 1, 0)
        found: Iterator[int] = count(anchor + steps * timing.every_ms, timing.every_ms)
    else:
        found = _cron_ticks(timing.cron or "", zone_of(timing.timezone), after_ms)
    return takewhile(lambda at: at <= ends_at, found)


def last_ticks(timing: Timing, since_ms: int, after_ms: int, upto_ms: int, most: int) -> list[int]:
    """Return the last ticks after `after_ms` and up to `upto_ms`: `most` of them, and sometimes some more.

    The time that is looked at doubles until it has enough ticks, so this takes no longer after a year than after a day.
    """

    def due(begin_ms: int) -> Iterator[int]:
        return takewhile(lambda at: at <= upto_ms, ticks(timing, since_ms, begin_ms))

    if len(found := list(islice(due(after_ms), most + 1))) <= most:
        return found
    span_ms = 60_000
    # Bound: the time doubles until it has `most` of these ticks.
    while len(found := list(due(max(after_ms, upto_ms - span_ms)))) < most:
        span_ms *= 2
    return found


def zone_of(name: str) -> tzinfo:
    """Return the time zone. Raise `invalid_request` if the system does not know it. `UTC` needs no time zone data."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        hint = "use a name such as Europe/Berlin, or install the package tzdata if this system has no time zones"
        raise invalid(f"timezone: this server does not know {name[:64]!r}; {hint}", field="timezone") from None


def _cron_ticks(cron: str, zone: tzinfo, after_ms: int) -> Iterator[int]:
    text = _NICKNAMES.get(cron.lower(), cron)
    fields = text.split()
    if len(fields) != 5 or len(text) > MAX_CRON_CHARS:
        raise invalid(
            "cron must have five fields, or be one of @hourly, @daily, @weekly, @monthly, @yearly", field="cron"
        )
    after_s = after_ms // 1000
    try:
        CronSim(text, _EPOCH)
    except (CronSimError, ValueError) as error:
        raise invalid(f"cron: {error}", field="cron") from None
    if zone is UTC or not (fields[0].startswith("*") or fields[1].startswith("*")):
        # In a repeated hour it begins with the first one, which may be over.
        found = CronSim(text, datetime.fromtimestamp(after_s, zone))
        return (at_s * 1000 for at_s in map(_seconds, found) if at_s > after_s)
    return _by_offset(text, zone, after_s)


def _seconds(at: datetime) -> int:
    return int(at.timestamp())


def _by_offset(text: str, zone: tzinfo, after_s: int) -> Iterator[int]:
    """Yield the ticks at which the local clock matches, from one change of the clock to the next.

    `CronSim` adds whole hours to local times, and so misses ticks where a clock changes by half an hour.
    """
    begin_s = at_s = after_s
    # Bound: the caller takes a few ticks; each round ends at a change of the clock, of which a zone has few in a year.
    while True:
        offset = _offset_at(zone, at_s)
        for local in CronSim(text, _EPOCH + timedelta(seconds=begin_s) + offset):
            found_s = (local - _EPOCH - offset) // timedelta(seconds=1)
            if (change_s := _next_change(zone, at_s, found_s)) is not None:
                begin_s, at_s = change_s - 1, change_s
                break
            yield found_s * 1000
            at_s = found_s
        else:
            return


def _offset_at(zone: tzinfo, at_s: int) -> timedelta:
    return datetime.fromtimestamp(at_s, zone).utcoffset() or timedelta()


def _next_change(zone: tzinfo, low: int, high: int) -> int | None:
    """Return the first second after `low` and up to `high` that has another offset than `low`; None if none has."""
    offset = _offset_at(zone, low)
    while low < high:
        step = min(low + _DAY_S, high)
        if _offset_at(zone, step) != offset:
            while step - low > 1:
                middle = (low + step) // 2
                low, step = (middle, step) if _offset_at(zone, middle) == offset else (low, middle)
            return step
        low = step
    return None
