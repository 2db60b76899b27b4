"""Compact: the latest record of every tag, or of every value of an expression, as a Delta table or a topic.

In a table, the files whose keys change are replaced. In a topic, tasks append the latest records of ranges of keys;
then the older records of these keys are looked for and deleted by seq, many in one request.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from msgspec import Struct, field, structs

from topics.arrow import cells
from topics.errors import Code, TopicsError
from topics.lake.files import RowsFile, RowsWriter, read_rows
from topics.lake.layout import SCHEMA
from topics.lake.output import OutputTable
from topics.lake.storage import Storage
from topics.spark.failures import BadUsage, allowed
from topics.spark.options import BadOption, ConnectionOptions, WriteOptions
from topics.spark.pipelines import rounds
from topics.spark.pipelines.audit import INFLATION
from topics.spark.pipelines.run import positions
from topics.spark.pipelines.run.delivery import (
    REFUSED,
    DeliveryResult,
    OutgoingRow,
    RangeDelivery,
    delete_seqs,
    gap_row,
    record_of,
    stamped,
)
from topics.spark.pipelines.run.job import PipelineJob, ReadingOptions, check_may_delete
from topics.spark.pipelines.run.report import ReportedGap, RunReport
from topics.spark.pipelines.run.tasks import TASK_BYTES
from topics.spark.sink.chunks import Sent, pieces
from topics.spark.source.catalog import client_for, state_of
from topics.spark.sql.text import lenient
from topics.storage.segments.record_run import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# --- tasks, which run on executors


KEY = "_topics_compact"  # key in the meta of a record
JSON_SPACES = " \t\r\n"

COLUMNS = pa.schema([pa.field("key", pa.string()), *SCHEMA])


class CompactPosition(rounds.RoundsPosition, frozen=True, kw_only=True):
    """The position of a compaction."""

    plan: int = 0
    stale_to: int = 0  # records of the output up to this seq were written before the last restart


class CompactResult(DeliveryResult, kw_only=True):
    """The result of the tasks that write the latest records."""

    looked_at: int = 0
    keys: int = 0
    without_key: int = 0
    removed: int = 0
    files: list[RowsFile] = field(default_factory=list)


def _with_key(batch: pa.RecordBatch, outcome: CompactResult, *, null_removes: bool) -> pa.RecordBatch:
    """Return the rows to write: those with a key that is not removed. Add gaps and counts of all rows to the result."""
    is_gap, has_key = pc.is_valid(batch.column("gap_to")), pc.is_valid(batch.column("key"))
    for row in batch.filter(is_gap).select(["seq", "gap_to", "reason"]).to_pylist():
        outcome.gaps.append(ReportedGap(from_seq=row["seq"], to_seq=row["gap_to"], reason=row["reason"]))
    records = batch.filter(pc.invert(is_gap))
    keyed = kept = batch.filter(pc.and_(has_key, pc.invert(is_gap)))
    seen, known = (pc.sum(rows.column("n")).as_py() or 0 for rows in (records, keyed))
    outcome.looked_at += seen
    outcome.without_key += seen - known
    if null_removes:
        kept = keyed.filter(pc.not_equal(pc.utf8_trim(keyed.column("data"), JSON_SPACES), "null"))
    outcome.removed += len(keyed) - len(kept)
    outcome.keys += len(kept)
    return kept


class WriteLatestTable(Struct, kw_only=True):
    """Writes rows, sorted by key, to files for a commit. Gaps come first, because they have no key.

    A new file begins at each of `cuts`, so that no file overlaps one that stays in the table. Without a storage, the
    rows are only counted.
    """

    null_removes: bool
    storage: Storage | None = None
    cuts: list[str] = []

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome, at = CompactResult(), 0
        with nullcontext() if self.storage is None else RowsWriter(self.storage, COLUMNS) as writer:
            for batch in batches:
                kept = _with_key(batch, outcome, null_removes=self.null_removes)
                outcome.records += pc.sum(pc.greater(kept.column("n"), 0)).as_py() or 0
                while len(kept) and writer is not None:
                    keys = kept.column("key")
                    passed = bisect_right(self.cuts, keys[0].as_py())
                    if passed > at:
                        writer.cut()
                        at = passed
                    end = len(kept)
                    if at < len(self.cuts):
                        end = bisect_left(range(end), self.cuts[at], key=lambda row: keys[row].as_py())
                    for part in pa.Table.from_batches([kept[:end]]).select(COLUMNS.names).cast(COLUMNS).to_batches():
                        writer.write(part)
                    kept = kept[end:]
            outcome.files = [] if writer is None else writer.finish()
        yield rounds.answered(outcome)


class WriteLatestTopic(Struct, kw_only=True):
    """Appends rows to a topic, in their order. A gap record replaces a record that the server rejects."""

    connection: ConnectionOptions
    source: str
    topic: str
    position: CompactPosition
    null_removes: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome, at = CompactResult(), self.position
        run = f"compact/{at.generation}/{at.epoch}/{at.done + 1}-{at.plan + 1}"
        keys: dict[int, str] = {}  # by seq

        def gap(first: int, last: int, reason: str) -> OutgoingRow:
            known = {"topic": self.source, "epoch": at.epoch, "seq": first, "tag": None}
            return gap_row(self.source, first, last, reason, KEY, known, tag=keys[first])

        with client_for(self.connection) as client:
            delivery = RangeDelivery(
                client=client, options=WriteOptions(connection=self.connection), topic=self.topic, epoch=at.epoch,
                present=0, gap_row=gap, outcome=outcome,
            )  # fmt: skip
            for batch in batches:
                kept = _with_key(batch, outcome, null_removes=self.null_removes)
                keys = dict(zip(kept.column("seq").to_pylist(), kept.column("key").to_pylist(), strict=True))
                rows = list(self._rows(kept))
                for piece in pieces([row.record for row in rows], most=rounds.MAX_RECORDS):
                    part = rows[piece]
                    try:
                        delivery.send(rounds.key(run, part[0].first, [row.record for row in part]), part)
                    except TopicsError as error:
                        if error.code not in REFUSED:
                            raise
                        # The gap record was rejected as well, so its key is invalid.
                        why = f"--by: a key cannot be a tag: {error.message}; --table takes any key"
                        raise BadOption(why) from None
        yield rounds.answered(outcome)

    def _rows(self, kept: pa.RecordBatch) -> Iterator[OutgoingRow]:
        """Yield the records with their key as the tag, and their origin in their meta."""
        plain = [kept.column(name).to_pylist() for name in ("seq", "epoch", "node", "tag", "key")]
        texts = [kept.column(name).cast(pa.binary()).to_pylist() for name in ("meta", "data")]
        for seq, epoch, node, tag, key, meta, data in zip(*plain, *texts, strict=True):
            known = {"topic": self.source, "epoch": epoch, "seq": seq, "tag": tag}
            yield OutgoingRow(seq, seq, record_of(data, node, key, stamped(meta, KEY, known)))


# --- the pipeline

ALL_SEQS = 1 << 62
EVERY_S = 10.0
FEW_KEYS = 32  # a search for the records of one tag takes about a thirtieth of the time of a read of the topic
KEPT_HOURS = 1  # how long replaced files stay: each round may replace all of them

ROW = ("epoch", "seq", "ts", "node", "tag", "meta", "data", "gap_to", "reason")
KNOWN = "key STRING, epoch BIGINT, seq BIGINT, ts TIMESTAMP, node STRING, tag STRING, meta STRING, data STRING"


def compact(
    *,
    url: str,
    topic: str,
    into: str | None = None,
    table: str | None = None,
    by: str = "tag",
    null_removes: bool = False,
    full: bool = False,
    follow: bool = False,
    every_s: float = EVERY_S,
    lake: str | None = None,
    step_seqs: int = rounds.STEP_SEQS,
    positions_topic: str = positions.TOPIC,
    **options: Unpack[ReadingOptions],
) -> RunReport:
    """Write the latest record for each value of `by`, a SQL expression over the record's columns and `value`.

    `null_removes`: a record whose data is null removes its key. `full`: start again with the first seq, so that
    records deleted from the topic disappear from the output as well.
    """
    if (into is None) == (table is None):
        raise BadUsage("choose one output: a topic (into) or a Delta table (table)")
    if into == topic:
        raise BadUsage(f"{topic} cannot be compacted into itself: its readers would lose the older records")
    with PipelineJob("compact", servers=[url], **options) as job, job.client(url) as client:
        source = rounds.SourceTopic(job, client, topic, lake=lake)
        if into is not None and not job.dry_run:
            with allowed(Code.TOPIC_NOT_FOUND):  # which only a key that may delete gets
                check_may_delete(client, into)  # without deletes each run would add one more record per key
        declaration = xxhash.xxh3_64_intdigest(msgspec.json.encode((topic, by))) >> 1
        work = Compaction(
            source, by, CompactPosition(declaration=declaration, epoch=0), into=into, table=table, full=full,
            positions=positions_topic, prefix=f"compact:{into}:",
            # A dry run writes nothing that a second step could build on, so it reads everything in one step.
            step_seqs=ALL_SEQS if job.dry_run else step_seqs,
        )  # fmt: skip
        work.null_removes = null_removes
        work.run(follow=follow, every_s=every_s)
    return job.report


class Compaction(rounds.Rounds[CompactPosition]):
    """One run that compacts a topic.

    A table has one row per key; its files are sorted by key and do not overlap. A topic has one record per key, with
    the key as its tag.
    """

    lost = "unread records of its earlier epoch are lost"
    begun: ClassVar[Mapping[str, Any]] = {"plan": 0}
    kept_hours = KEPT_HOURS
    schema = COLUMNS
    null_removes = False
    _declared: str  # the expression of the key
    _kept: Sequence[RowsFile] = ()  # files of the table that stay
    _new_bytes = _changed_bytes = 0  # estimated size of the records of a step, and of the rows that it writes again

    def planned(self, at: CompactPosition) -> int | None:
        return at.plan if at.plan > at.done else None

    def transform(self, at: CompactPosition, last: int) -> tuple[CompactPosition, DataFrame]:
        """Return one row per key, and one per gap (`key` NULL, `gap_to` set); `n` counts the records of the key."""
        keyed = rounds.with_value(self._source.load(at.done + 1, last + 1)).selectExpr(
            f"IF(kind = 'gap', NULL, CAST(({lenient(self._declared)}) AS STRING)) AS key",
            "IF(kind = 'gap', seq, NULL) AS lost",
            f"CAST({at.epoch} AS BIGINT) AS epoch", "CAST(1 AS BIGINT) AS n", *ROW[1:],
        )  # fmt: skip
        state = self._source.state()
        self._new_bytes = state.bytes * (last - at.done) // max(state.head_seq - state.earliest_seq + 1, 1)
        return structs.replace(at, plan=last), _latest(keyed)

    def plan(self, at: CompactPosition) -> CompactPosition:
        epoch, head = self.target()
        stale_to = head if self.restarts else at.stale_to
        return super().plan(structs.replace(at, target_epoch=epoch, stale_to=stale_to))

    def write(self, latest: DataFrame, at: CompactPosition) -> CompactResult:
        latest = self.hold(latest)
        if self._table is not None:
            return self._write_table(self._table, latest)
        if self._job.dry_run:
            return rounds.run_tasks(latest, WriteLatestTable(null_removes=self.null_removes), CompactResult)
        task = WriteLatestTopic(
            connection=self._job.connection(self._client.url), source=self._source.topic, topic=self.name, position=at,
            null_removes=self.null_removes,
        )  # fmt: skip
        outcome = rounds.run_tasks(self._by_key(latest, "seq"), task, CompactResult)
        if at.stale_to:
            self._client.delete(self.name, before_seq=at.stale_to + 1)
        self._delete_older(latest, outcome)
        return outcome

    def _by_key(self, rows: DataFrame, *order: str) -> DataFrame:
        """Return the rows in partitions of ranges of keys, by their estimated size, and sorted."""
        from pyspark.sql import functions as F

        count = -(-(self._new_bytes + self._changed_bytes) // TASK_BYTES)
        parts = rows.repartition(1) if count < 2 else rows.repartitionByRange(count, "key")
        return parts.sortWithinPartitions(*(F.col(name).asc_nulls_first() for name in order))

    def _delete_older(self, latest: DataFrame, outcome: CompactResult) -> None:
        """Delete all records but the last of every key that was written, and all records of a removed key.

        If few keys were written, the server looks for the records of each. Otherwise tasks read the whole topic once.
        """
        from pyspark.sql import functions as F

        state = state_of(self._client, self.name)
        if state is None or (state.count == outcome.keys and not outcome.removed):  # every key has one record
            return
        is_removed = F.col("data").rlike(r"^\s*null\s*$") if self.null_removes else F.lit(False)
        keyed = latest.where("key IS NOT NULL AND gap_to IS NULL")
        written = keyed.select("key", is_removed.alias("is_removed"))
        if outcome.keys + outcome.removed > FEW_KEYS:
            records = rounds.SourceTopic(self._job, self._client, self.name).load(1, state.head_seq + 1)
            older = records.where("kind = 'record'").selectExpr("tag AS key", "seq").join(written, "key")
            older = older.groupBy("key", "is_removed").agg(F.array_sort(F.collect_list("seq")).alias("seqs"))
            seqs = "IF(is_removed, seqs, slice(seqs, 1, size(seqs) - 1))"
            connection, topic, epoch = self._job.connection(self._client.url), self.name, state.epoch

            def delete(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                with client_for(connection) as client:
                    found = [delete_seqs(client, topic, one.column(0).to_pylist(), epoch=epoch) for one in batches]
                yield rounds.answered(Sent(records=sum(found)))

            rounds.run_tasks(older.selectExpr(f"explode({seqs}) AS seq"), delete, Sent)
            return
        for row in written.collect():
            found = self._client.scan(self.name, epoch=state.epoch, filter=["tag", "Eq", row.key])
            tagged = [seq for piece in found if isinstance(piece, Run) for seq in cells(piece).seq.to_pylist()]
            delete_seqs(self._client, self.name, tagged if row.is_removed else tagged[:-1], epoch=state.epoch)

    def _write_table(self, table: OutputTable, latest: DataFrame) -> CompactResult:
        task = WriteLatestTable(null_removes=self.null_removes)
        if not self._job.dry_run:
            table.create(COLUMNS, name=f"latest of {self._source.topic}")
            task.storage = table.storage
        rows = self._with_changed(table, latest)
        task.cuts = [str(file.low) for file in self._kept]
        outcome = rounds.run_tasks(self._by_key(rows, "key", "seq"), task, CompactResult)
        self.adds = outcome.files
        outcome.keys += sum(file.rows for file in self._kept)
        return outcome

    def _with_changed(self, table: OutputTable, latest: DataFrame) -> DataFrame:
        """Return the latest rows of a range and of the files that they change. Choose these files."""
        files = [] if self.restarts else table.files("key")
        changed = set(_changed(latest, files))
        paths = self.removes = [file.path for at, file in enumerate(files) if at in changed]
        self._kept = [file for at, file in enumerate(files) if at not in changed]
        self._changed_bytes = INFLATION * sum(file.bytes for at, file in enumerate(files) if at in changed)
        if not paths:
            return latest
        storage = table.storage

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from read_rows(storage, paths[number], COLUMNS)

        known = self._job.spark.range(0, len(paths), 1, len(paths)).mapInArrow(read, KNOWN)
        none = ("CAST(NULL AS BIGINT) AS gap_to", "CAST(NULL AS STRING) AS reason")
        # `n` counts only records of the new range.
        before = known.selectExpr("key", "CAST(0 AS BIGINT) AS n", *ROW[:7], *none, "CAST(NULL AS BIGINT) AS lost")
        return _latest(latest.selectExpr("*", "IF(gap_to IS NULL, NULL, seq) AS lost").unionByName(before))

    def after(self, at: CompactPosition, outcome: CompactResult) -> CompactPosition:
        """Return the position after the step. The first records create a topic, so its epoch is known only now."""
        outcome.gaps = self.gaps = [structs.replace(gap, epoch=at.epoch) for gap in outcome.gaps]
        return structs.replace(at, done=at.plan, stale_to=0, target_epoch=at.target_epoch or self.target()[0])

    def note(self, outcome: CompactResult) -> None:
        super().note(outcome)
        self._row.gaps += outcome.gaps
        self._row.add(looked_at=outcome.looked_at, without_key=outcome.without_key, removed=outcome.removed)
        if outcome.keys:
            self._row.figures["keys"] = outcome.keys


def _latest(keyed: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    last = F.max(F.struct(*ROW)).alias("last")
    return keyed.groupBy("key", "lost").agg(last, F.sum("n").alias("n")).select("key", "n", "last.*")


def _changed(latest: DataFrame, files: list[RowsFile]) -> Iterable[int]:
    """Sort the files by key. Return the numbers of those that the rows change: all if files overlap or lack bounds."""
    if len(files) < 2 or any(file.low is None or file.high is None for file in files):
        return range(len(files))
    files.sort(key=lambda file: str(file.low))
    if any(one.high >= other.low for one, other in pairwise(files)):
        return range(len(files))
    lows = [file.low for file in files]

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys = (key for batch in batches for key in batch.column("key").to_pylist())
        found = {max(bisect_right(lows, key) - 1, 0) for key in keys}
        yield pa.RecordBatch.from_pydict({"number": pa.array(sorted(found), pa.int32())})

    keys = latest.where("key IS NOT NULL AND gap_to IS NULL").select("key")
    return [row.number for row in keys.mapInArrow(find, "number INT").distinct().collect()]
