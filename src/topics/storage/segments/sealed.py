"""Sealed segments at run time: a run of records in a file.

A sealed segment keeps only a few numbers in memory and, once loaded, its marks. Its columns are loaded on demand and
dropped when the cache needs the space. Its data is read from the file. A call that would have to wait for the disk
raises `Cold` instead, see `cold.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from weakref import ref

import numpy as np
import numpy.typing as npt

from topics import logs
from topics.errors import Corrupt
from topics.storage.segments import codec
from topics.storage.segments.cold import Cold, Need
from topics.storage.segments.columns import Columns, runs
from topics.storage.segments.marks import FEW, Positions, UnsavedMarks, marked_positions, put_marks
from topics.storage.segments.segment import Damaged, HeldRange, MemorySegment, Rendered
from topics.storage.segments.segment_caches import Loaded, SegmentCaches, SegmentFile, part_of
from topics.storage.snapshot import SegmentRef

LARGE_INDEX_BYTES = 4 << 20
MAX_RUNS = 2048  # a view has 200 bytes
_NO_RUNS: tuple[int, list[memoryview]] = (-1, [])
SMALL_INDEX_BYTES = 64 << 10  # the same limit for `look`, which visits many segments

_FLAG_OF_MARK = bytes((codec.LIVE, codec.DELETED, codec.LOST)).ljust(256, b"\0")

T = TypeVar("T")

log = logs.Log("segments")


class Fetched:
    """The result of a fetch for a read: bytes [start, stop) of the data, or a value. It lasts as long as its hold."""

    __slots__ = ("__weakref__", "start", "stop", "value")

    def __init__(self, value: Any, start: int = 0, stop: int = 0) -> None:
        self.value = value
        self.start = start
        self.stop = stop

    def cut(self, start: int, stop: int) -> Rendered:
        """Return the part [start, stop) of the data."""
        if (start, stop) == (self.start, self.stop):
            found: Rendered = self.value
            return found
        return part_of(self.value, start - self.start, stop - self.start)


class HeldFetches(dict[Hashable, ref[Fetched]]):
    """Results of fetches by key. Reads find each while a hold keeps it in memory."""

    __slots__ = ()

    def find(self, key: Hashable) -> Fetched | None:
        found = self.get(key)
        return None if found is None else found()

    def keep(self, key: Hashable, fetched: Fetched) -> Fetched:
        def forget(dead: ref[Fetched]) -> None:
            if self.get(key) is dead:
                self.pop(key, None)

        self[key] = ref(fetched, forget)
        return fetched


class SealedSegment(SegmentFile):
    """A run of records in a file. The store writes new marks to the file, see `save_marks`."""

    __slots__ = (
        "_damage", "_fetched", "_held", "_marks_known", "_pending", "_runs", "_unsaved",
    )  # fmt: skip

    def __init__(
        self,
        caches: SegmentCaches,
        path: str,
        footer: codec.Footer,
        *,
        live: int,
        live_bytes: int,
        pending: bytes = b"",
    ) -> None:
        super().__init__(caches, path, footer)
        self.live = live
        self.live_bytes = live_bytes
        self._held: ref[Loaded] | None = None  # the columns, also while only a `Hold` keeps them in memory
        self._fetched = HeldFetches()
        self._marks_known = live == footer.count and not pending
        self._pending = pending  # packed marks that a snapshot has and the file may lack
        # The marks that the file may lack; None if it lacks none.
        self._unsaved = UnsavedMarks(self.count, marked_positions(pending)) if pending else None
        self._runs = _NO_RUNS  # for so many records that are not live: see `runs_lent`
        self._damage: Damaged | None = None  # found by a load on another thread; the next read raises it

    @classmethod
    def of(cls, caches: SegmentCaches, path: str, known: SegmentRef) -> SealedSegment:
        """Return the segment that a snapshot refers to."""
        footer, pending = codec.Footer(*known.footer), known.pending
        segment = cls(caches, path, footer, live=known.live, live_bytes=known.live_bytes, pending=pending)
        segment.cold = known.cold
        return segment

    def snapshot_ref(self) -> SegmentRef:
        """Return what a snapshot has of the segment."""
        pending = self.unsaved_marks()
        return SegmentRef(self.first, self.count, self.live, self.live_bytes, self.footer, self.cold, pending)

    @classmethod
    def adopt(cls, caches: SegmentCaches, path: str, footer: codec.Footer, was: MemorySegment) -> SealedSegment:
        """Return the sealed segment for a memory segment that was just written to a file, with the marks made since."""
        sealed = cls(caches, path, footer, live=was.live, live_bytes=was.live_bytes)
        sealed._marks = was._marks
        sealed._marks_known = True
        if was._marks is not None:
            sealed._unsaved = UnsavedMarks(was.count, np.flatnonzero(np.frombuffer(was._marks, np.uint8)))
        return sealed

    def rewritten(self, path: str, footer: codec.Footer, written: bytearray) -> SealedSegment:
        """Return the segment in a new file that has the marks `written`, and no bytes for the records with a mark."""
        sealed = SealedSegment(self._caches, path, footer, live=self.live, live_bytes=self.live_bytes)
        sealed.cold = self.cold
        if self._marks_known and self._marks is not None:  # else none was made since it was loaded
            sealed._marks, sealed._marks_known = self._marks, True
            later = np.frombuffer(self._marks, np.uint8) != np.frombuffer(written, np.uint8)
            if later.any():
                sealed._unsaved = UnsavedMarks(self.count, np.flatnonzero(later))
        return sealed

    @property
    def columns(self) -> Columns:  # type: ignore[override]
        loaded = self.loaded
        if loaded is None:
            loaded = self._load(wait=False)
        return loaded.columns

    @property
    def marks(self) -> bytearray | None:
        if not self._marks_known:
            self._load_marks(wait=False)
        return self._marks

    def look(self, key: Hashable, compute: Callable[[Columns, bytearray | None], T]) -> T:
        if (found := self._fetched.find(key)) is not None:
            value: T = found.value
            return value
        loaded = self.resident
        if loaded is None and self._index_bytes <= SMALL_INDEX_BYTES:
            with suppress(Cold):
                loaded = self._load(wait=False)
        if loaded is not None:
            return compute(loaded.columns, self._marks)
        if self._damage is not None and self._damage.whole:
            raise self._damage

        def fetch() -> object:
            found = self._fetched.find(key)
            if found is None:
                loaded = self._load(wait=True)
                found = self._fetched.keep(key, Fetched(compute(loaded.columns, self._marks)))
            return found

        raise Cold([self._need(key, self.count // 8, fetch)])

    @property
    def in_memory(self) -> bool:
        return self.resident is not None

    @property
    def resident(self) -> Loaded | None:
        """The columns, if they and the marks are in memory. They stay in memory while this object is referenced."""
        if not self._marks_known:
            return None
        return self.loaded or (None if self._held is None else self._held())

    def mark_deleted(self, low: int, taken: npt.NDArray[np.uint8], *, count: int, size_bytes: int) -> None:
        super().mark_deleted(low, taken, count=count, size_bytes=size_bytes)
        self._unsaved = self._unsaved or UnsavedMarks(self.count)
        self._unsaved.add_taken(low, taken)

    def mark(self, positions: Sequence[int] | Positions, value: int) -> tuple[int, int]:
        result = super().mark(positions, value)
        self._marks_known = True
        self._unsaved = self._unsaved or UnsavedMarks(self.count)
        self._unsaved.add(positions)
        return result

    def unsaved_marks(self) -> bytes:
        """Return the marks that the file may lack, packed as `pack_marks` does."""
        known = self._marks
        if not self._marks_known and self._pending:  # marks that are not loaded are in the file or pending
            known = bytearray(self.count)
            put_marks(known, self._pending)
        if self._unsaved is None or known is None:
            return b""
        return self._unsaved.pack(known)

    def save_marks(self, packed: bytes) -> Callable[[], None]:
        """Return a function that writes these delete marks to the file and syncs it. It blocks: call it on a thread."""
        saved: bytearray | None = None  # the marks that the file has, if all of them are known
        if self._marks_known and self._marks is not None and self._unsaved is not None:
            saved = self._unsaved.left_out_of(self._marks)

        def save() -> None:
            pieces = runs(marked_positions(packed))
            marks = bytearray(self.count) if saved is None else saved
            put_marks(marks, packed)
            if saved is not None and len(pieces) > FEW:
                pieces = [(pieces[0][0], pieces[-1][1])]  # between the pieces, the file already has these flags
            flags = marks.translate(_FLAG_OF_MARK)
            file = self._open()
            for first, last in pieces:
                file.pwrite(bytes(flags[first : last + 1]), self.footer.flags_at + first)
            file.datasync()

        return save

    def saved(self, packed: bytes) -> None:
        """Note that the file has these marks."""
        if self._unsaved is not None and not self._unsaved.remove(packed):
            self._unsaved = None

    def read(self, low: int, high: int) -> Rendered:
        if self._damage is not None:
            damage, self._damage = self._damage, None
            raise damage
        loaded = self.loaded or self._load(wait=False)
        offsets = loaded.columns.offsets
        start, stop = offsets[low], offsets[high]
        if self._fetched and (fetched := self._fetched.find((start, stop))) is not None:
            return fetched.cut(start, stop)
        found = self._data(loaded, start, stop, wait=False)
        if found is None:
            raise Cold([self.need(low, high)])
        return found

    def read_held(self, low: int, high: int) -> HeldRange | None:
        loaded = self.resident
        if loaded is None:
            return None
        offsets = loaded.columns.offsets
        start, stop = offsets[low], offsets[high]
        for found in [fetched() for fetched in list(self._fetched.values())]:
            if found is not None and found.start <= start < found.stop:
                upto = high if stop <= found.stop else bisect_right(offsets, found.stop, low, high) - 1
                if upto > low:
                    return HeldRange(found.cut(start, offsets[upto]), upto, bisect_left(offsets, found.start))
        return None

    def need(self, low: int, high: int, *, at_least_bytes: int = 0, max_bytes: int | None = None) -> Need:
        """Return the need for the data of [low, high), extended to `at_least_bytes` and limited to `max_bytes`."""
        loaded = self.loaded
        if loaded is None:  # an estimate: the columns have the exact size, and they are fetched with the data
            size_bytes = self.footer.data_bytes * (high - low) // self.count + self._index_bytes
        else:
            size_bytes = loaded.columns.offsets[high] - loaded.columns.offsets[low]
        return self._need(
            (low, high, max_bytes),
            max(size_bytes if max_bytes is None else min(size_bytes, max_bytes), at_least_bytes),
            lambda: self._fetch(low, high, at_least_bytes, max_bytes),
        )

    def _need(self, key: Hashable, size_bytes: int, load: Callable[[], object]) -> Need:
        def load_safely() -> object:
            try:
                return load()
            except Damaged as damage:
                self._damage = damage
            except OSError:
                if not self.gone:
                    raise
            return None  # the next read raises the damage, or the segment no longer exists

        return Need((self, key), size_bytes, load=load_safely, trim=self._caches.trim)

    def lend(self, low: int, high: int) -> Rendered:
        loaded = self.loaded
        if loaded is not None and self._damage is None:
            offsets = loaded.columns.offsets
            start, stop = offsets[low], offsets[high]
            if loaded.has_verified(start, stop, self._caches.period):
                try:  # `suppress` would cost every read half a microsecond
                    lent = self._open().lend(stop - start, codec.HEADER_BYTES + start)
                except OSError:
                    lent = None  # `read` finds out what it means
                if lent is not None:
                    return lent
        return self.read(low, high)

    def runs_lent(self) -> list[memoryview]:
        dead, at, _, bounds = self.holes()
        if self._runs[0] != dead and len(at) <= MAX_RUNS and (view := self._open().view()) is not None:
            view = view[codec.HEADER_BYTES :]
            self._runs = dead, [view[bounds[n] : bounds[n + 1]] for n in range(1, 2 * len(at) - 1, 2)]
        return self._runs[1] if self._runs[0] == dead else []

    def forget_holes(self) -> None:
        super().forget_holes()
        self._runs = _NO_RUNS

    def _fetch(self, low: int, high: int, at_least_bytes: int, max_bytes: int | None) -> object:
        """Fetch the data that `need` describes, and the columns. Block until done."""
        loaded = self._load(wait=True)
        offsets = loaded.columns.offsets
        start = offsets[low]
        if max_bytes is not None and offsets[high] - start > max_bytes:
            high = max(bisect_right(offsets, start + max_bytes, low, high) - 1, low + 1)
        if offsets[high] - start < at_least_bytes:
            high = max(bisect_right(offsets, start + at_least_bytes, high, self.count + 1) - 1, high)
        stop = offsets[high]
        found = self._fetched.find((start, stop))
        if found is None:
            data = self._data(loaded, start, stop, wait=True)
            assert data is not None
            found = self._fetched.keep((start, stop), Fetched(data, start, stop))
        return loaded, found

    # --- columns and marks

    def _load(self, *, wait: bool) -> Loaded:
        if self._damage is not None and self._damage.whole:
            raise self._damage
        loaded = self.loaded
        if loaded is None and self._held is not None:
            loaded = self._held()
        if loaded is not None and self._marks_known:
            return loaded
        # A large index is decoded on a thread even if the page cache has it.
        whole = wait or self._index_bytes <= LARGE_INDEX_BYTES
        block = self._read(self._index_bytes, self.footer.sums_at, wait=wait) if whole else None
        if block is None:
            raise Cold([self._need("columns", self._index_bytes, lambda: self._load(wait=True))])
        footer = self.footer
        index_end = footer.flags_at - footer.sums_at
        try:
            block = bytes(block)
            sums, columns = codec.decode_index(block[:index_end], footer, path=self.path)
        except Corrupt as cause:
            raise Damaged(self, 0, self.count, cause, whole=True) from cause
        self._learn_marks(block[index_end:])
        loaded = Loaded(sums, columns, len(block))
        self._held = ref(loaded)
        self.loaded = loaded
        self._caches.keep(self, len(block))
        if not wait:
            self._caches.trim()
        return loaded

    def _load_marks(self, *, wait: bool) -> object:
        """Load the marks from the file without the columns. They stay in memory."""
        if self._damage is not None and self._damage.whole:
            raise self._damage
        block = self._read(self.count, self.footer.flags_at, wait=wait)
        if block is not None and len(block) < self.count:
            return self._load(wait=wait)  # the file is truncated: the index says how much is left
        if block is None:
            raise Cold([self._need("marks", self.count, lambda: self._load_marks(wait=True))])
        self._learn_marks(bytes(block))
        return None

    def _learn_marks(self, flags: bytes) -> None:
        """Take the marks from the flags of the file, once: after that the marks in memory are newer."""
        with self._caches.marks_lock:
            if self._marks_known:
                return
            marks = codec.decode_flags(flags)
            if marks is not None and (bad := codec.damaged_flags(flags)):
                seqs = ", ".join(str(self.first + at) for at in bad)
                log.error("flags_damaged", file=self.path, offset=self.footer.flags_at + bad[0], seqs=seqs)
            if self._pending and marks is None:
                marks = bytearray(self.count)
            if marks is not None:
                put_marks(marks, self._pending)
            self._marks = marks
            self._marks_known = True
