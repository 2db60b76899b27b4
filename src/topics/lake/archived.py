"""The content of a lake: the files, gaps and progress of every epoch of a topic. Pure: no files, no clock."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import accumulate
from typing import Literal

from msgspec import Struct, field, structs

Op = Literal["archive", "merge", "erase", "purge", "trim"]
Range = tuple[int, int]  # seqs, both ends inclusive


class Unfit(Struct, frozen=True, kw_only=True):
    """How many records have a value that does not fit the type of a column: it is NULL there, and intact in `data`."""

    type: str
    records: int
    epoch: int
    first_seq: int

    def and_(self, other: Unfit | None) -> Unfit:
        """Return both together, with the first seq of both."""
        if other is None:
            return self
        first = min(self, other, key=lambda one: (one.epoch, one.first_seq))
        return structs.replace(first, records=self.records + other.records)


class File(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of records of one epoch and one date."""

    path: str  # relative to the lake
    date: str
    first: int  # seqs that are in it
    last: int
    rows: int
    bytes: int
    min_ts: int  # ms
    max_ts: int
    tags: tuple[str, str] | None = None  # bounds of the tags, if known; two empty texts if no record has a tag
    stats: str = ""  # Delta's statistics as JSON; only for a file that is not committed yet
    unfit: Mapping[str, Unfit] = {}  # by column; only for a file that is not committed yet


class Gap(Struct, frozen=True):
    """Seqs that were lost before they were archived, both ends inclusive."""

    first: int
    last: int
    reason: str
    met_at: int  # ms


class Change(Struct, kw_only=True, omit_defaults=True):
    """The effect of a commit on one epoch of a topic, or with `epoch` 0 on the topic as a whole."""

    op: Op
    topic: str
    epoch: int
    adds: list[File] = field(default_factory=list)
    removes: list[File] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    covered: Range | None = None
    trimmed_to: int | None = None


class ArchivedEpoch(Struct, frozen=True, kw_only=True, dict=True):
    """The archived part of one epoch of a topic.

    Every seq up to `archived_to` is in a file, in a gap, or was deleted: before it was archived, or by an erase. Up to
    `trimmed_to` the archive has deleted the live records, or is about to, so only the lake has them.
    """

    topic: str
    epoch: int
    files: tuple[File, ...] = ()
    archived_to: int = 0
    gaps: tuple[Gap, ...] = ()
    trimmed_to: int = 0

    @property
    def earliest(self) -> int:
        """The first seq in a file; without files, the one after the archived seqs."""
        return self.files[0].first if self.files else self.archived_to + 1

    @cached_property
    def _reaches(self) -> list[int]:
        """For each file, the last seq of it and of all files before it: those of another program may overlap."""
        return list(accumulate((file.last for file in self.files), max))

    def files_in(self, first: int, last: int) -> list[File]:
        """Return the files that may hold records of the range, sorted by their first seq."""
        low, high = bisect_left(self._reaches, first), bisect_right(self.files, last, key=lambda file: file.first)
        return [file for file in self.files[low:high] if file.last >= first]

    def within(self, first: int, last: int) -> ArchivedEpoch:
        """Return what a task needs to read the range."""
        files, gaps = tuple(self.files_in(first, last)), tuple(self.gaps_in(first, last))
        return structs.replace(self, files=files, gaps=gaps)

    def gaps_in(self, first: int, last: int) -> list[Gap]:
        """Return the gaps in the range, clipped to it."""
        return [
            Gap(max(gap.first, first), min(gap.last, last), gap.reason, gap.met_at)
            for gap in self.gaps
            if gap.first <= last and gap.last >= first
        ]

    def uncovered(self, first: int, last: int) -> list[Range]:
        """Return the parts of the range that are not archived."""
        start = max(first, self.archived_to + 1)
        return [(start, last)] if start <= last else []


class TopicState(Struct, frozen=True, kw_only=True):
    """One version of the table of a topic. Version -1: the table does not exist."""

    topic: str
    version: int = -1
    epochs: Mapping[int, ArchivedEpoch] = {}
    erasures: int = 0  # counts the erasures of this topic
    removed: int = 0  # the last erasure that has replaced files
    purged: int = 0  # the last erasure whose replaced files were removed from storage

    def epoch(self, epoch: int) -> ArchivedEpoch:
        return self.epochs.get(epoch) or ArchivedEpoch(topic=self.topic, epoch=epoch)


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the same seqs in the smallest number of ranges."""
    found: list[Range] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def outside(ranges: Iterable[Range], first: int, last: int) -> list[Range]:
    """Return the parts of `first` to `last` that are in none of the ranges."""
    found = []
    for low, high in merged(ranges):
        if low > last:
            break
        if first < low:
            found.append((first, low - 1))
        first = max(first, high + 1)
    if first <= last:
        found.append((first, last))
    return found


def joined(gaps: Iterable[Gap]) -> list[Gap]:
    """Join neighbouring gaps with the same reason: a gap that was cut between tasks becomes one gap again."""
    found: list[Gap] = []
    for gap in sorted(gaps, key=lambda gap: gap.first):
        if found and found[-1].last + 1 == gap.first and found[-1].reason == gap.reason:
            found[-1] = Gap(found[-1].first, gap.last, gap.reason, found[-1].met_at)
        else:
            found.append(gap)
    return found
