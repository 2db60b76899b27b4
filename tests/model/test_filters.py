"""Filters on fields: their forms, what they match, and the needles that a search uses."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from msgspec import Raw

from tests.model.naive_filter import Pairs, loads, matches
from topics.engine.read.field_tests import EXPONENT, CompiledFilter, Fields
from topics.errors import TopicsError
from topics.model.filters import parse_filter, parse_tests


def compile_filter(text: str) -> CompiledFilter:
    """Return a filter as a server makes it of the text in a request."""
    match = parse_filter(Raw(text.encode()))
    assert match is not None
    return CompiledFilter(text if match.op != "Where" else match.text)


def has_needle(found: CompiledFilter, record: bytes) -> bool:
    exponent = any(chr(record[at]).isdigit() and record[at + 1] in b"eE" for at in range(len(record) - 1))
    return found.needles is None or any(exponent if one is EXPONENT else one in record for one in found.needles)


def compare(seed: int, records: int, filters: int) -> int:
    """Compare random pairs with the naive evaluator. Return how many matched."""
    pairs, matched = Pairs(seed), 0
    made = [pairs.record() for _ in range(records)]
    for _ in range(filters):
        text = pairs.filter()
        wanted = loads(text.encode())
        found = compile_filter(text)
        for data, meta, tag in made:
            expected = matches(wanted, data, meta, tag)
            assert found.matches(Fields(data, meta, tag)) == expected, (seed, text, data, meta, tag)
            if expected:
                row = data + b"," + (meta or b"")
                assert has_needle(found, row), (seed, text, row, found.needles)
            matched += expected
    return matched


def test_random_pairs_match_as_in_a_naive_evaluator():
    assert compare(1, records=60, filters=60) > 300


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(20))
def test_many_random_pairs_match_as_in_a_naive_evaluator(seed: int):
    assert compare(100 + seed, records=100, filters=50) > 100


def test_text_has_the_meaning_of_the_filter_that_it_stands_for():
    same = {
        "a.b = 1 and c != 'it''s' or d < -2.5e3": [
            "Or", [["And", [["data.a.b", "Eq", 1], ["data.c", "Ne", "it's"]]], ["data.d", "Lt", -2500]],
        ],
        'not (tag = "x\\n" or meta.t >= null_)': None,
        "data exists and not meta exists": ["And", [["data", "Exists"], ["Not", ["meta", "Exists"]]]],
        "`a.b`.0 in (1, 'x', true, null)": [["data", "a.b", "0"], "In", [1, "x", True, None]],
        "a NOT IN (1)": ["And", [["data.a", "Exists"], ["Not", ["data.a", "In", [1]]]]],
        "name glob 'A*' or name contains 'd' or data grep '7'": [
            "Or", [["data.name", "Glob", "A*"], ["data.name", "Contains", "d"], ["data", "Grep", "7"]],
        ],
    }  # fmt: skip
    for text, wanted in same.items():
        if wanted is None:
            with pytest.raises(TopicsError):
                parse_filter(["Where", text])
        else:
            assert parse_tests(["Where", text], field="f") == parse_tests(wanted, field="f"), text


@pytest.mark.parametrize("tries", [2000, pytest.param(200_000, marks=pytest.mark.torture)])
def test_any_mutation_of_a_filter_is_compiled_or_refused(tries: int):
    rng, pairs = random.Random(9), Pairs(9)
    words = [*"()=<,1", "and", "or", "not", "a.b", "`x y`", "!=", "in", "exists", "'t'", '"q"', "-2e9"]
    values = [None, True, 7, "x", [], {}, ["And", []], "data", "Eq", [["data.a"]]]
    refusals = []
    for _ in range(tries):
        if rng.random() < 0.5:
            value = json.loads(pairs.filter())
            at = rng.choice([one for one in walked(value) if isinstance(one, list) and one])
            at[rng.randrange(len(at))] = rng.choice(values)
        else:
            value = ["Where", " ".join(rng.choice(words) for _ in range(rng.randrange(12)))]
        try:
            match = parse_filter(Raw(json.dumps(value).encode()))
        except TopicsError as error:
            refusals.append(error)
        else:
            if match is not None and match.op == "Where":
                CompiledFilter(match.text).matches(Fields(b'{"a":{"b":1}}', b"{}", "x"))
    assert {(error.code.status, (error.detail or {})["field"]) for error in refusals} == {(400, "filter")}
    assert tries // 4 < len(refusals) < tries


def walked(value: Any) -> list[Any]:
    return [value, *(found for one in value for found in walked(one))] if isinstance(value, list) else [value]
