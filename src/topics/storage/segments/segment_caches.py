"""The files of sealed segments, and bounded caches of the open ones and of loaded columns.

The caches drop their oldest entries first.
"""

from __future__ import annotations

import errno
import posixpath
from collections import OrderedDict
from threading import Lock

from topics.errors import Corrupt
from topics.storage.data_layout import holds_topics
from topics.storage.fs import File, Fs, absence
from topics.storage.segments import codec
from topics.storage.segments.columns import Columns
from topics.storage.segments.segment import Damaged, Rendered, Segment

OPEN_FILES = 512  # of sealed segments, kept open
SMALL_PART = 4  # a part this many times smaller than its block is copied, so that the block can be freed


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


class SegmentFile(Segment):
    """The file of a sealed segment. The caches decides how long `file` stays open and `loaded` stays in memory."""

    __slots__ = ("_caches", "cold", "file", "footer", "gone", "loaded", "path")

    def __init__(self, caches: SegmentCaches, path: str, footer: codec.Footer) -> None:
        super().__init__(footer.first)
        self.count, self.min_ts, self.max_ts = footer.count, footer.min_ts, footer.max_ts
        self.path = path
        self.footer = footer
        self._caches = caches
        self.loaded: Loaded | None = None
        self.gone = False  # whether `release` was called: the file may be removed at any time
        self.file: File | None = None  # the last reader closes it
        self.cold = False  # whether the file is in the cold folder

    def unload(self) -> None:
        """Free the columns, and what follows from them."""
        self.loaded = None
        self.forget_holes()

    def _open(self) -> File:
        return self.file or self._caches.open(self)

    def release(self) -> None:
        """Free the memory of the segment, and let its file be removed."""
        self.gone = True
        self._caches.drop(self)
        self._caches.forget(self)
        self._caches.retired.append(self.path)

    @property
    def _index_bytes(self) -> int:
        return self.footer.flags_at - self.footer.sums_at + self.count

    def _read(self, size: int, at: int, *, wait: bool) -> Rendered | None:
        """Return bytes of the file. Raise `Damaged` if it is missing, and OSError if it cannot be read now.

        Without `wait`, return None if they are not in memory, or if the disk has to be asked what is wrong.
        """
        try:
            file = self._open()
            return file.pread(size, at) if wait else file.try_pread(size, at)
        except OSError as error:
            folder = posixpath.dirname(posixpath.dirname(self.path))  # if it is not mounted, nothing in it is lost
            lost = not self.cold or (wait and holds_topics(self._caches.fs, folder))
            if isinstance(error, FileNotFoundError) and lost:
                cause = Corrupt(self.path, 0, absence(error))
                raise Damaged(self, 0, self.count, cause, whole=True) from error
            if wait:
                raise
            return None

    def _data(self, loaded: Loaded, start: int, stop: int, *, wait: bool) -> Rendered | None:
        """Return the data bytes [start, stop), or None if that would wait. Check each chunk once per period."""
        if loaded.has_verified(start, stop, self._caches.period):
            found = self._read(stop - start, codec.HEADER_BYTES + start, wait=wait)
            if found is None or len(found) == stop - start:
                return found
            # The file was truncated after the check: read it chunk by chunk to find out which records are left.
        first, last = start // codec.CHUNK_BYTES, max(start, stop - 1) // codec.CHUNK_BYTES
        if loaded.damaged and (damaged := loaded.damaged.intersection(range(first, last + 1))):
            raise self._damaged(loaded, min(damaged))  # known already, and nothing of it has to be fetched again
        low, high = first * codec.CHUNK_BYTES, min((last + 1) * codec.CHUNK_BYTES, self.footer.data_bytes)
        block = self._read(high - low, codec.HEADER_BYTES + low, wait=wait)
        if block is None:
            return None
        self._verify(loaded, block, first, last)
        return part_of(block, start - low, stop - low)

    def _verify(self, loaded: Loaded, block: Rendered, first: int, last: int) -> None:
        for chunk in range(first, last + 1):
            low = (chunk - first) * codec.CHUNK_BYTES
            if codec.sum64(block[low : low + codec.CHUNK_BYTES]) != loaded.sums[chunk]:
                loaded.damaged.add(chunk)
                raise self._damaged(loaded, chunk)
            loaded.verified[chunk] = 1

    def _damaged(self, loaded: Loaded, chunk: int) -> Damaged:
        """Return the damage of a chunk, with the range of all records in it."""
        start = chunk * codec.CHUNK_BYTES
        cause = Corrupt(self.path, codec.HEADER_BYTES + start, "a chunk of data does not match its checksum")
        return Damaged(self, *loaded.columns.records_in(start, start + codec.CHUNK_BYTES), cause)


def part_of(block: Rendered, low: int, high: int) -> Rendered:
    """Return a part of the block: a view of it, or a copy if the part is small, so that the block can be freed."""
    if (high - low) * SMALL_PART < len(block):
        return bytes(block[low:high])
    return memoryview(block)[low:high]


class SegmentCaches:
    """The caches that all sealed segments share.

    Pool threads add to them, so there are locks. Only `trim` drops columns, on the thread that reads: the columns of a
    segment stay in memory between two accesses of one read.
    """

    def __init__(self, fs: Fs, *, columns_bytes: int = 256 << 20, open_files: int = OPEN_FILES) -> None:
        self.fs = fs
        self._columns_bytes = columns_bytes
        self._open_files = open_files
        self._files: OrderedDict[SegmentFile, File] = OrderedDict()
        self._files_lock = Lock()
        self._loaded: OrderedDict[SegmentFile, int] = OrderedDict()
        self._loaded_lock = Lock()
        self._held_bytes = 0
        self.marks_lock = Lock()  # held while a segment takes its marks from its file
        self.retired: list[str] = []  # files that no topic needs
        self.period = 0  # a new number makes every segment check its data again

    def open(self, segment: SegmentFile) -> File:
        """Open the file of the segment, which keeps it until the cache takes it away: those opened first go first."""
        with self._files_lock:
            try:
                file = self.fs.open(segment.path, write=True)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._files:
                    raise
                self._close_until(0)
                file = self.fs.open(segment.path, write=True)
            self._files[segment] = file
            segment.file = file
            self._close_until(self._open_files)
            return file

    def _close_until(self, left: int) -> None:
        while len(self._files) > left:
            other, _ = self._files.popitem(last=False)
            other.file = None

    def forget(self, segment: SegmentFile, moved_to: str | None = None) -> None:
        """Close the file of the segment, because it was removed, replaced or moved. The next read opens it again."""
        with self._files_lock:
            self._files.pop(segment, None)
            segment.file = None
            if moved_to is not None:
                segment.path = moved_to

    def keep(self, segment: SegmentFile, size_bytes: int) -> None:
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

    def drop(self, segment: SegmentFile) -> None:
        with self._loaded_lock:
            self._held_bytes -= self._loaded.pop(segment, 0)
            segment.unload()
