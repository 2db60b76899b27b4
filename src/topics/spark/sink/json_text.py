"""Convert values of any Spark type to JSON text, in the form of Spark's `to_json`.

The two differ where `to_json` loses information: here a timestamp keeps its microseconds, and is always in UTC.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw
from pyspark.sql import types as t

from topics.spark.pyspark_api import TIME_TYPES

Convert = Callable[[Any], Any]

_encoder = msgspec.json.Encoder(decimal_format="number")
encode = _encoder.encode
encode_lines = _encoder.encode_lines

_AS_THEY_ARE = (
    t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DecimalType,
    t.StringType, t.CharType, t.VarcharType, t.NullType,
)  # fmt: skip


class NoJson(TypeError):
    """A Spark type has no JSON form."""


def converter(kind: t.DataType, where: str) -> Convert | None:
    """Return a function that makes an Arrow value encodable, or None if it is already. Raise `NoJson` if none can."""
    if isinstance(kind, _AS_THEY_ARE):
        return None
    if isinstance(kind, t.DoubleType | t.FloatType):
        return _or_null(_number)
    if isinstance(kind, t.TimestampType):
        return _or_null(lambda value: _moment(value.astimezone(UTC).replace(tzinfo=None)) + "Z")
    if isinstance(kind, t.TimestampNTZType):
        return _or_null(_moment)
    if isinstance(kind, (t.DateType, *TIME_TYPES)):
        return _or_null(lambda value: value.isoformat())
    if isinstance(kind, t.BinaryType):
        return _or_null(lambda value: base64.b64encode(value).decode())
    if isinstance(kind, t.VariantType):
        return _or_null(lambda value: Raw(t.VariantVal(value["value"], value["metadata"]).toJson().encode()))
    if isinstance(kind, t.ArrayType):
        return _array(converter(kind.elementType, f"{where}[]"))
    if isinstance(kind, t.MapType):
        return _map(converter(kind.keyType, f"{where} (keys)"), converter(kind.valueType, f"{where} (values)"))
    if isinstance(kind, t.StructType):
        return _struct({field.name: converter(field.dataType, f"{where}.{field.name}") for field in kind.fields})
    raise NoJson(f"{where} is of type {kind.simpleString()}, which has no JSON form; cast it to a string")


def _or_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _number(value: float) -> float | str:
    """Return a finite number as it is, and NaN or an infinity as a string, as `to_json` does: JSON has none."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _moment(value: datetime) -> str:
    return value.isoformat(timespec="microseconds" if value.microsecond % 1000 else "milliseconds")


def _array(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return _or_null(lambda values: [convert(value) for value in values])


def _map(key: Convert | None, value: Convert | None) -> Convert:
    def convert(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        return {_name(key(k) if key else k): value(v) if value else v for k, v in pairs}

    return _or_null(convert)


def _name(key: Any) -> str:
    return key if isinstance(key, str) else encode(key).decode()


def _struct(fields: dict[str, Convert | None]) -> Convert:
    def convert(values: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that are not NULL, as `to_json` does."""
        return {
            name: value if (one := fields[name]) is None else one(value)
            for name, value in values.items()
            if value is not None
        }

    return _or_null(convert)
