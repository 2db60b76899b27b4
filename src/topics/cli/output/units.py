"""Durations, times, sizes and counts: parse what people type, and print what people read."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import UTC, datetime
from typing import Any

from topics.clock import SystemClock

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZE = re.compile(r"(\d+)(|k|K|M|G|T|KiB|MiB|GiB|TiB|B)")
_FACTORS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
PROGRESS_CHARS = 64  # the API takes 256 bytes, and a character has at most four
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


# --- parse; each raises ArgumentTypeError, which argparse prints


def parse_duration(text: str) -> int:
    """Return the milliseconds of `500ms`, `30s`, `1h30m` or `7d`. A number without a unit is refused, except 0."""
    if text == "0":
        return 0
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ArgumentTypeError(
            f"{text!r} is not a duration; use a number with a unit, such as 500ms, 30s, 1h30m or 7d"
        )
    return round(sum(float(number) * _UNIT_MS[unit] for number, unit in parts))


def parse_size(text: str) -> int:
    """Return the bytes of `1000`, `64KiB` or `10M`."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is not a size; use bytes, or a number with KiB, MiB or GiB")
    return int(found[1]) * _FACTORS[found[2][:1].upper()]


def parse_count(text: str) -> int:
    """Return a whole number that is 0 or more; `10k` and `2M` are allowed."""
    found = re.fullmatch(r"(\d+)([kM]?)", text)
    if found is None or not text.isascii():
        raise ArgumentTypeError(f"{text!r} is not a whole number, such as 100 or 10k")
    return int(found[1]) * {"": 1, "k": 1000, "M": 1_000_000}[found[2]]


def parse_positive(text: str) -> int:
    """Return a whole number that is 1 or more."""
    count = parse_count(text)
    if count < 1:
        raise ArgumentTypeError(f"{text!r} is too small; use 1 or more")
    return count


def parse_seqs(text: str) -> list[int]:
    """Return the seqs of `7`, or of a range such as `7-9`."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if found is None or not text.isascii():
        raise ArgumentTypeError(f"{text!r} is not a seq, such as 7, or a range, such as 7-9")
    first, last = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= last or last - first >= 100_000:
        raise ArgumentTypeError(f"{text!r} is not a range of seqs from 1 up, of at most 100,000")
    return list(range(first, last + 1))


def parse_progress(text: str) -> dict[str, Any]:
    """Return the share and the text of `0.4 page 4 of 10`."""
    found = re.fullmatch(r"(0|1|0?\.\d{1,9}|[01]\.0*)(?:\s+(.*))?", text.strip())
    if found is None:
        raise ArgumentTypeError(f"{text!r} does not begin with a number from 0 to 1, such as 0.4")
    words = (found[2] or "")[:PROGRESS_CHARS]
    return {"share": float(found[1])} | ({"text": words} if words else {})


def parse_time(text: str) -> int:
    """Return the milliseconds since 1970 of an ISO 8601 time or of that number itself."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not a time; use 2026-05-28T12:00, 2026-05-28T12:00:00Z, or milliseconds since 1970"
        ) from None
    return int(parsed.timestamp() * 1000)  # a time without a zone is local


# --- print


def size(count: float) -> str:
    """Return a number of bytes as text with a unit."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def count(number: int) -> str:
    return f"{number:,}"


def rate(per_second: float) -> str:
    """Return a rate in three digits or so: `0`, `0.5/s`, `120/s`, `31.4k/s`."""
    if per_second <= 0:
        return "0"
    if per_second < 10:
        return f"{per_second:.1f}/s"
    if per_second < 10_000:
        return f"{per_second:.0f}/s"
    return f"{per_second / 1000:.1f}k/s" if per_second < 1_000_000 else f"{per_second / 1e6:.1f}M/s"


def duration(ms: float) -> str:
    """Return a duration with the unit that fits: `250 µs`, `1.5 ms`, `12 s`, `3 min`, `4 h`, `2 d`."""
    if ms < 1:
        return f"{ms * 1000:.0f} µs"
    if ms < 1000:
        return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"
    for unit, factor, limit in (("s", 1000, 60), ("min", 60_000, 60), ("h", 3_600_000, 48)):
        if ms / factor < limit:
            return f"{ms / factor:.3g} {unit}"
    return f"{ms / 86_400_000:.3g} d"


def moment(ms: int | None) -> str:
    """Return a time of the local zone: the clock time if it is within a day of now, otherwise with its date."""
    if ms is None:
        return ""
    when = datetime.fromtimestamp(ms / 1000, tz=UTC).astimezone()
    if abs(SystemClock().now_ms() - ms) < _UNIT_MS["d"]:
        return f"{when:%H:%M:%S}.{ms % 1000:03}"
    return f"{when:%Y-%m-%d %H:%M:%S}"


def printable(text: str) -> str:
    """Return text without control characters, which could change the terminal."""
    return _CONTROL.sub("�", text)
