"""Storage with threads under it: what the engine's store needs of an event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from topics import logs
from topics.engine.durable.deferred_replay import Backlog
from topics.engine.durable.store import Store
from topics.engine.state.topics import State
from topics.engine.write.commit import Commits
from topics.server.limits import machine
from topics.storage.datadir import DataDir
from topics.storage.fs import RealFs
from topics.storage.log.wal import Wal

if TYPE_CHECKING:
    from topics.server.app import TopicsApp

log = logs.Log("storage")

Done = Callable[[Exception | None], None]

# A thread that comes back from a sync waits this long at most for its turn. With the interpreter's own 5 ms, a sync of
# 0.1 ms would be answered after 5 ms whenever the loop is busy.
SWITCH_INTERVAL_S = 0.0005

GATHER_TURNS = 2  # see `Commits.gather_turns`; one is too short for the answers to get out and the next writes in


class RecoveryCancelled(Exception):
    """The server was told to stop while it replayed its log: the thread that does so gives up."""


class ThreadWorker:
    """One thread that does one piece of work after the other and reports back on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Callable[[], None], Done] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None], done: Done) -> None:
        self._queue.put((work, done))

    async def close(self) -> None:
        """Lets it finish what it has, and waits for that."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        # Bound: the life of the server. `close` puts None behind the last piece of work.
        while (job := self._queue.get()) is not None:
            work, done = job
            try:
                work()
            except Exception as error:
                self._loop.call_soon_threadsafe(done, error)
            else:
                self._loop.call_soon_threadsafe(done, None)


class Storage:
    """The store of a running server, its threads and its timers."""

    def __init__(self, app: TopicsApp, datadir: DataDir, state: State) -> None:
        settings = app.settings
        self._app = app
        self._settings = settings
        self._sync_worker = ThreadWorker(app.loop, "topics-sync")
        self._store_worker = ThreadWorker(app.loop, "topics-store")
        self.wal = Wal(datadir, file_bytes=settings.wal_file_bytes, worker=self._sync_worker, clock=app.clock)
        self.store = Store(
            datadir,
            state,
            self.wal,
            worker=self._store_worker,
            clock=app.clock,
            cold_dir=None if settings.cold_dir is None else str(settings.cold_dir),
            hot_segments=settings.hot_retain_segments,
            hot_bytes=settings.hot_retain_bytes,
            open_files=machine.descriptors().segment_files,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self.backlog: Backlog | None = None

    @classmethod
    async def open(cls, app: TopicsApp, state: State) -> Storage:
        """Take the data directory and fill `state` from it on a thread, so that probes are answered meanwhile.

        Until this returns, only that thread may touch `state`.
        """
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        datadir = DataDir(RealFs(), str(app.settings.data_dir))
        await asyncio.to_thread(datadir.open)
        storage = cls(app, datadir, state)

        cancelled = False

        def progress(share: float) -> None:
            app.startup.progress = share
            if cancelled:
                raise RecoveryCancelled

        began = app.clock.monotonic_ns()
        try:
            found = await asyncio.to_thread(storage.store.recover, progress, defer_memory=True)
        except asyncio.CancelledError:
            cancelled = True  # a process does not end before its threads do, and a replay may take long
            raise
        storage.backlog = found.backlog
        log.info(
            "recovered",
            topics=len(state.by_name),
            records=state.totals.records,
            entries=found.entries,
            damaged=len(found.damage),
            took_ms=(app.clock.monotonic_ns() - began) // 1_000_000,
        )
        return storage

    def begin(self, commits: Commits) -> None:
        self.store.commits = commits
        self._app.engine.saver = self.store.when_saved
        commits.gather_turns = GATHER_TURNS
        self._tick()
        self._replay_some()

    def _replay_some(self) -> None:
        """Replay records of `memory` topics, a few in each turn of the loop."""
        if not self._closing and self._app.engine.replay_some():
            self._app.loop.call_soon(self._replay_some)

    async def close(self) -> None:
        """An orderly stop: everything into a last snapshot, so that the next start has nothing to replay."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._app.engine.replay_all()
        await self._last_checkpoint()
        for worker in (self._store_worker, self._sync_worker):
            await worker.close()
        await asyncio.sleep(0)  # what the workers reported last
        self.store.close()

    async def _last_checkpoint(self) -> None:
        await self._idle()
        self.store.checkpoint(clean=True)
        await self._idle()

    async def _idle(self) -> None:
        idle = asyncio.Event()
        self.store.when_idle(idle.set)
        await idle.wait()

    def _tick(self) -> None:
        self.wal.tick()
        if self._due():
            self.store.checkpoint()
        self.store.save()
        self._timer = self._app.call_later(self._settings.sync_interval_ms, self._tick)

    def _due(self) -> bool:
        grown = self.wal.stats.bytes_written_total - self.store.bytes_at_checkpoint
        if grown >= self._settings.checkpoint_wal_bytes:
            return True
        age_ms = self._app.clock.now_ms() - self.store.last_checkpoint_ms
        return grown > 0 and age_ms >= self._settings.checkpoint_interval_ms
