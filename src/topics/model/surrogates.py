"""Escapes of half a surrogate pair, such as `"\\ud83d"`: legal JSON text that denotes no Unicode text.

JavaScript writes them for strings cut in the middle of an emoji. The decoder refuses them; records keep `data` token
for token, so such a text is decoded with stand-ins of the same length, and the originals are put back into what stays
raw.

The stand-in of half 0xD800 + n is the n-th character of a block of 2048 that the text uses no character of. A body may
be 64 MiB of such escapes, so they are found and replaced column-wise, a piece of the text at a time.
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

PIECE_BYTES = 64 << 10  # of text that is looked at in one step, a millisecond or two
RECORDS_A_STEP = 64

_HALF = re.compile("[\ud800-\udfff]")
_HALF_ESCAPE = re.compile(r"\\u(d[89a-f][0-9a-f]{2})")
_NAMES = ("node", "idempotency_key", "topic", "request_id")  # texts of a write that are kept decoded
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode

_BACKSLASH, _U, _D = b"\\ud"
_NO_DIGIT = 255
_DIGITS = np.full(256, _NO_DIGIT, np.uint8)  # the value of a hexadecimal digit
for _at, _digit in enumerate(b"0123456789abcdef"):
    _DIGITS[[_digit, ord(chr(_digit).upper())]] = _at
_BLOCK_BITS = 11  # of a code within its block; a block has 2048 characters, as many as there are halves
_HALVES_BLOCK = 0xD800 >> _BLOCK_BITS

T = TypeVar("T")
Positions = npt.NDArray[np.intp]


@runtime_checkable
class Writes(Protocol):
    """A request that brings records."""

    records: list[NewRecord]


class Masked(Struct, frozen=True):
    """A text that the decoder takes, the text it was made of, and the block that the stand-ins are from."""

    text: bytes
    original: bytes
    block: int
    address: int  # of the text

    def has_stand_in(self, text: str) -> bool:
        """Whether a decoded string stands for one with half a pair."""
        low = self.block << _BLOCK_BITS
        return any(low <= ord(char) < low + (1 << _BLOCK_BITS) for char in text)

    def halves(self, text: str) -> str:
        """What a decoded string stands for."""
        return text.translate(_back(self.block))

    def restore(self, raw: Raw) -> Raw:
        """What stands in the original where the decoder found `raw` in the text."""
        at = _address(raw) - self.address
        size = len(memoryview(raw))
        assert 0 <= at <= len(self.text) - size, "not a part of this text"
        return Raw(self.original[at : at + size])


@lru_cache(maxsize=32)
def _back(block: int) -> dict[int, int]:
    return {(block << _BLOCK_BITS) + at: 0xD800 + at for at in range(1 << _BLOCK_BITS)}


def _address(buffer: Raw | bytes) -> int:
    """Where the bytes lie. A raw part of a decoded text lies within the text: it is never copied."""
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address


def mask(text: bytes) -> Masked | None:
    """The text with stand-ins; None if there is nothing in it that needs one."""
    return _finish(mask_steps(text))


def mask_steps(text: bytes) -> Generator[None, None, Masked | None]:
    """The same in steps of `PIECE_BYTES` each."""
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
        raise invalid("the body has characters of every kind besides broken escapes")
    masked = bytearray(text)
    for some in found:
        _write_stand_ins(masked, some, free[0])
        yield
    whole = bytes(masked)
    return Masked(whole, text, free[0], _address(whole))


class _Finder:
    """Looks for escapes in a text, from its beginning to its end."""

    def __init__(self, text: bytes) -> None:
        self.raw = np.frombuffer(text, np.uint8)
        self.used = np.zeros(32, np.bool_)  # blocks that the text has characters of
        self._odd = False  # whether the piece before ended within an escape, after its backslash
        self._taken = np.empty(0, np.intp)  # second halves in the next piece that belong to a first half in this one

    def lone_halves(self, low: int, high: int) -> Positions:
        """Where escapes of half a pair begin in [low, high). Pieces must be asked for in order."""
        raw = self.raw
        leads = np.flatnonzero(raw[low:high] >= 0xE0) + low  # of characters that are not escaped
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
        """Backslashes that begin an escape: every other one of a run, counted from where the run begins."""
        slashes = np.flatnonzero(self.raw[low:high] == _BACKSLASH) + low
        if not len(slashes):
            self._odd = False
            return slashes
        begins = np.ones(len(slashes), np.bool_)
        begins[1:] = np.diff(slashes) != 1
        first_of_run = np.maximum.accumulate(np.where(begins, np.arange(len(slashes)), 0))
        within = np.arange(len(slashes)) - first_of_run
        if self._odd and slashes[0] == low:  # the run began in the piece before, and this backslash is escaped
            within[first_of_run == 0] += 1
        starts: Positions = slashes[within % 2 == 0]
        self._odd = bool(slashes[-1] == high - 1 and within[-1] % 2 == 0)
        return starts

    def _is_second(self, at: Positions) -> npt.NDArray[np.bool_]:
        """Whether a second half is escaped there. Right behind an escape a backslash always begins the next one."""
        raw = self.raw
        fits = at + 5 < len(raw)
        at = np.where(fits, at, 0)
        found = fits & (raw[at] == _BACKSLASH) & (raw[at + 1] == _U) & (raw[at + 2] | 0x20 == _D)
        digits = _DIGITS[raw[at[:, None] + np.arange(3, 6)]]
        result: npt.NDArray[np.bool_] = found & (digits != _NO_DIGIT).all(axis=1) & (digits[:, 0] >= 0xC)
        return result


def _write_stand_ins(text: bytearray, at: Positions, block: int) -> None:
    """Give escapes of halves the number that the same character of the block has."""
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

    Return None if the body has no such escape or is no write. Raises like the decoder.
    """
    return _finish(decode_steps(decoder, body))


def decode_steps(decoder: msgspec.json.Decoder[Any], body: bytes) -> Generator[None, None, Any]:
    """The same in steps; decoding itself is one of them."""
    masked = yield from mask_steps(body)
    if masked is None:
        return None
    request = decoder.decode(masked.text)
    if not isinstance(request, Writes):
        return None
    names = [getattr(request, field, None) for field in _NAMES]
    names += [text for record in request.records for text in (record.tag, record.node)]
    if any(masked.has_stand_in(name) for name in names if isinstance(name, str)):
        raise invalid(
            f"a tag, {', '.join(_NAMES[:-1])} or {_NAMES[-1]} must be Unicode text: half a surrogate pair is none"
        )
    for at, record in enumerate(request.records):
        record.data = masked.restore(record.data)
        if not isinstance(record.meta, UnsetType):
            record.meta = masked.restore(record.meta)
        if not at % RECORDS_A_STEP:
            yield
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
    found = decode_again(_decode_members, masked.text)
    return {masked.halves(name): masked.restore(value) for name, value in found.items()}


def count_members(text: bytes) -> int:
    """Return how many members an object has. Names that differ only in broken escapes may count as one."""
    try:
        return len(decode_again(_decode_members, text))
    except msgspec.DecodeError:
        return len(decode_again(_decode_members, text.replace(b"\\ud", b"\\ue").replace(b"\\uD", b"\\ue")))


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
