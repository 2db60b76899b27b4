"""`topics serve` on a faulty machine. Files in FAULT_DIR switch the faults on: `slow`, `full`, and `clock` with ms.

Each sync of the log takes up to SLOW_SYNC_MS longer: with quick syncs, requests hardly ever arrive while a log entry
waits for its sync.
"""

import errno
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from topics.cli.main import main
from topics.storage.fs import Buffer, File, Fs

_SLOW_S = 0.2  # how much longer a sync takes while the disk is slow
_FLAGS = os.environ["FAULT_DIR"]
_datasync, _pwrite, _pwritev, _allocate = File.datasync, File.pwrite, File.pwritev, File.allocate
_free_bytes, _time_ns = Fs.free_bytes, time.time_ns
_delays = Random(1)


def _is_on(flag: str) -> bool:
    return os.path.exists(os.path.join(_FLAGS, flag))


def datasync(file: File) -> None:
    _datasync(file)
    time.sleep(_delays.uniform(0, float(os.environ["SLOW_SYNC_MS"])) / 1000)
    if _is_on("slow"):
        time.sleep(_SLOW_S)


def pwrite(file: File, data: Buffer, at: int) -> None:
    _refuse_if_full(file, at + memoryview(data).nbytes)
    _pwrite(file, data, at)


def pwritev(file: File, parts: Sequence[Buffer], at: int) -> None:
    _refuse_if_full(file, at + sum(memoryview(part).nbytes for part in parts))
    _pwritev(file, parts, at)


def allocate(file: File, size: int) -> None:
    _refuse_if_full(file, size)
    _allocate(file, size)


def _refuse_if_full(file: File, end: int) -> None:
    """Raise if the file would grow on a full disk. Space that it has can be overwritten."""
    if _is_on("full") and end > file.size():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.path)


def free_bytes(fs: Fs, path: str) -> int:
    return 0 if _is_on("full") else _free_bytes(fs, path)


def time_ns() -> int:
    """Return the wall clock, as far ahead as the file says."""
    with suppress(FileNotFoundError), open(os.path.join(_FLAGS, "clock"), encoding="ascii") as file:
        return _time_ns() + int(file.read()) * 1_000_000
    return _time_ns()


if __name__ == "__main__":
    File.datasync, File.pwrite, File.pwritev, File.allocate = (  # type: ignore[method-assign]
        datasync, pwrite, pwritev, allocate
    )  # fmt: skip
    Fs.free_bytes, time.time_ns = free_bytes, time_ns  # type: ignore[method-assign]
    sys.exit(main(["serve", *sys.argv[1:], "--port", os.environ["FIXED_PORT"]]))
