"""The seqs that an archive run still has to copy, and the changes of the lake after its tasks have copied them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from topics.lake import Change, Snapshot, joined
from topics.plurals import counted
from topics.spark.pipelines.archive.task import Done
from topics.spark.pipelines.run.tasks import Workload
from topics.spark.source import plan
from topics.spark.source.plan import Span, TopicExtent


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


def workload(spans: Iterable[Span], extents: Iterable[TopicExtent]) -> Workload:
    """Return how much there is to read in the spans. Lost seqs before the first record cost nothing."""
    extent_of = {extent.topic: extent for extent in extents}
    seqs, size_bytes = 0, 0.0
    for span in spans:
        extent = extent_of[span.topic]
        live = max(span.stop - max(span.start, extent.earliest), 0)
        seqs += live
        size_bytes += live * extent.bytes_per_seq
    return Workload(seqs=seqs, size_bytes=round(size_bytes))


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


def changes_of(done: Iterable[Done]) -> list[Change]:
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


def step_text(spans: Sequence[Span]) -> str:
    """Return the line of the progress display for a commit of these spans."""
    seqs = sum(span.stop - span.start for span in spans)
    topics = {span.topic for span in spans}  # one topic may have two spans: lost seqs and records
    names = spans[0].topic if len(topics) == 1 else counted(len(topics), "topic")
    return f"archiving {counted(seqs, 'seq')} of {names}"
