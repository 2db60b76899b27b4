"""Casts of fields of `value` give NULL where a value does not fit."""

import pytest

from topics.spark.sql.text import lenient


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("value:price::int > 3", "try_cast(value:price AS int) > 3"),
        ("sum(value:a.b[0]::decimal(10, 2)) AS x", "sum(try_cast(value:a.b[0] AS decimal(10, 2))) AS x"),
        ("CAST(value:price AS int)", "try_cast(value:price AS int)"),
        ("value:a::string::timestamp", "try_cast(try_cast(value:a AS string) AS timestamp)"),
        ("value:['x y']::array<int>[0]", "try_cast(value:['x y'] AS array<int>)[0]"),
        ("value::int", "try_cast(value AS int)"),
        ("tag::int = 1 AND 'value:x::int' <> ''", "tag::int = 1 AND 'value:x::int' <> ''"),
        ("value:price", "value:price"),
        ("value:a::int < 5 AND value:b::int > 3", "try_cast(value:a AS int) < 5 AND try_cast(value:b AS int) > 3"),
        ("value:a::map<string, array<int>> IS NULL", "try_cast(value:a AS map<string, array<int>>) IS NULL"),
    ],
)
def test_only_casts_of_value_are_rewritten(given: str, made: str) -> None:
    assert lenient(given) == made
