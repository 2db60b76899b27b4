"""Parse the JSON in `data` into Arrow columns, on executors, with the rules of Spark's `from_json` (mode permissive).

Strings and integers of records with equal members are found by position, see `flat_json`. Otherwise all records of a
run are decoded in one call into typed structs. A record that does not fit is decoded again, field by field: a field
that does not fit is NULL, and the record counts as malformed. Like Spark, a string column takes any value: numbers and
objects as their JSON text.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Raw
from pyspark.sql import types as t

from topics.model import surrogates
from topics.spark.source.flat_json import flat_columns

_BITS: dict[type[t.DataType], tuple[int, pa.DataType]] = {
    t.ByteType: (8, pa.int8()),
    t.ShortType: (16, pa.int16()),
    t.IntegerType: (32, pa.int32()),
    t.LongType: (64, pa.int64()),
}
_SPECIAL_NUMBERS = {
    "NaN": "nan", "Infinity": "inf", "+Infinity": "inf", "INF": "inf", "+INF": "inf",
    "-Infinity": "-inf", "-INF": "-inf",
}  # fmt: skip
_STRINGS = (t.StringType, t.CharType, t.VarcharType)


class NotSupported(TypeError):
    """A type cannot be read from JSON here."""


class DataField(NamedTuple):
    """One column: its name in the JSON object, its type in Python and in Arrow, and its converter for the slow path."""

    name: str
    python: Any
    arrow: pa.DataType
    slow: Callable[[Raw], Any]  # raises `_Unfit`
    finish: Callable[[Any], Any] | None = None  # applied to each decoded value; raises `_Unfit`


class _Unfit(ValueError):
    """A value does not fit its type. `partly` is the part of it that does."""

    def __init__(self, partly: Any = None) -> None:
        super().__init__("unfit")
        self.partly = partly


def json_name(field: t.StructField) -> str:
    """Return the name of a column in the JSON object: its own, unless `topics.spark.table` has renamed the column."""
    return str((field.metadata or {}).get("field", field.name))


def data_field(field: t.StructField) -> DataField:
    """Return the field for a column. Raise `NotSupported` if its type cannot be read from JSON here."""
    return _field(json_name(field), field.dataType, field.name)


class DataFields:
    """Parses the columns of a schema."""

    def __init__(self, fields: Sequence[t.StructField]) -> None:
        self._fields = [data_field(field) for field in fields]
        slots = [f"f{at}" for at in range(len(self._fields))]
        members = [(slot, field.python | None, None) for slot, field in zip(slots, self._fields, strict=True)]
        names = {slot: field.name for slot, field in zip(slots, self._fields, strict=True)}
        self._row: Any = msgspec.defstruct("Row", members, rename=names, gc=False)
        self._getters = [attrgetter(slot) for slot in slots]
        self._decoder = msgspec.json.Decoder(self._row)
        self._flat = [(field.name, field.arrow) for field in self._fields]
        self._may_be_flat = all(kind == pa.string() or pa.types.is_integer(kind) for _, kind in self._flat)

    def parse(self, data: pa.Array) -> tuple[list[pa.Array], list[int]]:
        """Return the columns, and the positions of malformed records. `data` has no nulls."""
        if self._may_be_flat and len(data):
            if (columns := flat_columns(data, self._flat)) is not None:
                return columns, []
            self._may_be_flat = False  # the next records probably differ as well
        rows, malformed = self._fast(data), set[int]()
        if rows is None:
            rows = []
            for at, text in enumerate(data.cast(pa.binary()).to_pylist()):
                row, fits = self._one(text)
                rows.append(row)
                if not fits:
                    malformed.add(at)
        return [self._column(at, rows, malformed) for at in range(len(self._fields))], sorted(malformed)

    def _fast(self, data: pa.Array) -> list[Any] | None:
        if not self._fields or not len(data):
            return [self._row()] * len(data)
        lines = pc.binary_join_element_wise(data, "", "\n")  # one buffer with a line for each record
        try:
            rows: list[Any] = self._decoder.decode_lines(lines.buffers()[2])
        except (msgspec.MsgspecError, RecursionError):
            return None
        return rows if len(rows) == len(data) else None

    def _column(self, at: int, rows: list[Any], malformed: set[int]) -> pa.Array:
        field = self._fields[at]
        values = list(map(self._getters[at], rows))
        if field.finish is not None:
            for place, value in enumerate(values):
                try:
                    values[place] = None if value is None else field.finish(value)
                except _Unfit:
                    values[place] = None
                    malformed.add(place)
        return pa.array(values, field.arrow)

    def _one(self, text: bytes) -> tuple[Any, bool]:
        """Return a record and whether it fits."""
        try:
            return self._decoder.decode(text), True
        except (msgspec.MsgspecError, RecursionError):
            pass
        try:
            members = surrogates.members(text)
        except (msgspec.MsgspecError, RecursionError):
            return self._row(), text.strip() == b"null"
        values, fits = _members(self._fields, members)
        return self._row(*values), fits


def _members(fields: Sequence[DataField], members: dict[str, Raw]) -> tuple[list[Any], bool]:
    values, fits = [], True
    for field in fields:
        try:
            values.append(_value(field, members.get(field.name)))
        except _Unfit as error:
            values.append(error.partly)
            fits = False
    return values, fits


def _value(field: DataField, raw: Raw | None) -> Any:
    return None if raw is None or bytes(raw) == b"null" else field.slow(raw)


def _field(name: str, kind: t.DataType, where: str) -> DataField:
    if isinstance(kind, _STRINGS):
        return DataField(name, str, pa.string(), _string)
    if isinstance(kind, t.BooleanType):
        return DataField(name, bool, pa.bool_(), _decoded(bool))
    if type(kind) in _BITS:
        bits, arrow = _BITS[type(kind)]
        python = Annotated[int, Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]
        return DataField(name, python, arrow, _decoded(python))
    if isinstance(kind, t.DoubleType | t.FloatType):
        return DataField(name, float, pa.float64() if isinstance(kind, t.DoubleType) else pa.float32(), _number)
    if isinstance(kind, t.DecimalType):
        arrow, scaled = pa.decimal128(kind.precision, kind.scale), _scaled(kind.precision, kind.scale)
        return DataField(name, Decimal, arrow, _decoded(Decimal), scaled)
    if isinstance(kind, t.TimestampType):
        return DataField(name, datetime, pa.timestamp("us", tz="UTC"), _finished(_decoded(str), _moment))
    if isinstance(kind, t.DateType):
        return DataField(name, date, pa.date32(), _decoded(date))
    if isinstance(kind, t.BinaryType):
        return DataField(name, bytes, pa.binary(), _finished(_decoded(str), _bytes))
    if isinstance(kind, t.ArrayType):
        return _list(name, _field("", kind.elementType, f"{where}[]"))
    if isinstance(kind, t.StructType):
        return _struct(name, [_field(json_name(one), one.dataType, f"{where}.{one.name}") for one in kind.fields], kind)
    raise NotSupported(
        f"column {where} is of type {kind.simpleString()}, which a typed read does not support; read it as STRING"
    )


def _decoded(python: Any) -> Callable[[Raw], Any]:
    decode = msgspec.json.Decoder(python).decode

    def slow(raw: Raw) -> Any:
        try:
            return decode(raw)
        except (msgspec.MsgspecError, RecursionError):
            raise _Unfit from None

    return slow


def _finished(slow: Callable[[Raw], Any], finish: Callable[[Any], Any]) -> Callable[[Raw], Any]:
    return lambda raw: finish(slow(raw))


def _string(raw: Raw) -> str:
    """Return a string, or the JSON text of any other value. Half a surrogate pair becomes a question mark."""
    text = bytes(raw)
    if text[:1] != b'"':
        return text.decode()
    found: str = json.loads(text)
    return found.encode(errors="replace").decode()


def _number(raw: Raw) -> float:
    text = bytes(raw)
    if text[:1] == b'"':
        special = _SPECIAL_NUMBERS.get(_string(raw))
        if special is None:
            raise _Unfit
        return float(special)
    try:
        return float(text)  # too large a number is infinite, as in Spark
    except ValueError:
        raise _Unfit from None


def _scaled(precision: int, scale: int) -> Callable[[Decimal], Decimal]:
    """Return a function that rounds to the scale as Spark does, and raises `_Unfit` if the digits do not suffice."""
    unit, context = Decimal(1).scaleb(-scale), Context(prec=precision, rounding=ROUND_HALF_UP)

    def scaled(value: Decimal) -> Decimal:
        if not value.is_finite():
            raise _Unfit
        try:
            return value.quantize(unit, context=context)
        except InvalidOperation:
            raise _Unfit from None

    return scaled


def _moment(text: str) -> datetime:
    """Return an ISO 8601 time. A time without a zone is in UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise _Unfit from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _Unfit from None


