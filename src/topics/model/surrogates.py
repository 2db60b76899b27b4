"""Escapes of half a surrogate pair, such as `"\\ud83d"`: legal JSON text that denotes no Unicode text.

JavaScript writes them for strings cut in the middle of an emoji. The decoder refuses them; records keep `data` token
for token, so such a body is decoded with stand-ins of the same length, and the originals are put back into what stays
raw.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from msgspec import Raw, UnsetType

from topics.errors import invalid
from topics.model.records import WriteRequest

# A backslash and what it escapes; a pair is taken whole, so that what is left with D8 to DF is half of one.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|u[0-9a-fA-F]{4}|.)",
    re.DOTALL,
)


def decode(decoder: msgspec.json.Decoder[WriteRequest], body: bytes) -> WriteRequest | None:
    """The request in a body with such escapes; None if it has none. Raises like the decoder."""
    stand_ins: dict[bytes, bytes] = {}
    free = _unused(body)

    def mask(found: re.Match[bytes]) -> bytes:
        if found[1] is None:
            return found[0]
        if found[0] not in stand_ins:
            stand_ins[found[0]] = next(free)
        return stand_ins[found[0]]

    masked = _ESCAPE.sub(mask, body)
    if not stand_ins:
        return None
    request = decoder.decode(masked)
    chars = {chr(int(stand_in[2:], 16)) for stand_in in stand_ins.values()}
    names = [request.node, request.idempotency_key]
    names += [text for record in request.records for text in (record.tag, record.node)]
    if any(char in name for name in names if name for char in chars):
        raise invalid("a tag, node or idempotency_key must be Unicode text: half a surrogate pair is none")
    back = [(stand_in, original) for original, stand_in in stand_ins.items()]
    for record in request.records:
        record.data = _unmask(record.data, back)
        if not isinstance(record.meta, UnsetType):
            record.meta = _unmask(record.meta, back)
    return request


def _unused(body: bytes) -> Iterator[bytes]:
    """Escapes of private characters that the body does not use."""
    for code in range(0xE000, 0xF900):
        escape = b"\\u%04x" % code
        if escape not in body:
            yield escape
    raise invalid("the body has too many kinds of broken escapes")


def _unmask(raw: Raw, back: list[tuple[bytes, bytes]]) -> Raw:
    text = bytes(raw)
    for stand_in, original in back:
        text = text.replace(stand_in, original)
    return Raw(text)
