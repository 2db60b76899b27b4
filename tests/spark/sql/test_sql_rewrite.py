"""Statements as they are typed, and as Spark gets them."""

import pytest

from topics.spark.sql.text import BadQuery, is_whole, read, read_condition, split

TOPICS = {"orders", "orders.eu", "app:log-2", "Mixed", "a.b.c"}


@pytest.mark.parametrize(
    ("typed", "tables", "run"),
    [
        ("select * from orders", ["orders"], "select * from `orders`"),
        ("select * from orders.eu o", ["orders.eu"], "select * from `orders.eu` o"),
        ("SELECT 1 FROM app:log-2, orders", ["app:log-2", "orders"], "SELECT 1 FROM `app:log-2`, `orders`"),
        ("select 1 from `orders.eu`", ["orders.eu"], "select 1 from `orders.eu`"),
        ("select 1 from orders.*", ["orders.*"], "select 1 from `orders.*`"),
        ("select 1 from MIXED", ["Mixed"], "select 1 from `Mixed`"),
        ("select 1 from orders--x", ["orders"], "select 1 from `orders`--x"),
        ("select 1 from (select 2 from orders) x", ["orders"], "select 1 from (select 2 from `orders`) x"),
        ("select 1 from orders a join orders b on a.seq = b.seq", ["orders"] * 2, None),
        ("select extract(year from ts), 2 from orders", ["orders"], None),
        ("select 'from orders' from orders -- from orders", ["orders"], None),
        ("select 1 from range(10), orders", ["orders"], "select 1 from range(10), `orders`"),
        ("with x as (select * from orders) select * from x", ["orders"], None),
        ("select tag, seq from orders where tag in ('a', 'b'), orders", ["orders"], None),
    ],
)
def test_topics_are_found_in_table_positions(typed: str, tables: list[str], run: str | None):
    statement = read(typed, TOPICS)
    assert statement.tables == tables
    assert run is None or statement.text == run


@pytest.mark.parametrize(
    ("typed", "run", "paths"),
    [
        ("select data from orders", "select data from `orders`", {}),
        ("select data.sku from orders", "select _data.sku from `orders`", {"data": [("sku",)]}),
        ("select o.data.a.b from orders o", "select o._data.a.b from `orders` o", {"data": [("a", "b")]}),
        ("select data.items[0].qty from orders", "select _data.items[0].qty from `orders`", {"data": [("items",)]}),
        ("select data['x'] from orders", "select _data['x'] from `orders`", {"data": [()]}),
        ("select meta.`a b` from orders", "select _meta.`a b` from `orders`", {"meta": [("a b",)]}),
        ("select DATA . x from orders", "select _data . x from `orders`", {"data": [("x",)]}),
        ("select orders.eu.data.x from orders.eu", "select `orders.eu`._data.x from `orders.eu`", {"data": [("x",)]}),
        ("select 'data.x', `data.x` from orders", "select 'data.x', `data.x` from `orders`", {}),
        ("select get_json_object(data, '$.x') from orders", None, {}),
        (
            "select extract(year from data.at) from orders",
            "select extract(year from _data.at) from `orders`",
            {"data": [("at",)]},
        ),
        ("select x.y.data.z from orders", "select x.y.data.z from `orders`", {}),
    ],
)
def test_fields_are_read_from_the_typed_column(typed: str, run: str | None, paths: object):
    statement = read(typed, TOPICS)
    found: dict[str, list[tuple[str, ...]]] = {}
    for field in statement.fields:
        found.setdefault(field.column, []).append(field.path)
    assert found == paths
    assert run is None or statement.text == run


@pytest.mark.parametrize(
    ("typed", "aliases"),
    [
        ("from orders o join orders.eu as e on o.seq = e.seq", {"o": ["orders"], "e": ["orders.eu"]}),
        ("from orders where seq = 1", {"orders": ["orders"]}),
        ("from orders left join a.b.c O using (seq)", {"orders": ["orders"], "o": ["a.b.c"]}),
        ("from orders x, (select 1 from orders.eu x) y", {"x": ["orders", "orders.eu"]}),
    ],
)
def test_tables_are_known_by_name_or_alias(typed: str, aliases: object):
    assert read(f"select 1 {typed}", TOPICS).aliases == aliases


def test_field_belongs_to_its_table():
    statement = read("select o.data.x, meta.y, orders.eu.data.z from orders.eu o", TOPICS)
    assert [tuple(field) for field in statement.fields] == [
        ("data", ("x",), "o"), ("meta", ("y",), None), ("data", ("z",), "orders.eu"),
    ]  # fmt: skip


def test_unknown_name_is_left_to_spark():
    statement = read("select * from ordres", TOPICS)
    assert (statement.tables, statement.unknown, statement.text) == ([], ["ordres"], "select * from ordres")


@pytest.mark.parametrize("typed", ["drop table orders", "insert into orders values (1)", "", "-- nothing", "set a=b"])
def test_only_queries_are_accepted(typed: str):
    with pytest.raises(BadQuery):
        read(typed, TOPICS)


def test_statements_are_split_at_semicolons_outside_strings():
    assert split("select ';' ; select 2;; -- ;\n") == ["select ';'", "select 2"]


def test_condition_is_rewritten_like_a_statement():
    statement = read_condition("data.total > 100 and tag like 'a%' and value:x::int = 1")
    assert statement.text == "_data.total > 100 and tag like 'a%' and value:x::int = 1"
    assert statement.variant


@pytest.mark.parametrize(
    ("typed", "whole"),
    [
        ("select 1;", True),
        ("select 1", False),
        ("select ';", False),
        ("select 1 -- ;", False),
        ("/* ;", False),
        ("", False),
    ],
)
def test_statement_is_whole_at_a_semicolon_of_its_own(typed: str, whole: bool):
    assert is_whole(typed) is whole


@pytest.mark.parametrize(
    "query",
    [
        "select extract(year from ts) from orders where tag is distinct from node",
        "select * from range(3)",
        "select * from parquet.`/x/y`",
        "with a as (select 1) select * from a",
        "select * from orders, lateral explode(array(1))",
        "select * from (select * from orders)",
    ],
)
def test_uncertain_errors_are_left_to_spark(query: str):
    assert read(query, {"orders"}).missing is None
