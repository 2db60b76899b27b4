"""The option `where`: a condition on the columns of a read that is fixed when the read is planned.

    seq >= 100 AND tag LIKE 'web:%' AND (total > 5 OR sku IN ('V60', 'CHEMEX')) AND ts >= '2024-01-01T00:00:00Z'

Spark's own filters are off by default, because Spark plans a DataFrame with those of its first query. This condition
belongs to the DataFrame. It holds for records; rows of kind gap pass, because a loss must be reported. As in SQL, a
comparison with NULL is not true.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from topics.model.records import TagMatch
from topics.spark.options import BadOption, ms_of

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<string>'(?:[^']|'')*')|(?P<quoted>`(?:[^`]|``)+`)
    |(?P<word>[^\W\d]\w*)|(?P<sign><=|>=|<>|!=|==|[=<>(),]))""",
    re.VERBOSE,
)
_SIGNS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_COMPARE = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_WORDS = {"and", "or", "not", "in", "is", "null", "like", "between", "true", "false"}
ROW = "\0row"  # the number of a row; no column has this name
_EXAMPLE = "such as seq >= 100 AND tag = 'web'"


# The meaning of a column in a comparison, under our name or Kafka's, and Spark's filters by the names of their classes.
_MEANING = {"topic": "topic", "seq": "seq", "offset": "seq", "ts": "ts", "timestamp": "ts", "tag": "tag"}
_FILTERS = {
    "EqualTo": "=", "EqualNullSafe": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=",
    "LessThan": "<", "LessThanOrEqual": "<=", "In": "in", "StringStartsWith": "prefix",
}  # fmt: skip


class Comparison(NamedTuple):
    """`column sign value`. The sign `in` has a tuple of values, and `prefix` the start of a string."""

    column: str
    sign: str
    value: Any


