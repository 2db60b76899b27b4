"""The columns of the data source with their types, and the columns that a read returns. Imports no Spark.

A read returns columns of the record, fields of its `data`, or both.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from topics.arrow import GAP, RECORD, SCHEMA, Cells, cells
from topics.lake.columns import RESERVED, JsonFields
from topics.spark.source.plan import Span
from topics.storage.segments.record_run import Run

# The columns of a record or a gap. `seq` of a gap is its first seq; seqs are unique within an epoch.
RECORD_SCHEMA = SCHEMA.append(pa.field("epoch", pa.int64()))


class OutputColumn(NamedTuple):
    """One column: a column of the record called `source`, a field of data, or the text of a malformed record."""

    name: str
    of: Literal["record", "field", "malformed"]
    source: str
    arrow: pa.DataType


def record_column(source: str, name: str | None = None) -> OutputColumn:
    """Return a column of the record, under its own or another name."""
    return OutputColumn(name or source, "record", source, RECORD_SCHEMA.field(source).type)


class Layout(Struct, frozen=True, kw_only=True):
    """The columns of a read, and the fields of data among them."""

    outputs: tuple[OutputColumn, ...] = tuple(map(record_column, RECORD_SCHEMA.names))
    fields: tuple[pa.Field, ...] = ()
    typed: bool = False


# --- record batches in the layout of a read


class Batches:
    """Builds record batches of one layout."""

    def __init__(self, layout: Layout) -> None:
        self._columns = layout.outputs
        self._schema = pa.schema([pa.field(one.name, one.arrow) for one in self._columns])
        self._fields = JsonFields(layout.fields) if layout.fields else None
        # Whether a record is malformed follows from its text only.
        has_malformed = any(one.of == "malformed" for one in self._columns)
        names = {field.name for field in layout.fields}
        self.stored = () if has_malformed or names & RESERVED else tuple(names)  # typed columns that a file may have
        self._unused = {"ts", "node", "tag", "meta"} - {one.source for one in self._columns}

    def records(self, piece: Run | pa.RecordBatch, span: Span) -> pa.RecordBatch:
        """Return the records of a run, or archived ones, whose columns have the same names."""
        if isinstance(piece, Run):
            found = cells(piece, without=self._unused)
        else:
            found = Cells(*(piece.column(name) for name in Cells._fields))
        parsed, malformed = list[pa.Array](), list[int]()
        if self.stored and isinstance(piece, pa.RecordBatch) and self._has_fields(piece.schema):
            parsed = [piece.column(one.name) for one in self._columns if one.of == "field"]
        elif self._fields is not None:
            parsed, malformed = self._fields.parse(found.data)
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

    def _has_fields(self, schema: pa.Schema) -> bool:
        """Return whether a file has all fields of data as columns of the same types, which follow the same rules."""
        fields = (self._schema.field(one.name) for one in self._columns if one.of == "field")
        return all(field.name in schema.names and schema.field(field.name).type == field.type for field in fields)

    def gap(self, span: Span, gap_from: int, gap_to: int, reason: str) -> pa.RecordBatch:
        """Return a batch with one row of kind gap for the seqs gap_from to gap_to, both inclusive."""
        row: dict[str, Any] = {
            "kind": GAP, "topic": span.topic, "seq": gap_from, "gap_to": gap_to, "reason": reason, "epoch": span.epoch,
        }  # fmt: skip
        shown = {one.name: row.get(one.source) for one in self._columns if one.of == "record"}
        return pa.RecordBatch.from_pylist([shown], schema=self._schema)


def _record_column(name: str, found: Cells, span: Span) -> pa.Array:
    n = len(found.seq)
    match name:
        case "kind":
            return pa.repeat(RECORD, n)
        case "topic":
            return pa.repeat(span.topic, n)
        case "epoch":
            return pa.repeat(pa.scalar(span.epoch, pa.int64()), n)
        case "gap_to" | "reason":
            return pa.nulls(n, RECORD_SCHEMA.field(name).type)
        case own:
            return getattr(found, own)
