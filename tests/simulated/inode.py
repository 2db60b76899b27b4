"""A simulated file: its current content, its durable content, and the pending writes between them.

Contents are stored as pages. A page that was never written is absent and reads as zeros, so a preallocated file is
cheap. An `Image` shares its pages with its copies until one of them writes, so copying a disk is cheap.
"""

from random import Random
from typing import Literal, NamedTuple

PAGE_BYTES = 4096
SECTOR_BYTES = 512  # the unit that a drive writes atomically

CrashMode = Literal["lose", "tear", "reorder", "zero", "keep"]

_ZEROS = bytes(PAGE_BYTES)


class Image:
    """The content of a file at one moment. The last page has zeros after `size`."""

    __slots__ = ("_pages", "_reserved", "_shared", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pages: dict[int, bytes] = {}
        self._reserved = 0  # pages from the start that have space without being written
        self._shared = False

    def copy(self) -> "Image":
        twin = Image()
        twin.size, twin._pages, twin._reserved = self.size, self._pages, self._reserved
        twin._shared = self._shared = True
        return twin

    def _own_pages(self) -> dict[int, bytes]:
        if self._shared:
            self._pages, self._shared = dict(self._pages), False
        return self._pages

    def read(self, size: int, at: int) -> bytes:
        end = min(at + size, self.size)
        if at >= end:
            return b""
        first, last = at // PAGE_BYTES, (end - 1) // PAGE_BYTES
        pages = [self._pages.get(number, _ZEROS) for number in range(first, last + 1)]
        start = first * PAGE_BYTES
        return b"".join(pages)[at - start : end - start] if last > first else pages[0][at - start : end - start]

    def write(self, data: bytes, at: int) -> None:
        pages = self._own_pages()
        end = at + len(data)
        position = at
        while position < end:
            number, skip = divmod(position, PAGE_BYTES)
            part = data[position - at : position - at + PAGE_BYTES - skip]
            if len(part) < PAGE_BYTES:
                old = pages.get(number, _ZEROS)
                part = old[:skip] + part + old[skip + len(part) :]
            pages[number] = part
            position = (number + 1) * PAGE_BYTES
        self.size = max(self.size, end)

    def resize(self, size: int) -> None:
        if size < self.size:
            keep = pages_of(size)
            self._pages = {number: page for number, page in self._pages.items() if number < keep}
            self._shared = False
            self._reserved = min(self._reserved, keep)
            last, used = divmod(size, PAGE_BYTES)
            if used and last in self._pages:
                self._pages[last] = self._pages[last][:used] + _ZEROS[used:]
        self.size = size

    def reserve(self, size: int) -> None:
        self._reserved = max(self._reserved, pages_of(size))
        self.size = max(self.size, size)

    def has_space(self, page: int) -> bool:
        return page < self._reserved or page in self._pages

    def space_pages(self) -> int:
        return self._reserved + sum(number >= self._reserved for number in self._pages)


def pages_of(size: int) -> int:
    return -(-size // PAGE_BYTES)


class Write(NamedTuple):
    at: int
    data: bytes

    def apply(self, image: Image) -> None:
        image.write(self.data, self.at)

    def apply_size(self, image: Image) -> None:
        """Grow the file without writing the bytes: only the metadata of the write reached the disk."""
        image.resize(max(image.size, self.at + len(self.data)))

    def sectors(self) -> range:
        return range(self.at // SECTOR_BYTES, -(-(self.at + len(self.data)) // SECTOR_BYTES))

    def within(self, sector: int) -> "Write":
        start, end = sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES
        at = max(start, self.at)
        return Write(at, self.data[at - self.at : end - self.at])


class Resize(NamedTuple):
    size: int

    def apply(self, image: Image) -> None:
        image.resize(self.size)

    def apply_size(self, image: Image) -> None:
        self.apply(image)


class Reserve(NamedTuple):
    size: int

    def apply(self, image: Image) -> None:
        image.reserve(self.size)

    def apply_size(self, image: Image) -> None:
        self.apply(image)


Op = Write | Resize | Reserve


class Inode:
    """A file without its names. Readers see `current`; `durable` survives a power loss."""

    __slots__ = ("_drifted", "_lost", "_pending", "current", "durable", "links", "opens")

    def __init__(self, image: Image | None = None) -> None:
        self.current = image if image is not None else Image()
        self.durable = self.current.copy()
        self.links = 0
        self.opens = 0
        self._pending: list[Op] = []
        self._lost = 0  # number of pending changes that a failed sync dropped; later syncs do not write them
        self._drifted = False  # `current` has bytes that no sync writes, so a sync must not copy it

    def copy(self) -> "Inode":
        """Return a copy that is not open."""
        twin = Inode.__new__(Inode)
        twin.current, twin.durable = self.current.copy(), self.durable.copy()
        twin.links, twin.opens = self.links, 0
        twin._pending, twin._lost, twin._drifted = self._pending.copy(), self._lost, self._drifted
        return twin

    def apply(self, op: Op) -> None:
        op.apply(self.current)
        self._pending.append(op)

    def sync(self) -> None:
        if self._drifted:
            for number, op in enumerate(self._pending):
                (op.apply_size if number < self._lost else op.apply)(self.durable)
        elif self._pending:
            self.durable = self.current.copy()
        self._pending, self._lost = [], 0

    def fail_sync(self) -> None:
        """Drop the dirty pages, as the kernel does: they stay readable and count as clean, but are not on the disk."""
        if self._pending:
            self._lost, self._drifted = len(self._pending), True

    def revert(self) -> None:
        """Drop the dirty pages, as btrfs does: the file reads as before the writes. Its size stays."""
        size, self.current = self.current.size, self.durable.copy()
        self.current.resize(size)
        self._pending, self._lost = [Resize(size)], 0

    def flip(self, bit: int) -> None:
        """Flip one bit, in the cache and on the disk."""
        at, mask = bit // 8, 1 << bit % 8
        assert at < self.current.size, "the bit is past the end of the file"
        for image in (self.current, self.durable):
            if at < image.size:
                image.write(bytes([image.read(1, at)[0] ^ mask]), at)

    def after_power_loss(self, mode: CrashMode, rng: Random) -> Image:
        """Return the content after a power loss."""
        image = self.durable.copy()
        if mode == "tear":
            self._tear(image, rng)
        elif mode == "reorder":
            self._reorder(image, rng)
        elif mode == "zero":
            for op in self._pending:
                op.apply_size(image)
        return image

    def _tear(self, image: Image, rng: Random) -> None:
        whole = rng.randint(0, len(self._pending))
        for op in self._pending[:whole]:
            op.apply(image)
        if whole < len(self._pending) and isinstance(op := self._pending[whole], Write):
            cut = rng.randint(0, len(op.data))
            if rng.random() < 0.5:  # drives truncate at sectors, file systems anywhere
                cut = max(0, cut - (op.at + cut) % SECTOR_BYTES)
            if cut:
                image.write(op.data[:cut], op.at)

    def _reorder(self, image: Image, rng: Random) -> None:
        """Keep a random prefix of the writes of each sector, and of the size changes.

        A sector that has a write also has its earlier writes, because the cache combined them.
        """
        touched: dict[int, list[int]] = {}
        for number, op in enumerate(self._pending):
            if isinstance(op, Write):
                for sector in op.sectors():
                    touched.setdefault(sector, []).append(number)
        until = {sector: rng.choice([-1, *numbers]) for sector, numbers in touched.items()}
        size_until = rng.randint(-1, len(self._pending) - 1)
        size = image.size
        sized = image.copy()
        for number, op in enumerate(self._pending):
            if isinstance(op, Write):
                for sector in op.sectors():
                    if number <= until[sector]:
                        op.within(sector).apply(image)
            elif number <= size_until:
                op.apply(image)
            if number <= size_until:
                op.apply_size(sized)
                size = sized.size
        image.resize(size)
