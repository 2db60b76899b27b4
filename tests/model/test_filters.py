"""Filters on fields: their forms, what they match, and the needles that a search uses."""

from __future__ import annotations

import pytest
from msgspec import Raw

from tests.model.naive_filter import Pairs, loads, matches
from topics.model.field_tests import EXPONENT, CompiledFilter
from topics.model.filters import parse_filter


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
            assert found.matches(data, meta, tag) == expected, (seed, text, data, meta, tag)
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
