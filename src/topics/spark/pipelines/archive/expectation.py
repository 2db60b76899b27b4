"""What an archive run would do: the rows of a dry run, from the states of topics, without reading their records."""

from __future__ import annotations

import secrets

from topics.client import Client
from topics.client.request import Tombstone
from topics.lake import Snapshot
from topics.lake.archived import outside
from topics.lake.heal import OTHER_LAKE
from topics.plurals import counted
from topics.spark.pipelines.archive.after_commit import GAPS_SHOWN, ArchiveState
from topics.spark.pipelines.archive.task import unarchived
from topics.spark.pipelines.run.report import ReportedGap
from topics.spark.source.catalog import state_of
from topics.spark.source.plan import Span, TopicExtent


def expect(state: ArchiveState, client: Client, snapshot: Snapshot, extents: list[TopicExtent], *, trim: bool) -> None:
    """Report what a run would archive, record as gaps and trim."""
    new = {span.topic: span for span in unarchived(snapshot, extents)}
    for extent in extents:
        if (span := new.get(extent.topic)) is not None:
            _expect_archived(state, client, snapshot, extent, span)
        if trim:
            _expect_trimmed(state, client, extent)


def _expect_archived(state: ArchiveState, client: Client, snapshot: Snapshot, extent: TopicExtent, span: Span) -> None:
    row = state.row(span.topic)
    row.epoch, row.from_seq, row.to_seq = span.epoch, span.start, span.stop - 1
    seqs = span.stop - max(span.start, extent.earliest)
    row.records = min(extent.count, seqs)
    # If some records were deleted and only a part is new, it is unknown which part the deleted ones were in.
    row.at_most = span.start > extent.earliest and extent.count <= extent.head - extent.earliest
    row.size_bytes = round(row.records * extent.bytes_per_seq)
    row.gaps = _expected_gaps(state, client, extent, span)
    if row.gaps:
        row.figures["lost"] = sum(gap.to_seq - gap.from_seq + 1 for gap in row.gaps)
    state.warn_about_earlier_epochs(snapshot, span.topic, first=span.start)


def _expected_gaps(state: ArchiveState, client: Client, extent: TopicExtent, span: Span) -> list[ReportedGap]:
    """Return the gaps that a read would report: a scan for a tag that no record has returns only gaps."""
    found = []
    none = ["tag", "Eq", secrets.token_hex(16)]
    scan = client.scan(span.topic, from_seq=span.start - 1, upto_seq=span.stop - 1, epoch=span.epoch, filter=none)
    for piece in scan:
        if isinstance(piece, Tombstone):
            first = max(piece.gap_from, span.start)
            found.append(ReportedGap(from_seq=first, to_seq=piece.gap_to, reason=piece.reason, epoch=span.epoch))
    upto = min(state.elsewhere.get((span.topic, span.epoch), 0), extent.earliest - 1)
    for low, high in outside([(gap.from_seq, gap.to_seq) for gap in found], span.start, upto):
        found.append(ReportedGap(from_seq=low, to_seq=high, reason=OTHER_LAKE, epoch=span.epoch))
    return found[:GAPS_SHOWN]


def _expect_trimmed(state: ArchiveState, client: Client, extent: TopicExtent) -> None:
    """Report what a trim would delete: all live records, because the run archives them before."""
    if not extent.count:
        return
    row = state.row(extent.topic)
    topic = state_of(client, extent.topic, epoch=extent.epoch)
    if topic is not None and topic.type == "queue":
        state.warn_of_queue(extent)
        return
    row.figures["to_trim"] = extent.count
    seqs = f"seqs {extent.earliest} to {extent.head}"
    row.would.append(f"delete {seqs} from the topic once the lake has them, {counted(extent.count, 'record')}")
