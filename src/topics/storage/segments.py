"""Segments at run time: one that lives in memory, one that lives in a file, and what both can tell.

A sealed segment keeps nothing resident but a few numbers. Its columns are loaded when first needed and dropped again
when others need the room; its data is read from the file. Neither is done where it would make the caller wait for a
disk: then `Cold` is raised with the work to do, to be run where waiting is allowed, and the caller asks again.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable, Iterable
from threading import Lock

import numpy as np
import numpy.typing as npt

from topics import logs
from topics.errors import Corrupt
from topics.storage import segment as codec
from topics.storage.columns import Columns, growable, runs
from topics.storage.fs import File, Fs

FETCHED_BYTES = 64 << 20
OPEN_FILES = 512  # of sealed segments, kept open
Rendered = bytes | memoryview  # of records: as they came from a file, without another copy, or out of memory

log = logs.Log("segments")


class Cold(Exception):
    """The answer needs bytes that are not in memory. `load` fetches them; it may block, and may raise `Corrupt`."""

    def __init__(self, load: Callable[[], None]) -> None:
        super().__init__("needs the disk")
        self.load = load


class Damaged(Exception):
    """A range of a segment cannot be read back; `low` and `high` are positions in it, high exclusive.

    `whole` says that not even the columns are there: nothing is known of the segment but its range of seqs.
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


class Segment:
    """What is common: where the run lies in the topic, and which of its records are still live."""

    __slots__ = ("_marks", "count", "first", "live", "live_bytes", "max_ts", "min_ts")

    def __init__(self, first: int) -> None:
        self.first = first
        self.count = 0
        self.live = 0
        self.live_bytes = 0
        self.min_ts = 0
        self.max_ts = 0
        self._marks: bytearray | None = None  # 0 live, 1 deleted, 2 lost; None while all are live

    @property
    def end(self) -> int:
        """The seq after its last record."""
        return self.first + self.count

    columns: Columns  # of a sealed one: loaded when it is asked for

    @property
    def marks(self) -> bytearray | None:
        return self._marks

    def read(self, low: int, high: int) -> Rendered:
        """The rendered records at positions [low, high), a comma after each."""
        raise NotImplementedError

    def lend(self, low: int, high: int) -> Rendered:
        """The same for system calls and nobody else: where it lies in a file, if possible."""
        return self.read(low, high)

    def mark(self, positions: Iterable[int], value: int) -> tuple[int, int]:
        """Takes the live ones among `positions` out for good; how many, and their bytes."""
        marks = self.marks
        if marks is None:
            marks = self._marks = bytearray(self.count)
        offsets = self.columns.offsets
        gone = gone_bytes = 0
        for at in positions:
            if not marks[at]:
                marks[at] = value
                gone += 1
                gone_bytes += offsets[at + 1] - offsets[at]
        self.live -= gone
        self.live_bytes -= gone_bytes
        return gone, gone_bytes

    def live_within(self, low: int, high: int) -> tuple[int, int]:
        """How many records at [low, high) are live, and their bytes."""
        offsets = self.columns.offsets
        size = offsets[high] - offsets[low]
        marks = self.marks
        if marks is None:
            return high - low, size
        dead = np.flatnonzero(np.frombuffer(marks, np.uint8)[low:high]) + low
        ends = np.frombuffer(offsets, np.uint32)
        return high - low - len(dead), size - int((ends[dead + 1].astype(np.int64) - ends[dead]).sum())

    def live_positions(self, low: int, high: int) -> npt.NDArray[np.intp]:
        marks = self.marks
        if marks is None:
            return np.arange(low, high)
        return np.flatnonzero(np.frombuffer(marks, np.uint8)[low:high] == 0) + low

    def first_live(self, low: int) -> int:
        """The first live position from `low` on; `count` if there is none."""
        marks = self.marks
        if marks is None:
            return low
        at = marks.find(0, low, self.count)
        return self.count if at < 0 else at


