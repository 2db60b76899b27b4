"""A standby: follows the sequence of a replica, keeps a directory and a state equal to the writer's, and takes over.

The bytes of each object go into the same log files as at the writer, and are then applied in steps. Where a log file
begins, the standby takes a snapshot of its own once in a while. All of it is marked as a copy: a recovery of the
directory reports what the writer may have acknowledged besides. A takeover creates the term behind the last object that
is applied, and nothing else: the server then recovers the directory as any other.
"""

from __future__ import annotations

from collections.abc import Callable

from topics import logs
from topics.clock import Clock
from topics.engine.durable.following import FollowedClock, Follower
from topics.engine.durable.store import Runner, Store
from topics.engine.steps import Steps
from topics.storage import snapshot as snap
from topics.storage.fs import File
from topics.storage.replica import objects, start
from topics.storage.replica.following import Following, Step
from topics.storage.replica.objects import Damaged, Object
from topics.storage.replica.start import Loaded, Opened, Server
from topics.storage.replica.uploader import Later
from topics.storage.worker import Worker

log = logs.Log("replica")

MAX_RETRY_MS = 5_000


class Standby:
    """All methods run on the owner's thread, except for the work given to `worker`."""

    def __init__(
        self, loaded: Loaded, server: Server, following: Following, follower: Follower, store: Store, *,
        worker: Worker, clock: Clock, followed: FollowedClock, later: Later, runner: Runner, save_bytes: int,
        instance: str,
    ) -> None:  # fmt: skip
        self.following = following
        self.follower = follower
        self.store = store
        self.on_load: Callable[[], None] = lambda: None  # called if the state must be loaded again
        self.on_end: Callable[[], None] = lambda: None  # called when the writer has stopped in order
        self.on_taken: Callable[[Opened], None] = lambda opened: None  # called when this server is the writer
        self.is_over = False  # nothing is followed any more
        self.failures_total = 0
        self._loaded = loaded
        self._bucket = loaded.history.bucket
        self._server = server
        self._dir = store.dir
        self._worker = worker
        self._clock = clock
        self._followed = followed
        self._later = later
        self._runner = runner
        self._instance = instance
        self._save_bytes = save_bytes
        self._grown_bytes = 0  # of the log since the last snapshot
        self._retry_ms = 0
        self._file: File | None = None
        followed.as_of_ms = following.as_of_ms
        store.follows = True
        store.snapshot_number = follower.snapshot_number

    @property
    def lag_ms(self) -> int:
        return self.following.lag_ms(self._now_ms())

    def begin(self) -> None:
        """Ask for the next object."""
        found: list[Object] = []
        heads: dict[int, int] = {}

        def work() -> None:
            number = self.following.number + 1
            if (data := self._bucket.get(objects.log_name(number))) is not None:
                one = self._loaded.history.decode(data, number)
                self._keep(one)
                heads.update(self._ephemeral_heads(one))
                found.append(one)

        def done(error: Exception | None) -> None:
            if self.is_over:
                return
            if error is not None:
                self._failed(error)
            elif found:
                self._retry_ms = 0
                self._take(found[0], heads)
            else:
                self._retry_ms = 0
                self._nothing()

        self._worker.submit(work, done)

    def end(self) -> None:
        self.is_over = True
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- on the worker

    def _keep(self, found: Object) -> None:
        """Write the bytes of an object into the log files of the directory."""
        if found.head.kind != "bytes" or found.head.term != self.following.term:
            return
        for number, at, data in objects.pieces_of(found):
            path = self._dir.wal_path(number)
            if self._file is None or self._file.path != path:
                if self._file is not None:
                    self._file.close()
                self._file = self._dir.fs.open(path, write=True, create=True)
            if at and self._file.size() < at:
                raise Damaged(f"{objects.log_name(found.head.number)} does not continue the log before it")
            self._file.pwrite(data, at)

    def _ephemeral_heads(self, found: Object) -> dict[int, int]:
        """Return the heads of topics, by id, as the last checkpoint of a writer that stops in order has them."""
        if found.head.kind != "checkpoint" or not found.checkpoint.clean:
            return {}
        checkpoint = found.checkpoint
        [ref] = [ref for ref in checkpoint.files if ref.path.endswith(".snap")]
        data = self._bucket.get(ref.name) or b""
        snapshot = snap.decode(data, path=ref.name, number=checkpoint.snapshot)
        return {topic.topic_id: topic.head for topic in snapshot.topics}

    # --- objects

    def _take(self, found: Object, heads: dict[int, int]) -> None:
        following = self.following
        step = following.take(found, self._now_ms())
        incomplete = found.head.kind == "checkpoint" and self.follower.is_incomplete
        if step is Step.LOAD or (step is Step.PASS and incomplete):
            self.on_load()
            return
        if step is Step.CONTINUE:
            log.info("writer_restarted", term=following.term, object=following.number)
        self._followed.as_of_ms = max(self._followed.as_of_ms, following.as_of_ms)
        if step is Step.APPLY:
            self._runner(self._apply(found), self._applied)
        elif step is Step.END:
            self.follower.end_ephemeral(heads)
            self._runner(self._end(found), self._applied)
        else:
            self.begin()

    def _apply(self, found: Object) -> Steps[None]:
        for number, at, data in objects.pieces_of(found):
            if not at and self._grown_bytes >= self._save_bytes and not self.store.is_snapshotting:
                self._grown_bytes = 0
                self.store.save_followed(number, lambda error: None)
                yield from self._captured()
            yield from self.follower.apply(number, at, data)
            self._grown_bytes += len(data)

    def _end(self, found: Object) -> Steps[None]:
        """Take the snapshot of a writer that has stopped in order: a takeover loses nothing then."""
        # Bound: the snapshot that is being written.
        while self.store.is_snapshotting:
            yield None
        outcome: list[Exception | None] = []
        self.store.save_followed(found.checkpoint.snapshot, outcome.append, clean=True)
        # Bound: the snapshot that was begun.
        while self.store.is_snapshotting:
            yield None
        if outcome == [None]:
            self.following.ended = found.checkpoint.files
            self.on_end()

    def _captured(self) -> Steps[None]:
        """Wait until a snapshot has what it needs of all topics: they must not change before."""
        commits = self.store.commits
        # Bound: the topics. The snapshot captures one per step of its own.
        while commits is not None and commits.before_change is not None:
            yield None

    def _applied(self, error: Exception | None) -> None:
        if self.is_over:
            return
        if error is not None:
            log.error("object_not_applied", object=self.following.number, reason=str(error))
            self.on_load()
        else:
            self.begin()

    def _failed(self, error: Exception) -> None:
        self.failures_total += 1
        if not self._retry_ms:
            log.warning("following_failed", object=self.following.number + 1, reason=str(error))
        self.following.failed(str(error))
        self._retry_ms = min(max(self._retry_ms * 2, self._server.interval_ms), MAX_RETRY_MS)
        self._later(self._retry_ms, self._again)

    def _again(self) -> None:
        if not self.is_over:
            self.begin()

    # --- the end of the sequence

    def _nothing(self) -> None:
        following, now_ms = self.following, self._now_ms()
        following.nothing(now_ms)
        if following.must_take_over(now_ms):
            self._take_over()
        elif following.is_silent(now_ms):
            self._look()
        else:
            self._later(self._server.interval_ms, self._again)

    def _look(self) -> None:
        """Look whether the sequence goes on behind objects that were removed while nothing was read."""
        history = self._loaded.history

        def done(error: Exception | None) -> None:
            if self.is_over:
                return
            if error is not None:
                self._failed(error)
            elif history.first_after(self.following.number) > self.following.number + 1:
                self.on_load()
            else:
                self.following.looked(self._now_ms())
                self.begin()

        self._worker.submit(history.refresh, done)

    def _take_over(self) -> None:
        following, opened = self.following, list[Opened | None]()
        log.info("taking_over", object=following.number, ended=following.ended is not None)

        def work() -> None:
            opened.append(
                start.succeed(
                    self._loaded, following.number, self._server, self._dir, instance=self._instance,
                    now_ms=self._clock.now_ms(),
                )
            )  # fmt: skip

        def done(error: Exception | None) -> None:
            if self.is_over:
                return
            if error is not None:
                self._failed(error)
            elif opened[0] is None:
                log.info("takeover_dropped", hint="another server has written meanwhile")
                self._look()
            else:
                self.end()
                self.on_taken(opened[0])

        self._worker.submit(work, done)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000
