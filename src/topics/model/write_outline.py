"""The outline of a write: find where its records start and end, without decoding them.

A body of 64 MiB can hold six million records, or one string of thirty million escapes. The decoder cannot be
interrupted and takes up to a second for either, often only to refuse it. Such a body is scanned first, with numpy and
piece by piece. The rest is then decoded in parts.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from random import Random

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash
from msgspec import Struct

from topics.errors import invalid
from topics.model.records import Limits, record_too_large, too_many_records

PIECE_BYTES = 64 << 10  # text per step, about a millisecond
PART_BYTES = 512 << 10  # records decoded per step
SLOW_NS = 20_000_000  # extra decoding time above which a body is decoded in parts
QUICK_BYTES = 1 << 20  # a body up to this size is never slow
SAMPLES, SAMPLE_BYTES = 16, 2 << 10
OBJECT_NS, ESCAPE_NS = 190, 7  # decoding time of each; any other byte takes half a nanosecond

_BACKSLASH, _QUOTE, _OBJECT = b'\\"{'
_STEPS = np.zeros(256, np.int8)  # how a character changes the depth
_STEPS[list(b"{[")] = 1
_STEPS[list(b"}]")] = -1
_NAME = re.compile(rb'"(?:[^"\\]|\\.)*"\Z', re.DOTALL)
_SPELLING_BYTES = 64  # the longest spelling of "records" has 44
_NAME_BYTES = 256  # with white space around the colon

Positions = npt.NDArray[np.intp]


class Outline(Struct):
    """Position of the array of records, without its brackets, and the starts of parts with whole records."""

    low: int
    high: int
    parts: list[int]


def is_slow(body: bytes) -> bool:
    """Return whether decoding the body would take long, estimated from samples.

    Their places follow from the whole text: a body is always decoded in the same way, and a client cannot choose what
    is not looked at.
    """
    if len(body) <= QUICK_BYTES:
        return False
    objects = escapes = 0
    places = Random(xxhash.xxh3_64_intdigest(body))
    for _ in range(SAMPLES):
        at = places.randrange(len(body) - SAMPLE_BYTES)
        objects += body.count(b"{", at, at + SAMPLE_BYTES)
        escapes += body.count(b"\\", at, at + SAMPLE_BYTES)
    a_byte_ns = (objects * OBJECT_NS + escapes * ESCAPE_NS) / (SAMPLES * SAMPLE_BYTES)
    return len(body) * a_byte_ns > SLOW_NS


def outline(body: bytes, limits: Limits) -> Generator[None, None, Outline]:
    """Find the records of a write, in steps of `PIECE_BYTES`.

    Raise `batch_too_large`, `record_too_large` or `invalid_request` as soon as it is certain. For a text that is not
    JSON the outline is arbitrary: decoding the parts then fails.
    """
    walk = _Walk(body, limits)
    for at in range(0, len(body), PIECE_BYTES):
        walk.take(at, min(at + PIECE_BYTES, len(body)))
        yield
    return walk.result()


class _Walk:
    """Scanner of a text. The depth is 1 in the object of the body, and 2 in its arrays and objects."""

    def __init__(self, text: bytes, limits: Limits) -> None:
        self._text = text
        self._limits = limits
        # Besides data and meta a record has only short fields, so a record with much more text is too large.
        self._longest_bytes = 2 * limits.max_record_bytes + PIECE_BYTES
        self._raw = np.frombuffer(text, np.uint8)
        self._escaping = False  # the last character was a backslash that escapes the next one
        self._in_string = False
        self._depth = 0
        self._low: int | None = None  # where the array of records begins
        self._high: int | None = None
        self._count = 0
        self._last_start = 0  # of a record
        self._parts: list[int] = []

    def take(self, low: int, high: int) -> None:
        """Scan [low, high), which follows the last scanned piece."""
        at, depths = self._brackets(low, high)
        opens = _STEPS[self._raw[at]] > 0
        values = at[opens & (depths == 2)].tolist()
        ends = at[~opens & (depths == 2)].tolist()
        starts = at[opens & (depths == 3) & (self._raw[at] == _OBJECT)]
        for begin in values:
            self._close(ends, starts, upto=begin)
            if self._is_records(begin):
                if self._low is not None:
                    raise invalid("the body has records more than once", field="records")
                self._low = begin + 1
                self._last_start = begin
        self._close(ends, starts, upto=high)
        if self._low is not None and self._high is None:
            self._check_length(high)

    def result(self) -> Outline:
        if self._low is None:
            raise invalid("records is required", field="records")
        if self._high is None:
            raise invalid("the body is not valid JSON: the array of records does not end", field="records")
        return Outline(self._low, self._high, self._parts)

    def _close(self, ends: list[int], starts: Positions, *, upto: int) -> None:
        """Count the records before `upto`, and note the end of their array if it is there."""
        if self._low is None or self._high is not None:
            return
        end = next((end for end in ends if self._low <= end < upto), None)
        stop = upto if end is None else end
        mine = starts[(starts > self._last_start) & (starts >= self._low) & (starts < stop)]
        self._count += len(mine)
        if self._count > self._limits.max_batch_records:
            raise too_many_records(self._limits)
        for start in mine.tolist():
            self._check_length(start)
            self._last_start = start
            if not self._parts or start - self._parts[-1] >= PART_BYTES:
                self._parts.append(start)
        if end is not None:
            self._check_length(end)
            self._high = end

    def _check_length(self, upto: int) -> None:
        if self._count and upto - self._last_start > self._longest_bytes:
            raise record_too_large(self._count - 1, upto - self._last_start, self._limits)

    def _brackets(self, low: int, high: int) -> tuple[Positions, Positions]:
        """Return the brackets outside strings in [low, high), and the depth inside each."""
        text = self._text[low:high]
        if self._escaping:
            text = b" " + text[1:]
        piece = np.frombuffer(text.replace(rb"\\", b"  "), np.uint8)  # every backslash in it begins an escape
        self._escaping = bool(piece[-1] == _BACKSLASH)
        before = np.roll(piece, 1)
        before[0] = 0
        quotes = np.flatnonzero((piece == _QUOTE) & (before != _BACKSLASH))
        at = np.flatnonzero(_STEPS[piece])
        outside = (np.searchsorted(quotes, at) + self._in_string) % 2 == 0
        self._in_string ^= bool(len(quotes) % 2)
        at = at[outside]
        steps = _STEPS[piece[at]].astype(np.intp)
        after = np.cumsum(steps) + self._depth
        if len(after):
            self._depth = int(after[-1])
        return at + low, np.where(steps > 0, after, after + 1)

    def _is_records(self, value_at: int) -> bool:
        """Return whether the value at this position belongs to the member `records`, also with escapes in its name."""
        before = self._text[max(0, value_at - _NAME_BYTES) : value_at].rstrip()
        if self._text[value_at : value_at + 1] != b"[" or not before.endswith(b":"):
            return False
        before = before[:-1].rstrip()[-_SPELLING_BYTES:]
        if b"\\" not in before:
            return before.endswith(b'"records"')
        name = _NAME.search(before)
        try:
            return name is not None and bool(msgspec.json.decode(name[0]) == "records")
        except msgspec.DecodeError:
            return False
