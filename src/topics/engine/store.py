"""The data directory of a running engine: sealing, checkpoints, cleaning up. The only part of the engine that knows files.

A checkpoint is taken at one point of the log: what is open and large is closed, all closed segments get their files, small
open ends go together into one tails file, and a snapshot ties it up. Only once that is in place do older log files, and files
that nothing refers to any more, go away: a crash at any moment finds the last snapshot and everything it needs.
Marks of deleted records are written into segment files after the snapshot that knows them, never before.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from contextlib import suppress

from topics import logs
from topics.clock import Clock
from topics.engine import checkpoint, recovery
from topics.engine.apply import State
from topics.engine.commit import Commits
from topics.engine.state import Topic
from topics.storage import segment as codec
from topics.storage import snapshot as snap
from topics.storage.datadir import TEMP_SUFFIX, DataDir
from topics.storage.segments import MemorySegment, SealedSegment, Segment, Shelf
from topics.storage.wal import LogFailed, Wal, Worker

log = logs.Log("store")


class Store:
    """Ties a state to its directory. Everything but the work given to `worker` happens on the owner's thread."""

    def __init__(
        self, datadir: DataDir, state: State, wal: Wal, *, worker: Worker, clock: Clock, cold_dir: str | None = None,
        hot_segments: int = 0, hot_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.dir = datadir
        self.fs = datadir.fs
        self.state = state
        self.wal = wal
        self.shelf = Shelf(self.fs)
        self.snapshot_number = 0
        self.last_checkpoint_ms = clock.now_ms()
        self.bytes_at_checkpoint = 0
        self.commits: Commits | None = None
        self._worker = worker
        self._clock = clock
        self._cold_dir = cold_dir
        self._hot_segments = hot_segments
        self._hot_bytes = hot_bytes
        self._jobs = 0  # given to the worker and not reported back
        self._waiting: list[Callable[[], None]] = []
        self._tails: dict[int, tuple[snap.TailRef, checkpoint.Look]] = {}  # topic id → its tail in the last snapshot
        state.rolled = self._seal
        state.dropped = self._forget

    def recover(self, progress: recovery.Progress) -> recovery.Recovered:
        """Opens the directory's past and the log's next file. Blocks."""
        found = recovery.recover(self.dir, self.state, self.shelf, cold_dir=self._cold_dir, progress=progress)
        self.snapshot_number = found.snapshot_number
        self.wal.begin(found.next_number, resume=found.resume)
        return found

    def checkpoint(self, done: Callable[[Exception | None], None] = lambda error: None, *, clean: bool = False) -> bool:
        """Takes a snapshot and lets go of what it makes superfluous. False if it cannot, or one is under way."""
        assert self.commits is not None
        if self._jobs or self.wal.broken:
            return False
        self.commits.settle()
        try:
            self.wal.rotate()
        except (OSError, LogFailed) as error:
            log.error("checkpoint_failed", reason=str(error))
            return False
        number = self.wal.number
        captured = [checkpoint.capture(self.state, topic, self._tails.get(topic.topic_id)) for topic in self.state.by_id.values()]
        snapshot = snap.Snapshot(
            wal_number=number,
            boot_id=self.fs.boot_id(),
            clean=clean,
            next_topic_id=self.state.next_topic_id,
            last_epoch=self.state.last_epoch,
            topics=[one.snapshot for one in captured],
            extra=checkpoint.save_state(self.state),
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
            if error is not None:
                self.shelf.retired += retired
                log.error("checkpoint_failed", reason=str(error))
                done(error)
                return
            for topic_id, segment, path, footer in sealed:
                self._adopt(topic_id, segment, path, footer)
            self._tails = {
                one.snapshot.topic_id: (one.snapshot.tail, one.looks) for one in captured if one.snapshot.tail is not None
            }
            self._installed(number, snapshot, retired)
            done(None)

        self._submit(work, finished)
        return True

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
        if topic.config.durability == "ephemeral" :
            return
        frozen = checkpoint.freeze(segment)
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
                    return  # sealed twice: by its own and by a checkpoint
        self.shelf.retired.append(path)

    def _forget(self, topic: Topic, segment: Segment) -> None:
        if isinstance(segment, SealedSegment):
            segment.release()

    # --- on the worker

    def _write_segment(self, topic_id: int, epoch: int, frozen: checkpoint.Frozen) -> tuple[str, codec.Footer]:
        parts = frozen.encode(topic_id, epoch)
        self.dir.make_topic_dir(topic_id)
        path = self.dir.segment_path(topic_id, frozen.segment.first)
        self._write(path, parts)
        size = sum(map(len, parts))
        return path, codec.decode_footer(b"".join(parts[-2:]), path=path, file_bytes=size)

    def _write_tails(self, number: int, captured: list[checkpoint.Captured]) -> None:
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
            topic = self.state.by_id.get(one.topic_id)
            pending = {ref.first: ref.pending for ref in one.segments if ref.pending}
            for segment in topic.segments if topic is not None and pending else ():
                if isinstance(segment, SealedSegment) and segment.first in pending:
                    positions = [at for at, _ in snap.unpack_marks(pending[segment.first])]
                    saves.append((segment, positions, segment.save_marks(positions)))

        def work() -> None:
            for _, _, save in saves:
                save()
            self._remove_old(number, keep_tails, retired)

        def finished(error: Exception | None) -> None:
            if error is not None:
                log.warning("cleaning_failed", reason=str(error))
                return
            for segment, positions, _ in saves:
                segment.saved(positions)

        self._submit(work, finished)

    def _remove_old(self, number: int, keep_tails: set[int], retired: list[str]) -> None:
        old = [self.dir.wal_path(n) for n in self.dir.wal_numbers() if n < number]
        old += [self.dir.snapshot_path(n) for n in self.dir.snapshot_numbers() if n < number]
        old += [self.dir.tails_path(n) for n in self.dir.tails_numbers() if n not in keep_tails and n < number]
        for path in [*old, *retired]:
            with suppress(FileNotFoundError):
                self.fs.unlink(path)
        for topic_dir in {posixpath.dirname(path) for path in retired}:
            topic_id = int(posixpath.basename(topic_dir))
            if topic_id not in self.state.by_id:
                self.dir.remove_topic_dir(topic_id)
