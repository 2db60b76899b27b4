"""Archive: copy topics to a lake of Delta tables, each record once, and each gap with its range.

The tables of the lake are the only record of progress. A round reads their state, reads the records after the archived
ones, and commits files, gaps and progress of each topic at once: a killed run has done a round of a topic completely or
not at all. The steps after a commit (the report to the server, the trim) are repeated by the next run if they are
missing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, Unpack

from msgspec import structs

from topics.client import Client
from topics.client.request import Tombstone
from topics.errors import Code, TopicsError
from topics.lake import ArchivedEpoch, BadColumns, Change, Conflict, Damaged, Lake, Snapshot, TypedColumns, joined
from topics.lake.archived import outside
from topics.lake.heal import OTHER_LAKE
from topics.lake.vacuum import remove_dead_files
from topics.spark.pipelines.archive.lake_match import (
    Key,
    ahead_of,
    check_heads,
    check_same,
    last_files,
    refuse_other_lake,
    reported_as_archived,
    state_of,
    verify,
    with_gaps,
)
from topics.spark.pipelines.archive.selection import ArchiveSelection, selection
from topics.spark.pipelines.archive.task import Done, archive_spans
from topics.spark.pipelines.run.job import BadUsage, Failed, JobOptions, PipelineJob, check_may_delete
from topics.spark.pipelines.run.lags import forget, heads
from topics.spark.pipelines.run.report import ReportedGap, RunReport
from topics.spark.pipelines.run.unknown_names import no_topic, unknown_topic
from topics.spark.source import plan
from topics.spark.source.catalog import ServerCatalog
from topics.spark.source.plan import Span, TopicExtent

MERGE_FILES = 8  # least number of small neighbouring files that are merged into one
EVERY_S = 5.0
POLL_MS = 1000
POLL_MANY_S = 0.5

ROUND_BYTES = 1 << 30  # least size of a commit if there is enough to archive: a kill loses at most one commit
PART_BYTES = 256 << 20  # most bytes of one task
SMALL_PART_BYTES = 8 << 20  # a smaller part is not worth a task and a file

GAPS_SHOWN = 100  # most gaps of a topic in a report

COMMIT_THREADS = 8  # tables that are changed at the same time

Item = TypeVar("Item")
Result = TypeVar("Result")


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
    columns: str | Mapping[str, str] | None = None,
    **options: Unpack[JobOptions],
) -> RunReport:
    """Archive topics (by `topics`, `prefix` and `pattern`) up to their present heads to the lake at a path or URL.

    `follow` continues with new records, with at least `every_s` seconds between rounds. `trim` deletes records from the
    topics after the lake has them: committed, synced, and read back with the right checksum. `merge_files` small files
    are merged into one; 0 disables merging. A commit covers about `round_bytes`, by default enough to keep all cores
    busy.

    `columns` lists fields of `data` that get typed columns, such as `sku STRING, qty INT`: for all topics, or by topic.
    They are added to the tables, and later runs fill them without being asked.

    A lake that has less than the server was told is refused. With `new_lake` it is accepted, and seqs that neither
    the lake nor the topic has become a gap.
    """
    wanted = selection(topics, prefix, pattern)
    typed = _typed_columns(columns)
    with PipelineJob("archive", servers=[url], **options) as job:
        run = _ArchiveRun(
            job, Lake(lake), url, wanted,
            trim=trim, merge_files=merge_files, round_bytes=round_bytes, new_lake=new_lake, typed=typed,
        )  # fmt: skip
        if job.dry_run:
            run.dry_run()
        else:
            run.run(follow=follow, every_s=every_s)
    return job.report


EVERY_TOPIC = ""  # key of the typed columns that all topics get


def _typed_columns(columns: str | Mapping[str, str] | None) -> dict[str, TypedColumns]:
    given = {EVERY_TOPIC: columns} if isinstance(columns, str) else columns or {}
    try:
        return {topic: TypedColumns.parse(text) for topic, text in given.items()}
    except BadColumns as error:
        raise BadUsage(f"--columns: {error}") from None


class _ArchiveRun:
    """One run of the archive."""

    def __init__(
        self,
        job: PipelineJob,
        lake: Lake,
        url: str,
        wanted: ArchiveSelection,
        *,
        trim: bool,
        merge_files: int,
        round_bytes: int | None,
        new_lake: bool,
        typed: Mapping[str, TypedColumns],
    ) -> None:
        self._job, self._lake, self._url, self._wanted = job, lake, url.rstrip("/"), wanted
        self._trim, self._merge_files, self._round_bytes = trim, merge_files, round_bytes
        self._new_lake = new_lake
        self._wanted_columns = typed
        self._tidied: dict[str, int] = {}  # checkpoints of each table at its last vacuum by this run
        self._typed: dict[str, TypedColumns] = {}  # the typed columns of each table that this run has prepared
        self._servers = ServerCatalog(wanted.reading(job.connection(url)))
        self._reported: dict[Key, int] = {}  # the last archived seq that this run has reported to the server
        self._elsewhere: dict[Key, int] = {}  # the last archived seq that the server knows, if this lake has less
        self._checked: set[Key] = set()
        self._damaged: dict[Key, str] = {}  # epochs with a damaged file, which this run does not merge or trim
        self._done = 0
        self._archived: dict[Key, int] = {}  # the last archived seq in the lake, at the last check

    # --- runs

    def dry_run(self) -> None:
        """Report what a run would archive, record as gaps and trim. Uses the states of topics, not their records."""
        with self._servers, self._job.client(self._url) as client:
            snapshot = self._snapshot()
            extents = self._extents(client, snapshot, follow=False)
            unarchived = {span.topic: span for span in _unarchived(snapshot, extents)}
            for extent in extents:
                if (span := unarchived.get(extent.topic)) is not None:
                    self._expect(client, snapshot, extent, span)
                if self._trim:
                    self._expect_trim(client, extent)

    def _expect(self, client: Client, snapshot: Snapshot, extent: TopicExtent, span: Span) -> None:
        row = self._job.report.topic(span.topic, server=self._url)
        row.epoch, row.from_seq, row.to_seq = span.epoch, span.start, span.stop - 1
        seqs = span.stop - max(span.start, extent.earliest)
        row.records = min(extent.count, seqs)
        # If some records were deleted and only a part is new, it is unknown which part the deleted ones were in.
        row.at_most = span.start > extent.earliest and extent.count <= extent.head - extent.earliest
        row.size_bytes = round(row.records * extent.bytes_per_seq)
        row.gaps = self._expected_gaps(client, extent, span)
        if row.gaps:
            row.figures["lost"] = sum(gap.to_seq - gap.from_seq + 1 for gap in row.gaps)
        self._warn_about_earlier_epochs(snapshot, span.topic, first=span.start)

    def _expected_gaps(self, client: Client, extent: TopicExtent, span: Span) -> list[ReportedGap]:
        """Return the gaps that a read would report: a scan for a tag that no record has returns only gaps."""
        found = []
        none = ["tag", "Eq", secrets.token_hex(16)]
        scan = client.scan(span.topic, from_seq=span.start - 1, upto_seq=span.stop - 1, epoch=span.epoch, filter=none)
        for piece in scan:
            if isinstance(piece, Tombstone):
                first = max(piece.gap_from, span.start)
                found.append(ReportedGap(from_seq=first, to_seq=piece.gap_to, reason=piece.reason, epoch=span.epoch))
        upto = min(self._elsewhere.get((span.topic, span.epoch), 0), extent.earliest - 1)
        for low, high in outside([(gap.from_seq, gap.to_seq) for gap in found], span.start, upto):
            found.append(ReportedGap(from_seq=low, to_seq=high, reason=OTHER_LAKE, epoch=span.epoch))
        return found[:GAPS_SHOWN]

    def _expect_trim(self, client: Client, extent: TopicExtent) -> None:
        """Report what a trim would delete: all live records, because the run archives them before."""
        if not extent.count:
            return
        row = self._job.report.topic(extent.topic, server=self._url)
        state = state_of(client, extent)
        if state is not None and state.type == "queue":
            self._warn_of_queue(extent)
            return
        row.figures["to_trim"] = extent.count
        seqs = f"seqs {extent.earliest} to {extent.head}"
        row.would.append(f"delete {seqs} from the topic once the lake has them, {extent.count} records")

    def run(self, *, follow: bool, every_s: float) -> None:
        with self._servers, self._job.client(self._url) as client:
            if not self._lake.exists():
                self._extents(client, Snapshot(), follow=follow)  # fails where there should be one already
            self._lake.create()
            self._job.lags(self._url, self._note_lags, self._forget_lags)
            self._rounds(client, follow=follow, every_s=every_s)
        if self._damaged:
            raise Failed(
                "; ".join(self._damaged.values()),
                next="topics pipeline audit names every damaged file; new records were archived, and the affected "
                "topics were not merged or trimmed",
            )

    def _rounds(self, client: Client, *, follow: bool, every_s: float) -> None:
        due = 0.0
        for _ in self._job.rounds(follow=follow):
            if (pause_s := due - time.monotonic()) > 0:
                self._job.stopping.wait(min(pause_s, POLL_MS / 1000))
                continue
            snapshot = self._lake.snapshot()
            extents = self._extents(client, snapshot, follow=follow)
            self._note_archived(snapshot, extents)
            worked = self._catch_up(client, extents)
            self._job.rest()
            due = time.monotonic() + (every_s if worked else 0)
            if follow and not worked:
                self._wait(extents)

    def _catch_up(self, client: Client, extents: list[TopicExtent]) -> bool:
        """Archive up to the heads in `extents`. Return whether there was anything to do."""
        worked = False
        wanted = self._wanted_columns
        typed = [extent.topic for extent in extents if extent.topic in wanted or EVERY_TOPIC in wanted]
        self._prepare([topic for topic in typed if topic not in self._typed])  # also if there is nothing to archive
        total = self._done + sum(span.stop - span.start for span in _unarchived(self._lake.snapshot(), extents))
        while spans := self._next(base := self._lake.snapshot(), extents):
            worked = True
            self._job.step(_step_text(spans))
            moved = self._commit(base, self._archive(spans, extents))
            self._job.progress.show(self._done, total, unit="seqs")
            self._after(client, [extent for extent in extents if extent.topic in moved])
        self._after(client, extents, merge=False)  # the steps that a killed run has not reached
        return worked

    def _wait(self, extents: list[TopicExtent]) -> None:
        """Return when there are new records, at the latest after a poll interval."""
        if len(extents) == 1:
            self._servers.wait(extents[0], POLL_MS)
        else:
            self._job.stopping.wait(POLL_MANY_S)

    # --- planning

    def _snapshot(self) -> Snapshot:
        return self._lake.snapshot() if self._lake.exists() else Snapshot()

    def _extents(self, client: Client, snapshot: Snapshot, *, follow: bool) -> list[TopicExtent]:
        """Return the present extents of the topics. Raise `Failed` if lake and server do not belong together.

        The extents must be newer than the snapshot.
        """
        extents = [extent for extent in self._servers.present() if self._wanted.has(extent.topic)]
        there = {extent.topic for extent in extents}
        for topic in self._wanted.topics:
            if topic in there or snapshot.epochs(topic):
                self._job.report.topic(topic, server=self._url)
            elif follow:
                self._job.warn(f"topic {topic} does not exist on {self._url} yet: waiting for it")
            else:
                raise unknown_topic(client, topic)
        if self._wanted.matches_none(extents):
            self._no_match(client, follow=follow)
        self._job.report.looked_at = max(self._job.report.looked_at, len(extents))
        snapshot.load([extent.topic for extent in extents])
        check_heads(snapshot, extents)
        self._check_lake(client, snapshot, extents)
        return extents

    def _no_match(self, client: Client, *, follow: bool) -> None:
        """Raise `BadUsage` because prefix and pattern match no topic; with `follow`, warn and wait instead."""
        if not follow:
            raise no_topic([client], str(self._wanted), like=self._wanted.prefix or "")
        self._job.warn(f"no topic on {self._url} {self._wanted}: waiting for one")

    def _check_lake(self, client: Client, snapshot: Snapshot, extents: list[TopicExtent]) -> None:
        """Check once per epoch that lake and server belong together. The run itself cannot break this."""
        unarchived = {(span.topic, span.epoch) for span in _unarchived(snapshot, extents)} - self._checked
        new = [extent for extent in extents if (extent.topic, extent.epoch) in unarchived]
        if not new:
            return
        reported = reported_as_archived(client, new)
        newest = self._snapshot()
        ahead = ahead_of(newest, reported)
        if not self._new_lake:
            refuse_other_lake(self._lake, newest, ahead)
        self._elsewhere |= ahead
        if self._trim and not self._job.dry_run:
            for extent in new:
                check_may_delete(client, extent.topic)  # not after hours of archiving
        for extent in new:
            if (archived := newest.archived(extent.topic, extent.epoch)) is not None:
                self._check_records(extent, archived)
        self._checked |= unarchived

    def _check_records(self, extent: TopicExtent, archived: ArchivedEpoch) -> None:
        try:
            if verify(self._lake, archived, last_files(archived, earliest=extent.earliest)):
                check_same(
                    self._lake, self._job.connection(self._url), archived, earliest=extent.earliest, to_trim=False
                )
        except Damaged as error:
            self._note_damage(extent, error)

    def _note_damage(self, extent: TopicExtent, error: Damaged) -> None:
        """Remember a damaged file. New records are still archived, but the epoch is not merged or trimmed."""
        self._damaged[extent.topic, extent.epoch] = str(error)
        self._job.warn(f"{error}; this run does not merge or trim topic {extent.topic} any more")

    def _next(self, snapshot: Snapshot, extents: list[TopicExtent]) -> list[Span]:
        """Return the spans of the next commit."""
        unarchived = _unarchived(snapshot, extents)
        if not unarchived:
            return []
        size_of = {extent.topic: extent for extent in extents}
        room_bytes = float(self._round_bytes or max(ROUND_BYTES, 2 * self._parallelism * PART_BYTES))
        found: list[Span] = []
        for span in unarchived:
            if room_bytes <= 0:
                break
            extent = size_of[span.topic]
            each = max(extent.bytes_per_seq, 1.0)
            begins = min(max(span.start, extent.earliest), span.stop)  # earlier seqs have no records, and cost nothing
            stop = begins + max(int(room_bytes / each), 1)
            stop = min(span.stop, -(-stop // plan.GRID) * plan.GRID)
            room_bytes -= (stop - begins) * each
            for low, high in ((span.start, begins), (begins, stop)):
                if low < high:
                    found.append(structs.replace(span, start=low, stop=high))
        return found

    @property
    def _parallelism(self) -> int:
        return int(self._job.spark.sparkContext.defaultParallelism)

    # --- one round

    def _archive(self, spans: list[Span], extents: list[TopicExtent]) -> list[Done]:
        extent_of = {extent.topic: extent for extent in extents}
        self._prepare(sorted({span.topic for span in spans} - self._typed.keys()))

        def bytes_per_seq(span: Span) -> float:
            extent = extent_of[span.topic]
            return 0.0 if span.stop <= extent.earliest else max(extent.bytes_per_seq, 1.0)

        total = sum((span.stop - span.start) * bytes_per_seq(span) for span in spans)
        parts = plan.cut(
            spans,
            bytes_per_seq,
            min_partitions=max(min(self._parallelism, int(total / SMALL_PART_BYTES)), 1),
            partition_bytes=PART_BYTES,
        )
        return archive_spans(
            self._job.spark,
            parts,
            connection=self._job.connection(self._url),
            lake=self._lake.path,
            typed=self._typed,
        )

    def _prepare(self, topics: Sequence[str]) -> None:
        """Create the tables and typed columns of these topics. `TopicTable.create` says why it is done first."""

        def prepare(topic: str) -> TypedColumns:
            table = self._lake.table(topic)
            table.create()
            wanted = self._wanted_columns.get(topic) or self._wanted_columns.get(EVERY_TOPIC)
            if wanted is not None:
                table.add_columns(wanted)
            return table.typed()

        try:
            self._typed.update(zip(topics, self._in_parallel(prepare, topics), strict=True))
        except BadColumns as error:
            raise BadUsage(f"--columns: {error}") from None

    def _in_parallel(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Call `work` for each item in several threads. The tables of several topics are independent."""
        if len(items) < 2:
            return [work(item) for item in items]
        with ThreadPoolExecutor(COMMIT_THREADS) as threads:
            return list(threads.map(work, items))

    def _commit(self, base: Snapshot, done: list[Done]) -> set[str]:
        """Commit each topic, several at a time, and return the names of the committed ones.

        A topic that another run has changed meanwhile is left out, for the next round.
        """
        changes = [
            with_gaps(self._lake, change, upto=self._elsewhere.get((change.topic, change.epoch), 0))
            for change in _changes(done)
        ]
        note = {"run": self._job.report.run_id}

        def commit(change: Change) -> bool:
            try:
                self._lake.commit(base.state(change.topic), [change], note=note)
            except Conflict:
                self._lake.discard(change.adds)
                return False
            return True

        committed = self._in_parallel(commit, changes)
        changes = [change for change, is_committed in zip(changes, committed, strict=True) if is_committed]
        for change in changes:
            assert change.covered is not None
            self._warn_about_earlier_epochs(base, change.topic, first=change.covered[0])
            self._count(change)
        return {change.topic for change in changes}

    def _warn_about_earlier_epochs(self, base: Snapshot, topic: str, *, first: int) -> None:
        earlier = base.epochs(topic)
        if earlier and first == 1:
            self._job.warn(
                f"topic {topic} was deleted and recreated: records of its earlier epoch {earlier[-1].epoch} after "
                f"seq {earlier[-1].archived_to}, if there were any, are not in the lake"
            )

    def _count(self, change: Change) -> None:
        assert change.covered is not None
        first, last = change.covered
        row = self._job.report.topic(change.topic, server=self._url)
        row.epoch, row.from_seq, row.to_seq = change.epoch, row.from_seq or first, last
        row.records += sum(file.rows for file in change.adds)
        row.size_bytes += sum(file.bytes for file in change.adds)
        row.gaps += [
            ReportedGap(from_seq=g.first, to_seq=g.last, reason=g.reason, epoch=change.epoch) for g in change.gaps
        ]
        del row.gaps[:-GAPS_SHOWN]  # the ledger has them all; a report must not grow without limit
        if change.gaps:
            lost = sum(gap.last - gap.first + 1 for gap in change.gaps)
            row.figures["lost"] = row.figures.get("lost", 0) + lost
        self._done += last - first + 1
        self._figure("files", len(change.adds))

    def _figure(self, name: str, more: int) -> None:
        if more:
            self._job.report.figures[name] = self._job.report.figures.get(name, 0) + more

    # --- after the commits

    def _after(self, client: Client, extents: list[TopicExtent], *, merge: bool = True) -> None:
        snapshot = self._lake.snapshot()
        for extent in extents:
            archived = snapshot.archived(extent.topic, extent.epoch)
            if archived is None:
                continue
            self._report_archived(client, extent, archived.archived_to)
            key = (extent.topic, extent.epoch)
            try:
                if self._trim and archived.archived_to >= extent.earliest and key not in self._damaged:
                    self._trim_topic(client, extent)
                if merge and self._merge_files and key not in self._damaged:
                    merged = self._lake.merge(extent.topic, extent.epoch, min_files=self._merge_files)
                    self._figure("merged", merged)
                    self._tidy(extent.topic)
            except Damaged as error:
                self._note_damage(extent, error)
        self._note_archived(snapshot, extents)

    def _tidy(self, topic: str) -> None:
        """Remove files of killed runs, once, and old replaced files after each checkpoint of the table."""
        table = self._lake.table(topic)
        if topic not in self._tidied:
            self._tidied[topic] = 0
            remove_dead_files(table, table.state())
        if table.checkpoints > self._tidied[topic]:
            self._tidied[topic] = table.checkpoints
            self._figure("removed", self._lake.vacuum(topic).files)

    def _note_archived(self, snapshot: Snapshot, extents: list[TopicExtent]) -> None:
        for extent in extents:
            archived = snapshot.archived(extent.topic, extent.epoch)
            self._archived[extent.topic, extent.epoch] = 0 if archived is None else archived.archived_to

    def _note_lags(self, client: Client) -> None:
        rows = list(self._job.report.topics)
        now = heads(client, [row.topic for row in rows])
        for row in rows:
            at = now.get(row.topic)
            row.lag = None if at is None else max(at.head_seq - self._archived.get((row.topic, at.epoch), 0), 0)

    def _forget_lags(self) -> None:
        forget(self._job.report.topics)

    def _report_archived(self, client: Client, extent: TopicExtent, archived_to: int) -> None:
        """Report the last archived seq to the server, for topics that retain unarchived records."""
        key = (extent.topic, extent.epoch)
        if self._reported.get(key, 0) < archived_to and self._report(client, extent, archived_to):
            self._reported[key] = archived_to

    def _report(self, client: Client, extent: TopicExtent, archived_to: int, *, trimmed_to: int = 0) -> bool:
        try:
            client.archived(extent.topic, seq=archived_to, epoch=extent.epoch, trimmed_seq=trimmed_to)
            return True
        except TopicsError as error:
            if error.code in (Code.UNAUTHORIZED, Code.FORBIDDEN):
                self._job.warn(f"the last archived seq could not be reported to the server: {error.message}")
            elif error.code.status not in (404, 405, 409):  # deleted, recreated, or a server without this call
                raise
            return False

    def _trim_topic(self, client: Client, extent: TopicExtent) -> None:
        """Delete the archived records from the topic, after reading them back from the lake.

        The trim is committed to the lake and reported to the server first. A reader of lake and topic must know that
        these seqs are missing in the topic because they are archived, not because they were deleted on request, and
        must notice if its lake is not the one that has them.
        """
        base = self._lake.snapshot()
        archived = base.archived(extent.topic, extent.epoch)
        state = state_of(client, extent)
        if archived is None or state is None:
            return
        if state.type == "queue":
            self._warn_of_queue(extent)
            return
        if not verify(self._lake, archived, archived.files_in(state.earliest_seq, archived.archived_to)):
            return  # merged or rewritten meanwhile: the next round tries again
        check_same(self._lake, self._job.connection(self._url), archived, earliest=state.earliest_seq, to_trim=True)
        if archived.trimmed_to < archived.archived_to:
            change = Change(op="trim", topic=extent.topic, epoch=extent.epoch, trimmed_to=archived.archived_to)
            self._lake.commit(base.state(extent.topic), [change])
        if (state.trimmed_seq or 0) < archived.archived_to:
            self._report(client, extent, archived.archived_to, trimmed_to=archived.archived_to)
        try:
            trimmed = client.delete(extent.topic, before_seq=archived.archived_to + 1, epoch=extent.epoch)
        except TopicsError as error:
            if error.code not in (Code.EPOCH_MISMATCH, Code.TOPIC_NOT_FOUND):  # deleted, and perhaps recreated
                raise
            return
        row = self._job.report.topic(extent.topic, server=self._url)
        row.figures["trimmed"] = row.figures.get("trimmed", 0) + trimmed.deleted

    def _warn_of_queue(self, extent: TopicExtent) -> None:
        self._job.warn(f"topic {extent.topic} is a queue and is not trimmed: its jobs are left to its workers")


