"""The columns of the data source, with their Spark and Arrow types. Needs neither a session nor a server."""

from __future__ import annotations

import pyarrow as pa
from msgspec import Struct

from topics.spark.options import ReadOptions

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

# The meaning of a column in a filter, under our name or Kafka's.
MEANING = {"topic": "topic", "seq": "seq", "offset": "seq", "ts": "ts", "timestamp": "ts", "tag": "tag"}


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
