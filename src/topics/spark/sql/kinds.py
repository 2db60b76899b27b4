"""The types of fields in JSON texts, inferred from a sample. Pure.

A type is a name of SQL, a dict of fields, a list with the type of its elements, or None for null. Both engines get the
same types: Spark as DDL, DuckDB as Arrow types.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from topics.lake import TypedColumns
from topics.lake.columns import BadColumns

Kind: TypeAlias = "str | dict[str, Any] | list[Any] | None"

TEXT, BIGINT, DOUBLE = "string", "bigint", "double"
_ARROW = {TEXT: pa.string(), BIGINT: pa.int64(), DOUBLE: pa.float64(), "boolean": pa.bool_()}
_OF_SCHEMA = {"string": TEXT, "integer": BIGINT, "number": DOUBLE, "boolean": "boolean"}
_LIMIT = 1 << 63


def of_texts(texts: Iterable[str]) -> Kind:
    """Return the type of objects; of arrays if there is no object; None for other texts."""
    objects: Kind = None
    arrays: Kind = None
    for text in texts:
        with suppress(msgspec.DecodeError, RecursionError):
            kind = _of(msgspec.json.decode(text))
            if isinstance(kind, dict):
                objects = merged(objects, kind)
            elif isinstance(kind, list):
                arrays = merged(arrays, kind)
    return objects if objects is not None else arrays


def of_schema(schema: Any) -> Kind:
    """Return the type that a JSON Schema gives to values; None where it gives none, or refers to another part."""
    if not isinstance(schema, dict):
        return None
    given = schema.get("type", "object" if "properties" in schema else None)
    kinds = [one for one in (given if isinstance(given, list) else [given]) if one != "null"]
    match kinds:
        case ["object"]:
            return {name: of_schema(inner) for name, inner in schema.get("properties", {}).items()}
        case ["array"]:
            return [of_schema(schema.get("items"))]
        case [str(one)]:
            return _OF_SCHEMA.get(one)
    return TEXT if len(kinds) > 1 else None


def columns(schema: Any) -> TypedColumns:
    """Return the typed columns of a lake for a JSON Schema: its fields that are numbers, texts or true or false.

    The description of a field is the comment of its column.
    """
    kind, comments = of_schema(schema), dict[str, str]()
    found: dict[str, tuple[str, str]] = {}
    for name, inner in (kind if isinstance(kind, dict) else {}).items():
        with suppress(BadColumns):  # a name that no column can have
            if isinstance(inner, str) and "`" not in name:
                [field] = TypedColumns.parse(f"`{name}` {inner}").fields
                if found.setdefault(name.lower(), field) is field:
                    comments[name] = str(schema["properties"][name].get("description", ""))
    return TypedColumns(tuple(found.values()), {name: text for name, text in comments.items() if text})


def _of(value: Any) -> Kind:
    match value:
        case None:
            return None
        case bool():
            return "boolean"
        case int():
            return BIGINT if -_LIMIT <= value < _LIMIT else TEXT
        case float():
            return DOUBLE
        case list():
            element: Kind = None
            for one in value:
                element = merged(element, _of(one))
            return [element]
        case dict():
            return {name: _of(inner) for name, inner in value.items()}
    return TEXT


def merged(one: Kind, other: Kind) -> Kind:
    """Return the type that values of both types fit: text if there is no other."""
    if one is None or one == other:
        return other
    if other is None:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: merged(one.get(name), other.get(name)) for name in {**one, **other}}
    if isinstance(one, list) and isinstance(other, list):
        return [merged(one[0], other[0])]
    return DOUBLE if {BIGINT, DOUBLE} == {str(one), str(other)} else TEXT


def field_name(kind: dict[str, Any], name: str) -> str | None:
    """Return the field with this name, or the first one that differs in case."""
    return name if name in kind else next((one for one in kind if one.lower() == name.lower()), None)


def has(kind: Kind, path: tuple[str, ...]) -> bool:
    """Return whether the type has a field. A number has every field: the engine reports that it has none."""
    while isinstance(kind, list):
        kind = kind[0]
    if not path or isinstance(kind, str):
        return True
    name = None if kind is None else field_name(kind, path[0])
    return kind is not None and name is not None and has(kind[name], path[1:])


def used(kind: Kind, paths: Iterable[tuple[str, ...]]) -> dict[str, Any] | list[Any]:
    """Return the part of a type that these paths use. A field that it lacks is a text. An empty path uses all of it."""
    paths = list(paths)
    if isinstance(kind, list) or () in paths:
        return {} if kind is None or isinstance(kind, str) else kind
    known, found = kind if isinstance(kind, dict) else {}, dict[str, Any]()
    for path in paths:
        name = field_name(known, path[0]) or field_name(found, path[0]) or path[0]
        found[name] = _with(found.get(name, known.get(name)), path[1:])
    return found


def _with(kind: Kind, path: tuple[str, ...]) -> Kind:
    """Return the type with one more field, a text."""
    if isinstance(kind, list):
        return [_with(kind[0], path)]
    if not path or isinstance(kind, str):
        return TEXT if kind is None else kind
    name = field_name(kind or {}, path[0]) or path[0]
    return {**(kind or {}), name: _with((kind or {}).get(name), path[1:])}


def ddl(kind: Kind, quote: str = "`") -> str:
    """Return the type as Spark writes it."""
    if isinstance(kind, list):
        return f"array<{ddl(kind[0], quote)}>"
    if isinstance(kind, dict) and kind:
        names = {name: quote + name.replace("`", "``") + quote if quote else name for name in kind}
        return "struct<" + ",".join(f"{names[name]}:{ddl(inner, quote)}" for name, inner in kind.items()) + ">"
    return kind if isinstance(kind, str) else TEXT


def arrow(kind: Kind) -> pa.DataType:
    if isinstance(kind, list):
        return pa.list_(arrow(kind[0]))
    if isinstance(kind, dict) and kind:
        return pa.struct([pa.field(name, arrow(inner)) for name, inner in kind.items()])
    return _ARROW[kind if isinstance(kind, str) else TEXT]
