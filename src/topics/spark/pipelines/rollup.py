"""Rollup: windowed aggregates of a topic. Each window is written once, when it closes.

A round reads the new range, and finds its windows and the new watermark. If the aggregates can be merged (see
`windows.Partial`), the position has the partial aggregates of the open windows, and no record is read twice. Otherwise,
and if there are too many groups, the records of windows that close are read again.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import msgspec
import pyarrow as pa
import xxhash
from msgspec import Raw, Struct, field, structs

from topics.lake.files import RowsFile, RowsWriter
from topics.lake.storage import Storage
from topics.spark.failures import BadUsage
from topics.spark.options import ConnectionOptions, WriteOptions
from topics.spark.pipelines import rounds, windows
from topics.spark.pipelines.run import positions
from topics.spark.pipelines.run.delivery import metas, stamp_in
from topics.spark.pipelines.run.job import PipelineJob, ReadingOptions
from topics.spark.pipelines.run.report import ReportedGap, RunReport
from topics.spark.pipelines.windows import Declaration, Open, Partial, Seen, Turn
from topics.spark.sink.chunks import Chunk, Sent, pieces, send
from topics.spark.source.catalog import client_for
from topics.spark.sql.text import lenient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

EVERY_S = 5.0
KEY = "_topics_rollup"
OPEN = "_open"  # folder of a table, which readers and VACUUM ignore because of its underscore
TASK_ROWS = 100_000  # of the result
STATE_ROWS = 100_000
TOPIC_STATE_BYTES, TABLE_STATE_BYTES = 64 << 10, 16 << 20  # more is not written in every round
_encode = msgspec.json.Encoder().encode


class RollupPosition(rounds.RoundsPosition, frozen=True, kw_only=True):
    """The position of a rollup. `due` are the windows that are being written, or None; the rest is as before them."""

    watermark_ms: int = windows.NEVER
    open: list[Open] = field(default_factory=list)
    state: bytes = b""  # partial aggregates of the open windows, as an Arrow stream; empty: records are read again
    due: Due | None = None


class Due(Struct, frozen=True, kw_only=True):
    """Windows to close: those of records before the seq `stop` that end at `upto_ms` or before."""

    stop: int
    upto_ms: int
    tasks: int = 1  # that write them; it decides which rows are in one request
    target_seq: int = 0


def rollup(
    *,
    url: str,
    declaration: Declaration,
    full: bool = False,
    follow: bool = False,
    every_s: float = EVERY_S,
    lake: str | None = None,
    step_seqs: int = rounds.STEP_SEQS,
    positions_topic: str = positions.TOPIC,
    **options: Unpack[ReadingOptions],
) -> RunReport:
    """Write the windows that are closed by now. `full` starts again with the first seq and writes all windows again."""
    with PipelineJob("rollup", servers=[url], **options) as job, job.client(url) as client:
        source = rounds.SourceTopic(job, client, declaration.topic, lake=lake)
        Rolling(
            source, declaration, RollupPosition(declaration=declaration.digest, epoch=0), full=full,
            into=declaration.into, table=declaration.table, positions=positions_topic,
            prefix=f"rollup:{declaration.topic}:{declaration.into}:", step_seqs=step_seqs,
        ).run(follow=follow, every_s=every_s)  # fmt: skip
    return job.report


class Rolling(rounds.Rounds[RollupPosition]):
    """One run of a rollup. The output has one row or record per window and group."""

    lost = "windows that were open are lost"
    begun: ClassVar[Mapping[str, Any]] = {"open": [], "state": b"", "due": None}  # and the watermark stays
    _declared: Declaration
    _next: RollupPosition  # after the step
    _partial: Partial | None = None
    _names: Sequence[str] = ()  # of the columns of the result
    _stored = 0  # number of the file with the open windows of a table
    _has_view = False

    def run(self, *, follow: bool, every_s: float) -> None:
        self._row.figures["late"] = 0
        try:
            super().run(follow=follow, every_s=every_s)
        finally:
            if self._has_view:
                self._job.spark.catalog.dropTempView("records")

    def is_lost(self, at: RollupPosition) -> bool:
        """Return whether the windows are lost. A topic restored from a backup has another epoch but holds them."""
        return super().is_lost(at) and not any(stamp.name == self._declared.name for stamp in self._stamps(0))

    def of_facts(self, facts: Mapping[str, int]) -> RollupPosition:
        text = None if self._table is None else self._table.storage.read(f"{OPEN}/{facts['open']}")
        of_open, state = msgspec.json.decode(text or b'[[],""]', type=tuple[list[Open], bytes])
        return RollupPosition(
            declaration=facts["declaration"] if text else -1,  # without the file it cannot be continued
            epoch=facts["epoch"], done=facts["done"], generation=facts["generation"], watermark_ms=facts["watermark"],
            open=of_open, state=state,
        )  # fmt: skip

    def facts_of(self, at: RollupPosition) -> dict[str, int]:
        return super().facts_of(at) | {"watermark": at.watermark_ms, "open": self._stored}

    def save(self, at: RollupPosition) -> RollupPosition:
        """Save the position. The open windows of a table are in a file, whose number is part of the commit."""
        if self._table is not None:
            self._stored = secrets.randbits(62)
            self._table.storage.write(f"{OPEN}/{self._stored}", _encode((at.open, at.state)))
        at = super().save(at)
        if self._table is not None:  # of two runs one has failed by now, so files with other numbers are not needed
            for file in self._table.storage.files_in(OPEN):
                if file.path != f"{OPEN}/{self._stored}":
                    self._table.storage.remove(file.path)
        return at

    def planned(self, at: RollupPosition) -> int | None:
        return None if at.due is None else at.due.stop - 1

    def transform(self, at: RollupPosition, last: int) -> tuple[RollupPosition, DataFrame | None]:
        if not self._names:
            self._check_result(at, last + 1)
        new = self._windowed(self.hold(self._source.load(at.done + 1, last + 1)))
        seen, latest_ms = self._seen(new, at.epoch)
        self._source.check_same(at.epoch)
        delay_ms, due = self._declared.delay_ms, at.due
        if due is not None:  # of an interrupted run: the same windows, even if records were deleted meanwhile
            latest_ms = due.upto_ms + delay_ms
        found = windows.turn(at.open, at.watermark_ms, seen, latest_ms=latest_ms, delay_ms=delay_ms)
        self._row.add(late=found.late)
        self._next = structs.replace(at, done=last, watermark_ms=found.watermark_ms, open=found.open, due=None)
        if not seen and not found.closing:
            return self._next, None
        self._next = structs.replace(self._next, state=b"")
        if found.closing:
            self._job.step(f"{self._declared.topic}: closing windows up to {_text(found.watermark_ms)}")
        if self._partial is not None and (at.state or not at.open):
            result = self._merged(self._partial, at.state, _ending(new, at.watermark_ms), found)
        else:
            result = self._read_again(at, new, found)
        if not found.closing:
            return self._next, None
        result = self.hold(result)
        if due is None:
            due = Due(
                stop=last + 1, upto_ms=found.watermark_ms, tasks=result.count() // TASK_ROWS + 1,
                target_seq=self.target()[1],
            )  # fmt: skip
        return structs.replace(at, due=due), result

    def _merged(self, partial: Partial, state: bytes, new: DataFrame, found: Turn) -> DataFrame:
        """Return the rows of the windows that close. The next position has the partial aggregates of the others."""
        from pyspark.sql import functions as F

        rows = self._query(new, partial.statement).toDF(*partial.groups, *partial.merges)
        known = pa.ipc.open_stream(state).read_all() if state else None
        if known is not None and known.num_rows:
            types = {one.name: one.dataType.simpleString() for one in rows.schema}
            both = self._job.spark.createDataFrame(known).union(rows).groupBy(*partial.groups)
            rows = both.agg(
                *(F.expr(f"CAST({merge}({name}) AS {types[name]}) AS {name}") for name, merge in partial.merges.items())
            )
        rows = self.hold(rows)
        if found.open:
            kept = _ending(rows, found.watermark_ms).limit(STATE_ROWS + 1).toArrow()
            self._next = structs.replace(self._next, state=self._packed(kept))
        closing = rows.where(f"unix_millis(window.end) <= {found.watermark_ms}")
        return closing.selectExpr(*partial.groups, *partial.finals).toDF(*self._names)

    def _packed(self, table: pa.Table) -> bytes:
        """Return the rows for the position; nothing if they are too many to be written in every round."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        limit_bytes = TOPIC_STATE_BYTES if self._table is None else TABLE_STATE_BYTES
        return sink.getvalue().to_pybytes() if table.num_rows <= STATE_ROWS and sink.tell() <= limit_bytes else b""

    def _read_again(self, at: RollupPosition, new: DataFrame, found: Turn) -> DataFrame:
        """Return the rows of the windows that close, from all their records."""
        low = min((one.low for one in found.closing), default=at.done + 1)
        if low <= at.done:
            self._source.warn_if_trimmed(at.epoch, low)
            new = self._windowed(self._source.load(low, self._next.done + 1))
        closing = _ending(new, at.watermark_ms).where(f"unix_millis(window.end) <= {found.watermark_ms}")
        return self._query(closing, self._declared.statement)

    def write(self, result: DataFrame, at: RollupPosition) -> Sent:
        """Write the windows that are due; to a topic, without the parts that an interrupted run has written."""
        if self._job.dry_run:
            return Sent(records=result.count())
        due = at.due or Due(stop=0, upto_ms=0)
        if self._table is not None:
            task = WriteWindowsTable(self._table.storage, self.schema)
            outcome = rounds.run_tasks(result.repartition(due.tasks), task, Written)
            self.adds = outcome.files
            return outcome
        name, plan = self._declared.name, f"{at.epoch}.{at.generation}/{at.watermark_ms}-{due.upto_ms}"
        present = {one.part for one in self._stamps(due.target_seq) if (one.name, one.plan) == (name, plan)}
        tag = "CAST(NULL AS STRING)" if self._declared.tag is None else f"CAST(({self._declared.tag}) AS STRING)"
        text = "to_json(struct(*), map('ignoreNullFields', 'false')) AS data"
        rows = result.selectExpr(text, f"{tag} AS tag").repartition(due.tasks, "data")  # the same in a repetition
        connection = self._job.connection(self._client.url)
        return rounds.run_tasks(rows, WriteWindowsTopic(connection, self.name, name, plan, present), Sent)

    def _stamps(self, from_seq: int) -> Iterator[PartStamp]:
        """Yield the stamps of the records after `from_seq`; nothing if the topic does not exist."""
        found = (stamp_in(meta, KEY, PartStamp) for meta in metas(self._client, self.name, from_seq=from_seq))
        return (stamp for stamp in found if stamp is not None)

    def after(self, at: RollupPosition, outcome: Sent) -> RollupPosition:
        return structs.replace(self._next, target_epoch=self.target()[0])

    def note(self, outcome: Sent) -> None:
        super().note(outcome)
        if self._table is not None and not self._job.dry_run:
            self._table.merge_small_files()

    def _check_result(self, at: RollupPosition, stop: int) -> None:
        """Raise `BadUsage` if two columns of the result have the same name: a record or row would lose one."""
        schema = self._query(self._windowed(self._source.load(at.done + 1, stop)), self._declared.statement).schema
        self._partial = self._declared.partial([one.dataType.simpleString() for one in schema])
        names = [name.lower() for name in schema.names]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise BadUsage(f"two columns of the result are called {twice[0]}", next="rename one of them with AS …")
        if self._table is not None and not self._job.dry_run:
            self.schema = arrow_schema(schema)
            self._table.create(self.schema, name=f"rollup of {self._declared.topic}")
            if not self.restarts and self._table.schema() != self.schema:
                raise BadUsage(f"{self.name} has other columns than the result", next=rounds.OTHER_OUTPUT)
        self._names = schema.names

    def _query(self, records: DataFrame, statement: str) -> DataFrame:
        """Return the result of a statement over these records. The view must exist while it is used."""
        records.createOrReplaceTempView("records")
        self._has_view = True
        return self._job.spark.sql(lenient(statement))

    def _seen(self, rows: DataFrame, epoch: int) -> tuple[list[Seen], int | None]:
        """Return the windows of a new range and its latest event time. Add its gaps to the report."""
        from pyspark.sql import functions as F

        begin, end = F.expr("unix_millis(window.start)").alias("begin"), F.expr("unix_millis(window.end)").alias("end")
        found = rows.groupBy("kind", begin, end, F.expr("IF(kind = 'gap', seq, NULL)")).agg(
            F.min("seq").alias("low"), F.count("*").alias("n"), F.expr("max(unix_millis(time))").alias("latest"),
            F.max("gap_to").alias("gap_to"), F.max("reason").alias("reason"),
        )  # fmt: skip
        seen, latest, gaps = [], None, []
        for row in found.collect():
            if row.kind == "gap":
                gaps.append(ReportedGap(from_seq=row.low, to_seq=row.gap_to, reason=row.reason, epoch=epoch))
            elif row.begin is None:
                self._row.add(without_time=row.n)
            else:
                seen.append(Seen(row.begin, row.end, row.low, row.n))
                latest = row.latest if latest is None else max(latest, row.latest)
        self._row.gaps += gaps
        self.gaps = gaps
        return seen, latest

    def _windowed(self, rows: DataFrame) -> DataFrame:
        """Return the rows with `value` and their event time, once for each window that they belong to.

        Windows are aligned to 1970 in UTC. Rows without an event time have a `window` of NULL.
        """
        size, slide = self._declared.window_ms, self._declared.slide_ms
        timed = rounds.with_value(rows).selectExpr(
            "*", f"IF(kind = 'record', CAST(({lenient(self._declared.time)}) AS TIMESTAMP), NULL) AS time"
        )
        last = f"(unix_millis(time) - pmod(unix_millis(time), {slide}))"
        starts = f"IF(time IS NULL, NULL, sequence({last}, {last} - {size - 1}, -{slide}))"
        spread = timed.selectExpr("*", f"explode_outer({starts}) AS _start").where(
            f"_start IS NULL OR unix_millis(time) < _start + {size}"
        )
        window = (
            f"IF(_start IS NULL, NULL, named_struct('start', timestamp_millis(_start), "
            f"'end', timestamp_millis(_start + {size}))) AS window"
        )
        return spread.selectExpr("* EXCEPT (_start)", window)

    def finish(self) -> None:
        if self._at is not None:
            self._row.figures["open_windows"] = len(self._at.open)
            self._row.figures["watermark"] = _text(self._at.watermark_ms)


