"""Columns: ids, positions and the parts of a rendered record, without looking into the record."""

from array import array
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.records import Projection, TagMatch
from topics.storage.segments.columns import (
    NO_NAMES,
    Columns,
    GrowingNames,
    SortedNames,
    extend,
    growable,
    render_without,
    runs,
)

names = st.text(max_size=4)


def sorted_names(*values: str) -> SortedNames:
    encoded = sorted(value.encode() for value in values)
    ends, end = array("I"), 0
    for value in encoded:
        end += len(value)
        ends.append(end)
    return SortedNames(memoryview(ends), b"".join(encoded))


@given(st.sets(names), names)
def test_a_sealed_dictionary_finds_what_a_growing_one_finds(values, asked):
    growing, sealed = GrowingNames(), sorted_names(*values)
    for value in values:
        growing.add(value)
    assert len(growing) == len(sealed) == len(values)
    for known in (growing, sealed):
        assert {known.name_of(known.id_of(value)) for value in values} == values
        assert (known.id_of(asked) > 0) == (asked in values)
        assert {known.name_of(found) for found in known.ids_with_prefix(asked)} == {
            v for v in values if v.startswith(asked)
        }


def test_a_name_keeps_the_id_it_got_first():
    growing = GrowingNames()
    assert [growing.add(name) for name in ("b", "a", "b", "")] == [1, 2, 1, 3]


def columns_of(*batches: dict) -> Columns:
    columns = Columns(100)
    for batch in batches:
        extend(columns, **{"ts": 1, "tags": None, "nodes": None, "metas": None} | batch)
    return columns


def test_columns_exist_only_once_a_record_needs_them():
    columns = columns_of({"sizes": [10, 20]})
    assert (columns.tags, columns.nodes, columns.metas) == (None, None, None)
    assert (list(columns.offsets), list(columns.ts), len(columns)) == ([0, 10, 30], [1, 1], 2)


def test_a_column_that_begins_late_says_none_of_what_came_before_and_goes_on_after():
    columns = columns_of(
        {"sizes": [1, 1]},
        {"sizes": [1, 1], "ts": 5, "tags": ["x", None], "nodes": "n", "metas": [0, 7]},
        {"sizes": [1]},
    )
    assert [columns.tag_at(at) for at in range(5)] == [None, None, "x", None, None]
    assert [columns.node_at(at) for at in range(5)] == [None, None, "n", "n", None]
    assert list(columns.metas) == [0, 0, 0, 7, 0]
    assert list(columns.ts) == [1, 1, 5, 5, 1]


tagged = st.lists(st.none() | st.sampled_from(["", "a", "ab", "b", "é"]), min_size=1, max_size=12)


@given(tagged, st.sampled_from(["Eq", "Glob"]), st.sampled_from(["", "a", "ab", "c"]), st.data())
def test_matching_finds_the_positions_a_look_at_each_would(tags, op, text, data):
    columns = columns_of({"sizes": [1] * len(tags), "tags": tags, "nodes": tags})
    low = data.draw(st.integers(0, len(tags)))
    high = data.draw(st.integers(low, len(tags)))
    match = TagMatch(op, text)
    assert columns.matching(match, low, high).tolist() == [at for at in range(low, high) if match.covers(tags[at])]
    assert columns.from_nodes({text, "ab"}, low, high).tolist() == [
        at for at in range(low, high) if tags[at] in {text, "ab"}
    ]


def test_without_a_column_nothing_matches():
    columns = columns_of({"sizes": [1]})
    assert columns.matching(TagMatch("Glob", ""), 0, 1).tolist() == []
    assert columns.from_nodes({"n"}, 0, 1).tolist() == []


@given(st.sets(st.integers(0, 30)))
def test_runs_cover_exactly_the_positions(positions):
    found = runs(np.array(sorted(positions), np.intp))
    assert [at for first, last in found for at in range(first, last + 1)] == sorted(positions)
    assert all(later[0] > earlier[1] + 1 for earlier, later in pairwise(found))


def test_columns_that_were_sealed_can_grow_again():
    columns = columns_of({"sizes": [3, 4], "tags": ["b", "a"], "nodes": "n", "metas": [2, 0]})
    columns.extras = {1: b"kept"}
    again = growable(columns)
    extend(again, ts=9, sizes=[5], tags=["a"], nodes=None, metas=None)
    assert [again.tag_at(at) for at in range(3)] == ["b", "a", "a"]
    assert (list(again.offsets), again.extras, again.first) == ([0, 3, 7, 12], {1: b"kept"}, 100)
    assert len(columns) == 2


@pytest.mark.parametrize("node", [None, "n", 'quo"te', "é\n"])
@pytest.mark.parametrize("meta", [b"", b',"meta":{"a":"},"}'])
@pytest.mark.parametrize("data", [b"1", b'{"data":",\\"meta\\":"}'])
def test_parts_of_a_record_are_cut_where_they_begin(node, meta, data):
    shown = b"" if node is None else b',"$node":' + msgspec.json.encode(node)
    rendered = b'{"$seq":100,"$ts":12345%b,"data":%b%b},' % (shown, data, meta)
    columns = columns_of({"ts": 12345, "sizes": [len(rendered)], "tags": ["t"], "nodes": node, "metas": [len(meta)]})
    start = b'{"$seq":100,"$ts":12345%b' % shown

    def cut(**parts: bool) -> bytes:
        return render_without(rendered, columns, 0, Projection(**parts))

    assert cut() == rendered
    assert cut(tags=True) == b'%b,"$tag":"t","data":%b%b},' % (start, data, meta)
    assert cut(meta=False) == b'%b,"data":%b},' % (start, data)
    assert cut(data=False) == b"%b%b}," % (start, meta)
    assert cut(tags=True, data=False, meta=False) == b'%b,"$tag":"t"},' % start


def test_columns_without_names_share_one_empty_dictionary():
    plain = columns_of({"sizes": [1]})
    named = columns_of({"sizes": [1], "tags": ["x"], "nodes": ["n"]})
    late = columns_of({"sizes": [1]}, {"sizes": [1], "tags": ["y"]})
    assert plain.tag_names is plain.node_names is late.node_names is NO_NAMES
    assert growable(plain).tag_names is NO_NAMES
    assert (named.tag_at(0), named.node_at(0), late.tag_at(0), late.tag_at(1)) == ("x", "n", None, "y")
    assert (len(NO_NAMES), NO_NAMES.id_of("x"), list(NO_NAMES.ids_with_prefix(""))) == (0, 0, [])
