"""Filters: with pushdown on or off the same rows; with it on, less is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual, StringStartsWith

from tests.conftest import ServerProcess
from tests.spark.world import load
from topics.client import Client
from topics.spark.options import read_options
from topics.spark.source.readers import PUSHDOWN, FilteringReader, ReadPartition

CONDITIONS: dict[str, Callable[[Any], object]] = {
    "topic = 'f.one'": lambda row: row.topic == "f.one",
    "topic IN ('f.one', 'f.three')": lambda row: row.topic != "f.two",
    "topic LIKE 'f.t%'": lambda row: row.topic != "f.one",
    "seq > 5 AND seq <= 9": lambda row: 5 < row.seq <= 9,
    "seq IN (2, 7)": lambda row: row.seq in (2, 7),
    "seq = 3 AND tag = 'xy'": lambda row: row.seq == 3,
    "tag LIKE 'x%'": lambda row: row.tag in ("x", "xy"),
    "tag = 'nothing'": lambda row: False,
    "tag IS NULL": lambda row: row.tag is None,
    "ts >= '2020-01-01' AND ts < '2035-01-01' AND seq < 4": lambda row: row.seq < 4,
    "ts < '2020-01-01'": lambda row: False,
    "NOT seq = 3": lambda row: row.seq != 3,
    "seq < 3 OR seq > 11": lambda row: not 3 <= row.seq <= 11,
    "kind = 'gap'": lambda row: False,
}
FEW = {text: CONDITIONS[text] for text in ("topic LIKE 'f.t%'", "seq > 5 AND seq <= 9", "tag LIKE 'x%'", "tag IS NULL")}


@pytest.fixture(scope="session")  # the tests of this file run in two groups, on one server
def filled(server: ServerProcess) -> str:
    with Client(server.url) as client:
        for name in ("f.one", "f.two", "f.three"):
            client.append(name, [{"data": n, "tag": [None, "x", "xy", "z"][n % 4]} for n in range(12)])
    return server.url


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def test_spark_refuses_the_option_without_its_setting(spark: SparkSession, filled: str):
    spark.conf.set(PUSHDOWN, "false")
    try:
        with pytest.raises(PySparkException, match="filterPushdown"):
            load(spark, url=filled, subscribe="f.one", pushFilters="true").count()
    finally:
        spark.conf.unset(PUSHDOWN)


@pytest.mark.parametrize("conditions", [FEW, pytest.param(CONDITIONS, marks=pytest.mark.torture)], ids=["few", "all"])
def test_pushed_condition_selects_the_same_rows(
    spark: SparkSession, filled: str, pushing: None, conditions: dict[str, Callable[[Any], object]]
):
    rows = load(spark, url=filled, subscribePrefix="f.").collect()
    expected = {text: {(row.topic, row.seq) for row in rows if holds(row)} for text, holds in conditions.items()}
    frames = [load(spark, url=filled, subscribePrefix="f.", pushFilters="true").where(text) for text in conditions]
    named = [frame.selectExpr(f"{n} AS n", "topic", "seq") for n, frame in enumerate(frames)]
    found: dict[str, set[tuple[str, int]]] = {text: set() for text in conditions}
    for row in reduce(DataFrame.union, named).collect():  # all in one job
        found[list(conditions)[row.n]].add((row.topic, row.seq))
    assert found == expected


def test_by_default_one_query_does_not_narrow_the_next(spark: SparkSession, filled: str, pushing: None):
    frame = load(spark, url=filled, subscribePrefix="f.")
    assert frame.where("seq < 3").count() == 6
    assert frame.count() == 36
    assert frame.where("seq < 3").union(frame.where("seq > 11")).count() == 9


def test_spark_reuses_pushed_filters_for_later_queries(spark: SparkSession, filled: str):
    """Spark plans a DataFrame once, with the filters of its first query. When this fails, the default can change."""
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = load(spark, url=filled, subscribePrefix="f.", pushFilters="true")
        assert frame.where("seq < 3").count() == 6
        assert frame.count() == 6
    finally:
        spark.conf.unset(PUSHDOWN)


def planned(url: str, *filters: object) -> list[tuple[str, int, int]]:
    reader = FilteringReader(read_options({"url": url, "subscribePrefix": "f.", "pushFilters": "true"}))
    assert list(reader.pushFilters(list(filters))) == list(filters)
    parts = [part for part in reader.partitions() if isinstance(part, ReadPartition)]
    return [(span.topic, span.start, span.stop) for part in parts for span, _ in part.spans]


def test_filters_narrow_the_plan(filled: str):
    assert planned(filled, EqualTo(("topic",), "f.one")) == [("f.one", 1, 13)]
    assert planned(filled, In(("topic",), ("f.one", "x")), GreaterThan(("seq",), 4)) == [("f.one", 5, 13)]
    narrow = planned(filled, StringStartsWith(("topic",), "f.t"), LessThanOrEqual(("seq",), 3))
    assert narrow == [("f.three", 1, 4), ("f.two", 1, 4)]


def test_tag_is_pushed_to_the_server(filled: str):
    reader = FilteringReader(read_options({"url": filled, "subscribe": "f.one", "pushFilters": "true"}))
    reader.pushFilters([EqualTo(("tag",), "x")])
    read = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["seq"] for row in read] == [2, 6, 10]
