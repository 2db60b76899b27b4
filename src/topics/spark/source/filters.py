"""What Spark's filters of a query imply for the plan of its read.

This only saves work: Spark evaluates each filter again. See the option `pushFilters`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from msgspec import Struct

from topics.model.records import TagMatch
from topics.spark.options import ms_of

# Spark's filters by the names of their classes.
_SIGNS = {
    "EqualTo": "=", "EqualNullSafe": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=",
    "LessThan": "<", "LessThanOrEqual": "<=", "In": "in", "StringStartsWith": "prefix",
}  # fmt: skip


class Narrowing(Struct, kw_only=True):
    """Necessary conditions on a row. Seqs and times (ms) have bounds [low, high)."""

    topics: frozenset[str] | None = None
    topic_prefix: str = ""
    low_seq: int | None = None
    high_seq: int | None = None
    low_ms: int | None = None
    high_ms: int | None = None
    tag: TagMatch | None = None

    def wants(self, topic: str) -> bool:
        return (self.topics is None or topic in self.topics) and topic.startswith(self.topic_prefix)

    def narrow(self, unit: str, low: int | None, high: int | None) -> None:
        """Apply further bounds of seqs (`unit` is seq) or times (ms)."""
        for name, bound, tighter in ((f"low_{unit}", low, max), (f"high_{unit}", high, min)):
            if bound is not None:
                known = getattr(self, name)
                setattr(self, name, bound if known is None else tighter(known, bound))


def narrowing(filters: Iterable[Any], *, typed: bool = False) -> Narrowing:
    """Return the conditions that the filters imply. One that implies none is ignored, such as one on a nested field.

    In a typed read, columns of the record have an underscore before their names.
    """
    found = Narrowing()
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        sign = _SIGNS.get(type(one).__name__)
        if sign is None or len(path) != 1 or (sign == "=" and one.value is None):
            continue
        column, value = path[0], one.value
        if typed and not column.startswith("_"):
            continue
        meaning = column[1:] if typed else column
        if meaning == "topic" and sign == "prefix" and len(value) > len(found.topic_prefix):
            found.topic_prefix = value
        elif meaning == "topic" and (sign == "in" or (sign == "=" and isinstance(value, str))):
            names = frozenset(name for name in (value if sign == "in" else [value]) if isinstance(name, str))
            found.topics = names if found.topics is None else found.topics & names
        elif meaning == "seq" and isinstance(value, int):
            found.narrow("seq", *_bounds(sign, value + (sign == ">")))
        elif meaning == "seq" and sign == "in":
            numbers = [number for number in value if isinstance(number, int)]
            if numbers and all(number is None or isinstance(number, int) for number in value):
                found.narrow("seq", min(numbers), max(numbers) + 1)
        elif meaning == "ts" and isinstance(value, datetime):
            found.narrow("ms", *_bounds(sign, ms_of(value)))  # rounded up: `>` and `>=` have the same first ms
        elif meaning == "tag" and (found.tag is None or found.tag.op != "Eq"):
            if sign == "=" and isinstance(value, str):
                found.tag = TagMatch("Eq", value)
            elif sign == "prefix" and value and found.tag is None:
                found.tag = TagMatch("Glob", value)
    return found


def _bounds(sign: str, at: int) -> tuple[int | None, int | None]:
    """Return the bounds [low, high) of a comparison with a whole number; `>` counts as `>=`."""
    low = at if sign in ("=", ">", ">=") else None
    return low, {"=": at + 1, "<": at, "<=": at + 1}.get(sign)
