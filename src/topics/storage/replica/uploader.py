"""Runs a sequence against a bucket: one thread creates its objects in order, another one uploads files of checkpoints.

All methods run on the owner's thread, except `holds` and `read_checkpoint`, which the thread of the store calls. Both
threads report back on the owner's thread.

A segment is uploaded once, with all its records live: its flags change in place, and the name of the object follows
from the rest of it. The snapshot of the replica has the marks of all segments instead (`pending`, as in a backup).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from contextlib import closing
from functools import partial

import msgspec
import numpy as np
import xxhash
from msgspec import Struct

from topics import logs
from topics.clock import Clock
from topics.storage import snapshot as snap
from topics.storage.backup_files import read_marks
from topics.storage.datadir import DataDir
from topics.storage.fs import Fs, read_whole
from topics.storage.replica import objects
from topics.storage.replica.bucket import Bucket, BucketError
from topics.storage.replica.objects import LATEST, FileRef
from topics.storage.replica.sequence import NOWHERE, Plan, Sequence, State, Upload
from topics.storage.segments import codec
from topics.storage.segments.marks import pack_marks, put_marks
from topics.storage.worker import Worker

log = logs.Log("replica")

COPY_RETRY_MS = 1_000

Later = Callable[[int, Callable[[], None]], object]  # calls a function on the owner's thread, after so many ms


class LocalFile(Struct, gc=False):
    """A file of a checkpoint: its path in the directory, and where its bytes are now."""

    path: str
    source: str
    footer: codec.Footer | None = None  # of a segment
    data: bytes = b""  # of a snapshot

    @property
    def known_name(self) -> str:
        """The name of the object; empty if it depends on bytes that have to be read first."""
        return "" if self.footer is None else _name(msgspec.msgpack.encode(tuple(self.footer)))


class LocalCheckpoint(Struct):
    snapshot: int
    clean: bool
    files: list[LocalFile]


class Uploader:
    def __init__(
        self, sequence: Sequence, bucket: Bucket, datadir: DataDir, *, worker: Worker, file_worker: Worker,
        clock: Clock, later: Later, known: list[FileRef], cold_dir: str | None = None,
    ) -> None:  # fmt: skip
        self.sequence = sequence
        self.bucket = bucket
        self._dir = datadir
        self._worker = worker
        self._file_worker = file_worker
        self._clock = clock
        self._later = later
        self._cold_dir = cold_dir
        self._known = {ref.name: ref for ref in known}  # files of the last checkpoint that was uploaded
        self._local: dict[Plan, LocalCheckpoint] = {}
        self._held: dict[int, frozenset[str]] = {}  # paths of files, by the number of their snapshot
        self._sending = False
        self._copying: Plan | None = None
        self._wake_ms: int | None = None  # when `_wake` is called next
        self.on_change: Callable[[], None] = lambda: None  # called when gates may have opened, or a state changed
        self.want_checkpoint: Callable[[], None] = lambda: None  # called if a new local checkpoint is needed
        self.on_checkpoint: Callable[[], None] = lambda: None  # called when a checkpoint is complete in the bucket
        self._copy_failure = ""
        self.objects_total = self.bytes_total = self.failures_total = 0

    @property
    def failure(self) -> str:
        """Why the last request failed; empty if it did not."""
        return self.sequence.last_failure or self._copy_failure

    # --- events

    def synced(self, position: objects.Position) -> None:
        """Note that the log is durable up to here, and upload what is due."""
        before = self.sequence.state
        self.sequence.note_synced(position, self._now_ms())
        if self.sequence.state is not before:
            log.error("gap_given_up", hint="the bucket was away for too long; a new checkpoint follows when it is back")
            self._forget_plans()
            self.on_change()
            if not self.sequence.has_sent:
                self.want_checkpoint()  # no answer will show that the bucket is back
        self.pump()

    def read_checkpoint(self, number: int) -> Callable[[], None]:
        """Read what a replica needs of a new snapshot, and hold its files. Return the call that uploads them.

        Runs on the thread of the store, before that changes or removes a file.
        """
        local = _read_checkpoint(self._dir, number, cold_dir=self._cold_dir)
        self._held[number] = frozenset(file.source for file in local.files)
        return partial(self._checkpointed, local)

    def holds(self, path: str) -> bool:
        """Return whether a file must not be removed yet. Runs on the thread of the store."""
        if path.startswith(self._dir.wal_dir):
            needed = self.sequence.needed_from
            return needed is not None and path >= self._dir.wal_path(needed)
        return any(path in paths for paths in list(self._held.values()))

    def _checkpointed(self, local: LocalCheckpoint) -> None:
        # After an orderly stop, a start begins with the snapshot of that stop: it is no end then.
        plan = Plan(local.snapshot, local.clean and self.sequence.uploaded != NOWHERE)
        self._local[plan] = local
        self.sequence.note_checkpoint(plan)
        self._forget_plans()
        self.pump()

    # --- the sequence

    def pump(self) -> None:
        """Send the next object and copy the next file, if something is due. Else come back when it is."""
        if not self._sending:
            upload = self.sequence.next(self._now_ms(), self._clock.now_ms())
            if upload is not None:
                self._send(upload)
        self._copy()
        if not self._sending and (wait := self.sequence.wake_in_ms(self._now_ms())) is not None:
            at_ms = self._now_ms() + wait
            if self._wake_ms is None or at_ms < self._wake_ms:
                self._wake_ms = at_ms
                self._later(wait, self._wake)

    def _wake(self) -> None:
        self._wake_ms = None
        self.pump()

    def _send(self, upload: Upload) -> None:
        self._sending = True
        name, found = objects.log_name(upload.head.number), b""

        def work() -> None:
            nonlocal found
            if not upload.data:
                upload.data = objects.encode(upload.head, upload.body or self._log_bytes(upload))
            if not self.bucket.create(name, upload.data):
                found = self.bucket.get(name) or b""
                if not found:
                    raise BucketError(f"{name} exists and cannot be read; check the rules of the bucket")

        def done(error: Exception | None) -> None:
            self._sending = False
            sequence, before = self.sequence, self.sequence.state
            if error is not None:
                self.failures_total += 1
                if not sequence.retries:
                    log.warning("upload_failed", object=upload.head.number, reason=str(error))
                sequence.failed(str(error), self._now_ms())
            elif found:
                sequence.exists(upload, found, self._now_ms())
            else:
                sequence.created(upload, self._now_ms())
            self._note(upload, before, failed=error is not None)
            self.pump()

        self._worker.submit(work, done)

    def _note(self, upload: Upload, before: State, *, failed: bool) -> None:
        """Act on what has become of an object."""
        sequence = self.sequence
        if sequence.state is State.FENCED and before is not State.FENCED:
            by = sequence.fenced_by
            log.error("fenced", object=upload.head.number, host="" if by is None else by.host,
                      address="" if by is None else by.address, term=0 if by is None else by.term,
                      reason=sequence.last_failure)  # fmt: skip
        elif not failed:
            self.objects_total += 1
            self.bytes_total += len(upload.data)
            if upload.head.kind == "checkpoint" and upload.plan is not None:
                self._installed(upload.plan, upload.head.number)
        if not failed:
            self._forget_plans()
            self.on_change()
        if sequence.state is State.LOST and not failed:
            self.want_checkpoint()  # the bucket is back

    def _log_bytes(self, upload: Upload) -> bytes:
        parts = []
        for number, at, size in upload.head.pieces:
            with closing(self._dir.fs.open(self._dir.wal_path(number))) as file:
                parts.append(file.pread(size, at))
            if len(parts[-1]) != size:
                raise OSError(f"log file {number} is shorter than the log was")
        return b"".join(parts)

    # --- checkpoints

    def _copy(self) -> None:
        """Upload the files of the checkpoint that is next."""
        plan = self.sequence.plan
        if plan is None or self._copying is not None:
            return
        self._copying = plan
        local, refs = self._local[plan], list[FileRef]()

        def work() -> None:
            for file in local.files:
                if plan not in self._local:
                    return  # given up
                refs.append(_upload(self.bucket, self._dir.fs, file, self._known))

        def done(error: Exception | None) -> None:
            self._copying = None
            if plan not in self._local:
                self.pump()
            elif isinstance(error, FileNotFoundError):
                log.error("checkpoint_file_missing", snapshot=plan.snapshot, reason=str(error))
                self.sequence.drop(plan)
                self._forget_plans()
                self.want_checkpoint()
            elif error is not None:
                self._copy_failed(plan, error)
            else:
                self._copy_failure = ""
                self.sequence.note_files(plan, refs)
                self.pump()

        self._file_worker.submit(work, done)

    def _copy_failed(self, plan: Plan, error: Exception) -> None:
        self.failures_total += 1
        if not self._copy_failure:
            log.warning("checkpoint_upload_failed", snapshot=plan.snapshot, reason=str(error))
        self._copy_failure = str(error)
        self._later(COPY_RETRY_MS, self.pump)

    def _installed(self, plan: Plan, number: int) -> None:
        """Note a checkpoint that is in the bucket, and where a reader may begin to look for the end."""
        self._known = {ref.name: ref for ref in plan.refs or ()}
        hint = msgspec.json.encode(number)
        self._file_worker.submit(lambda: self.bucket.put(LATEST, hint), lambda error: None)
        self.on_checkpoint()

    def _forget_plans(self) -> None:
        """Hold the files of those checkpoints only that are still on their way."""
        held = self.sequence.held
        for plan in [plan for plan in self._local if plan not in held]:
            del self._local[plan]
            self._held.pop(plan.snapshot, None)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000


# --- the files of a local checkpoint, as a replica has them


def _read_checkpoint(datadir: DataDir, number: int, *, cold_dir: str | None) -> LocalCheckpoint:
    """Return the files of snapshot `number`. Call this before the next marks are written into segments."""
    path = datadir.snapshot_path(number)
    snapshot = snap.decode(read_whole(datadir.fs, path), path=path, number=number)
    files: list[LocalFile] = []
    tails: set[int] = set()
    for topic in snapshot.topics:
        if topic.tail is not None:
            tails.add(topic.tail.tails)
        for ref in topic.segments:
            source, footer = datadir.path_of(topic.topic_id, ref, cold_dir), codec.Footer(*ref.footer)
            ref.pending, ref.cold = _all_marks(datadir.fs, source, footer, ref), False
            files.append(LocalFile(_inside(datadir, datadir.path_of(topic.topic_id, ref)), source, footer))
    for tail in sorted(tails):
        files.append(LocalFile(_inside(datadir, datadir.tails_path(tail)), datadir.tails_path(tail)))
    files.append(LocalFile(_inside(datadir, path), path, data=snap.encode(snapshot)))
    return LocalCheckpoint(number, snapshot.clean, files)


def _upload(bucket: Bucket, fs: Fs, file: LocalFile, known: dict[str, FileRef]) -> FileRef:
    """Return where the bucket has the file. Upload it unless it is `known`, by name, to be there."""
    if (there := known.get(file.known_name)) is not None:
        return FileRef(file.path, there.name, there.size_bytes, there.sum)
    data = file.data or read_whole(fs, file.source)
    if file.footer is not None:
        data = _without_marks(data, file.footer)
    name = file.known_name or _name(data)
    if (there := known.get(name)) is None:
        bucket.put(name, data)
    return FileRef(file.path, name, len(data), objects.sum64(data))


def _all_marks(fs: Fs, path: str, footer: codec.Footer, ref: snap.SegmentRef) -> bytes:
    """Return every mark of the segment, packed: those in its file, and those that the file may lack."""
    if ref.live == ref.count and not ref.pending:
        return b""
    marks = read_marks(fs, path, footer)
    put_marks(marks, ref.pending)
    return pack_marks(marks, np.flatnonzero(np.frombuffer(marks, np.uint8)))


def _without_marks(data: bytes, footer: codec.Footer) -> bytes:
    at, live = footer.flags_at, bytes([codec.LIVE]) * footer.count
    if data.startswith(live, at):
        return data  # mostly: a copy of megabytes less
    return b"".join((data[:at], live, data[at + footer.count :]))


def _inside(datadir: DataDir, path: str) -> str:
    return posixpath.relpath(path, datadir.root)


def _name(data: bytes) -> str:
    return objects.FILES + xxhash.xxh3_128_hexdigest(data)
