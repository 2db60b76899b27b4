"""The store of a running server: its threads, its timer, recovery at start and the last checkpoint at stop."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

import msgspec

from topics import logs
from topics.clock import Clock
from topics.config import Settings
from topics.engine.delays import GATHER_TURNS
from topics.engine.durable.deferred_replay import Backlog
from topics.engine.durable.recovery import Recovered
from topics.engine.durable.scrub import Scrub
from topics.engine.durable.store import Store
from topics.engine.engine import Engine
from topics.engine.state.topics import State
from topics.engine.steps import Steps
from topics.server.limits import os_limits
from topics.server.limits.loop_holds import Cause
from topics.server.loop.samples import Samples
from topics.server.loop.sliced_work import Slices
from topics.storage.datadir import DataDir, DataDirError
from topics.storage.fs import Fs, read_whole
from topics.storage.log.wal import Wal

log = logs.Log("storage")

Done = Callable[[Exception | None], None]
T = TypeVar("T")

# A thread that returns from a sync waits at most this long for the interpreter. With the default of 5 ms, a sync that
# takes 0.1 ms would be answered after 5 ms whenever the loop is busy.
SWITCH_INTERVAL_S = 0.0005

# A thread with long work rests this often, for a moment. Otherwise the kernel leaves it on its core until a tick finds
# that its slice is used up, which takes 3 to 7 ms. A loop on the same core waits that long, and cannot even ask for the
# interpreter.
WORK_NS = 500_000
REST_S = 0.00005

# How long the server trusts that data of a segment matches its checksum. Comparing at every read would double the time
# of a small read, and of a read from the disk too, because it takes whole chunks.
CHECKED_FOR_NS = 3_600_000_000_000

LOOK_AT_BACKUP_NS = 60_000_000_000

OVERDUE = 1.25  # times `checkpoint_wal_bytes`, from which on a checkpoint does not wait for a file


class _Cancelled(Exception):
    """The server stops while its data is restored or replayed: raised to end the thread that does it."""


async def on_thread(work: Callable[[Callable[..., None]], T]) -> T:
    """Run a long part of a start on a thread, which calls the argument of `work` now and then.

    That ends the thread if this is cancelled: the process cannot exit before it.
    """
    cancelled = False

    def progress(*_: object) -> None:
        if cancelled:
            raise _Cancelled

    try:
        return await asyncio.to_thread(work, progress)
    except asyncio.CancelledError:
        cancelled = True
        raise


class ThreadWorker:
    """One thread that runs one piece of work after another and reports each result on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self.report: Callable[[Done, Exception | None], None] = lambda done, error: done(error)  # runs on the loop
        self._rested_ns = 0
        self._queue: SimpleQueue[tuple[Callable[[], None], Done] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None], done: Done) -> None:
        """Run `work` on the thread, then `done` on the loop with the exception or None."""
        self._queue.put((work, done))

    def rest(self) -> None:
        if time.perf_counter_ns() - self._rested_ns > WORK_NS:
            time.sleep(REST_S)
            self._rested_ns = time.perf_counter_ns()

    async def close(self) -> None:
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        # Bound: the lifetime of the server. `close` puts None behind the last piece of work.
        while (job := self._queue.get()) is not None:
            work, done = job
            self._rested_ns = time.perf_counter_ns()
            try:
                work()
            except Exception as error:
                self._loop.call_soon_threadsafe(self.report, done, error)
            else:
                self._loop.call_soon_threadsafe(self.report, done, None)


async def _nothing() -> None:
    pass


def open_directory(settings: Settings) -> DataDir | None:
    """Lock the data directory of this server, and return it. Raise `DataDirError` if it cannot be used.

    With a replica it is opened later: an empty one is restored first.
    """
    if settings.data_dir is None:
        return None
    datadir = DataDir(Fs(maps=settings.tls_cert is None), str(settings.data_dir))
    if settings.replica is None:
        datadir.open()
    return datadir


