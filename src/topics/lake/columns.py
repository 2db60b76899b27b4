"""Typed columns: fields of `data` as columns of their own, beside the JSON text.

    TypedColumns.parse("sku STRING, qty INT, total DECIMAL(10,2)")

`json_fields` has the rules. A value that does not fit into its type is NULL in the column and stays in the text.
"""

from __future__ import annotations

import re

import pyarrow as pa
from msgspec import Struct

from topics.lake.json_fields import JsonFields
from topics.lake.layout import SCHEMA, UTC_TIMESTAMP

RESERVED = {*SCHEMA.names, "date", "topic", "kind"}
# Typed reads have these columns of the record beside the fields of data.
UNDERSCORED = {f"_{name}" for name in (*RESERVED, "gap_to", "reason", "malformed")}

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
            if name.lower() in RESERVED | UNDERSCORED:
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
        missing = [field for field in self.arrow_fields if field.name not in names]
        columns, _ = JsonFields(missing).parse(batch.column("data")) if missing else ([], [])
        values = {field.name: column for field, column in zip(missing, columns, strict=True)}
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
