"""Delta's statistics of one file, by which readers skip it: its rows, and the NULLs and bounds of its columns."""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

MAX_BOUND_CHARS = 1024  # a column with a longer text has no bounds

Path = tuple[str, ...]  # a column, or a field of a struct

_encode = msgspec.json.Encoder(decimal_format="number").encode


class Statistics:
    """Collects the statistics of the rows of one file. `bounded`: the columns that get bounds; by default all."""

    def __init__(self, bounded: Collection[str] | None = None) -> None:
        self.rows = 0
        self._bounded = bounded
        self._nulls: dict[Path, int] = {}
        self._bounds: dict[Path, tuple[Any, Any] | None] = {}  # None: a value has no JSON form, so there are no bounds

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for name in batch.schema.names:
            self._add((name,), batch.column(name))

    def json(self) -> str:
        bounds = {path: bound for path, bound in self._bounds.items() if bound is not None}
        found = {
            "numRecords": self.rows,
            "minValues": _nested({path: _shown(low) for path, (low, _) in bounds.items()}),
            "maxValues": _nested({path: _shown(high) for path, (_, high) in bounds.items()}),
            "nullCount": _nested(self._nulls),
        }
        return _encode(found).decode()

    def _add(self, path: Path, column: pa.Array) -> None:
        if pa.types.is_struct(column.type):
            for at, field in enumerate(column.type):
                self._add((*path, field.name), pc.struct_field(column, [at]))
            return
        self._nulls[path] = self._nulls.get(path, 0) + column.null_count
        wanted = self._bounded is None or path[0] in self._bounded
        if not wanted or not _is_ordered(column.type) or column.null_count == len(column):
            return
        new = _bounds(column)
        known = self._bounds.get(path, new)
        if known is None or new is None:
            self._bounds[path] = None
        else:
            self._bounds[path] = min(known[0], new[0]), max(known[1], new[1])


def _is_ordered(kind: pa.DataType) -> bool:
    """Return whether values of the type have bounds in Delta's statistics."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
    )


def _bounds(column: pa.Array) -> tuple[Any, Any] | None:
    """Return the least and the greatest value, or None if JSON has no form for one of the values."""
    if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column)).as_py():
        return None
    try:
        found = pc.min_max(column)
        low, high = found["min"].as_py(), found["max"].as_py()
    except (ValueError, OverflowError):  # a time that Python cannot show
        return None
    if isinstance(low, str) and max(len(low), len(high)) > MAX_BOUND_CHARS:
        return None
    return low, high


def _shown(value: Any) -> Any:
    """Return a bound as Delta's statistics show it."""
    if isinstance(value, datetime):
        utc = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return utc.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return Raw(_encode(value))
    if isinstance(value, float):
        assert math.isfinite(value)
    return value.isoformat() if isinstance(value, date) else value


def _nested(values: dict[Path, Any]) -> dict[str, Any]:
    """Return a tree of the values: a field of a struct is in an object under the name of the struct."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        at = found
        for name in path[:-1]:
            at = at.setdefault(name, {})
        at[path[-1]] = value
    return found
