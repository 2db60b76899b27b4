"""Decode the pieces of a bulk answer (`application/vnd.topics.segments`). No I/O: bytes in, runs and tombstones out.

A piece is a head of 8 bytes (u32 LE length, u32 LE kind) and a body: records in the form of a segment file, or JSON.
The answer ends with an `End`. If it stops earlier, it was cut off, and `resume_at` gives the cursor for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from topics.client import errors
from topics.client.items import End, Tombstone
from topics.storage.segments import record_run as runs
from topics.storage.segments.record_run import Run

HEAD_BYTES = 8
RECORDS, CONTROL = 1, 2


class CutOff(Exception):
    """The answer stopped before its `End`, inside a piece or between two."""


class At(Struct):
    """Everything up to this cursor was scanned; the records after the previous piece were filtered out."""

    next_from_seq: int


class _BulkControl(Struct):
    tombstone: Tombstone | None = None
    end: End | None = None
    at: At | None = None
    error: msgspec.Raw = msgspec.Raw()


Piece = Run | Tombstone | At | End
_decode_control = msgspec.json.Decoder(_BulkControl).decode


def read(take: Callable[[int], bytes], *, source: str) -> Iterator[Piece]:
    """Yield every piece up to the `End`. `take(n)` returns n bytes, or fewer at the end of the connection.

    Raise `CutOff` if the answer is incomplete, `Corrupt` if a checksum is wrong, and the error that the server reports.
    """
    while True:
        head = _exactly(take, HEAD_BYTES)
        body = _exactly(take, int.from_bytes(head[:4], "little"))
        kind = int.from_bytes(head[4:], "little")
        if kind == RECORDS:
            yield runs.decode(body, source=source)
        elif kind == CONTROL:
            found = _decode_control(body)
            if bytes(found.error):
                raise errors.from_answer(200, None, b'{"error":%b}' % bytes(found.error))
            if (piece := found.tombstone or found.end or found.at) is not None:
                yield piece
            if found.end is not None:
                return
        # An unknown kind comes from a newer server and is ignored: the API only grows by addition.


def resume_at(piece: Piece) -> tuple[int, int | None]:
    """Return the cursor after a piece, and the new epoch if it changed, else None."""
    if isinstance(piece, Run):
        return piece.last, None
    if isinstance(piece, Tombstone):
        return piece.resume_seq, piece.epoch if piece.reason == "recreated" else None
    return piece.next_from_seq, None


def _exactly(take: Callable[[int], bytes], size_bytes: int) -> bytes:
    found = take(size_bytes) if size_bytes else b""
    if len(found) < size_bytes:
        raise CutOff("the answer was cut off")
    return found
