"""Limits of the operating system on this process: memory and descriptors.

A container limits memory by cgroup and not by the size of the machine, so both are read. Sockets and files share one
limit of descriptors. A part of it is reserved for files, so that clients that open connections cannot keep the server
from writing its log or reading a segment.
"""

import contextlib
import ctypes
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import msgspec

# Mount point and file of each version. Without a limit the value is "max" (v2) or larger than any machine (v1).
_V2 = "sys/fs/cgroup", "memory.max"
_V1 = "sys/fs/cgroup/memory", "memory.limit_in_bytes"

_M_ARENA_MAX = -8  # in <malloc.h>

MOST_DESCRIPTORS = 1 << 20  # in place of no limit; the default of the kernel for one process
BASE_DESCRIPTORS = 64  # standard streams, event loop, listening sockets, log, and files that are written or synced
MOST_SEGMENT_FILES = 512
FEWEST_SEGMENT_FILES = 8
FEWEST_CONNECTIONS = 8


class Descriptors(msgspec.Struct, frozen=True, kw_only=True):
    limit: int
    segment_files: int  # files of sealed segments that stay open
    refused: int  # connections that are refused and stay open until the client has read why
    connections: int  # all others


def divide(limit: int) -> Descriptors:
    """Divide a limit: a fixed part and an eighth for files, a sixteenth for refusals, the rest for connections."""
    segment_files = min(max(limit // 8, FEWEST_SEGMENT_FILES), MOST_SEGMENT_FILES)
    refused = min(max(limit // 16, 8), 256)
    connections = max(limit - BASE_DESCRIPTORS - segment_files - refused, FEWEST_CONNECTIONS)
    return Descriptors(limit=limit, segment_files=segment_files, refused=refused, connections=connections)


def descriptors() -> Descriptors:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return divide(MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard one: the usual 1024 are too few for a server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems report no hard limit and refuse to set none: then a number is tried.
    for target in (hard, MOST_DESCRIPTORS):
        if soft == hard or (soft != resource.RLIM_INFINITY and 0 <= target <= soft):
            return
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            return


def forbid_core_files() -> None:
    """Let a crash write no core file: it would have the keys that sign tokens, and secrets of clients."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory this process may use: the smallest limit of machine, cgroup (v1 and v2) and address space."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_cgroup_limits(root)]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    return min(limits)


def resident_bytes() -> int:
    """Return the memory that this process occupies; 0 where the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _cgroup_limits(root: Path) -> Iterator[int]:
    """Yield every limit from the cgroup of this process up to the top of its hierarchy.

    In a container `/proc/self/cgroup` may name a folder of the host that is not visible. The mount point is then the
    folder of the container, and the last one that is read.
    """
    try:
        text = (root / "proc/self/cgroup").read_text()
    except OSError:
        return
    for line in text.splitlines():
        _, controllers, named = line.split(":", 2)
        path = PurePosixPath(named)
        # The controllers of version 2 are an empty string.
        mount, file = _V1 if controllers else _V2
        if (controllers and "memory" not in controllers.split(",")) or not path.is_absolute() or ".." in named:
            continue
        for folder in (path, *path.parents):
            with contextlib.suppress(OSError):
                limit = (root / mount / folder.relative_to("/") / file).read_text().strip()
                if limit.isdecimal():
                    yield int(limit)


def use_one_heap() -> None:
    """Make all threads allocate from one heap. Call it before the first thread starts; it needs the GNU C library.

    By default each thread has a heap, and memory that one thread frees cannot be used by another: after a thousand
    scans by four threads the server kept 500 MiB, with one heap 3 MiB. Threads that run Python take turns anyway.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def find_trim() -> Callable[[int], int] | None:
    """Return the function that gives freed memory back to the system; None where the C library has none."""
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    found.argtypes, found.restype = (ctypes.c_size_t,), ctypes.c_int
    trim: Callable[[int], int] = found
    return trim
