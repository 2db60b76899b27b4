"""Rollup: windowed aggregates of a topic. Each window is written once, when it closes.

A round reads the new range to find its windows and the new watermark. If windows close, their records are read again
and aggregated by the declared SQL. The write is recorded before it starts (in `positions`, or in a file beside the
Parquet files), so that the next run repeats the write of a killed run exactly.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from msgspec import Raw, Struct, field, structs

from topics.client import Client
from topics.spark.failures import BadUsage, Failed
from topics.spark.options import ConnectionOptions
from topics.spark.pipelines.rollup import windows
from topics.spark.pipelines.rollup.declaration import Declaration
from topics.spark.pipelines.rollup.windows import Open, Seen
from topics.spark.pipelines.rounds import append_rows
from topics.spark.pipelines.rounds.append_rows import PartStamp, WriteCounts
from topics.spark.pipelines.rounds.outputs import (
    Output,
    OutputPath,
    OutputTopic,
    RoundsPosition,
    answered,
    one_task,
    publish,
    replace_file,
)
from topics.spark.pipelines.rounds.rounds import STEP_SEQS, Rounds
from topics.spark.pipelines.rounds.source_frames import SourceTopic
from topics.spark.pipelines.run import positions
from topics.spark.pipelines.run.job import JobOptions, PipelineJob
from topics.spark.pipelines.run.lenient_sql import lenient
from topics.spark.pipelines.run.report import ReportedGap, RunReport
from topics.spark.sink.chunks import pieces
from topics.spark.source.catalog import client_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVERY_S = 5.0
KEY = "_topics_rollup"
FOLDER = "_rollup"
_encode = msgspec.json.Encoder().encode


class RollupPosition(RoundsPosition, frozen=True, kw_only=True):
    """The position of a rollup. `due` are the windows that are being written, or None."""

    digest: str
    fresh: bool = False  # nothing was written under this declaration yet, so it may be changed
    watermark_ms: int = windows.NEVER
    open: list[Open] = field(default_factory=list)
    due: Due | None = None


class Due(Struct, frozen=True, kw_only=True):
    """Closed windows. Their records are among the seqs [low, stop)."""

    low: int
    stop: int
    after_ms: int  # windows that end after this time (exclusive), up to `upto_ms` (inclusive)
    upto_ms: int
    target_seq: int = 0


def rollup(
    *,
    url: str,
    declaration: Declaration,
    full: bool = False,
    follow: bool = False,
    every_s: float = EVERY_S,
    lake: str | None = None,
    step_seqs: int = STEP_SEQS,
    positions_topic: str = positions.TOPIC,
    **options: Unpack[JobOptions],
) -> RunReport:
    """Write the windows that are closed by now. `full` starts again with the first seq and writes all windows again."""
    with PipelineJob("rollup", servers=[url], **options) as job, job.client(url) as client, ExitStack() as stack:
        source = SourceTopic(job, client, declaration.topic, lake=lake)
        if not source.wait_until_exists(follow=follow):
            return job.report
        output = stack.enter_context(closing(_output(job, client, declaration, positions_topic)))
        work = Rolling(job, source, output, declaration, step_seqs=step_seqs, full=full)
        work.run(follow=follow, every_s=every_s)
    return job.report


class Rolling(Rounds[RollupPosition]):
    """One run of a rollup."""

    _output: RollupOutput

    def __init__(
        self,
        job: PipelineJob,
        source: SourceTopic,
        output: RollupOutput,
        declared: Declaration,
        *,
        step_seqs: int,
        full: bool,
    ) -> None:
        self._declared = declared
        self._checked = False
        super().__init__(job, source, output, step_seqs=step_seqs, full=full)
        if self._at is not None and self._at.digest != declared.digest:
            self._generation, self._at = self._at.generation + 1, None
        self._row.figures["late"] = 0

    def check_fits(self, known: RollupPosition) -> None:
        """Raise `BadUsage` if the output holds another declaration, unless nothing was written under it yet."""
        if known.digest != self._declared.digest and not (known.fresh and not self._output.holds(known.digest)):
            raise BadUsage(
                f"{self._output.name} holds a rollup with another declaration",
                next="use another output, or start again with --full: all windows are then written again",
            )

    def beginning(self, epoch: int, generation: int) -> RollupPosition:
        return RollupPosition(digest=self._declared.digest, fresh=True, epoch=epoch, generation=generation)

    def recreated(self, at: RollupPosition, epoch: int) -> RollupPosition:
        """Keep the watermark, and drop the open windows: their records were deleted with the earlier epoch."""
        self._job.warn(f"topic {self._declared.topic} was recreated; windows that were open are lost")
        return structs.replace(at, epoch=epoch, done=0, open=[], due=None, generation=at.generation + 1)

    def finish_interrupted(self, at: RollupPosition) -> RollupPosition | None:
        return None if at.due is None else self._write(at, at.due)

    def take(self, at: RollupPosition, stop: int) -> RollupPosition:
        if not self._checked:
            self._check_names(at, stop)
        at = self._find_due(at, stop)
        return at if at.due is None else self._write(at, at.due)

    def _check_names(self, at: RollupPosition, stop: int) -> None:
        """Raise `BadUsage` if two columns of the result have the same name: a record or file would lose one."""
        self._windowed(self._source.load(at.done + 1, stop)).createOrReplaceTempView("records")
        try:
            names = [name.lower() for name in self._job.spark.sql(lenient(self._declared.statement)).columns]
        finally:
            self._job.spark.catalog.dropTempView("records")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise BadUsage(f"two columns of the result are called {twice[0]}", next="rename one of them with AS …")
        self._checked = True

    def _save(self, at: RollupPosition) -> RollupPosition:
        if not self._job.dry_run:
            self._output.save(at)
        return at

    def _find_due(self, at: RollupPosition, stop: int) -> RollupPosition:
        """Add the seqs up to `stop` to the open windows, and save the windows that close."""
        seen, latest_ms = self._seen(at, stop)
        self._source.check_same(at.epoch)
        found = windows.turn(at.open, at.watermark_ms, seen, latest_ms=latest_ms, delay_ms=self._declared.delay_ms)
        self.add(late=found.late)
        due = None
        if found.closing:
            low = min(one.low for one in found.closing)
            due = Due(low=low, stop=stop, after_ms=at.watermark_ms, upto_ms=found.watermark_ms)
            due = structs.replace(due, target_seq=self._output.target()[1])
        at = structs.replace(at, done=stop - 1, watermark_ms=found.watermark_ms, open=found.open, due=due)
        return self._save(at)

    def _seen(self, at: RollupPosition, stop: int) -> tuple[list[Seen], int | None]:
        """Return the windows of a new range and its latest event time. Add its gaps to the report."""
        from pyspark.sql import functions as F

        rows = self._windowed(self._source.load(at.done + 1, stop), outer=True)
        begin, end = F.expr("unix_millis(window.start)").alias("begin"), F.expr("unix_millis(window.end)").alias("end")
        found = rows.groupBy("kind", begin, end, F.expr("IF(kind = 'gap', seq, NULL)")).agg(
            F.min("seq").alias("low"), F.count("*").alias("n"), F.expr("max(unix_millis(time))").alias("latest"),
            F.max("gap_to").alias("gap_to"), F.max("reason").alias("reason"),
        )  # fmt: skip
        seen, latest = [], None
        for row in found.collect():
            if row.kind == "gap":
                self._row.gaps.append(
                    ReportedGap(from_seq=row.low, to_seq=row.gap_to, reason=row.reason, epoch=at.epoch)
                )
            elif row.begin is None:
                self.add(without_time=row.n)
            else:
                seen.append(Seen(row.begin, row.end, row.low, row.n))
                latest = row.latest if latest is None else max(latest, row.latest)
        return seen, latest

    def _windowed(self, rows: DataFrame, *, outer: bool = False) -> DataFrame:
        """Return the rows with their event time, once for each window that they belong to.

        Windows are aligned to 1970 in UTC. `outer` keeps rows without an event time, with `window` NULL.
        """
        size, slide = self._declared.window_ms, self._declared.slide_ms
        timed = rows.selectExpr(
            "*", f"IF(kind = 'record', CAST(({lenient(self._declared.time)}) AS TIMESTAMP), NULL) AS time"
        )
        last = f"(unix_millis(time) - pmod(unix_millis(time), {slide}))"
        starts = f"IF(time IS NULL, NULL, sequence({last}, {last} - {size - 1}, -{slide}))"
        explode = "explode_outer" if outer else "explode"
        spread = timed.selectExpr("*", f"{explode}({starts}) AS _start").where(
            f"_start IS NULL OR unix_millis(time) < _start + {size}"
        )
        window = (
            f"IF(_start IS NULL, NULL, named_struct('start', timestamp_millis(_start), "
            f"'end', timestamp_millis(_start + {size}))) AS window"
        )
        return spread.selectExpr("* EXCEPT (_start)", window)

    def _write(self, at: RollupPosition, due: Due) -> RollupPosition:
        """Write the windows that are due, and save the new position."""
        self._source.warn_if_trimmed(at.epoch, due.low)
        self._job.step(f"{self._declared.topic}: closing windows up to {_text(due.upto_ms)}")
        closed = self._windowed(self._source.load(due.low, due.stop)).where(
            f"unix_millis(window.end) > {due.after_ms} AND unix_millis(window.end) <= {due.upto_ms}"
        )
        closed.createOrReplaceTempView("records")
        try:
            result = self._job.spark.sql(lenient(self._declared.statement))
            dry = self._job.dry_run
            outcome = WriteCounts(records=result.count()) if dry else self._output.write(result, at, due)
        finally:
            self._job.spark.catalog.dropTempView("records")
        self._source.check_same(at.epoch)
        self._row.records += outcome.records
        self._row.repeated += outcome.repeated
        return self._save(structs.replace(at, due=None, fresh=False, target_epoch=self._output.target()[0]))

    def finish(self) -> None:
        if self._at is not None:
            self._row.figures["open_windows"] = len(self._at.open)
            self._row.figures["watermark"] = _text(self._at.watermark_ms)


# --- outputs


class RollupOutput(Output[RollupPosition]):
    """Receives closed windows."""

    def write(self, result: DataFrame, at: RollupPosition, due: Due) -> WriteCounts:
        raise NotImplementedError

    def holds(self, digest: str) -> bool:
        """Return whether windows were written here under that declaration."""
        raise NotImplementedError


def _output(job: PipelineJob, client: Client, declared: Declaration, positions_topic: str) -> RollupOutput:
    if declared.parquet is None:
        return RollupTopic(job, client, declared, positions_topic)
    files = RollupFiles(declared.parquet)
    if not job.dry_run:
        files.lock()
    return files


class RollupFiles(OutputPath[RollupPosition], RollupOutput):
    """A directory with one Parquet file for the windows that closed together, named after their times."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._position_file = os.path.join(self.name, FOLDER, "position.json")
        self._lock: int | None = None

    def load(self) -> RollupPosition | None:
        try:
            with open(self._position_file, "rb") as file:
                return msgspec.json.decode(file.read(), type=RollupPosition)
        except FileNotFoundError:
            return None

    def save(self, at: RollupPosition) -> None:
        replace_file(self._position_file, _encode(at))

    def holds(self, digest: str) -> bool:
        return any(name.endswith(".parquet") for name in os.listdir(self.name))

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def lock(self) -> None:
        """Lock the directory: one run at a time. The system releases the lock when the process ends."""
        os.makedirs(os.path.dirname(self._position_file), exist_ok=True)
        self._lock = os.open(os.path.join(self.name, FOLDER, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failed(f"another run is writing to {self.name}", next="stop one of the two runs") from None

    def write(self, result: DataFrame, at: RollupPosition, due: Due) -> WriteCounts:
        name = f"{at.generation:04d}-{_text(due.after_ms, plain=True)}-{_text(due.upto_ms, plain=True)}.parquet"
        staged = os.path.join(self.name, FOLDER, name + ".tmp")
        outcome = one_task(result, WriteWindowsFile(staged), WriteCounts)
        if outcome.records:
            publish(staged, os.path.join(self.name, name))
        else:
            os.unlink(staged)
        return outcome


class RollupTopic(OutputTopic[RollupPosition], RollupOutput):
    """A topic with one record per window and group."""

    def __init__(self, job: PipelineJob, client: Client, declared: Declaration, positions_topic: str) -> None:
        assert declared.into is not None
        prefix = f"rollup:{declared.topic}:{declared.into}:"
        super().__init__(job, client, declared.into, RollupPosition, prefix=prefix, positions=positions_topic)
        self._declared = declared

    def is_lost(self, at: RollupPosition) -> bool:
        """Return whether the windows are lost. A topic restored from a backup has another epoch but holds them."""
        if not super().is_lost(at):
            return False
        return not self.holds(self._declared.digest)

    def holds(self, digest: str) -> bool:
        return self.target()[0] != 0 and append_rows.holds(self._client, self.name, key=KEY, name=digest)

    def write(self, result: DataFrame, at: RollupPosition, due: Due) -> WriteCounts:
        name, plan = self._declared.digest, f"{at.epoch}.{at.generation}/{due.after_ms}-{due.upto_ms}"
        present = append_rows.parts_present(self._client, self.name, due.target_seq, key=KEY, name=name, plan=plan)
        tag = "CAST(NULL AS STRING)" if self._declared.tag is None else f"CAST(({self._declared.tag}) AS STRING)"
        text = "to_json(struct(*), map('ignoreNullFields', 'false')) AS data"
        rows = result.selectExpr(text, f"{tag} AS tag")
        return one_task(rows, WriteWindowsTopic(self._connection, self.name, name, plan, present), WriteCounts)


# --- tasks


class WriteWindowsFile:
    """Writes the result to a file under a temporary name."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        found = [batch for batch in batches if batch.num_rows]
        with open(self._path, "wb") as file:
            if found:
                table = pa.Table.from_batches(found)
                pq.write_table(
                    table.sort_by([(name, "ascending") for name in _sortable(table)]), file, compression="zstd"
                )
            file.flush()
            os.fsync(file.fileno())
        yield answered(WriteCounts(records=sum(batch.num_rows for batch in found)))


def _sortable(table: pa.Table) -> list[str]:
    return [one.name for one in table.schema if not pa.types.is_nested(one.type)]


class WriteWindowsTopic:
    """Appends the result to a topic, sorted by its text."""

    def __init__(self, connection: ConnectionOptions, topic: str, name: str, plan: str, present: set[int]) -> None:
        self._connection = connection
        self._topic = topic
        self._name, self._plan = name, plan
        self._present = present

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome = WriteCounts()
        rows = sorted(
            (data, tag or "")
            for batch in batches
            for data, tag in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        )
        sized = [data.encode() for data, _ in rows]
        run = f"rollup/{self._name}/{xxhash.xxh3_64_hexdigest(self._plan.encode())}"
        with client_for(self._connection, self._connection.servers[0]) as client:
            for part, piece in enumerate(pieces(sized, most=append_rows.MAX_RECORDS)):
                records = [self._record(*row, part) for row in rows[piece]]
                if part in self._present:
                    outcome.records += len(records)
                    outcome.repeated += len(records)
                    continue
                append_rows.append(client, append_rows.chunk(self._topic, run, part, records), outcome)
        yield answered(outcome)

    def _record(self, data: str, tag: str, part: int) -> bytes:
        stamp = PartStamp(name=self._name, plan=self._plan, part=part)
        record: dict[str, Any] = {"data": Raw(data.encode()), "meta": {KEY: stamp}}
        if tag:
            record["tag"] = tag
        return _encode(record)


# --- helpers


def _text(ms: int, *, plain: bool = False) -> str:
    if ms == windows.NEVER:
        return "begin" if plain else "none"
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    return at.strftime("%Y%m%dT%H%M%S") + f"{ms % 1000:03d}Z" if plain else at.isoformat(timespec="milliseconds")
