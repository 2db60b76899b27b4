"""The standby of a running server: threads and timers, the load of its state, and its announcement in the bucket."""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import socket
from collections.abc import Callable

import msgspec

from topics import logs
from topics.clock import Clock
from topics.config import Settings
from topics.engine.durable.replication import ALIVE_MS
from topics.engine.durable.standby import FollowedClock, Follower, Standby
from topics.engine.engine import Engine
from topics.engine.state.topics import State
from topics.errors import Code, TopicsError
from topics.server.loop.replication import about_server
from topics.server.loop.sliced_work import Slices
from topics.server.loop.storage import StoreHost, ThreadWorker, on_thread
from topics.storage.datadir import DataDir
from topics.storage.log.background import Log, LogRefused
from topics.storage.log.frame import Frames
from topics.storage.log.wal import Wal
from topics.storage.replica import objects, start
from topics.storage.replica.bucket import Bucket, open_bucket
from topics.storage.replica.following import Following
from topics.storage.replica.start import Loaded, Opened
from topics.storage.worker import INLINE

log = logs.Log("replica")

RETRY_S = 1.0  # while there is nothing to follow


class FollowedLog(Log):
    """The log of an engine that follows another one: it takes nothing."""

    def write(self, frames: list[Frames]) -> None:
        raise LogRefused("this server is a standby")

    def write_large(self, frames: list[Frames], done: Callable[[], None]) -> None:
        self.write(frames)


class StandbyService(StoreHost):
    """The standby of one server, until it takes over, or has to load its state again."""

    def __init__(
        self, settings: Settings, clock: Clock, loop: asyncio.AbstractEventLoop, datadir: DataDir, state: State,
        *, address: str,
    ) -> None:  # fmt: skip
        wal = Wal(datadir, file_bytes=settings.wal_file_bytes, worker=INLINE, clock=clock)
        super().__init__(settings, clock, loop, datadir, state, wal)
        self._dir = datadir
        self._state = state
        self.clock = FollowedClock(clock)  # of the engine
        self._address = address
        self._name = re.sub(r"[^A-Za-z0-9.-]+", "-", address.partition("://")[2]) or socket.gethostname()
        self._worker = ThreadWorker(loop, "topics-standby")
        self._announcer = ThreadWorker(loop, "topics-announce")
        self._bucket = open_bucket(settings.replica or "", timeout_ms=settings.replica_timeout_ms)
        self._loaded: Loaded
        self._follower: Follower
        self.standby: Standby | None = None
        self.on_load: Callable[[], None] = lambda: None  # called if the state must be loaded again
        self.on_taken: Callable[[Bucket, Opened], None] = lambda bucket, opened: None

    async def load(self) -> bool:
        """Restore the directory, and load the state. Return False if this server is the writer.

        It is, if its directory is that of the last writer, or if nobody has begun the replica for so long that a
        standby would take over.
        """
        waits = is_begun = False
        begins_ns = self._begins_ns()

        def work(progress: Callable[..., None]) -> Loaded | None:
            loaded = start.load(self._bucket, self._dir.fs, self._dir.root, progress=progress)
            if loaded is not None:
                self._dir.open()
                self._follower = Follower(self._dir, self._state, self.store.caches, cold_dir=self.store.cold_dir)
            return loaded

        # Bound: the first checkpoint of a writer.
        while True:
            try:
                found = await on_thread(work)
                break
            except start.NothingToFollow as error:
                may_begin = error.is_empty and not self._settings.no_takeover
                if may_begin and self._clock.monotonic_ns() > begins_ns:
                    if await asyncio.to_thread(start.begin_replica, self._bucket) or is_begun:
                        found = None
                        break
                    # Another standby begins. If it ends before it has a term, this one begins after another wait.
                    is_begun, begins_ns = True, self._begins_ns()
                if not waits:
                    log.info("waiting_for_writer", reason=str(error))
                waits = True
                await asyncio.sleep(RETRY_S)
        if found is None:
            await self._end_threads()
            return False
        self._loaded = found
        log.info("loaded", object=found.last.number, term=found.term, topics=len(self._state.by_id))
        return True

    def _begins_ns(self) -> int:
        """Return when to begin a replica that stays empty. Two standbys that start together wait differently long."""
        return self._clock.monotonic_ns() + int(self._settings.takeover_after_ms * random.uniform(2e6, 3e6))

    def begin(self, engine: Engine, slices: Slices) -> None:
        """Follow the sequence with this engine."""
        settings, self._slices = self._settings, slices
        engine.staging.attach(FollowedLog())
        engine.staging.follows = engine.state.totals.follows = True
        self.store.commits = engine.commits
        self._follower.routers.resume()
        self._follower.grew = engine.staging.grew
        following = Following(
            last=self._loaded.last, term=self._loaded.term, name=self._name, takes_over=not settings.no_takeover,
            takeover_after_ms=settings.takeover_after_ms, now_ms=self._clock.monotonic_ns() // 1_000_000,
        )  # fmt: skip
        self.standby = standby = Standby(
            self._loaded, about_server(settings, self._address), following, self._follower, self.store,
            worker=self._worker, clock=self._clock,
            followed=self.clock, later=self._later, runner=self._run, save_bytes=settings.checkpoint_wal_bytes // 2,
            instance=secrets.token_hex(8),
        )  # fmt: skip
        standby.on_load = self.on_load
        standby.on_taken = lambda opened: self.on_taken(self._bucket, opened)
        standby.begin()
        self._announce()

    def not_writer(self) -> TopicsError:
        """Return the error of a write."""
        head = self._loaded.last if self.standby is None else self.standby.following.writer
        writer = head.address or None
        where = f"send it to the writer, {writer}" if writer else "send it to the writer"
        return TopicsError(Code.NOT_WRITER, f"this server is a standby; {where}", detail={"writer": writer})

    async def close(self) -> None:
        """Follow no more, and end the threads. What the directory has is complete up to some object."""
        if self.standby is not None:
            self.standby.end()
        self._announcer.submit(lambda: self._bucket.delete([self._object]), lambda error: None)
        await self._idle()
        await self._end_threads()
        self.store.close()

    async def _end_threads(self) -> None:
        for worker in (self._worker, self._store_worker, self._announcer):
            await worker.close()

    @property
    def _object(self) -> str:
        return objects.STANDBYS + self._name

    def _announce(self) -> None:
        """Show the writer, and `topics replica status`, that this server follows."""
        standby, settings = self.standby, self._settings
        if standby is None or standby.is_over:
            return

        def done(error: Exception | None) -> None:
            self._later(min(ALIVE_MS, settings.takeover_after_ms // 3), self._announce)

        data = msgspec.json.encode(self.announced(standby))
        self._announcer.submit(lambda: self._bucket.put(self._object, data), done)

    def announced(self, standby: Standby) -> objects.Announced:
        return objects.Announced(
            name=self._name, address=self._address, takes_over=not self._settings.no_takeover,
            object=standby.following.number, lag_ms=standby.lag_ms, at_ms=self._clock.now_ms(),
        )  # fmt: skip

    def _later(self, ms: int, then: Callable[[], None]) -> None:
        self._loop.call_later(ms / 1000, then)
