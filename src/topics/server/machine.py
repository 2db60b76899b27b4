"""What the operating system gives this process: memory.

A container limits memory by cgroup and not by the size of the machine, so both are read. Both versions of cgroups keep
a limit per folder, and the limits of all enclosing folders hold too.
"""

import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# Where each version is mounted, and the file that holds the limit. The value is "max" (v2) or a number larger than any
# machine (v1) where there is no limit.
_V2 = "sys/fs/cgroup", "memory.max"
_V1 = "sys/fs/cgroup/memory", "memory.limit_in_bytes"


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory this process may use: the least of machine, cgroup (v1 and v2) and address space limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_cgroup_limits(root)]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    return min(limits)


def _cgroup_limits(root: Path) -> Iterator[int]:
    """Yield every limit on the way from this process's cgroup to the top of its hierarchy.

    In a container `/proc/self/cgroup` may name a folder of the host that is not visible. The mount point is then the
    container's own folder, and it is the last one on the way.
    """
    for controllers, path in _cgroups(root):
        if controllers == "":
            mount, file = _V2
        elif "memory" in controllers.split(","):
            mount, file = _V1
        else:
            continue
        for folder in (path, *path.parents):
            limit = _read_limit(root / mount / folder.relative_to("/") / file)
            if limit is not None:
                yield limit


def _cgroups(root: Path) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield the controllers and the folder of each hierarchy; the controllers of version 2 are an empty string."""
    try:
        text = (root / "proc/self/cgroup").read_text()
    except OSError:
        return
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if path.startswith("/") and ".." not in path:
            yield controllers, PurePosixPath(path)


def _read_limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
