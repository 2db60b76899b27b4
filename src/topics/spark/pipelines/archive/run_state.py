"""What the parts of one archive run share: the job, the lake, the server, and what the run has learned of them."""

from __future__ import annotations

from topics.lake import Damaged, Lake, Snapshot
from topics.spark.pipelines.archive.lake_match import Key
from topics.spark.pipelines.run.job import PipelineJob
from topics.spark.pipelines.run.report import TopicReport
from topics.spark.source.plan import TopicExtent

GAPS_SHOWN = 100  # most gaps of a topic in a report


class ArchiveState:
    """The job, the lake and the server of one run, and the findings that decide how it goes on."""

    def __init__(self, job: PipelineJob, lake: Lake, url: str) -> None:
        self.job, self.lake, self.url = job, lake, url.rstrip("/")
        self.elsewhere: dict[Key, int] = {}  # the last archived seq that the server knows, if this lake has less
        self.damaged: dict[Key, str] = {}  # epochs with a damaged file, which this run does not merge or trim
        self.archived: dict[Key, int] = {}  # the last archived seq in the lake, at the last check

    def snapshot(self) -> Snapshot:
        """Return the present state of the lake; an empty one if there is no lake."""
        return self.lake.snapshot() if self.lake.exists() else Snapshot()

    def row(self, topic: str) -> TopicReport:
        """Return the row of a topic in the report."""
        return self.job.report.topic(topic, server=self.url)

    def count(self, figure: str, more: int) -> None:
        """Add to a figure of the report."""
        if more:
            self.job.report.figures[figure] = self.job.report.figures.get(figure, 0) + more

    def note_archived(self, snapshot: Snapshot, extents: list[TopicExtent]) -> None:
        """Keep the last archived seqs, for the lags in the report."""
        for extent in extents:
            archived = snapshot.archived(extent.topic, extent.epoch)
            self.archived[extent.topic, extent.epoch] = 0 if archived is None else archived.archived_to

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