class MemorySegment(Segment):
    """A run held in memory: the open end of a topic, or all of it where there is no data directory."""

    __slots__ = ("columns", "opened_ms", "rendered")

    def __init__(self, first: int, *, opened_ms: int = 0) -> None:
        super().__init__(first)
        self.columns = Columns(first)
        self.rendered = bytearray()
        self.opened_ms = opened_ms

    def read(self, low: int, high: int) -> bytes:
        offsets = self.columns.offsets
        return bytes(memoryview(self.rendered)[offsets[low] : offsets[high]])

    @classmethod
    def from_bytes(cls, data: bytes, *, path: str, opened_ms: int, harmless: list[str] | None = None) -> MemorySegment:
        """A segment as `segment.encode` wrote it, able to grow again. Raises `Corrupt`.

        Damage that costs no record is told in `harmless`.
        """
        footer = codec.decode_footer(data[-codec.FOOTER_BYTES :], path=path, file_bytes=len(data))
        sums, columns = codec.decode_index(data[footer.sums_at : footer.flags_at], footer, path=path)
        rendered = data[codec.HEADER_BYTES : footer.sums_at]
        for chunk, expected in enumerate(sums):
            at = chunk * codec.CHUNK_BYTES
            if codec.sum64(rendered[at : at + codec.CHUNK_BYTES]) != expected:
                raise Corrupt(path, codec.HEADER_BYTES + at, "a chunk of data does not match its checksum")
        flags = data[footer.flags_at : footer.flags_at + footer.count]
        if harmless is not None and data[: codec.HEADER_BYTES] != codec.MAGIC:
            harmless.append("the first bytes of a segment are damaged")
        if harmless is not None and codec.damaged_flags(flags):
            harmless.append("a flag byte is damaged")
        segment = cls(footer.first, opened_ms=opened_ms)
        segment.columns = growable(columns)
        segment.rendered = bytearray(rendered)
        segment.count, segment.min_ts, segment.max_ts = footer.count, footer.min_ts, footer.max_ts
        segment._marks = codec.decode_flags(flags)
        segment.live, segment.live_bytes = segment.live_within(0, footer.count)
        return segment

    def grew(self, blob: bytes, n: int, ts: int) -> None:
        """Accounts for `n` records that `columns.extend` has taken up."""
        self.rendered += blob
        if not self.count:
            self.min_ts = ts
        self.max_ts = ts
        self.count += n
        self.live += n
        self.live_bytes += len(blob)
        if self._marks is not None:
            self._marks.extend(bytes(n))


