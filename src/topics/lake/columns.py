"""Typed columns: fields of `data` as columns of their own, beside the JSON text.

    TypedColumns.parse("sku STRING, qty INT, total DECIMAL(10,2)")

`JsonFields` parses JSON texts into Arrow columns, with the rules of Spark's `from_json` (mode permissive). Every path
that gives a field of `data` a type uses it: reads from a server, from files and from a lake, and the typed columns of a
lake. All records are decoded in one call into typed structs. A record that does not fit is decoded again, field by
field: a field that does not fit is NULL, and the record counts as malformed. A string column takes any value: numbers
and objects as their JSON text.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import cache
from operator import attrgetter, truth
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Raw, Struct

from topics.lake.layout import SCHEMA, UTC_TIMESTAMP
from topics.model import surrogates

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
    """The typed columns of a table: names and Arrow types. `comments` are those of new columns, by name."""

    fields: tuple[tuple[str, str], ...] = ()  # name, and type as in a list of columns
    comments: Mapping[str, str] = {}

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
        comments = {name: {"comment": text} for name, text in self.comments.items()}
        return [pa.field(name, arrow_type(kind), metadata=comments.get(name)) for name, kind in self.fields]

    @property
    def ddl(self) -> str:
        """The columns as a list that Spark SQL reads as well."""
        return ", ".join(f"`{name}` {kind}" for name, kind in self.fields)

    def extended(self, batch: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.RecordBatch, dict[str, list[int]]]:
        """Return the columns of `schema` and the typed columns, computed from `data` where the batch lacks them.

        Also return, for each computed column, the positions of the values that do not fit its type.
        """
        names, data = batch.schema.names, batch.column("data")
        missing = [field for field in self.arrow_fields if field.name not in names]
        columns, malformed = JsonFields(missing).parse(data) if missing else ([], [])
        values = {field.name: column for field, column in zip(missing, columns, strict=True)}
        arrays = [batch.column(name) for name in schema.names]
        arrays += [values[name] if name in values else batch.column(name) for name, _ in self.fields]
        unfit = dict[str, list[int]]()
        for at in malformed:
            with suppress(*_UNREADABLE):  # a record that is no object has no fields
                members = surrogates.members(data[at].as_py().encode())
                for name, column in values.items():
                    if not column[at].is_valid and bytes(members.get(name, b"null")) != b"null":
                        unfit.setdefault(name, []).append(at)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*schema, *self.arrow_fields])), unfit


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


# --- JSON texts as columns

SPECIAL_NUMBERS = {
    "NaN": "nan", "Infinity": "inf", "+Infinity": "inf", "INF": "inf", "+INF": "inf",
    "-Infinity": "-inf", "-INF": "-inf",
}  # fmt: skip
_UNREADABLE = (msgspec.MsgspecError, RecursionError)


class _Unfit(ValueError):
    """A value does not fit its type. `partly` is the part of it that does."""

    def __init__(self, partly: Any = None) -> None:
        super().__init__("unfit")
        self.partly = partly


class JsonFields:
    """Parses these columns: Arrow fields, with the names of the members."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = list(fields)
        slots = {f"f{at}": field for at, field in enumerate(fields)}
        members = [(slot, _python_type(field.type) | None, None) for slot, field in slots.items()]
        self._row: Any = msgspec.defstruct(
            "Row", members, rename={slot: field.name for slot, field in slots.items()}, gc=False
        )
        self._getters = [attrgetter(slot) for slot in slots]
        self._decoder = msgspec.json.Decoder(self._row, dec_hook=_timestamp)

    def parse(self, data: pa.Array) -> tuple[list[pa.Array], list[int]]:
        """Return the columns, and the positions of malformed records. `data` has no nulls."""
        rows: list[Any] | None = [self._row()] * len(data)
        malformed = set[int]()
        if self._fields and len(data):
            lines = pc.binary_join_element_wise(data, "", "\n")  # one buffer with a line for each record
            with suppress(*_UNREADABLE):
                rows = None
                rows = self._decoder.decode_lines(lines.buffers()[2])
        if rows is None or len(rows) != len(data):
            rows = []
            for at, text in enumerate(data.cast(pa.binary()).to_pylist()):
                row, fits = self._one(text)
                rows.append(row)
                if not fits:
                    malformed.add(at)
        return [self._column(at, rows, malformed) for at in range(len(self._fields))], sorted(malformed)

    def _column(self, at: int, rows: list[Any], malformed: set[int]) -> pa.Array:
        kind = self._fields[at].type
        values = list(map(self._getters[at], rows))
        if _is_finished_later(kind):
            for place, value in enumerate(values):
                try:
                    values[place] = _finished(value, kind)
                except _Unfit:
                    values[place] = None
                    malformed.add(place)
        return pa.array(values, kind)

    def _one(self, text: bytes) -> tuple[Any, bool]:
        try:
            return self._decoder.decode(text), True
        except _UNREADABLE:
            pass
        try:
            return self._row(*_members(text, self._fields).values()), True
        except _Unfit as error:
            partly = error.partly or {}
            return self._row(*partly.values()), not partly and text.strip() == b"null"


