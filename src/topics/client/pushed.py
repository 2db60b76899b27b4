"""Messages that a server pushes, over an event stream or a WebSocket: batches of records, and lost ranges."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from topics.client.items import Gap, Record, Tombstone, decode_records


class _Batch(Struct):
    topic: str
    records: list[Record]


class _Lost(Tombstone):
    topic: str = ""


_batches = msgspec.json.Decoder(_Batch)
_decode_lost = msgspec.json.Decoder(_Lost).decode


def records_of(message: bytes) -> list[Record]:
    """Return the records of a pushed batch."""
    batch = decode_records(_batches, message)
    for record in batch.records:
        record.topic = batch.topic
    return batch.records


def gap_of(message: bytes) -> Gap:
    """Return the lost range that a pushed tombstone reports."""
    lost = _decode_lost(message)
    return lost.gap(lost.topic)