class Loaded:
    """The part of a sealed segment that takes memory while it is in use."""

    __slots__ = ("_all_verified", "columns", "size_bytes", "sums", "verified")

    def __init__(self, sums: memoryview, columns: Columns, size_bytes: int) -> None:
        self.sums = sums
        self.columns = columns
        self.verified = bytearray(len(sums))  # a byte a chunk
        self._all_verified = False
        self.size_bytes = size_bytes

    def has_verified(self, start: int, stop: int) -> bool:
        """Whether all chunks of the data bytes [start, stop) were compared with their checksums."""
        if self._all_verified:
            return True
        if self.verified.find(0, start // codec.CHUNK_BYTES, max(start, stop - 1) // codec.CHUNK_BYTES + 1) >= 0:
            return False
        self._all_verified = 0 not in self.verified
        return True


class Shelf:
    """Open files and loaded columns of sealed segments, the least recently used given up first.

    The lock is for the pool threads that load: a load and an eviction may meet.
    """

    def __init__(self, fs: Fs, *, columns_bytes: int = 256 << 20, open_files: int = OPEN_FILES) -> None:
        self.fs = fs
        self._columns_bytes = columns_bytes
        self._open_files = open_files
        self._files: OrderedDict[SealedSegment, File] = OrderedDict()
        self._loaded: OrderedDict[SealedSegment, int] = OrderedDict()
        self._held_bytes = 0
        self.fetched: OrderedDict[tuple[SealedSegment, int, int], Rendered] = OrderedDict()
        self._fetched_bytes = 0
        self._lock = Lock()
        self.retired: list[str] = []  # files that no topic needs any more

    def open(self, segment: SealedSegment) -> File:
        """Its file, for the segment to keep until it is told to `close_file`.

        Reads keep no order of use: a file that was used since it was last looked at is spared once.
        """
        with self._lock:
            try:
                file = self.fs.open(segment.path, write=True)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._files:
                    raise
                self._close_until(0)
                file = self.fs.open(segment.path, write=True)
            self._files[segment] = file
            segment.keep_file(file)
            self._close_until(self._open_files)
            return file

    def _close_until(self, left: int) -> None:
        while len(self._files) > left:
            other, spared = self._files.popitem(last=False)
            if other.file_in_use:
                other.file_in_use, self._files[other] = False, spared
            else:
                other.close_file()

    def forget(self, segment: SealedSegment, moved_to: str | None = None) -> None:
        """Its file is gone, or another one, or elsewhere: whoever needs it next opens it anew."""
        with self._lock:
            self._files.pop(segment, None)
            segment.close_file()
            if moved_to is not None:
                segment.path = moved_to

    def keep(self, segment: SealedSegment, size_bytes: int) -> None:
        with self._lock:
            self._held_bytes += size_bytes - self._loaded.pop(segment, 0)
            self._loaded[segment] = size_bytes
            while self._held_bytes > self._columns_bytes and len(self._loaded) > 1:
                other, freed = self._loaded.popitem(last=False)
                self._held_bytes -= freed
                other.unload()

    def drop(self, segment: SealedSegment) -> None:
        with self._lock:
            self._held_bytes -= self._loaded.pop(segment, 0)
            segment.unload()
            for key in [key for key in self.fetched if key[0] is segment]:
                self._fetched_bytes -= len(self.fetched.pop(key))

    def hold(self, segment: SealedSegment, start: int, stop: int, data: Rendered) -> None:
        """Keeps data that was fetched off the loop for the read that asked for it.

        There is room for more than one read can want, or a read that needs two pieces could wait for ever for the
        other.
        """
        with self._lock:
            self._fetched_bytes += len(data) - len(self.fetched.pop((segment, start, stop), b""))
            self.fetched[segment, start, stop] = data
            while self._fetched_bytes > FETCHED_BYTES and len(self.fetched) > 1:
                self._fetched_bytes -= len(self.fetched.popitem(last=False)[1])


class SealedSegment(Segment):
    """A run in a file. Marks are written through to the file by whoever calls `take_unsaved`."""

    __slots__ = (
        "_damage", "_file", "_loaded", "_marks_known", "_pending", "_shelf", "_unsaved",
        "cold", "file_in_use", "footer", "path",
    )  # fmt: skip

    def __init__(
        self,
        shelf: Shelf,
        path: str,
        footer: codec.Footer,
        *,
        live: int,
        live_bytes: int,
        pending: list[tuple[int, int]] | None = None,
    ) -> None:
        super().__init__(footer.first)
        self.count = footer.count
        self.live = live
        self.live_bytes = live_bytes
        self.min_ts = footer.min_ts
        self.max_ts = footer.max_ts
        self.path = path
        self.footer = footer
        self._shelf = shelf
        self._loaded: Loaded | None = None
        self._file: File | None = None
        self.file_in_use = False  # since the shelf last looked
        self.cold = False  # whether the file lives in the cold folder
        self._marks_known = live == footer.count and not pending
        self._pending = pending or []  # marks that a snapshot knows and the file may lack
        self._unsaved = {at for at, _ in self._pending}
        self._damage: Damaged | None = None  # found by a load elsewhere, told to the next reader here

    @classmethod
    def adopt(cls, shelf: Shelf, path: str, footer: codec.Footer, was: MemorySegment) -> SealedSegment:
        """The file-backed successor of a segment that was just written out; marks made meanwhile come along."""
        sealed = cls(shelf, path, footer, live=was.live, live_bytes=was.live_bytes)
        sealed._marks = was._marks
        sealed._marks_known = True
        if was._marks is not None:
            sealed._unsaved = {at for at, mark in enumerate(was._marks) if mark}
        return sealed

    @property
    def columns(self) -> Columns:  # type: ignore[override]
        loaded = self._loaded
        if loaded is None:
            loaded = self._load(wait=False)
        return loaded.columns

    @property
    def marks(self) -> bytearray | None:
        if not self._marks_known:
            self._load(wait=False)
        return self._marks

    def mark(self, positions: Iterable[int], value: int) -> tuple[int, int]:
        wanted = list(positions)
        result = super().mark(wanted, value)
        self._marks_known = True
        self._unsaved.update(wanted)
        return result

    @property
    def marks_if_known(self) -> bytearray | None:
        """Marks as far as they are in memory; those not loaded yet are all in the file, or still pending."""
        if self._marks_known or not self._pending:
            return self._marks
        marks = bytearray(self.count)
        for at, mark in self._pending:
            marks[at] = mark
        return marks

    @property
    def unsaved(self) -> list[int]:
        """Positions whose mark the file may lack."""
        return sorted(self._unsaved)

    def save_marks(self, positions: list[int]) -> Callable[[], None]:
        """Work that writes the marks at `positions` into the file and syncs it. Blocks: run it where that may be."""
        marks, at = self.marks_if_known, self.footer.flags_at
        disk = (codec.LIVE, codec.DELETED, codec.LOST)
        assert marks is not None
        writes = [(at + first, bytes(disk[marks[position]] for position in range(first, last + 1)))
                  for first, last in runs(np.asarray(positions, np.intp))]  # fmt: skip

        def save() -> None:
            file = self._open()
            for offset, flags in writes:
                file.pwrite(flags, offset)
            file.datasync()

        return save

    def saved(self, positions: list[int]) -> None:
        self._unsaved.difference_update(positions)

    def read(self, low: int, high: int) -> Rendered:
        if self._damage is not None:
            damage, self._damage = self._damage, None
            raise damage
        loaded = self._loaded or self._load(wait=False)
        offsets = loaded.columns.offsets
        start, stop = offsets[low], offsets[high]
        fetched = self._shelf.fetched
        found = fetched.get((self, start, stop)) if fetched else None
        if found is None:
            found = self._data(loaded, start, stop, wait=False)
        if found is None:
            raise Cold(lambda: self._fetch(low, high))
        return found

    def lend(self, low: int, high: int) -> Rendered:
        loaded = self._loaded
        if loaded is not None and self._damage is None:
            offsets = loaded.columns.offsets
            start, stop = offsets[low], offsets[high]
            if loaded.has_verified(start, stop):
                lent = self._open().lend(stop - start, codec.HEADER_BYTES + start)
                if lent is not None:
                    return lent
        return self.read(low, high)

    def check(self) -> None:
        """Reads everything once and compares every checksum; raises `Corrupt` or `Damaged`."""
        loaded = self._load(wait=True)
        flags = self._open().pread(self.count, self.footer.flags_at)
        if bad := codec.damaged_flags(flags):
            raise Damaged(
                self, bad[0], bad[-1] + 1, Corrupt(self.path, self.footer.flags_at + bad[0], "a flag byte is damaged")
            )
        for chunk in range(len(loaded.sums)):
            start = chunk * codec.CHUNK_BYTES
            self._data(loaded, start, min(start + codec.CHUNK_BYTES, self.footer.data_bytes), wait=True)

    def unload(self) -> None:
        self._loaded = None

    def keep_file(self, file: File) -> None:
        self._file, self.file_in_use = file, True

    def close_file(self) -> None:
        self._file = None  # closed when its last reader lets go of it

    def _open(self) -> File:
        file = self._file
        if file is None:
            return self._shelf.open(self)
        self.file_in_use = True
        return file

    def moved(self, path: str) -> None:
        """The file now lives at `path`."""
        self._shelf.forget(self, moved_to=path)

    def release(self) -> None:
        """The segment is gone: nothing of it stays in memory, and its file may go."""
        self._shelf.drop(self)
        self._shelf.forget(self)
        self._shelf.retired.append(self.path)

    def _fetch(self, low: int, high: int) -> None:
        try:
            loaded = self._load(wait=True)
            start, stop = loaded.columns.offsets[low], loaded.columns.offsets[high]
            block = self._data(loaded, start, stop, wait=True)
        except Damaged as damage:
            self._damage = damage
            return
        assert block is not None
        self._shelf.hold(self, start, stop, block)

    def _load(self, *, wait: bool) -> Loaded:
        if self._damage is not None and self._damage.whole:
            raise self._damage
        loaded = self._loaded
        if loaded is not None and self._marks_known:
            return loaded
        block = self._index_block(wait=wait)
        if block is None:
            raise Cold(self._load_waiting)
        footer = self.footer
        index_end = footer.flags_at - footer.sums_at
        try:
            sums, columns = codec.decode_index(block[:index_end], footer, path=self.path)
        except Corrupt as cause:
            raise Damaged(self, 0, self.count, cause, whole=True) from cause
        if not self._marks_known:
            self._marks = codec.decode_flags(block[index_end:])
            if self._marks is not None and (bad := codec.damaged_flags(block[index_end:])):
                seqs = ", ".join(str(self.first + at) for at in bad)
                log.error("flags_damaged", file=self.path, offset=footer.flags_at + bad[0], seqs=seqs)
            if self._pending and self._marks is None:
                self._marks = bytearray(self.count)
            for at, mark in self._pending:
                self._marks[at] = mark  # type: ignore[index]
            self._marks_known = True
        loaded = self._loaded = Loaded(sums, columns, len(block))
        self._shelf.keep(self, len(block))
        return loaded

    def _load_waiting(self) -> None:
        try:
            self._load(wait=True)
        except Damaged as damage:
            self._damage = damage

    def _index_block(self, *, wait: bool) -> bytes | None:
        """Everything between data and footer; None if that would wait."""
        footer = self.footer
        size = footer.flags_at - footer.sums_at + footer.count
        try:
            file = self._open()
        except FileNotFoundError as missing:
            if self.cold:
                raise  # its folder may not be there at the moment, which is no loss
            raise Damaged(self, 0, self.count, Corrupt(self.path, 0, "the file is missing"), whole=True) from missing
        if wait:
            return file.pread(size, footer.sums_at)
        found = file.try_pread(size, footer.sums_at)
        return None if found is None else bytes(found)

    def _data(self, loaded: Loaded, start: int, stop: int, *, wait: bool) -> Rendered | None:
        """Data bytes [start, stop), each chunk checked the first time it is read; None if that would wait."""
        file = self._open()
        take = file.pread if wait else file.try_pread
        if loaded.has_verified(start, stop):
            found = take(stop - start, codec.HEADER_BYTES + start)
            if found is None or len(found) == stop - start:
                return found
            # Somebody cut the file short since it was checked: what is left of it has to be told from what is not.
        first, last = start // codec.CHUNK_BYTES, max(start, stop - 1) // codec.CHUNK_BYTES
        low, high = first * codec.CHUNK_BYTES, min((last + 1) * codec.CHUNK_BYTES, self.footer.data_bytes)
        block = take(high - low, codec.HEADER_BYTES + low)
        if block is None:
            return None
        self._verify(loaded, block, first, last)
        return block[start - low : stop - low]

    def _verify(self, loaded: Loaded, block: Rendered, first: int, last: int) -> None:
        for chunk in range(first, last + 1):
            low = (chunk - first) * codec.CHUNK_BYTES
            if codec.sum64(block[low : low + codec.CHUNK_BYTES]) != loaded.sums[chunk]:
                start = chunk * codec.CHUNK_BYTES
                offsets = np.frombuffer(loaded.columns.offsets, np.uint32)
                low_at = int(np.searchsorted(offsets, start, "right")) - 1
                high_at = int(np.searchsorted(offsets, start + codec.CHUNK_BYTES, "left"))
                cause = Corrupt(self.path, codec.HEADER_BYTES + start, "a chunk of data does not match its checksum")
                raise Damaged(self, low_at, min(high_at, self.count), cause)
            loaded.verified[chunk] = 1
