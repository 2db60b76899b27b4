"""Failed checkpoints: when the next attempt may begin, and whether the disk has room for it.

An attempt rotates the log, which reserves a whole file. So an attempt that follows a failed one, or that begins while
space is low, first measures what it will write and reserves that much. Without room there is no rotation.
"""

from __future__ import annotations

import errno
from contextlib import suppress

from topics import logs
from topics.clock import Clock
from topics.engine.state import snapshot_parts
from topics.engine.state.topics import State
from topics.engine.steps import Steps
from topics.storage.data_layout import TEMP_SUFFIX
from topics.storage.datadir import DataDir
from topics.storage.log.background import reason_of

log = logs.Log("store")

PLENTY_BYTES = 4096  # for a topic whose log entries are older than the last checkpoint
FIRST_RETRY_MS, LAST_RETRY_MS = 1000, 30_000
AFTER_ROTATION = 20  # times these, if the failed attempt has used up a log file


class Retries:
    """Whether checkpoints fail, and when the next one may begin: twice as late after each failure."""

    def __init__(self, clock: Clock) -> None:
        self.reason: str | None = None  # why the last attempt failed; None after a success
        self._clock = clock
        self._row = 0  # failures since the first one
        self._next_ns = 0
        self.failures_total = 0

    @property
    def may_begin(self) -> bool:
        return self.reason is None or self._clock.monotonic_ns() >= self._next_ns

    def failed(self, error: Exception, *, rotated: bool) -> None:
        """Note a failed attempt. Log the first one of a row, and every new reason."""
        reason = reason_of(error)
        self.failures_total += 1
        if reason != self.reason:
            hint = "writes continue, and the log grows until a checkpoint succeeds; the server tries again by itself"
            log.error("checkpoint_failed", reason=reason, hint=hint)
        self._row = 0 if self.reason is None else self._row + 1
        delay_ms = min(FIRST_RETRY_MS << self._row, LAST_RETRY_MS) * (AFTER_ROTATION if rotated else 1)
        self.reason, self._next_ns = reason, self._clock.monotonic_ns() + delay_ms * 1_000_000

    def succeeded(self) -> None:
        if self.reason is not None:
            log.info("checkpoint_recovered")
        self.reason = None


class Room:
    """The space that a checkpoint of `state` needs. It is measured once all steps have run."""

    def __init__(self, datadir: DataDir, state: State, log_bytes: int) -> None:
        """`log_bytes` is what the rotation of the log needs."""
        self._dir = datadir
        self._state = state
        self._size_bytes = log_bytes

    def is_plenty(self, grown_bytes: int) -> bool:
        """Return whether the disk has far more space than a log that has grown by `grown_bytes` makes necessary."""
        plenty_bytes = 2 * (grown_bytes + self._size_bytes) + PLENTY_BYTES * len(self._state.by_id)
        with suppress(OSError):
            return self._dir.fs.free_bytes(self._dir.root) >= plenty_bytes
        return False

    def steps(self) -> Steps[None]:
        """Measure every topic, one per step. Topics may come and go meanwhile."""
        for topic in tuple(self._state.by_id.values()):
            self._size_bytes += snapshot_parts.size_bytes_of(topic)
            yield None

    def reserve(self, number: int) -> None:
        """Raise `OSError` unless the disk has the measured room. Runs on the worker.

        A reservation finds limits that the free space does not show, such as quotas. One that fails can fill the disk
        for a moment, so the free space is looked at first.
        """
        if self._dir.fs.free_bytes(self._dir.root) < self._size_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        path = self._dir.snapshot_path(number) + TEMP_SUFFIX
        file = self._dir.fs.open(path, create=True)
        try:
            file.allocate(self._size_bytes)
        finally:
            file.close()
            with suppress(OSError):
                self._dir.fs.unlink(path)
