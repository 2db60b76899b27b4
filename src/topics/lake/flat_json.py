"""Read strings and integers from JSON objects that all have the same members, without a Python step per record.

Most producers write every record with the same members in the same order. Then the positions of the quotes give those
of the values. `flat_columns` returns None for anything else: nested values, escapes, a value of another type, a
record whose members differ. The caller then parses the records one by one, so only the speed depends on their shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

QUOTE, BACKSLASH, BRACE, BRACKET_TO_BRACE = 0x22, 0x5C, 0x7B, 0x20
WORD_BYTES = 8

Positions = npt.NDArray[np.int64]


def flat_columns(data: pa.Array, fields: Sequence[tuple[str, pa.DataType]]) -> list[pa.Array] | None:
    """Return the columns of these members, or None if the texts are not flat objects with the same members.

    `data` is an array of valid JSON texts without nulls; the types are `pa.string()` and integers.
    """
    try:
        names = list(msgspec.json.decode(data[0].as_py(), type=dict[str, msgspec.Raw]))
    except (msgspec.MsgspecError, RecursionError):
        return None
    starts = np.frombuffer(data.buffers()[1], np.int32)[data.offset : data.offset + len(data) + 1].astype(np.int64)
    body = np.frombuffer(data.buffers()[2], np.uint8)[starts[0] : starts[-1]]
    text = np.zeros(len(body) + WORD_BYTES, np.uint8)
    text[:-WORD_BYTES] = body
    starts -= starts[0]
    # One opening brace or bracket per record: no object is nested, and none is in a string.
    if np.any(body == BACKSLASH) or np.count_nonzero(body | BRACKET_TO_BRACE == BRACE) != len(data):
        return None
    quotes: Positions = np.flatnonzero(body == QUOTE)
    if not len(quotes) or len(quotes) % len(data) or np.any(text[starts[:-1]] != BRACE):
        return None
    quotes = quotes.reshape(len(data), -1)
    if np.any(quotes[:, 0] < starts[:-1]) or np.any(quotes[:, -1] >= starts[1:]):
        return None
    keys = _keys(text, quotes, names)
    if keys is None:
        return None
    ends = [*quotes.T, starts[1:]]
    found = []
    for name, kind in fields:
        column = pa.nulls(len(data), kind) if name not in keys else _column(text, ends, keys[name], kind)
        if column is None:
            return None
        found.append(column)
    return found


def _keys(text: npt.NDArray[np.uint8], quotes: Positions, names: Sequence[str]) -> dict[str, int] | None:
    """Return at which quote of a record each name begins, or None if a record has other names or another order.

    A record with a name twice has more quotes than its names and strings account for.
    """
    keys: dict[str, int] = {}
    at = 0
    for name in names:
        if at + 1 >= quotes.shape[1] or not _all_begin(text, quotes[:, at], f'"{name}":'.encode()):
            return None
        keys[name] = at
        is_string = text[quotes[:, at + 1] + 2] == QUOTE
        at += 4 if is_string[0] else 2
        if np.any(is_string != is_string[0]):
            return None
    return keys if at == quotes.shape[1] else None


def _all_begin(text: npt.NDArray[np.uint8], starts: Positions, expected: bytes) -> bool:
    """Return whether these bytes are at every one of the positions."""
    words = np.ndarray((len(text) - WORD_BYTES + 1,), np.uint64, text, strides=(1,))  # at every byte
    for at in range(0, len(expected), WORD_BYTES):
        piece = expected[at : at + WORD_BYTES]
        mask = np.frombuffer((b"\xff" * len(piece)).ljust(WORD_BYTES, b"\0"), np.uint64)[0]
        wanted = np.frombuffer(piece.ljust(WORD_BYTES, b"\0"), np.uint64)[0]
        if int(starts[-1]) + at >= len(words) or np.any(words[starts + at] & mask != wanted):
            return False
    return True


def _column(text: npt.NDArray[np.uint8], ends: Sequence[Positions], key: int, kind: pa.DataType) -> pa.Array | None:
    is_string = key + 3 < len(ends) and ends[key + 2][0] == ends[key + 1][0] + 2
    if is_string != (kind == pa.string()):
        return None
    if is_string:
        return _slices(text, ends[key + 2] + 1, ends[key + 3])
    # A number ends before the comma or brace that is before the next quote or the next record.
    values = _slices(text, ends[key + 1] + 2, ends[key + 2] - 1)
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return None


def _slices(text: npt.NDArray[np.uint8], starts: Positions, stops: Positions) -> pa.Array:
    """Return the texts between these positions. See `topics.arrow` on how."""
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[0::2], offsets[1::2] = starts, stops
    both = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(text))
    return both.take(pa.array(np.arange(0, len(offsets), 2, dtype=np.int32)))
