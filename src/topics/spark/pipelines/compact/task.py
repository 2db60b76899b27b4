"""Write the latest records of a range to a file or a topic: the part of `compact` that runs on an executor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Raw, Struct, field, structs

from topics.client import Client
from topics.errors import TopicsError
from topics.model import surrogates
from topics.spark.options import BadOption, ConnectionOptions
from topics.spark.pipelines.rounds import append_rows
from topics.spark.pipelines.rounds.append_rows import WriteCounts
from topics.spark.pipelines.rounds.outputs import RoundsPosition, answered
from topics.spark.pipelines.run.delivery import REFUSED
from topics.spark.pipelines.run.report import ReportedGap
from topics.spark.sink.chunks import pieces
from topics.spark.source.catalog import client_for

META = b"topics.compact"  # key in the metadata of the file
KEY = "_topics_compact"  # key in the meta of a record
GAPS_KEPT = 1000
LOSS = '{"kind":"gap"}'  # meta of a record that replaces one that could not be written

COLUMNS = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("epoch", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
        pa.field("node", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("meta", pa.string()),
        pa.field("data", pa.string()),
    ]
)
_encode = msgspec.json.Encoder().encode


class CompactPosition(RoundsPosition, frozen=True, kw_only=True):
    """The position of a compaction, with the topic and the key expression: keys of two expressions must not mix."""

    topic: str
    by: str
    plan: int = 0
    target_seq: int = 0
    generation: int = field(default=0, name="generation")  # files of earlier releases use this name
    stale_to: int = 0  # records of the output up to this seq were written before the last restart
    gaps: list[ReportedGap] = field(default_factory=list)


class Range(Struct, frozen=True, kw_only=True):
    """Seqs [start, stop) of one epoch."""

    epoch: int
    start: int
    stop: int


class CompactResult(WriteCounts, kw_only=True):
    """The result of the task that writes the latest records."""

    looked_at: int = 0
    keys: int = 0
    without_key: int = 0
    removed: int = 0
    gaps: list[ReportedGap] = field(default_factory=list)


def _sort_out(batch: pa.RecordBatch, outcome: CompactResult) -> Iterator[dict[str, Any]]:
    """Yield the rows that have a key. Add gaps and the counts of all rows to the result."""
    for row in batch.to_pylist():
        if row["gap_to"] is not None:
            outcome.gaps.append(ReportedGap(from_seq=row["seq"], to_seq=row["gap_to"], reason=row["reason"]))
            continue
        outcome.looked_at += row["n"]
        if row["key"] is None:
            outcome.without_key += row["n"]
        else:
            yield row


class Count:
    """Counts the rows that would be written."""

    def __init__(self, null_removes: bool) -> None:
        self._null_removes = null_removes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome = CompactResult()
        for batch in batches:
            self.kept(batch, outcome)
        yield answered(outcome)

    def kept(self, batch: pa.RecordBatch, outcome: CompactResult) -> list[dict[str, Any]]:
        rows = list(_sort_out(batch, outcome))
        kept = [row for row in rows if not (self._null_removes and is_null(row["data"]))]
        outcome.removed += len(rows) - len(kept)
        outcome.keys += len(kept)
        outcome.records += sum(row["n"] > 0 for row in kept)
        return kept


class WriteLatestFile(Count):
    """Writes rows, sorted by key, to a file under a temporary name. Gaps come first, because they have no key."""

    def __init__(self, path: str, position: CompactPosition, null_removes: bool) -> None:
        super().__init__(null_removes)
        self._path = path
        self._position = _encode(position)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome = CompactResult()
        position = msgspec.json.decode(self._position, type=CompactPosition)
        with pq.ParquetWriter(self._path, COLUMNS, compression="zstd") as writer:
            for batch in batches:
                if kept := self.kept(batch, outcome):
                    writer.write_batch(pa.RecordBatch.from_pylist(kept, schema=COLUMNS))
            gaps = [structs.replace(gap, epoch=position.epoch) for gap in outcome.gaps]
            position = structs.replace(position, gaps=[*position.gaps, *gaps][-GAPS_KEPT:])
            writer.add_key_value_metadata({META.decode(): _encode(position).decode()})
        with open(self._path, "rb") as file:
            os.fsync(file.fileno())
        yield answered(outcome)


class WriteLatestTopic:
    """Appends rows, sorted by seq, to a topic, and then deletes the older records of the same keys there."""

    def __init__(
        self,
        *,
        connection: ConnectionOptions,
        topic: str,
        position: CompactPosition,
        part: Range,
        fresh: bool,
        null_removes: bool,
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._source = position.topic
        self._run = f"compact/{position.generation}/{part.epoch}/{part.start}-{part.stop}"
        self._fresh = fresh
        self._null_removes = null_removes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome = CompactResult()
        with client_for(self._connection, self._connection.servers[0]) as client:
            for batch in batches:
                rows = []
                for row in _sort_out(batch, outcome):
                    if self._null_removes and is_null(row["data"]):
                        outcome.removed += 0 if self._fresh else client.delete(self._topic, match=row["key"]).deleted
                    else:
                        rows.append(row)
                records = [self._record(row) for row in rows]
                for piece in pieces(records, most=append_rows.MAX_RECORDS):
                    self._put(client, rows[piece], records[piece], outcome)
                outcome.keys += len(rows)
        yield answered(outcome)

    def _put(self, client: Client, rows: list[dict[str, Any]], records: list[bytes], outcome: CompactResult) -> None:
        """Append rows and delete the older records of their keys. So a repetition also leaves one record per key."""
        one = append_rows.chunk(self._topic, self._run, rows[0]["seq"], records)
        try:
            answers = append_rows.append(client, one, outcome)
        except TopicsError as error:
            if error.code not in REFUSED:
                raise
            self._put_refused(client, rows, records, outcome, error)
            return
        seqs = [seq for answer in answers for seq in range(answer.first_seq, answer.last_seq + 1)]
        if not self._fresh:
            for row, seq in zip(rows, seqs, strict=True):
                client.delete(self._topic, match=row["key"], before_seq=seq)

    def _put_refused(
        self,
        client: Client,
        rows: list[dict[str, Any]],
        records: list[bytes],
        outcome: CompactResult,
        error: TopicsError,
    ) -> None:
        """Send the rows of a rejected request one by one; a gap record replaces a record that is rejected alone."""
        self._fresh = False  # a part of the request may have been written already
        if len(rows) > 1:
            middle = len(rows) // 2
            self._put(client, rows[:middle], records[:middle], outcome)
            self._put(client, rows[middle:], records[middle:], outcome)
            return
        [row] = rows
        if _is_loss(row):  # the gap record was rejected as well, so the key must be invalid
            text = f"--by: the key of seq {row['seq']} cannot be a tag: {error.message}; --parquet takes any key"
            raise BadOption(text) from None
        reason = f"refused: {error.message}"
        lost = {"topic": self._source, "gap_from": row["seq"], "gap_to": row["seq"], "reason": reason}
        gap_row = {**row, "data": _encode(lost).decode(), "meta": LOSS, "node": None}
        self._put(client, [gap_row], [self._record(gap_row)], outcome)
        outcome.gaps.append(ReportedGap(from_seq=row["seq"], to_seq=row["seq"], reason=reason))

    def _record(self, row: dict[str, Any]) -> bytes:
        """Return the record with its key as the tag, and its origin in its meta."""
        known = {"topic": self._source, "epoch": row["epoch"], "seq": row["seq"], "tag": row["tag"]}
        meta = {} if row["meta"] is None else surrogates.members(row["meta"])
        stamped = Raw(surrogates.object_of({**meta, KEY: known}))
        record = {"data": Raw(row["data"].encode()), "tag": row["key"], "meta": stamped}
        if row["node"] is not None:
            record["node"] = row["node"]
        return _encode(record)


def _is_loss(row: dict[str, Any]) -> bool:
    return bool(row["meta"] == LOSS)


def is_null(data: str) -> bool:
    return data.strip() == "null"
