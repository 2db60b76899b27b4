"""The data directory of a running engine: sealing, checkpoints, cleaning up. The only part of the engine that knows
files.

A checkpoint is taken at one point of the log: what is open and large is closed, all closed segments get their files,
small open ends go together into one tails file, and a snapshot ties it up. Only once that is in place do older log
files, and files that nothing refers to any more, go away: a crash at any moment finds the last snapshot and everything
it needs. Marks of deleted records are written into segment files after the snapshot that knows them, never before.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from contextlib import suppress

from topics import logs
from topics.clock import Clock
from topics.engine.durable import recovery
from topics.engine.durable.deferred_replay import Backlog
from topics.engine.state import snapshot_parts
from topics.engine.state.snapshot_parts import Captured, Frozen
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.write import apply
from topics.engine.write.commit import Commits
from topics.errors import Corrupt
from topics.storage import snapshot as snap
from topics.storage.datadir import TEMP_SUFFIX, DataDir
from topics.storage.log.wal import InlineWorker, LogFailed, Wal, Worker
from topics.storage.segments import codec
from topics.storage.segments.sealed import SealedSegment
from topics.storage.segments.segment import MemorySegment, Segment
from topics.storage.segments.shelf import OPEN_FILES, Shelf

log = logs.Log("store")

COPY_BYTES = 1 << 20

Done = Callable[[Exception | None], None]


class Store:
    """Ties a state to its directory. Everything but the work given to `worker` happens on the owner's thread."""

    def __init__(
        self, datadir: DataDir, state: State, wal: Wal, *, worker: Worker, clock: Clock, cold_dir: str | None = None,
        hot_segments: int = 0, hot_bytes: int = 0, open_files: int = OPEN_FILES,
    ) -> None:  # fmt: skip
        self.dir = datadir
        self.fs = datadir.fs
        self.state = state
        self.wal = wal
        self.shelf = Shelf(self.fs, open_files=open_files)
        self.snapshot_number = 0
        self.last_checkpoint_ms = clock.now_ms()
        self.bytes_at_checkpoint = 0
        self.commits: Commits | None = None
        self._worker = worker
        self._clock = clock
        self._cold_dir = cold_dir
        self._hot_segments = hot_segments
        self._hot_bytes = hot_bytes
        self._snapshotting = False
        self._savers: list[tuple[Topic, Done]] = []  # wait for a snapshot with the topic in it
        self._jobs = 0  # given to the worker and not reported back
        self._waiting: list[Callable[[], None]] = []
        self._tails: dict[int, tuple[snap.TailRef, snapshot_parts.Look]] = {}  # by topic id, of the last snapshot
        self._topic_dirs: set[int] = set()  # those whose names are durable
        self._backlog: Backlog | None = None
        state.rolled = self._seal
        state.dropped = self._forget

    def recover(self, progress: recovery.Progress, *, defer_memory: bool = False) -> recovery.Recovered:
        """Opens the directory's past and the log's next file. Blocks.

        What had to be pieced together is written down as a snapshot of its own before anything new is built upon it:
        what was lost is then lost for one reason only, whatever happens next, and bytes of the old log that only the
        page cache has are no longer needed.
        """
        self.state.rolled = lambda topic, segment: (
            None
        )  # the owner's thread has no part in this yet: the snapshot seals
        try:
            found = recovery.recover(
                self.dir, self.state, self.shelf, cold_dir=self._cold_dir, progress=progress, defer_memory=defer_memory
            )
        finally:
            self.state.rolled = self._seal
        self.snapshot_number = found.snapshot_number
        self._backlog = found.backlog
        if not found.settled and not found.backlog:
            self._settle_past(found)
        self.wal.begin(found.next_number, resume=found.resume)
        self.state.ledger = self.wal.ledger
        if found.backlog:  # there is no snapshot yet of what was replayed
            for topic_id in found.unnoted:
                if (topic := self.state.by_id.get(topic_id)) is not None:
                    apply.note(self.state, topic)
                else:
                    self.wal.ledger.note_gone(topic_id)
        return found

    def _settle_past(self, found: recovery.Recovered) -> None:
        def done(error: Exception | None) -> None:
            if error is None and not found.damage and found.snapshot_number:
                with suppress(OSError):
                    self._remove_orphans()

        worker, self._worker = self._worker, InlineWorker()
        try:
            self._snapshot(found.next_number, done, clean=False)
        finally:
            self._worker = worker

    def checkpoint(self, done: Callable[[Exception | None], None] = lambda error: None, *, clean: bool = False) -> bool:
        """Takes a snapshot and lets go of what it makes superfluous. False if it cannot, or one is under way."""
        assert self.commits is not None
        if self._snapshotting or self.wal.broken or self._backlog:  # what waits is in the old log alone
            return False
        self.commits.settle()
        try:
            self.wal.rotate()
            self.wal.begin_ledger()
        except (OSError, LogFailed) as error:
            log.error("checkpoint_failed", reason=str(error))
            return False
        self._snapshot(self.wal.number, done, clean=clean)
        return True

    def when_saved(self, topic: Topic, done: Done) -> None:
        """Call `done` once a snapshot has all that the topic's class promises, or with the error that prevents it."""
        self._savers.append((topic, done))
        self.save()

    def save(self) -> None:
        """Begin the snapshot that a change of class waits for, if none is under way and the state is complete."""
        if not self._savers or self._snapshotting or self._backlog:
            return  # the end of the snapshot, or the next tick, comes back here
        if not self.checkpoint() and not self._snapshotting:
            self._end_saving(LogFailed(self.wal.read_only or "no new log file could be begun"))

    def _end_saving(self, error: Exception | None) -> None:
        savers, self._savers = self._savers, []
        for topic, done in savers:
            if error is None and topic.needs_snapshot and not topic.gone:
                self._savers.append((topic, done))  # it changed again after the snapshot was taken
            else:
                done(error)

    def _snapshot(self, number: int, done: Callable[[Exception | None], None], *, clean: bool) -> None:
        """The state as it is now, at the beginning of log file `number`."""
        self._snapshotting = True
        if clean:
            snapshot_parts.end_ephemeral(self.state)
        captured = [
            snapshot_parts.capture(self.state, topic, self._tails.get(topic.topic_id))
            for topic in self.state.by_id.values()
        ]
        rises = [(topic, topic.needs_snapshot) for topic in self.state.by_id.values() if topic.needs_snapshot]
        snapshot = snap.Snapshot(
            wal_number=number,
            boot_id=self.fs.boot_id(),
            clean=clean,
            next_topic_id=self.state.next_topic_id,
            last_epoch=self.state.last_epoch,
            topics=[one.snapshot for one in captured],
            extra=snapshot_parts.save_state(self.state),
        )
        retired, self.shelf.retired = self.shelf.retired, []
        sealed: list[tuple[int, MemorySegment, str, codec.Footer]] = []

        def work() -> None:
            for one in captured:
                for frozen, at in one.sealing:
                    path, footer = self._write_segment(one.snapshot.topic_id, one.snapshot.epoch, frozen)
                    one.snapshot.segments[at].footer = list(footer)
                    sealed.append((one.snapshot.topic_id, frozen.segment, path, footer))
            self._write_tails(number, captured)
            self._write(self.dir.snapshot_path(number), [snap.encode(snapshot)])

        def finished(error: Exception | None) -> None:
            # Also when the rest failed: a snapshot whose sync failed may be there all the same, and a file that it
            # names must not be written again with marks that it does not know.
            for topic_id, segment, path, footer in sealed:
                self._adopt(topic_id, segment, path, footer)
            if error is not None:
                self._snapshotting = False
                self.shelf.retired += retired
                log.error("checkpoint_failed", reason=str(error))
                done(error)
                self._end_saving(error)
                return
            for topic, rise in rises:
                if topic.needs_snapshot == rise:
                    topic.needs_snapshot = 0
            self._tails = {
                one.snapshot.topic_id: (one.snapshot.tail, one.looks)
                for one in captured
                if one.snapshot.tail is not None
            }
            self._end_saving(None)
            self._installed(number, snapshot, retired)
            done(None)

        self._submit(work, finished)

    def when_idle(self, then: Callable[[], None]) -> None:
        """Calls `then` once the worker has nothing left of ours."""
        if self._jobs:
            self._waiting.append(then)
        else:
            then()

    def _submit(self, work: Callable[[], None], finished: Callable[[Exception | None], None]) -> None:
        def report(error: Exception | None) -> None:
            self._jobs -= 1
            finished(error)
            if not self._jobs:
                waiting, self._waiting = self._waiting, []
                for then in waiting:
                    then()

        self._jobs += 1
        self._worker.submit(work, report)

    def close(self) -> None:
        self.wal.close()
        self.dir.close()

    # --- segments

    def _seal(self, topic: Topic, segment: MemorySegment) -> None:
        """A closed segment gets its file as soon as the worker has time; until then it is served from memory."""
        if topic.config.durability == "ephemeral":
            return
        frozen = snapshot_parts.freeze(segment)
        topic_id, epoch = topic.topic_id, topic.epoch
        made: list[tuple[str, codec.Footer]] = []

        def work() -> None:
            made.append(self._write_segment(topic_id, epoch, frozen))

        def finished(error: Exception | None) -> None:
            if error is not None:
                log.error("seal_failed", topic=topic.name, first_seq=segment.first, reason=str(error))
            else:
                self._adopt(topic_id, segment, *made[0])

        self._submit(work, finished)

    def _adopt(self, topic_id: int, segment: MemorySegment, path: str, footer: codec.Footer) -> None:
        """Serves the segment from its file from now on, if it is still there."""
        topic = self.state.by_id.get(topic_id)
        if topic is not None:
            for at, known in enumerate(topic.segments):
                if known is segment:
                    topic.segments[at] = SealedSegment.adopt(self.shelf, path, footer, segment)
                    return
                if isinstance(known, SealedSegment) and known.path == path:
                    self.shelf.forget(known)  # sealed twice, by itself and by a checkpoint: its file was replaced
                    return
        self.shelf.retired.append(path)

    def _forget(self, topic: Topic, segment: Segment) -> None:
        if isinstance(segment, SealedSegment):
            segment.release()

    # --- on the worker

    def _write_segment(self, topic_id: int, epoch: int, frozen: Frozen) -> tuple[str, codec.Footer]:
        parts = frozen.encode(topic_id, epoch)
        if topic_id not in self._topic_dirs:
            self.dir.make_topic_dir(topic_id)
            self.fs.sync_dir(self.dir.segments_dir)  # one that is already there may be so in memory only
            self._topic_dirs.add(topic_id)
        path = self.dir.segment_path(topic_id, frozen.segment.first)
        self._write(path, parts)
        size = sum(map(len, parts))
        return path, codec.decode_footer(b"".join(parts[-2:]), path=path, file_bytes=size)

    def _write_tails(self, number: int, captured: list[Captured]) -> None:
        parts: list[bytes] = []
        at = 0
        for one in captured:
            if one.tail is None:
                continue
            encoded = one.tail.encode(one.snapshot.topic_id, one.snapshot.epoch)
            size = sum(map(len, encoded))
            one.snapshot.tail = snap.TailRef(
                number, at, size, one.tail.segment.opened_ms, one.tail.live, one.tail.live_bytes
            )
            parts += encoded
            at += size
        if parts:
            self._write(self.dir.tails_path(number), parts)

    def _write(self, path: str, parts: list[bytes]) -> None:
        """Durable under its name, or not there at all."""
        temporary = path + TEMP_SUFFIX
        file = self.fs.open(temporary, create=True)
        try:
            file.truncate(0)
            file.pwritev(parts, 0)
            file.sync()
        except OSError:
            with suppress(OSError):
                self.fs.unlink(temporary)
            raise
        finally:
            file.close()
        self.dir.publish(path)

    # --- after a snapshot

    def _installed(self, number: int, snapshot: snap.Snapshot, retired: list[str]) -> None:
        self.snapshot_number = number
        self.last_checkpoint_ms = self._clock.now_ms()
        self.bytes_at_checkpoint = self.wal.stats.bytes_written_total
        keep_tails = {one.tail.tails for one in snapshot.topics if one.tail is not None}
        saves = []
        for one in snapshot.topics:
            if not one.segments:
                continue
            topic = self.state.by_id.get(one.topic_id)
            pending = {ref.first: ref.pending for ref in one.segments if ref.pending}
            for segment in topic.segments if topic is not None and pending else ():
                if isinstance(segment, SealedSegment) and segment.first in pending:
                    packed = pending[segment.first]
                    saves.append((segment, packed, segment.save_marks(packed)))

        def work() -> None:
            for _, _, save in saves:
                save()
            self._remove_old(number, keep_tails, retired)

        def finished(error: Exception | None) -> None:
            self._snapshotting = False
            if error is not None:
                log.warning("cleaning_failed", reason=str(error))
            else:
                for segment, packed, _ in saves:
                    segment.saved(packed)
                self._move_cold()
            self.save()

        self._submit(work, finished)

    def _move_cold(self) -> None:
        """Copies the oldest sealed segments of topics that keep too much to the cold folder, and reads them there from
        then on.

        The hot file goes with the next snapshot, which is the first to know the new place.
        """
        moves = [
            (segment, recovery.segment_path(self.dir, topic.topic_id, segment.first, self._cold_dir))
            for topic in self.state.by_id.values()
            for segment in self._too_many(topic)
        ]
        if not moves:
            return

        def work() -> None:
            for segment, target in moves:
                self._copy(segment.path, target)

        def finished(error: Exception | None) -> None:
            if error is not None:
                log.error("cold_move_failed", reason=str(error))
                return
            kept = {id(segment) for topic in self.state.by_id.values() for segment in topic.segments}
            for segment, target in moves:
                if id(segment) in kept:
                    self.shelf.retired.append(segment.path)
                    segment.moved(target)
                    segment.cold = True
                else:
                    self.shelf.retired.append(target)  # its records went while it was copied

        self._submit(work, finished)

    def _too_many(self, topic: Topic) -> list[SealedSegment]:
        if self._cold_dir is None:
            return []
        hot = [segment for segment in topic.segments if isinstance(segment, SealedSegment) and not segment.cold]
        kept_bytes, kept = 0, 0
        for segment in reversed(hot):
            kept_bytes += segment.footer.file_bytes
            too_many = self._hot_segments and kept >= self._hot_segments
            if too_many or (self._hot_bytes and kept_bytes > self._hot_bytes):
                break
            kept += 1
        return hot[: len(hot) - kept] if self._hot_segments or self._hot_bytes else []

    def _copy(self, source: str, target: str) -> None:
        folder = posixpath.dirname(target)
        if not self.fs.exists(folder):
            self.fs.mkdir(folder)
            self.fs.sync_dir(posixpath.dirname(folder))
        origin = self.fs.open(source)
        copy = self.fs.open(target + TEMP_SUFFIX, create=True)
        try:
            copy.truncate(0)
            at, size = 0, origin.size()
            while at < size:
                piece = origin.pread(COPY_BYTES, at)
                if not piece:
                    raise Corrupt(source, at, f"the file ends here instead of after {size} bytes")
                copy.pwrite(piece, at)
                at += len(piece)
            copy.sync()
        finally:
            origin.close()
            copy.close()
        self.dir.publish(target)

    def _remove_old(self, number: int, keep_tails: set[int], retired: list[str]) -> None:
        old = [self.dir.wal_path(n) for n in self.dir.wal_numbers() if n < number]
        old += [self.dir.snapshot_path(n) for n in self.dir.snapshot_numbers() if n < number]
        old += [self.dir.ledger_path(n) for n in self.dir.ledger_numbers() if n < number]
        old += [self.dir.tails_path(n) for n in self.dir.tails_numbers() if n not in keep_tails and n < number]
        for path in [*old, *retired]:
            with suppress(FileNotFoundError):
                self.fs.unlink(path)
        for folder in {posixpath.dirname(path) for path in retired}:
            if int(posixpath.basename(folder)) not in self.state.by_id:
                with suppress(OSError):  # not empty: a segment of the dropped topic is still on its way out
                    self.fs.rmdir(folder)

    def _remove_orphans(self) -> None:
        """Segment files that a stopped process wrote and no snapshot ever named."""
        named = {
            segment.path
            for topic in self.state.by_id.values()
            for segment in topic.segments
            if isinstance(segment, SealedSegment)
        }
        folders = [self.dir.segments_dir]
        if self._cold_dir is not None and self.fs.exists(self._cold_dir):
            folders.append(self._cold_dir)
        for folder in folders:
            for name in self.fs.listdir(folder):
                if not name.isdigit():
                    continue  # not ours
                topic_dir = posixpath.join(folder, name)
                for path in [posixpath.join(topic_dir, file) for file in self.fs.listdir(topic_dir)]:
                    if path not in named:
                        self.fs.unlink(path)
                if int(name) not in self.state.by_id:
                    with suppress(OSError):
                        self.fs.rmdir(topic_dir)
