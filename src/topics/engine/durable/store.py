"""The data directory of a running engine: sealed segments, checkpoints, removal of old files.

A checkpoint saves the state at one point of the log. It closes large open segments, writes a file for every closed
segment, writes the small open segments into one tails file, and then the snapshot that refers to all of them. Older log
files and unused files are removed only after that, so a crash at any moment finds the last snapshot and all its files.
Marks of deleted records are written into segment files only after a snapshot that has the same marks.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from topics import logs
from topics.clock import Clock
from topics.engine.durable import recovery
from topics.engine.durable.checkpoint_retries import Retries, Room
from topics.engine.durable.cold_moves import ColdMoves
from topics.engine.durable.deferred_replay import Backlog
from topics.engine.durable.rewrite import Rewriter
from topics.engine.state import snapshot_parts
from topics.engine.state.snapshot_parts import Capture, Frozen
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.steps import Steps, run_all
from topics.engine.write import apply
from topics.engine.write.commit import Commits
from topics.storage import snapshot as snap
from topics.storage.datadir import DataDir
from topics.storage.log.background import LogRefused
from topics.storage.log.wal import Wal
from topics.storage.segments import codec
from topics.storage.segments.sealed import SealedSegment
from topics.storage.segments.segment import MemorySegment
from topics.storage.segments.segment_caches import OPEN_FILES, SegmentCaches
from topics.storage.worker import INLINE, Worker, rested

if TYPE_CHECKING:
    from topics.storage.replica.uploader import Uploader

log = logs.Log("store")


Done = Callable[[Exception | None], None]
Runner = Callable[[Steps[None], Done], None]  # runs steps on the owner's thread, other work in between, then reports
Sealed = tuple[int, MemorySegment, str, codec.Footer]  # topic id, the segment in memory, its file, and its footer


def run_inline(steps: Steps[None], done: Done) -> None:
    INLINE.submit(lambda: run_all(steps), done)


class Store:
    """Keeps a state in its directory. All code runs on the owner's thread, except for the work given to `worker`."""

    def __init__(
        self, datadir: DataDir, state: State, wal: Wal, *, worker: Worker, clock: Clock, cold_dir: str | None = None,
        rewrite_percent: int = 0, rewrite_min_bytes: int = 64 << 10,
        hot_segments: int = 0, hot_bytes: int = 0, open_files: int = OPEN_FILES, runner: Runner | None = None,
    ) -> None:  # fmt: skip
        self.dir = datadir
        self.fs = datadir.fs
        self.state = state
        self.wal = wal
        self.caches = SegmentCaches(self.fs, open_files=open_files)
        self.snapshot_number = 0
        self.last_checkpoint_ms = clock.now_ms()
        self.bytes_at_checkpoint = 0  # written to the log when the state of the last snapshot was taken
        self._bytes_at_capture = 0
        self._ledger_number = 0  # of the ledger that the last snapshot names
        self.retries = Retries(clock)
        self._log_replaced = False  # by the last snapshot: nothing was logged after it
        self.commits: Commits | None = None
        self.worker = worker
        self._runner = runner or run_inline
        self._clock = clock
        self.cold_dir = cold_dir
        self.rewriter = Rewriter(self, percent=rewrite_percent, min_bytes=rewrite_min_bytes)
        self._cold_moves = ColdMoves(self, hot_segments=hot_segments, hot_bytes=hot_bytes)
        self.is_snapshotting = False  # whether a snapshot is being taken, written or cleaned up after
        self._savers: list[tuple[Topic, Done]] = []  # wait for a snapshot with the topic in it
        self._jobs = 0  # given to the worker and not reported back
        self._waiting: list[Callable[[], None]] = []
        self._topic_dirs: set[int] = set()  # those whose names are durable
        self._backlog: Backlog | None = None
        self.replica: Uploader | None = None
        self.follows = False  # whether the state follows that of another server
        self._kept: list[str] = []  # files that no snapshot needs and the replica does
        state.rolled = self._seal

    def recover(self, progress: recovery.Progress, *, defer_memory: bool = False) -> recovery.Recovered:
        """Recover the state from the directory and open the next log file. Blocks.

        If the log had to be replayed, take a snapshot before anything new is logged. Then every loss has one reason,
        whatever happens next, and bytes of the old log that only the page cache has are no longer needed.
        """
        # The owner's thread has no part in this yet: the snapshot seals.
        self.state.rolled = lambda topic, segment: None
        try:
            found = recovery.recover(
                self.dir, self.state, self.caches, cold_dir=self.cold_dir, progress=progress, defer_memory=defer_memory
            )
        finally:
            self.state.rolled = self._seal
        self.dir.sign()
        recovery.write_again(self.dir, found.unsynced)
        self.snapshot_number = found.snapshot_number
        self._backlog = found.backlog
        if not found.unchanged and not found.backlog:
            self._save_recovered(found)
        self.wal.begin(found.next_number, resume=found.resume)
        if self.wal.has_file:
            self.dir.note_version()
        self.state.ledger = self.wal.ledger
        if found.backlog:  # there is no snapshot yet of what was replayed
            for topic_id in found.unnoted:
                if (topic := self.state.by_id.get(topic_id)) is not None:
                    apply.note(self.state, topic)
                else:
                    self.wal.ledger.note_gone(topic_id)
        return found

    def _save_recovered(self, found: recovery.Recovered) -> None:
        def done(error: Exception | None) -> None:
            if error is not None:
                return
            with suppress(OSError):
                self.dir.forget_failed_sync()
                if not found.damage and found.snapshot_number:
                    # The snapshot still names the files of segments that have moved since.
                    recovery.remove_orphans(self.dir, self.state, {*self.caches.retired}, self.cold_dir)

        worker, self.worker = self.worker, INLINE
        runner, self._runner = self._runner, run_inline
        try:
            self._snapshot(found.next_number, done, clean=False, notes=self.wal.ledger.open(found.next_number))
        finally:
            self.worker, self._runner = worker, runner

    def save_followed(self, number: int, done: Done, *, clean: bool = False) -> None:
        """Take a snapshot of a state that follows another server, at the beginning of log file `number`."""
        self._snapshot(number, done, clean=clean, notes=self.wal.ledger.open(number))

    def checkpoint(self, done: Callable[[Exception | None], None] = lambda error: None, *, clean: bool = False) -> bool:
        """Begin a snapshot and the removal of what it replaces. Return False if one is in progress or cannot begin.

        If the disk may lack the room, reserve it first.
        """
        if self.is_snapshotting or not self.wal.has_file or self._backlog:  # what waits is in the old log alone
            return False
        room = Room(self.dir, self.state, 0 if clean else self.wal.rotation_bytes)
        grown_bytes = self.wal.stats.bytes_written_total - self.bytes_at_checkpoint
        if self.retries.reason is None and room.is_plenty(grown_bytes):
            return self._begin(done, clean=clean)
        self.is_snapshotting = True

        def reserved(error: Exception | None) -> None:
            self.is_snapshotting = False
            if error is not None:
                self._failed(error, [], done, rotated=False)
            elif not self._begin(done, clean=clean):
                done(LogRefused(self.retries.reason))

        def measured(error: Exception | None) -> None:
            if error is not None:
                reserved(error)
            else:
                self.submit(lambda: room.reserve(self.wal.number), reserved)

        self._run(room.steps(), measured)
        return True

    def _begin(self, done: Done, *, clean: bool) -> bool:
        """Rotate the log, or end it before the last snapshot. Take the snapshot. Return False if the log refuses."""
        assert self.commits is not None
        self.is_snapshotting = True  # a change of class that the sync ends waits for this snapshot
        self.commits.sync()
        if clean and self.commits.uploads:
            self._failed(LogRefused("writes wait for the replica"), [], done, rotated=False)
            return True
        try:
            if clean:
                if self.replica is not None:
                    self.wal.sync_now()  # a standby needs all of the log
                number, notes = self.wal.end(), []  # the ledger that there is stays: the stop needs few syncs
            else:
                self.wal.rotate()
                number, notes = self.wal.number, self.wal.begin_ledger()
        except (OSError, LogRefused) as error:
            self.is_snapshotting = False
            self.retries.failed(error, rotated=False)
            return False
        self._snapshot(number, done, clean=clean, notes=notes)
        return True

    def when_saved(self, topic: Topic, done: Done) -> None:
        """Call `done` once a snapshot has all that the topic's class promises, or with the error that prevents it."""
        self._savers.append((topic, done))
        self.save()

    def save(self) -> None:
        """Begin the snapshot that a change of class waits for, if none is in progress and the state is complete."""
        if not self._savers or self.is_snapshotting or self._backlog:
            return  # the end of the snapshot, or the next tick, comes back here
        if not (self.retries.may_begin and self.checkpoint()) and not self.is_snapshotting:
            self._end_saving(LogRefused(self.wal.read_only or self.retries.reason))

    def _end_saving(self, error: Exception | None) -> None:
        savers, self._savers = self._savers, []
        for topic, done in savers:
            if error is None and topic.needs_snapshot and not topic.gone:
                self._savers.append((topic, done))  # it changed again after the snapshot was taken
            else:
                done(error)

    def _snapshot(self, number: int, done: Done, *, clean: bool, notes: Sequence[bytes] = ()) -> None:
        """Take a snapshot of the state at the beginning of log file `number`, which is now.

        `notes` are those that the ledger of the snapshot begins with.
        """
        self.is_snapshotting = True
        self._bytes_at_capture = self.wal.stats.bytes_written_total
        if clean and not self.follows:  # else the heads of ephemeral topics are unknown
            snapshot_parts.end_ephemeral(self.state)
        capture = Capture(self.state, number)
        head = snap.Snapshot(
            wal_number=number,
            boot_id=snap.COPIED_BOOT_ID if self.follows else self.fs.boot_id(),
            clean=clean,
            next_topic_id=self.state.next_topic_id,
            last_epoch=self.state.last_epoch,
            topics=[],
        )
        if self.follows:  # a start reports what the writer may have acknowledged besides
            head.extra[snap.FAILOVER] = msgspec.Raw(msgspec.msgpack.encode(self._clock.now_ms()))
        tables = {
            snapshot_parts.ROUTERS: None if self.state.routers is None else self.state.routers.save(),
            **{name: rows.save() for name, rows in snapshot_parts.named_rows(self.state).items()},
        }
        retired, self.caches.retired = self.caches.retired, []
        self.rewriter.forget()
        if self.commits is not None:
            self.commits.before_change = capture.before_change
            for topic in self.commits.uploads.topics():  # their entries may take effect meanwhile
                if topic is not None:
                    capture.before_change(topic)
            if waiting := self.commits.uploads.frames():
                head.extra[snap.WAITING] = msgspec.Raw(msgspec.msgpack.encode(waiting))

        def captured(error: Exception | None) -> None:
            if self.commits is not None:
                self.commits.before_change = None
            if error is not None:
                self._failed(error, retired, done)
            else:
                self._write_snapshot(head, tables, capture, list(notes), retired, done)

        self._run(capture.steps(), captured)

    def _write_snapshot(
        self, head: snap.Snapshot, tables: dict[str, Callable[[], Iterable[bytes]] | None], capture: Capture,
        notes: list[bytes], retired: list[str], done: Done,
    ) -> None:  # fmt: skip
        sealed: list[Sealed] = []
        tails: set[int] = set()  # numbers of the files that the snapshot refers to
        pending: dict[int, dict[int, bytes]] = {}  # marks that segment files lack, by topic id and first seq

        def work() -> None:
            number, worker, topics = head.wal_number, self.worker, capture.captured
            for name, encode in tables.items():
                if encode is not None:
                    head.extra[name] = msgspec.Raw(b"".join(rested(worker, encode())))
            for one in rested(worker, topics):
                for frozen, at in one.sealing:
                    path, footer = self._write_segment(one.snapshot.topic_id, one.snapshot.epoch, frozen)
                    one.snapshot.segments[at].footer = footer
                    sealed.append((one.snapshot.topic_id, frozen.segment, path, footer))
            self.dir.write_file(self.dir.tails_path(number), capture.tails(), worker)
            if not self.wal.ledger.write(notes):
                raise LogRefused("the ledger cannot be written")
            self._ledger_number = number if notes else self.wal.ledger.number
            if self._ledger_number:
                head.extra[snap.LEDGER] = msgspec.Raw(msgspec.msgpack.encode(self._ledger_number))
            parts = snap.encode_parts(head, ((one.snapshot, one.keys) for one in topics), len(topics), worker)
            self._write_head(number, parts)

        def written(error: Exception | None) -> None:
            self._run(note(error), lambda failure: noted(error or failure))

        def note(error: Exception | None) -> Steps[None]:
            # Also when the rest failed: a snapshot whose sync failed may be there all the same, and a file that it
            # names must not be written again with marks that it does not know.
            for one in sealed:
                self._adopt(*one)
                yield None
            for captured in capture.drain() if error is None else ():
                topic_id = captured.snapshot.topic_id
                if (tail := captured.snapshot.tail) is not None:
                    tails.add(tail.tails)
                if (topic := self.state.by_id.get(topic_id)) is not None:
                    captured.note_saved(topic)
                self.rewriter.look(captured.snapshot)
                if marks := {ref.first: ref.pending for ref in captured.snapshot.segments if ref.pending}:
                    pending[topic_id] = marks
                yield None

        def noted(error: Exception | None) -> None:
            if error is not None:
                self._failed(error, retired, done)
                return
            for topic, number in capture.awaited:
                if topic.needs_snapshot == number:
                    topic.needs_snapshot = 0
            self._end_saving(None)
            self._log_replaced = head.clean
            self._installed(head.wal_number, tails, pending, retired)
            done(None)

        self.submit(work, written)

    def _failed(self, error: Exception, retired: list[str], done: Done, *, rotated: bool = True) -> None:
        self.is_snapshotting = False
        self.caches.retired += retired
        self.retries.failed(error, rotated=rotated)
        done(error)
        self._end_saving(error)

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call `then` once no work of the store is in progress."""
        if self._jobs:
            self._waiting.append(then)
        else:
            then()

    def submit(self, work: Callable[[], None], finished: Done) -> None:
        self.worker.submit(work, self._counted(finished))

    def _run(self, steps: Steps[None], finished: Done) -> None:
        self._runner(steps, self._counted(finished))

    def _counted(self, finished: Done) -> Done:
        """Count a job that begins now, and return what reports its end."""
        self._jobs += 1

        def report(error: Exception | None) -> None:
            self._jobs -= 1
            finished(error)
            if not self._jobs:
                waiting, self._waiting = self._waiting, []
                for then in waiting:
                    then()

        return report

    def close(self) -> None:
        self.wal.close(replaced=self._log_replaced)
        self.dir.close()

    # --- segments

    def _seal(self, topic: Topic, segment: MemorySegment) -> None:
        """Have the worker write the file of a closed segment. Until then the segment is served from memory."""
        if topic.config.durability == "ephemeral":
            return
        frozen = snapshot_parts.freeze(segment)
        topic_id, epoch = topic.topic_id, topic.epoch
        made: list[tuple[str, codec.Footer]] = []

        def work() -> None:
            if not topic.gone:  # the folder of a deleted topic may be removed already
                made.append(self._write_segment(topic_id, epoch, frozen))

        def finished(error: Exception | None) -> None:
            if made:
                self._adopt(topic_id, segment, *made[0])
            elif topic.gone:
                self.caches.retired.append(self.dir.segment_path(topic_id, segment.first))  # its folder goes with it
            else:
                log.error("seal_failed", topic=topic.name, first_seq=segment.first, reason=str(error))

        self.submit(work, finished)

    def _adopt(self, topic_id: int, segment: MemorySegment, path: str, footer: codec.Footer) -> None:
        """Serve the segment from its file from now on, if its topic still has it."""
        topic = self.state.by_id.get(topic_id)
        if topic is not None:
            for at, known in enumerate(topic.segments):
                if known is segment:
                    topic.segments[at] = SealedSegment.adopt(self.caches, path, footer, segment)
                    return
                if isinstance(known, SealedSegment) and known.path == path:
                    self.caches.forget(known)  # sealed twice, by itself and by a checkpoint: its file was replaced
                    return
        self.caches.retired.append(path)

    # --- on the worker

    def _write_head(self, number: int, parts: Iterable[bytes]) -> None:
        """Write the snapshot file itself, or raise and remove its tails."""
        try:
            self.dir.write_file(self.dir.snapshot_path(number), parts, self.worker)
        except OSError:
            with suppress(OSError):  # a snapshot whose name could not be synced needs its tails
                if not self.fs.exists(self.dir.snapshot_path(number)):
                    self.fs.unlink(self.dir.tails_path(number))
            raise

    def _write_segment(self, topic_id: int, epoch: int, frozen: Frozen) -> tuple[str, codec.Footer]:
        parts = frozen.encode(topic_id, epoch, self.worker)
        if topic_id not in self._topic_dirs:
            self.fs.mkdir(self.dir.topic_dir(topic_id))
            self.fs.sync_dir(self.dir.segments_dir)  # also if it was there: it may be so in memory only
            self._topic_dirs.add(topic_id)
        path = self.dir.segment_path(topic_id, frozen.segment.first)
        self.dir.write_file(path, parts, self.worker)
        size = sum(map(len, parts))
        return path, codec.decode_footer(bytes(parts[-1]), path=path, file_bytes=size)

    # --- after a snapshot

    def _installed(
        self, number: int, keep_tails: set[int], pending: dict[int, dict[int, bytes]], retired: list[str]
    ) -> None:
        self.retries.succeeded()
        self.snapshot_number = number
        self.last_checkpoint_ms = self._clock.now_ms()
        self.bytes_at_checkpoint = self._bytes_at_capture
        saves = []
        for topic_id, marks in pending.items():
            topic = self.state.by_id.get(topic_id)
            for segment in topic.segments if topic is not None else ():
                if isinstance(segment, SealedSegment) and segment.first in marks:
                    packed = marks[segment.first]
                    saves.append((segment, packed, segment.save_marks(packed)))

        reports = list[Callable[[], None]]()

        def work() -> None:
            if self.replica is not None:
                reports.append(self.replica.read_checkpoint(number))
            for one in rested(self.worker, list(saves)):
                try:
                    one[2]()
                except FileNotFoundError as error:  # the next snapshot has the marks, too, or the loss of the segment
                    log.warning("marks_not_saved", reason=str(error))
                    saves.remove(one)
            self._remove_old(number, keep_tails, retired)

        def finished(error: Exception | None) -> None:
            for report in reports:
                report()
            if error is not None:
                log.warning("cleaning_failed", reason=str(error))
            else:
                for segment, packed, _ in saves:
                    segment.saved(packed)
            if error is not None or self.cold_dir is None:
                ended(error)
            else:
                self._run(self._cold_moves.find(), ended)

        def ended(error: Exception | None) -> None:
            self.is_snapshotting = False
            if error is None:
                self._cold_moves.begin()
            self.save()
            self.rewriter.next()

        self.submit(work, finished)

    def _remove_old(self, number: int, keep_tails: set[int], retired: list[str]) -> None:
        old = [self.dir.wal_path(n) for n in self.dir.wal_numbers() if n < number]
        old += [self.dir.snapshot_path(n) for n in self.dir.snapshot_numbers() if n < number]
        old += [self.dir.ledger_path(n) for n in self.dir.ledger_numbers() if n < self._ledger_number]
        old += [self.dir.tails_path(n) for n in self.dir.tails_numbers() if n not in keep_tails and n < number]
        retired, self._kept = [*self._kept, *retired], []
        for path in rested(self.worker, [*old, *retired]):
            if self.replica is not None and self.replica.holds(path):
                if path not in old:
                    self._kept.append(path)
                continue
            with suppress(FileNotFoundError):
                self.fs.unlink(path)
        for folder in {posixpath.dirname(path) for path in retired}:
            if int(posixpath.basename(folder)) not in self.state.by_id:
                with suppress(OSError):  # not empty: a segment of the dropped topic is still on its way out
                    self.fs.rmdir(folder)
                    self._topic_dirs.discard(int(posixpath.basename(folder)))

    def remove_kept(self) -> None:
        """Remove the files that only the replica needed. Nothing holds them any longer."""
        for path in self._kept:
            with suppress(OSError):
                self.fs.unlink(path)
            with suppress(OSError):  # not empty
                self.fs.rmdir(posixpath.dirname(path))