def _unarchived(snapshot: Snapshot, extents: Iterable[TopicExtent]) -> list[Span]:
    """Return the spans that topics have and the lake does not."""
    found = []
    for extent in extents:
        archived = snapshot.archived(extent.topic, extent.epoch)
        start = 1 if archived is None else archived.archived_to + 1
        if start <= extent.head:
            found.append(
                Span(server=extent.server, topic=extent.topic, epoch=extent.epoch, start=start, stop=extent.head + 1)
            )
    return found


def _changes(done: Iterable[Done]) -> list[Change]:
    """Return one change per epoch from the results of the tasks: a topic may have been cut between tasks."""
    by_epoch: dict[tuple[str, int], list[Done]] = {}
    for one in done:
        by_epoch.setdefault((one.span.topic, one.span.epoch), []).append(one)
    return [
        Change(
            op="archive",
            topic=topic,
            epoch=epoch,
            adds=[file for one in parts for file in one.files],
            gaps=joined(gap for one in parts for gap in one.gaps),
            covered=(min(one.span.start for one in parts), max(one.span.stop for one in parts) - 1),
        )
        for (topic, epoch), parts in sorted(by_epoch.items())
    ]


def _step_text(spans: Sequence[Span]) -> str:
    seqs = sum(span.stop - span.start for span in spans)
    topics = {span.topic for span in spans}  # one topic may have two spans: lost seqs and records
    names = spans[0].topic if len(topics) == 1 else f"{len(topics)} topics"
    return f"archiving {seqs} seqs of {names}"