class StoreHost:
    """The store of a server, and its thread. What it does on the loop runs in slices."""

    def __init__(
        self, settings: Settings, clock: Clock, loop: asyncio.AbstractEventLoop, datadir: DataDir, state: State,
        wal: Wal, *, rewrite_percent: int = 0,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._clock = clock
        self._loop = loop
        self._slices: Slices | None = None
        self._store_worker = ThreadWorker(loop, "topics-store")
        self.store = Store(
            datadir, state, wal, worker=self._store_worker, clock=clock,
            cold_dir=None if settings.cold_dir is None else str(settings.cold_dir),
            rewrite_percent=rewrite_percent, hot_segments=settings.hot_retain_segments,
            hot_bytes=settings.hot_retain_bytes, open_files=os_limits.descriptors().segment_files, runner=self._run,
        )  # fmt: skip

    def _run(self, steps: Steps[None], done: Done) -> None:
        assert self._slices is not None, "nothing runs in steps before `begin`"
        self._slices.run(steps, lambda _: done(None), done, Cause.CHECKPOINT)

    async def _idle(self) -> None:
        idle = asyncio.Event()
        self.store.when_idle(idle.set)
        await idle.wait()


class Storage(StoreHost):
    def __init__(
        self, settings: Settings, clock: Clock, loop: asyncio.AbstractEventLoop, datadir: DataDir, state: State
    ) -> None:
        self._sync_worker = ThreadWorker(loop, "topics-sync")
        self._write_worker = ThreadWorker(loop, "topics-write")
        self.wal = Wal(
            datadir, file_bytes=settings.wal_file_bytes, worker=self._sync_worker, clock=clock,
            writer=self._write_worker,
        )  # fmt: skip
        super().__init__(
            settings, clock, loop, datadir, state, self.wal, rewrite_percent=settings.rewrite_removed_percent
        )
        self.scrub = Scrub(self.store, clock, settings.scrub_interval_ms)
        self.backup_ms: int | None = None  # when the backup was completed last; None if that is unknown
        self._backup_due_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._engine: Engine | None = None
        # Called at a stop, around the last checkpoint.
        self.before_checkpoint: Callable[[], Awaitable[object]] = _nothing
        self.after_checkpoint: Callable[[], Awaitable[object]] = _nothing
        self.backlog: Backlog | None = None

    @classmethod
    async def open(
        cls,
        settings: Settings,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        datadir: DataDir,
        state: State,
        *,
        on_progress: Callable[[float], None],
    ) -> Storage:
        """Recover `state` from the data directory on a thread, so that probes are answered meanwhile.

        Call `on_progress` on that thread with the share of the log that is replayed. Until this returns, only that
        thread may use `state`.
        """
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        storage = cls(settings, clock, loop, datadir, state)

        def work(progress: Callable[..., None]) -> Recovered:
            def note(share: float) -> None:
                on_progress(share)
                progress()

            # The first checkpoint of a replica has everything.
            return storage.store.recover(note, defer_memory=settings.replica is None)

        began = clock.monotonic_ns()
        found = await on_thread(work)
        if settings.replica is not None and not found.unchanged and storage.store.snapshot_number != found.next_number:
            reason = storage.store.retries.reason
            raise DataDirError(f"the snapshot that a replica begins with could not be written: {reason}")
        storage.backlog = found.backlog
        log.info(
            "recovered",
            topics=len(state.by_name),
            records=state.totals.records,
            entries=found.entries,
            damaged=len(found.damage),
            took_ms=(clock.monotonic_ns() - began) // 1_000_000,
        )
        return storage

    def begin(self, engine: Engine, slices: Slices) -> None:
        """Connect the engine to the log and the store, and start the timer. Long work runs in `slices`."""
        self._engine, self._slices = engine, slices
        self._store_worker.report = self._report_stored
        engine.attach(self.wal, self.backlog)
        self.store.commits = engine.commits
        engine.saver = self.store.when_saved
        engine.commits.gather_turns = GATHER_TURNS
        self._tick()
        self._replay_some()

    def keep_samples(self, samples: Samples) -> None:
        """Load the samples of the last day from the directory, and save them there from now on."""
        path = self.store.dir.samples_path
        try:
            samples.load(read_whole(self.store.fs, path))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            log.warning("samples_not_read", file=path, reason=str(error))

        def save(data: bytes) -> None:
            def saved(error: Exception | None) -> None:
                if error is not None:  # on a full disk, above all: the history matters least
                    log.warning("samples_not_saved", file=path, reason=str(error))

            self.store.submit(lambda: self.store.dir.write_file(path, [data], self._store_worker), saved)

        samples.save = save

    def _report_stored(self, done: Done, error: Exception | None) -> None:
        assert self._slices is not None
        cause = Cause.CHECKPOINT if self.store.is_snapshotting else Cause.SEAL
        began_ns = self._clock.monotonic_ns()
        done(error)
        self._slices.holds.note(cause, self._clock.monotonic_ns() - began_ns)

    def _replay_some(self) -> None:
        """Replay records of `memory` topics, a few per turn of the loop."""
        if not self._closing and self._engine is not None and self._engine.replay_some():
            self._loop.call_soon(self._replay_some)

    async def close(self) -> None:
        """Write a last checkpoint, so that the next start has nothing to replay, and end the threads.

        Raise `OSError` at the end if the checkpoint failed.
        """
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._engine is not None:
            self._engine.replay_all()
        await self.before_checkpoint()
        await self._idle()
        outcome: list[Exception | None] = []
        began = self.store.checkpoint(outcome.append, clean=True)
        await self._idle()
        failure = None
        if not began or outcome != [None]:
            failure = self.store.retries.reason or self.wal.read_only or "the log is not complete"
        await self.after_checkpoint()
        self.store.remove_kept()
        for worker in (self._store_worker, self._write_worker, self._sync_worker):
            await worker.close()
        await asyncio.sleep(0)  # run the callbacks that the workers reported last
        self.store.close()
        if failure is not None:
            raise OSError(f"the last snapshot is not written, so the next start replays the log: {failure}")

    def _tick(self) -> None:
        assert self._slices is not None
        began_ns, due = self._clock.monotonic_ns(), self._due()
        if self._engine is not None and self._engine.routers.table.moved:
            self._engine.routers.mark_moved()
        self.wal.tick()
        if self._engine is not None and self.wal.read_only is None:
            self._engine.queues.log_returns()
        self.store.caches.period = began_ns // CHECKED_FOR_NS
        # If the log fills its files faster than they are prepared, the checkpoint must not wait for one.
        overdue_bytes = self._settings.checkpoint_wal_bytes * OVERDUE
        if due and (self.wal.prepare() or self._grown_bytes() >= overdue_bytes):
            self.store.checkpoint()
        self.store.save()
        self.scrub.tick()
        if self._settings.backup_dir is not None and began_ns >= self._backup_due_ns:
            self._backup_due_ns = began_ns + LOOK_AT_BACKUP_NS
            self._store_worker.submit(self._look_at_backup, lambda error: None)
        self._slices.holds.note(Cause.CHECKPOINT if due else Cause.UPKEEP, self._clock.monotonic_ns() - began_ns)
        self._timer = self._loop.call_later(self._settings.sync_interval_ms / 1000, self._tick)

    def _look_at_backup(self) -> None:
        """Note when the backup was completed last: each run writes its FORMAT file again. Runs on the worker."""
        assert self._settings.backup_dir is not None
        try:
            self.backup_ms = int((self._settings.backup_dir / "FORMAT").stat().st_mtime * 1000)
        except OSError:
            self.backup_ms = 0  # there is none: its age is that of the epoch, and fires the alert

    def _grown_bytes(self) -> int:
        return self.wal.stats.bytes_written_total - self.store.bytes_at_checkpoint

    def _due(self) -> bool:
        if self.store.retries.reason is not None:
            return self.store.retries.may_begin
        grown = self._grown_bytes()
        if grown >= self._settings.checkpoint_wal_bytes:
            return True
        changed = grown > 0 or self.store.rewriter.has_replaced
        return changed and self.checkpoint_age_ms >= self._settings.checkpoint_interval_ms

    @property
    def now_ms(self) -> int:
        return self._clock.now_ms()

    @property
    def checkpoint_age_ms(self) -> int:
        """The time since the last checkpoint, or since the start. Without writes there is no checkpoint."""
        return self._clock.now_ms() - self.store.last_checkpoint_ms
