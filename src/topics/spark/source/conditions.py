"""Comparisons of a query or of the option `where` that narrow a read. They only save work: each is evaluated again.

Pure: Spark's filters are recognised by the names of their classes, which Spark 4.0 does not have.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Struct

from topics.model.records import TagMatch
from topics.spark.options import ms_of
from topics.spark.source.schema import MEANING

SIGNS = {
    "EqualTo": "=", "EqualNullSafe": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=",
    "LessThan": "<", "LessThanOrEqual": "<=", "In": "in", "StringStartsWith": "prefix",
}  # fmt: skip


class Comparison(NamedTuple):
    """`column sign value`. The sign `in` has a tuple of values, and `prefix` the start of a string."""

    column: str
    sign: str
    value: Any


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


def of_filters(filters: Iterable[Any]) -> list[Comparison]:
    """Return Spark's filters as comparisons. A filter on a nested field or of another kind is left out."""
    found = []
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        sign = SIGNS.get(type(one).__name__)
        if sign is not None and len(path) == 1:
            value = one.value
            if sign == "=" and type(one).__name__ == "EqualNullSafe" and value is None:
                continue
            found.append(Comparison(path[0], sign, tuple(value) if sign == "in" else value))
    return found


def narrowing(comparisons: Iterable[Comparison], *, kafka: bool = False, typed: bool = False) -> Narrowing:
    """Return the conditions that the comparisons imply. A comparison that implies none is ignored.

    In a typed read, columns of the record have an underscore before their names.
    """
    found = Narrowing()
    for one in comparisons:
        name = one.column
        if typed:
            if not name.startswith("_"):
                continue
            name = name[1:]
        meaning = MEANING.get(name)
        if kafka and meaning == "tag":
            continue  # Kafka's name for the tag is `key`, and it is binary
        if meaning == "topic":
            _topic(found, one)
        elif meaning == "seq":
            _seq(found, one)
        elif meaning == "ts":
            _ts(found, one)
        elif meaning == "tag":
            _tag(found, one)
    return found


def _topic(found: Narrowing, one: Comparison) -> None:
    if one.sign == "=" and isinstance(one.value, str):
        _only(found, {one.value})
    elif one.sign == "in":
        _only(found, {text for text in one.value if isinstance(text, str)})
    elif one.sign == "prefix" and len(one.value) > len(found.topic_prefix):
        found.topic_prefix = one.value


def _only(found: Narrowing, names: set[str]) -> None:
    found.topics = frozenset(names if found.topics is None else found.topics & names)


def _seq(found: Narrowing, one: Comparison) -> None:
    value = one.value
    if one.sign == "in":
        numbers = [number for number in value if isinstance(number, int)]
        if numbers and all(number is None or isinstance(number, int) for number in value):
            _seqs(found, min(numbers), max(numbers) + 1)
    elif isinstance(value, int):
        match one.sign:
            case "=":
                _seqs(found, value, value + 1)
            case ">":
                _seqs(found, value + 1, None)
            case ">=":
                _seqs(found, value, None)
            case "<":
                _seqs(found, None, value)
            case "<=":
                _seqs(found, None, value + 1)


def _ts(found: Narrowing, one: Comparison) -> None:
    if not isinstance(one.value, datetime):
        return
    at = ms_of(one.value)  # rounded up: a record at or after `value` has at least this ms
    match one.sign:
        case "=":
            _times(found, at, at + 1)
        case ">" | ">=":
            _times(found, at, None)
        case "<":
            _times(found, None, at)
        case "<=":
            _times(found, None, at + 1)


def _tag(found: Narrowing, one: Comparison) -> None:
    if found.tag is not None and found.tag.op == "Eq":
        return
    if one.sign == "=" and isinstance(one.value, str):
        found.tag = TagMatch("Eq", one.value)
    elif one.sign == "prefix" and one.value and found.tag is None:
        found.tag = TagMatch("Glob", one.value)


def _seqs(found: Narrowing, low: int | None, high: int | None) -> None:
    found.low_seq, found.high_seq = _higher(found.low_seq, low), _lower(found.high_seq, high)


def _times(found: Narrowing, low: int | None, high: int | None) -> None:
    found.low_ms, found.high_ms = _higher(found.low_ms, low), _lower(found.high_ms, high)


def _higher(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _lower(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
