"""The write-ahead log: one stream of frames for all topics, in numbered files.

Writes go to the operating system at once, in the caller's turn; syncs run on a thread of their own, and so do large
writes. Files are reserved in full before they are used, and the next one is prepared while the last one fills, so that
a write finds its space waiting. `LogState` has the states of the log.

A log that has failed ends the process (`failed`): see docs/decisions/failed-log.md. The next start recovers.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from threading import Lock
from typing import ClassVar, NoReturn

from msgspec import Struct, field

from topics import logs
from topics.clock import Clock
from topics.storage.datadir import DataDir
from topics.storage.fs import File
from topics.storage.log import walfile
from topics.storage.log.background import (
    WARM_BYTES,
    Fenced,
    LargeWrite,
    Log,
    LogRefused,
    close_quietly,
    read_ahead,
    reason_of,
)
from topics.storage.log.frame import Frames, parts_of
from topics.storage.log.ledger import Ledger, file_note
from topics.storage.worker import INLINE, Worker

log = logs.Log("wal")

NOTE_NS = 1_000_000_000
SLOW_US = 100_000  # if syncs take longer, so does a new file: it is prepared before half of the last one is full
JOIN_BYTES = 64 << 10  # smaller writes are joined into one buffer: faster than a list of buffers


class LogState(Enum):
    """What the log does with frames. `Wal.read_only` has the reason if it refuses them."""

    STARTING = auto()  # it refuses them: there is no file yet
    OPEN = auto()  # it writes them
    READ_ONLY = auto()  # it refuses those that need a file which cannot be created; `tick` tries again
    FAILED = auto()  # a write or a sync failed, or the directory is gone: it is unknown what the files have
    STOPPED = auto()  # it refuses them: the last snapshot replaces it
    FENCED = auto()  # it refuses them: another server continues the log


_ENDS = {LogState.FAILED, LogState.STOPPED, LogState.FENCED}
_NEXT = {
    LogState.STARTING: {LogState.OPEN, LogState.READ_ONLY, LogState.FAILED, LogState.FENCED},
    LogState.OPEN: {LogState.READ_ONLY, *_ENDS},
    LogState.READ_ONLY: {LogState.OPEN, *_ENDS},
    LogState.FAILED: set(),
    LogState.STOPPED: {LogState.FAILED, LogState.FENCED},
    LogState.FENCED: {LogState.FAILED},
}


class WalStats(Struct):
    """Counters since the process started; the histogram's buckets are not cumulative."""

    BOUNDS_US: ClassVar[tuple[int, ...]] = (
        50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000,
    )  # fmt: skip

    frames_total: int = 0
    batches_total: int = 0
    fsyncs_total: int = 0
    bytes_written_total: int = 0
    rotations_total: int = 0
    submit_full_total: int = 0
    queue_depth: int = 0
    queue_depth_peak: int = 0
    fsync_sum_us: int = 0
    slow_us: int = 0  # the longest of the last few syncs
    fsync_buckets: list[int] = field(default_factory=lambda: [0] * 14)

    def synced(self, took_us: int) -> None:
        self.fsyncs_total += 1
        self.slow_us = max(took_us, self.slow_us * 15 // 16)
        self.fsync_sum_us += took_us
        self.fsync_buckets[bisect_left(self.BOUNDS_US, took_us)] += 1


class Wal(Log):
    """The writer of the log. All code runs on the owner's thread, except the calls given to the workers."""

    def __init__(
        self, datadir: DataDir, *, file_bytes: int, worker: Worker, clock: Clock, writer: Worker | None = None
    ) -> None:
        """`worker` runs syncs, and `writer` large writes, which must not wait for a sync."""
        self._dir = datadir
        self._file_bytes = file_bytes
        self._worker = worker
        self._writer = writer or INLINE
        self._large: LargeWrite | None = None  # pending
        self._clock = clock
        self.stats = WalStats()
        self.number = 0
        self.tail = 0
        self._first_at = walfile.HEADER_BYTES  # where the log entries of the present file begin
        self.state = LogState.STARTING
        self.read_only: str | None = None  # the reason why the log takes no frames
        self._file: File | None = None
        self._spare: tuple[int, File] | None = None
        self._reserve_bytes = 0  # for the next file, if the last write was a large one
        self._preparing = False
        self._not_prepared = False  # the last attempt to prepare a file failed
        self.failed: Callable[[Exception], NoReturn] = _raise
        self._written = self._synced = 0  # how many frames are written, and how many of them are durable
        self.on_synced: Callable[[tuple[int, int]], None] = lambda position: None  # called when `synced_to` has moved
        self.left: dict[int, int] = {}  # files before the present one, each with the offset at which it ends
        self._sync_failed = False
        self._sync_lock = Lock()  # held while `_sync_failed` may become true
        self._behind: list[File] = []  # full files that are not synced yet
        self._callbacks: list[Callable[[], None]] = []
        self._syncing = 0  # syncs given to the worker and not reported back
        self.ledger = Ledger(datadir)
        self._noted_ns = 0  # when the synced position was last noted in the ledger

    def begin(self, number: int, *, resume: tuple[int, int]) -> None:
        """Create the first file of this process. Blocks. If that fails, the log is read-only and `tick` tries again."""
        self.number, self.synced_to = number, resume
        self.ledger.open(number)
        self._begin(INLINE)
        self.ledger.write(self.ledger.take())

    def _begin(self, worker: Worker) -> None:
        number, resume, began_ns = self.number, self.synced_to, self._clock.monotonic_ns()
        made: list[tuple[File, int]] = []
        self._preparing = True

        def work() -> None:
            file = self._create(walfile.Header(number, *resume))
            try:
                made.append((file, file.size()))
            except OSError:
                close_quietly(file)
                raise

        def finished(error: Exception | None) -> None:
            self._preparing = False
            if self.state in _ENDS:  # in between
                for file, _ in made:
                    close_quietly(file)
                return
            self._go(LogState.OPEN if error is None else LogState.READ_ONLY, error)
            if error is not None:
                return
            self._file, size_bytes = made[0]
            self.tail = self._first_at = walfile.HEADER_BYTES
            self.synced_to = self.position
            self.stats.slow_us = (self._clock.monotonic_ns() - began_ns) // 1000  # two syncs, as in most of the log's
            self.ledger.note_file(number, previous=resume, size_bytes=size_bytes)

        worker.submit(work, finished)

    def begin_ledger(self) -> list[bytes]:
        """Go on in a new ledger file, for what happens from the beginning of the present log file on.

        Return the notes to write into it before the snapshot counts, so that a ledger belongs to every snapshot. They
        claim only that the log file exists, which no sync has to make true. Raise `OSError` and change nothing on a
        failure.
        """
        if self._file is None:
            return []
        note = file_note(self.number, (0, 0), self._file.size())
        self.ledger.open(self.number)
        return [note]

    @property
    def has_file(self) -> bool:
        """Whether the log has begun and has not stopped."""
        return self._file is not None

    @property
    def sync_ms(self) -> int:
        return self.stats.slow_us // 1000

    @property
    def rotation_bytes(self) -> int:
        """The space that the next `rotate` needs."""
        return 0 if self._spare is not None else self._file_bytes

    @property
    def position(self) -> tuple[int, int]:
        return self.number, self.tail

    def write(self, frames: list[Frames]) -> None:
        size_bytes = self._make_room(frames)
        assert self._file is not None
        try:
            if size_bytes > JOIN_BYTES:
                self._file.pwritev(parts_of(frames), self.tail)
            else:
                self._file.pwrite(frames[0] if len(frames) == 1 else b"".join(frames), self.tail)  # type: ignore[arg-type]
        except OSError as error:
            self._fail(error)
        self._wrote(len(frames), size_bytes)

    def write_large(self, frames: list[Frames], done: Callable[[], None]) -> None:
        assert self._large is None, "a large write is pending"
        reserve_bytes = self._reserve_bytes
        size_bytes = self._make_room(frames)
        self._reserve_bytes = reserve_bytes  # another large write may follow
        assert self._file is not None

        def ended(error: Exception | None) -> None:
            self._large = None
            if error is not None:
                self._fail(error)
            self._wrote(len(frames), size_bytes)
            done()

        self._large = large = LargeWrite(frames, self._file, self.tail, ended)
        self._writer.submit(large.run, lambda error: large.end())

    def warm(self, size_bytes: int) -> None:
        """Prepare for a large write: a file that is large enough, and its pages in memory.

        The write then takes a quarter of the time. It does not wait for this.
        """
        need_bytes = size_bytes + WARM_BYTES
        if self._file is None or self._preparing:
            return
        if self.tail + need_bytes <= self._file_bytes:
            read_ahead(self._writer, self._file, self.tail, need_bytes, lambda: self._large is None)
        else:
            self._reserve_bytes = need_bytes
            self._prepare()

    def finish_large(self) -> None:
        if self._large is not None:
            self._large.end()

    def _make_room(self, frames: list[Frames]) -> int:
        """Rotate if the frames do not fit into the present file; return their size. Raise `LogRefused`."""
        if self._file is None:
            raise (Fenced if self.state is LogState.FENCED else LogRefused)(self.read_only)
        size_bytes = sum(map(len, frames))
        # A large write fills a file of its own, and a prepared one in less time than one that it would enlarge.
        prepared = self._spare is not None and size_bytes > self._file_bytes
        if self.tail + size_bytes > self._file_bytes and (self.tail > self._first_at or prepared):
            try:
                self.rotate()
            except OSError as error:
                self.stats.submit_full_total += len(frames)
                self._go(LogState.READ_ONLY, error)
                raise LogRefused(self.read_only) from error
        return size_bytes

    def _wrote(self, frames: int, size_bytes: int) -> None:
        if self.state is LogState.READ_ONLY:
            self._go(LogState.OPEN)
        self.tail += size_bytes
        self._written += frames
        stats = self.stats
        stats.frames_total += frames
        stats.batches_total += 1
        stats.bytes_written_total += size_bytes
        stats.queue_depth = depth = self._written - self._synced
        if depth > stats.queue_depth_peak:
            stats.queue_depth_peak = depth

    def rotate(self) -> None:
        """Continue in a new file. Raise `OSError` and change nothing if none can be created."""
        assert self._large is None, "a large write is pending"
        if self._file is None:
            raise LogRefused(self.read_only)
        if self._spare is not None:
            number, file = self._spare
            self._spare = None
        else:
            number = self.number + (2 if self._preparing else 1)  # the worker is creating the next file
            file = self._create(walfile.Header(number))
        first = walfile.encode_follows(*self.position)
        try:
            size_bytes = file.size()
            file.pwrite(first, walfile.HEADER_BYTES)
        except OSError:
            self._spare = number, file  # the next write starts at the beginning of the file again
            raise
        self._behind.append(self._file)
        self.left[self.number] = self.tail
        self.ledger.note_file(number, previous=self.position, size_bytes=size_bytes)
        self._file, self.number, self.tail = file, number, walfile.HEADER_BYTES + len(first)
        self._first_at = self.tail
        self._reserve_bytes = 0
        self._written += 1
        self.stats.rotations_total += 1

    def sync(self, done: Callable[[], None], *, worker: Worker | None = None) -> None:
        if self._file is None:  # no frame waits
            done()
            return
        files, position, covered = [*self._behind, self._file], self.position, self._written
        callbacks, self._callbacks = self._callbacks, []
        self._syncing += 1
        began_ns = self._clock.monotonic_ns()

        def finished(error: Exception | None) -> None:
            self._syncing -= 1
            if error is not None:
                self._fail(error)
            self.stats.synced((self._clock.monotonic_ns() - began_ns) // 1000)
            for file in files[:-1]:
                if file in self._behind:
                    self._behind.remove(file)
                    # Queue the close behind the pending syncs: one of them may sync this file.
                    self._worker.submit(partial(close_quietly, file), lambda error: None)
            self.synced_to = max(self.synced_to, position)
            self._synced = max(self._synced, covered)
            self.stats.queue_depth = self._written - self._synced
            self.on_synced(self.synced_to)
            done()
            for callback in callbacks:
                try:
                    callback()
                except Exception as failure:  # the callbacks after it are called all the same
                    log.failure("callback_failed", failure)

        notes = self.ledger.take()
        (worker or self._worker).submit(lambda: self._datasync(files, notes), finished)

    def sync_now(self) -> None:
        self.sync(lambda: None, worker=INLINE)

    def after_sync(self, done: Callable[[], None]) -> None:
        if self._written > self._synced or self._syncing:
            self._callbacks.append(done)
        else:
            done()

    def tick(self) -> None:
        """Do periodic work: sync, prepare the next file, and create one that could not be created before."""
        if self.state in _ENDS:
            return
        if not self._dir.is_there:
            self._fail(OSError(errno.ENOENT, "the data directory was removed or renamed"))
        if self._file is None:
            if not self._preparing:
                self._begin(self._worker)
            return
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._noted_ns >= NOTE_NS:  # so that an older copy of the last file is detected
            self._noted_ns = now_ns
            self.ledger.note_reached(self.synced_to)
        if (self._written > self._synced or self._behind or self._callbacks or self.ledger.waits) and not self._syncing:
            self.sync(lambda: None)
        if (
            self.tail > self._file_bytes // (16 if self.stats.slow_us > SLOW_US else 2)
            or self.state is LogState.READ_ONLY
        ):
            self.prepare()
        if self.state is LogState.READ_ONLY and self._spare is not None and self._large is None:
            with suppress(OSError):
                self.rotate()  # failed before: the log is read-only until it works
                self._go(LogState.OPEN)

    def prepare(self) -> bool:
        """Return whether `rotate` need not wait for its file, or has to report a failure. Else have it created."""
        if self._spare is not None or self._file is None or self._not_prepared:
            self._not_prepared = False
            return True
        if not self._preparing:
            self._prepare()
        return False

    def end(self) -> int:
        """Take no more frames. Return the number of the snapshot that replaces the log: no file of the log has it."""
        if self._file is None:
            raise LogRefused(self.read_only)
        self._behind.append(self._file)
        self._file = None
        self._go(LogState.STOPPED, "the server stops")
        return self.number + 1

    def fence(self, reason: str) -> None:
        """Refuse all frames from now on: another server continues the log."""
        self.finish_large()
        self.sync_now()  # frames that are written may be acknowledged with the next sync
        if self._file is not None:
            self._behind.append(self._file)
        self._file = None
        self._go(LogState.FENCED, reason)

    def close(self, *, replaced: bool = False) -> None:
        """Close the files. Sync them first, unless a snapshot has `replaced` them. Raise nothing.

        Failures were reported before.
        """
        self.finish_large()
        if not replaced and (self._file is not None or self._behind):
            with suppress(OSError):
                self._datasync([*self._behind, *([] if self._file is None else [self._file])], self.ledger.take())
        for file in (*self._behind, self._file, self._spare and self._spare[1]):
            if file:
                close_quietly(file)
        self._file = None
        self._behind.clear()
        self.ledger.close(replaced=replaced)

    def _create(self, header: walfile.Header, *, reserve_bytes: int = 0) -> File:
        """Create a durable file without frames, reserved in full."""
        with self._dir.new_file(self._dir.wal_path(header.number), open_after=True) as file:
            file.allocate(max(self._file_bytes, reserve_bytes))
            file.pwrite(walfile.encode_header(header), 0)
        return file

    def _prepare(self) -> None:
        """Have the next file created, or the one that there is enlarged. It is synced before its size counts."""
        self._preparing = True
        spare, self._spare = self._spare, None
        number, reserve_bytes = self.number + 1 if spare is None else spare[0], self._reserve_bytes
        made = [] if spare is None else [spare[1]]

        def work() -> None:
            if spare is None:
                made.append(self._create(walfile.Header(number), reserve_bytes=reserve_bytes))
            elif spare[1].size() < reserve_bytes:
                spare[1].allocate(reserve_bytes)  # it is used as it is if there is no space
                made.clear()
                spare[1].sync()
                made.append(spare[1])

        def finished(error: Exception | None) -> None:
            self._preparing, self._not_prepared = False, not made
            if made and self._file is not None and self.number < number:
                self._spare = number, made[0]
                if error is None:
                    if self.state is LogState.READ_ONLY:
                        self._go(LogState.OPEN)
                    if reserve_bytes:
                        at = walfile.HEADER_BYTES
                        read_ahead(self._writer, made[0], at, reserve_bytes, lambda: self._large is None)
            else:
                for file in made or ([] if spare is None else [spare[1]]):
                    close_quietly(file)  # without a sync, its size may not be durable

        self._worker.submit(work, finished)

    def _datasync(self, files: list[File], notes: list[bytes]) -> None:
        """Sync the files in order. Raise `OSError` if a sync fails, or if one has failed before.

        Runs on the worker's thread or on the owner's. The kernel reports a failed sync once and then forgets the pages
        that it could not write, so the next sync of the same file succeeds though they are lost. One sync at a time,
        and none after a failed one: otherwise the thread that did not get the error would acknowledge what is lost.
        """
        with self._sync_lock:
            if self._sync_failed:
                raise OSError(errno.EIO, "an earlier sync of the log failed")
            try:
                for file in files:
                    file.datasync()
            except OSError:
                self._sync_failed = True
                self._dir.note_failed_sync()
                raise
            self.ledger.write(notes)

    def _go(self, state: LogState, reason: Exception | str | None = None) -> None:
        """Change the state, for this reason if the log then refuses frames."""
        if state not in _NEXT[self.state] and state is not self.state:
            raise RuntimeError(f"a log that is {self.state.name} cannot become {state.name}")
        if isinstance(reason, Exception):
            reason = reason_of(reason)
            if self.read_only is None:
                log.error("log_read_only", reason=reason, file=self.number, offset=self.tail)
        self.state, self.read_only = state, reason

    def _fail(self, error: Exception) -> NoReturn:
        """End the process. What the last frames have become is unknown until the next start has read the files."""
        log.error("log_failed", reason=reason_of(error), file=self.number, offset=self.tail)
        self._go(LogState.FAILED, self.read_only)
        self.failed(error)


def _raise(error: Exception) -> NoReturn:
    raise error
