"""Write the latest records of a range to a table or a topic: the part of `compact` that runs on executors."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Raw, Struct, field

from topics.client import Client
from topics.lake.files import RowsFile, RowsWriter, read_rows
from topics.lake.storage import Storage
from topics.model import surrogates
from topics.spark.options import BadOption, ConnectionOptions
from topics.spark.pipelines.rounds import MAX_RECORDS, RoundsPosition, answered, chunk
from topics.spark.pipelines.run.delivery import refused_rows
from topics.spark.pipelines.run.report import ReportedGap
from topics.spark.sink.chunks import pieces
from topics.spark.sink.send import Sent, send
from topics.spark.sink.write_options import WriteOptions
from topics.spark.source.catalog import client_for

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
    """The position of a compaction, with its declaration: keys of two topics or expressions must not mix."""

    declaration: int
    plan: int = 0
    target_seq: int = 0
    stale_to: int = 0  # records of the output up to this seq were written before the last restart
    gaps: list[ReportedGap] = field(default_factory=list)


class CompactResult(Sent, kw_only=True):
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


class Count(Struct, kw_only=True):
    """Counts the rows that would be written."""

    null_removes: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome = CompactResult()
        for batch in batches:
            self.kept(batch, outcome)
        yield answered(outcome)

    def kept(self, batch: pa.RecordBatch, outcome: CompactResult) -> list[dict[str, Any]]:
        rows = list(_sort_out(batch, outcome))
        kept = [row for row in rows if not (self.null_removes and is_null(row["data"]))]
        outcome.removed += len(rows) - len(kept)
        outcome.keys += len(kept)
        outcome.records += sum(row["n"] > 0 for row in kept)
        return kept


class LatestFiles(CompactResult, kw_only=True):
    """The result of the task that writes files."""

    files: list[RowsFile] = field(default_factory=list)


class WriteLatestTable(Count, kw_only=True):
    """Writes rows, sorted by key, to files for a commit. Gaps come first, because they have no key.

    A new file begins at each of `cuts`, so that no file overlaps one that stays in the table.
    """

    storage: Storage
    cuts: list[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome, at = LatestFiles(), 0
        with RowsWriter(self.storage, COLUMNS) as writer:
            for batch in batches:
                kept = self.kept(batch, outcome)
                while kept:
                    passed = bisect_right(self.cuts, kept[0]["key"])
                    if passed > at:
                        writer.cut()
                        at = passed
                    end = len(kept) if at == len(self.cuts) else bisect_left(kept, self.cuts[at], key=_key)
                    writer.write(pa.RecordBatch.from_pylist(kept[:end], schema=COLUMNS))
                    kept = kept[end:]
            outcome.files = writer.finish()
        yield answered(outcome)


def _key(row: dict[str, Any]) -> str:
    return str(row["key"])


class FindFiles(Struct):
    """Returns the numbers of the files in whose ranges the keys are. `lows` are the first keys of the files, sorted."""

    lows: list[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = {
            max(bisect_right(self.lows, key) - 1, 0) for batch in batches for key in batch.column("key").to_pylist()
        }
        yield pa.RecordBatch.from_pydict({"number": pa.array(sorted(found), pa.int32())})


class ReadFiles(Struct):
    """Returns the rows of files of the table. The input has the numbers of the files."""

    storage: Storage
    paths: list[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_rows(self.storage, self.paths[number], COLUMNS)


class WriteLatestTopic(Struct, kw_only=True):
    """Appends rows, sorted by seq, to a topic, and then deletes the older records of the same keys there."""

    connection: ConnectionOptions
    source: str
    topic: str
    position: CompactPosition
    fresh: bool  # whether the topic holds no older records
    null_removes: bool

    @property
    def run(self) -> str:
        at = self.position
        return f"compact/{at.generation}/{at.epoch}/{at.done + 1}-{at.plan + 1}"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome = CompactResult()
        with client_for(self.connection, self.connection.servers[0]) as client:
            for batch in batches:
                rows = []
                for row in _sort_out(batch, outcome):
                    if self.null_removes and is_null(row["data"]):
                        outcome.removed += 0 if self.fresh else client.delete(self.topic, match=row["key"]).deleted
                    else:
                        rows.append(row)
                for piece in pieces([self._record(row) for row in rows], most=MAX_RECORDS):
                    self._put(client, rows[piece], outcome)
                outcome.keys += len(rows)
        yield answered(outcome)

    def _put(self, client: Client, rows: list[dict[str, Any]], outcome: CompactResult) -> None:
        """Write the rows. A gap record replaces a record that the server rejects."""

        def put(part: list[dict[str, Any]], suffix: str) -> None:
            self.fresh = self.fresh and not suffix  # a part of a rejected request may have been written already
            self._append(client, part, outcome)

        for row, _, reason in refused_rows(rows, put):
            self.fresh = False
            lost = {"topic": self.source, "gap_from": row["seq"], "gap_to": row["seq"], "reason": reason}
            gap_row = {**row, "data": _encode(lost).decode(), "meta": LOSS, "node": None}
            for _, _, why in refused_rows([gap_row], put):  # the gap record was rejected as well, so its key is invalid
                raise BadOption(f"--by: the key of seq {row['seq']} cannot be a tag: {why}; --table takes any key")
            outcome.gaps.append(ReportedGap(from_seq=row["seq"], to_seq=row["seq"], reason=reason))

    def _append(self, client: Client, rows: list[dict[str, Any]], outcome: CompactResult) -> None:
        """Append rows and delete the older records of their keys. So a repetition also leaves one record per key."""
        request = chunk(self.topic, self.run, rows[0]["seq"], [self._record(row) for row in rows])
        written = Sent()
        answers = send(client, WriteOptions(connection=self.connection), [request], written)
        outcome.add(written)
        seqs = [seq for answer in answers for seq in range(answer.first_seq, answer.last_seq + 1)]
        if not self.fresh:
            for row, seq in zip(rows, seqs, strict=True):
                client.delete(self.topic, match=row["key"], before_seq=seq)

    def _record(self, row: dict[str, Any]) -> bytes:
        """Return the record with its key as the tag, and its origin in its meta."""
        known = {"topic": self.source, "epoch": row["epoch"], "seq": row["seq"], "tag": row["tag"]}
        meta = {} if row["meta"] is None else surrogates.members(row["meta"])
        stamped = Raw(surrogates.object_of({**meta, KEY: known}))
        record = {"data": Raw(row["data"].encode()), "tag": row["key"], "meta": stamped}
        if row["node"] is not None:
            record["node"] = row["node"]
        return _encode(record)


def is_null(data: str) -> bool:
    return data.strip() == "null"
