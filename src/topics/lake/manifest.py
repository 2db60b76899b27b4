"""The content of a lake: the files, gaps and progress of every epoch of every topic. Pure: no files, no clock.

A snapshot is one version and is immutable. A commit leads from one version to the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal

from msgspec import Struct, field, structs

from topics.lake.errors import Conflict, Damaged

Op = Literal["archive", "merge", "erase", "trim"]
Range = tuple[int, int]  # seqs, both ends inclusive


class File(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of records of one date. `staged` is its path before it is published."""

    path: str  # relative to the lake
    date: str
    first: int  # seqs that are in it
    last: int
    rows: int
    bytes: int
    min_ts: int  # ms
    max_ts: int
    sum: str  # XXH3-64 of its bytes
    staged: str = ""


class Gap(Struct, frozen=True):
    """Seqs that were lost before they were archived, both ends inclusive."""

    first: int
    last: int
    reason: str
    met_at: int  # ms


class Staged(Struct, frozen=True):
    """A finished file that is not committed yet."""

    file: File

    @property
    def staged(self) -> str:
        return self.file.staged


class Change(Struct, kw_only=True, omit_defaults=True):
    """The effect of a commit on one epoch of a topic."""

    op: Op
    topic: str
    epoch: int
    adds: list[Staged] = field(default_factory=list)
    removes: list[File] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    covered: Range | None = None
    trimmed_to: int | None = None


class Commit(Struct, kw_only=True):
    """One version, as the difference to its parent. `parent` is the checksum of the parent's commit."""

    version: int
    parent: str = ""
    made_at: int  # ms
    run: str
    changes: list[Change]
    note: dict[str, Any] | None = None


class ArchivedEpoch(Struct, frozen=True, kw_only=True):
    """The archived part of one epoch of a topic.

    Every seq in `covered` is in a file, in a gap, or was deleted: before it was archived, or by an erase. Up to
    `trimmed_to` the archive has deleted the live records, or is about to, so only the lake has them.
    """

    topic: str
    epoch: int
    files: tuple[File, ...] = ()
    covered: tuple[Range, ...] = ()
    gaps: tuple[Gap, ...] = ()
    trimmed_to: int = 0

    @property
    def archived_to(self) -> int:
        """The last seq of the covered range that begins at seq 1; 0 if there is none."""
        return self.covered[0][1] if self.covered and self.covered[0][0] == 1 else 0

    def files_in(self, first: int, last: int) -> list[File]:
        start = bisect_left(self.files, first, key=lambda file: file.last)
        found = []
        for file in self.files[start:]:
            if file.first > last:
                break
            found.append(file)
        return found

    def gaps_in(self, first: int, last: int) -> list[Gap]:
        """Return the gaps in the range, clipped to it."""
        return [
            Gap(max(gap.first, first), min(gap.last, last), gap.reason, gap.met_at)
            for gap in self.gaps
            if gap.first <= last and gap.last >= first
        ]

    def uncovered(self, first: int, last: int) -> list[Range]:
        """Return the parts of the range that are not archived."""
        found = []
        for low, high in self.covered:
            if low > last:
                break
            if first < low:
                found.append((first, low - 1))
            first = max(first, high + 1)
        if first <= last:
            found.append((first, last))
        return found


