"""The state of one archive run, and its steps after a commit: report to the server, trim, merge and remove files.

A run that was killed before these steps has not done them: the next run repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from topics.client import Client
from topics.errors import Code, TopicsError
from topics.lake import Change, Damaged, Lake, Snapshot
from topics.spark.pipelines.archive.lake_match import Key, check_same, verify
from topics.spark.pipelines.run.job import PipelineJob
from topics.spark.pipelines.run.report import TopicReport
from topics.spark.source.catalog import state_of
from topics.spark.source.plan import TopicExtent

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
        """Return the row of a topic in the report."""
        return self.job.report.topic(topic, server=self.url)

    def note_archived(self, snapshot: Snapshot, extents: list[TopicExtent]) -> None:
        """Keep the last archived seqs, for the lags in the report."""
        for extent in extents:
            archived = snapshot.archived(extent.topic, extent.epoch)
            reached = (extent.epoch, 0 if archived is None else archived.archived_to)
            self.job.reached[self.url, extent.topic] = reached

    def note_damage(self, extent: TopicExtent, error: Damaged) -> None:
        """Remember a damaged file. New records are still archived, but the epoch is not merged or trimmed."""
        self.damaged[extent.topic, extent.epoch] = str(error)
        self.job.warn(f"{error}; this run does not merge or trim topic {extent.topic} any more")

    def warn_of_queue(self, extent: TopicExtent) -> None:
        """Warn that the topic is not trimmed."""
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
        snapshot = self.lake.snapshot()
        for extent in extents:
            archived = snapshot.archived(extent.topic, extent.epoch)
            if archived is None:
                continue
            key = (extent.topic, extent.epoch)
            # For topics that retain unarchived records.
            if self._reported.get(key, 0) < archived.archived_to and self._report(client, extent, archived.archived_to):
                self._reported[key] = archived.archived_to
            try:
                if self.trim and archived.archived_to >= extent.earliest and key not in self.damaged:
                    self._trim_topic(client, extent)
                if merge and self.merge_files and key not in self.damaged:
                    merged = self.lake.merge(extent.topic, extent.epoch, min_files=self.merge_files)
                    self.job.report.add(merged=merged)
                    self._tidy(extent.topic)
            except Damaged as error:
                self.note_damage(extent, error)
        self.note_archived(snapshot, extents)

    def _tidy(self, topic: str) -> None:
        """Remove files of killed runs, once, and old replaced files after each checkpoint of the table."""
        table = self.lake.table(topic)
        if topic not in self._tidied:
            self._tidied[topic] = 0
            table.remove_dead_files()
        if table.checkpoints > self._tidied[topic]:
            self._tidied[topic] = table.checkpoints
            self.job.report.add(removed=table.vacuum().files)

    def _report(self, client: Client, extent: TopicExtent, archived_to: int, *, trimmed_to: int = 0) -> bool:
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

    def _trim_topic(self, client: Client, extent: TopicExtent) -> None:
        """Delete the archived records from the topic, after reading them back from the lake.

        The trim is committed to the lake and reported to the server first. A reader of lake and topic must know that
        these seqs are missing in the topic because they are archived, not because they were deleted on request, and
        must notice if its lake is not the one that has them.
        """
        lake = self.lake
        base = lake.snapshot()
        archived = base.archived(extent.topic, extent.epoch)
        topic = state_of(client, extent.topic, epoch=extent.epoch)
        if archived is None or topic is None:
            return
        if topic.type == "queue":
            self.warn_of_queue(extent)
            return
        if not verify(lake, archived, archived.files_in(topic.earliest_seq, archived.archived_to)):
            return  # merged or rewritten meanwhile: the next round tries again
        connection = self.job.connection(self.url)
        check_same(lake, connection, archived, earliest=topic.earliest_seq, to_trim=True)
        if archived.trimmed_to < archived.archived_to:
            change = Change(op="trim", topic=extent.topic, epoch=extent.epoch, trimmed_to=archived.archived_to)
            lake.commit(base.state(extent.topic), [change])
        to_report = (topic.trimmed_seq or 0) < archived.archived_to
        if to_report and not self._report(client, extent, archived.archived_to, trimmed_to=archived.archived_to):
            return
        try:
            trimmed = client.delete(extent.topic, before_seq=archived.archived_to + 1, epoch=extent.epoch)
        except TopicsError as error:
            if error.code not in (Code.EPOCH_MISMATCH, Code.TOPIC_NOT_FOUND):  # deleted, and perhaps recreated
                raise
            return
        self.row(extent.topic).add(trimmed=trimmed.deleted)
