"""Long answers, without a connection: bytes in; events, messages, records and gaps out.

Event streams (`text/event-stream`) and their messages, and the JSON lines of a scan (`application/x-ndjson`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from topics.client import errors
from topics.client.errors import Unavailable
from topics.client.items import End, Gap, Record, Tombstone, decode_records
from topics.errors import OtherCode

ADVISORY = 429  # an `error` event that ends nothing
RECORD_START = b'{"$'  # every other line is about the scan itself
CONTROL_STARTS = (b'\n{"tombstone"', b'\n{"end"', b'\n{"error"')


# --- event streams


class Event(NamedTuple):
    """One event. A comment, such as a heartbeat, has an empty name."""

    name: str
    data: bytes
    id: str | None


class EventParser:
    """Splits a `text/event-stream` into events, wherever the chunks are cut."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Event]:
        searched = max(len(self._held) - 1, 0)
        self._held += chunk
        start = 0
        while (end := self._held.find(b"\n\n", max(start, searched))) >= 0:
            yield _event(bytes(self._held[start:end]))
            start = end + 2
        del self._held[:start]


def _event(block: bytes) -> Event:
    name, data, event_id = "", b"", None
    for line in block.split(b"\n"):
        if line.startswith(b"data: "):
            data = line[6:]
        elif line.startswith(b"event: "):
            name = line[7:].decode()
        elif line.startswith(b"id: "):
            event_id = line[4:].decode()
    return Event(name, data, event_id)


# --- messages of an event stream


class _Batch(Struct):
    topic: str
    records: list[Record]


class _Problem(Struct):
    code: int
    error: str
    retry_after_ms: int | None = None


_batches = msgspec.json.Decoder(_Batch)
_decode_problem = msgspec.json.Decoder(_Problem).decode


def records_of(message: bytes) -> list[Record]:
    batch = decode_records(_batches, message)
    for record in batch.records:
        record.topic = batch.topic
    return batch.records


def gap_of(message: bytes) -> Gap:
    """Return the lost range that a pushed tombstone reports."""
    lost = _decode_tombstone(message)
    return lost.gap(lost.topic)


def raise_if_final(data: bytes) -> None:
    """Raise `Unavailable` for an `error` event, unless it is only advice: the client opens a new stream."""
    problem = _decode_problem(data)
    if problem.code != ADVISORY:
        code = OtherCode(f"stream_{problem.code}", problem.code, retryable=True)
        raise Unavailable(code, problem.error, retry_after_ms=problem.retry_after_ms)


# --- scans


class _ScanControl(Struct):
    tombstone: Raw = Raw()
    end: End | None = None
    error: Raw = Raw()


class _Records(Struct):
    records: list[Record]


Piece = list[Record] | Tombstone | End
_decode_lines = msgspec.json.Decoder(Record).decode_lines
_records = msgspec.json.Decoder(_Records)
_decode_control = msgspec.json.Decoder(_ScanControl).decode
_decode_tombstone = msgspec.json.Decoder(Tombstone).decode


class ScanLines:
    """Splits the answer of a scan, wherever the chunks are cut. The text of records and tombstones stays as it is."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> Iterator[bytes | Raw | End]:
        """Yield what is complete with this chunk: lines of records, the JSON text of a tombstone (`Raw`), and the end.

        Raise the error that the server reports.
        """
        text = self._held + chunk if self._held else chunk
        end = text.rfind(b"\n") + 1
        self._held = text[end:]
        start = 0
        while start < end:
            control = _next_control(text, start, end)
            if control > start:
                yield text[start:control]
            start = end
            if control < end:
                start = text.index(b"\n", control) + 1
                yield from _control(text[control:start])


def _next_control(text: bytes, start: int, end: int) -> int:
    """Return where the next line begins that is not a record, or `end`."""
    if not text.startswith(RECORD_START, start):
        return start
    found = [at + 1 for mark in CONTROL_STARTS if (at := text.find(mark, start, end)) >= 0]
    return min(found, default=end)


def _control(line: bytes) -> Iterator[Raw | End]:
    """Yield what a line says that is not a record; nothing for a line of a newer server."""
    found = _decode_control(line)
    if bytes(found.error):
        raise errors.from_answer(200, None, b'{"error":%b}' % bytes(found.error))
    if bytes(found.tombstone):
        yield found.tombstone
    if found.end is not None:
        yield found.end


def decoded(piece: bytes | Raw | End) -> Piece:
    if isinstance(piece, End):
        return piece
    if isinstance(piece, Raw):
        return _decode_tombstone(piece)
    try:
        return _decode_lines(piece)
    except msgspec.DecodeError:  # half a surrogate pair
        return decode_records(_records, b'{"records":[%b]}' % piece.rstrip(b"\n").replace(b"\n", b",")).records
