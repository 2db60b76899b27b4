"""Large writes of the log, on other threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from topics.errors import Code
from topics.storage.fs import File
from topics.storage.log.frame import Frames, LargeFrame, parts_of

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


def reason_of(error: Exception) -> str:
    """Return the reason of a failure, as the log reports it."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def close_quietly(file: File) -> None:
    """Close a file whose bytes are synced or not needed."""
    with suppress(OSError):
        file.close()
