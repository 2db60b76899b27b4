"""The schema of a topic gives types to its fields: in `topics sql`, in a lake, and in DataFrames."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from topics.client import Client
from topics.lake import Lake, TypedColumns
from topics.lake.table import PROPERTIES, TABLE_SCHEMA
from topics.spark.pipelines import archive as pipelines
from topics.spark.sql.kinds import columns, of_schema
from topics.spark.sql.on_duckdb import DuckTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "sku": {"type": "string", "description": "what the customer ordered"},
        "price": {"type": "number"},
        "paid": {"type": ["boolean", "null"]},
        "by": {"type": "object", "properties": {"age": {"type": "integer"}}},
        "any": {},
        "seq": {"type": "integer"},
        "a`b": {"type": "integer"},
    },
}


@pytest.fixture
def orders(client: Client, topic: str) -> str:
    client.put_topic(topic, schema=SCHEMA)
    client.append(topic, [{"data": {"sku": "V60", "price": 12}}, {"data": {"sku": "KETTLE", "price": 30, "any": 1}}])
    return topic


def test_types_of_sql_come_from_the_schema(client: Client, orders: str):
    with closing(DuckTables({"url": client.url})) as tables:
        described = {row[0]: row[1] for row in tables.run(f"describe {orders}").rows(None)}
        assert described["data.price"] == "double"
        assert described["data.by"] == "struct<age:bigint>"
        assert described["data.any"] == "bigint"  # of the records
        answer = tables.run(f"select sum(data.price) as s, max(data.paid) as p from {orders}")
        assert (list(answer.rows(None)), answer.notes) == ([(42.0, None)], [])


def test_archive_gives_a_lake_the_columns_of_the_schema(client: Client, orders: str, tmp_path: Path):
    lake = tmp_path / "lake"
    pipelines.archive(lake=str(lake), url=client.url, topics=[orders], spark=False)
    typed = typed_columns(lake, orders)
    assert comments_of(lake, orders) == {"sku": "what the customer ordered"}
    assert typed == (("sku", "STRING"), ("price", "DOUBLE"), ("paid", "BOOLEAN"))
    with closing(DuckTables({"lake": str(lake), "lakeOnly": "true"})) as tables:
        assert list(tables.run(f"select sku, price from {orders} order by seq").rows(None)) == [
            ("V60", 12.0), ("KETTLE", 30.0),
        ]  # fmt: skip
    added = {"note": {"type": "string", "description": "of the clerk"}, "sku": {"type": "string", "description": "new"}}
    changed = {**SCHEMA, "properties": {**SCHEMA["properties"], **added}}
    client.put_topic(orders, schema=changed)
    client.append(orders, [{"data": {"sku": "V60", "note": "x"}}])
    pipelines.archive(lake=str(lake), url=client.url, topics=[orders], spark=False)
    assert typed_columns(lake, orders) == (*typed, ("note", "STRING"))
    assert comments_of(lake, orders) == {"sku": "what the customer ordered", "note": "of the clerk"}


def test_table_without_comments_is_archived_to_as_before(client: Client, orders: str, tmp_path: Path):
    lake = tmp_path / "lake"
    Lake(str(lake)).create()
    table = Lake(str(lake)).table(orders)
    table._delta.create(TABLE_SCHEMA, name=orders, properties=PROPERTIES)
    table.add_columns(TypedColumns.parse("sku STRING"))
    pipelines.archive(lake=str(lake), url=client.url, topics=[orders], spark=False)
    found = DeltaTable(table.uri)
    assert (found.metadata().description, comments_of(lake, orders)) == (None, {})
    assert found.to_pyarrow_table().sort_by("seq")["sku"].to_pylist() == ["V60", "KETTLE"]


def comments_of(lake: Path, topic: str) -> dict[str, str]:
    """Return the comments of the typed columns."""
    schema = DeltaTable(Lake(str(lake)).table(topic).uri).schema()
    typed = [one for one in schema.fields if one.name not in TABLE_SCHEMA.names]
    return {one.name: one.metadata["comment"] for one in typed if "comment" in one.metadata}


def typed_columns(lake: Path, topic: str) -> tuple[tuple[str, str], ...]:
    table = Lake(str(lake)).table(topic)
    table.state()
    return table.typed().fields


@pytest.mark.torture
def test_dataframe_has_the_types_of_the_schema(spark: SparkSession, client: Client, orders: str):
    from topics.spark import infer_schema

    assert (
        infer_schema(spark, orders, url=client.url)
        .simpleString()
        .startswith("struct<sku:string,price:double,paid:boolean")
    )


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (None, None),
        (True, None),
        ({"type": ["integer", "string"]}, "string"),
        ({"type": "array", "items": {"type": "number"}}, ["double"]),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}}, {"a": None}),
        ({"anyOf": [{"type": "string"}]}, None),
    ],
)
def test_kind_of_a_schema(schema: Any, kind: Any):
    assert of_schema(schema) == kind
    assert columns(schema).fields == ()
