"""Filters of a query that narrow the read. Spark evaluates each of them again, so here they only save work."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from msgspec import Struct
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from topics.model.records import TagMatch
from topics.spark.options import ms_of
from topics.spark.source.schema import MEANING


class Narrowing(Struct, kw_only=True):
    """Necessary conditions on a row, derived from the filters. Seqs and times (ms) have bounds [low, high)."""

    topics: frozenset[str] | None = None
    topic_prefix: str = ""
    low_seq: int | None = None
    high_seq: int | None = None
    low_ms: int | None = None
    high_ms: int | None = None
    tag: TagMatch | None = None

    def wants(self, topic: str) -> bool:
        return (self.topics is None or topic in self.topics) and topic.startswith(self.topic_prefix)


def narrowing(filters: Iterable[Filter], *, kafka: bool) -> Narrowing:
    """Return the conditions that the filters imply. A filter that implies none is ignored."""
    found = Narrowing()
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        meaning = MEANING.get(path[0]) if len(path) == 1 else None
        if kafka and meaning == "tag":
            continue  # Kafka's name for the tag is `key`, and it is binary
        value = getattr(one, "value", None)
        if meaning == "topic":
            _topic(found, one, value)
        elif meaning == "seq":
            _seq(found, one, value)
        elif meaning == "ts":
            _ts(found, one, value)
        elif meaning == "tag":
            _tag(found, one, value)
    return found


def _topic(found: Narrowing, one: Filter, value: Any) -> None:
    if isinstance(one, EqualTo | EqualNullSafe) and isinstance(value, str):
        _only(found, {value})
    elif isinstance(one, In):
        _only(found, {text for text in value if isinstance(text, str)})
    elif isinstance(one, StringStartsWith) and len(value) > len(found.topic_prefix):
        found.topic_prefix = value


def _only(found: Narrowing, names: set[str]) -> None:
    found.topics = frozenset(names if found.topics is None else found.topics & names)


def _seq(found: Narrowing, one: Filter, value: Any) -> None:
    if isinstance(one, In):
        numbers = [number for number in value if isinstance(number, int)]
        if numbers:
            _seqs(found, min(numbers), max(numbers) + 1)
    elif isinstance(value, int):
        match one:
            case EqualTo() | EqualNullSafe():
                _seqs(found, value, value + 1)
            case GreaterThan():
                _seqs(found, value + 1, None)
            case GreaterThanOrEqual():
                _seqs(found, value, None)
            case LessThan():
                _seqs(found, None, value)
            case LessThanOrEqual():
                _seqs(found, None, value + 1)


def _ts(found: Narrowing, one: Filter, value: Any) -> None:
    if not isinstance(value, datetime):
        return
    at = ms_of(value)  # rounded up: a record at or after `value` has at least this ms
    match one:
        case EqualTo() | EqualNullSafe():
            _times(found, at, at + 1)
        case GreaterThan() | GreaterThanOrEqual():
            _times(found, at, None)
        case LessThan():
            _times(found, None, at)
        case LessThanOrEqual():
            _times(found, None, at + 1)


def _tag(found: Narrowing, one: Filter, value: Any) -> None:
    if found.tag is not None and found.tag.op == "Eq":
        return
    if isinstance(one, EqualTo) and isinstance(value, str):
        found.tag = TagMatch("Eq", value)
    elif isinstance(one, StringStartsWith) and value and found.tag is None:
        found.tag = TagMatch("Glob", value)


def _seqs(found: Narrowing, low: int | None, high: int | None) -> None:
    found.low_seq, found.high_seq = _higher(found.low_seq, low), _lower(found.high_seq, high)


def _times(found: Narrowing, low: int | None, high: int | None) -> None:
    found.low_ms, found.high_ms = _higher(found.low_ms, low), _lower(found.high_ms, high)


def _higher(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _lower(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
