"""Topics as tables of Spark's catalog: SELECT, CREATE TABLE, and streams of a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from tests.conftest import ServerProcess, StartServer
from tests.spark.streams import drain
from topics.client import Client
from topics.spark import register
from topics.spark.options import BadOption


@pytest.fixture
def shop(start_server: StartServer, spark: SparkSession) -> Iterator[ServerProcess]:
    server = start_server()
    with Client(server.url) as client:
        client.append("orders", [{"data": {"sku": sku, "qty": qty}, "tag": "web"} for sku, qty in (("A", 2), ("B", 1))])
        client.append("orders.eu", [{"data": {"sku": "C", "qty": 5}}])
    yield server
    spark.sql("DROP DATABASE IF EXISTS topics CASCADE")


def test_topics_are_tables_after_register(spark: SparkSession, shop: ServerProcess):
    register(spark, url=shop.url, schemas={"orders.eu": "sku STRING, qty INT, _seq BIGINT"})
    assert [tuple(row) for row in spark.sql("SELECT seq, tag FROM topics.orders ORDER BY seq").collect()] == [
        (1, "web"), (2, "web"),
    ]  # fmt: skip
    assert [tuple(row) for row in spark.sql("SELECT * FROM topics.orders_eu").collect()] == [("C", 5, 1)]
    late = spark.sql("SELECT seq FROM topics.orders WITH (startingOffsets = '{\"orders\": 2}')")
    assert [row.seq for row in late.collect()] == [2]
    with pytest.raises(BadOption, match="'none' does not exist"):
        register(spark, url=shop.url, schemas={"none": "a INT"})


def test_table_is_for_reading(spark: SparkSession, shop: ServerProcess):
    register(spark, url=shop.url)
    with pytest.raises(PySparkException, match="a table of topics is for reading"):
        spark.sql("""INSERT INTO topics.orders (data, tag) VALUES ('{"sku":"D"}', 'shop')""")


def test_create_table_keeps_its_options(spark: SparkSession, shop: ServerProcess, tmp_path: Path):
    spark.sql("CREATE DATABASE topics")
    spark.sql(f"CREATE TABLE topics.mine USING topics OPTIONS (url '{shop.url}', subscribe 'orders')")
    assert spark.sql("SELECT count(*) FROM topics.mine WHERE kind = 'record'").first() == (2,)
    stream = spark.readStream.option("startingOffsets", "earliest").table("topics.mine")
    assert [len(batch) for batch in drain(stream, tmp_path)] == [2]
    with pytest.raises(AnalysisException, match="did you mean 'subscribe'"):
        spark.sql(f"CREATE TABLE topics.wrong USING topics OPTIONS (url '{shop.url}', subscibe 'orders')")
    with pytest.raises(AnalysisException, match="use tokenFile for a table"):
        spark.sql("CREATE TABLE topics.wrong USING topics OPTIONS (subscribe 'orders', token 'secret')")
    spark.sql("CREATE TABLE topics.listed (seq BIGINT) USING topics OPTIONS (subscribe 'orders')")
    with pytest.raises(PySparkException, match="create it without a list of columns"):
        spark.sql("SELECT * FROM topics.listed").collect()
