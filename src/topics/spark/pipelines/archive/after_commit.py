"""The steps after a commit: report the archived seqs to the server, trim the topic, merge and remove files.

A run that was killed before these steps has not done them: the next run repeats them.
"""

from __future__ import annotations

from topics.client import Client
from topics.errors import Code, TopicsError
from topics.lake import Change, Damaged
from topics.lake.vacuum import remove_dead_files
from topics.spark.pipelines.archive.lake_match import Key, check_same, state_of, verify
from topics.spark.pipelines.archive.run_state import ArchiveState
from topics.spark.source.plan import TopicExtent


class AfterCommit:
    """The steps after the commits of one run."""

    def __init__(self, state: ArchiveState, *, trim: bool, merge_files: int) -> None:
        self._state, self._trim, self._merge_files = state, trim, merge_files
        self._tidied: dict[str, int] = {}  # checkpoints of each table at its last vacuum by this run
        self._reported: dict[Key, int] = {}  # the last archived seq that this run has reported to the server

    def run(self, client: Client, extents: list[TopicExtent], *, merge: bool = True) -> None:
        """Do the steps that are due for these topics; without merges if `merge` is False."""
        state = self._state
        snapshot = state.lake.snapshot()
        for extent in extents:
            archived = snapshot.archived(extent.topic, extent.epoch)
            if archived is None:
                continue
            self._report_archived(client, extent, archived.archived_to)
            key = (extent.topic, extent.epoch)
            try:
                if self._trim and archived.archived_to >= extent.earliest and key not in state.damaged:
                    self._trim_topic(client, extent)
                if merge and self._merge_files and key not in state.damaged:
                    merged = state.lake.merge(extent.topic, extent.epoch, min_files=self._merge_files)
                    state.count("merged", merged)
                    self._tidy(extent.topic)
            except Damaged as error:
                state.note_damage(extent, error)
        state.note_archived(snapshot, extents)

    def _tidy(self, topic: str) -> None:
        """Remove files of killed runs, once, and old replaced files after each checkpoint of the table."""
        table = self._state.lake.table(topic)
        if topic not in self._tidied:
            self._tidied[topic] = 0
            remove_dead_files(table, table.state())
        if table.checkpoints > self._tidied[topic]:
            self._tidied[topic] = table.checkpoints
            self._state.count("removed", self._state.lake.vacuum(topic).files)

    def _report_archived(self, client: Client, extent: TopicExtent, archived_to: int) -> None:
        """Report the last archived seq to the server, for topics that retain unarchived records."""
        key = (extent.topic, extent.epoch)
        if self._reported.get(key, 0) < archived_to and self._report(client, extent, archived_to):
            self._reported[key] = archived_to

    def _report(self, client: Client, extent: TopicExtent, archived_to: int, *, trimmed_to: int = 0) -> bool:
        """Return whether the server has the report. Warn if the key may not report."""
        try:
            client.archived(extent.topic, seq=archived_to, epoch=extent.epoch, trimmed_seq=trimmed_to)
            return True
        except TopicsError as error:
            if error.code in (Code.UNAUTHORIZED, Code.FORBIDDEN):
                self._state.job.warn(f"the last archived seq could not be reported to the server: {error.message}")
            elif error.status not in (404, 405, 409):  # deleted, recreated, or a server without this call
                raise
            return False

    def _trim_topic(self, client: Client, extent: TopicExtent) -> None:
        """Delete the archived records from the topic, after reading them back from the lake.

        The trim is committed to the lake and reported to the server first. A reader of lake and topic must know that
        these seqs are missing in the topic because they are archived, not because they were deleted on request, and
        must notice if its lake is not the one that has them.
        """
        lake = self._state.lake
        base = lake.snapshot()
        archived = base.archived(extent.topic, extent.epoch)
        topic = state_of(client, extent)
        if archived is None or topic is None:
            return
        if topic.type == "queue":
            self._state.warn_of_queue(extent)
            return
        if not verify(lake, archived, archived.files_in(topic.earliest_seq, archived.archived_to)):
            return  # merged or rewritten meanwhile: the next round tries again
        connection = self._state.job.connection(self._state.url)
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
        row = self._state.row(extent.topic)
        row.figures["trimmed"] = row.figures.get("trimmed", 0) + trimmed.deleted