class Condition(NamedTuple):
    """A parsed condition: its test, the columns that it uses, and comparisons that each match implies."""

    test: pc.Expression  # null where the answer is unknown
    columns: frozenset[str]
    implied: tuple[Comparison, ...]

    def rows(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        """Return the positions of the rows for which the condition holds."""
        used = [columns[name] for name in self.columns]
        table = pa.table([*used, np.arange(len(used[0]))], [*self.columns, ROW])
        return table.filter(self.test).column(ROW).combine_chunks()


def parse(text: str, kinds: Mapping[str, pa.DataType]) -> Condition:
    """Return the condition. `kinds` are the columns that it may use. Raise `BadOption` if the text is invalid."""
    tokens, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadOption(f"where: {text[at:].strip()[:40]!r} is not part of a condition {_EXAMPLE}")
        tokens.append((str(match.lastgroup), match[0].strip()))
        at = match.end()
    if not tokens:
        raise BadOption(f"where: the condition is empty; give one {_EXAMPLE}")
    return _Parser(tokens, kinds).whole()


_Part = tuple[pc.Expression, tuple[Comparison, ...]]  # a test, and what each match implies


class _Parser:
    """Recursive descent: or, and, not, comparison."""

    def __init__(self, tokens: list[tuple[str, str]], kinds: Mapping[str, pa.DataType]) -> None:
        self._tokens = tokens  # kind and text
        self._at = 0
        self._kinds = kinds
        self._by_name = {name.lower(): name for name in kinds}
        self._used: set[str] = set()

    def whole(self) -> Condition:
        test, implied = self._any()
        if self._at < len(self._tokens):
            raise self._unexpected()
        return Condition(test, frozenset(self._used), implied)

    def _any(self) -> _Part:
        test, implied = self._all()
        while self._skip("or"):
            test, implied = test | self._all()[0], ()
        return test, implied

    def _all(self) -> _Part:
        test, implied = self._one()
        while self._skip("and"):
            more, also = self._one()
            test, implied = test & more, (*implied, *also)
        return test, implied

    def _one(self) -> _Part:
        if self._skip("not"):
            return ~self._one()[0], ()
        if self._skip("("):
            part = self._any()
            self._expect(")")
            return part
        return self._comparison()

    def _comparison(self) -> _Part:
        name = self._column()
        column = pc.field(name)
        if self._skip("is"):
            test = column.is_valid() if self._skip("not") else column.is_null()
            self._expect("null")
            return test, ()
        negated = self._skip("not")
        if self._skip("in"):
            part = self._in(name)
        elif self._skip("between"):
            low = self._literal(name)
            self._expect("and")
            high = self._literal(name)
            test = (column >= self._scalar(low, name)) & (column <= self._scalar(high, name))
            part = test, (Comparison(name, ">=", low), Comparison(name, "<=", high))
        elif self._skip("like"):
            part = self._like(name)
        elif negated or self._word() not in _SIGNS:
            raise self._unexpected()
        else:
            sign = _SIGNS[self._take()[1]]
            value = self._literal(name)
            part = _COMPARE[sign](column, self._scalar(value, name)), (Comparison(name, sign, value),)
        return (~part[0], ()) if negated else part

    def _in(self, name: str) -> _Part:
        self._expect("(")
        values = [self._literal(name)]
        while self._skip(","):
            values.append(self._literal(name))
        self._expect(")")
        tests = [pc.field(name) == self._scalar(value, name) for value in values]  # `isin` is false for NULL
        return functools.reduce(operator.or_, tests), (Comparison(name, "in", tuple(values)),)

    def _like(self, name: str) -> _Part:
        pattern = self._literal(name)
        if not isinstance(pattern, str) or not pa.types.is_string(self._kinds[name]):
            raise BadOption(f"where: LIKE needs a string column and a string, not {name} LIKE {pattern!r}")
        prefix = pattern[:-1]
        plain = pattern.endswith("%") and not re.search(r"[%_\\]", prefix)
        implied = (Comparison(name, "prefix", prefix),) if plain and prefix else ()
        return pc.match_like(pc.field(name), pattern), implied

    def _column(self) -> str:
        kind, text = self._take()
        given = text[1:-1].replace("``", "`") if kind == "quoted" else text
        if kind not in ("word", "quoted") or (kind == "word" and text.lower() in _WORDS):
            raise BadOption(f"where: a column is expected, not {text!r}; write the column first, {_EXAMPLE}")
        name = given if given in self._kinds else self._by_name.get(given.lower())
        if name is None:
            raise BadOption(f"where: there is no column {given!r}; there are {', '.join(self._kinds)}")
        self._used.add(name)
        return name

    def _literal(self, name: str) -> Any:
        """Return the next value as one of the column's type: int, float, bool, str, or a datetime in UTC."""
        kind = self._kinds[name]
        if self._word() in ("timestamp", "date") and self._at + 1 < len(self._tokens):
            self._at += 1
        token, text = self._take()
        if token == "string" and pa.types.is_string(kind):
            return text[1:-1].replace("''", "'")
        if token == "string" and pa.types.is_timestamp(kind):
            with suppress(ValueError):
                found = datetime.fromisoformat(text[1:-1].replace("''", "'"))
                return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
        if text.lower() in ("true", "false") and pa.types.is_boolean(kind):
            return text.lower() == "true"
        if token == "number" and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        raise BadOption(f"where: {name} is of type {kind}, and {text} is not a value of that type")

    def _scalar(self, value: Any, name: str) -> pa.Scalar:
        """Return the value for a comparison. A number keeps its own type, so that 2.5 is not rounded for an integer."""
        return pa.scalar(value) if isinstance(value, int | float) else pa.scalar(value, self._kinds[name])

    def _word(self) -> str:
        kind, text = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        return text.lower() if kind in ("word", "sign") else ""

    def _skip(self, word: str) -> bool:
        is_next = self._word() == word
        self._at += is_next
        return is_next

    def _expect(self, word: str) -> None:
        if not self._skip(word):
            raise self._unexpected()

    def _take(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise self._unexpected()
        self._at += 1
        return self._tokens[self._at - 1]

    def _unexpected(self) -> BadOption:
        if self._at >= len(self._tokens):
            return BadOption(f"where: the condition ends too early; write one {_EXAMPLE}")
        return BadOption(f"where: {self._tokens[self._at][1]!r} is not expected there; write a condition {_EXAMPLE}")


# --- what a condition implies for the plan of a read. It only saves work: each comparison is evaluated again


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


def of_filters(filters: Iterable[Any]) -> list[Comparison]:
    """Return Spark's filters as comparisons. A filter on a nested field or of another kind is left out."""
    found = []
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        sign = _FILTERS.get(type(one).__name__)
        if sign is not None and len(path) == 1 and not (sign == "=" and one.value is None):
            found.append(Comparison(path[0], sign, tuple(one.value) if sign == "in" else one.value))
    return found


def narrowing(comparisons: Iterable[Comparison], *, kafka: bool = False, typed: bool = False) -> Narrowing:
    """Return the conditions that the comparisons imply. A comparison that implies none is ignored.

    In a typed read, columns of the record have an underscore before their names. Kafka's name for the tag is `key`,
    which is binary and implies nothing.
    """
    found = Narrowing()
    for column, sign, value in comparisons:
        if typed and not column.startswith("_"):
            continue
        meaning = _MEANING.get(column[1:] if typed else column)
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
        elif meaning == "tag" and not kafka and (found.tag is None or found.tag.op != "Eq"):
            if sign == "=" and isinstance(value, str):
                found.tag = TagMatch("Eq", value)
            elif sign == "prefix" and value and found.tag is None:
                found.tag = TagMatch("Glob", value)
    return found


def _bounds(sign: str, at: int) -> tuple[int | None, int | None]:
    """Return the bounds [low, high) of a comparison with a whole number; `>` counts as `>=`."""
    low = at if sign in ("=", ">", ">=") else None
    return low, {"=": at + 1, "<": at, "<=": at + 1}.get(sign)
