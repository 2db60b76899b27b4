"""Escapes of lone surrogates, such as `"\\ud83d"`: valid JSON text that is not valid Unicode text.

JavaScript writes them for strings that were cut inside an emoji. The decoder refuses them, but records keep `data`
token for token. Such a text is decoded with placeholders of the same length, and the originals are restored in the raw
parts.

The placeholder of surrogate 0xD800 + n is character n of a block of 2048 characters that the text does not use. A
body can be 64 MiB of such escapes, so they are found and replaced with numpy, piece by piece.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from functools import lru_cache
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw, Struct, UnsetType

from topics.errors import invalid
from topics.model.nesting import decode_again
from topics.model.records import NewRecord

PIECE_BYTES = 64 << 10  # text per step, one or two milliseconds
RECORDS_A_STEP = 64

_HALF = re.compile("[\ud800-\udfff]")
_HALF_ESCAPE = re.compile(r"\\u(d[89a-f][0-9a-f]{2})")
_NAMES = ("node", "idempotency_key", "topic", "request_id")  # fields of a write that are stored as decoded text
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode

_BACKSLASH, _U, _D = b"\\ud"
_NO_DIGIT = 255
_DIGITS = np.full(256, _NO_DIGIT, np.uint8)  # the value of a hexadecimal digit
for _at, _digit in enumerate(b"0123456789abcdef"):
    _DIGITS[[_digit, ord(chr(_digit).upper())]] = _at
_BLOCK_BITS = 11  # bits of a code within its block; a block has 2048 characters, as many as there are surrogates
_HALVES_BLOCK = 0xD800 >> _BLOCK_BITS

T = TypeVar("T")
Positions = npt.NDArray[np.intp]


@runtime_checkable
class Writes(Protocol):
    """A request with records."""

    records: list[NewRecord]


class Masked(Struct, frozen=True):
    """A text with placeholders, the original text, and the block of the placeholders."""

    text: bytes
    original: bytes
    block: int
    address: int  # of the text

    def has_placeholder(self, text: str) -> bool:
        """Return whether a decoded string contains a placeholder."""
        low = self.block << _BLOCK_BITS
        return any(low <= ord(char) < low + (1 << _BLOCK_BITS) for char in text)

    def halves(self, text: str) -> str:
        """Return a decoded string with its original surrogates."""
        return text.translate(_back(self.block))

    def restore(self, raw: Raw) -> Raw:
        """Return the original bytes of a raw part of the decoded text."""
        at = _address(raw) - self.address
        size = len(memoryview(raw))
        assert 0 <= at <= len(self.text) - size, "not a part of this text"
        return Raw(self.original[at : at + size])


@lru_cache(maxsize=32)
def _back(block: int) -> dict[int, int]:
    return {(block << _BLOCK_BITS) + at: 0xD800 + at for at in range(1 << _BLOCK_BITS)}


def _address(buffer: Raw | bytes) -> int:
    """Return the memory address of the bytes. A raw part of a decoded text is a view into the text, never a copy."""
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address


def mask(text: bytes) -> Masked | None:
    """Return the text with placeholders, or None if it has no lone surrogates."""
    return _finish(mask_steps(text))


def mask_steps(text: bytes) -> Generator[None, None, Masked | None]:
    """Do the work of `mask` in steps of `PIECE_BYTES`."""
    if b"\\ud" not in text and b"\\uD" not in text:
        return None
    finder = _Finder(text)
    found: list[Positions] = []
    for at in range(0, len(text), PIECE_BYTES):
        found.append(finder.lone_halves(at, min(at + PIECE_BYTES, len(text))))
        yield
    if not any(map(len, found)):
        return None
    free = [block for block in reversed(range(1, 32)) if not finder.used[block] and block != _HALVES_BLOCK]
    if not free:
        raise invalid(
            "the body has escaped lone surrogates and characters of every Unicode block; remove the surrogates"
        )
    masked = bytearray(text)
    for some in found:
        _write_placeholders(masked, some, free[0])
        yield
    whole = bytes(masked)
    return Masked(whole, text, free[0], _address(whole))


def escape_starts(slashes: Positions, *, escaped_at: int | None) -> Positions:
    """Return the backslashes that start an escape: every second one of a run. One at `escaped_at` is itself escaped."""
    begins = np.ones(len(slashes), np.bool_)
    begins[1:] = np.diff(slashes) != 1
    first_of_run = np.maximum.accumulate(np.where(begins, np.arange(len(slashes)), 0))
    within = np.arange(len(slashes)) - first_of_run
    if len(slashes) and slashes[0] == escaped_at:  # its run started in the previous piece
        within[first_of_run == 0] += 1
    starts: Positions = slashes[within % 2 == 0]
    return starts


class _Finder:
    """Finder of escapes in a text, piece by piece."""

    def __init__(self, text: bytes) -> None:
        self.raw = np.frombuffer(text, np.uint8)
        self.used = np.zeros(32, np.bool_)  # blocks whose characters occur in the text
        self._odd = False  # whether the previous piece ended after the backslash of an escape
        self._taken = np.empty(0, np.intp)  # second surrogates in the next piece whose first one is in this piece

    def lone_halves(self, low: int, high: int) -> Positions:
        """Return the starts of lone surrogate escapes in [low, high). Pieces must be passed in order."""
        raw = self.raw
        leads = np.flatnonzero(raw[low:high] >= 0xE0) + low  # first bytes of unescaped characters
        self.used[(raw[leads] & 0xF) << 1 | raw[np.minimum(leads + 1, len(raw) - 1)] >> 5 & 1] = True
        starts = self._escapes(low, high)
        starts = starts[starts + 5 < len(raw)]
        starts = starts[raw[starts + 1] == _U]
        digits = _DIGITS[raw[starts[:, None] + np.arange(2, 6)]]
        valid = (digits != _NO_DIGIT).all(axis=1)
        starts, digits = starts[valid], digits[valid]
        block = digits[:, 0] << 1 | digits[:, 1] >> 3
        self.used[block] = True
        half = block == _HALVES_BLOCK
        starts, second = starts[half], digits[half, 1]
        is_first = second < 0xC
        firsts, seconds = starts[is_first], starts[~is_first]
        has_second = self._is_second(firsts + 6)
        taken = np.concatenate((self._taken, firsts[has_second] + 6))
        self._taken = taken[taken >= high]
        is_taken = np.zeros(high - low, np.bool_)
        is_taken[taken[taken < high] - low] = True
        return np.concatenate((firsts[~has_second], seconds[~is_taken[seconds - low]]))

    def _escapes(self, low: int, high: int) -> Positions:
        """Return the backslashes that start an escape."""
        slashes = np.flatnonzero(self.raw[low:high] == _BACKSLASH) + low
        starts = escape_starts(slashes, escaped_at=low if self._odd else None)
        self._odd = bool(len(starts) and starts[-1] == high - 1)
        return starts

    def _is_second(self, at: Positions) -> npt.NDArray[np.bool_]:
        """Return whether a second surrogate is escaped at each position, which directly follows an escape."""
        raw = self.raw
        fits = at + 5 < len(raw)
        at = np.where(fits, at, 0)
        found = fits & (raw[at] == _BACKSLASH) & (raw[at + 1] == _U) & (raw[at + 2] | 0x20 == _D)
        digits = _DIGITS[raw[at[:, None] + np.arange(3, 6)]]
        result: npt.NDArray[np.bool_] = found & (digits != _NO_DIGIT).all(axis=1) & (digits[:, 0] >= 0xC)
        return result


def _write_placeholders(text: bytearray, at: Positions, block: int) -> None:
    """Replace the surrogate escapes with the escapes of their placeholders, in place."""
    raw = np.frombuffer(text, np.uint8)
    hexadecimal = np.frombuffer(b"0123456789abcdef", np.uint8)
    second = _DIGITS[raw[at + 3]]
    raw[at + 2] = hexadecimal[block >> 1]
    raw[at + 3] = hexadecimal[(block & 1) << 3 | (second & 7)]


def _finish(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Return the write in a body with such escapes, as a `WriteRequest` or the `publish` of a WebSocket.

    Return None if the body has no such escape or is not a write. Raise like the decoder.
    """
    return _finish(decode_steps(decoder, body))


def decode_steps(decoder: msgspec.json.Decoder[Any], body: bytes) -> Generator[None, None, Any]:
    """Do the work of `decode` in steps. The decoding itself is one step."""
    masked = yield from mask_steps(body)
    if masked is None:
        return None
    request = decoder.decode(masked.text)
    if not isinstance(request, Writes):
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


def value(text: bytes | Raw) -> Any:
    """Return the value of a JSON text. Lone surrogates stay in the string, as in the standard library."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        if mask(bytes(text)) is None:
            raise
        return json.loads(bytes(text))


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


def escaped(text: str) -> str:
    """Return the text with lone surrogates as escapes, for places that accept only Unicode."""
    return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def unescaped(text: str) -> str:
    """Return the text with escapes turned back into surrogates: the inverse of `escaped`."""
    return _HALF_ESCAPE.sub(lambda half: chr(int(half[1], 16)), text) if "\\u" in text else text
