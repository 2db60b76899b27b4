"""Tag matches: their forms, their meaning, and errors for invalid ones."""

import pytest

from topics.errors import Code, TopicsError
from topics.model.records import STORED_FORM, Projection, TagMatch, parse_match


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x", TagMatch("Eq", "x")),
        ("x*", TagMatch("Eq", "x*")),
        (["tag", "Eq", "x*"], TagMatch("Eq", "x*")),
        (["tag", "Glob", "x*"], TagMatch("Glob", "x")),
        (["tag", "Glob", "*"], TagMatch("Glob", "")),
    ],
)
def test_match_has_three_forms(value, expected):
    assert parse_match(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        5, None, {}, [], ["tag", "Eq"], ["tag", "Eq", 5], ["node", "Eq", "x"], ["tag", "eq", "x"], ["tag", "Re", "x"],
        ["tag", "Glob", "x"], ["tag", "Glob", "*x"], ["tag", "Glob", "a*b*"], ["tag", "Glob", "**"],
        ["tag", "Eq", "x", "y"],
    ],
)  # fmt: skip
def test_invalid_match_is_refused_with_its_field(value):
    with pytest.raises(TopicsError) as caught:
        parse_match(value, field="filter")
    assert (caught.value.code, caught.value.detail) == (Code.INVALID_REQUEST, {"field": "filter"})


def test_match_on_the_wire_reads_back():
    for match in (TagMatch("Eq", "x*"), TagMatch("Glob", "x")):
        assert parse_match(match.wire()) == match


def test_record_without_a_tag_never_matches():
    assert not TagMatch("Glob", "").covers(None)
    assert TagMatch("Glob", "").covers("")
    assert TagMatch("Glob", "ab").covers("abc")
    assert not TagMatch("Glob", "ab").covers("a")
    assert not TagMatch("Eq", "ab").covers("abc")


def test_stored_form_is_the_default_of_a_reader():
    assert Projection() == STORED_FORM
    assert STORED_FORM.is_stored_form
    assert not any(
        part.is_stored_form for part in (Projection(tags=True), Projection(meta=False), Projection(data=False))
    )