class Snapshot(Struct, kw_only=True):
    """One version of a lake. Immutable, because versions share their common parts."""

    version: int = 0
    epochs_by_topic: dict[str, dict[str, ArchivedEpoch]] = field(default_factory=dict, name="lives_of")  # epoch as text
    erased: dict[str, int] = field(default_factory=dict)  # the version in which something of a topic was last erased
    sum: str = ""  # XXH3-64 of the bytes of the commit that made it

    def topics(self) -> list[str]:
        return sorted(self.epochs_by_topic)

    def epochs(self, topic: str) -> list[ArchivedEpoch]:
        """Return the archived epochs of a topic, oldest first."""
        return sorted(self.epochs_by_topic.get(topic, {}).values(), key=lambda archived: archived.epoch)

    def archived(self, topic: str, epoch: int) -> ArchivedEpoch | None:
        return self.epochs_by_topic.get(topic, {}).get(str(epoch))

    def after(self, commit: Commit, sum: str = "") -> Snapshot:
        """Return the next version. Raise `Damaged` if the commit was not made from this version."""
        assert commit.version == self.version + 1, "commits are applied in order"
        if commit.parent and self.sum and commit.parent != self.sum:
            raise Damaged(
                f"version {commit.version} was made from another version {self.version} than the existing one"
            )
        epochs_by_topic, erased = dict(self.epochs_by_topic), self.erased
        for topic in {change.topic for change in commit.changes}:
            epochs_by_topic[topic] = dict(epochs_by_topic.get(topic, {}))
        for change in commit.changes:
            epochs, key = epochs_by_topic[change.topic], str(change.epoch)
            if change.op == "erase":
                erased = {**erased, change.topic: commit.version}
            if change.epoch or change.op != "erase":
                epochs[key] = changed(epochs.get(key) or ArchivedEpoch(topic=change.topic, epoch=change.epoch), change)
        for topic in [topic for topic, epochs in epochs_by_topic.items() if not epochs]:
            del epochs_by_topic[topic]
        return Snapshot(version=commit.version, epochs_by_topic=epochs_by_topic, erased=erased, sum=sum)

    def published(self) -> Snapshot:
        """Return this version without staging paths, for a checkpoint: all files are published."""
        return structs.replace(
            self,
            epochs_by_topic={
                topic: {key: _published(archived) for key, archived in epochs.items()}
                for topic, epochs in self.epochs_by_topic.items()
            },
        )

    def check(self, base: Snapshot, changes: Sequence[Change]) -> None:
        """Raise `Conflict` if a change that was made from `base` does not fit this version."""
        for change in changes:
            archived = self.archived(change.topic, change.epoch) or ArchivedEpoch(
                topic=change.topic, epoch=change.epoch
            )
            if change.op == "archive":
                self._check_archive(base, change, archived)
            there = {file.path for file in archived.files} if change.removes else set()
            for file in change.removes:
                if file.path not in there:
                    raise Conflict(f"{file.path} was replaced meanwhile")

    def _check_archive(self, base: Snapshot, change: Change, archived: ArchivedEpoch) -> None:
        assert change.covered is not None, "an archive change says what it covers"
        if change.covered[0] != archived.archived_to + 1:
            raise Conflict(f"topic {change.topic} was archived up to {archived.archived_to} by another run")
        if self.erased.get(change.topic, 0) > base.version:
            raise Conflict(f"records of topic {change.topic} were erased while they were being archived")


def changed(archived: ArchivedEpoch, change: Change) -> ArchivedEpoch:
    """Return the epoch after one change. Raise `Damaged` if the two contradict: no seq is archived twice."""
    _check_consistent(archived, change)
    removed = {file.path for file in change.removes}
    files = [file for file in archived.files if file.path not in removed] if removed else list(archived.files)
    files += [added.file for added in change.adds]
    if removed or change.adds:
        files.sort(key=lambda file: file.first)
    for file, following in pairwise(files) if change.adds else ():
        if following.first <= file.last:
            raise Damaged(f"{file.path} and {following.path} hold the same seqs: a version between them is missing")
    return ArchivedEpoch(
        topic=archived.topic,
        epoch=archived.epoch,
        files=tuple(files),
        covered=archived.covered if change.covered is None else merged([*archived.covered, change.covered]),
        gaps=tuple(sorted([*archived.gaps, *change.gaps], key=lambda gap: gap.first)) if change.gaps else archived.gaps,
        trimmed_to=max(archived.trimmed_to, change.trimmed_to or 0),
    )


def _check_consistent(archived: ArchivedEpoch, change: Change) -> None:
    there = {file.path for file in archived.files} if change.removes else set()
    for file in change.removes:
        if file.path not in there:
            raise Damaged(f"{file.path} is replaced by a version, but no earlier version has it")
    if change.covered is not None and archived.uncovered(*change.covered) != [change.covered]:
        first, last = change.covered
        raise Damaged(f"seqs {first} to {last} of topic {archived.topic}, epoch {archived.epoch}, are archived twice")


def merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the same seqs in the smallest number of ranges."""
    found: list[Range] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def joined(gaps: Iterable[Gap]) -> list[Gap]:
    """Join neighbouring gaps with the same reason: a gap that was cut between tasks becomes one gap again."""
    found: list[Gap] = []
    for gap in sorted(gaps, key=lambda gap: gap.first):
        if found and found[-1].last + 1 == gap.first and found[-1].reason == gap.reason:
            found[-1] = Gap(found[-1].first, gap.last, gap.reason, found[-1].met_at)
        else:
            found.append(gap)
    return found


def _published(archived: ArchivedEpoch) -> ArchivedEpoch:
    if not any(file.staged for file in archived.files):
        return archived
    return structs.replace(archived, files=tuple(structs.replace(file, staged="") for file in archived.files))
