"""Lone surrogates: valid JSON text that decoders of Unicode text refuse, kept token for token."""

import json
import random
import re

import msgspec
import pytest

from topics.client.items import decode_json
from topics.errors import TopicsError
from topics.model import surrogates

TEXTS = [
    b'{"a":"\\ud800x","b":1}',
    b'{"\\udc00":"\\uD83D\\ude00 \\ud83d","b":[1.50]}',
    '{"\ue000":"\\ud800","x":"\\ue000 \\uE001"}'.encode(),
    b'{"a":"\\\\ud800 \\ud800"}',
]


@pytest.mark.parametrize("text", TEXTS)
def test_members_equal_the_standard_library_and_keep_their_text(text: bytes):
    found = surrogates.members(text)
    assert {name: json.loads(bytes(value)) for name, value in found.items()} == json.loads(text)
    assert all(bytes(value) in text for value in found.values())
    assert decode_json(msgspec.Raw(text)) == json.loads(text)
    assert json.loads(surrogates.object_of(found)) == json.loads(text)


@pytest.mark.parametrize("text", [b'{"a":"\\ud83d\\ude00 \\\\ud800"}', b"{}", b'{"a":1.50}'])
def test_text_without_lone_surrogates_is_not_masked(text: bytes):
    assert surrogates.mask(text) is None
    assert surrogates.members(text) == msgspec.json.decode(text, type=dict[str, msgspec.Raw])


@pytest.mark.parametrize("text", [b'{"a":"\\ud800"', b'{"a":"\\ud800",}', b"[1"])
def test_invalid_json_is_still_refused(text: bytes):
    with pytest.raises(msgspec.DecodeError):
        surrogates.members(text)
    with pytest.raises((msgspec.DecodeError, json.JSONDecodeError)):
        decode_json(msgspec.Raw(text))


# A backslash and its escape; pairs are matched as a whole, so a remaining D8 to DF is a lone surrogate.
ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|u[0-9a-fA-F]{4}|.)",
    re.DOTALL,
)
TOKENS = [
    rb"\ud800", rb"\uDC00", rb"\udbff", rb"\uDFFF", rb"\\", b"\\", b"u", b"d8", b"00", rb"\u00e9", b"x", rb"\n", b'"',
    b"\xee\x80\x80", rb"\ue000", rb"\ud8",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_lone_surrogates_are_found_across_pieces(seed: int, monkeypatch: pytest.MonkeyPatch):
    dice = random.Random(seed)
    for _ in range(15):
        text = b"".join(dice.choice(TOKENS) for _ in range(dice.randint(0, 14)))
        expected = sorted(found.start() for found in ESCAPE.finditer(text) if found[1] is not None)
        for piece in (1, 3, 7, 100):
            monkeypatch.setattr(surrogates, "PIECE_BYTES", piece)
            masked = surrogates.mask(text)
            pairs = () if masked is None else zip(masked.text, text, strict=True)
            found = [at - 2 for at, (byte, original) in enumerate(pairs) if byte != original]
            assert found == expected, text


def test_long_texts_are_masked_in_many_steps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(surrogates, "PIECE_BYTES", 64)
    text = b'{"a":"' + rb"\ud800x" * 500 + b'"}'
    assert sum(1 for _ in surrogates.mask_steps(text)) >= 2 * len(text) // 64
    assert json.loads(bytes(surrogates.members(text)["a"])) == "\ud800x" * 500


def test_text_without_a_free_block_of_characters_is_refused():
    every_block = "".join(chr((block << 11) + 1) for block in range(1, 32) if block != 0xD800 >> 11)
    with pytest.raises(TopicsError, match="every Unicode block"):
        surrogates.mask(json.dumps(every_block).encode() + rb'"\ud800"')
    all_but_one = every_block.replace(chr((21 << 11) + 1), "").encode() + rb"\ud800"
    masked = surrogates.mask(all_but_one)
    assert masked is not None
    assert masked.low == 21 << 11


def test_members_with_lone_surrogates_are_counted():
    assert surrogates.count_members(rb'{"\ud800":1,"\uDBFF":2,"b":"\ud83d"}') == 3
    assert surrogates.count_members(b'{"a":1}') == 1
