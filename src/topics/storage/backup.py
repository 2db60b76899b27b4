"""Copies a data directory into another one, while its server runs and without asking it.

That works because of how a server treats its files: what a snapshot names stays until the next snapshot is in place; a
segment never changes but for its flags, and those only after the snapshot that knows of the change; the log only grows.
So the copy is made in this order:

1. segments that the target lacks, each checked on the way;
2. the flags of all segments, then a look whether the snapshot is still the newest: if not, start over with the newer;
3. the log behind the snapshot, the last file first: what a later file holds was written after all of the earlier ones;
4. the snapshot takes its place in the target, then the log, the first file first.

The target is a data directory at every moment: killed before 4 it is what it was, killed within 4 it is a little older
than it should be. Flags that a segment of the target lacks go into the target's snapshot as pending marks, as a server
would do it, so that nothing the target's old snapshot stands on changes before the new one is there.

Segments are copied and never linked: a server flips flags in its own file, and a link would show that in the copy.
Cold segments become ordinary ones. The snapshot's boot id is replaced, so that a server that starts on the copy takes
the seqs that may have been given out meanwhile for lost, as after a power loss, and does not give them out again.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import msgspec
import numpy as np
from msgspec import Struct

from topics.errors import Corrupt
from topics.storage import snapshot as snap
from topics.storage.check import examine
from topics.storage.datadir import TEMP_SUFFIX, UNFINISHED, DataDir
from topics.storage.fs import File, Fs
from topics.storage.log import ledger, walfile
from topics.storage.readonly import ReadOnlyFs
from topics.storage.segments import codec
from topics.storage.segments.marks import pack_marks, put_marks

COPIED_BOOT_ID = "copied"
MAX_TRIES = 20
SETTLE_TRIES = 5
SPARE_BYTES = 16 << 20  # room for snapshot, tails and log that a full disk should not be found out by

Progress = Callable[[int, int], None]  # bytes copied, bytes to copy


class CopyError(Exception):
    """The copy was not made, and the target is as it was. The text says why and what to do."""


class Copied(Struct, kw_only=True):
    """What was done. `problems` are damage found in the source: it was copied as it is."""

    snapshot: int
    topics: int = 0
    records: int = 0
    segments_copied: int = 0
    segments_reused: int = 0
    log_files: int = 0
    bytes_copied: int = 0
    bytes_reused: int = 0
    tries: int = 1
    problems: list[str] = []


Late = tuple[str, codec.Footer, list[tuple[int, int]]]  # a segment, and marks that its file lacks


class _Overtaken(Exception):
    """The server took a newer snapshot meanwhile."""


def _nap() -> None:
    time.sleep(0.01)


def copy(
    fs: Fs,
    source: str,
    target: str,
    *,
    cold_dir: str | None = None,
    progress: Progress = lambda done, total: None,
    pause: Callable[[], None] = _nap,
    restored_ms: int | None = None,
) -> Copied:
    """Brings `target` up to what `source` is now. Blocks. Raises `CopyError`, `DataDirError` or OSError.

    With `restored_ms` the copy is not another place of the same history but the beginning of a new one.
    """
    origin = DataDir(ReadOnlyFs(fs), source)
    origin.check_format()
    copy_dir = DataDir(fs, target)
    if copy_dir.declared:
        copy_dir.open()
    else:
        copy_dir.begin()
    try:
        copier = _Copier(origin, copy_dir, cold_dir, progress, pause, restored_ms)
        for attempt in range(1, MAX_TRIES + 1):
            try:
                copier.run()
            except _Overtaken:
                pause()
                continue
            copier.done.tries = attempt
            return copier.done
        raise CopyError(
            f"{source} took a new snapshot in each of {MAX_TRIES} tries, faster than this copy could follow; "
            "try again, or raise TOPICS_CHECKPOINT_WAL_BYTES"
        )
    finally:
        copy_dir.close()


def restore(
    fs: Fs,
    source: str,
    target: str,
    *,
    now_ms: int,
    set_aside: str | None,
    progress: Progress = lambda done, total: None,
) -> Copied:
    """Copies a backup to where a server shall start. What is there moves to the path `set_aside`, if that is given."""
    origin = DataDir(ReadOnlyFs(fs), source)
    origin.inspect()
    try:
        if not _vacant(fs, target):
            if set_aside is None:
                raise CopyError(f"{target} is not empty; move it away, or let --force do that")
            was = DataDir(ReadOnlyFs(fs), target)
            was.inspect()  # refuses what a server has open, and what is not ours
            fs.rename(target, set_aside)
            was.close()
            fs.sync_dir(posixpath.dirname(posixpath.normpath(target)) or ".")
        return copy(fs, source, target, progress=progress, restored_ms=now_ms)
    finally:
        origin.close()


class _Copier:
    def __init__(
        self,
        source: DataDir,
        target: DataDir,
        cold_dir: str | None,
        progress: Progress,
        pause: Callable[[], None],
        restored_ms: int | None,
    ) -> None:
        self.source = source
        self.target = target
        self.fs = target.fs
        self.cold_dir = cold_dir
        self.done = Copied(snapshot=0)
        self._progress = progress
        self._pause = pause
        self._restored_ms = restored_ms
        self._moved = self._total = 0
        self._fresh: set[str] = set()  # segments copied by this run, whichever try
        self._unsynced: set[str] = set()  # folders with new names: synced together, before anything builds on them

    def run(self) -> None:
        """One try. Raises `_Overtaken` where the server went on to a newer snapshot."""
        newest = newest_number(self.source)
        try:
            self._try()
        except FileNotFoundError as error:
            if newest_number(self.source) != newest:
                raise _Overtaken from None
            raise CopyError(f"{error.filename} is missing; run `topics verify {self.source.root}`") from error

    def _try(self) -> None:
        newest = newest_number(self.source)
        self.done.problems = []
        number, snapshot = newest_snapshot(self.source, self.done.problems)
        since = 0 if snapshot is None else snapshot.wal_number
        self._check_history(number, snapshot)
        self._copy_segments(snapshot)
        late = self._late_marks(newest, snapshot)
        log = [n for n in self.source.wal_numbers() if n >= since]
        if newest_number(self.source) != newest:
            raise _Overtaken
        self._copy_tails(snapshot)
        staged = [n for n in reversed(log) if self._stage_log(n)]
        self._check_log(number, since, staged)
        self._switch(number, snapshot, staged)
        for path, footer, marks in late:
            self._save_marks(path, footer, marks)
        self._remove_old(number, snapshot)
        self._sum_up(number, snapshot, len(staged))

    def _switch(self, number: int, snapshot: snap.Snapshot | None, staged: list[int]) -> None:
        """From here on the target is the new copy."""
        for folder in self._unsynced:
            self.fs.sync_dir(folder)
        if snapshot is not None:
            snapshot.boot_id = COPIED_BOOT_ID
            snapshot.extra.pop(snap.LEDGER, None)  # the copy gets its ledger last: until then none is missing
            if self._restored_ms is not None:
                snapshot.extra[snap.RESTORED] = msgspec.Raw(msgspec.msgpack.encode(self._restored_ms))
            for topic in snapshot.topics:
                for ref in topic.segments:
                    ref.cold = False
            path = self.target.snapshot_path(number)
            self._write(path, snap.encode(snapshot))
            self.target.publish(path)
        for log_number in sorted(staged):
            self.target.publish(self.target.wal_path(log_number))
        self._write_ledger(0 if snapshot is None else snapshot.wal_number, staged)
        self.target.complete()

    def _write_ledger(self, since: int, staged: list[int]) -> None:
        """Write a ledger for the log files of the copy, so that one that is missing or cut short is noticed there."""
        files = [(number, self._read(self.target.wal_path(number))) for number in sorted(staged)]
        path = self.target.ledger_path(since)
        self._write(path, ledger.copied(self.source, since, files))
        self.target.publish(path)
        for number in self.target.ledger_numbers():
            if number != since:
                self.fs.unlink(self.target.ledger_path(number))

    # --- is the target ours to go on with?

    def _check_history(self, number: int, snapshot: snap.Snapshot | None) -> None:
        """The target is empty, or an earlier state of the source."""
        if not self.target.declared:
            return
        old_number, old = newest_snapshot(self.target, [])
        since = 0 if snapshot is None else snapshot.wal_number
        if old_number > number or (old_number < number and any(n >= since for n in self.target.wal_numbers())):
            self._refuse()
        if old is None or snapshot is None:
            return
        now = {topic.topic_id: topic for topic in snapshot.topics}
        for topic in old.topics:
            same = now.get(topic.topic_id)
            if same is not None and ((same.name, same.epoch) != (topic.name, topic.epoch) or same.head < topic.head):
                self._refuse()
            refs = {} if same is None else {ref.first: ref.footer for ref in same.segments}
            if any(refs.get(ref.first, ref.footer) != ref.footer for ref in topic.segments):
                self._refuse()
        if snapshot.last_epoch < old.last_epoch:
            self._refuse()

    def _check_log(self, number: int, since: int, staged: list[int]) -> None:
        """What the target has of the log behind this snapshot is the beginning of what it is about to get."""
        if not self.target.declared or newest_number(self.target) != number:
            return
        for log_number in self.target.wal_numbers():
            path = self.target.wal_path(log_number)
            if log_number < since:
                continue
            if log_number not in staged or not self._read(path + TEMP_SUFFIX).startswith(self._read(path)):
                self._refuse()

    def _refuse(self) -> NoReturn:
        raise CopyError(
            f"{self.target.root} is no earlier backup of {self.source.root}: it is one of another directory, "
            "or a server was started on it since; choose another target"
        )

    # --- segments

    def _copy_segments(self, snapshot: snap.Snapshot | None) -> None:
        wanted = [] if snapshot is None else [(topic, ref) for topic in snapshot.topics for ref in topic.segments]
        missing = [(topic, ref) for topic, ref in wanted if not self._has(topic.topic_id, ref)]
        need_bytes = sum(codec.Footer(*ref.footer).file_bytes for _, ref in missing)
        free_bytes = self.fs.free_bytes(self.target.root)
        if need_bytes + SPARE_BYTES > free_bytes:
            raise CopyError(f"{self.target.root} needs {need_bytes + SPARE_BYTES} more bytes and has {free_bytes} free")
        self._total = self._moved + need_bytes
        for topic, ref in missing:
            self._copy_segment(topic, ref)

    def _has(self, topic_id: int, ref: snap.SegmentRef) -> bool:
        path = self.target.segment_path(topic_id, ref.first)
        return self.fs.exists(path) and self._footer(path) == codec.Footer(*ref.footer)

    def _footer(self, path: str) -> codec.Footer | None:
        file = self.fs.open(path)
        try:
            size = file.size()
            tail = file.pread(codec.FOOTER_BYTES, max(size - codec.FOOTER_BYTES, 0))
            return codec.decode_footer(tail, path=path, file_bytes=size)
        except Corrupt:
            return None
        finally:
            file.close()

    def _copy_segment(self, topic: snap.TopicSnapshot, ref: snap.SegmentRef) -> None:
        try:
            found = self._open_segment(topic.topic_id, ref)
        except FileNotFoundError:
            return  # taken by a newer snapshot, or lost: which one shows once all is read
        self.target.make_topic_dir(topic.topic_id)
        path = self.target.segment_path(topic.topic_id, ref.first)
        try:
            with _Temporary(self.fs, path) as file:

                def take(at: int, data: bytes) -> None:
                    file.pwrite(data, at)
                    self._moved += len(data)
                    self._progress(self._moved, self._total)

                footer = codec.Footer(*ref.footer)
                examined = examine(found.pread, found.size(), path=found.path, known=footer, taken=take)
        finally:
            found.close()
        self.fs.rename(path + TEMP_SUFFIX, path)
        self._unsynced.add(posixpath.dirname(path))
        self._fresh.add(path)
        for problem in examined.problems:
            seqs = f"; topic {topic.name}, seqs {ref.first + problem.low} to {ref.first + problem.high - 1}"
            text = f"{found.path} at byte {problem.offset}: {problem.what}"
            self.done.problems.append(text + (seqs if problem.low < problem.high else ""))

    def _open_segment(self, topic_id: int, ref: snap.SegmentRef) -> File:
        """Where the snapshot says it is: a second copy in the other folder may lack flags."""
        path = self.source.segment_path(topic_id, ref.first)
        if ref.cold and self.cold_dir is None:
            raise CopyError(f"{path} is in the cold folder; name that folder with --cold-dir")
        if ref.cold and self.cold_dir is not None:
            path = self.cold_dir + path[len(self.source.segments_dir) :]
        return self.source.fs.open(path)

    # --- flags

    def _late_marks(self, newest: int, snapshot: snap.Snapshot | None) -> list[Late]:
        """Puts into the snapshot what the target's segments lack of the source's marks, and tells where."""
        late: list[Late] = []
        for topic in [] if snapshot is None else snapshot.topics:
            for ref in topic.segments:
                path, footer = self.target.segment_path(topic.topic_id, ref.first), codec.Footer(*ref.footer)
                try:
                    marks = _flags(self._open_segment(topic.topic_id, ref), footer)
                    there = _flags(self.fs.open(path), footer)
                except FileNotFoundError as error:
                    if newest_number(self.source) != newest:
                        raise
                    self.done.problems.append(
                        f"{error.filename}: the file is missing; topic {topic.name}, "
                        f"seqs {ref.first} to {ref.first + ref.count - 1}"
                    )
                    continue
                put_marks(marks, ref.pending)
                missing = np.flatnonzero((np.frombuffer(marks, np.uint8) > 0) & (np.frombuffer(there, np.uint8) == 0))
                ref.pending = pack_marks(marks, missing)
                if ref.pending:
                    late.append((path, footer, [(at, marks[at]) for at in missing.tolist()]))
        return late

    def _save_marks(self, path: str, footer: codec.Footer, marks: list[tuple[int, int]]) -> None:
        file = self.fs.open(path, write=True)
        try:
            for at, mark in marks:
                file.pwrite(bytes([codec.DELETED if mark == 1 else codec.LOST]), footer.flags_at + at)
            file.datasync()
        finally:
            file.close()

    # --- tails and log

    def _copy_tails(self, snapshot: snap.Snapshot | None) -> None:
        if snapshot is None:
            return
        for number in sorted({topic.tail.tails for topic in snapshot.topics if topic.tail is not None}):
            path = self.target.tails_path(number)
            data = _whole(self.source.fs, self.source.tails_path(number))
            self._write(path, data)
            self.target.publish(path)
            for topic in snapshot.topics:
                tail = topic.tail
                if tail is not None and tail.tails == number:
                    part = data[tail.offset : tail.offset + tail.size]
                    self._check_tail(self.source.tails_path(number), topic.name, tail.offset, part)

    def _check_tail(self, path: str, topic: str, offset: int, part: bytes) -> None:
        examined = examine(lambda size, at: part[at : at + size], len(part), path=path, taken=lambda at, data: None)
        for problem in examined.problems:
            what = f"{path} at byte {offset + problem.offset}: {problem.what}; last records of topic {topic}"
            self.done.problems.append(what)

    def _stage_log(self, number: int) -> bool:
        """Copies a log file up to its last whole frame under its temporary name; False if there is nothing in it."""
        path = self.source.wal_path(number)
        for _ in range(SETTLE_TRIES):
            data = _whole(self.source.fs, path)
            items = list(walfile.scan(data))
            damaged = [item for item in items if isinstance(item, walfile.Damage)]
            if not damaged:
                break
            self._pause()  # a write that is under way looks the same: look again
        torn = bool(damaged) and damaged[-1].torn and damaged[-1] is items[-1]
        for item in damaged[:-1] if torn else damaged:
            self.done.problems.append(f"{path} at byte {item.at}: {item.end - item.at} damaged bytes in the log")
        if bad := walfile.damaged_headers(data):
            self.done.problems.append(f"{path} at byte {bad[0]}: the header of a log file is damaged")
        end = items[-1].at if torn else (items[-1].end if items else walfile.HEADER_BYTES)
        if end <= walfile.HEADER_BYTES and not _resumes(data, path):
            return False
        self._write(self.target.wal_path(number), data[:end])
        return True

    # --- afterwards

    def _remove_old(self, number: int, snapshot: snap.Snapshot | None) -> None:
        if snapshot is None:
            return
        target = self.target
        tails = {topic.tail.tails for topic in snapshot.topics if topic.tail is not None}
        old = [target.wal_path(n) for n in target.wal_numbers() if n < snapshot.wal_number]
        old += [target.snapshot_path(n) for n in target.snapshot_numbers() if n != number]
        old += [target.tails_path(n) for n in target.tails_numbers() if n not in tails]
        segments = {topic.topic_id: {ref.first for ref in topic.segments} for topic in snapshot.topics}
        for topic_id in target.topic_ids():
            named = segments.get(topic_id, set())
            old += [target.segment_path(topic_id, seq) for seq in target.segment_seqs(topic_id) if seq not in named]
        for path in old:
            with suppress(FileNotFoundError):
                self.fs.unlink(path)
        for topic_id in target.topic_ids():
            if topic_id not in segments:
                target.remove_topic_dir(topic_id)

    def _sum_up(self, number: int, snapshot: snap.Snapshot | None, log_files: int) -> None:
        done = self.done
        done.snapshot, done.log_files = number, log_files
        topics = [] if snapshot is None else snapshot.topics
        done.topics = len(topics)
        done.records = sum(topic.count for topic in topics)
        paths = [self.target.segment_path(topic.topic_id, ref.first) for topic in topics for ref in topic.segments]
        sizes = {path: self.fs.size(path) for path in paths if self.fs.exists(path)}
        reused = [size for path, size in sizes.items() if path not in self._fresh]
        done.segments_copied, done.segments_reused = len(sizes) - len(reused), len(reused)
        done.bytes_copied, done.bytes_reused = self._moved, sum(reused)

    def _write(self, path: str, data: bytes) -> None:
        with _Temporary(self.fs, path) as file:
            file.pwrite(data, 0)
        self._moved += len(data)

    def _read(self, path: str) -> bytes:
        return _whole(self.fs, path)


class _Temporary:
    """The file that will be `path`, under its temporary name; synced when all went well, gone when not."""

    def __init__(self, fs: Fs, path: str) -> None:
        self._fs = fs
        self._path = path + TEMP_SUFFIX

    def __enter__(self) -> File:
        self._file = self._fs.open(self._path, create=True)
        self._file.truncate(0)
        return self._file

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._file.sync()
        finally:
            self._file.close()
            if error is not None:
                with suppress(OSError):
                    self._fs.unlink(self._path)


def newest_number(datadir: DataDir) -> int:
    """0 if there is no snapshot."""
    return max(datadir.snapshot_numbers(), default=0) if datadir.fs.exists(datadir.snapshots_dir) else 0


def newest_snapshot(datadir: DataDir, problems: list[str]) -> tuple[int, snap.Snapshot | None]:
    """The newest snapshot that can be read. Where there are some and none can, `CopyError`."""
    numbers = datadir.snapshot_numbers()
    for number in reversed(numbers):
        path = datadir.snapshot_path(number)
        try:
            data = _whole(datadir.fs, path)
            snapshot = snap.decode(data, path=path)
        except Corrupt as error:
            problems.append(str(error))
            continue
        problems += [f"{path} at byte {at}: one copy of the snapshot is damaged" for at in snap.damaged_copies(data)]
        return number, snapshot
    if numbers:
        raise CopyError(f"no snapshot in {datadir.snapshots_dir} can be read; run `topics verify {datadir.root}`")
    return 0, None


def _flags(file: File, footer: codec.Footer) -> bytearray:
    """The marks of a segment file, which is closed then."""
    try:
        flags = file.pread(footer.count, footer.flags_at)
        return codec.decode_flags(flags.ljust(footer.count, b"\0")) or bytearray(footer.count)
    finally:
        file.close()


def _whole(fs: Fs, path: str) -> bytes:
    file = fs.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def _resumes(data: bytes, path: str) -> bool:
    """Whether the file says where the log before it ends: then it matters even without a frame."""
    try:
        return walfile.decode_header(data, path=path).resume_number != 0
    except Corrupt:
        return False


def _vacant(fs: Fs, path: str) -> bool:
    """Return whether the path is free: absent, empty, or an unfinished copy."""
    if not fs.exists(path):
        return True
    names = set(fs.listdir(path)) - {"lost+found"}
    return not names or (UNFINISHED in names and "FORMAT" not in names)
