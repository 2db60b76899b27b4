"""Columns of flat JSON objects, found by position. The standard parser decides what is right."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from topics.lake.json_fields import flat_columns

FIELDS = [("sku", pa.string()), ("total", pa.int64())]
NAMES = ["sku", "total", "qty", "a", "a name that is longer than a word", "ü"]
STRINGS = ["", "x", "V60", "sku", "total", "sku:", ",", ":", "ü€😀", "a string that is longer than a word"]
OTHERS = [0, -1, 7, 3499, 2**63 - 1, -(2**63), 2**63, 1.5, 1e3, True, None, {"sku": "x"}, ["total"], 'a"b', "{", "\n"]


def parsed(texts: list[str]) -> list[list[Any]] | None:
    columns = flat_columns(pa.array(texts, pa.string()), FIELDS)
    return None if columns is None else [column.to_pylist() for column in columns]


def expected(texts: list[str]) -> list[list[Any]]:
    rows = [json.loads(text) for text in texts]
    return [[row.get(name) for row in rows] for name, _ in FIELDS]


@pytest.mark.parametrize(
    "texts",
    [
        ['{"sku":"V60","qty":1,"total":3499}', '{"sku":"","qty":12,"total":-5}'],
        ['{"total":1,"sku":"a"}', '{"total":22,"sku":"bc"}'],
        ['{"total":1}', '{"total":2}'],
        ['{"a":true,"sku":"x"}', '{"a":null,"sku":"y"}'],
        ['{"a name that is longer than a word":"ü","sku":"€"}'],
    ],
)
def test_records_with_equal_members_are_read(texts: list[str]):
    assert parsed(texts) == expected(texts)


def test_slice_of_an_array_is_read():
    whole = pa.array(['{"sku":"a","total":1}', '{"sku":"bb","total":22}', '{"sku":"c","total":3}'])
    columns = flat_columns(whole.slice(1, 1), FIELDS)
    assert columns is not None
    assert [column.to_pylist() for column in columns] == [["bb"], [22]]


@pytest.mark.parametrize(
    "texts",
    [
        ['{"a":1,"sku":"x"}', '{"a":{"sku":"x"}}'],  # the same quotes, but nested
        ['{"a":1,"sku":"x"}', '{"a":"sku","x":1}'],  # the same strings, but another name
        ['{"sku":"a","total":3}', '{"total":3,"sku":"a"}'],
        ['{"sku":"a","total":3,"a":9}', '{"sku":"a","total":3,"sku":9}'],
        ['{"sku":"a","sku":"b"}'],
        ['{"sku":"a"}', '{"sku":1}'],
        ['{"sku":1,"total":1}'],
        ['{"sku":"a","total":"1"}'],
        ['{"sku":"a","total":1.0}'],
        ['{"sku":"a","total":null}'],
        ['{"sku":"a","total":9223372036854775808}'],
        ['{"sku": "a", "total": 1}'],
        ['{"sku":"a\\u0062","total":1}'],
        ['{"sku":"{","total":1}'],
        ["{}"],
        ["1"],
        ['"sku"'],
        ['[{"sku":"a"}]'],
        ['{"sku":"a"}', "1"],
    ],
)
def test_other_records_are_left_to_the_parser(texts: list[str]):
    assert parsed(texts) is None


def test_random_records_are_read_exactly_or_not_at_all():
    rng = Random(7)
    read = 0
    for _ in range(4_000):
        names = rng.sample(NAMES, rng.randint(1, 4))
        kinds = [rng.choice(("string", "number", "any")) for _ in names]
        texts = [_random_record(rng, names, kinds) for _ in range(rng.randint(1, 4))]
        found = parsed(texts)
        assert found is None or found == expected(texts), texts
        read += found is not None
    assert read > 500


def _random_record(rng: Random, names: list[str], kinds: list[str]) -> str:
    if rng.random() < 0.05:
        names = rng.sample(names, len(names))
    record = {}
    for name, kind in zip(names, kinds, strict=True):
        by_kind: dict[str, list[Any]] = {"string": STRINGS, "number": list(range(-3, 3)), "any": [*OTHERS, *STRINGS]}
        record[name] = rng.choice(by_kind[kind])
    style: dict[str, Any] = {} if rng.random() < 0.05 else {"separators": (",", ":")}
    return json.dumps(record, ensure_ascii=rng.random() < 0.05, **style)
