"""The declaration of a rollup, its windows of event time, and its position in a table. Pure: no Spark.

A window closes once, when the watermark reaches its end: the latest event time seen minus the declared delay. To
compute it, records are read again from its first seq, so no partial sums are stored, and any SQL aggregate can be used.

The position of a rollup in a table consists of facts, which are numbers:

    declaration               the digest of the declaration
    epoch, done, generation   how far the source topic is processed
    watermark                 ms
    open/<slot>/start         an open window: ms
    open/<slot>/first         first seq of its records; 0: the slot is free

A fact can be changed but never removed, so the slot of a closed window is used again. There are as many slots as
windows were ever open at the same time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from topics.errors import TopicsError
from topics.model.names import check_topic
from topics.spark.sql.text import names_in

LONGEST_MS = 365_250 * 86_400_000
NEVER = -(1 << 62)  # the watermark before the first record

_UNITS_MS = {  # months are not a unit, because their length varies
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
    """Return the milliseconds of `10 minutes`, `1h 30m` or `500 ms`. Raise `ValueError` for other texts."""
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


# --- the declaration

COUNT = ("count(*) AS count",)
DIGEST_DIGITS = 15  # the digest is also stored as a signed number of 64 bits


class Declaration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The declaration of one rollup."""

    topic: str
    window: str
    into: str | None = None
    table: str | None = None
    slide: str | None = None
    time: str = "ts"
    watermark: str = "0 seconds"
    where: str | None = None
    by: tuple[str, ...] = ()
    select: tuple[str, ...] = COUNT
    sql: str | None = None
    tag: str | None = None  # SQL over the result: the tag of the records written

    def __post_init__(self) -> None:
        if (self.into is None) == (self.table is None):
            raise ValueError("choose one output: a topic (into) or a Delta table (table)")
        if self.sql is not None and (self.by or self.where or self.select != COUNT):
            raise ValueError("sql replaces by, select and where: remove them")
        if self.sql is not None and not {"window", "records"} <= names_in(self.sql):
            raise ValueError("sql: must be a query FROM records with window among its columns")
        if self.tag is not None and self.into is None:
            raise ValueError("tag: only records of a topic have a tag; a table has columns")
        if self.window_ms < 1 or not 1 <= self.slide_ms <= self.window_ms:
            raise ValueError("window: at least 1 ms; slide: at least 1 ms and at most the window")
        try:
            for name in filter(None, (self.topic, self.into)):
                check_topic(name)
        except TopicsError as error:
            raise ValueError(error.message) from None
        if self.into == self.topic:
            raise ValueError("into: a rollup cannot be written to its own source topic")
        duration_ms(self.watermark)

    @property
    def window_ms(self) -> int:
        return duration_ms(self.window)

    @property
    def slide_ms(self) -> int:
        return self.window_ms if self.slide is None else duration_ms(self.slide)

    @property
    def delay_ms(self) -> int:
        return duration_ms(self.watermark)

    @property
    def statement(self) -> str:
        """The query over `records` that returns one row per window and group."""
        if self.sql is not None:
            return self.sql
        where = "" if self.where is None else f" WHERE {self.where}"
        return f"SELECT {', '.join(['window', *self.by, *self.select])} FROM records{where} GROUP BY ALL"

    @property
    def digest(self) -> str:
        """A hash of everything that the result of a window depends on."""
        parts = (self.topic, self.window_ms, self.slide_ms, self.time, self.delay_ms, self.statement, self.tag)
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:DIGEST_DIGITS]


# --- the position in a table


def open_windows(position: Mapping[str, int], *, window_ms: int) -> dict[int, Open]:
    found = {}
    for name, first in position.items():
        kind, _, rest = name.partition("/")
        slot, _, what = rest.partition("/")
        if kind == "open" and what == "first" and first:
            start_ms = position[f"open/{slot}/start"]
            found[int(slot)] = Open(start_ms, start_ms + window_ms, first)
    return found


def place_windows(known: Mapping[int, Open], windows: Iterable[Open]) -> tuple[dict[int, Open], dict[str, int]]:
    """Return the windows by slot, and the numbers of the slots that change. A window keeps its slot."""
    slot_of = {one.start_ms: slot for slot, one in known.items()}
    wanted = {one.start_ms: one for one in windows}
    placed = {slot_of[start]: one for start, one in wanted.items() if start in slot_of}
    new = [one for start, one in wanted.items() if start not in slot_of]
    free = (slot for slot in range(len(known) + len(new) + max(known, default=0) + 1) if slot not in placed)
    placed.update(zip(free, new, strict=False))
    changed: dict[str, int] = {}
    for slot, one in placed.items():
        if known.get(slot) != one:
            changed |= {f"open/{slot}/start": one.start_ms, f"open/{slot}/first": one.low}
    changed |= {f"open/{slot}/first": 0 for slot in known if slot not in placed}
    return placed, changed
