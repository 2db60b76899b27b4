"""The state of an archive run, its steps after a commit, and the checks that lake and server belong together.

A lake that is not mounted is an empty directory. An old copy of a lake looks complete. A server whose directory was set
back assigns seqs a second time. Without a check, archiving would continue silently, and records would be lost or mixed
for good. So the two are compared before the lake is written to or the topic is trimmed: the last archived seq that the
server knows, its head, and the last common records.

After a commit, the run reports to the server, trims the topic, and merges and removes files. A run that was killed
before these steps has not done them: the next run repeats them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec import structs

from topics.client import Client
from topics.client.request import State
from topics.clock import SystemClock
from topics.errors import Code, TopicsError
from topics.lake import ArchivedEpoch, Change, Damaged, File, Gap, Lake, Snapshot, TypedColumns, joined, write_files
from topics.lake.archived import outside
from topics.lake.files import NO_COLUMNS
from topics.lake.heal import OTHER_LAKE
from topics.lake.storage import Storage
from topics.spark.failures import Failed, allowed
from topics.spark.options import ConnectionOptions, ReadOptions
from topics.spark.pipelines.audit import Stretch, check_file, look
from topics.spark.pipelines.run.job import PipelineJob
from topics.spark.pipelines.run.report import TopicReport
from topics.spark.pipelines.run.tasks import Tasks
from topics.spark.source import plan
from topics.spark.source.catalog import state_of
from topics.spark.source.plan import Span, TopicExtent
from topics.spark.source.read import LostRange, read_span, without_gaps

COMPARED_SEQS = 100

Key = tuple[str, int]  # topic and epoch


def check_heads(snapshot: Snapshot, extents: Iterable[TopicExtent]) -> None:
    """Raise `Failed` if a topic ends before its archive does. The extents must be newer than the snapshot."""
    for extent in extents:
        archived = snapshot.archived(extent.topic, extent.epoch)
        if archived is not None and extent.head < archived.archived_to:
            raise Failed(
                f"topic {extent.topic} ends at seq {extent.head}, but the lake has archived seqs up to "
                f"{archived.archived_to} of the same epoch: the server lost records that it had acknowledged, or its "
                "directory was set back to an earlier state",
                next="stop the writers of the topic before seqs are assigned twice; bring the directory back, or "
                "restore a backup with topics restore, which begins a new epoch of every topic",
            )


def last_files(archived: ArchivedEpoch, *, earliest: int) -> list[File]:
    """Return the files of the last archived records that may still be live."""
    last = archived.files[-1].last if archived.files else 0
    return archived.files_in(max(earliest, last - COMPARED_SEQS + 1), last)


def check_same(
    lake: Lake, connection: ConnectionOptions, archived: ArchivedEpoch, *, earliest: int, to_trim: bool
) -> None:
    """Raise `Failed` if the last archived records that are still live differ from those in the lake.

    The files must have been verified before. With `to_trim`, a live record that is missing in the lake is an error as
    well: it was erased from the lake alone.
    """
    files = last_files(archived, earliest=earliest)
    if not files:
        return
    first, last = max(earliest, files[-1].last - COMPARED_SEQS + 1), files[-1].last
    stretch = Stretch(
        lake=lake.path, connection=connection, first=first, last=last, archived=archived.within(first, last)
    )
    found = look(stretch)
    if found.problem is not None:
        if lake.has(archived.topic, archived.epoch, files):
            raise Damaged(found.problem)
        return  # replaced meanwhile by another run, which has verified it
    for one in found.differences if to_trim else (one for one in found.differences if one.fields):
        what = f"differs in {', '.join(one.fields)}" if one.fields else "is not in the lake"
        raise Failed(
            f"seq {one.seq} of topic {archived.topic} {what}, but the lake has archived it: the server's directory "
            "was set back and written to again, or the lake belongs to another server",
            next="topics pipeline audit names all records that differ; restore the server from a backup with topics "
            "restore, which begins a new epoch of every topic, or archive into a new directory with --new-lake",
        )


def with_gaps(change: Change, *, upto: int) -> Change:
    """Return the change with a gap for each seq up to `upto` that is only in another lake: the topic begins later."""
    assert change.covered is not None
    first, last = change.covered
    missing = outside([(gap.first, gap.last) for gap in change.gaps], first, min(last, upto))
    if not missing:
        return change
    now_ms = SystemClock().now_ms()
    gaps = [*change.gaps, *(Gap(low, high, OTHER_LAKE, now_ms) for low, high in missing)]
    return structs.replace(change, gaps=joined(gaps), trimmed_to=missing[-1][1])


# --- the steps after a commit


GAPS_SHOWN = 100  # most gaps of a topic in a report


@dataclass(kw_only=True)
class ArchiveState:
    """The job, the lake and the server of one run, its findings, and the steps after its commits."""

    job: PipelineJob
    lake: Lake
    url: str
    trim: bool
    merge_files: int
    elsewhere: dict[Key, int] = field(default_factory=dict)  # the last archived seq that the server knows, if not here
    damaged: dict[Key, str] = field(default_factory=dict)  # epochs that this run does not merge or trim, and why
    _tidied: dict[str, int] = field(default_factory=dict)  # checkpoints of each table at its last vacuum by this run
    _reported: dict[Key, int] = field(default_factory=dict)  # the last archived seq that the server got from this run

    def snapshot(self) -> Snapshot:
        """Return the present state of the lake; an empty one if there is no lake."""
        return self.lake.snapshot() if self.lake.exists() else Snapshot()

    def row(self, topic: str) -> TopicReport:
        row = self.job.report.topic(topic, server=self.url)
        row.unfit = self.lake.unfit_in(topic)
        return row

    def note_archived(self, snapshot: Snapshot, extents: list[TopicExtent]) -> None:
        """Keep the last archived seqs, for the lags in the report."""
        for extent in extents:
            archived = snapshot.archived(extent.topic, extent.epoch)
            reached = (extent.epoch, 0 if archived is None else archived.archived_to)
            self.job.reached[self.url, extent.topic] = reached

    def ahead(
        self, client: Client, extents: Iterable[TopicExtent], *, allowed: bool
    ) -> tuple[dict[Key, int], Snapshot]:
        """Return the last archived seqs that the server knows and the lake lacks, and the newest state of the lake.

        Raise `Failed` if there are some and they are not allowed. The lake is read after the server: an archive commits
        to the lake before it reports to the server.
        """
        states = [state_of(client, extent.topic, epoch=extent.epoch) for extent in extents]
        snapshot, found = self.snapshot(), {}
        for state in states:
            archived = None if state is None else snapshot.archived(state.topic, state.epoch)
            archived_to = 0 if archived is None else archived.archived_to
            if state is not None and (state.archived_seq or 0) > archived_to:
                found[state.topic, state.epoch] = state.archived_seq or 0, archived_to
        if found and not allowed:
            (topic, _), (seq, archived_to) = next(iter(found.items()))
            others = f" (and {len(found) - 1} more topics)" if len(found) > 1 else ""
            raise Failed(
                f"topic {topic}{others}: seqs up to {seq} were reported to the server as archived, but "
                f"{self.lake.path} has seqs up to {archived_to}: it is another lake, an older copy, or is not mounted",
                next="mount the right lake, or restore it from a copy; to continue with this lake, and to record the "
                "seqs that are neither live nor archived as a gap, use --new-lake",
            )
        return {key: seq for key, (seq, _) in found.items()}, snapshot

    def note_damage(self, key: Key, error: Damaged) -> None:
        """Remember a damaged file. New records are still archived, but the epoch is not merged or trimmed."""
        self.damaged[key] = str(error)
        self.job.warn(f"{error}; this run does not merge or trim topic {key[0]} any more")

    def warn_of_queue(self, extent: TopicExtent) -> None:
        self.job.warn(f"topic {extent.topic} is a queue and is not trimmed: its jobs are left to its workers")

    def warn_about_earlier_epochs(self, base: Snapshot, topic: str, *, first: int) -> None:
        """Warn of records that may be missing, if `first` is the first seq of a topic that was recreated."""
        earlier = base.epochs(topic)
        if earlier and first == 1:
            self.job.warn(
                f"topic {topic} was deleted and recreated: records of its earlier epoch {earlier[-1].epoch} after "
                f"seq {earlier[-1].archived_to}, if there were any, are not in the lake"
            )

    # --- after a commit

    def after_commit(self, client: Client, extents: list[TopicExtent], *, merge: bool = True) -> None:
        """Do the steps that are due for these topics; without merges if `merge` is False."""
        snapshot, due = self.lake.snapshot(), list[TopicExtent]()
        for extent in extents:
            archived, key = snapshot.archived(extent.topic, extent.epoch), (extent.topic, extent.epoch)
            if archived is None:
                continue
            due.append(extent)
            # For topics that retain unarchived records.
            if self._reported.get(key, 0) < archived.archived_to and self._report(client, extent, archived.archived_to):
                self._reported[key] = archived.archived_to
        if self.trim:
            self._trim(client, due)
        if merge and self.merge_files:
            self._merge([extent for extent in due if (extent.topic, extent.epoch) not in self.damaged])
        self.note_archived(snapshot, extents)

    def _merge(self, extents: list[TopicExtent]) -> None:
        merged = self.lake.merge(
            [(extent.topic, extent.epoch) for extent in extents],
            min_files=self.merge_files, run=self.job.run, on_damage=self.note_damage,
        )  # fmt: skip
        self.job.report.add(merged=merged.total())
        for topic in dict.fromkeys(extent.topic for extent in extents):
            table, tidied = self.lake.table(topic), self._tidied.get(topic)
            if tidied is None:  # files of killed runs are removed once, old ones after each checkpoint
                table.remove_dead_files()
            self._tidied[topic] = table.checkpoints
            if table.checkpoints > (tidied or 0):
                self.job.report.add(removed=len(table.vacuum()))

    def sound(self, files_of: Mapping[Key, Sequence[File]]) -> list[Key]:
        """Read files back, in tasks. Return the epochs whose files are as they were written.

        A damaged file is noted. An epoch with a file that another run has replaced meanwhile is left out.
        """
        keys, files = (
            [key for key, of in files_of.items() for _ in of],
            [file for of in files_of.values() for file in of],
        )
        if not files:
            return list(files_of)
        task = partial(check_file, lake=self.lake.path)
        found = self.job.run(files, task, result=str, weight=lambda file: file.bytes)
        bad = {key: problem for key, problem in zip(keys, found, strict=True) if problem}
        for key, problem in bad.items():
            if self.lake.has(*key, files_of[key]):
                self.note_damage(key, Damaged(problem))
        return [key for key in files_of if key not in bad]

    def _report(self, client: Client, extent: TopicExtent | State, archived_to: int, *, trimmed_to: int = 0) -> bool:
        """Return whether the server has the report. Warn if the key may not report."""
        try:
            client.archived(extent.topic, seq=archived_to, epoch=extent.epoch, trimmed_seq=trimmed_to)
            return True
        except TopicsError as error:
            if error.code in (Code.UNAUTHORIZED, Code.FORBIDDEN):
                self.job.warn(f"the last archived seq could not be reported to the server: {error.message}")
            elif error.status not in (404, 405, 409):  # deleted, recreated, or a server without this call
                raise
            return False

    def _trim(self, client: Client, extents: list[TopicExtent]) -> None:
        """Delete the archived records from the topics, after reading them back from the lake."""
        base, states, files_of = self.lake.snapshot(), dict[Key, State](), dict[Key, list[File]]()
        for extent in extents:
            key = (extent.topic, extent.epoch)
            archived = base.archived(*key)
            if archived is None or archived.archived_to < extent.earliest or key in self.damaged:
                continue
            if (topic := state_of(client, extent.topic, epoch=extent.epoch)) is None:
                continue
            if topic.type == "queue":
                self.warn_of_queue(extent)
                continue
            states[key], files_of[key] = topic, archived.files_in(topic.earliest_seq, archived.archived_to)
        for key in self.sound(files_of):  # the next round tries the others again
            try:
                self._trim_topic(client, base, states[key])
            except Damaged as error:
                self.note_damage(key, error)

    def _trim_topic(self, client: Client, base: Snapshot, topic: State) -> None:
        """Delete the archived records of one topic.

        The trim is committed to the lake and reported to the server first. A reader of lake and topic must know that
        these seqs are missing in the topic because they are archived, not because they were deleted on request, and
        must notice if its lake is not the one that has them.
        """
        lake, archived = self.lake, base.archived(topic.topic, topic.epoch)
        assert archived is not None
        check_same(lake, self.job.connection(self.url), archived, earliest=topic.earliest_seq, to_trim=True)
        if archived.trimmed_to < archived.archived_to:
            change = Change(op="trim", topic=topic.topic, epoch=topic.epoch, trimmed_to=archived.archived_to)
            lake.commit(base.state(topic.topic), [change])
        to_report = (topic.trimmed_seq or 0) < archived.archived_to
        if to_report and not self._report(client, topic, archived.archived_to, trimmed_to=archived.archived_to):
            return
        with allowed(Code.EPOCH_MISMATCH, Code.TOPIC_NOT_FOUND):  # deleted, and perhaps recreated
            trimmed = client.delete(topic.topic, before_seq=archived.archived_to + 1, epoch=topic.epoch)
            self.row(topic.topic).add(trimmed=trimmed.deleted)


# --- tasks, which run on executors or in threads: they write spans of topics to Parquet files of a lake
#
# Records do not pass through the JVM, which would take longer than all the rest. The driver commits the files that a
# task returns; files of failed or repeated tasks are not committed.


PART_BYTES = 256 << 20  # most bytes of one task
SMALL_PART_BYTES = 8 << 20  # a smaller part is not worth a task and a file


def archive_spans(
    tasks: Tasks, spans: Sequence[Span], extents: Iterable[TopicExtent], options: ReadOptions, *,
    lake: str, typed: Mapping[str, TypedColumns],
) -> list[Change]:  # fmt: skip
    """Cut the spans into parts, run one task per part, and return one change per epoch.

    `typed` has the typed columns of topics.
    """
    extent_of = {extent.topic: extent for extent in extents}

    def bytes_per_seq(span: Span) -> float:
        extent = extent_of[span.topic]
        return 0.0 if span.stop <= extent.earliest else max(extent.bytes_per_seq, 1.0)

    def size_bytes(part: Sequence[Span]) -> int:
        return round(sum((span.stop - span.start) * bytes_per_seq(span) for span in part))

    least = max(min(tasks.parallelism, size_bytes(spans) // SMALL_PART_BYTES), 1)
    parts = plan.cut(spans, bytes_per_seq, min_partitions=least, partition_bytes=PART_BYTES)
    work = partial(_archive_part, options=options, lake=lake, typed=dict(typed))
    found = tasks.run(parts, work, result=list[Change], weight=size_bytes)
    by_epoch: dict[Key, list[Change]] = {}  # a topic may have been cut between tasks
    for change in (change for one in found for change in one):
        by_epoch.setdefault((change.topic, change.epoch), []).append(change)
    return [_joined(changes) for _, changes in sorted(by_epoch.items())]


def _joined(changes: Sequence[Change]) -> Change:
    adds = [file for one in changes for file in one.adds]
    spans = sorted(one.covered for one in changes if one.covered is not None)
    gaps = joined(gap for one in changes for gap in one.gaps)
    return structs.replace(changes[0], adds=adds, gaps=gaps, covered=(spans[0][0], spans[-1][1]))


def _archive_part(
    spans: Sequence[Span], *, options: ReadOptions, lake: str, typed: Mapping[str, TypedColumns]
) -> list[Change]:
    """Read the spans of one task to their ends and write their records to files: every seq is in a file, in a gap, or
    was deleted.
    """
    storage, done = Storage(lake), []
    for span in spans:
        lost: list[LostRange] = []
        records = without_gaps(read_span(span, options), lost)
        columns = typed.get(span.topic, NO_COLUMNS)
        files = write_files(storage, span.topic, span.epoch, records, typed=columns)
        now_ms = SystemClock().now_ms()
        gaps = [Gap(one.gap_from, one.gap_to, one.reason, now_ms) for one in lost]
        covered = (span.start, span.stop - 1)
        done.append(Change(op="archive", topic=span.topic, epoch=span.epoch, adds=files, gaps=gaps, covered=covered))
    return done


# --- the seqs that an archive run still has to copy, and the changes of the lake after its tasks have copied them


def unarchived(snapshot: Snapshot, extents: Iterable[TopicExtent]) -> list[Span]:
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


def first_bytes(spans: list[Span], extents: list[TopicExtent], size_bytes: float) -> list[Span]:
    """Return the first spans, with about `size_bytes` of records. Lost seqs before them are spans of their own."""
    extent_of = {extent.topic: extent for extent in extents}
    found: list[Span] = []
    for span in spans:
        if size_bytes <= 0:
            break
        extent = extent_of[span.topic]
        each = max(extent.bytes_per_seq, 1.0)
        begins = min(max(span.start, extent.earliest), span.stop)  # earlier seqs have no records, and cost nothing
        stop = begins + max(int(size_bytes / each), 1)
        stop = min(span.stop, -(-stop // plan.GRID) * plan.GRID)
        size_bytes -= (stop - begins) * each
        for low, high in ((span.start, begins), (begins, stop)):
            if low < high:
                found.append(structs.replace(span, start=low, stop=high))
    return found
