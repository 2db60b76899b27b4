"""Segments at run time: their common interface, and the segment in memory. See `sealed.py` for segments in files."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from topics.errors import Corrupt
from topics.storage.segments import codec
from topics.storage.segments.cold import Need
from topics.storage.segments.columns import Columns, first_of, growable
from topics.storage.segments.marks import FEW, LIVE, Positions

Rendered = bytes | memoryview  # of records, from a file without another copy or from memory
T = TypeVar("T")
_unpacking = Lock()  # another thread may look at a segment, too
_NO_HOLES = (-1, array("I"), array("I"), array("I"))


class Damaged(Exception):
    """The records at positions [low, high) of a segment are unreadable.

    `whole` is True if the columns are unreadable too: only the range of seqs of the segment is known then.
    """

    def __init__(self, segment: Segment, low: int, high: int, cause: Corrupt, *, whole: bool = False) -> None:
        super().__init__(str(cause))
        self.segment = segment
        self.low = low
        self.high = high
        self.cause = cause
        self.whole = whole

    def concerns(self, positions: npt.NDArray[np.intp]) -> bool:
        """Return whether any of these positions of the segment lies in the damaged range."""
        return self.whole or bool(np.any((positions >= self.low) & (positions < self.high)))


class HeldRange(NamedTuple):
    """The records up to position `upto`, cut out of fetched data that begins with the record at `first`."""

    data: Rendered
    upto: int
    first: int


class Segment:
    """The common part: the seqs of the run, and which of its records are live."""

    __slots__ = ("_holes", "_marks", "count", "first", "live", "live_bytes", "max_ts", "min_ts")

    def __init__(self, first: int) -> None:
        self.first = first
        self.count = 0
        self.live = 0
        self.live_bytes = 0
        self.min_ts = 0
        self.max_ts = 0
        self._holes = _NO_HOLES  # for so many records that are not live: see `holes`
        self._marks: bytearray | None = None  # see `marks`; None while all records are live

    @property
    def end(self) -> int:
        """The seq after the last record."""
        return self.first + self.count

    columns: Columns  # a sealed segment loads them on demand

    @property
    def in_memory(self) -> bool:
        """Whether the columns and marks need not be loaded."""
        return True

    @property
    def marks(self) -> bytearray | None:
        return self._marks

    def holes(self) -> tuple[int, array[int], array[int], array[int]]:
        """Return the marked records: number, positions, live records before each, and where bytes begin and end."""
        known, dead = self._holes, self.count - self.live
        if known[0] != dead:
            at = np.flatnonzero(np.frombuffer(self.marks or b"", np.uint8)).astype(np.uint32)
            offsets = np.frombuffer(self.columns.offsets, np.uint32)
            ranks = at - np.arange(len(at), dtype=np.uint32)
            bounds = np.stack((offsets[at], offsets[at + 1]), axis=1)
            known = self._holes = dead, *(array("I", column.tobytes()) for column in (at, ranks, bounds))  # type: ignore[assignment]
        return known

    def runs_lent(self) -> list[memoryview]:
        """Return the bytes between marked records in mapped memory, each run in a view that is made once; [] if not."""
        return []

    def forget_holes(self) -> None:
        self._holes = _NO_HOLES

    def check_loaded(self) -> None:
        """Raise `Cold` if the columns or marks are not in memory, or `Damaged`."""
        self.columns, self.marks  # noqa: B018 - their properties raise

    def read(self, low: int, high: int) -> Rendered:
        """Return the rendered records at positions [low, high), with a comma after each."""
        raise NotImplementedError

    def lend(self, low: int, high: int) -> Rendered:
        """Return the same bytes from mapped memory, if possible. Only system calls may read them."""
        return self.read(low, high)

    def look(self, key: Hashable, compute: Callable[[Columns, bytearray | None], T]) -> T:
        """Return the result of `compute` on the columns and marks. It may run on another thread, and be kept.

        For work on many segments: their columns need not stay in memory. The key identifies the computation.
        """
        return compute(self.columns, self.marks)

    def read_held(self, low: int, high: int) -> HeldRange | None:
        """Return the records from `low` on that a hold has in memory, at most up to `high`; None if there are none."""
        return None

    def need(self, low: int, high: int, *, at_least_bytes: int = 0, max_bytes: int | None = None) -> Need:
        """Return the need for the data of [low, high), extended to `at_least_bytes` and limited to `max_bytes`."""
        raise NotImplementedError

    def release(self) -> None:
        """Let the file of the segment be removed, if it has one."""

    def mark_deleted(self, low: int, taken: npt.NDArray[np.uint8], *, count: int, size_bytes: int) -> None:
        """Delete the records at `low + i` for which `taken[i]` is 1. They are live: `count` of them, of `size_bytes`.

        Needs no columns.
        """
        marks = self.marks
        if marks is None:
            marks = self._marks = bytearray(self.count)
        np.frombuffer(marks, np.uint8)[low : low + len(taken)] |= taken  # live is 0, and deleted is 1
        self.live -= count
        self.live_bytes -= size_bytes

    def mark(self, positions: Sequence[int] | Positions, value: int) -> tuple[int, int]:
        """Mark the live records among `positions` as deleted or lost. Return how many these are, and their bytes."""
        marks = self.marks
        if marks is None:
            marks = self._marks = bytearray(self.count)
        if len(positions) > FEW:
            column, live = np.frombuffer(marks, np.uint8), np.unique(np.asarray(positions, np.intp))
            live = live[column[live] == LIVE]
            column[live] = value
            count, size_bytes = len(live), self.columns.size_of(live)
        else:
            offsets = self.columns.offsets
            count = size_bytes = 0
            for at in positions:
                if not marks[at]:
                    marks[at] = value
                    count += 1
                    size_bytes += offsets[at + 1] - offsets[at]
        self.live -= count
        self.live_bytes -= size_bytes
        return count, size_bytes

    def live_within(self, low: int, high: int) -> tuple[int, int]:
        """Return how many records at [low, high) are live, and their bytes."""
        offsets = self.columns.offsets
        size = offsets[high] - offsets[low]
        marks = self.marks
        if marks is None:
            return high - low, size
        dead = np.flatnonzero(np.frombuffer(marks, np.uint8)[low:high]) + low
        return high - low - len(dead), size - self.columns.size_of(dead)

    def live_positions(self, low: int, high: int) -> npt.NDArray[np.intp]:
        marks = self.marks
        if marks is None:
            return np.arange(low, high)
        return np.flatnonzero(np.frombuffer(marks, np.uint8)[low:high] == 0) + low

    def first_live(self, low: int) -> int:
        """Return the first live position from `low` on; `count` if there is none."""
        marks = self.marks
        if marks is None:
            return low
        at = marks.find(0, low, self.count)
        return self.count if at < 0 else at


class MemorySegment(Segment):
    """A run in memory: the newest records of a topic, or all of them if there is no data directory."""

    __slots__ = ("_packed", "columns", "opened_ms", "rendered")

    def __init__(self, first: int, *, opened_ms: int = 0, columns: Columns | None = None) -> None:
        super().__init__(first)
        self.columns = Columns(first) if columns is None else columns
        self.rendered: bytearray | bytes | memoryview = bytearray()  # the first while the segment grows
        self.opened_ms = opened_ms
        self._packed: bytes | None = None  # the file, until it is decoded

    def __getattr__(self, name: str) -> Any:
        """Decode the file that has `columns`, `rendered` or `_marks`: most topics of a start are not used soon."""
        with _unpacking:
            data: bytes | None = object.__getattribute__(self, "_packed")
            if data is not None:
                _, columns, rendered, flags = codec.decode(data, path="")
                self.rendered, self._marks = bytearray(rendered), codec.decode_flags(flags)
                self.columns, self._packed = growable(columns), None
        return object.__getattribute__(self, name)

    def read(self, low: int, high: int) -> bytes:
        offsets = self.columns.offsets
        return bytes(memoryview(self.rendered)[offsets[low] : offsets[high]])

    @classmethod
    def from_bytes(
        cls, data: bytes, *, path: str, opened_ms: int, harmless: list[str] | None = None,
        footer: codec.Footer | None = None,
    ) -> MemorySegment:  # fmt: skip
        """Check a file, and return a segment that can grow again. Raise `Corrupt`.

        `footer` is the result of `codec.check`, if that was called. Damage that loses no record is added to `harmless`.
        """
        footer = footer or codec.check(data, path=path)
        segment = cls.__new__(cls)
        segment.first, segment.count, segment.min_ts, segment.max_ts = footer[3:7]
        segment.opened_ms, segment._packed, segment._holes = opened_ms, data, _NO_HOLES
        segment.live, segment.live_bytes = footer.count, footer.data_bytes
        if harmless is not None and not data.startswith(codec.MAGIC):
            harmless.append("the first bytes of a segment are damaged")
        if not codec.all_live(data, footer):
            segment.live, segment.live_bytes = segment.live_within(0, footer.count)
            if harmless is not None and codec.damaged_flags(codec.flags_of(data, footer)):
                harmless.append("a flag byte is damaged")
        return segment

    def drop_uncounted(self) -> None:
        """Remove what a failed append has left behind the counted records."""
        columns, n = self.columns, self.count
        names = {"tag_names": len(columns.tag_names), "node_names": len(columns.node_names)}
        self.columns = growable(first_of(columns, n, **names))
        self.rendered = bytearray(self.rendered[: self.columns.offsets[n]])

    def holds_alone(self, blob: bytes | memoryview, n: int, ts: int) -> None:
        """Add the bytes of the only `n` records without a copy. The segment must not grow any more."""
        assert not self.count, "the segment has other records"
        self.grew(b"", n, ts)
        self.rendered, self.live_bytes = blob, len(blob)

    def grew(self, blob: bytes, n: int, ts: int) -> None:
        """Add the bytes of `n` records that `columns.extend` has added."""
        self.rendered += blob  # type: ignore[operator]
        if not self.count:
            self.min_ts = ts
        self.max_ts = ts
        self.count += n
        self.live += n
        self.live_bytes += len(blob)
        if self._marks is not None:
            self._marks.extend(bytes(n))