# --- tasks


class Written(Sent, kw_only=True):
    """The result of the tasks that write rows of a table."""

    files: list[RowsFile] = field(default_factory=list)


class PartStamp(Struct, frozen=True, kw_only=True):
    """The run that wrote a record, stored under a key of its meta."""

    name: str
    plan: str
    part: int


class WriteWindowsTable(Struct):
    """Writes the result, sorted, to files for a commit."""

    storage: Storage
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [batch for batch in batches if batch.num_rows]
        with RowsWriter(self.storage, self.schema) as writer:
            if found:
                table = pa.Table.from_batches(found).cast(self.schema)
                keys = [(one.name, "ascending") for one in self.schema if not pa.types.is_nested(one.type)]
                for batch in (table.sort_by(keys) if keys else table).combine_chunks().to_batches():
                    writer.write(batch)
            files = writer.finish()
        yield rounds.answered(Written(records=sum(file.rows for file in files), files=files))


class WriteWindowsTopic(Struct):
    """Appends the result to a topic, sorted by its text."""

    connection: ConnectionOptions
    topic: str
    name: str
    plan: str
    present: set[int]  # parts that an interrupted run has written

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        outcome, task = Sent(), TaskContext.get()
        first = 0 if task is None else task.partitionId() * TASK_ROWS
        rows = sorted(
            (data, tag or "")
            for batch in batches
            for data, tag in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        )
        sized = [data.encode() for data, _ in rows]
        run = f"rollup/{self.name}/{xxhash.xxh3_64_hexdigest(self.plan.encode())}"
        with client_for(self.connection) as client:
            for part, piece in enumerate(pieces(sized, most=rounds.MAX_RECORDS), first):
                stamp = PartStamp(name=self.name, plan=self.plan, part=part)
                records = [
                    _encode({"data": Raw(data.encode()), "meta": {KEY: stamp}} | ({"tag": tag} if tag else {}))
                    for data, tag in rows[piece]
                ]
                if part in self.present:
                    outcome.records += len(records)
                    outcome.repeated += len(records)
                    continue
                request = Chunk(self.topic, rounds.key(run, part, records), records)
                send(client, WriteOptions(connection=self.connection), [request], outcome)
        yield rounds.answered(outcome)


