"""Windows of event time: which are open, which close, and the first seq of their records. Pure: no Spark.

A window closes when the watermark reaches its end. The watermark is the latest event time seen minus the declared
delay. A window closes once, with all of its records up to then. To compute it, records are read again from its first
seq, so no partial sums are stored, and any SQL aggregate can be used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

LONGEST_MS = 365_250 * 86_400_000
NEVER = -(1 << 62)  # the watermark before the first record

_UNITS_MS = {
    "ms": 1, "millisecond": 1, "s": 1000, "sec": 1000, "second": 1000, "m": 60_000, "min": 60_000, "minute": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000, "w": 604_800_000, "week": 604_800_000,
}  # fmt: skip
_PART = re.compile(r"\s*(\d+)\s*([a-z]+)\s*")


class Open(Struct, frozen=True, array_like=True):
    """An open window with records; `low` is the first seq among them."""

    start_ms: int
    end_ms: int
    low: int


class Seen(Struct, frozen=True):
    """The records of a new range in one window."""

    start_ms: int
    end_ms: int
    low: int
    records: int


class Turn(Struct, frozen=True, kw_only=True):
    """The effect of a new range: the new watermark, closing and open windows, and the number of late records."""

    watermark_ms: int
    closing: list[Open]
    open: list[Open]
    late: int


def duration_ms(text: str) -> int:
    """Return the milliseconds of `10 minutes`, `1h 30m` or `500 ms`. Raise `ValueError` for other texts.

    Months are not a unit, because their length varies.
    """
    at, total = 0, 0
    lowered = text.strip().lower()
    while at < len(lowered):
        part = _PART.match(lowered, at)
        if part is None:
            break
        unit = part[2] if part[2] in _UNITS_MS else part[2].removesuffix("s")
        if unit not in _UNITS_MS:
            break
        total += int(part[1]) * _UNITS_MS[unit]
        at = part.end()
    if at < len(lowered) or not lowered:
        raise ValueError(f"{text!r} is not a duration such as 10 minutes, 1 hour, 1 day")
    if total > LONGEST_MS:
        raise ValueError(f"{text!r} is longer than 1000 years")
    return total


def turn(
    before: Iterable[Open], watermark_ms: int, seen: Iterable[Seen], *, latest_ms: int | None, delay_ms: int
) -> Turn:
    """Add a new range to the windows. A record is late if its window closed before this range."""
    windows = {one.start_ms: one for one in before}
    late = 0
    for new in seen:
        if new.end_ms <= watermark_ms:
            late += new.records
            continue
        known = windows.get(new.start_ms)
        low = new.low if known is None else min(known.low, new.low)
        windows[new.start_ms] = Open(new.start_ms, new.end_ms, low)
    mark = watermark_ms if latest_ms is None else max(watermark_ms, latest_ms - delay_ms)
    ordered = [windows[start] for start in sorted(windows)]
    closing = [one for one in ordered if one.end_ms <= mark]
    return Turn(watermark_ms=mark, closing=closing, open=[one for one in ordered if one.end_ms > mark], late=late)
