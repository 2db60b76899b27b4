"""Escapes of lone surrogates, such as `"\\ud83d"`: valid JSON text that is not valid Unicode text.

JavaScript writes them for strings that were cut inside an emoji. The decoder refuses them, but records keep `data`
token for token. Such a text is decoded with placeholders of the same length, and the originals are restored in the raw
parts.

The placeholder of `\\udabc` is `\\uXabc`, where X is a digit such that the text has no character from X800 to XFFF. A
body can be 64 MiB of such escapes, so they are found and replaced piece by piece.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from itertools import takewhile
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Raw, Struct, UnsetType

from topics.errors import invalid
from topics.nesting import decode_again

PIECE_BYTES = 32 << 10  # text per step, one or two milliseconds
RECORDS_A_STEP = 64

_NAMES = ("node", "idempotency_key", "topic", "request_id")  # fields of a write that are stored as decoded text
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode

_FIRST, _SECOND = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# Both begin with the same text, which makes the search several times faster.
_LONE = re.compile(rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!%b)|(?<!%b\\u[dD])[c-fC-F][0-9a-fA-F]{2})" % (_SECOND, _FIRST))
_UPPER = re.compile(rb"\\u([0-9a-fA-F])[89a-fA-F]")  # escapes of characters that placeholders could be
_AHEAD_BYTES = 12  # of an escape and the one after it
_DIGITS = "fecba9876543210"  # of placeholders

T = TypeVar("T")


class Masked(Struct, frozen=True):
    """A text with placeholders, the original text, and the first character that is a placeholder."""

    text: bytes
    original: bytes
    low: int
    address: int  # of the text

    def has_placeholder(self, text: str) -> bool:
        return any(self.low <= ord(char) < self.low + 0x800 for char in text)

    def halves(self, text: str) -> str:
        """Return a decoded string with its original surrogates."""
        codes = (ord(char) - self.low for char in text)
        return "".join(chr(0xD800 + at) if 0 <= at < 0x800 else chr(self.low + at) for at in codes)

    def restore(self, raw: Raw) -> Raw:
        """Return the original bytes of a raw part of the decoded text."""
        at = _address(raw) - self.address
        size = len(memoryview(raw))
        assert 0 <= at <= len(self.text) - size, "not a part of this text"
        return Raw(self.original[at : at + size])


def _address(buffer: Raw | bytes) -> int:
    """Return the memory address of the bytes. A raw part of a decoded text is a view into the text, never a copy."""
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address


def mask(text: bytes) -> Masked | None:
    """Return the text with placeholders, or None if it has no lone surrogates."""
    return finish(mask_steps(text))


def mask_steps(text: bytes) -> Generator[None, None, Masked | None]:
    """Do the work of `mask` in steps of `PIECE_BYTES`."""
    if b"\\ud" not in text and b"\\uD" not in text:
        return None
    plain = yield from _without_backslashes(text)
    has_lone = False
    used, escaped = set[str](), set[bytes]()
    for at in range(0, len(text), PIECE_BYTES):
        if not (piece := text[at : at + PIECE_BYTES + _AHEAD_BYTES]).isascii():
            used.update(piece.decode(errors="ignore"))
        escaped.update(_UPPER.findall(plain, at, at + PIECE_BYTES + _AHEAD_BYTES))
        has_lone = has_lone or any(True for _ in _lone_in(plain, at))
        yield
    if not has_lone:
        return None
    taken = {ord(char) >> 11 for char in used} | {int(digit, 16) << 1 | 1 for digit in escaped}
    free = [digit for digit in _DIGITS if int(digit, 16) << 1 | 1 not in taken]
    if not free:
        raise invalid(
            "the body has escaped lone surrogates and characters of every Unicode block; remove the surrogates"
        )
    masked = bytearray(text)
    for at in range(0, len(text), PIECE_BYTES):
        for start in _lone_in(plain, at):
            masked[start + 2] = ord(free[0])
        yield
    whole = bytes(masked)
    return Masked(whole, text, int(free[0] + "800", 16), _address(whole))


def _lone_in(plain: bytes, at: int) -> Iterator[int]:
    """Return the starts of the lone surrogates in the piece that begins at `at`."""
    starts = (found.start() for found in _LONE.finditer(plain, at, at + PIECE_BYTES + _AHEAD_BYTES))
    return takewhile(lambda start: start < at + PIECE_BYTES, starts)


def _without_backslashes(text: bytes) -> Generator[None, None, bytes]:
    """Return the text with other characters for escaped backslashes: every backslash in it begins an escape."""
    parts, at = [], 0
    while at < len(text):
        piece = text[at : at + PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # an escape begins with its last character
            piece = text[at : at + PIECE_BYTES + 1]
        parts.append(piece.replace(rb"\\", b"__"))
        at += len(piece)
        yield
    return b"".join(parts)


def finish(steps: Generator[None, None, T]) -> T:
    """Run all steps, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def decode_steps(decoder: msgspec.json.Decoder[Any], body: bytes) -> Generator[None, None, Any]:
    """Return the write in a body with such escapes, as a `WriteRequest` or the `publish` of a WebSocket.

    Return None if the body has no such escape or is not a write. Raise like the decoder. The decoding itself is one
    step.
    """
    masked = yield from mask_steps(body)
    if masked is None:
        return None
    request = decoder.decode(masked.text)
    if not hasattr(request, "records"):
        return None
    names = [getattr(request, field, None) for field in _NAMES]
    names += [text for record in request.records for text in (record.tag, record.node)]
    if any(masked.has_placeholder(name) for name in names if isinstance(name, str)):
        raise invalid(f"a tag, {', '.join(_NAMES[:-1])} or {_NAMES[-1]} must be Unicode text, without lone surrogates")
    for at, record in enumerate(request.records):
        record.data = masked.restore(record.data)
        if not isinstance(record.meta, UnsetType):
            record.meta = masked.restore(record.meta)
        if not at % RECORDS_A_STEP:
            yield
    return request


def members(text: bytes | str | Raw) -> dict[str, Raw]:
    """Return the members of an object, with their values as raw text."""
    try:
        return decode_again(_decode_members, text)
    except msgspec.DecodeError:
        masked = mask(text.encode() if isinstance(text, str) else bytes(text))
        if masked is None:
            raise
    found = decode_again(_decode_members, masked.text)
    return {masked.halves(name): masked.restore(value) for name, value in found.items()}


def count_members(text: bytes) -> int:
    """Return the number of members of an object. Names that differ only in lone surrogates can count as one."""
    try:
        return len(decode_again(_decode_members, text))
    except msgspec.DecodeError:
        return len(decode_again(_decode_members, text.replace(b"\\ud", b"\\ue").replace(b"\\uD", b"\\ue")))


def object_of(members: Mapping[str, Any]) -> bytes:
    """Return the text of an object with these members: the inverse of `members`."""
    try:
        return _encode(members)
    except UnicodeEncodeError:  # a name with a lone surrogate, which only an escape can express
        parts = (b"%b:%b" % (json.dumps(name).encode(), _encode(value)) for name, value in members.items())
        return b"{%b}" % b",".join(parts)
