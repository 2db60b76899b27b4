"""Classify each seq of one epoch of a topic, and compare lake and server. Runs on executors.

A seq that is not live is explained if a file of the lake holds it, if a recorded gap has it, if it was deleted, or if
the server reports it as lost and it is not archived yet. All other seqs are unexplained: they existed, and nothing says
why they are missing. Seqs that the server considers archived, but that this lake does not cover, are unexplained too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from topics.lake import SCHEMA, Damaged, File, Lake
from topics.lake.archived import Range, merged
from topics.lake.rewrite import row_groups
from topics.spark.options import ConnectionOptions, ReadOptions
from topics.spark.source.plan import Span
from topics.spark.source.read import LostRange, read_span, without_gaps

Marks: TypeAlias = npt.NDArray[np.uint8]

COMPARED = ("ts", "node", "tag", "meta", "data")
SHOWN = 20  # most differing seqs that are listed

# The classes of a seq, in order of precedence.
LIVE, ARCHIVED, GAP, DELETED, LOST, UNEXPLAINED = range(1, 7)
NAMES = {LIVE: "live", ARCHIVED: "archived", GAP: "in_gaps", DELETED: "deleted", LOST: "lost"}


class Stretch(Struct, kw_only=True):
    """Seqs `first` to `last` of one epoch, with their state in the lake."""

    lake: str
    connection: ConnectionOptions | None  # None: an earlier epoch, which only the lake has
    topic: str
    epoch: int
    first: int
    last: int
    files: list[File] = []  # the files that are not damaged
    damaged: list[Range] = []  # the seqs of damaged files
    gaps: list[Range] = []
    uncovered: list[Range] = []
    trimmed_to: int = 0
    reported_to: int = 0  # the last archived seq that the server knows


class Difference(Struct, frozen=True, kw_only=True):
    """A record that differs between server and lake; `fields` is empty if the lake does not have it."""

    seq: int
    fields: list[str]


class StretchFindings(Struct, kw_only=True):
    """The findings of one stretch."""

    counts: dict[str, int] = field(default_factory=dict)
    both: int = 0  # records that are live and archived, and were compared
    unexplained: list[Range] = field(default_factory=list)
    lost: list[Range] = field(default_factory=list)
    doubled: list[Range] = field(default_factory=list)  # seqs that the lake has more than once
    differing: int = 0
    missing: int = 0
    differences: list[Difference] = field(default_factory=list)  # the first few
    problem: str | None = None  # why the stretch could not be read: a file was removed meanwhile


def check_file(file: File, *, lake: str) -> str:
    """Read a file back. Return what is wrong with its checksums or its rows, or an empty text."""
    try:
        Lake(lake).verify(file)
    except (Damaged, OSError, pa.ArrowException) as error:
        return str(error)
    return ""


def look(stretch: Stretch) -> StretchFindings:
    """Classify every seq of a stretch, and compare every record that both have."""
    try:
        live, lost = _live(stretch)
        archived = _table(_archived(stretch))
    except Damaged as error:
        return StretchFindings(problem=str(error))
    archived, doubled = _once(archived)
    marks = _mark(stretch, live, lost, archived)
    found = StretchFindings(
        doubled=doubled,
        counts={name: int(np.count_nonzero(marks == mark)) for mark, name in NAMES.items()},
        unexplained=ranges(marks == UNEXPLAINED, stretch.first),
        lost=ranges(marks == LOST, stretch.first),
    )
    _compare(stretch, live, archived, found)
    return found


def _mark(stretch: Stretch, live: pa.Table, lost: Sequence[Range], archived: pa.Table) -> Marks:
    """Return the class of each seq. Later lines override earlier ones."""
    marks = np.full(stretch.last - stretch.first + 1, DELETED, np.uint8)
    _put(marks, stretch, [pair for low, high in lost for pair in _within(stretch.uncovered, low, high)], LOST)
    if stretch.connection is None:
        _put(marks, stretch, stretch.uncovered, UNEXPLAINED)
    _put(marks, stretch, _within(stretch.uncovered, 1, max(stretch.trimmed_to, stretch.reported_to)), UNEXPLAINED)
    _put(marks, stretch, stretch.damaged, UNEXPLAINED)
    _put(marks, stretch, stretch.gaps, GAP)
    marks[archived.column("seq").to_numpy() - stretch.first] = ARCHIVED
    marks[live.column("seq").to_numpy() - stretch.first] = LIVE
    return marks


def _live(stretch: Stretch) -> tuple[pa.Table, list[Range]]:
    """Return the records on the server, and the ranges that it reports as lost."""
    if stretch.connection is None:
        return _table([]), []
    options, lost = ReadOptions(connection=stretch.connection, fail_on_data_loss=False), list[LostRange]()
    span = Span(
        server=stretch.connection.servers[0], topic=stretch.topic, epoch=stretch.epoch,
        start=stretch.first, stop=stretch.last + 1,
    )  # fmt: skip
    batches = [batch.select(["seq", *COMPARED]) for batch in without_gaps(read_span(span, options), lost)]
    return _table(batches), [(one.gap_from, one.gap_to) for one in lost]


def _archived(stretch: Stretch) -> Iterator[pa.RecordBatch]:
    lake = Lake(stretch.lake)
    for file in stretch.files:
        try:
            for batch in row_groups(lake.storage, file, ["seq", *COMPARED], first=stretch.first, last=stretch.last):
                seqs = batch.column("seq").to_numpy()
                within = (seqs >= stretch.first) & (seqs <= stretch.last)
                if within.any():
                    yield batch if within.all() else batch.filter(pa.array(within))
        except (OSError, pa.ArrowException) as error:
            raise Damaged(f"{file.path}: {error}") from error


def _once(archived: pa.Table) -> tuple[pa.Table, list[Range]]:
    """Return each seq once, sorted, and the seqs that occurred several times."""
    seqs = archived.column("seq").to_numpy()
    if not np.any(np.diff(seqs) <= 0):
        return archived, []
    each, at, count = np.unique(seqs, return_index=True, return_counts=True)
    return archived.take(pa.array(at)), merged((seq, seq) for seq in each[count > 1].tolist())


def _compare(stretch: Stretch, live: pa.Table, archived: pa.Table, found: StretchFindings) -> None:
    live_seqs, archived_seqs = live.column("seq").to_numpy(), archived.column("seq").to_numpy()
    common, at_live, at_archived = np.intersect1d(live_seqs, archived_seqs, assume_unique=True, return_indices=True)
    found.both = len(common)
    one, other = live.take(pa.array(at_live)), archived.take(pa.array(at_archived))
    fields_of: dict[int, list[str]] = {}
    differing = np.zeros(len(common), np.bool_)
    for name in COMPARED:
        this, that = one.column(name), other.column(name)
        is_other = pc.fill_null(pc.not_equal(this, that), False)
        unlike = pc.or_(is_other, pc.not_equal(pc.is_null(this), pc.is_null(that))).to_numpy()
        differing |= unlike
        for at in np.flatnonzero(unlike)[:SHOWN].tolist():
            fields_of.setdefault(int(common[at]), []).append(name)
    found.differing = int(np.count_nonzero(differing))
    missing = np.setdiff1d(live_seqs, archived_seqs, assume_unique=True)
    for ranges_ in (stretch.uncovered, stretch.damaged):  # the lake need not have these
        for low, high in ranges_:
            missing = missing[(missing < low) | (missing > high)]
    found.missing = len(missing)
    rows = [Difference(seq=seq, fields=names) for seq, names in sorted(fields_of.items())]
    rows += [Difference(seq=seq, fields=[]) for seq in missing[:SHOWN].tolist()]
    found.differences = rows[:SHOWN]


def _table(batches: Any) -> pa.Table:
    schema = pa.schema([SCHEMA.field(name) for name in ("seq", *COMPARED)])
    return pa.Table.from_batches(list(batches), schema)


def _put(marks: Marks, stretch: Stretch, given: Sequence[Range], mark: int) -> None:
    for low, high in _within(given, stretch.first, stretch.last):
        marks[low - stretch.first : high - stretch.first + 1] = mark


def _within(given: Sequence[Range], first: int, last: int) -> list[Range]:
    clipped = [(max(low, first), min(high, last)) for low, high in given]
    return [(low, high) for low, high in clipped if low <= high]


def ranges(hit: npt.NDArray[np.bool_], first: int) -> list[Range]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], hit.view(np.int8), [0]))))
    return [(first + int(low), first + int(high) - 1) for low, high in zip(edges[::2], edges[1::2], strict=True)]
