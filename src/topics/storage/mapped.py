"""A file's bytes where the kernel keeps them: read without a copy, and only if that cannot wait for the disk.

A mapping alone would do for the first half, but whoever touches a page that is not in memory waits for it, and the
event loop must not. So the kernel is asked first (`mincore`); what it does not have is left to a thread that may wait.
A page can still be evicted between the question and the use. That takes a machine out of memory in just these
microseconds, or a client that does not take its answer, and costs one read of the disk.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

import numpy as np

MAX_BYTES = 256 << 10  # a larger piece may stay with a slow client for long: that one is better off with a copy
_PAGE_BYTES = mmap.PAGESIZE
_PAGES = MAX_BYTES // _PAGE_BYTES + 2


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

    __slots__ = ("_address", "_fd", "_resident", "_resident_at", "_view")

    def __init__(self, fd: int, view: memoryview) -> None:
        self._fd = fd
        self._view = view
        self._address = _address_of(view)
        self._resident = bytearray(_PAGES)  # a byte a page, as `mincore` tells
        self._resident_at = _address_of(self._resident)

    @classmethod
    def of(cls, fd: int) -> Mapped | None:
        """None where this cannot be had: another system, an empty file, a file system without mappings."""
        if _mincore is None:
            return None
        try:
            return cls(fd, memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ)))
        except (OSError, ValueError):
            return None

    def take(self, size: int, at: int) -> memoryview | None:
        """The bytes [at, at + size), if all of them are in memory now."""
        end = at + size
        # Whoever cuts the file short from outside must not kill us: bytes behind its end are deadly to touch.
        if end > len(self._view) or size > MAX_BYTES or os.lseek(self._fd, 0, os.SEEK_END) < end:
            return None
        start = at - at % _PAGE_BYTES
        assert _mincore is not None
        if _mincore(self._address + start, end - start, self._resident_at) != 0:
            return None
        pages = -(-(end - start) // _PAGE_BYTES)
        return self._view[at:end] if self._resident.find(0, 0, pages) < 0 else None


def _address_of(buffer: bytearray | memoryview) -> int:
    address: int = np.frombuffer(buffer, np.uint8).ctypes.data
    return address
