"""Bounded caches of the open files and loaded columns of sealed segments. The oldest entries are dropped first."""

from __future__ import annotations

import errno
from collections import OrderedDict
from threading import Lock
from typing import Protocol

from topics.storage.fs import File, Fs
from topics.storage.segments import codec
from topics.storage.segments.columns import Columns

OPEN_FILES = 512  # of sealed segments, kept open


class Loaded:
    """The part of a sealed segment that takes memory while it is in use."""

    __slots__ = ("__weakref__", "_all_verified", "_period", "columns", "damaged", "size_bytes", "sums", "verified")

    def __init__(self, sums: memoryview, columns: Columns, size_bytes: int) -> None:
        self.sums = sums
        self.columns = columns
        self.verified = bytearray(len(sums))  # one byte per chunk
        self.damaged: set[int] = set()  # chunks that did not match their checksum
        self._all_verified = False
        self._period = 0  # of the caches in which these comparisons were made
        self.size_bytes = size_bytes

    def has_verified(self, start: int, stop: int, period: int) -> bool:
        """Return whether all chunks of the data bytes [start, stop) were compared with their checksums in `period`."""
        if period != self._period:
            self._all_verified = False
            self.verified[:] = bytes(len(self.verified))
            self._period = period  # last: another thread must not see the new period with the old comparisons
        if self._all_verified:
            return True
        if self.verified.find(0, start // codec.CHUNK_BYTES, max(start, stop - 1) // codec.CHUNK_BYTES + 1) >= 0:
            return False
        self._all_verified = 0 not in self.verified
        return True


class CachedSegment(Protocol):
    """A sealed segment, as the caches use it."""

    path: str
    file_in_use: bool

    def __hash__(self) -> int: ...
    def keep_file(self, file: File) -> None: ...
    def close_file(self) -> None: ...
    def unload(self) -> None: ...


class SegmentCaches:
    """The caches that all sealed segments share.

    Pool threads add to them, so there are locks. Only `trim` drops columns, on the thread that reads: the columns of a
    segment stay in memory between two accesses of one read.
    """

    def __init__(self, fs: Fs, *, columns_bytes: int = 256 << 20, open_files: int = OPEN_FILES) -> None:
        self.fs = fs
        self._columns_bytes = columns_bytes
        self._open_files = open_files
        self._files: OrderedDict[CachedSegment, File] = OrderedDict()
        self._files_lock = Lock()
        self._loaded: OrderedDict[CachedSegment, int] = OrderedDict()
        self._loaded_lock = Lock()
        self._held_bytes = 0
        self.marks_lock = Lock()  # held while a segment takes its marks from its file
        self.retired: list[str] = []  # files that no topic needs
        self.period = 0  # a new number makes every segment check its data again

    def open(self, segment: CachedSegment) -> File:
        """Open the file of the segment, which keeps it until the cache calls `close_file`.

        The cache has no order of use. It spares a file once that was used since the last check.
        """
        with self._files_lock:
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

    def forget(self, segment: CachedSegment, moved_to: str | None = None) -> None:
        """Close the file of the segment, because it was removed, replaced or moved. The next read opens it again."""
        with self._files_lock:
            self._files.pop(segment, None)
            segment.close_file()
            if moved_to is not None:
                segment.path = moved_to

    def keep(self, segment: CachedSegment, size_bytes: int) -> None:
        """Count the loaded columns of the segment. Call `trim` when columns of other segments may be dropped."""
        with self._loaded_lock:
            self._held_bytes += size_bytes - self._loaded.pop(segment, 0)
            self._loaded[segment] = size_bytes

    def trim(self) -> None:
        """Drop the oldest columns until the rest fits, but never the newest."""
        with self._loaded_lock:
            while self._held_bytes > self._columns_bytes and len(self._loaded) > 1:
                other, freed = self._loaded.popitem(last=False)
                self._held_bytes -= freed
                other.unload()

    def drop(self, segment: CachedSegment) -> None:
        with self._loaded_lock:
            self._held_bytes -= self._loaded.pop(segment, 0)
            segment.unload()
