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
from time import monotonic

import numpy as np

MAX_BYTES = 256 << 10  # a larger piece may stay with a slow client for long: that one is better off with a copy
MOMENT_S = 0.5  # how long an answer of the kernel holds
_PAGE_BYTES = mmap.PAGESIZE


def _find_mincore() -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux":
        return None
    try:
        found = ctypes.PyDLL(None).mincore  # keeps the interpreter lock: it is over before that could be handed on
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)
    found.restype = ctypes.c_int
    return found


_mincore = _find_mincore()


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
        if _mincore is None:
            return None
        try:
            return cls(fd, memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ)))
        except (OSError, ValueError):
            return None

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
        assert _mincore is not None
        size = len(self._view)
        cut = os.lseek(self._fd, 0, os.SEEK_END) < size
        if cut or _mincore(_address_of(self._view), size, _address_of(self._resident)) != 0:
            self._resident[:] = bytes(len(self._resident))
        self._complete = 0 not in self._resident
        self._asked_at = monotonic()


def _address_of(buffer: bytearray | memoryview) -> int:
    address: int = np.frombuffer(buffer, np.uint8).ctypes.data
    return address
