"""The columns of the data source with their types, and the columns that a read returns. Imports no Spark.

A read returns columns of the record, fields of its `data`, or both.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import pyarrow as pa
from msgspec import Struct

from topics.spark.options import ReadOptions
from topics.spark.source.where import Comparison, Narrowing, narrowing, parse

UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

SERVER = ("server", "STRING", pa.string())

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
)


class Shape(Struct, frozen=True):
    """The set of columns: plain or Kafka names, with or without the server."""

    kafka: bool = False
    server: bool = False

    @property
    def rows(self) -> tuple[tuple[str, str, pa.DataType], ...]:
        columns = KAFKA if self.kafka else PLAIN
        return (*columns, SERVER) if self.server else columns

    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(name, kind) for name, _, kind in self.rows])


def shape_of(options: ReadOptions) -> Shape:
    return Shape(kafka=options.kafka_columns, server=options.several_servers)


class OutputColumn(NamedTuple):
    """One column: a column of the record called `source`, a field of data, or the text of a malformed record."""

    name: str
    of: Literal["record", "field", "malformed"]
    source: str
    arrow: pa.DataType


class Layout(Struct, frozen=True, kw_only=True):
    """The columns of a read, the fields of data among them, and the condition on records."""

    shape: Shape = Shape()
    outputs: tuple[OutputColumn, ...] = ()  # none: all columns of the shape
    fields: tuple[pa.Field, ...] = ()
    typed: bool = False
    where: str | None = None

    @property
    def columns(self) -> tuple[OutputColumn, ...]:
        return self.outputs or tuple(OutputColumn(name, "record", name, kind) for name, _, kind in self.shape.rows)

    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(one.name, one.arrow) for one in self.columns])

    def kinds(self) -> dict[str, pa.DataType]:
        """Return the columns that a condition can use: those of the read, and all columns of the record."""
        prefix = "_" if self.typed else ""
        record = {f"{prefix}{name}": kind for name, _, kind in self.shape.rows}
        return {one.name: one.arrow for one in self.columns} | record

    def implied(self) -> tuple[Comparison, ...]:
        """Return comparisons that hold for each record that matches the condition."""
        return () if self.where is None else parse(self.where, self.kinds()).implied

    def narrowing(self) -> Narrowing:
        """Return what the condition implies for the plan of the read."""
        return narrowing(self.implied(), kafka=self.shape.kafka, typed=self.typed)
