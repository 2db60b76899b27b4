"""Read a topic in two ways: by `diff`, and by Spark."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from topics.client import Client
from topics.client.request import Tombstone


class Seen(NamedTuple):
    """A record, field by field, `data` and `meta` as the text they are; or a gap."""

    seq: int
    ts_ms: int | None = None
    node: str | None = None
    tag: str | None = None
    meta: str | None = None
    data: str | None = None
    gap_to: int | None = None
    reason: str | None = None


def by_diff(client: Client, topic: str, **fields: Any) -> list[Seen]:
    """Everything from the cursor to the head."""
    seen = []
    for item in client.read(topic, include_tags=True, limit=7, **fields):
        if isinstance(item, Tombstone):
            seen.append(Seen(item.gap_from, gap_to=item.gap_to, reason=item.reason))
        else:
            meta = (
                None if not isinstance(item.meta, bytes | memoryview) and not item.meta else bytes(item.meta).decode()
            )
            seen.append(Seen(item.seq, item.ts, item.node, item.tag, meta, bytes(item.data).decode()))
    return seen


def by_spark(frame: DataFrame) -> dict[str, list[Seen]]:
    """The rows of a DataFrame by topic, in the order of their seqs."""
    rows = frame.selectExpr(
        "kind", "topic", "seq", "unix_millis(ts) AS ms", "node", "tag", "meta", "data", "gap_to", "reason"
    ).collect()
    found: dict[str, list[Seen]] = {}
    for row in sorted(rows, key=lambda row: (row.topic, row.seq)):
        assert row.kind == ("record" if row.gap_to is None else "gap")
        seen = Seen(row.seq, row.ms, row.node, row.tag, row.meta, row.data, row.gap_to, row.reason)
        found.setdefault(row.topic, []).append(seen)
    return found


def load(spark: SparkSession, **options: Any) -> DataFrame:
    reader = spark.read.format("topics")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()
