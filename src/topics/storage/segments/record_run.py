"""A run of records cut out of a segment: the unit of bulk reads (scan), in place of rendered answers.

A run is dense: it has a position for every seq from its first to its last. The position of a record that the reader
does not get (deleted, lost, or filtered out) is marked and empty, and holds nothing of that record.

`encode` writes a run as a segment file (see `segment.py`), so a reader of segments also reads runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from topics.model.records import Projection
from topics.storage.segments import codec
from topics.storage.segments.columns import Column, Columns, GrowingNames, SortedNames, render_without, runs
from topics.storage.segments.extras import Terms, pack

SKIPPED = 1
COMMA_TO_LINE = ord("\n")

Ids = npt.NDArray[np.uint32]


class Run(Struct, eq=False):
    """Records `first` to `last`. `data` is their rendered form, a comma after each; no bytes for a skipped one."""

    columns: Columns
    data: bytes
    marks: bytes | bytearray | None = None  # 0 for a record that is present; None if all are

    @property
    def first(self) -> int:
        return self.columns.first

    @property
    def count(self) -> int:
        return len(self.columns)

    @property
    def last(self) -> int:
        return self.columns.first + len(self.columns) - 1

    @property
    def present(self) -> int:
        """The number of records that are not skipped."""
        return len(self.columns) if self.marks is None else self.marks.count(0)


class Slice(Struct, eq=False):
    """A copy of parts of the columns of a segment: the segment may grow while another thread makes a run of them."""

    columns: Columns  # the segment's, whose dictionaries only ever grow
    spans: list[tuple[int, int]]  # positions, ascending and apart
    parts: Sequence[bytes | memoryview]
    copied: Columns  # of [spans[0][0], spans[-1][1])

    @classmethod
    def of(cls, columns: Columns, spans: list[tuple[int, int]], parts: Sequence[bytes | memoryview]) -> Slice:
        return cls(columns, spans, parts, columns.part(spans[0][0], spans[-1][1]))

    def run(self, *, all_names: bool = False) -> Run:
        """Return the run. Safe on any thread.

        With `all_names` it shares the dictionaries of a sealed segment, for a reader that does not send it.
        """
        marks = _marks(self.spans)
        copied = self.copied
        ends = np.frombuffer(copied.offsets, np.uint32)
        sizes = ends[1:] - ends[:-1]
        keep = None
        if marks is not None:
            keep = np.frombuffer(marks, np.uint8) == 0
            sizes = np.where(keep, sizes, 0)
            ts = np.frombuffer(copied.ts, np.uint64)
            copied.ts = _column(np.maximum.accumulate(np.where(keep, ts, ts[:1])))
        copied.offsets = _offsets(sizes)
        names = partial(_names, keep=keep, all_names=all_names)
        copied.tags, copied.tag_names = names(copied.tags, self.columns.tag_names)
        copied.nodes, copied.node_names = names(copied.nodes, self.columns.node_names)
        if copied.metas is not None and keep is not None:
            copied.metas = _column(np.where(keep, np.frombuffer(copied.metas, np.uint32), np.uint32(0)))
        keys = {at: copied.key_at(at) for at in copied.extras if keep is None or keep[at]}
        copied.extras = {at: pack(Terms(key=key)) for at, key in keys.items() if key is not None}
        return Run(copied, b"".join(self.parts), marks)


def without(columns: Columns, rendered: bytes, keep: npt.NDArray[np.bool_]) -> tuple[Columns, bytes]:
    """Return the run with positions for all records, and bytes, names and extras only of those to keep."""
    ends = np.frombuffer(columns.offsets, np.uint32)
    left = Columns(columns.first)
    left.offsets, left.ts = _offsets(np.where(keep, ends[1:] - ends[:-1], np.uint32(0))), columns.ts
    left.tags, left.tag_names = _names(columns.tags, columns.tag_names, keep, all_names=False)
    left.nodes, left.node_names = _names(columns.nodes, columns.node_names, keep, all_names=False)
    if columns.metas is not None:
        left.metas = _column(np.where(keep, np.frombuffer(columns.metas, np.uint32), np.uint32(0)))
    left.extras = {at: extra for at, extra in columns.extras.items() if keep[at]}
    view = memoryview(rendered)
    return left, b"".join([view[ends[low] : ends[high + 1]] for low, high in runs(np.flatnonzero(keep))])


def encode(run: Run, *, topic_id: int, epoch: int) -> list[bytes]:
    parts = codec.encode(run.columns, run.data, run.marks, topic_id=topic_id, epoch=epoch)
    return cast(list[bytes], parts)  # as `run.data` is


def decode(block: bytes | bytearray | memoryview, *, source: str) -> Run:
    """Decode a run and compare every checksum. Raise `Corrupt`, which names `source` as the origin of the bytes."""
    _, columns, data, flags = codec.decode(bytes(block), path=source)
    return Run(columns, data, codec.decode_flags(flags))


def lines(run: Run, projection: Projection) -> bytes:
    lacks_tags = projection.tags and (run.columns.tags is not None or run.columns.extras)
    has_meta = not projection.meta and run.columns.metas is not None
    if lacks_tags or has_meta or not projection.data:
        run = project(run, projection)
    data = np.frombuffer(bytearray(run.data), np.uint8)
    ends = np.frombuffer(run.columns.offsets, np.uint32)[1:]
    data[ends[ends > 0] - 1] = COMMA_TO_LINE  # an empty position ends where the record before it ends
    return data.tobytes()


def project(run: Run, projection: Projection) -> Run:
    """Return the same records in another form, rendered one by one."""
    columns, offsets, data, marks = run.columns, run.columns.offsets, run.data, run.marks
    parts = [
        b""
        if marks is not None and marks[at]
        else render_without(data[offsets[at] : offsets[at + 1]], columns, at, projection)
        for at in range(len(columns))
    ]
    changed = Columns(columns.first)
    changed.offsets = _offsets(np.fromiter(map(len, parts), np.uint32, len(parts)))
    changed.ts, changed.extras = columns.ts, columns.extras
    changed.tags, changed.tag_names = columns.tags, columns.tag_names
    changed.nodes, changed.node_names = columns.nodes, columns.node_names
    changed.metas = columns.metas if projection.meta else None
    return Run(changed, b"".join(parts), marks)


def _marks(spans: Sequence[tuple[int, int]]) -> bytes | None:
    if len(spans) == 1:
        return None
    low = spans[0][0]
    marks = bytearray([SKIPPED]) * (spans[-1][1] - low)
    for first, stop in spans:
        marks[first - low : stop - low] = bytes(stop - first)
    return bytes(marks)


def _offsets(sizes: npt.NDArray[np.integer]) -> Column:
    offsets = np.zeros(len(sizes) + 1, np.uint32)
    np.cumsum(sizes, out=offsets[1:])
    return _column(offsets)


def _names(
    column: Column | None, names: GrowingNames | SortedNames, keep: npt.NDArray[np.bool_] | None, *, all_names: bool
) -> tuple[Column | None, SortedNames | GrowingNames]:
    """Return the id column and its dictionary, sorted, and cut down to the names that occur.

    With `all_names` it is cut down only if it grows.
    """
    if column is None:
        return None, GrowingNames()
    ids = np.frombuffer(column, np.uint32)
    if keep is not None:
        ids = np.where(keep, ids, np.uint32(0))
    if all_names and isinstance(names, SortedNames):
        return column if keep is None else _column(ids), names
    used = np.unique(ids)
    used = used[used > 0]
    if not len(used):
        return None, GrowingNames()
    fresh = np.zeros(int(used.max()) + 1, np.uint32)
    fresh[used] = np.arange(1, len(used) + 1, dtype=np.uint32)
    if isinstance(names, SortedNames):
        return _column(fresh[ids]), _some_names(names, used)
    return codec.sorted_names(fresh[ids], [names.name_of(name_id) for name_id in used.tolist()])


def _some_names(names: SortedNames, used: Ids) -> SortedNames:
    """Those of the names; their order stays. Without a step a name: a segment may hold as many names as records."""
    ends = np.frombuffer(names.ends, np.uint32).astype(np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    low, high = starts[used - 1], ends[used - 1]
    sizes = high - low
    at = np.arange(int(sizes.sum()), dtype=np.int64)
    before = np.cumsum(sizes) - sizes
    blob = np.frombuffer(names.blob, np.uint8)[at + np.repeat(low - before, sizes)].tobytes()
    return SortedNames(memoryview(np.cumsum(sizes).astype(np.uint32).tobytes()).cast("I"), blob)


def _column(values: npt.NDArray[np.integer]) -> Column:
    return memoryview(values.tobytes()).cast("Q" if values.dtype.itemsize == 8 else "I")