def _list(name: str, element: DataField) -> DataField:
    decode = msgspec.json.Decoder(list[Raw]).decode

    def slow(raw: Raw) -> list[Any]:
        try:
            elements = decode(raw)
        except (msgspec.MsgspecError, RecursionError):
            raise _Unfit from None
        found, fits = [], True
        for one in elements:
            try:
                found.append(_value(element, one))
            except _Unfit as error:
                if error.partly is None:
                    raise _Unfit from None  # as in Spark, one value that does not fit at all spoils the array
                found.append(error.partly)
                fits = False
        if not fits:
            raise _Unfit(found)
        return found

    finish = None if element.finish is None else _each(element.finish)
    python: Any = list.__class_getitem__(element.python | None)
    return DataField(name, python, pa.list_(element.arrow), slow, finish)


def _each(finish: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [None if value is None else finish(value) for value in values]


def _struct(name: str, fields: list[DataField], kind: t.StructType) -> DataField:
    columns = kind.fieldNames()
    python = TypedDict("Object", {field.name: field.python | None for field in fields}, total=False)  # type: ignore[misc]

    def slow(raw: Raw) -> dict[str, Any]:
        try:
            members = surrogates.members(raw)
        except (msgspec.MsgspecError, RecursionError):
            raise _Unfit from None
        values, fits = _members(fields, members)
        found = {field.name: value for field, value in zip(fields, values, strict=True)}
        if not fits:
            raise _Unfit(found)
        return found

    arrow = pa.struct([pa.field(column, field.arrow) for column, field in zip(columns, fields, strict=True)])
    is_plain = columns == [field.name for field in fields] and all(field.finish is None for field in fields)
    return DataField(name, python, arrow, slow, None if is_plain else _object(columns, fields))


def _object(columns: list[str], fields: list[DataField]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that renames the members of an object to their columns."""

    def finish(found: dict[str, Any]) -> dict[str, Any]:
        renamed = {}
        for column, field in zip(columns, fields, strict=True):
            value = found.get(field.name)
            renamed[column] = value if value is None or field.finish is None else field.finish(value)
        return renamed

    return finish
