"""Statements as they are typed, and as an engine gets them."""

import pytest

from topics.spark.sql.text import DUCKDB, SPARK, BadQuery, is_whole, read, read_condition, split

TOPICS = {"orders", "orders.eu", "app:log-2", "Mixed", "a.b.c", "a.b.c.d"}


@pytest.mark.parametrize(
    ("typed", "tables", "run"),
    [
        ("select * from orders", ["orders"], "select * from `orders`"),
        ("select * from orders.eu o", ["orders.eu"], "select * from `orders.eu` o"),
        ("SELECT 1 FROM app:log-2 join a.b.c.d", ["app:log-2", "a.b.c.d"], "SELECT 1 FROM `app:log-2` join `a.b.c.d`"),
        ("select 1 from `orders.eu`", ["orders.eu"], "select 1 from `orders.eu`"),
        ('select 1 from "orders.eu"', ["orders.eu"], "select 1 from `orders.eu`"),
        ("select 1 from orders.*", ["orders.*"], "select 1 from `orders.*`"),
        ("select 1 from MIXED", ["Mixed"], "select 1 from `Mixed`"),
        ("select 1 from orders--x", ["orders"], "select 1 from `orders`--x"),
        ("select 1 from (select 2 from orders) x", ["orders"], "select 1 from (select 2 from `orders`) x"),
        ("select 1 from orders a join orders b on a.seq = b.seq", ["orders"] * 2, None),
        ("select extract(year from ts), 2 from orders", ["orders"], None),
        ("select 'from orders' from orders -- from orders", ["orders"], None),
        ("select 1 from range(10) join orders", ["orders"], "select 1 from range(10) join `orders`"),
        ("with x as (select * from orders) select * from x", ["orders"], None),
        ("describe app:log-2", ["app:log-2"], "describe `app:log-2`"),
        ("select 1 from x where tag is distinct from orders", [], None),
    ],
)
def test_topics_are_found_after_from_and_join(typed: str, tables: list[str], run: str | None):
    statement = read(typed, TOPICS)
    assert statement.tables == tables
    assert run is None or statement.text == run


@pytest.mark.parametrize(
    ("typed", "run", "paths"),
    [
        ("select data from orders", "select data from `orders`", []),
        ("select data.sku from orders", "select _data.sku from `orders`", ["data.sku"]),
        ("select o.data.a.b from orders o", "select o._data.a.b from `orders` o", ["data.a.b"]),
        ("select data.items[0].qty from orders", "select _data.items[0].qty from `orders`", ["data.items.qty"]),
        ("select data['x'] from orders", "select _data['x'] from `orders`", ["data"]),
        ("select meta.`a b` from orders", "select _meta.`a b` from `orders`", ["meta.a b"]),
        ("select DATA . x from orders", "select _data .x from `orders`", ["data.x"]),
        ("select 'data.x', `data.x` from orders", "select 'data.x', `data.x` from `orders`", []),
        ("select get_json_object(data, '$.x') from orders", None, []),
        (
            "select extract(year from data.at) from orders",
            "select extract(year from _data.at) from `orders`",
            ["data.at"],
        ),
        (
            "select metadata.x, data.data.y from orders",
            "select metadata.x, _data.data.y from `orders`",
            ["data.data.y"],
        ),
    ],
)
def test_fields_are_read_from_the_typed_column(typed: str, run: str | None, paths: list[str]):
    statement = read(typed, TOPICS)
    assert [str(field) for field in statement.fields] == paths
    assert run is None or statement.text == run


def test_dialects_differ_in_quotes_and_the_first_index():
    typed = "select data.items[0].`a b`, meta.x from orders.eu"
    assert read(typed, TOPICS, SPARK).text == "select _data.items[0].`a b`, _meta.x from `orders.eu`"
    assert read(typed, TOPICS, DUCKDB).text == 'select _data.items[1]."a b", _meta.x from "orders.eu"'


@pytest.mark.parametrize("typed", ["drop table orders", "insert into orders values (1)", "", "-- nothing", "set a=b"])
def test_only_queries_are_accepted(typed: str):
    with pytest.raises(BadQuery):
        read(typed, TOPICS)


def test_statements_are_split_at_semicolons_outside_strings():
    assert split("select ';' ; select 2;; -- ;\n") == ["select ';'", "select 2"]


def test_condition_is_prepared_like_a_statement():
    statement = read_condition("data.total > 100 and tag like 'a%' and value:x::int = 1")
    assert statement.text == "_data.total > 100 and tag like 'a%' and value:x::int = 1"
    assert "value" in statement.words


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
    ("typed", "missing"),
    [
        ("select * from ordres", "ordres"),
        ("select * from shop.oders where seq > 1", "shop.oders"),
        ("select 1 from orders a join nix b on a.x = b.y", "nix"),
        ("describe nix", "nix"),
        ("select extract(year from ts) from orders where tag is distinct from node", None),
        ("select * from range(3)", None),
        ("select * from parquet.`/x/y`", None),
        ("with a as (select 1) select * from a", None),
        ("select * from orders, lateral explode(array(1))", None),
        ("select * from (select * from orders)", None),
    ],
)
def test_only_certain_mistakes_are_reported_before_the_engine_starts(typed: str, missing: str | None):
    assert read(typed, {"orders"}).missing == missing
