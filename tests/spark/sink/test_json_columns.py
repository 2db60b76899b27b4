"""JSON of whole columns is the JSON of their values, one by one."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from topics.spark.sink.json_columns import converter, encode, json_column

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
]


@pytest.mark.parametrize(("kind", "arrow", "values"), CASES)
def test_column_is_written_as_its_values_are(kind: t.DataType, arrow: pa.DataType, values: list[Any]):
    convert = converter(kind, "data")
    column = pa.array(values * 2, arrow)
    for part in (column, column.slice(1), column.slice(1, len(values) - 1), column.slice(0, 0)):
        expected = [
            None if value is None else encode(convert(value) if convert else value) for value in part.to_pylist()
        ]
        found = json_column(kind, "data")(part).to_pylist()
        assert [None if text is None else text.encode() for text in found] == expected


def test_nan_is_a_string():
    assert json_column(t.DoubleType(), "data")(pa.array([float("nan")])).to_pylist() == ['"NaN"']
