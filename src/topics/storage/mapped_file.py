"""Memory-mapped files: a read goes from the page cache to a socket without another copy.

Only system calls may read the mapped bytes. If another process truncates the file, a system call on the missing pages
fails, while Python code that reads them ends the process with SIGBUS.

`lend` first asks the kernel (`mincore`) which pages are in memory, because the event loop must not wait for the others.
One `mincore` covers the whole file and is valid for `MOMENT_S`, because it costs as much as the rest of a read.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from time import monotonic

import numpy as np

MAX_BYTES = 256 << 10  # a slow client may hold a larger piece for a long time: such a piece is copied instead
MOMENT_S = 0.5  # how long a result of `mincore` is valid
_PAGE_BYTES = mmap.PAGESIZE


def _find_kernel() -> ctypes.PyDLL | None:
    """Return the system calls. `PyDLL` keeps the interpreter lock: each call is shorter than a release of the lock."""
    if sys.platform != "linux":
        return None
    try:
        kernel = ctypes.PyDLL(None)
        size, number = ctypes.c_size_t, ctypes.c_int
        kernel.mincore.argtypes = size, size, size
        kernel.mmap.restype, kernel.mmap.argtypes = size, (size, size, number, number, number, ctypes.c_long)
        kernel.munmap.argtypes = size, size
        return kernel
    except (OSError, AttributeError):
        return None


_kernel = _find_kernel()
_MAP_FAILED = ctypes.c_size_t(-1).value


class Mapped:
    """A mapping of a whole file whose size no longer changes."""

    __slots__ = ("_asked_at", "_complete", "_fd", "_resident", "view")

    def __init__(self, fd: int, view: memoryview) -> None:
        self._fd = fd
        self.view = view
        self._resident = bytearray(-(-len(view) // _PAGE_BYTES))  # one byte per page: 1 if the page was in memory
        self._complete = False  # whether all pages were in memory: reads then skip their own check
        self._asked_at = -MOMENT_S

    @classmethod
    def of(cls, fd: int) -> Mapped | None:
        """Map the file. Return None on another operating system, for an empty file, or if the mapping fails."""
        if _kernel is None:
            return None
        size = os.fstat(fd).st_size
        address = _kernel.mmap(0, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0) if size else _MAP_FAILED
        return None if address == _MAP_FAILED else cls(fd, _view_of(address, size))

    def lend(self, size: int, at: int) -> memoryview | None:
        """Return the bytes [at, at + size) if all are in memory, else None. Only system calls may read them."""
        if size > MAX_BYTES:
            return None
        if monotonic() - self._asked_at >= MOMENT_S:
            self._ask()
        end = at + size
        if not self._complete and self._resident.find(0, at // _PAGE_BYTES, (end - 1) // _PAGE_BYTES + 1) >= 0:
            return None
        found = self.view[at:end]
        return found if len(found) == size else None

    def _ask(self) -> None:
        assert _kernel is not None
        size = len(self.view)
        cut = os.lseek(self._fd, 0, os.SEEK_END) < size
        if cut or _kernel.mincore(_address_of(self.view), size, _address_of(self._resident)) != 0:
            self._resident[:] = bytes(len(self._resident))
        self._complete = 0 not in self._resident
        self._asked_at = monotonic()


def _view_of(address: int, size: int) -> memoryview:
    """Return a mapping as a buffer that is unmapped when its last view is freed.

    The `mmap` module would keep a descriptor open until then, so slow clients could use up all descriptors.
    """
    assert _kernel is not None
    block = (ctypes.c_char * size).from_address(address)
    weakref.finalize(block, _kernel.munmap, address, size).atexit = False
    return memoryview(block).cast("B").toreadonly()


def _address_of(buffer: bytearray | memoryview) -> int:
    address: int = np.frombuffer(buffer, np.uint8).ctypes.data
    return address
