"""Typed columns: fields of `data` as columns of their own, beside the JSON text.

    TypedColumns.parse("sku STRING, qty INT, total DECIMAL(10,2)")

A value that does not fit into its type is NULL in the column and stays in the text. STRING accepts every value: a JSON
string gives its characters, and any other value gives its JSON text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import UNSET, Raw, Struct, UnsetType

from topics.lake.layout import SCHEMA, UTC_TIMESTAMP

RESERVED = {*SCHEMA.names, "date", "topic", "kind"}

_TYPES: dict[str, pa.DataType] = {
    "STRING": pa.string(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "TIMESTAMP": UTC_TIMESTAMP,
}
_COLUMN = re.compile(
    r"\s*(?:`([^`]+)`|([A-Za-z_]\w*))\s+([A-Za-z]+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*", re.ASCII
)

Convert = Callable[[bytes], Any]


class BadColumns(ValueError):
    """A list of columns cannot be used. The message says why."""


class TypedColumns(Struct, frozen=True):
    """The typed columns of a table: names and Arrow types."""

    fields: tuple[tuple[str, str], ...] = ()  # name, and type as in a list of columns

    @classmethod
    def parse(cls, text: str) -> TypedColumns:
        """Return the columns of a list such as `sku STRING, qty INT`. Raise `BadColumns` if it is not one."""
        found: list[tuple[str, str]] = []
        for part in re.split(r",(?![^(]*\))", text):
            if not part.strip():
                continue
            match = _COLUMN.fullmatch(part)
            if match is None:
                raise BadColumns(f"{part.strip()!r} is not a column, such as total DECIMAL(10,2)")
            name, kind = match[1] or match[2], match[3].upper()
            if kind in ("DECIMAL", "NUMERIC"):
                kind = f"DECIMAL({match[4] or 10},{match[5] or 0})"
            elif match[4] is not None:
                raise BadColumns(f"{part.strip()!r}: only DECIMAL has a precision")
            arrow_type(kind)
            if name.lower() in {known.lower() for known, _ in found}:
                raise BadColumns(f"column {name} is there twice")
            if name.lower() in RESERVED:
                raise BadColumns(f"column {name}: this is a column of every table; a field of that name stays in data")
            found.append((name, kind))
        if not found:
            raise BadColumns("no columns: give a list such as sku STRING, qty INT")
        return cls(tuple(found))

    @classmethod
    def of_schema(cls, schema: pa.Schema) -> TypedColumns:
        """Return the typed columns of a table: all that are not in every table."""
        return cls(tuple((field.name, type_name(field.type)) for field in schema if field.name not in RESERVED))

    @property
    def arrow_fields(self) -> list[pa.Field]:
        return [pa.field(name, arrow_type(kind)) for name, kind in self.fields]

    @property
    def ddl(self) -> str:
        """The columns as a list that Spark SQL reads as well."""
        return ", ".join(f"`{name}` {kind}" for name, kind in self.fields)

    def extended(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return the columns of `schema` and the typed columns, computed from `data` where the batch lacks them."""
        names = batch.schema.names
        missing = [field for field in self.fields if field[0] not in names]
        values = dict(zip((name for name, _ in missing), _extract(batch.column("data"), missing), strict=True))
        arrays = [batch.column(name) for name in schema.names]
        arrays += [values[name] if name in values else batch.column(name) for name, _ in self.fields]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*schema, *self.arrow_fields]))


def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type of a type name. Raise `BadColumns` if there is none."""
    if kind in _TYPES:
        return _TYPES[kind]
    decimal = re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", kind)
    if decimal is None:
        raise BadColumns(f"{kind} is not a type of a column: use {', '.join(_TYPES)} or DECIMAL(p,s)")
    precision, scale = int(decimal[1]), int(decimal[2])
    if not 0 <= scale <= precision <= 38 or not precision:
        raise BadColumns(f"{kind}: the precision is 1 to 38, and the scale is not larger")
    return pa.decimal128(precision, scale)


def type_name(kind: pa.DataType) -> str:
    """Return the type name of an Arrow type. Raise `BadColumns` if a list of columns cannot have it."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    for name, known in _TYPES.items():
        if known == kind or (name == "TIMESTAMP" and pa.types.is_timestamp(kind)):
            return name
    raise BadColumns(f"{kind}: a column that topics did not make")


