"""Options of catalog tables travel in the schema. Without a session."""

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from topics.spark import data_source as table_options
from topics.spark.options import BadOption
from topics.spark.spark_session import table_names

COLUMNS = StructType().add("kind", StringType()).add("seq", LongType()).add("data", StringType())
CREATED = {"provider": "topics", "owner": "me", "url": "http://a", "option.url": "http://a", "option.subscribe": "t"}


def stored(**options: str) -> StructType:
    return table_options.with_options(COLUMNS, options)


def test_create_table_is_recognised_by_its_properties():
    assert table_options.of_create_table(CREATED) == {"url": "http://a", "subscribe": "t"}
    assert table_options.of_create_table({"url": "http://a"}) is None


def test_reader_gets_the_options_of_the_table_under_those_of_the_query():
    schema = stored(url="http://a", subscribe="t", startingOffsets="latest")
    found = table_options.for_reading({"startingoffsets": "earliest"}, schema)
    assert found == {"url": "http://a", "subscribe": "t", "startingoffsets": "earliest"}
    assert schema.fieldNames() == COLUMNS.fieldNames()


def test_dataframe_with_its_own_topic_ignores_a_table():
    given = {"subscribe": "other"}
    assert table_options.for_reading(given, stored(url="http://a", subscribe="t")) == given


def test_key_is_not_stored_in_the_catalog():
    with pytest.raises(BadOption, match="use tokenFile"):
        stored(subscribe="t", token="secret")


def test_table_without_options_explains_itself():
    with pytest.raises(BadOption, match="create it without a list of columns"):
        table_options.for_reading({}, COLUMNS)


def test_table_names_are_letters_digits_and_underscores():
    assert table_names({"orders", "Eu.orders-2", "sys:pipelines"}) == {
        "orders": "orders", "eu_orders_2": "Eu.orders-2", "sys_pipelines": "sys:pipelines",
    }  # fmt: skip
    with pytest.raises(BadOption, match=r"'a\.b' and 'a_b' would both be the table a_b"):
        table_names({"a.b", "a_b"})