def _python_type(kind: pa.DataType) -> Any:
    if pa.types.is_integer(kind):
        limit = 1 << kind.bit_width - 1
        return Annotated[int, Meta(ge=-limit, le=limit - 1)]
    if pa.types.is_list(kind):
        return list.__class_getitem__(_python_type(kind.value_type) | None)
    if pa.types.is_struct(kind):
        members = {field.name: _python_type(field.type) | None for field in kind}
        return TypedDict("Object", members, total=False)  # type: ignore[operator]
    for is_kind, python in (
        (pa.types.is_string, str), (pa.types.is_boolean, bool), (pa.types.is_floating, float),
        (pa.types.is_decimal, Decimal), (pa.types.is_timestamp, _Timestamp), (pa.types.is_date, date),
    ):  # fmt: skip
        if is_kind(kind):
            return python
    return bytes


def _is_finished_later(kind: pa.DataType) -> bool:
    """Return whether a decoded value needs another step: decimals are rounded."""
    if pa.types.is_struct(kind):
        return any(_is_finished_later(field.type) for field in kind)
    return _is_finished_later(kind.value_type) if pa.types.is_list(kind) else pa.types.is_decimal(kind)


def _finished(value: Any, kind: pa.DataType) -> Any:
    """Return the decoded value as Arrow takes it. Raise `_Unfit` if a decimal has too many digits."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [_finished(one, kind.value_type) for one in value]
    if pa.types.is_struct(kind):
        return {field.name: _finished(value.get(field.name), field.type) for field in kind}
    if pa.types.is_decimal(kind):
        if not value.is_finite():
            raise _Unfit
        try:
            return value.quantize(*_rounding(kind))
        except InvalidOperation:
            raise _Unfit from None
    return value


@cache
def _rounding(kind: pa.DataType) -> tuple[Decimal, None, Context]:
    """Return the arguments that round to the scale of a decimal type as Spark does."""
    return Decimal(1).scaleb(-kind.scale), None, Context(prec=kind.precision, rounding=ROUND_HALF_UP)


# --- one value at a time


class _Hooked(type):
    # msgspec checks what the hook returns: a datetime, which is always true.
    __instancecheck__ = truth  # type: ignore[assignment]


class _Timestamp(metaclass=_Hooked):
    """The type of a timestamp for a decoder: msgspec itself rounds to microseconds, and takes other forms."""


def _timestamp(_: type, text: Any) -> datetime:
    """Return the datetime of a JSON string, without digits after the microsecond. Raise if it is none, as in Spark."""
    if text[10:11] not in " T":
        raise ValueError
    return datetime.fromisoformat(text)


@cache
def _decoder(python: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(python, dec_hook=_timestamp)


def _decoded(raw: bytes | Raw, python: Any) -> Any:
    try:
        return _decoder(python).decode(raw)
    except _UNREADABLE:
        raise _Unfit from None


def _members(text: bytes | Raw, fields: Sequence[pa.Field]) -> dict[str, Any]:
    """Return the members of an object by their names."""
    try:
        members = surrogates.members(text)
    except _UNREADABLE:
        raise _Unfit from None
    found, fits = {}, True
    for field in fields:
        try:
            found[field.name] = _value(members.get(field.name), field.type)
        except _Unfit as error:
            found[field.name], fits = error.partly, False
    if not fits:
        raise _Unfit(found)
    return found


def _elements(raw: Raw, kind: pa.DataType) -> list[Any]:
    found, fits = [], True
    for one in _decoded(raw, list[Raw]):
        try:
            found.append(_value(one, kind))
        except _Unfit as error:
            if error.partly is None:
                raise _Unfit from None  # as in Spark, one value that does not fit at all spoils the array
            found.append(error.partly)
            fits = False
    if not fits:
        raise _Unfit(found)
    return found


def _value(raw: Raw | None, kind: pa.DataType) -> Any:
    """Return a decoded value, which `_finished` takes. Raise `_Unfit` if it does not fit."""
    if raw is None or (text := bytes(raw)) == b"null":
        return None
    if pa.types.is_struct(kind):
        return _members(raw, list(kind))
    if pa.types.is_list(kind):
        return _elements(raw, kind.value_type)
    if pa.types.is_string(kind):
        return text.decode() if text[:1] != b'"' else _string(text)
    try:
        if pa.types.is_floating(kind):
            # A number that is too large is infinite, as in Spark.
            number = SPECIAL_NUMBERS.get(_string(text), "") if text[:1] == b'"' else text
            return 0.0 if number == b"-0" else float(number)
        if pa.types.is_binary(kind):
            return base64.b64decode(_decoded(raw, str), validate=True)
    except (ValueError, binascii.Error):
        raise _Unfit from None
    return _decoded(raw, _python_type(kind))


def _string(text: bytes) -> str:
    """Return the characters of a JSON string. Half a surrogate pair becomes a question mark."""
    found: str = json.loads(text)
    return found.encode(errors="replace").decode()
