"""Convert runs and gaps to record batches for Spark, in the layout of the read."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from topics.arrow import GAP, RECORD, Cells, cells
from topics.lake.json_fields import JsonFields
from topics.model import surrogates
from topics.spark.source.layout import HEADERS, Layout
from topics.spark.source.where import Condition, parse
from topics.storage.segments.record_run import Run

LOG_APPEND_TIME = 1  # Kafka's timestampType for a timestamp that the log assigned
KAFKA_NAMES = {"offset": "seq", "timestamp": "ts"}
CELL_NAMES = {**KAFKA_NAMES, "key": "tag", "headers": "meta"}


class Batches:
    """Builds record batches of one layout."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._columns = layout.columns
        self._schema = layout.arrow()
        self._fields = JsonFields(layout.fields) if layout.fields else None
        self._where: Condition | None = None if layout.where is None else parse(layout.where, layout.kinds())
        used = {one.source for one in self._columns}
        if self._where is not None:
            used |= {name.removeprefix("_") if layout.typed else name for name in self._where.columns}
        self._unused = {"ts", "node", "tag", "meta"} - {CELL_NAMES.get(name, name) for name in used}

    def records(self, piece: Run | pa.RecordBatch, server: str, topic: str) -> pa.RecordBatch:
        """Return the records of a run, or archived ones, whose columns have the same names."""
        if isinstance(piece, Run):
            found = cells(piece, without=self._unused)
        else:
            found = Cells(*(piece.column(name) for name in Cells._fields))
        prefix = "_" if self._layout.typed else ""
        names = {f"{prefix}{name}": name for name, _, _ in self._layout.shape.rows}
        if self._where is not None and self._where.columns <= names.keys():  # data need not be parsed to decide
            used = {name: _record_column(names[name], found, server, topic) for name in self._where.columns}
            rows = self._where.rows(used)
            found = Cells(*(column.take(rows) for column in found))
        columns = self._all_columns(found, server, topic)
        if self._where is not None and not self._where.columns <= names.keys():
            used = {one.name: column for one, column in zip(self._columns, columns, strict=True)}
            for name in self._where.columns - used.keys():
                used[name] = _record_column(names[name], found, server, topic)
            rows = self._where.rows(used)
            columns = [column.take(rows) for column in columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _all_columns(self, found: Cells, server: str, topic: str) -> list[pa.Array]:
        parsed, malformed = ([], []) if self._fields is None else self._fields.parse(found.data)
        fields = iter(parsed)
        columns = []
        for one in self._columns:
            if one.of == "field":
                columns.append(next(fields))
            elif one.of == "malformed":
                fits = np.ones(len(found.data), np.bool_)
                fits[malformed] = False
                columns.append(found.data.take(pa.array(np.arange(len(fits)), mask=fits)))
            else:
                columns.append(_record_column(one.source, found, server, topic))
        return columns

    def gap(self, server: str, topic: str, gap_from: int, gap_to: int, reason: str) -> pa.RecordBatch:
        """Return a batch with one row of kind gap for the seqs gap_from to gap_to, both inclusive."""
        row: dict[str, Any] = {
            "kind": GAP, "topic": topic, "seq": gap_from, "offset": gap_from, "gap_to": gap_to, "reason": reason,
            "partition": 0, "server": server,
        }  # fmt: skip
        shown = {one.name: row.get(one.source) for one in self._columns if one.of == "record"}
        return pa.RecordBatch.from_pylist([shown], schema=self._schema)


def _record_column(name: str, found: Cells, server: str, topic: str) -> pa.Array:
    """Return a column of the record, under our name or Kafka's."""
    n = len(found.seq)
    match KAFKA_NAMES.get(name, name):
        case "kind":
            return pa.repeat(RECORD, n)
        case "topic":
            return pa.repeat(topic, n)
        case "server":
            return pa.repeat(server, n)
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
