"""A file's bytes where the kernel keeps them, to go from there to a socket without another copy.

Only the kernel may touch them. Where somebody cut the file short there is nothing left behind its last page: a system
call that comes upon that fails, but a process that does dies.

And nobody may wait for the disk: whoever touches a page that is not in memory does, and the event loop must not. So the
kernel is asked (`mincore`) which pages are there; what it does not have is left to others. The question is about the
whole file and its answer holds for a moment, since it costs as much as all the rest of a read. A page that goes within
that moment, or while a client does not take its answer, costs one read of the disk.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from time import monotonic

import numpy as np

MAX_BYTES = 256 << 10  # a larger piece may stay with a slow client for long: that one is better off with a copy
MOMENT_S = 0.5  # how long an answer of the kernel holds
_PAGE_BYTES = mmap.PAGESIZE


class _Kernel:
    """The system calls, as functions. They keep the interpreter lock: each is over before that could be handed on."""

    def __init__(self, library: ctypes.PyDLL) -> None:
        size, number = ctypes.c_size_t, ctypes.c_int
        self.mincore = _declare(library.mincore, number, size, size, size)
        self.mmap = _declare(library.mmap, size, size, size, number, number, number, ctypes.c_long)
        self.munmap = _declare(library.munmap, number, size, size)


def _declare(function: ctypes._NamedFuncPointer, result: type, *arguments: type) -> ctypes._NamedFuncPointer:
    function.restype, function.argtypes = result, arguments
    return function


def _find_kernel() -> _Kernel | None:
    if sys.platform != "linux":
        return None
    try:
        return _Kernel(ctypes.PyDLL(None))
    except (OSError, AttributeError):
        return None


_kernel = _find_kernel()
_MAP_FAILED = ctypes.c_size_t(-1).value


class Mapped:
    """The whole of a file that no longer changes its size."""

    __slots__ = ("_asked_at", "_complete", "_fd", "_resident", "_view")

    def __init__(self, fd: int, view: memoryview) -> None:
        self._fd = fd
        self._view = view
        self._resident = bytearray(-(-len(view) // _PAGE_BYTES))  # a byte a page: whether it was in memory
        self._complete = False  # whether all of them were: then no read has to look at its own
        self._asked_at = -MOMENT_S

    @classmethod
    def of(cls, fd: int) -> Mapped | None:
        """None where this cannot be had: another system, an empty file, a file system without mappings."""
        if _kernel is None:
            return None
        size = os.fstat(fd).st_size
        address = _kernel.mmap(0, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0) if size else _MAP_FAILED
        return None if address == _MAP_FAILED else cls(fd, _view_of(address, size))

    def lend(self, size: int, at: int) -> memoryview | None:
        """The bytes [at, at + size), if all of them are in memory. For system calls: see above."""
        if size > MAX_BYTES:
            return None
        if monotonic() - self._asked_at >= MOMENT_S:
            self._ask()
        end = at + size
        if not self._complete and self._resident.find(0, at // _PAGE_BYTES, (end - 1) // _PAGE_BYTES + 1) >= 0:
            return None
        found = self._view[at:end]
        return found if len(found) == size else None

    def _ask(self) -> None:
        assert _kernel is not None
        size = len(self._view)
        cut = os.lseek(self._fd, 0, os.SEEK_END) < size
        if cut or _kernel.mincore(_address_of(self._view), size, _address_of(self._resident)) != 0:
            self._resident[:] = bytes(len(self._resident))
        self._complete = 0 not in self._resident
        self._asked_at = monotonic()


def _view_of(address: int, size: int) -> memoryview:
    """Return a mapping as a buffer that unmaps itself when its last part is gone.

    The `mmap` module would keep a descriptor open for as long, and clients that do not take their answers could use up
    all of them.
    """
    assert _kernel is not None
    block = (ctypes.c_char * size).from_address(address)
    weakref.finalize(block, _kernel.munmap, address, size).atexit = False
    return memoryview(block).cast("B").toreadonly()


def _address_of(buffer: bytearray | memoryview) -> int:
    address: int = np.frombuffer(buffer, np.uint8).ctypes.data
    return address
