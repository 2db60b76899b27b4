"""JSON of whole columns is the JSON of their values, one by one."""

import base64
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from msgspec import Raw
from pyspark.sql import types as t

from topics.spark.sink.rows import BadColumns, encode, json_column

Convert = Callable[[Any], Any]

UTC_US = pa.timestamp("us", tz="UTC")
MOMENTS = [
    datetime(2024, 2, 29, 12, 0, 0, 123_000, tzinfo=UTC), None, datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC),
]  # fmt: skip
TEXTS = ["plain", "é", 'quo"te', "back\\slash", '\\"', "", None]
ITEM = t.StructType().add("s", t.StringType()).add("n", t.LongType()).add("m", t.MapType(t.StringType(), t.LongType()))
ITEM_ARROW = pa.struct([("s", pa.string()), ("n", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))])
ITEMS = [{"s": "a", "n": 1, "m": [("k", 1)]}, {"s": None, "n": None, "m": None}, None, {"s": 'x"', "n": None, "m": []}]

CASES: list[tuple[t.DataType, pa.DataType, list[Any]]] = [
    (t.StringType(), pa.string(), TEXTS),
    (t.StringType(), pa.string(), ["tab\t", "line\n", "\x01", None, "fine"]),
    (t.StringType(), pa.string(), [None, None]),
    (t.LongType(), pa.int64(), [1, None, -(1 << 63)]),
    (t.ByteType(), pa.int8(), [1, None, -128]),
    (t.BooleanType(), pa.bool_(), [True, None, False]),
    (t.DoubleType(), pa.float64(), [1.0, None, 1e300, float("inf"), float("-inf"), 0.1, -0.0]),
    (t.FloatType(), pa.float32(), [1.5, None, 0.1]),
    (t.DecimalType(20, 2), pa.decimal128(20, 2), [Decimal("1.10"), None]),
    (t.TimestampType(), UTC_US, MOMENTS),
    (t.TimestampType(), UTC_US, [datetime(5, 1, 1, tzinfo=UTC), None]),
    (t.TimestampNTZType(), pa.timestamp("us"), [m and m.replace(tzinfo=None) for m in MOMENTS]),
    (t.DateType(), pa.date32(), [date(2024, 2, 29), None]),
    (t.BinaryType(), pa.binary(), [b"\x00\xff", None]),
    (t.ArrayType(t.StringType()), pa.list_(pa.string()), [["a", None], None, [], ['"']]),
    (t.ArrayType(t.ArrayType(t.LongType())), pa.list_(pa.list_(pa.int64())), [[[1], None, []], None]),
    (ITEM, ITEM_ARROW, ITEMS),
    (t.ArrayType(ITEM), pa.list_(ITEM_ARROW), [ITEMS, None, [], [None]]),
    (t.StructType().add('odd "name"', ITEM), pa.struct([('odd "name"', ITEM_ARROW)]), [{'odd "name"': ITEMS[0]}, None]),
    (t.StructType(), pa.struct([]), [{}, None]),
    (t.MapType(t.LongType(), ITEM), pa.map_(pa.int64(), ITEM_ARROW), [[(1, ITEMS[0]), (2, None)], None, []]),
    (t.MapType(t.DateType(), t.DateType()), pa.map_(pa.date32(), pa.date32()), [[(date(2024, 2, 29), None)], None]),
    (t.MapType(t.StringType(), t.DoubleType()), pa.map_(pa.string(), pa.float64()), [[('"', 1.5), ("é", None)], []]),
    (t.ArrayType(t.DecimalType(9, 7)), pa.list_(pa.decimal128(9, 7)), [[Decimal("0.0000001"), None], None]),
]


def test_type_without_json_form_is_refused():
    with pytest.raises(BadColumns, match=r"data\.x is of type interval"):
        json_column(t.StructType().add("x", t.DayTimeIntervalType()), "data")


@pytest.mark.parametrize(("kind", "arrow", "values"), CASES)
def test_column_is_written_as_its_values_are(kind: t.DataType, arrow: pa.DataType, values: list[Any]):
    convert = converter(kind, "data")
    column = pa.array(values * 2, arrow)
    for part in (column, column.slice(1), column.slice(1, len(values) - 1), column.slice(0, 0)):
        expected = [
            None if value is None else encode(convert(value) if convert else value) for value in part.to_pylist()
        ]
        found = json_column(kind, "data")(part).to_pylist()
        assert found == expected


def test_nan_is_a_string():
    assert json_column(t.DoubleType(), "data")(pa.array([float("nan")])).to_pylist() == [b'"NaN"']


# --- the expected form, value by value

_AS_THEY_ARE = (
    t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DecimalType,
    t.StringType, t.CharType, t.VarcharType, t.NullType,
)  # fmt: skip


def converter(kind: t.DataType, where: str) -> Convert | None:
    """Return a function that makes an Arrow value encodable, or None if it is already."""
    if isinstance(kind, _AS_THEY_ARE):
        return None
    if isinstance(kind, t.DoubleType | t.FloatType):
        return _or_null(_number)
    if isinstance(kind, t.TimestampType):
        return _or_null(lambda value: _moment(value.astimezone(UTC).replace(tzinfo=None)) + "Z")
    if isinstance(kind, t.TimestampNTZType):
        return _or_null(_moment)
    if isinstance(kind, t.DateType | t.TimeType):
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
    raise AssertionError(f"{where} is of type {kind.simpleString()}")


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
