"""What the filters of a query imply for the plan of its read.

This only saves work: Spark and DuckDB evaluate each filter again. See the option `pushFilters`.
"""

from __future__ import annotations

import json
import math
import operator
import re
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw, Struct
from pyarrow import dataset, fs

from topics.errors import TopicsError
from topics.lake.columns import SPECIAL_NUMBERS
from topics.model.filters import parse_filter
from topics.model.records import TagMatch
from topics.spark.source import plan
from topics.spark.source.layout import RECORD_SCHEMA
from topics.spark.source.plan import SeqAt, Span, TopicExtent

# Spark's filters by the names of their classes.
_SIGNS = {
    "EqualTo": "=", "EqualNullSafe": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=",
    "LessThan": "<", "LessThanOrEqual": "<=", "In": "in", "StringStartsWith": "prefix",
}  # fmt: skip
_APPLY = {"=": operator.eq, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}

_SEQS, _TIMES = range(1 << 62), range(1 << 47)  # the times are ms, up to the year 6429


class Narrowing(Struct, kw_only=True):
    """Necessary conditions on a row. Seqs and times (ms) have bounds [low, high)."""

    expression: pc.Expression | None = None
    schema: pa.Schema = RECORD_SCHEMA
    seqs: tuple[int | None, int | None] = (None, None)
    times: tuple[int | None, int | None] = (None, None)
    tag: TagMatch | None = None

    def wants(self, topic: str) -> bool:
        return self.expression is None or _allows(self.expression, self.schema, dataset.field("topic") == topic)

    def spans(self, given: Iterable[Span], extent: TopicExtent, seq_at: SeqAt) -> list[Span]:
        """Return the parts of a topic's spans within the bounds."""
        (low, high), (low_ms, high_ms) = self.seqs, self.times
        if low_ms is not None:
            low = max(seq_at(extent, low_ms), low or 0)
        if high_ms is not None and (by_time := seq_at(extent, high_ms)) > 1:  # 1 could be a lost beginning
            high = by_time if high is None else min(by_time, high)
        return plan.narrow(given, low=low, high=high)


def narrowing_of(expression: pc.Expression, schema: pa.Schema = RECORD_SCHEMA) -> Narrowing:
    """Return what an expression implies: bounds of `seq` and `ts` that all matching rows are within, and the topics."""
    found: list[tuple[int | None, int | None]] = []
    for name, values in (("seq", _SEQS), ("ts", _TIMES)):
        field, kind = dataset.field(name), schema.field(name).type
        if _allows(expression, schema, field.is_null()):
            found.append((None, None))
            continue

        def known_of(value: int, kind: pa.DataType = kind) -> pa.Scalar:
            return pa.scalar(value * 1000 if pa.types.is_timestamp(kind) else value, kind)

        # A bisection ends at a value that it has tried, so its result holds even if Arrow's answers are not monotonic.
        low = bisect_left(values, True, key=lambda at: _allows(expression, schema, field <= known_of(at)))
        high = bisect_left(values, True, key=lambda at: not _allows(expression, schema, field >= known_of(at)))
        found.append((low or None, high if high < len(values) else None))
    return Narrowing(expression=expression, schema=schema, seqs=found[0], times=found[1])


def _allows(expression: pc.Expression, schema: pa.Schema, known: pc.Expression) -> bool:
    """Return False if no row for which `known` is true can match, as Arrow skips files by what is known of them."""
    form, files = dataset.ParquetFileFormat(), fs.LocalFileSystem()
    piece = form.make_fragment("unread", files, partition_expression=known)
    return any(True for _ in dataset.FileSystemDataset([piece], schema, form, files).get_fragments(expression))


def narrowing(filters: Iterable[Any], *, typed: bool = False) -> Narrowing:
    """Return the conditions that filters of Spark imply. One on another column implies none.

    In a typed read, columns of the record have an underscore before their names.
    """
    expression: pc.Expression | None = None
    tag: TagMatch | None = None
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        sign = _SIGNS.get(type(one).__name__)
        if sign is None or len(path) != 1 or (sign == "=" and one.value is None) or path[0].startswith("_") != typed:
            continue
        name, value = path[0].removeprefix("_"), one.value
        if name not in ("topic", "seq", "ts", "tag"):
            continue
        field, kind = dataset.field(name), RECORD_SCHEMA.field(name).type
        if sign == "in":
            found = field.isin(pa.array([each for each in value if each is not None], kind))
        else:
            found = pc.starts_with(field, value) if sign == "prefix" else _APPLY[sign](field, pa.scalar(value, kind))
        expression = found if expression is None else expression & found
        if name == "tag" and (tag is None or tag.op != "Eq"):
            if sign == "=":
                tag = TagMatch("Eq", value)
            elif sign == "prefix" and value and tag is None:
                tag = TagMatch("Glob", value)
    made = Narrowing() if expression is None else narrowing_of(expression)
    made.tag = tag
    return made


# --- fields of typed reads, in the filter of the server

_OPERATORS = {"=": "Eq", ">": "Gt", ">=": "Ge", "<": "Lt", "<=": "Le", "in": "In"}
_WHOLE = ("tinyint", "smallint", "int", "bigint")


def with_fields(where: TagMatch | None, filters: Iterable[Any], schema: Any) -> TagMatch | None:
    """Return a filter for records that match `where` and may meet the filters of a typed read.

    `schema` is Spark's type of the columns that are fields of `data`; `topics.lake.columns` says what values they
    have. A condition that would make the filter too large is left out.
    """
    for one in filters:
        if (found := _on_field(one, schema)) is not None:
            text = json.dumps(found)
            with suppress(TopicsError):
                where = parse_filter(Raw((text if where is None else f'["And",[{where.text},{text}]]').encode()))
    return where


def _on_field(one: Any, schema: Any) -> list[Any] | None:
    """Return the filter of the server that a condition implies, or None."""
    path, sign, kind = getattr(one, "attribute", ()), _SIGNS.get(type(one).__name__), schema
    for name in path:
        kind = next((field.dataType for field in getattr(kind, "fields", ()) if field.name == name), None)
    if sign is None or not path or kind is None:
        return None
    values = [value for value in (one.value if sign == "in" else [one.value]) if value is not None]
    field, type_name, types = ["data", *path], kind.simpleString(), {type(value) for value in values}
    is_exact = type_name in _WHOLE and types == {int} and sign != "prefix"
    if type_name == "boolean" and sign in ("=", "in"):
        is_exact = types == {bool}
    elif type_name == "string" and types == {str} and not any(map(_could_be_other_json, values)):
        if sign == "prefix":
            return [field, "Glob", f"{one.value}*"]
        is_exact = sign in ("=", "in")
    elif type_name == "double" and types == {float} and sign not in ("in", "prefix"):
        return _on_double(field, sign, one.value)
    return [field, _OPERATORS[sign], values if sign == "in" else one.value] if is_exact else None


def _could_be_other_json(text: str) -> bool:
    """Return whether a column of texts may have the text for a number, an object, or half a surrogate pair."""
    return re.match(r"[-\d\[{]", text) is not None or "?" in text or "true".startswith(text) or "false".startswith(text)


def _on_double(field: list[str], sign: str, value: float) -> list[Any] | None:
    """Return a filter for the numbers that may round to the wanted doubles, and for the texts that count as numbers."""
    low, high = math.nextafter(value, -math.inf), math.nextafter(value, math.inf)
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    above, below = [field, "Gt", low], [field, "Lt", high]
    if sign == "=":
        return ["And", [above, below]]
    return ["Or", [above if sign in (">", ">=") else below, [field, "In", [*SPECIAL_NUMBERS]]]]
