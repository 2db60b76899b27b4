"""The replica of a running server: its threads and timers, the start, the stop, and the removal of old objects."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from topics import logs
from topics.engine.durable.replication import ALIVE_MS, Replication
from topics.server.loop.storage import ThreadWorker, on_thread
from topics.storage.replica import start, upkeep
from topics.storage.replica.bucket import Bucket, BucketError, open_bucket
from topics.storage.replica.history import History
from topics.storage.replica.objects import PROMOTE, Announced, Promote, log_name, read_promote
from topics.storage.replica.sequence import Server, State
from topics.storage.replica.uploader import Uploader

if TYPE_CHECKING:
    from topics.clock import Clock
    from topics.config import Settings
    from topics.engine.engine import Engine
    from topics.server.loop.storage import Storage
    from topics.storage.datadir import DataDir

log = logs.Log("replica")

LOOK_MS = 15_000  # how often the writer looks for standbys, while it knows none
PRUNE_MS = 3_600_000  # how often old objects are removed, at most
PRUNES = 24  # in the time that they are kept: each one lists the sequence, which a busy writer makes long


class ReplicaService:
    def __init__(
        self, settings: Settings, clock: Clock, loop: asyncio.AbstractEventLoop, bucket: Bucket, opened: start.Opened
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._loop = loop
        self._bucket = bucket
        self._opened = opened
        self._worker = ThreadWorker(loop, "topics-replica")
        self._file_worker = ThreadWorker(loop, "topics-replica-files")
        self._look_worker = ThreadWorker(loop, "topics-replica-looks")
        self._timer: asyncio.TimerHandle | None = None
        self._looked_ms = 0
        self.on_promote: Callable[[], None] = lambda: None  # called if a standby shall take over: this server must end
        self._hands_over = False  # to a standby, which an operator has chosen
        self._moved = asyncio.Event()
        self._pruned_ms = 0
        self.replication: Replication | None = None

    @classmethod
    async def prepare(
        cls, settings: Settings, clock: Clock, loop: asyncio.AbstractEventLoop, datadir: DataDir, *, address: str
    ) -> ReplicaService:
        """Check that the directory and the replica belong together, restore an empty directory, and open it."""

        def work(progress: Callable[..., None]) -> tuple[Bucket, start.Opened]:
            bucket = open_bucket(settings.replica or "", timeout_ms=settings.replica_timeout_ms)
            about = about_server(settings, address)
            opened = start.prepare(bucket, datadir.fs, datadir.root, about, now_ms=clock.now_ms(), progress=progress)
            datadir.open()
            return bucket, opened

        return cls(settings, clock, loop, *await on_thread(work))

    async def begin(self, storage: Storage, datadir: DataDir) -> None:
        """Begin a term, and wait until its first checkpoint is in the bucket.

        A new replica need not have one before the server is ready: no other server can continue it.
        """
        settings, opened, self._dir = self._settings, self._opened, datadir
        sequence = opened.sequence
        sequence.left = storage.wal.left
        uploader = Uploader(
            sequence, self._bucket, datadir, worker=self._worker, file_worker=self._file_worker, clock=self._clock,
            later=lambda ms, then: self._loop.call_later(ms / 1000, then), known=opened.known,
            cold_dir=None if settings.cold_dir is None else str(settings.cold_dir),
        )  # fmt: skip
        self.replication = replication = Replication(
            uploader, storage.store, self._clock, timeout_ms=settings.replica_timeout_ms,
            takeover_after_ms=settings.takeover_after_ms,
        )  # fmt: skip
        replication.on_state = self._moved.set
        uploader.on_checkpoint = self._prune
        number = storage.store.snapshot_number
        await asyncio.to_thread(start.claim, datadir, sequence)
        report = await asyncio.to_thread(uploader.read_checkpoint, number)
        uploader.synced(storage.wal.synced_to)
        report()
        self._tick()  # now: a standby must not take a long first checkpoint for silence
        await self._first_checkpoint(replication)

    def attach(self, engine: Engine) -> None:
        assert self.replication is not None
        self.replication.attach(engine.commits)
        engine.routers.table.moved = {}

    async def drain(self) -> bool:
        """Wait until no write waits for an upload. Return whether that is so."""
        return await self._wait(lambda: self.replication is None or not self.replication.check())

    async def close(self) -> None:
        """Wait until the end of the log is in the bucket, for as long as a write would, and end the threads."""
        replication = self.replication
        if replication is not None and replication.sequence.state in (State.OPENING, State.FOLLOWING):
            waited = await self._wait(lambda: replication.sequence.state in (State.ENDED, State.FENCED))
            if not waited:
                log.warning("end_not_uploaded", hint="a start elsewhere reports the last seqs of topics as lost")
            elif self._hands_over:  # a restart follows: it must not be quicker than the standby
                await asyncio.to_thread(start.claim, self._dir, replication.sequence, follows=True)
        if self._timer is not None:
            self._timer.cancel()
        for worker in (self._worker, self._file_worker, self._look_worker):
            await worker.close()

    async def _first_checkpoint(self, replication: Replication) -> None:
        sequence, is_new = replication.sequence, self._opened.is_new
        began_ns = self._clock.monotonic_ns()
        # Bound: the first checkpoint, or a failure of the bucket that lasts for `replica_timeout_ms`.
        while not await self._wait(lambda: sequence.state in (State.FOLLOWING, State.FENCED)):
            failure = replication.uploader.failure
            if failure:
                raise BucketError(failure)
            if is_new and sequence.state is State.OPENING:
                break  # there is much to upload
            log.info("uploading_checkpoint", hint="the server is ready once its state is in the replica")
        if sequence.state is State.FENCED:
            by = sequence.fenced_by
            raise start.NotOurs(
                f"{self._settings.replica} was taken over by {'another server' if by is None else by.host} while this "
                "server started; start it again with an empty directory to follow that one"
            )
        log.info("replicating", url=self._settings.replica, term=sequence.term, object=sequence.last_number,
                 took_ms=(self._clock.monotonic_ns() - began_ns) // 1_000_000)  # fmt: skip

    async def _wait(self, reached: Callable[[], bool]) -> bool:
        """Wait until `reached()`, for `replica_timeout_ms` at most. Return whether it is."""
        deadline = self._loop.time() + self._settings.replica_timeout_ms / 1000
        # Bound: the deadline.
        while not reached():
            self._moved.clear()
            try:
                await asyncio.wait_for(self._moved.wait(), deadline - self._loop.time())
            except TimeoutError:
                return reached()
        return True

    # --- standbys

    def _tick(self) -> None:
        """Report writes that wait for too long, refuse all if a standby may have taken over, and look for standbys."""
        assert self.replication is not None
        self.replication.check()
        after_ms, now_ms = self._settings.takeover_after_ms, int(self._loop.time() * 1000)
        if now_ms - self._looked_ms >= (ALIVE_MS if self.replication.followers else min(LOOK_MS, after_ms)):
            self._looked_ms = now_ms
            self._look()
        self._timer = self._loop.call_later(min(1000, after_ms // 4) / 1000, self._tick)

    def _look(self) -> None:
        replication, found, promote, is_taken = self.replication, list[Announced](), list[Promote | None](), False
        assert replication is not None
        sequence, number = replication.sequence, replication.sequence.last_number + 1

        def work() -> None:
            nonlocal is_taken
            found.extend(upkeep.standbys(self._bucket))
            promote.append(read_promote(self._bucket.get(PROMOTE)) if found else None)
            is_taken = self._bucket.get(log_name(number)) is not None

        def done(error: Exception | None) -> None:
            if error is not None:
                return  # what is known stays: a standby may still be there
            # An idle server would find out with its next write only that another one has taken over.
            sequence.is_doubtful = is_taken and number == sequence.last_number + 1 and not sequence.has_sent
            replication.note_standbys(found)
            [wanted], names = promote, [one.name for one in replication.followers]
            if wanted is None or wanted.now or wanted.term != sequence.term:
                return
            if wanted.standby in names:  # else it is gone, and nothing would come after this server
                log.info("promoting", standby=wanted.standby)
                self._hands_over = True
                self.on_promote()

        self._look_worker.submit(work, done)

    def _prune(self) -> None:
        now_ms = self._clock.now_ms()
        if now_ms - self._pruned_ms < max(PRUNE_MS, self._settings.replica_keep_ms // PRUNES):
            return
        self._pruned_ms = now_ms

        def work() -> None:
            if (history := History.open(self._bucket)) is not None:
                upkeep.prune(history, keep_ms=self._settings.replica_keep_ms, now_ms=now_ms)

        def done(error: Exception | None) -> None:
            if error is not None:
                log.warning("prune_failed", reason=str(error))

        self._file_worker.submit(work, done)


def about_server(settings: Settings, address: str) -> Server:
    """Return what objects of this server say about it."""
    return Server(
        url=settings.replica or "", host=socket.gethostname(), address=address,
        interval_ms=settings.replica_interval_ms, max_lag_bytes=settings.replica_max_lag_bytes,
    )  # fmt: skip


def address_of(settings: Settings, port: int) -> str:
    """Return where clients reach a server that listens on this port."""
    if settings.advertised_url is not None:
        return settings.advertised_url
    host = socket.gethostname() if settings.host in ("0.0.0.0", "::", "") else settings.host
    return f"{'http' if settings.tls_cert is None else 'https'}://{host}:{port}"