# --- helpers


def _ending(rows: DataFrame, after_ms: int) -> DataFrame:
    """Return the rows of windows that end after this time. Rows without a window are left out."""
    return rows.where(f"unix_millis(window.end) > {after_ms}")


def _text(ms: int) -> str:
    if ms == windows.NEVER:
        return "none"
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")


TYPES = re.compile(
    r"string|long|integer|short|byte|float|double|boolean|binary|date|timestamp|decimal\(.*|struct|array|map"
)
BAD_CHARACTERS = re.compile(r"[ ,;{}()\n\t=]|^$")  # many programs do not accept them in the name of a column


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the columns of a table for these results. Raise `BadUsage` if a table cannot have a name or type."""
    from deltalake import Schema

    for one in schema:
        text = one.json()
        for kind in re.findall(r'"(?:type|\w+Type)":"(.*?)"', text):
            if TYPES.fullmatch(kind) is None:
                raise BadUsage(
                    f"column {one.name} of the result: a table cannot have the type {kind}",
                    next="cast it, for example to STRING, or to TIMESTAMP",
                )
        for name in re.findall(r'"name":"(.*?)"', text):
            if BAD_CHARACTERS.search(name) is not None:
                raise BadUsage(
                    f"column {name!r} of the result: a table cannot have this name", next="rename it with AS …"
                )
    # Spark and Delta describe types by the same JSON.
    return pa.schema(Schema.from_json(schema.toNullable().json()).to_arrow())
