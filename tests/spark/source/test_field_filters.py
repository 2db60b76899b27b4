"""Conditions on fields of a typed read: the filter that is pushed keeps each record for which the condition holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)  # fmt: skip

from tests.conftest import ServerProcess
from topics.client import Client
from topics.engine.read.field_tests import Fields, compiled
from topics.lake.columns import JsonFields
from topics.model.filters import parse_filter
from topics.spark import table
from topics.spark.options import read_options
from topics.spark.source.filters import with_fields
from topics.spark.source.readers import PUSHDOWN, FilteringReader
from topics.spark.source.schema_layout import arrow_type

TYPES = {
    "whole": t.LongType(), "small": t.IntegerType(), "real": t.DoubleType(), "flag": t.BooleanType(),
    "text": t.StringType(), "by": t.StructType([t.StructField("name", t.StringType())]),
}  # fmt: skip
SCHEMA = t.StructType([t.StructField(name, kind) for name, kind in TYPES.items()])
TOKENS = [
    "0", "-0", "7", "7.0", "70e-1", "0.7e1", "8", "-8", "9007199254740993", "9007199254740992", "9223372036854775808",
    "1e400", "-1e400", "1e-400", "0.1", "0.10000000000000000555", "0.1000000000000000055511151231257827",
    "0.09999999999999999", "0.30000000000000004", "2147483648", "null", "true", "false", '"true"', '"7"', '"7.0"', '""',
    '"a"', '"ab"', '"a*b"', '"é"', '"\\u00e9"', '"\\ud800"', '"a\\ud800"', '"a?"', '"NaN"', '"INF"', '"-INF"',
    '"Infinity"', '"-Infinity"', "[1]", '{"name":"a"}', '{"name":7}', '{"name":"b","name":"a"}', '"{"', '"t"', '"[1]"',
]  # fmt: skip
NUMBERS: list[Any] = [0, 7, 8, -8, 2**53, 2**53 + 1, 2**31 - 1, -(2**63), 2**63 - 1]
REALS = [0.0, -0.0, 7.0, 0.1, 0.3, 5e-324, 1e308, 2.0**53, math.nextafter(0.1, 1), math.inf, -math.inf, math.nan]
TEXTS = ["", "a", "ab", "a*b", "a*", "é", "7", "7.0", "true", "t", "?", "a?", "[1]", "{", '{"name":"a"}', "NaN", "name"]
ORDERS: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: lambda one, other: one == other,
    GreaterThan: lambda one, other: one > other,
    GreaterThanOrEqual: lambda one, other: one >= other,
    LessThan: lambda one, other: one < other,
    LessThanOrEqual: lambda one, other: one <= other,
    StringStartsWith: lambda one, other: isinstance(one, str) and one.startswith(other),
    In: lambda one, others: one in others,
}  # fmt: skip


def ordered(value: Any) -> Any:
    """Return a value that Python orders as Spark orders the value: NaN is equal to itself and greater than others."""
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value


def condition(random: Random) -> tuple[tuple[str, ...], type, Any]:
    path = random.choice([("whole",), ("small",), ("real",), ("flag",), ("text",), ("by", "name")])
    values = {"whole": NUMBERS, "small": NUMBERS, "real": REALS, "flag": [True, False]}.get(path[0], TEXTS)
    is_text = values is TEXTS
    kinds = [EqualTo, In] if path[0] == "flag" else [kind for kind in ORDERS if is_text or kind is not StringStartsWith]
    kind = random.choice(kinds)
    return path, kind, tuple(random.sample(values, 2)) if kind is In else random.choice(values)


def test_pushed_filter_keeps_each_record_for_which_the_condition_holds():
    random, pushed, kept, left_out = Random(39), 0, 0, 0
    records = [f'{{"{name}":{token}}}' for name in SCHEMA.names for token in TOKENS] + ["5", "null", "[]", "{}"]
    fields = [pa.field(one.name, arrow_type(one.dataType, one.name)) for one in SCHEMA.fields]
    columns, _ = JsonFields(fields).parse(pa.array(records))
    rows = [
        dict(zip(SCHEMA.names, row, strict=True)) for row in zip(*(one.to_pylist() for one in columns), strict=True)
    ]
    stored = [Fields(record.encode(), None, None) for record in records]
    for _ in range(600):
        path, kind, value = condition(random)
        where = with_fields(None, [kind(path, value)], SCHEMA)
        if where is None:
            continue
        pushed += 1
        keeps = compiled(where.text).matches
        wanted = tuple(map(ordered, value)) if kind is In else ordered(value)
        for record, row, own in zip(records, rows, stored, strict=True):
            found: Any = row
            for name in path:
                found = None if found is None else found[name]
            holds = found is not None and ORDERS[kind](ordered(found), wanted)
            kept, left_out = kept + holds, left_out + (not keeps(own))
            assert keeps(own) or not holds, (kind.__name__, path, value, record, where.text)
    assert pushed > 300
    assert kept > 1000
    assert left_out > 50_000


def test_conditions_that_are_not_exact_are_not_pushed():
    for one in (
        EqualTo(("text",), "7"), StringStartsWith(("text",), "tr"), EqualTo(("text",), "a?"), LessThan(("text",), "b"),
        EqualTo(("real",), math.inf), IsNotNull(("whole",)), EqualTo(("_seq",), 5), EqualTo(("nothing",), 5),
        EqualTo(("by",), "a"), EqualTo(("whole",), None), In(("whole",), (None,)), In(("whole",), tuple(range(300))),
    ):  # fmt: skip
        assert with_fields(None, [one], SCHEMA) is None, one
    collated = t.StructType([t.StructField("text", t.StringType("UTF8_LCASE"))])
    assert with_fields(None, [EqualTo(("text",), "a")], collated) is None
    given = parse_filter(["Where", "x = 1e500 or y = 1"])
    many = [EqualTo(("whole",), at) for at in range(100)]
    found = with_fields(given, many, SCHEMA)
    assert given is not None
    assert found is not None
    assert given.text in found.text


@pytest.fixture
def orders(server: ServerProcess, topic: str) -> tuple[str, str]:
    schema = {"properties": {"qty": {"type": "integer"}, "sku": {"type": "string"}, "total": {"type": "number"}}}
    with Client(server.url) as client:
        client.put_topic(topic, schema=schema)
        rows = [{"qty": at % 10, "sku": f"V{at % 7}", "total": at * 1.5} for at in range(100)]
        client.append(topic, [{"data": row} for row in [*rows, {}, {"qty": 5}]])
    return server.url, topic


def test_spark_reads_only_the_records_that_match(spark: SparkSession, orders: tuple[str, str]):
    url, topic = orders
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = table(spark, topic, url=url, pushFilters=True)
        rows = frame.where("qty = 5 AND sku >= 'V3' AND total > 20 AND sku IN ('V5', 'V6', '7')").collect()
    finally:
        spark.conf.unset(PUSHDOWN)
    expected = [at for at in range(100) if at % 10 == 5 and at % 7 in (5, 6) and at * 1.5 > 20]
    assert [row["_seq"] - 1 for row in rows] == expected

    options = read_options({"url": url, "subscribe": topic, "typed": "true", "where": "total < 60"})
    reader = FilteringReader(
        options, t.StructType().add("qty", t.LongType()).add("sku", t.StringType()).add("_seq", t.LongType())
    )
    reader.pushFilters([EqualTo(("qty",), 5), In(("sku",), ("V5", "V6")), GreaterThan(("_seq",), 6)])
    read = [row["_seq"] - 1 for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert read == [at for at in range(6, 40) if at % 10 == 5 and at % 7 in (5, 6)]
