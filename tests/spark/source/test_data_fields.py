"""Parsing of `data` into Arrow columns, without Spark. `test_typed` compares it with Spark's `from_json`."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from topics.lake.columns import JsonFields
from topics.spark.options import BadOption
from topics.spark.source.schema_layout import arrow_type


def fields_of(*fields: t.StructField) -> JsonFields:
    return JsonFields([pa.field(one.name, arrow_type(one.dataType, one.name)) for one in fields])


def parse(kind: t.DataType, *values: str, name: str = "a") -> tuple[list[Any], list[int]]:
    """Return the values of field `a`, and the positions of malformed records."""
    fields = fields_of(t.StructField(name, kind))
    [column], malformed = fields.parse(pa.array([f'{{"x": 1, "a": {value}}}' for value in values]))
    return column.to_pylist(), malformed


def test_values_that_fit_have_their_type():
    assert parse(t.LongType(), "1", "-9223372036854775808", "null") == ([1, -(1 << 63), None], [])
    assert parse(t.StringType(), '"é\\n"', '""') == (["é\n", ""], [])
    assert parse(t.DoubleType(), "1", "2.5e3", "-1e400") == ([1.0, 2500.0, float("-inf")], [])
    assert parse(t.BooleanType(), "true", "false") == ([True, False], [])
    assert parse(t.DecimalType(6, 2), "1.005", "12", '"3.1"') == ([Decimal("1.01"), Decimal(12), Decimal("3.1")], [])
    assert parse(t.DateType(), '"2024-02-29"') == ([date(2024, 2, 29)], [])
    assert parse(t.BinaryType(), '"AP8="') == ([b"\x00\xff"], [])
    moments = parse(t.TimestampType(), '"2024-02-29T12:00:00+01:00"', '"2024-02-29T12:00:00.5"', '"2024-02-29"')
    assert moments == (
        [
            datetime(2024, 2, 29, 11, tzinfo=UTC),
            datetime(2024, 2, 29, 12, 0, 0, 500_000, tzinfo=UTC),
            datetime(2024, 2, 29, tzinfo=UTC),
        ],
        [],
    )


def test_values_that_do_not_fit_are_null_and_malformed():
    assert parse(t.IntegerType(), "1", '"1"', "2147483648", "[1]", "2") == ([1, None, None, None, 2], [1, 2, 3])
    assert parse(t.DecimalType(3, 1), "99.9", "100", '"NaN"') == ([Decimal("99.9"), None, None], [1, 2])


MOMENTS = {  # in microseconds since 1970, as from_json has them
    "2024-01-01T00:00:00.1234567Z": 1704067200_123456,
    "2024-01-01T00:00:00.9999999+01:00": 1704063600_999999,
    "9999-12-31T23:59:59-10:00": 253402336799_000000,
    "0001-01-01T00:00:00+10:00": -62135632800_000000,
    "2024-01-01T00:00:00+01:00:30": 1704063570_000000,
    "2024-01-01 00:00:00": 1704067200_000000,
    "2024-01-01": 1704067200_000000,
    "2024-01-01t00:00:00Z": None,
    "2024-01-01T00:00:00z": None,
    "2024-01-01x00:00:00Z": None,
    "2024-02-30": None,
}


@pytest.mark.parametrize("other", ["1", '"no"'], ids=["all fields fit", "another field does not fit"])
def test_value_does_not_depend_on_other_fields(other: str):
    at, size = pa.field("at", pa.timestamp("us", "UTC")), pa.field("size", pa.float64())
    fields = JsonFields([at, size, pa.field("n", pa.int32()), pa.field("all", pa.struct([at, size]))])
    texts = [f'{{"at": "{text}", "size": -0, "n": {other}, "all": {{"at": "{text}", "size": -0}}}}' for text in MOMENTS]
    moments, sizes, _, both = fields.parse(pa.array(texts))[0]
    assert moments.cast(pa.int64()).to_pylist() == list(MOMENTS.values())
    assert both.field("at").cast(pa.int64()).to_pylist() == list(MOMENTS.values())
    assert {str(size) for column in (sizes, both.field("size")) for size in column.to_pylist()} == {"0.0"}


def test_string_column_takes_any_value_as_its_text():
    assert parse(t.StringType(), "1.50", '{"b": [1, 2]}', "true", '"\\ud800"') == (
        ["1.50", '{"b": [1, 2]}', "true", "?"],
        [],
    )


def test_nested_values_keep_the_parts_that_fit():
    inner = t.StructType().add("b", t.LongType()).add("c", t.StringType())
    assert parse(inner, '{"b": 1, "c": "x"}', '{"b": "no", "c": 2}', "{}", "7") == (
        [{"b": 1, "c": "x"}, {"b": None, "c": "2"}, {"b": None, "c": None}, None],
        [1, 3],
    )
    assert parse(t.ArrayType(t.LongType()), "[1, null]", "[]", '[1, "x"]') == ([[1, None], [], None], [2])
    assert parse(t.ArrayType(inner), '[{"b": "no", "c": "x"}, null]', "[1]") == (
        [[{"b": None, "c": "x"}, None], None],
        [0, 1],
    )


def test_records_that_are_no_objects_are_malformed():
    fields = fields_of(t.StructField("a", t.LongType()))
    texts = ['{"a": 1}', "[1]", '"text"', "null", '{"a":\n2}', '{"b": 3}', '{"a": 1, "a": 4}']
    [column], malformed = fields.parse(pa.array(texts))
    assert (column.to_pylist(), malformed) == ([1, None, None, None, 2, None, 4], [1, 2])


def test_type_without_a_form_is_refused():
    with pytest.raises(BadOption, match="column a is of type interval"):
        arrow_type(t.DayTimeIntervalType(), "a")
