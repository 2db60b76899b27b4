"""Rollup: windowed aggregates of a topic. Each window is written once, when it closes.

A round reads the new range to find its windows and the new watermark. If windows close, their records are read again
and aggregated by the declared SQL. In a Delta table, the windows and the position are one commit. A write to a topic is
recorded in `positions` before it starts, so that the next run repeats the write of a killed run exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
import pyarrow as pa
import xxhash
from msgspec import Raw, Struct, field, structs

from topics.client import Client
from topics.lake.delta.output import KEPT_HOURS
from topics.lake.delta.rows import RowsFile, RowsWriter
from topics.lake.storage import Storage
from topics.spark.failures import BadUsage
from topics.spark.options import ConnectionOptions
from topics.spark.pipelines.rollup import windows
from topics.spark.pipelines.rollup.declaration import Declaration
from topics.spark.pipelines.rollup.table_position import digest_of, number_of, open_windows, place_windows
from topics.spark.pipelines.rollup.windows import Open, Seen
from topics.spark.pipelines.rounds import append_rows
from topics.spark.pipelines.rounds.append_rows import PartStamp, WriteCounts
from topics.spark.pipelines.rounds.outputs import (
    Output,
    OutputTopic,
    RoundsPosition,
    TableOutput,
    answered,
    one_task,
)
from topics.spark.pipelines.rounds.result_schema import arrow_schema
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
    from pyspark.sql.types import StructType

EVERY_S = 5.0
KEY = "_topics_rollup"
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
    with PipelineJob("rollup", servers=[url], **options) as job, job.client(url) as client:
        source = SourceTopic(job, client, declaration.topic, lake=lake)
        if not source.wait_until_exists(follow=follow):
            return job.report
        output = _output(job, client, declaration, positions_topic)
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
        self._output.restart()
        return RollupPosition(digest=self._declared.digest, fresh=True, epoch=epoch, generation=generation)

    def recreated(self, at: RollupPosition, epoch: int) -> RollupPosition:
        """Keep the watermark, and drop the open windows: their records were deleted with the earlier epoch."""
        self._job.warn(f"topic {self._declared.topic} was recreated; windows that were open are lost")
        return structs.replace(at, epoch=epoch, done=0, open=[], due=None, generation=at.generation + 1)

    def finish_interrupted(self, at: RollupPosition) -> RollupPosition | None:
        return None if at.due is None else self._write(at, at.due)

    def take(self, at: RollupPosition, stop: int) -> RollupPosition:
        if not self._checked:
            self._check_result(at, stop)
        at = self._find_due(at, stop)
        return at if at.due is None else self._write(at, at.due)

    def _check_result(self, at: RollupPosition, stop: int) -> None:
        """Raise `BadUsage` if two columns of the result have the same name: a record or row would lose one."""
        self._windowed(self._source.load(at.done + 1, stop)).createOrReplaceTempView("records")
        try:
            schema = self._job.spark.sql(lenient(self._declared.statement)).schema
        finally:
            self._job.spark.catalog.dropTempView("records")
        names = [name.lower() for name in schema.names]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise BadUsage(f"two columns of the result are called {twice[0]}", next="rename one of them with AS …")
        if not self._job.dry_run:
            self._output.prepare(schema)
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
        if due is not None and not self._job.dry_run:
            self._output.plan(at)
        return at if due is not None else self._save(at)

    def _seen(self, at: RollupPosition, stop: int) -> tuple[list[Seen], int | None]:
        """Return the windows of a new range and its latest event time. Add its gaps to the report."""
        from pyspark.sql import functions as F

        rows = self._windowed(self._source.load(at.done + 1, stop), outer=True)
        begin, end = F.expr("unix_millis(window.start)").alias("begin"), F.expr("unix_millis(window.end)").alias("end")
        found = rows.groupBy("kind", begin, end, F.expr("IF(kind = 'gap', seq, NULL)")).agg(
            F.min("seq").alias("low"), F.count("*").alias("n"), F.expr("max(unix_millis(time))").alias("latest"),
            F.max("gap_to").alias("gap_to"), F.max("reason").alias("reason"),
        )  # fmt: skip
        seen, latest, gaps = [], None, []
        for row in found.collect():
            if row.kind == "gap":
                gaps.append(ReportedGap(from_seq=row.low, to_seq=row.gap_to, reason=row.reason, epoch=at.epoch))
            elif row.begin is None:
                self.add(without_time=row.n)
            else:
                seen.append(Seen(row.begin, row.end, row.low, row.n))
                latest = row.latest if latest is None else max(latest, row.latest)
        self._row.gaps += gaps
        self._output.set_gaps(gaps)
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

    def prepare(self, schema: StructType) -> None:
        """Create the output for results with these columns, if it must exist before the first write."""

    def plan(self, at: RollupPosition) -> None:
        """Save the windows that are due, so that the next run repeats the write of a killed run exactly."""
        self.save(at)

    def write(self, result: DataFrame, at: RollupPosition, due: Due) -> WriteCounts:
        raise NotImplementedError

    def holds(self, digest: str) -> bool:
        """Return whether windows were written here under that declaration."""
        raise NotImplementedError


def _output(job: PipelineJob, client: Client, declared: Declaration, positions_topic: str) -> RollupOutput:
    return RollupTopic(job, client, declared, positions_topic) if declared.table is None else RollupTable(job, declared)


class RollupTable(TableOutput[RollupPosition], RollupOutput):
    """A Delta table with one row per window and group. Windows and position are one commit."""

    def __init__(self, job: PipelineJob, declared: Declaration) -> None:
        assert declared.table is not None
        super().__init__(job, declared.table, kept_hours=KEPT_HOURS)
        self._topic, self._window_ms = declared.topic, declared.window_ms
        self._schema = pa.schema([])
        self._slots: dict[int, Open] = {}  # the open windows, each in its place in the position
        self._adds: list[RowsFile] = []

    def load(self) -> RollupPosition | None:
        found = self.load_position()
        if not found:
            return None
        self._slots = open_windows(found, window_ms=self._window_ms)
        return RollupPosition(
            digest=digest_of(found["declaration"]), fresh=not self.table.has_rows(), epoch=found["epoch"],
            done=found["done"], generation=found["generation"], watermark_ms=found["watermark"],
            open=sorted(self._slots.values(), key=lambda one: one.start_ms),
        )  # fmt: skip

    def holds(self, digest: str) -> bool:
        return self.table.has_rows()

    def prepare(self, schema: StructType) -> None:
        self._schema = arrow_schema(schema)
        self.table.create(self._schema, name=f"rollup of {self._topic}")
        if not self._restarts and self.table.schema() != self._schema:
            raise BadUsage(
                f"{self.name} has other columns than the result",
                next="use another output, or start again with --full: all windows are then written again",
            )

    def plan(self, at: RollupPosition) -> None:
        """Do nothing: windows and position are one commit, so there is nothing to repeat after a kill."""

    def write(self, result: DataFrame, at: RollupPosition, due: Due) -> WriteCounts:
        outcome = one_task(result, WriteWindowsTable(self.table.storage, self._schema), WindowFiles)
        self._adds = outcome.files
        return WriteCounts(records=outcome.records)

    def save(self, at: RollupPosition) -> None:
        slots, changed = place_windows(self._slots, at.open)
        position = {
            "declaration": number_of(at.digest), "epoch": at.epoch, "done": at.done, "generation": at.generation,
            "watermark": at.watermark_ms, **changed,
        }  # fmt: skip
        self.commit_rows(position, self._schema, self._adds)
        self._slots, self._adds = slots, []
        self.table.merge_small_files()


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


class WindowFiles(WriteCounts, kw_only=True):
    """The result of the task that writes windows to files."""

    files: list[RowsFile] = field(default_factory=list)


class WriteWindowsTable:
    """Writes the result, sorted, to files for a commit."""

    def __init__(self, storage: Storage, schema: pa.Schema) -> None:
        self._storage, self._schema = storage, schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [batch for batch in batches if batch.num_rows]
        with RowsWriter(self._storage, self._schema) as writer:
            if found:
                table = pa.Table.from_batches(found).cast(self._schema)
                keys = [(one.name, "ascending") for one in self._schema if not pa.types.is_nested(one.type)]
                for batch in (table.sort_by(keys) if keys else table).combine_chunks().to_batches():
                    writer.write(batch)
            files = writer.finish()
        yield answered(WindowFiles(records=sum(file.rows for file in files), files=files))


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


def _text(ms: int) -> str:
    if ms == windows.NEVER:
        return "none"
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
