"""Take files of a data directory out of the page cache, once or all the time, as memory pressure does."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self


def evict(directory: Path) -> None:
    """Drop every segment file below `directory` from the page cache. Pages that a process has mapped stay."""
    with ExitStack() as stack:
        for fd in _open_all(directory, stack):
            os.fdatasync(fd)  # the kernel drops only clean pages
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _open_all(directory: Path, stack: ExitStack) -> list[int]:
    found = []
    for path in directory.rglob("*.seg"):
        with suppress(FileNotFoundError):
            found.append(os.open(path, os.O_RDONLY))
            stack.callback(os.close, found[-1])
    return found


def can_evict(directory: Path) -> bool:
    """Return whether the file system drops cached pages and reports that to a read that must not wait."""
    path = directory / "probe.seg"
    path.write_bytes(bytes(1 << 20))
    evict(directory)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.preadv(fd, [bytearray(4096)], 1 << 19, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
        path.unlink()
    return False


class Evicting:
    """Drops the segment files from the page cache repeatedly, also between a load and the read after it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0

    def _run(self) -> None:
        while not self._over.is_set():
            evict(self._directory)
            with ExitStack() as stack:
                fds = _open_all(self._directory, stack)
                for _ in range(50):  # then it looks for files that have come up meanwhile
                    for fd in fds:
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    self.rounds += 1
                    if self._over.wait(0.001):  # the server needs the processor, too
                        return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
