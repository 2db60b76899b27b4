"""The log as the engine uses it, the reasons why it refuses frames, and large writes on other threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import NoReturn

from topics.errors import Code
from topics.storage.fs import File
from topics.storage.log.frame import Frames, LargeFrame, parts_of
from topics.storage.worker import Worker

WARM_BYTES = 1 << 20


class LogRefused(Exception):
    """The log refused frames, because it has no file with room for them. Nothing of them was written."""

    code = Code.READ_ONLY


class ReplicaRefused(LogRefused):
    """A write that needs the replica was refused: the bucket does not answer, or there is no replica."""

    code = Code.REPLICA_UNAVAILABLE


class Fenced(LogRefused):
    """Another server writes the replica of this one."""

    code = Code.FENCED


class Log:
    """A log that takes frames. All calls and callbacks happen on the thread that owns the engine.

    This one keeps nothing: it is that of a server without a data directory. `Wal` writes files.
    """

    failed: Callable[[Exception], NoReturn]  # set by `Commits`; the log calls it if a write or a sync fails
    synced_to = (0, 0)  # file number and offset before which all is durable

    @property
    def sync_ms(self) -> int:
        """How long a sync takes: the longest of the last few."""
        return 0

    def write(self, frames: list[Frames]) -> None:
        """Write all frames in order to the operating system, or raise `LogRefused` and write none."""

    def write_large(self, frames: list[Frames], done: Callable[[], None]) -> None:
        """Do the same on another thread, then call `done`. Until then nothing else is written."""
        done()

    def warm(self, size_bytes: int) -> None:
        """Prepare for a large write of this size: nothing depends on it but the time that it takes."""

    def finish_large(self) -> None:
        """Wait for the pending large write, if there is one: its `done` is called before this returns."""

    def sync(self, done: Callable[[], None]) -> None:
        """Make everything written so far durable, then call `done`."""
        done()

    def sync_now(self) -> None:
        """Make everything written so far durable before this returns."""

    def after_sync(self, done: Callable[[], None]) -> None:
        """Call `done` once a later sync has made everything written so far durable."""
        done()


class LargeWrite:
    """A write of frames that a worker runs, or the owner if that cannot wait for the worker."""

    def __init__(self, frames: list[Frames], file: File, at: int, report: Callable[[Exception | None], None]) -> None:
        self._frames = frames
        self._file = file
        self._at = at
        self._report = report
        self._lock = Lock()
        self._run = self._reported = False
        self._error: Exception | None = None

    def run(self) -> None:
        """Write, unless another thread has done so. Wait for a thread that is about to."""
        with self._lock:
            if not self._run:
                self._run = True
                try:
                    for frame in self._frames:
                        if isinstance(frame, LargeFrame):
                            frame.seal()
                    self._file.pwritev(parts_of(self._frames), self._at)
                except Exception as error:
                    self._error = error

    def end(self) -> None:
        """Report the outcome once, on the owner's thread, as soon as there is one."""
        self.run()
        if not self._reported:
            self._reported = True
            self._report(self._error)


def read_ahead(worker: Worker, file: File, at: int, size_bytes: int, goes_on: Callable[[], bool]) -> None:
    """Bring a part of a file into memory on a thread, while `goes_on`."""

    def read() -> None:
        for start in range(at, at + size_bytes, WARM_BYTES):
            if goes_on():
                file.pread(WARM_BYTES, start)

    worker.submit(read, lambda error: None)


def reason_of(error: Exception) -> str:
    """Return the reason of a failure, as the log reports it."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def close_quietly(file: File) -> None:
    """Close a file whose bytes are synced or not needed."""
    with suppress(OSError):
        file.close()
