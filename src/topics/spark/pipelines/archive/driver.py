"""Archive: copy topics to a lake of Delta tables, each record once, and each gap with its range.

The tables of the lake are the only record of progress. A round commits files, gaps and progress of each topic at once:
a killed run has done a round of a topic completely or not at all. The next run repeats the steps after a commit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Unpack

import xxhash
from msgspec import Struct, structs

from topics.client import Client
from topics.lake import BadColumns, Change, Conflict, Damaged, Lake, Snapshot, TypedColumns
from topics.plurals import counted
from topics.spark.options import ReadOptions, range_options
from topics.spark.pipelines.archive import state
from topics.spark.pipelines.archive.state import ArchiveState, Key
from topics.spark.pipelines.rounds import with_value
from topics.spark.pipelines.run.job import BadUsage, Failed, PipelineJob, ReadingOptions, check_may_delete
from topics.spark.pipelines.run.report import ReportedGap, RunReport
from topics.spark.pipelines.run.tasks import Tasks, in_threads
from topics.spark.source.catalog import ServerCatalog, state_of
from topics.spark.source.plan import Span, TopicExtent
from topics.spark.sql import kinds
from topics.spark.sql.text import lenient
from topics.spark.topic_names import Selection, check_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MERGE_FILES = 8  # least number of small neighbouring files that are merged into one
EVERY_S = 5.0

ROUND_BYTES = 1 << 30  # least size of a commit if there is enough to archive: a kill loses at most one commit


def archive(
    *,
    url: str,
    lake: str,
    topics: Sequence[str] = (),
    prefix: str | None = None,
    pattern: str | None = None,
    follow: bool = False,
    trim: bool = False,
    every_s: float = EVERY_S,
    merge_files: int = MERGE_FILES,
    round_bytes: int | None = None,
    new_lake: bool = False,
    columns: str | None = None,
    expect: str | None = None,
    reject_to: str | None = None,
    strict: bool = False,
    **options: Unpack[ReadingOptions],
) -> RunReport:
    """Archive topics (by `topics`, `prefix` and `pattern`) up to their present heads to the lake at a path or URL.

    `follow` continues with new records, with at least `every_s` seconds between rounds. `trim` deletes records from the
    topics after the lake has them: committed, synced, and read back with the right checksum. `merge_files` small files
    are merged into one; 0 disables merging. A commit covers about `round_bytes`, by default enough to keep all cores
    busy.

    `columns` lists fields of `data` that get typed columns, such as `sku STRING, qty INT`. They are added to the
    tables, and later runs fill them without being asked.

    `expect` is a condition of Spark SQL over the record's columns and `value`. Records that do not meet it are counted,
    and copied to the topic `reject_to`. With `strict` the run fails before it archives them.

    A lake that has less than was reported to the server is refused. With `new_lake` it is accepted, and seqs that
    neither the lake nor the topic has become a gap.
    """
    try:
        typed = None if columns is None else TypedColumns.parse(columns)
    except BadColumns as error:
        raise BadUsage(f"--columns: {error}") from None
    wanted = _selection(topics, prefix, pattern)
    if expect is None and (strict or reject_to is not None):
        raise BadUsage("--reject-to and --strict: they need --expect")
    if reject_to is not None and wanted.has(reject_to):
        raise BadUsage(f"--reject-to: topic {reject_to} is archived itself, so its records would be rejected again")
    expectation = None if expect is None else Expectation(condition=expect, reject_to=reject_to, strict=strict)
    with PipelineJob("archive", servers=[url], **options) as job:
        run = _ArchiveRun(
            job=job, lake=Lake(lake), url=url.rstrip("/"), trim=trim, merge_files=merge_files, wanted=wanted,
            round_bytes=round_bytes, new_lake=new_lake, wanted_columns=typed, expectation=expectation,
        )  # fmt: skip
        if job.dry_run:
            run.dry_run()
        else:
            run.run(follow=follow, every_s=every_s)
    return job.report


def _selection(topics: Sequence[str], prefix: str | None, pattern: str | None) -> Selection:
    if not topics and prefix is None and pattern is None:
        raise BadUsage("no topics selected: use --topic, --prefix or --pattern")
    for topic in topics:
        check_name(topic, "--topic")
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise BadUsage(f"--pattern: {pattern!r} is not a regular expression: {error}") from None
    return Selection(topics=tuple(dict.fromkeys(topics)), prefix=prefix, pattern=pattern)


@dataclass(kw_only=True)
class _ArchiveRun(ArchiveState):
    """One run of the archive."""

    wanted: Selection
    wanted_columns: TypedColumns | None
    round_bytes: int | None
    new_lake: bool
    expectation: Expectation | None
    _typed: dict[str, TypedColumns] = field(default_factory=dict)  # of each table that this run has prepared
    _checked: set[Key] = field(default_factory=set)
    _done = 0
    _tasks: Tasks | None = None  # what runs the tasks until the topics are archived up to their heads

    def __post_init__(self) -> None:
        self._servers = ServerCatalog(self.wanted.reading(self.job.connection(self.url)))

    # --- runs

    def dry_run(self) -> None:
        """Report what a run would archive and trim. Uses the states of topics, not their records."""
        with self._servers, self.job.client(self.url) as client:
            snapshot = self.snapshot()
            extents = self._extents(client, snapshot, follow=False)
            new = {span.topic: span for span in state.unarchived(snapshot, extents)}
            for extent in extents:
                if (span := new.get(extent.topic)) is not None:
                    self._expect_archived(snapshot, extent, span)
                if self.trim:
                    self._expect_trimmed(client, extent)
            self._note_unexpected(self._unexpected(list(new.values())))

    def _expect_archived(self, snapshot: Snapshot, extent: TopicExtent, span: Span) -> None:
        row = self.row(span.topic)
        row.epoch, row.from_seq, row.to_seq = span.epoch, span.start, span.stop - 1
        seqs = span.stop - max(span.start, extent.earliest)
        row.records = min(extent.count, seqs)
        # If some records were deleted and only a part is new, it is unknown which part the deleted ones were in.
        row.at_most = span.start > extent.earliest and extent.count <= extent.head - extent.earliest
        row.size_bytes = round(row.records * extent.bytes_per_seq)
        self.warn_about_earlier_epochs(snapshot, span.topic, first=span.start)

    def _expect_trimmed(self, client: Client, extent: TopicExtent) -> None:
        """Report what a trim would delete: all live records, because the run archives them before."""
        if not extent.count:
            return
        row = self.row(extent.topic)
        topic = state_of(client, extent.topic, epoch=extent.epoch)
        if topic is not None and topic.type == "queue":
            self.warn_of_queue(extent)
            return
        row.figures["to_trim"] = extent.count
        seqs = f"seqs {extent.earliest} to {extent.head}"
        row.would.append(f"delete {seqs} from the topic once the lake has them, {counted(extent.count, 'record')}")

    def run(self, *, follow: bool, every_s: float) -> None:
        with self._servers, self.job.client(self.url) as client:
            if not self.lake.exists():
                self._extents(client, Snapshot(), follow=follow)  # fails where there should be one already
            self.lake.create()
            self.job.repeat(lambda: self._round(client, follow=follow), follow=follow, every_s=every_s)
        if self.damaged:
            raise Failed(
                "; ".join(self.damaged.values()),
                next="topics pipeline audit names every damaged file; new records were archived, and the affected "
                "topics were not merged or trimmed",
            )

    def _round(self, client: Client, *, follow: bool) -> bool:
        snapshot = self.lake.snapshot()
        extents = self._extents(client, snapshot, follow=follow)
        self.note_archived(snapshot, extents)
        return self._catch_up(client, extents)

    def _catch_up(self, client: Client, extents: list[TopicExtent]) -> bool:
        """Archive up to the heads in `extents`. Return whether there was anything to do."""
        worked, self._tasks = False, None
        if self.wanted_columns is not None:  # also if there is nothing to archive
            self._prepare([extent.topic for extent in extents if extent.topic not in self._typed])
        total = self._done + sum(span.stop - span.start for span in state.unarchived(self.lake.snapshot(), extents))
        while left := state.unarchived(base := self.lake.snapshot(), extents):
            worked = True
            if self._tasks is None:  # Spark is not started if there is nothing to archive
                self._tasks = self.job.tasks()
            size_bytes = self.round_bytes or max(ROUND_BYTES, 2 * self._tasks.parallelism * state.PART_BYTES)
            spans = state.first_bytes(left, extents, float(size_bytes))
            names = {span.topic for span in spans}  # one topic may have two spans: lost seqs and records
            seqs = counted(sum(span.stop - span.start for span in spans), "seq")
            topics = spans[0].topic if len(names) == 1 else counted(len(names), "topic")
            self.job.step(f"archiving {seqs} of {topics}")
            unexpected = self._unexpected(spans)
            moved = self._commit(base, self._archive(spans, extents), extents)
            self._note_unexpected({topic: count for topic, count in unexpected.items() if topic in moved})
            self.job.progress.show(self._done, total, unit="seqs")
            self.after_commit(client, [extent for extent in extents if extent.topic in moved])
        self.after_commit(client, extents, merge=False)  # the steps that a killed run has not reached
        return worked

    def _unexpected(self, spans: list[Span]) -> dict[str, int]:
        """Return how many records of each topic do not meet the expectation, if there is one."""
        return {} if self.expectation is None or not spans else self.expectation.check(self.job, self.url, spans)

    def _note_unexpected(self, counts: Mapping[str, int]) -> None:
        for topic, count in counts.items():
            self.row(topic).add(unexpected=count)

    # --- planning

    def _extents(self, client: Client, snapshot: Snapshot, *, follow: bool) -> list[TopicExtent]:
        """Return the extents of the topics, newer than the snapshot. Raise `Failed` if lake and server do not match."""
        extents = [extent for extent in self._servers.present() if self.wanted.has(extent.topic)]
        there = {extent.topic for extent in extents}
        archived = {topic for topic in self.wanted.topics if topic not in there and snapshot.epochs(topic)}
        for topic in self.wanted.topics:
            if topic in there | archived:
                self.row(topic)
        self.wanted.check([client], there | archived, self.job.warn, follow=follow)
        self.job.report.looked_at = max(self.job.report.looked_at, len(extents))
        snapshot.load([extent.topic for extent in extents])
        state.check_heads(snapshot, extents)
        self._check_lake(client, snapshot, extents)
        return extents

    def _check_lake(self, client: Client, snapshot: Snapshot, extents: list[TopicExtent]) -> None:
        """Check once per epoch that lake and server belong together. The run itself cannot break this."""
        behind = {(span.topic, span.epoch) for span in state.unarchived(snapshot, extents)} - self._checked
        new = [extent for extent in extents if (extent.topic, extent.epoch) in behind]
        if not new:
            return
        ahead, newest = self.ahead(client, new, allowed=self.new_lake)
        self.elsewhere |= ahead
        if self.trim and not self.job.dry_run:
            for extent in new:  # not after hours of archiving
                check_may_delete(client, extent.topic)
                # This moves nothing, and raises if the key may not report.
                client.archived(extent.topic, seq=0, epoch=extent.epoch)
        known = {(one.topic, one.epoch): one for one in new}
        found = {key: one for key in known if (one := newest.archived(*key)) is not None}
        files = {key: state.last_files(one, earliest=known[key].earliest) for key, one in found.items()}
        for key in files if self.job.dry_run else self.sound(files):
            earliest, connection = known[key].earliest, self.job.connection(self.url)
            try:
                state.check_same(self.lake, connection, found[key], earliest=earliest, to_trim=False)
            except Damaged as error:
                self.note_damage(key, error)
        self._checked |= behind

    # --- one round

    def _archive(self, spans: list[Span], extents: list[TopicExtent]) -> list[Change]:
        assert self._tasks is not None, "chosen with the first spans"
        self._prepare(sorted({span.topic for span in spans} - self._typed.keys()))
        options = ReadOptions(connection=self.job.connection(self.url), fail_on_data_loss=False)
        return state.archive_spans(self._tasks, spans, extents, options, lake=self.lake.path, typed=self._typed)

    def _prepare(self, topics: Sequence[str]) -> None:
        """Create the tables and typed columns of these topics. `TopicTable.create` says why it is done first."""

        def prepare(topic: str) -> TypedColumns:
            table = self.lake.table(topic)
            table.create()
            if self.wanted_columns is not None:
                table.add_columns(self.wanted_columns)
            elif (wanted := self._columns_of_schema(topic)).fields:
                table.state()
                known = {name.lower() for name, _ in table.typed().fields}  # also of another type, from --columns
                new = tuple(one for one in wanted.fields if one[0].lower() not in known)
                table.add_columns(structs.replace(wanted, fields=new))
            return table.typed()

        try:
            self._typed.update(zip(topics, in_threads(topics, prepare), strict=True))
        except BadColumns as error:
            raise BadUsage(f"--columns: {error}") from None

    def _columns_of_schema(self, topic: str) -> TypedColumns:
        """Return the typed columns that the schema of a topic gives it."""
        with self.job.client(self.url) as client:
            found = state_of(client, topic)
        return kinds.columns(None if found is None else found.config.schema)

    def _commit(self, base: Snapshot, done: list[Change], extents: list[TopicExtent]) -> set[str]:
        """Commit each topic, several at a time, and return the names of the committed ones.

        A topic that another run has changed meanwhile is left out, for the next round.
        """
        note = {"run": self.job.report.run_id}
        earliest = {extent.topic: extent.earliest for extent in extents}

        def commit(change: Change) -> Change | None:
            upto = min(self.elsewhere.get((change.topic, change.epoch), 0), earliest[change.topic] - 1)
            change = state.with_gaps(change, upto=upto)
            try:
                self.lake.commit(base.state(change.topic), [change], note=note)
            except Conflict:
                self.lake.discard(change.adds)
                return None
            return change

        committed = in_threads(done, commit)
        changes = [change for change in committed if change is not None]
        for change in changes:
            assert change.covered is not None
            first, last = change.covered
            self.warn_about_earlier_epochs(base, change.topic, first=first)
            row = self.row(change.topic)
            row.epoch, row.from_seq, row.to_seq = change.epoch, row.from_seq or first, last
            row.records += sum(file.rows for file in change.adds)
            row.size_bytes += sum(file.bytes for file in change.adds)
            row.gaps += [
                ReportedGap(from_seq=g.first, to_seq=g.last, reason=g.reason, epoch=change.epoch) for g in change.gaps
            ]
            del row.gaps[: -state.GAPS_SHOWN]  # the ledger has them all; a report must not grow without limit
            row.add(lost=sum(gap.last - gap.first + 1 for gap in change.gaps))
            self._done += last - first + 1
            self.job.report.add(files=len(change.adds))
        return {change.topic for change in changes}


# --- an expectation on the records that are archived
#
# The lake stays complete: records that do not meet the condition are counted, and on request copied to a topic. Or the
# run ends before it commits them.

KEY = "_topics_rejected"  # in the meta of a copy: topic, epoch and seq of the record
NEEDS_SPARK = "--expect is a condition of Spark SQL"


class Expectation(Struct, frozen=True, kw_only=True):
    """A condition, and what to do about records that do not meet it. NULL does not meet it."""

    condition: str
    reject_to: str | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if self.reject_to is not None:
            if self.strict:
                raise BadUsage("--reject-to and --strict: give one of them")
            check_name(self.reject_to, "--reject-to")

    def check(self, job: PipelineJob, url: str, spans: Sequence[Span]) -> dict[str, int]:
        """Return how many records of each topic do not meet the condition. Copy them to the topic for them.

        Raise `Failed` if there are some and the expectation is strict. A dry run only counts.
        """
        job.tasks(spark_only=NEEDS_SPARK)
        rows = self._unmet(job, url, spans).persist()
        try:
            found = {one.topic: one for one in rows.groupBy("topic").agg({"*": "count", "seq": "min"}).collect()}
            if found and self.strict and not job.dry_run:
                topic, row = min(found.items())
                raise Failed(
                    f"{counted(row['count(1)'], 'record')} of topic {topic}, the first with seq {row['min(seq)']}, do "
                    f"not meet {self.condition!r}: nothing of this round was archived",
                    next="correct or delete these records, or use --reject-to instead of --strict",
                )
            if found and self.reject_to is not None and not job.dry_run:
                self._reject(rows, job, url)
        finally:
            rows.unpersist()
        return {topic: row["count(1)"] for topic, row in found.items()}

    def _unmet(self, job: PipelineJob, url: str, spans: Sequence[Span]) -> DataFrame:
        ranges: dict[str, tuple[int, int]] = {}
        for span in spans:  # a topic may have two: seqs that are known to be lost, and records
            start, stop = ranges.get(span.topic, (span.start, span.stop))
            ranges[span.topic] = min(span.start, start), max(span.stop, stop)
        options = job.reading(url) | range_options(ranges)
        rows = with_value(job.spark.read.format("topics").options(**options).load())
        return rows.where(f"kind = 'record' AND NOT coalesce(({lenient(self.condition)}), false)")

    def _reject(self, rows: DataFrame, job: PipelineJob, url: str) -> None:
        """Append copies. A run after a kill repeats them under the same keys."""
        origin = "named_struct('topic', topic, 'epoch', epoch, 'seq', seq)"
        copies = rows.selectExpr(
            "topic AS source_topic", "seq", "node", "tag", "data",
            f"named_struct('{KEY}', {origin}, 'meta', try_parse_json(meta)) AS meta",
        )  # fmt: skip
        write_id = f"expect-{xxhash.xxh3_64_hexdigest(self.condition.encode())}"
        options = job.reaching(url) | {"topic": self.reject_to or "", "writeId": write_id}
        copies.write.format("topics").options(**options).mode("append").save()
