"""Decode the JSON lines of a scan (`application/x-ndjson`). No I/O: bytes in, records, tombstones and the end out."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct

from topics.client import errors
from topics.client.items import Record, Tombstone, decode_records

RECORD_START = b'{"$'  # every other line is about the scan itself
CONTROL_STARTS = (b'\n{"tombstone"', b'\n{"end"', b'\n{"error"')


class ScanTombstone(Tombstone):
    """A lost range, and the epoch of the topic that the scan goes on with."""

    epoch: int = 0


class ScanEnd(Struct):
    """The end of a scan: every seq up to `next_from_seq` was delivered, reported as lost, deleted or filtered."""

    next_from_seq: int
    head_seq: int
    epoch: int


Piece = list[Record] | ScanTombstone | ScanEnd


class _ScanControl(Struct):
    tombstone: ScanTombstone | None = None
    end: ScanEnd | None = None
    error: Raw = Raw()


class _Records(Struct):
    records: list[Record]


_decode_lines = msgspec.json.Decoder(Record).decode_lines
_records = msgspec.json.Decoder(_Records)
_decode_control = msgspec.json.Decoder(_ScanControl).decode


class ScanParser:
    """Splits the answer of a scan into pieces, wherever the chunks are cut."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> Iterator[Piece]:
        """Yield the pieces that are complete with this chunk. Raise the error that the server reports."""
        text = self._held + chunk if self._held else chunk
        end = text.rfind(b"\n") + 1
        self._held = text[end:]
        start = 0
        while start < end:
            control = _next_control(text, start, end)
            if control > start:
                yield _decode_records(text[start:control])
            if control < end:
                start = text.index(b"\n", control) + 1
                piece = _control(text[control:start])
                if piece is not None:
                    yield piece
            else:
                start = end


def _next_control(text: bytes, start: int, end: int) -> int:
    """Return where the next line begins that is not a record, or `end`."""
    if not text.startswith(RECORD_START, start):
        return start
    found = [at + 1 for mark in CONTROL_STARTS if (at := text.find(mark, start, end)) >= 0]
    return min(found, default=end)


def _decode_records(lines: bytes) -> list[Record]:
    try:
        return _decode_lines(lines)
    except msgspec.DecodeError:  # half a surrogate pair
        return decode_records(_records, b'{"records":[%b]}' % lines.rstrip(b"\n").replace(b"\n", b",")).records


def _control(line: bytes) -> ScanTombstone | ScanEnd | None:
    found = _decode_control(line)
    if bytes(found.error):
        raise errors.from_answer(200, {}, b'{"error":%b}' % bytes(found.error))
    return found.tombstone or found.end
