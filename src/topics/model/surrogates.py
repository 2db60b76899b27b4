"""Escapes of half a surrogate pair, such as `"\\ud83d"`: legal JSON text that denotes no Unicode text.

JavaScript writes them for strings cut in the middle of an emoji. The decoder refuses them; records keep `data` token
for token, so such a text is decoded with stand-ins of the same length, and the originals are put back into what stays
raw.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec
from msgspec import Raw, Struct, UnsetType

from topics.errors import invalid
from topics.model.nesting import decode_again
from topics.model.records import NewRecord

# A backslash and what it escapes; a pair is taken whole, so that what is left with D8 to DF is half of one.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|u[0-9a-fA-F]{4}|.)",
    re.DOTALL,
)
_HALF = re.compile("[\ud800-\udfff]")
_HALF_ESCAPE = re.compile(r"\\u(d[89a-f][0-9a-f]{2})")
_NAMES = ("node", "idempotency_key", "topic", "request_id")  # texts of a write that are kept decoded
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


@runtime_checkable
class Writes(Protocol):
    """A request that brings records."""

    records: list[NewRecord]


class Masked(Struct, frozen=True):
    """A text that the decoder takes, and what its stand-ins stand for."""

    text: bytes
    stand_ins: dict[bytes, bytes]  # by the original, both as escapes

    @property
    def chars(self) -> dict[str, str]:
        """What a decoded string has in place of each half of a pair."""
        return {_char(stand_in): _char(original) for original, stand_in in self.stand_ins.items()}

    def restore(self, raw: Raw) -> Raw:
        text = bytes(raw)
        for original, stand_in in self.stand_ins.items():
            text = text.replace(stand_in, original)
        return Raw(text)


def mask(text: bytes) -> Masked | None:
    """The text with stand-ins; None if there is nothing in it that needs one."""
    stand_ins: dict[bytes, bytes] = {}
    free = _unused(text)

    def stand_in(found: re.Match[bytes]) -> bytes:
        if found[1] is None:
            return found[0]
        if found[0] not in stand_ins:
            stand_ins[found[0]] = next(free)
        return stand_ins[found[0]]

    masked = _ESCAPE.sub(stand_in, text)
    return Masked(masked, stand_ins) if stand_ins else None


def decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Return the write in a body with such escapes, as a `WriteRequest` or the `publish` of a WebSocket.

    Return None if the body has no such escape or is no write. Raises like the decoder.
    """
    masked = mask(body)
    if masked is None:
        return None
    request = decoder.decode(masked.text)
    if not isinstance(request, Writes):
        return None
    names = [getattr(request, field, None) for field in _NAMES]
    names += [text for record in request.records for text in (record.tag, record.node)]
    if any(char in name for name in names if isinstance(name, str) for char in masked.chars):
        raise invalid(
            f"a tag, {', '.join(_NAMES[:-1])} or {_NAMES[-1]} must be Unicode text: half a surrogate pair is none"
        )
    for record in request.records:
        record.data = masked.restore(record.data)
        if not isinstance(record.meta, UnsetType):
            record.meta = masked.restore(record.meta)
    return request


def value(text: bytes | Raw) -> Any:
    """What a JSON text says. Half a pair becomes the same half of a string, as in the standard library."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        if mask(bytes(text)) is None:
            raise
        return json.loads(bytes(text))


def members(text: bytes | str | Raw) -> dict[str, Raw]:
    """The members of an object, their values as they are written."""
    try:
        return decode_again(_decode_members, text)
    except msgspec.DecodeError:
        masked = mask(text.encode() if isinstance(text, str) else bytes(text))
        if masked is None:
            raise
    halves = str.maketrans(masked.chars)
    found = decode_again(_decode_members, masked.text)
    return {name.translate(halves): masked.restore(value) for name, value in found.items()}


def object_of(members: Mapping[str, Any]) -> bytes:
    """An object's text, the other way round."""
    try:
        return _encode(members)
    except UnicodeEncodeError:  # a name with half a pair, which only an escape can say
        parts = (b"%b:%b" % (json.dumps(name).encode(), _encode(value)) for name, value in members.items())
        return b"{%b}" % b",".join(parts)


def escaped(text: str) -> str:
    """For a place that takes Unicode only: halves as the escapes that say them."""
    return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def unescaped(text: str) -> str:
    """The other way round."""
    return _HALF_ESCAPE.sub(lambda half: chr(int(half[1], 16)), text) if "\\u" in text else text


def _char(escape: bytes) -> str:
    return chr(int(escape[2:], 16))


def _unused(text: bytes) -> Iterator[bytes]:
    """Escapes of private characters that the text does not use, in any spelling."""
    for code in range(0xE000, 0xF900):
        escape = b"\\u%04x" % code
        if escape not in text and b"\\u%04X" % code not in text and chr(code).encode() not in text:
            yield escape
    raise invalid("the body has too many kinds of broken escapes")
