"""The columns of the data source with their types, and the columns that a read returns. Imports no Spark.

A read returns columns of the record, fields of its `data`, or both.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from topics.arrow import GAP, RECORD, Cells, cells
from topics.lake.json_fields import JsonFields
from topics.model import surrogates
from topics.spark.options import ReadOptions
from topics.spark.source.plan import Span
from topics.storage.segments.record_run import Run

UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

PLAIN = (
    ("kind", "STRING", pa.string()),  # "record", or "gap" for a lost range
    ("topic", "STRING", pa.string()),
    ("seq", "BIGINT", pa.int64()),  # for a gap: its first seq
    ("ts", "TIMESTAMP", UTC_TIMESTAMP),
    ("node", "STRING", pa.string()),
    ("tag", "STRING", pa.string()),
    ("meta", "STRING", pa.string()),  # JSON text
    ("data", "STRING", pa.string()),  # JSON text, token for token as it was written
    ("gap_to", "BIGINT", pa.int64()),  # last seq of a gap
    ("reason", "STRING", pa.string()),  # why the range was lost
    ("epoch", "BIGINT", pa.int64()),  # of the topic: seqs are unique within an epoch
)

# The names of Spark's Kafka source, followed by columns that it does not have: a gap must show here as well.
KAFKA = (
    ("key", "BINARY", pa.binary()),
    ("value", "BINARY", pa.binary()),
    ("topic", "STRING", pa.string()),
    ("partition", "INT", pa.int32()),
    ("offset", "BIGINT", pa.int64()),
    ("timestamp", "TIMESTAMP", UTC_TIMESTAMP),
    ("timestampType", "INT", pa.int32()),
    ("headers", "ARRAY<STRUCT<key: STRING, value: BINARY>>", HEADERS),
    ("kind", "STRING", pa.string()),
    ("node", "STRING", pa.string()),
    ("gap_to", "BIGINT", pa.int64()),
    ("reason", "STRING", pa.string()),
    ("epoch", "BIGINT", pa.int64()),
)


def record_columns(options: ReadOptions) -> tuple[tuple[str, str, pa.DataType], ...]:
    """Return the columns of the record: name, and type in SQL and in Arrow."""
    return KAFKA if options.kafka_columns else PLAIN


class OutputColumn(NamedTuple):
    """One column: a column of the record called `source`, a field of data, or the text of a malformed record."""

    name: str
    of: Literal["record", "field", "malformed"]
    source: str
    arrow: pa.DataType


class Layout(Struct, frozen=True, kw_only=True):
    """The columns of a read, and the fields of data among them."""

    rows: tuple[tuple[str, str, pa.DataType], ...] = PLAIN  # the columns of the record
    kafka: bool = False  # whether these have the names of Kafka
    outputs: tuple[OutputColumn, ...] = ()  # none: all columns of the shape
    fields: tuple[pa.Field, ...] = ()
    typed: bool = False

    @property
    def columns(self) -> tuple[OutputColumn, ...]:
        return self.outputs or tuple(OutputColumn(name, "record", name, kind) for name, _, kind in self.rows)


# --- record batches in the layout of a read


LOG_APPEND_TIME = 1  # Kafka's timestampType for a timestamp that the log assigned
KAFKA_NAMES = {"offset": "seq", "timestamp": "ts"}
CELL_NAMES = {**KAFKA_NAMES, "key": "tag", "headers": "meta"}


class Batches:
    """Builds record batches of one layout."""

    def __init__(self, layout: Layout) -> None:
        self._columns = layout.columns
        self._schema = pa.schema([pa.field(one.name, one.arrow) for one in self._columns])
        self._fields = JsonFields(layout.fields) if layout.fields else None
        used = {CELL_NAMES.get(one.source, one.source) for one in self._columns}
        self._unused = {"ts", "node", "tag", "meta"} - used

    def records(self, piece: Run | pa.RecordBatch, span: Span) -> pa.RecordBatch:
        """Return the records of a run, or archived ones, whose columns have the same names."""
        if isinstance(piece, Run):
            found = cells(piece, without=self._unused)
        else:
            found = Cells(*(piece.column(name) for name in Cells._fields))
        parsed, malformed = ([], []) if self._fields is None else self._fields.parse(found.data)
        fields, columns = iter(parsed), []
        for one in self._columns:
            if one.of == "field":
                columns.append(next(fields))
            elif one.of == "malformed":
                fits = np.ones(len(found.data), np.bool_)
                fits[malformed] = False
                columns.append(found.data.take(pa.array(np.arange(len(fits)), mask=fits)))
            else:
                columns.append(_record_column(one.source, found, span))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def gap(self, span: Span, gap_from: int, gap_to: int, reason: str) -> pa.RecordBatch:
        """Return a batch with one row of kind gap for the seqs gap_from to gap_to, both inclusive."""
        row: dict[str, Any] = {
            "kind": GAP, "topic": span.topic, "seq": gap_from, "offset": gap_from, "gap_to": gap_to, "reason": reason,
            "partition": 0, "epoch": span.epoch,
        }  # fmt: skip
        shown = {one.name: row.get(one.source) for one in self._columns if one.of == "record"}
        return pa.RecordBatch.from_pylist([shown], schema=self._schema)


def _record_column(name: str, found: Cells, span: Span) -> pa.Array:
    """Return a column of the record, under our name or Kafka's."""
    n = len(found.seq)
    match KAFKA_NAMES.get(name, name):
        case "kind":
            return pa.repeat(RECORD, n)
        case "topic":
            return pa.repeat(span.topic, n)
        case "epoch":
            return pa.repeat(pa.scalar(span.epoch, pa.int64()), n)
        case "gap_to":
            return pa.nulls(n, pa.int64())
        case "reason":
            return pa.nulls(n, pa.string())
        case "key":
            return found.tag.cast(pa.binary())
        case "value":
            return found.data.cast(pa.binary())
        case "partition":
            return pa.repeat(pa.scalar(0, pa.int32()), n)
        case "timestampType":
            return pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), n)
        case "headers":
            return _headers(found.meta, n)
        case own:
            return getattr(found, own)


def _headers(meta: pa.Array, n: int) -> pa.Array:
    """Return meta as Kafka headers: the bytes of a string, and JSON text for any other value.

    Half a surrogate pair has no UTF-8 form: a string value with one stays JSON text, a name keeps the escape.
    """
    if meta.null_count == n:
        return pa.nulls(n, HEADERS)
    rows = [
        None
        if text is None
        else [
            {"key": surrogates.escaped(key), "value": _header_value(value)}
            for key, value in surrogates.members(text).items()
        ]
        for text in meta.to_pylist()
    ]
    return pa.array(rows, HEADERS)


def _header_value(value: msgspec.Raw) -> bytes:
    raw = bytes(value)
    if not raw.startswith(b'"'):
        return raw
    try:
        return msgspec.json.decode(raw, type=str).encode()
    except msgspec.DecodeError:
        return raw
