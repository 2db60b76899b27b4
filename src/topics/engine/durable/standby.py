"""A standby: follows the sequence of a replica, keeps a directory and a state equal to the writer's, and takes over.

Bytes of the log are replayed through the functions of `recovery`, but to no end: routers move only as far as the log
says, and leases and records expire by the time of the log. So the state is that of the writer at the same place.

The bytes of each object go into the same log files as at the writer, and are then applied in steps. Where a log file
begins, the standby takes a snapshot of its own once in a while. All of it is marked as a copy: a recovery of the
directory reports what the writer may have acknowledged besides. A takeover creates the term behind the last object that
is applied, and nothing else: the server then recovers the directory as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from topics import logs
from topics.clock import Clock
from topics.engine.durable import entry_kinds
from topics.engine.durable.recovery import Recovery
from topics.engine.durable.snapshot_load import load_topics
from topics.engine.durable.store import Runner, Store
from topics.engine.routers import replay
from topics.engine.routers.graph import table_of
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.steps import Steps, run_all
from topics.errors import Corrupt, UnknownFormat
from topics.nesting import limit_restored
from topics.storage.datadir import DataDir
from topics.storage.fs import File, read_whole
from topics.storage.log import entry as entries
from topics.storage.log import walfile
from topics.storage.log.log_files import LogFile
from topics.storage.replica import objects, start
from topics.storage.replica.following import Following, Step
from topics.storage.replica.objects import PROMOTE, Damaged, Object
from topics.storage.replica.sequence import Server
from topics.storage.replica.start import Loaded, Opened
from topics.storage.replica.uploader import Later
from topics.storage.segments.segment_caches import SegmentCaches
from topics.storage.worker import Worker

log = logs.Log("replica")

MAX_RETRY_MS = 5_000
PER_STEP = 16  # entries: about 0.1 ms


class FollowedClock:
    """The time of the state, for an engine: that of the log, by the clock of the writer."""

    def __init__(self, clock: Clock) -> None:
        self.monotonic_ns = clock.monotonic_ns
        self.as_of_ms = 0

    def now_ms(self) -> int:
        return self.as_of_ms


class Follower:
    """Applies the log of another server to a state."""

    def __init__(self, datadir: DataDir, state: State, caches: SegmentCaches, *, cold_dir: str | None) -> None:
        """Load the snapshot of the directory, and replay its log. Blocks. Raise `Corrupt` or `DataDirError`."""
        self._dir = datadir
        self._state = state
        self._damage: list[str] = []
        self.grew: Callable[[Topic], None] = lambda topic: None  # called with each topic that may have grown, or ended
        # The last log file at whose end a topic lacks what it held in memory alone: a later checkpoint has that.
        self.lacks_in: int | None = None
        self.routers = replay.Recovering(state)
        try:
            with limit_restored():
                snapshot = load_topics(datadir, state, caches, cold_dir=cold_dir, damage=self._damage)
                self._recovery = Recovery(
                    datadir, state, self.routers, snapshot, self._damage, lambda share: None, defer_memory=False
                )
                self._recovery.replay_waiting()
        except UnknownFormat as error:
            raise datadir.unknown(str(error)) from error
        self.snapshot_number = snapshot.wal_number
        for number in datadir.wal_numbers():
            if number >= snapshot.wal_number:
                run_all(self.apply(number, 0, read_whole(datadir.fs, datadir.wal_path(number))))
        self.routers.is_replaying = False

    def apply(self, number: int, at: int, data: bytes) -> Steps[None]:
        """Replay bytes of log file `number` that begin at offset `at`. Raise `Corrupt` if they are no whole frames."""
        path = self._dir.wal_path(number)
        file = LogFile(number, path, data)
        frames = walfile.scan(data, start=0 if at else walfile.HEADER_BYTES)
        heads = self._heads()
        # Bound: the frames.
        while self._apply_some(frames, file, at):
            yield None
        for topic, head in heads.items():
            if topic.head != head:
                self.grew(topic)

    def _apply_some(self, frames: Iterator[walfile.FoundFrame | walfile.Damage], file: LogFile, at: int) -> bool:
        """Replay a few entries. Return whether there may be more."""
        changed: dict[Topic, None] = {}
        done = 0
        self.routers.is_replaying = True
        try:
            with limit_restored():
                for item in frames:
                    if not isinstance(item, walfile.FoundFrame):
                        raise Corrupt(file.path, at + item.at, "the replica has bytes of the log that are no frame")
                    self._note(item, changed)
                    self._recovery.replay(item, file)
                    done += 1
                    if item.frame.head.kind == entries.CONFIGURE:
                        if any(topic.needs_snapshot for topic in changed):
                            self.lacks_in = file.number
                    if done == PER_STEP:
                        break
        finally:
            self.routers.is_replaying = False
        for topic in changed:
            self.grew(topic)
        return done == PER_STEP

    def _note(self, item: walfile.FoundFrame, changed: dict[Topic, None]) -> None:
        """Note the topics that an entry changes by itself."""
        head = item.frame.head
        ids = {head.topic_id}
        if head.kind != entries.APPEND:
            ids.update(entry_kinds.touched_by(entries.decode(item.frame, path="", at=0)) or ())
        for topic_id in ids:
            if (topic := self._state.by_id.get(topic_id)) is not None:
                changed[topic] = None

    def _heads(self) -> dict[Topic, int]:
        """Return the heads of all topics that routers write into."""
        return {edge.dest: edge.dest.head for edge in table_of(self._state).edges.values()}


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
        self._snapshot = 0  # number of that of the last checkpoint
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

        def work() -> None:
            number = self.following.number + 1
            if (data := self._bucket.get(objects.log_name(number))) is not None:
                found.append(self._loaded.history.decode(data, number))
                self._keep(found[0])
            else:
                self.following.promote = objects.read_promote(self._bucket.get(PROMOTE))

        self._submit(work, lambda: self._take(found[0]) if found else self._nothing())

    def _submit(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Run `work` on the worker, and then `then`. If the bucket does not answer, ask again later."""

        def done(error: Exception | None) -> None:
            if self.is_over:
                return
            if error is None:
                self._retry_ms = 0
                then()
                return
            self.failures_total += 1
            if not self._retry_ms:
                log.warning("following_failed", object=self.following.number + 1, reason=str(error))
            self.following.failed(str(error))
            self._retry_ms = min(max(self._retry_ms * 2, self._server.interval_ms), MAX_RETRY_MS)
            self._later(self._retry_ms, self._again)

        self._worker.submit(work, done)

    def end(self) -> None:
        self.is_over = True  # the worker may still use the file

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

    # --- objects

    def _take(self, found: Object) -> None:
        following = self.following
        step = following.take(found)
        if found.head.kind == "checkpoint":
            self._snapshot = found.checkpoint.snapshot
        if step is Step.LOAD or self._must_load:
            self.on_load()
            return
        self._followed.as_of_ms = max(self._followed.as_of_ms, following.as_of_ms)
        if step is Step.APPLY:
            self._runner(self._apply(found), self._applied)
        elif step is Step.END:
            self._runner(self._end(found), self._applied)
        else:
            self.begin()

    def _apply(self, found: Object) -> Steps[None]:
        store = self.store
        for number, at, data in objects.pieces_of(found):
            if not at and self._grown_bytes >= self._save_bytes and not store.is_snapshotting:
                self._grown_bytes = 0
                store.save_followed(number, lambda error: None)
                # Bound: the topics. They must not change before the snapshot has captured them.
                while store.commits is not None and store.commits.before_change is not None:
                    yield None
            yield from self.follower.apply(number, at, data)
            self._grown_bytes += len(data)

    def _end(self, found: Object) -> Steps[None]:
        """Take the snapshot of a writer that has stopped in order: a takeover loses nothing then."""
        outcome: list[Exception | None] = []
        # Bound: a snapshot that is being written, and then this one.
        while self.store.is_snapshotting or not outcome:
            if not self.store.is_snapshotting:
                self.store.save_followed(found.checkpoint.snapshot, outcome.append, clean=True)
            yield None
        if outcome[0] is None:
            self.following.ended = found.checkpoint.files

    @property
    def _must_load(self) -> bool:
        """Whether a checkpoint has records that the log does not have."""
        lacks_in = self.follower.lacks_in
        return lacks_in is not None and self._snapshot > lacks_in

    def _applied(self, error: Exception | None) -> None:
        if error is not None:
            log.error("object_not_applied", object=self.following.number, reason=str(error))
        if (error is not None or self._must_load) and not self.is_over:
            self.on_load()
        else:
            self._again()

    def _again(self) -> None:
        if not self.is_over:
            self.begin()

    # --- the end of the sequence

    def _nothing(self) -> None:
        following, now_ms = self.following, self._now_ms()
        following.nothing(now_ms)
        if following.is_silent(now_ms) or following.must_take_over(now_ms):
            self._find_end(take=following.must_take_over(now_ms))
        else:
            self._later(self._server.interval_ms, self._again)

    def _find_end(self, *, take: bool) -> None:
        """Look for objects behind ones that were removed while nothing was read. With `take`, begin a term if none."""
        following, loaded, opened = self.following, self._loaded, list[Opened | None]()
        if take:
            log.info("taking_over", object=following.number, ended=following.ended is not None)

        def work() -> None:
            loaded.history.refresh()
            if take:
                now_ms = self._clock.now_ms()
                opened.append(
                    start.succeed(loaded, following.number, self._server, self._dir, self._instance, now_ms=now_ms)
                )

        def then() -> None:
            if opened and opened[0] is not None:
                self.end()
                self.on_taken(opened[0])
            elif loaded.history.first_after(following.number) > following.number + 1:
                self.on_load()
            else:
                following.looked(self._now_ms())
                self.begin()

        self._submit(work, then)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000
