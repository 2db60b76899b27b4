"""The pipeline `archive`: topics to a lake of Parquet, each record once, each loss in the ledger.

The lake's manifest is all that is known about progress. A round looks at it, reads what topics have beyond, and
commits files, gaps and progress as one: a run that is killed has either done a round or not. What comes after a commit
(telling the server, trimming) is done again by the next run where it is missing.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Unpack

from msgspec import Struct, structs

from topics.client import Client
from topics.client.request import Tombstone
from topics.errors import Code, TopicsError
from topics.lake import ArchivedEpoch, Change, Conflict, Damaged, Lake, Snapshot, Staging, joined
from topics.lake.heal import OTHER_LAKE
from topics.lake.layout import topic_folder
from topics.model.names import check_topic
from topics.spark.options import ConnectionOptions, ReadOptions
from topics.spark.pipelines.archive.lake_match import (
    Key,
    ahead_of,
    check_heads,
    check_same,
    last_files,
    refuse_other_lake,
    state_of,
    told_as_archived,
    verify,
    with_gaps,
)
from topics.spark.pipelines.archive.task import Done, archive_spans
from topics.spark.pipelines.run.job import BadUsage, Failed, JobOptions, PipelineJob, check_may_delete
from topics.spark.pipelines.run.lags import forget, heads
from topics.spark.pipelines.run.report import ReportedGap, RunReport
from topics.spark.pipelines.run.unknown_names import begins_with, no_topic, unknown_topic
from topics.spark.source import plan
from topics.spark.source.catalog import ServerCatalog
from topics.spark.source.plan import Span, TopicExtent

MERGE_FILES = 8  # neighbours that are small enough, from which on they become one
EVERY_S = 5.0
POLL_MS = 1000
POLL_MANY_S = 0.5

ROUND_BYTES = 1 << 30  # that a commit covers at least, where there is so much: what a kill costs at most
PART_BYTES = 256 << 20  # of a task
SMALL_PART_BYTES = 8 << 20  # below this another task is not worth another file

GAPS_TOLD = 100

OURS = "sys:"


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
    **options: Unpack[JobOptions],
) -> RunReport:
    """Archives topics (by `topics`, `prefix` and `pattern`) to the lake in a directory, up to their heads as they are.

    `follow` goes on with what comes, a round every `every_s` seconds at most. `trim` deletes from the topics what the
    lake has confirmed: committed, synced, read back from the disk with the right checksum. `merge_files` small files
    become one; 0 leaves them. A commit covers about `round_bytes`, by default enough to keep all cores busy.

    A lake that has less than the server was told to be archived is refused. With `new_lake` it is not: the seqs that it
    lacks and the topic has no more are a gap then.
    """
    wanted = _subscription(topics, prefix, pattern)
    with PipelineJob("archive", servers=[url], **options) as job:
        run = _ArchiveRun(
            job, Lake(lake), url, wanted,
            trim=trim, merge_files=merge_files, round_bytes=round_bytes, new_lake=new_lake,
        )  # fmt: skip
        if job.dry_run:
            run.pretend()
        else:
            run.run(follow=follow, every_s=every_s)
    return job.report


class _ArchiveSelection(Struct, frozen=True):
    topics: tuple[str, ...]
    prefix: str | None
    pattern: str | None

    def has(self, topic: str) -> bool:
        """Not the topics in which pipelines and others report, unless somebody asks for just those."""
        asked_for = topic in self.topics or any((text or "").startswith(OURS) for text in (self.prefix, self.pattern))
        return not topic.startswith(OURS) or asked_for

    @property
    def ways(self) -> int:
        return bool(self.topics) + (self.prefix is not None) + (self.pattern is not None)

    def reading(self, connection: ConnectionOptions) -> ReadOptions:
        """One way to say it is asked for as it is; several of them are one pattern."""
        if self.ways == 1:
            return ReadOptions(connection=connection, topics=self.topics, prefix=self.prefix, pattern=self.pattern)
        parts = [re.escape(name) for name in self.topics]
        parts += [] if self.prefix is None else [re.escape(self.prefix) + ".*"]
        parts += [] if self.pattern is None else [f"(?:{self.pattern})"]
        return ReadOptions(connection=connection, pattern="|".join(parts))

    def misses(self, extents: Iterable[TopicExtent]) -> bool:
        """Whether a prefix or pattern means none of these."""
        named = set(self.topics)
        if self.ways == 1 and named:
            return False
        return not any(extent.topic not in named or self._means(extent.topic) for extent in extents)

    def _means(self, topic: str) -> bool:
        begins = self.prefix is not None and topic.startswith(self.prefix)
        return begins or (self.pattern is not None and re.fullmatch(self.pattern, topic) is not None)

    def __str__(self) -> str:
        said = [] if self.prefix is None else [begins_with(self.prefix)]
        return " or ".join([*said, *([] if self.pattern is None else [f"matches {self.pattern!r}"])])


def _subscription(topics: Sequence[str], prefix: str | None, pattern: str | None) -> _ArchiveSelection:
    if not topics and prefix is None and pattern is None:
        raise BadUsage("say which topics, with --topic, --prefix or --pattern")
    for topic in topics:
        try:
            check_topic(topic, field="--topic")
        except TopicsError as error:
            raise BadUsage(error.message) from None
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadUsage(f"--pattern: {pattern!r} is no regular expression: {error}") from None
    return _ArchiveSelection(tuple(dict.fromkeys(topics)), prefix, pattern)


class _ArchiveRun:
    """One run."""

    def __init__(
        self,
        job: PipelineJob,
        lake: Lake,
        url: str,
        wanted: _ArchiveSelection,
        *,
        trim: bool,
        merge_files: int,
        round_bytes: int | None,
        new_lake: bool,
    ) -> None:
        self._job, self._lake, self._url, self._wanted = job, lake, url.rstrip("/"), wanted
        self._trim, self._merge_files, self._round_bytes = trim, merge_files, round_bytes
        self._new_lake = new_lake
        self._servers = ServerCatalog(wanted.reading(job.connection(url)))
        self._told: dict[Key, int] = {}  # what the server was told to be archived, by this run
        self._elsewhere: dict[Key, int] = {}  # by others, of a lake that is not this one
        self._checked: set[Key] = set()
        self._damaged: dict[Key, str] = {}  # nothing of these is merged or trimmed any more
        self._done = 0
        self._archived: dict[Key, int] = {}  # as the lake was when it was last looked at

    # --- runs

    def pretend(self) -> None:
        """A dry run: what would be archived, noted as lost and trimmed. Topics are asked, not read."""
        with self._servers, self._job.client(self._url) as client:
            snapshot = self._snapshot()
            extents = self._extents(client, snapshot, follow=False)
            behind = {span.topic: span for span in _behind(snapshot, extents)}
            for extent in extents:
                if (span := behind.get(extent.topic)) is not None:
                    self._expect(client, snapshot, extent, span)
                if self._trim:
                    self._expect_trim(client, extent)

    def _expect(self, client: Client, snapshot: Snapshot, extent: TopicExtent, span: Span) -> None:
        row = self._job.report.topic(span.topic, server=self._url)
        row.epoch, row.from_seq, row.to_seq = span.epoch, span.start, span.stop - 1
        seqs = span.stop - max(span.start, extent.earliest)
        row.records = min(extent.count, seqs)
        # Where some were deleted and not all are new, nobody knows on which side of the line those were.
        row.at_most = span.start > extent.earliest and extent.count <= extent.head - extent.earliest
        row.size_bytes = round(row.records * extent.bytes_per_seq)
        row.gaps = self._expected_gaps(client, extent, span)
        if row.gaps:
            row.figures["lost"] = sum(gap.to_seq - gap.from_seq + 1 for gap in row.gaps)
        self._warn_about_earlier_epochs(snapshot, span.topic, first=span.start)

    def _expected_gaps(self, client: Client, extent: TopicExtent, span: Span) -> list[ReportedGap]:
        """The losses that reading would meet: of a scan for a tag that nobody has only these come back."""
        found = []
        nobody = ["tag", "Eq", secrets.token_hex(16)]
        scan = client.scan(span.topic, from_seq=span.start - 1, upto_seq=span.stop - 1, epoch=span.epoch, filter=nobody)
        for piece in scan:
            if isinstance(piece, Tombstone):
                first = max(piece.gap_from, span.start)
                found.append(ReportedGap(from_seq=first, to_seq=piece.gap_to, reason=piece.reason, epoch=span.epoch))
        upto = min(self._elsewhere.get((span.topic, span.epoch), 0), extent.earliest - 1)
        told = ArchivedEpoch(
            topic=span.topic, epoch=span.epoch, covered=tuple((gap.from_seq, gap.to_seq) for gap in found)
        )
        for low, high in told.uncovered(span.start, upto) if span.start <= upto else ():
            found.append(ReportedGap(from_seq=low, to_seq=high, reason=OTHER_LAKE, epoch=span.epoch))
        return found[:GAPS_TOLD]

    def _expect_trim(self, client: Client, extent: TopicExtent) -> None:
        """Once all is archived, all that is live now is in the lake."""
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
                next="topics pipeline audit names all that is damaged; what is new was archived all the same, and "
                "nothing of the topics concerned was merged or trimmed",
            )

    def _rounds(self, client: Client, *, follow: bool, every_s: float) -> None:
        due = 0.0
        with self._lake.stage() as staging:
            for _ in self._job.rounds(follow=follow):
                if (pause_s := due - time.monotonic()) > 0:
                    self._job.stopping.wait(min(pause_s, POLL_MS / 1000))
                    continue
                snapshot = self._lake.snapshot()
                extents = self._extents(client, snapshot, follow=follow)
                self._note_archived(snapshot, extents)
                worked = self._catch_up(staging, client, extents)
                self._job.rest()
                due = time.monotonic() + (every_s if worked else 0)
                if follow and not worked:
                    self._wait(extents)

    def _catch_up(self, staging: Staging, client: Client, extents: list[TopicExtent]) -> bool:
        """Archives up to the heads that were seen. Whether there was anything to do."""
        worked = False
        total = self._done + sum(span.stop - span.start for span in _behind(self._lake.snapshot(), extents))
        while spans := self._next(base := self._lake.snapshot(), extents):
            worked = True
            self._job.step(_told(spans))
            moved = self._commit(staging, base, self._archive(staging, spans, extents))
            self._job.progress.show(self._done, total, unit="seqs")
            self._after(staging, client, [extent for extent in extents if extent.topic in moved])
        self._after(staging, client, extents, merge=False)  # what an earlier run was killed before
        return worked

    def _wait(self, extents: list[TopicExtent]) -> None:
        """Until there is more, or a moment."""
        if len(extents) == 1:
            self._servers.wait(extents[0], POLL_MS)
        else:
            self._job.stopping.wait(POLL_MANY_S)

    # --- planning

    def _snapshot(self) -> Snapshot:
        return self._lake.snapshot() if self._lake.exists() else Snapshot()

    def _extents(self, client: Client, snapshot: Snapshot, *, follow: bool) -> list[TopicExtent]:
        """The topics as they are now, after the snapshot. Raises `Failed` where lake and server cannot be a pair."""
        extents = [extent for extent in self._servers.present() if self._wanted.has(extent.topic)]
        there = {extent.topic for extent in extents}
        for topic in self._wanted.topics:
            if topic in there or snapshot.epochs(topic):
                self._job.report.topic(topic, server=self._url)
            elif follow:
                self._job.warn(f"topic {topic} does not exist on {self._url} yet: waiting for it")
            else:
                raise unknown_topic(client, topic)
        if self._wanted.misses(extents):
            self._miss(client, follow=follow)
        self._job.report.looked_at = max(self._job.report.looked_at, len(extents))
        for extent in extents:
            topic_folder(extent.topic)  # a name that is too long for a folder is known before any work is done
        check_heads(snapshot, extents)
        self._check_lake(client, snapshot, extents)
        return extents

    def _miss(self, client: Client, *, follow: bool) -> None:
        """No topic is meant by the prefix or pattern: a mistake, unless there is time to wait for one."""
        if not follow:
            raise no_topic([client], str(self._wanted), like=self._wanted.prefix or "")
        self._job.warn(f"no topic on {self._url} {self._wanted}: waiting for one")

    def _check_lake(self, client: Client, snapshot: Snapshot, extents: list[TopicExtent]) -> None:
        """Once for each life: what this run does itself cannot make it wrong."""
        behind = {(span.topic, span.epoch) for span in _behind(snapshot, extents)} - self._checked
        new = [extent for extent in extents if (extent.topic, extent.epoch) in behind]
        if not new:
            return
        told = told_as_archived(client, new)
        newest = self._snapshot()
        ahead = ahead_of(newest, told)
        if not self._new_lake:
            refuse_other_lake(self._lake, newest, ahead)
        self._elsewhere |= ahead
        if self._trim and not self._job.dry_run:
            for extent in new:
                check_may_delete(client, extent.topic)  # not after hours of archiving
        for extent in new:
            if (archived := newest.archived(extent.topic, extent.epoch)) is not None:
                self._check_records(extent, archived)
        self._checked |= behind

    def _check_records(self, extent: TopicExtent, archived: ArchivedEpoch) -> None:
        try:
            if verify(self._lake, archived, last_files(archived, earliest=extent.earliest)):
                check_same(
                    self._lake, self._job.connection(self._url), archived, earliest=extent.earliest, to_trim=False
                )
        except Damaged as error:
            self._note_damage(extent, error)

    def _note_damage(self, extent: TopicExtent, error: Damaged) -> None:
        """What is new goes on being archived; what may rest on the damaged file is left as it is."""
        self._damaged[extent.topic, extent.epoch] = str(error)
        self._job.warn(f"{error}; of topic {extent.topic} nothing is merged or trimmed by this run any more")

    def _next(self, snapshot: Snapshot, extents: list[TopicExtent]) -> list[Span]:
        """What the next commit covers."""
        behind = _behind(snapshot, extents)
        if not behind:
            return []
        size_of = {extent.topic: extent for extent in extents}
        left = float(self._round_bytes or max(ROUND_BYTES, 2 * self._parallelism * PART_BYTES))
        found: list[Span] = []
        for span in behind:
            if left <= 0:
                break
            extent = size_of[span.topic]
            each = max(extent.bytes_per_seq, 1.0)
            begins = min(max(span.start, extent.earliest), span.stop)  # what lies before is gone, and costs nothing
            stop = begins + max(int(left / each), 1)
            stop = min(span.stop, -(-stop // plan.GRID) * plan.GRID)
            left -= (stop - begins) * each
            for low, high in ((span.start, begins), (begins, stop)):
                if low < high:
                    found.append(structs.replace(span, start=low, stop=high))
        return found

    @property
    def _parallelism(self) -> int:
        return int(self._job.spark.sparkContext.defaultParallelism)

    # --- one round

    def _archive(self, staging: Staging, spans: list[Span], extents: list[TopicExtent]) -> list[Done]:
        extent_of = {extent.topic: extent for extent in extents}

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
            staging=staging.token,
        )

    def _commit(self, staging: Staging, base: Snapshot, done: list[Done]) -> set[str]:
        """All topics in one commit, but those that somebody else has moved meanwhile: they are left for the next round.

        Gives the topics that were committed.
        """
        changes = [
            with_gaps(self._lake, change, upto=self._elsewhere.get((change.topic, change.epoch), 0))
            for change in _changes(done)
        ]
        while changes:
            try:
                staging.commit(base, changes, note={"run": self._job.report.run_id})
                break
            except Conflict:
                newest = self._lake.snapshot()
                fits = [change for change in changes if _fits(newest, base, change)]
                for change in changes:
                    if change not in fits:
                        staging.discard(added.file for added in change.adds)
                changes = fits
        for change in changes:
            assert change.covered is not None
            self._warn_about_earlier_epochs(base, change.topic, first=change.covered[0])
            self._count(change)
        return {change.topic for change in changes}

    def _warn_about_earlier_epochs(self, base: Snapshot, topic: str, *, first: int) -> None:
        former = base.epochs(topic)
        if former and first == 1:
            self._job.warn(
                f"topic {topic} was deleted and made again: what its former life {former[-1].epoch} held above "
                f"seq {former[-1].archived_to} is not in the lake, if there was anything"
            )

    def _count(self, change: Change) -> None:
        assert change.covered is not None
        first, last = change.covered
        row = self._job.report.topic(change.topic, server=self._url)
        row.epoch, row.from_seq, row.to_seq = change.epoch, row.from_seq or first, last
        row.records += sum(added.file.rows for added in change.adds)
        row.size_bytes += sum(added.file.bytes for added in change.adds)
        row.gaps += [
            ReportedGap(from_seq=g.first, to_seq=g.last, reason=g.reason, epoch=change.epoch) for g in change.gaps
        ]
        del row.gaps[:-GAPS_TOLD]  # the ledger has them all; a report must not grow without end
        if change.gaps:
            lost = sum(gap.last - gap.first + 1 for gap in change.gaps)
            row.figures["lost"] = row.figures.get("lost", 0) + lost
        self._done += last - first + 1
        self._figure("files", len(change.adds))

    def _figure(self, name: str, more: int) -> None:
        if more:
            self._job.report.figures[name] = self._job.report.figures.get(name, 0) + more

    # --- after the commits

    def _after(self, staging: Staging, client: Client, extents: list[TopicExtent], *, merge: bool = True) -> None:
        snapshot = self._lake.snapshot()
        for extent in extents:
            archived = snapshot.archived(extent.topic, extent.epoch)
            if archived is None:
                continue
            self._tell(client, extent, archived.archived_to)
            key = (extent.topic, extent.epoch)
            try:
                if self._trim and archived.archived_to >= extent.earliest and key not in self._damaged:
                    self._trim_topic(staging, client, extent)
                if merge and self._merge_files and key not in self._damaged:
                    merged = self._lake.merge(staging, extent.topic, extent.epoch, min_files=self._merge_files)
                    self._figure("merged", merged)
            except Damaged as error:
                self._note_damage(extent, error)
        self._note_archived(snapshot, extents)

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

    def _tell(self, client: Client, extent: TopicExtent, archived_to: int) -> None:
        """Lets the server know, for topics that keep what is not archived. It needs no more than a try."""
        key = (extent.topic, extent.epoch)
        if self._told.get(key, 0) < archived_to and self._report(client, extent, archived_to):
            self._told[key] = archived_to

    def _report(self, client: Client, extent: TopicExtent, archived_to: int, *, trimmed_to: int = 0) -> bool:
        try:
            client.archived(extent.topic, seq=archived_to, epoch=extent.epoch, trimmed_seq=trimmed_to)
            return True
        except TopicsError as error:
            if error.code in (Code.UNAUTHORIZED, Code.FORBIDDEN):
                self._job.warn(f"the server could not be told what is archived: {error.message}")
            elif error.code.status not in (404, 405, 409):  # gone, made again, or a server that does not ask
                raise
            return False

    def _trim_topic(self, staging: Staging, client: Client, extent: TopicExtent) -> None:
        """Deletes what is archived, after reading it back.

        That it will be deleted is committed first, and told to the server: whoever reads lake and topic as one must
        know that these seqs are missing in the topic because the lake has them, not because somebody deleted them, and
        must notice when the lake that he has is not the one that has them.
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
            return  # merged or rewritten meanwhile: the next round looks again
        check_same(self._lake, self._job.connection(self._url), archived, earliest=state.earliest_seq, to_trim=True)
        if archived.trimmed_to < archived.archived_to:
            change = Change(op="trim", topic=extent.topic, epoch=extent.epoch, trimmed_to=archived.archived_to)
            staging.commit(base, [change])
        if (state.trimmed_seq or 0) < archived.archived_to:
            self._report(client, extent, archived.archived_to, trimmed_to=archived.archived_to)
        try:
            gone = client.delete(extent.topic, before_seq=archived.archived_to + 1, epoch=extent.epoch)
        except TopicsError as error:
            if error.code not in (Code.EPOCH_MISMATCH, Code.TOPIC_NOT_FOUND):  # deleted, and perhaps made again
                raise
            return
        row = self._job.report.topic(extent.topic, server=self._url)
        row.figures["trimmed"] = row.figures.get("trimmed", 0) + gone.deleted

    def _warn_of_queue(self, extent: TopicExtent) -> None:
        self._job.warn(f"topic {extent.topic} is a queue: its jobs are left to its workers, not trimmed")


def _behind(snapshot: Snapshot, extents: Iterable[TopicExtent]) -> list[Span]:
    """What topics have that the lake has not."""
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
    """What the tasks did, by topic: a topic may have been cut between several of them."""
    by_epoch: dict[tuple[str, int], list[Done]] = {}
    for one in done:
        by_epoch.setdefault((one.span.topic, one.span.epoch), []).append(one)
    return [
        Change(
            op="archive",
            topic=topic,
            epoch=epoch,
            adds=[staged for one in parts for staged in one.files],
            gaps=joined(gap for one in parts for gap in one.gaps),
            covered=(min(one.span.start for one in parts), max(one.span.stop for one in parts) - 1),
        )
        for (topic, epoch), parts in sorted(by_epoch.items())
    ]


def _fits(newest: Snapshot, base: Snapshot, change: Change) -> bool:
    try:
        newest.check(base, [change])
    except Conflict:
        return False
    return True


def _told(spans: Sequence[Span]) -> str:
    seqs = sum(span.stop - span.start for span in spans)
    topics = {span.topic for span in spans}  # the part of one that is gone is a span of its own
    names = spans[0].topic if len(topics) == 1 else f"{len(topics)} topics"
    return f"archiving {seqs} seqs of {names}"
