"""Options of catalog tables travel in the schema. Without a session."""

from typing import Any

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


def test_writer_gets_connection_and_topic_of_the_table():
    schema = stored(url="http://a", subscribe="t", startingOffsets="latest", tokenFile="/key")
    found = table_options.for_writing({"writeId": "x"}, schema)
    assert found == {"url": "http://a", "tokenFile": "/key", "topic": "t", "writeId": "x"}
    assert table_options.is_insert({}, schema)
    own: dict[str, Any] = {"url": "http://b"}
    assert table_options.for_writing(own, schema) == own
    assert not table_options.is_insert(own, schema)


@pytest.mark.parametrize("options", [{"subscribe": "a,b"}, {"subscribePrefix": "a"}])
def test_table_of_several_topics_cannot_be_written(options: dict[str, str]):
    with pytest.raises(BadOption, match="does not have exactly one topic"):
        table_options.for_writing({}, stored(**options))


def test_typed_table_cannot_be_written():
    typed = table_options.with_options(StructType().add("sku", StringType()), {"subscribe": "t", "typed": "true"})
    with pytest.raises(BadOption, match="only for reading"):
        table_options.for_writing({}, typed)


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
