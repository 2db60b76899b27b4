"""Windows of event time: which are open, which close, and from which seq on their records lie. Pure: no Spark.

A window closes when the watermark reaches its end: the latest event time seen, less the delay that was declared. It
closes once, with all of its records that had come by then. To compute it, records are read again from the first seq of
any that belongs to it, so no partial sums are kept, and any aggregate that SQL knows can be used.
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
    """A window that has records and is not closed; `low` is the first seq of any of them."""

    start_ms: int
    end_ms: int
    low: int


class Seen(Struct, frozen=True):
    """What a new range has for one window."""

    start_ms: int
    end_ms: int
    low: int
    records: int


class Turn(Struct, frozen=True, kw_only=True):
    """What a new range changes: how far the watermark goes, what closes, what stays open, what came too late."""

    watermark_ms: int
    closing: list[Open]
    open: list[Open]
    late: int


def duration_ms(text: str) -> int:
    """Milliseconds of `10 minutes`, `1h 30m`, `500 ms`. Raises `ValueError`. A month has no length of its own."""
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
        raise ValueError(f"{text!r} is no duration such as 10 minutes, 1 hour, 1 day")
    if total > LONGEST_MS:
        raise ValueError(f"{text!r} is longer than 1000 years")
    return total


def turn(
    before: Iterable[Open], watermark_ms: int, seen: Iterable[Seen], *, latest_ms: int | None, delay_ms: int
) -> Turn:
    """Takes a new range in. Late is what belongs to a window that was closed before the range was looked at."""
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
