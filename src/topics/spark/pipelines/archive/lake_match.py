"""Check that a lake and a server belong together, before the lake is written to or the topic is trimmed.

A lake that is not mounted is an empty directory. An old copy of a lake looks complete. A server whose directory was set
back assigns seqs a second time. Without a check, archiving would continue silently, and records would be lost or mixed
for good. So the two are compared: the last archived seq that the server knows, its head, and the last common records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import structs

from topics.client import Client
from topics.clock import SystemClock
from topics.lake import ArchivedEpoch, Change, Damaged, File, Gap, Lake, Snapshot, joined
from topics.lake.archived import Range, outside
from topics.lake.heal import OTHER_LAKE
from topics.spark.failures import Failed
from topics.spark.options import ConnectionOptions
from topics.spark.pipelines.audit_task import Stretch, look
from topics.spark.source.catalog import state_of
from topics.spark.source.plan import TopicExtent

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


def reported_as_archived(client: Client, extents: Iterable[TopicExtent]) -> dict[Key, int]:
    """Return the last archived seq that the server knows, per epoch.

    Read the lake's snapshot after this call: an archive commits to the lake before it reports to the server.
    """
    states = [state_of(client, extent.topic, epoch=extent.epoch) for extent in extents]
    return {
        (state.topic, state.epoch): state.archived_seq for state in states if state is not None and state.archived_seq
    }


def ahead_of(snapshot: Snapshot, reported: Mapping[Key, int]) -> dict[Key, int]:
    """Return the entries that are beyond the end of the archive in this lake."""
    epochs = {key: snapshot.archived(*key) for key in reported}
    return {
        key: seq
        for key, seq in reported.items()
        if seq > (0 if (archived := epochs[key]) is None else archived.archived_to)
    }


def refuse_other_lake(lake: Lake, snapshot: Snapshot, ahead: Mapping[Key, int]) -> None:
    """Raise `Failed` if `ahead` has an entry: the lake lacks records that the server considers archived."""
    for (topic, epoch), seq in ahead.items():
        archived = snapshot.archived(topic, epoch)
        others = f" (and {len(ahead) - 1} more topics)" if len(ahead) > 1 else ""
        raise Failed(
            f"topic {topic}{others}: seqs up to {seq} were reported to the server as archived, but {lake.path} has "
            f"seqs up to {0 if archived is None else archived.archived_to}: it is another lake, an older copy, or is "
            "not mounted",
            next="mount the right lake, or restore it from a copy; to continue with this lake, and to record the "
            "seqs that are neither live nor archived as a gap, use --new-lake",
        )


def verify(lake: Lake, archived: ArchivedEpoch, files: Sequence[File]) -> bool:
    """Read files back. Return False if another run has replaced one meanwhile; raise `Damaged` if one is damaged."""
    try:
        for file in files:
            lake.verify(file)
    except Damaged:
        if lake.has(archived.topic, archived.epoch, files):
            raise
        return False
    return True


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
    last = files[-1].last
    stretch = Stretch(
        lake=lake.path, connection=connection, topic=archived.topic, epoch=archived.epoch, files=files,
        first=max(earliest, last - COMPARED_SEQS + 1), last=last,
    )  # fmt: skip
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


def with_gaps(lake: Lake, change: Change, *, upto: int) -> Change:
    """Return the change with a gap for each seq up to `upto` that is only in another lake.

    Seqs that were deleted on request are among them, because the server does not report deletes.
    """
    assert change.covered is not None
    first, last = change.covered[0], min(change.covered[1], upto)
    if first > last:
        return change
    known = [*((gap.first, gap.last) for gap in change.gaps), *_seqs(lake, change)]
    missing = outside(known, first, last)
    if not missing:
        return change
    now_ms = SystemClock().now_ms()
    gaps = [*change.gaps, *(Gap(low, high, OTHER_LAKE, now_ms) for low, high in missing)]
    return structs.replace(change, gaps=joined(gaps), trimmed_to=missing[-1][1])


def _seqs(lake: Lake, change: Change) -> Iterable[Range]:
    """Yield the ranges of seqs in the files that a change adds."""
    for added in change.adds:
        for batch in lake.open(added).iter_batches(columns=["seq"]):
            seqs = batch.column("seq").to_numpy()
            ends = [*np.flatnonzero(np.diff(seqs) != 1).tolist(), len(seqs) - 1]
            starts = [0, *(end + 1 for end in ends[:-1])]
            yield from ((int(seqs[low]), int(seqs[high])) for low, high in zip(starts, ends, strict=True))