def _extract(texts: pa.Array, fields: Sequence[tuple[str, str]]) -> list[pa.Array]:
    """Return one array per field with the values of JSON texts."""
    if not fields:
        return []
    decode = _decoder(tuple(name for name, _ in fields))
    rows = [decode(text) for text in texts.to_pylist()]
    found = []
    for at, (_, kind) in enumerate(fields):
        convert = _converter(kind)
        raws = [UNSET if row is None else row[at] for row in rows]
        values = [None if isinstance(raw, UnsetType) else convert(bytes(raw)) for raw in raws]
        found.append(pa.array(values, arrow_type(kind)))
    return found


def _decoder(names: tuple[str, ...]) -> Callable[[str], Sequence[Raw | UnsetType] | None]:
    """Return a function from a JSON text to the JSON of these fields, or to None if the text is not an object."""
    fields: list[Any] = [(f"f{at}", Raw | UnsetType, UNSET) for at in range(len(names))]
    kind = msgspec.defstruct("Fields", fields, rename={f"f{at}": name for at, name in enumerate(names)})
    decode = msgspec.json.Decoder(kind).decode

    def found(text: str) -> Sequence[Raw | UnsetType] | None:
        try:
            return msgspec.structs.astuple(decode(text))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None

    return found


def _converter(kind: str) -> Convert:
    if kind == "STRING":
        return _string
    if kind in ("SMALLINT", "INT", "INTEGER", "BIGINT", "LONG"):
        bits = arrow_type(kind).bit_width
        return lambda raw: _integer(raw, 1 << (bits - 1))
    if kind.startswith("DECIMAL"):
        wanted = arrow_type(kind)
        return lambda raw: _decimal(raw, wanted.precision, wanted.scale)
    return {"FLOAT": _float32, "DOUBLE": _double, "BOOLEAN": _boolean, "DATE": _date, "TIMESTAMP": _timestamp}[kind]


def _string(raw: bytes) -> str | None:
    if raw[:1] == b'"':
        return _text(raw)
    return None if raw == b"null" else raw.decode()


def _text(raw: bytes) -> str | None:
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.MsgspecError:
        return None


def _integer(raw: bytes, limit: int) -> int | None:
    try:
        value = int(raw)
    except ValueError:
        return None
    return value if -limit <= value < limit else None


def _double(raw: bytes) -> float | None:
    try:
        value = float(raw)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _float32(raw: bytes) -> float | None:
    value = _double(raw)
    return value if value is None or abs(value) <= 3.4028234663852886e38 else None


def _boolean(raw: bytes) -> bool | None:
    return {b"true": True, b"false": False}.get(raw)


def _decimal(raw: bytes, precision: int, scale: int) -> Decimal | None:
    """Return the exact number, or None if the type has too few digits for it. The number may be a JSON string."""
    text = _text(raw) if raw[:1] == b'"' else raw.decode()
    try:
        value = Decimal(text or "")
    except InvalidOperation:
        return None
    if not value.is_finite():
        return None
    _, digits, exponent = value.normalize().as_tuple()
    assert isinstance(exponent, int)
    return value if -exponent <= scale and len(digits) + exponent <= precision - scale else None


def _date(raw: bytes) -> date | None:
    try:
        return date.fromisoformat(_text(raw) or "")
    except ValueError:
        return None


def _timestamp(raw: bytes) -> datetime | None:
    try:
        found = datetime.fromisoformat(_text(raw) or "")
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
