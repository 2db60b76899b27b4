"""The declaration of a rollup, its partial aggregates, and its windows of event time. Pure: no Spark.

A window closes once, when the watermark reaches its end: the latest event time seen minus the declared delay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
import xxhash
from msgspec import Struct

from topics.errors import TopicsError
from topics.model.names import check_topic
from topics.spark.sql.text import without_strings

LONGEST_MS = 365_250 * 86_400_000
NEVER = -(1 << 62)  # the watermark before the first record

_UNITS_MS = {  # months are not a unit, because their length varies
    "ms": 1, "millisecond": 1, "s": 1000, "sec": 1000, "second": 1000, "m": 60_000, "min": 60_000, "minute": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000, "w": 604_800_000, "week": 604_800_000,
}  # fmt: skip
_PART = rf"\s*(\d+)\s*({'|'.join(sorted(_UNITS_MS, key=len, reverse=True))})s?\s*"


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
    if re.fullmatch(f"(?:{_PART})+", text.lower()) is None:
        raise ValueError(f"{text!r} is not a duration such as 10 minutes, 1 hour, 1 day")
    total = sum(int(count) * _UNITS_MS[unit] for count, unit in re.findall(_PART, text.lower()))
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

MERGES = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
_AGGREGATE = re.compile(r"\s*(count|sum|min|max|avg)\s*\((.*)\)\s*(?:(?:AS\s+)?(?:\w+|`[^`]+`)\s*)?", re.I | re.S)


class Partial(Struct, frozen=True, kw_only=True):
    """How the aggregates of a window are computed in parts: a statement, and what merges its results."""

    statement: str  # over `records`; its columns are those of `groups` and `merges`
    groups: list[str]
    merges: dict[str, str]  # column: the aggregate that merges it
    finals: list[str]  # expressions over these columns, in the order of the declaration


COUNT = ("count(*) AS count",)


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
        if self.sql is not None and not {"window", "records"} <= set(re.findall(r"\w+", self.sql.lower())):
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

    def partial(self, types: Sequence[str]) -> Partial | None:
        """Return the partial aggregates, or None if one cannot be merged. `types` are those of the result's columns."""
        if self.sql is not None or len(types) != 1 + len(self.by) + len(self.select):
            return None
        parts: list[str] = []
        merges: dict[str, str] = {}
        finals = []
        for select, kind in zip(self.select, types[1 + len(self.by) :], strict=True):
            found = _AGGREGATE.fullmatch(select)
            if found is None or not is_one_argument_list(found[2]) or (found[1].lower() == "avg" and kind != "double"):
                return None
            how, at = found[1].lower(), len(parts)
            if how == "avg":
                parts += [f"sum(CAST(({found[2]}) AS DOUBLE))", f"count({found[2]})"]
                merges |= {f"p{at}": "sum", f"p{at + 1}": "sum"}
                finals.append(f"try_divide(p{at}, p{at + 1})")
            else:
                parts.append(f"{how}({found[2]})")
                merges[f"p{at}"] = MERGES[how]
                finals.append(f"p{at}")
        groups = ["window", *(f"g{at}" for at in range(len(self.by)))]
        where = "" if self.where is None else f" WHERE {self.where}"
        statement = f"SELECT {', '.join(['window', *self.by, *parts])} FROM records{where} GROUP BY ALL"
        return Partial(statement=statement, groups=groups, merges=merges, finals=finals)

    @property
    def digest(self) -> int:
        """A hash of everything that the result of a window depends on. It fits into a signed number of 64 bits."""
        parts = (self.topic, self.window_ms, self.slide_ms, self.time, self.delay_ms, self.statement, self.tag)
        return xxhash.xxh3_64_intdigest(msgspec.json.encode(parts)) >> 1

    @property
    def name(self) -> str:
        return f"{self.digest:x}"


def is_one_argument_list(text: str) -> bool:
    """Return whether the text between two parentheses belongs to one call, and is not DISTINCT."""
    depth, plain = 0, without_strings(text)
    for char in plain:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            return False
    return re.match(r"\s*distinct\b", plain, re.I) is None
