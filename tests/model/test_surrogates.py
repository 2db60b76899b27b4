"""Half surrogate pairs: legal JSON text, kept token for token, that no decoder of Unicode text takes."""

import json

import msgspec
import pytest

from topics.model import surrogates

TEXTS = [
    b'{"a":"\\ud800x","b":1}',
    b'{"\\udc00":"\\uD83D\\ude00 \\ud83d","b":[1.50]}',
    '{"\ue000":"\\ud800","x":"\\ue000 \\uE001"}'.encode(),
    b'{"a":"\\\\ud800 \\ud800"}',
]


@pytest.mark.parametrize("text", TEXTS)
def test_members_and_values_are_what_the_standard_library_says_and_the_text_stays(text: bytes):
    found = surrogates.members(text)
    assert {name: json.loads(bytes(value)) for name, value in found.items()} == json.loads(text)
    assert all(bytes(value) in text for value in found.values())
    assert surrogates.value(text) == json.loads(text)
    assert json.loads(surrogates.object_of(found)) == json.loads(text)


@pytest.mark.parametrize("text", [b'{"a":"\\ud83d\\ude00 \\\\ud800"}', b"{}", b'{"a":1.50}'])
def test_text_without_such_halves_needs_no_stand_ins(text: bytes):
    assert surrogates.mask(text) is None
    assert surrogates.members(text) == msgspec.json.decode(text, type=dict[str, msgspec.Raw])


@pytest.mark.parametrize("text", [b'{"a":"\\ud800"', b'{"a":"\\ud800",}', b"[1"])
def test_what_is_no_json_is_refused_all_the_same(text: bytes):
    with pytest.raises(msgspec.DecodeError):
        surrogates.members(text)
    with pytest.raises((msgspec.DecodeError, json.JSONDecodeError)):
        surrogates.value(text)
