"""The fields of `data` in a sample of records, as columns with SQL types. Needs neither Spark nor a server."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

AROUND = ("seq", "ts", "node", "tag", "_malformed")  # columns of the typed table that are no field of `data`
COLUMNS_MAX = 100  # a record that is a map of ids has no columns
NESTED_MAX = 50
DEPTH_MAX = 6
BIGINT = range(-(1 << 63), 1 << 63)


class Field(Struct, frozen=True, kw_only=True):
    """A field of `data`, and the column it becomes."""

    name: str
    column: str
    type: str
    by_key: bool = False  # its name fits into no schema: it is looked up as text, and cast


class Seen:
    """Which values there have been in one place."""

    def __init__(self) -> None:
        self.times = 0
        self.scalars: set[str] = set()
        self.fields: dict[str, Seen] = {}
        self.items: Seen | None = None

    def add(self, value: Any) -> None:
        self.times += 1
        if isinstance(value, dict):
            for name, inner in value.items():
                self.fields.setdefault(name, Seen()).add(inner)
            if not value:
                self.scalars.add("STRING")  # an empty object has no type of its own
        elif isinstance(value, list):
            self.items = self.items or Seen()
            for inner in value:
                self.items.add(inner)
        elif value is not None:
            self.scalars.add(_scalar(value))

    def type(self, depth: int = 0) -> str:
        """The SQL type that holds all of them; STRING, which takes the JSON text, where there is no other."""
        kinds = [bool(self.scalars), bool(self.fields), self.items is not None]
        if sum(kinds) != 1 or depth > DEPTH_MAX:
            return "STRING"
        if self.items is not None:
            return f"ARRAY<{self.items.type(depth + 1)}>"
        if self.fields:
            return self._struct(depth)
        if self.scalars == {"BIGINT", "DOUBLE"}:
            return "DOUBLE"
        return next(iter(self.scalars)) if len(self.scalars) == 1 else "STRING"

    def _struct(self, depth: int) -> str:
        if len(self.fields) > NESTED_MAX or _alike(self.fields) or not all(map(is_plain, self.fields)):
            return "STRING"
        return f"STRUCT<{', '.join(f'`{name}`: {seen.type(depth + 1)}' for name, seen in self.fields.items())}>"


def infer(values: Iterable[Any]) -> list[Field]:
    """Fields in the order in which they were met; those that most records have, where there are too many."""
    seen = Seen()
    for value in values:
        if isinstance(value, dict):
            seen.add(value)
    names = [name for name in seen.fields if _is_text(name)]
    common = set(sorted(names, key=lambda name: -seen.fields[name].times)[:COLUMNS_MAX])
    alike, taken, found = _alike([*names, *AROUND[-1:]]), set(AROUND), []
    for name in names:
        if name in common:
            by_key = not is_plain(name) or name.lower() in alike
            column = _column(name, taken)
            taken.add(column.lower())
            kind = seen.fields[name].type()
            found.append(Field(name=name, column=column, type=_castable(kind) if by_key else kind, by_key=by_key))
    return found


def is_plain(name: str) -> bool:
    """Whether a schema can have a field of this name."""
    return bool(name) and name.isprintable() and "`" not in name


def _column(name: str, taken: set[str]) -> str:
    """A name that needs no quotes and that no other column has; Spark does not tell upper from lower case."""
    plain = name if re.fullmatch(r"\w+", name) else re.sub(r"\W+", "_", name).strip("_") or "field"
    if plain[0].isdigit():
        plain = f"_{plain}"
    if plain.lower() in AROUND:
        plain = f"data_{plain}"
    column, number = plain, 1
    while column.lower() in taken:
        number += 1
        column = f"{plain}_{number}"
    return column


def _alike(names: Iterable[str]) -> set[str]:
    """Names, in lower case, that differ from another one in case only."""
    once: set[str] = set()
    twice: set[str] = set()
    for name in names:
        (twice if name.lower() in once else once).add(name.lower())
    return twice


def _castable(kind: str) -> str:
    return kind if kind in ("BOOLEAN", "BIGINT", "DOUBLE") else "STRING"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if value in BIGINT else "STRING"
    return "DOUBLE" if isinstance(value, float) else "STRING"


def _is_text(name: str) -> bool:
    """JSON may hold halves of surrogate pairs, which no text in UTF-8 can."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
