"""Write spans of topics to Parquet files of a lake, on executors or in threads of one process.

A task reads its spans as `format("topics")` does, writes their records to files next to the table of the topic, and
returns the files and the gaps to the driver. Records do not pass through the JVM, which would take longer than all the
rest. The driver commits the returned files; files of failed or repeated tasks are not committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct, structs

from topics.clock import SystemClock
from topics.lake import Change, File, Gap, Snapshot, TypedColumns, joined, write_files
from topics.lake.files import NO_COLUMNS
from topics.lake.storage import Storage
from topics.spark.options import ConnectionOptions, ReadOptions
from topics.spark.pipelines.run.tasks import Tasks, Workload
from topics.spark.source import plan
from topics.spark.source.plan import Span, TopicExtent
from topics.spark.source.read import LostRange, read_span, without_gaps


class Done(Struct, frozen=True):
    """The result for a span: every seq is in a file, in a gap, or was deleted."""

    span: Span
    files: list[File]
    gaps: list[Gap]


def archive_spans(
    tasks: Tasks,
    parts: Sequence[Sequence[Span]],
    *,
    connection: ConnectionOptions,
    lake: str,
    typed: Mapping[str, TypedColumns],
) -> list[Done]:
    """Run one task per part and return the results. `typed` has the typed columns of topics."""
    work = partial(_archive_part, connection=connection, lake=lake, typed=dict(typed))
    found = tasks.run(parts, work, result=list[Done], weight=lambda part: sum(span.stop - span.start for span in part))
    return [done for one in found for done in one]


def _archive_part(
    spans: Sequence[Span], *, connection: ConnectionOptions, lake: str, typed: Mapping[str, TypedColumns]
) -> list[Done]:
    """Read the spans of one task to their ends and write their records to files."""
    storage, options, done = Storage(lake), ReadOptions(connection=connection, fail_on_data_loss=False), []
    for span in spans:
        lost: list[LostRange] = []
        records = without_gaps(read_span(span, options), lost)
        columns = typed.get(span.topic, NO_COLUMNS)
        files = write_files(storage, span.topic, span.epoch, records, typed=columns)
        now_ms = SystemClock().now_ms()
        done.append(Done(span, files, [Gap(one.gap_from, one.gap_to, one.reason, now_ms) for one in lost]))
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
