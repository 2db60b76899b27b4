"""Convert runs and gaps to record batches for Spark: plain or Kafka columns, with the server if there are several."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from topics.arrow import GAP, RECORD, Cells, cells
from topics.model import surrogates
from topics.spark.source.schema import HEADERS, Shape
from topics.storage.segments.record_run import Run

LOG_APPEND_TIME = 1  # Kafka's timestampType for a timestamp that the log assigned


class Batches:
    """Builds record batches of one shape."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._schema = shape.arrow()

    def records(self, run: Run, server: str, topic: str) -> pa.RecordBatch:
        return self._rows(cells(run), server, topic)

    def archived(self, batch: pa.RecordBatch, server: str, topic: str) -> pa.RecordBatch:
        """Return archived rows, whose columns have the same names, as a batch of this shape."""
        return self._rows(Cells(*(batch.column(name) for name in Cells._fields)), server, topic)

    def _rows(self, found: Cells, server: str, topic: str) -> pa.RecordBatch:
        n = len(found.seq)
        no_seq, no_text = pa.nulls(n, pa.int64()), pa.nulls(n, pa.string())
        if self._shape.kafka:
            columns = [*_kafka(found, topic, n), pa.repeat(RECORD, n), found.node, no_seq, no_text]
        else:
            columns = [pa.repeat(RECORD, n), pa.repeat(topic, n), *found, no_seq, no_text]
        if self._shape.server:
            columns.append(pa.repeat(server, n))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def gap(self, server: str, topic: str, gap_from: int, gap_to: int, reason: str) -> pa.RecordBatch:
        """Return a batch with one row of kind gap for the seqs gap_from to gap_to, both inclusive."""
        row: dict[str, Any] = {"kind": GAP, "topic": topic, "gap_to": gap_to, "reason": reason}
        row["offset" if self._shape.kafka else "seq"] = gap_from
        if self._shape.kafka:
            row["partition"] = 0
        if self._shape.server:
            row["server"] = server
        return pa.RecordBatch.from_pylist([row], schema=self._schema)


def _kafka(found: Cells, topic: str, n: int) -> list[pa.Array]:
    return [
        found.tag.cast(pa.binary()),
        found.data.cast(pa.binary()),
        pa.repeat(topic, n),
        pa.repeat(pa.scalar(0, pa.int32()), n),
        found.seq,
        found.ts,
        pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), n),
        _headers(found.meta, n),
    ]


def _headers(meta: pa.Array, n: int) -> pa.Array:
    """Return meta as Kafka headers: the bytes of a string, and JSON text for any other value.

    Half a surrogate pair has no UTF-8 form: a string value with one stays JSON text, a name keeps the escape.
    """
    if meta.null_count == n:
        return pa.nulls(n, HEADERS)
    return pa.array([None if text is None else _header_rows(text) for text in meta.to_pylist()], HEADERS)


def _header_rows(text: str) -> list[dict[str, Any]]:
    members = surrogates.members(text).items()
    return [{"key": surrogates.escaped(key), "value": _header_value(value)} for key, value in members]


def _header_value(value: msgspec.Raw) -> bytes:
    raw = bytes(value)
    if not raw.startswith(b'"'):
        return raw
    try:
        return msgspec.json.decode(raw, type=str).encode()
    except msgspec.DecodeError:
        return raw
