"""Compact: the latest record of every tag, or of every value of an expression, as a Parquet file or a topic.

Only what is new since the last time is read. As a file, what it holds and how far it goes are one thing: the position
is in the file's own metadata, and the file is replaced at once by the next one. As a topic, the latest record of a key
is appended and its older ones are deleted; the position is among those of the server (`positions`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Raw, Struct, field, structs

from topics.client import Client
from topics.errors import Code, TopicsError
from topics.model import surrogates
from topics.spark.catalog import client_for
from topics.spark.options import Connection
from topics.spark.pipelines import emitting, positions
from topics.spark.pipelines.delivery import REFUSED
from topics.spark.pipelines.failures import BadUsage
from topics.spark.pipelines.frames import Source
from topics.spark.pipelines.job import Job, JobOptions
from topics.spark.pipelines.positions import Positions
from topics.spark.pipelines.report import Gap, Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STEP_SEQS = 1_000_000
EVERY_S = 10.0
META = b"topics.compact"  # of the file
KEY = "_topics_compact"  # of a record's meta
GAPS_KEPT = 1000
LOSS = '{"kind":"gap"}'  # meta of a record that tells of one that could not be written

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
ROW = ("epoch", "seq", "ts", "node", "tag", "meta", "data", "gap_to", "reason")
_encode = msgspec.json.Encoder().encode


class Place(Struct, frozen=True, kw_only=True):
    """How far it has come, and what the key was: keys of two expressions do not go together."""

    topic: str
    by: str
    epoch: int
    done: int = 0
    plan: int = 0
    target_epoch: int = 0  # of the topic it goes to; 0 while that is not there
    target_seq: int = 0
    generation: int = 0  # counts beginnings: what is written anew is another write
    stale_to: int = 0  # records of the output up to this seq are of an earlier beginning
    gaps: list[Gap] = field(default_factory=list)


class Range(Struct, frozen=True, kw_only=True):
    """Seqs [start, stop) of one life."""

    epoch: int
    start: int
    stop: int


class Outcome(Struct, kw_only=True):
    """What the writing task saw."""

    looked_at: int = 0
    keys: int = 0
    without_key: int = 0
    removed: int = 0
    records: int = 0
    repeated: int = 0
    gaps: list[Gap] = field(default_factory=list)


def compact(
    *,
    url: str,
    topic: str,
    into: str | None = None,
    parquet: str | None = None,
    by: str = "tag",
    null_removes: bool = False,
    full: bool = False,
    follow: bool = False,
    every_s: float = EVERY_S,
    lake: str | None = None,
    step_seqs: int = STEP_SEQS,
    positions_topic: str = positions.TOPIC,
    **options: Unpack[JobOptions],
) -> Report:
    """The latest record for each value of `by`, a SQL expression over the record's columns and `value`.

    `null_removes`: a record whose data is null removes its key. `full`: begin anew with the first seq, which also
    honours deletes in the topic.
    """
    if (into is None) == (parquet is None):
        raise BadUsage("say where to: a topic (into) or a Parquet file (parquet)")
    if into == topic:
        raise BadUsage(f"{topic} cannot be compacted into itself: readers of the log would lose what it drops")
    with Job("compact", servers=[url], **options) as job, job.client(url) as client:
        source = Source(job, client, topic, lake=lake)
        output: Output
        if parquet is not None:
            output = FileOutput(job, path_for(parquet, topic), null_removes=null_removes)
        else:
            assert into is not None
            output = TopicOutput(job, client, topic, into, positions_topic=positions_topic, null_removes=null_removes)
        work = Compaction(job, source, output, by=by, step_seqs=step_seqs, full=full)
        for _ in job.rounds(follow=follow):
            state = source.state()
            while work.step(state.head_seq) and not job.dry_run:
                pass
            if follow and not job.stopping.wait(every_s):
                source.wait(state)
        work.finish()
    return job.report


class Compaction:
    """One topic on its way to its latest records."""

    def __init__(self, job: Job, source: Source, output: Output, *, by: str, step_seqs: int, full: bool) -> None:
        self._job = job
        self._source = source
        self._output = output
        self._by = by
        self._step_seqs = step_seqs
        self._row = job.report.topic(source.topic, into=output.name)
        known = output.load()
        self._at = None if full else known
        self._generation = 0 if known is None else known.generation + int(full)
        if self._at is not None and (self._at.topic, self._at.by) != (source.topic, by):
            raise BadUsage(
                f"{output.name} holds the latest of {self._at.topic} by {self._at.by}, not of {source.topic} by {by}",
                next="use another output, or begin anew with --full",
            )
        self._anew = self._at is None

    def step(self, head: int) -> bool:
        """The next part of the topic; False where there is none."""
        state = self._source.state()
        if self._at is not None and self._output.is_lost(self._at):
            self._job.warn(f"topic {self._output.name} was deleted: it is filled again")
            self._generation, self._anew, self._at = self._at.generation + 1, True, None
        at = self._at or self._beginning(state.epoch)
        if at.epoch != state.epoch or state.head_seq < at.done:
            self._job.warn(f"topic {at.topic} was made again; what its earlier life left unread is lost")
            self._row.gaps.append(Gap(from_seq=at.done + 1, to_seq=at.done + 1, reason="recreated", epoch=at.epoch))
            at = structs.replace(at, epoch=state.epoch, done=0, plan=0, generation=at.generation + 1)
        stop = (at.plan if at.plan > at.done else min(head, at.done + self._step_seqs)) + 1
        if stop <= at.done + 1:
            self._at = at
            return False
        part = Range(epoch=at.epoch, start=at.done + 1, stop=stop)
        self._job.step(f"{at.topic}: seqs {part.start} to {part.stop - 1}")
        if self._job.dry_run:
            self._note(part, Outcome(looked_at=stop - part.start))
            return False
        self._note(part, self._run(at, part))
        return True

    def _beginning(self, epoch: int) -> Place:
        return Place(topic=self._source.topic, by=self._by, epoch=epoch, generation=self._generation)

    def _run(self, at: Place, part: Range) -> Outcome:
        planned = self._output.plan(structs.replace(at, plan=part.stop - 1), anew=self._anew)
        latest = latest_of(self._source.load(part.start, part.stop), by=self._by, epoch=part.epoch)
        outcome = self._output.write(latest, planned, part, anew=self._anew)
        self._source.check_same(part.epoch)
        gaps = [structs.replace(gap, epoch=part.epoch) for gap in outcome.gaps]
        done = structs.replace(planned, done=planned.plan, stale_to=0, gaps=[*at.gaps, *gaps][-GAPS_KEPT:])
        self._at = self._output.commit(done)
        self._anew = False
        return outcome

    def _note(self, part: Range, outcome: Outcome) -> None:
        row, figures = self._row, self._row.figures
        row.epoch, row.to_seq = part.epoch, part.stop - 1
        row.from_seq = row.from_seq or part.start
        row.records += outcome.records
        row.repeated += outcome.repeated
        row.gaps += [structs.replace(gap, epoch=part.epoch) for gap in outcome.gaps]
        figures["looked_at"] = figures.get("looked_at", 0) + outcome.looked_at
        for name in ("without_key", "removed"):
            if count := getattr(outcome, name):
                figures[name] = figures.get(name, 0) + count
        if outcome.keys:
            figures["keys"] = outcome.keys

    def finish(self) -> None:
        if self._at is not None:
            self._row.lag = max(self._source.state().head_seq - self._at.done, 0)


def latest_of(rows: DataFrame, *, by: str, epoch: int) -> DataFrame:
    """One row a key, and one a loss (`key` NULL, `gap_to` set); `n` counts the records behind it."""
    keyed = rows.selectExpr(
        f"IF(kind = 'gap', NULL, CAST(({by}) AS STRING)) AS key", "IF(kind = 'gap', seq, NULL) AS lost",
        f"CAST({epoch} AS BIGINT) AS epoch", "CAST(1 AS BIGINT) AS n", *ROW[1:],
    )  # fmt: skip
    return _latest(keyed)


def _latest(keyed: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    last = F.max(F.struct(*ROW)).alias("last")
    return keyed.groupBy("key", "lost").agg(last, F.sum("n").alias("n")).select("key", "n", "last.*")


# --- outputs


class Output:
    """Where the latest records go."""

    name: str

    def load(self) -> Place | None:
        raise NotImplementedError

    def is_lost(self, at: Place) -> bool:
        """Whether what was written up to here is gone as a whole."""
        return False

    def plan(self, at: Place, *, anew: bool) -> Place:
        """Notes what is about to be done, where that is needed."""
        return at

    def write(self, latest: DataFrame, at: Place, part: Range, *, anew: bool) -> Outcome:
        raise NotImplementedError

    def commit(self, at: Place) -> Place:
        """Makes it last; where it has come to."""
        raise NotImplementedError


class FileOutput(Output):
    """One Parquet file, sorted by key, replaced as a whole."""

    def __init__(self, job: Job, path: str, *, null_removes: bool) -> None:
        self.name = path
        self._job = job
        self._null_removes = null_removes
        self._staged = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{job.report.run_id}.tmp")

    def load(self) -> Place | None:
        try:
            found = pq.read_metadata(self.name).metadata or {}
        except FileNotFoundError:
            return None
        except pa.ArrowInvalid as error:
            raise BadUsage(f"{self.name} is no Parquet file: {error}") from None
        if META not in found:
            raise BadUsage(f"{self.name} was not made by this pipeline, and is not replaced")
        return msgspec.json.decode(found[META], type=Place)

    def write(self, latest: DataFrame, at: Place, part: Range, *, anew: bool) -> Outcome:
        os.makedirs(os.path.dirname(self.name), exist_ok=True)
        self._tidy()
        rows = latest
        if not anew:
            rows = with_known(latest, self._job.spark.read.parquet(self.name))
        place = structs.replace(at, done=at.plan)
        return _one_task(rows, ("key", "seq"), WriteFile(self._staged, place, self._null_removes))

    def commit(self, at: Place) -> Place:
        os.replace(self._staged, self.name)
        _sync(os.path.dirname(self.name))
        return at

    def _tidy(self) -> None:
        """What killed runs left; nobody but this pipeline writes such names."""
        folder, stem = os.path.split(self.name)
        for entry in os.scandir(folder):
            if entry.name.startswith(f".{stem}.") and entry.name.endswith(".tmp"):
                os.unlink(entry.path)


def with_known(latest: DataFrame, known: DataFrame) -> DataFrame:
    """The latest of a new range, and what was known before it; `n` counts records of the new range only."""
    none = ("CAST(NULL AS BIGINT) AS gap_to", "CAST(NULL AS STRING) AS reason")
    before = known.selectExpr("key", "CAST(0 AS BIGINT) AS n", *ROW[:7], *none, "CAST(NULL AS BIGINT) AS lost")
    return _latest(latest.selectExpr("*", "IF(gap_to IS NULL, NULL, seq) AS lost").unionByName(before))


class TopicOutput(Output):
    """A topic that holds one record a key, with the key as its tag."""

    def __init__(
        self, job: Job, client: Client, topic: str, into: str, *, positions_topic: str, null_removes: bool
    ) -> None:
        self.name = into
        self._client = client
        self._positions = Positions(client, f"compact:{into}:", run=job.report.run_id, topic=positions_topic)
        self._connection = job.connection(client.url)
        self._null_removes = null_removes

    def load(self) -> Place | None:
        return self._positions.load(Place).get("")

    def is_lost(self, at: Place) -> bool:
        return at.target_epoch != 0 and self._target()[0] != at.target_epoch

    def plan(self, at: Place, *, anew: bool) -> Place:
        self._positions.check_alone()
        epoch, head = self._target()
        at = structs.replace(at, target_epoch=epoch, target_seq=head, stale_to=head if anew else at.stale_to)
        self._positions.save({"": at})
        return at

    def _target(self) -> tuple[int, int]:
        """Epoch and head of the topic; zeros while it is not there."""
        try:
            state = self._client.topic(self.name)
        except TopicsError as error:
            if error.code is Code.TOPIC_NOT_FOUND:
                return 0, 0
            raise
        return state.epoch, state.head_seq

    def write(self, latest: DataFrame, at: Place, part: Range, *, anew: bool) -> Outcome:
        task = WriteTopic(
            connection=self._connection, topic=self.name, place=at, part=part, fresh=at.target_seq == 0,
            null_removes=self._null_removes,
        )  # fmt: skip
        outcome = _one_task(latest, ("seq",), task)
        if at.stale_to:
            self._client.delete(self.name, before_seq=at.stale_to + 1)
        return outcome

    def commit(self, at: Place) -> Place:
        """The first records make the topic, so its epoch is known only now."""
        at = structs.replace(at, target_epoch=at.target_epoch or self._target()[0])
        self._positions.save({"": at})
        return at


# --- what tasks do


def _one_task(rows: DataFrame, order: tuple[str, ...], task: WriteFile | WriteTopic) -> Outcome:
    """All rows in order through one task, which writes them."""
    from pyspark.sql import functions as F

    in_order = rows.repartition(1).sortWithinPartitions(*(F.col(name).asc_nulls_first() for name in order))
    done = in_order.mapInArrow(task, "outcome BINARY").collect()
    # Spark leaves out a task for which it knows that there are no rows.
    found = bytes(done[0].outcome) if done else next(task(iter(()))).column(0)[0].as_py()
    return msgspec.json.decode(found, type=Outcome)


def _answer(outcome: Outcome) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"outcome": pa.array([_encode(outcome)], pa.binary())})


def _sort_out(batch: pa.RecordBatch, outcome: Outcome) -> Iterator[dict[str, Any]]:
    """The rows that stand for a key; the others are counted."""
    for row in batch.to_pylist():
        if row["gap_to"] is not None:
            outcome.gaps.append(Gap(from_seq=row["seq"], to_seq=row["gap_to"], reason=row["reason"]))
            continue
        outcome.looked_at += row["n"]
        if row["key"] is None:
            outcome.without_key += row["n"]
        else:
            yield row


class WriteFile:
    """Rows, sorted by key, into a file under a temporary name. Losses come first, since they have no key."""

    def __init__(self, path: str, place: Place, null_removes: bool) -> None:
        self._path = path
        self._place = _encode(place)
        self._null_removes = null_removes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome = Outcome()
        place = msgspec.json.decode(self._place, type=Place)
        with pq.ParquetWriter(self._path, COLUMNS, compression="zstd") as writer:
            for batch in batches:
                rows = list(_sort_out(batch, outcome))
                kept = [row for row in rows if not (self._null_removes and is_null(row["data"]))]
                outcome.removed += len(rows) - len(kept)
                outcome.keys += len(kept)
                outcome.records += sum(row["n"] > 0 for row in kept)
                if kept:
                    writer.write_batch(pa.RecordBatch.from_pylist(kept, schema=COLUMNS))
            gaps = [structs.replace(gap, epoch=place.epoch) for gap in outcome.gaps]
            place = structs.replace(place, gaps=[*place.gaps, *gaps][-GAPS_KEPT:])
            writer.add_key_value_metadata({META.decode(): _encode(place).decode()})
        with open(self._path, "rb") as file:
            os.fsync(file.fileno())
        yield _answer(outcome)


class WriteTopic:
    """Rows, in the order of their seqs, to a topic; then the older records of the same keys are deleted there."""

    def __init__(
        self, *, connection: Connection, topic: str, place: Place, part: Range, fresh: bool, null_removes: bool
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._source = place.topic
        self._run = f"compact/{place.generation}/{part.epoch}/{part.start}-{part.stop}"
        self._fresh = fresh
        self._null_removes = null_removes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome = Outcome()
        with client_for(self._connection, self._connection.servers[0]) as client:
            for batch in batches:
                rows = []
                for row in _sort_out(batch, outcome):
                    if self._null_removes and is_null(row["data"]):
                        outcome.removed += 0 if self._fresh else client.delete(self._topic, match=row["key"]).deleted
                    else:
                        rows.append(row)
                records = [self._record(row) for row in rows]
                for piece in emitting.parts(records):
                    self._put(client, rows[piece], records[piece], outcome)
                outcome.keys += len(rows)
        yield _answer(outcome)

    def _put(self, client: Client, rows: list[dict[str, Any]], records: list[bytes], outcome: Outcome) -> None:
        """A repetition whose key the server has forgotten writes again, and then deletes the first copy: still one."""
        one = emitting.chunk(self._topic, self._run, rows[0]["seq"], records)
        seqs: list[int] = []
        try:
            answers = list(emitting.put(client, one))
        except TopicsError as error:
            if error.code not in REFUSED:
                raise
            self._put_refused(client, rows, records, outcome, error)
            return
        for answer in answers:
            seqs += range(answer.first_seq, answer.last_seq + 1)
            outcome.records += answer.count
            outcome.repeated += answer.count if answer.deduped else 0
        if not self._fresh:
            for row, seq in zip(rows, seqs, strict=True):
                client.delete(self._topic, match=row["key"], before_seq=seq)

    def _put_refused(
        self, client: Client, rows: list[dict[str, Any]], records: list[bytes], outcome: Outcome, error: TopicsError
    ) -> None:
        """A record that is too large with what was added to it must not hold up the others: one tells of it instead."""
        self._fresh = False  # a part of the request may have been written before
        if len(rows) > 1:
            middle = len(rows) // 2
            self._put(client, rows[:middle], records[:middle], outcome)
            self._put(client, rows[middle:], records[middle:], outcome)
            return
        [row] = rows
        if _is_loss(row):
            raise error
        reason = f"refused: {error.message}"
        lost = {"topic": self._source, "gap_from": row["seq"], "gap_to": row["seq"], "reason": reason}
        told = {**row, "data": _encode(lost).decode(), "meta": LOSS, "node": None}
        self._put(client, [told], [self._record(told)], outcome)
        outcome.gaps.append(Gap(from_seq=row["seq"], to_seq=row["seq"], reason=reason))

    def _record(self, row: dict[str, Any]) -> bytes:
        """The record as it was, with its key as its tag, and where it was in its meta."""
        known = {"topic": self._source, "epoch": row["epoch"], "seq": row["seq"], "tag": row["tag"]}
        meta = {} if row["meta"] is None else surrogates.members(row["meta"])
        told = Raw(surrogates.object_of({**meta, KEY: known}))
        record = {"data": Raw(row["data"].encode()), "tag": row["key"], "meta": told}
        if row["node"] is not None:
            record["node"] = row["node"]
        return _encode(record)


def _is_loss(row: dict[str, Any]) -> bool:
    return bool(row["meta"] == LOSS)


def is_null(data: str) -> bool:
    return data.strip() == "null"


def path_for(parquet: str, topic: str) -> str:
    """A file as it is named, or one named after the topic in a directory."""
    path = os.path.abspath(parquet)
    return path if path.endswith(".parquet") else os.path.join(path, f"{quote(topic, safe='')}.parquet")


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
