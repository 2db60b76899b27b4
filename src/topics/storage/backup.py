"""Copy a data directory into another one, also while a server runs on it. The server takes no part in the copy.

The copy relies on how a server changes its files. The files that a snapshot names exist until the next snapshot is
complete. In a segment only the flags change, and only after the snapshot that contains the change. The log only grows.
The steps of a copy:

1. Check every segment, and copy those that the target lacks.
2. Read the flags of all segments. If the server has written a newer snapshot by then, start again with that one.
3. Copy the tails, and the log after the snapshot, to temporary names. The last log file is copied first, because it
   was written after all earlier ones.
4. Rename the new tails files to their names in the target, then the snapshot, then the log files, the first one first.

The target is a valid data directory at every moment. A copy that is killed before step 4 leaves the old state; one that
is killed within step 4 leaves a state between the old and the new one. Flags that a segment of the target lacks go into
the target's snapshot as pending marks, so the files of the old snapshot do not change before the new one is complete.

A copy that would cost the target a record is refused: where a segment or a tail of the source is damaged, the target
keeps its own file, and if it has the records in another form, in its log for example, nothing of it changes, and new
files are removed again.

Segments are copied, not linked: a server changes flags in place, and a hard link would show that change in the copy.
Cold segments become ordinary ones. The copy gets another boot id, so a server that starts on it reports the seqs that
the original may have assigned since as lost, as after a power loss, and does not assign them again.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable
from contextlib import closing, suppress

import numpy as np
from msgspec import Struct

from topics.storage import snapshot as snap
from topics.storage.backup_files import (
    CopiedLog,
    CopyError,
    HeldBackup,
    newest_number,
    newest_snapshot,
    read_footer,
    read_marks,
    refuse_damage,
    refuse_history,
    tail_problems,
)
from topics.storage.check import Problem, examine
from topics.storage.data_layout import TEMP_SUFFIX
from topics.storage.datadir import UNFINISHED, DataDir
from topics.storage.fs import File, Fs, NotAFile, ReadOnlyFs, absence, next_step, read_whole
from topics.storage.log import ledger
from topics.storage.log.log_files import LogFile
from topics.storage.segments import codec
from topics.storage.segments.marks import pack_marks, put_marks

MAX_TRIES = 20
SPARE_BYTES = 16 << 20  # reserve for the snapshot, the tails and the log

Progress = Callable[[int, int], None]  # bytes copied, bytes to copy


class Copied(Struct, kw_only=True):
    """The result of a copy. `problems` lists damage in the source. It is copied where the target has nothing better."""

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


class _Overtaken(Exception):
    """The server has written a newer snapshot since the copy began, or may be removing the files of an older one."""


def copy(
    fs: Fs,
    source: str,
    target: str,
    *,
    cold_dir: str | None = None,
    progress: Progress = lambda done, total: None,
    pause: Callable[[], None] = lambda: time.sleep(0.01),
    restored_ms: int | None = None,
) -> Copied:
    """Copy the present state of `source` to `target`. Block until done. Raise `CopyError`, `DataDirError` or OSError.

    With `restored_ms`, the copy is a restore: it starts a new history instead of a second copy of the same one.
    """
    origin = DataDir(ReadOnlyFs(fs), source)
    origin.check_format()
    copy_dir = DataDir(fs, target)
    if copy_dir.declared:
        copy_dir.open()
    else:
        copy_dir.begin()
    with closing(copy_dir):
        copier = _Copier(origin, copy_dir, cold_dir, progress, pause, restored_ms)
        for attempt in range(1, MAX_TRIES + 1):
            try:
                copier.run()
            except _Overtaken:
                pause()
                continue
            except CopyError:
                copier.discard()
                raise
            copier.done.tries = attempt
            return copier.done
        raise CopyError(
            f"{source} took a new snapshot in each of {MAX_TRIES} tries, faster than this copy could follow; "
            "try again, or raise TOPICS_CHECKPOINT_WAL_BYTES"
        )


def restore(
    fs: Fs,
    source: str,
    target: str,
    *,
    now_ms: int,
    set_aside: str | None,
    progress: Progress = lambda done, total: None,
) -> Copied:
    """Copy a backup to the directory of a server. An existing directory moves to the path `set_aside`, if given."""
    with closing(DataDir(ReadOnlyFs(fs), source)) as origin:
        origin.inspect()
        if not is_vacant(fs, target):
            move_aside(fs, target, set_aside)
        return copy(fs, source, target, progress=progress, restored_ms=now_ms)


def is_vacant(fs: Fs, path: str) -> bool:
    """Return whether the path is free: absent, empty, or an unfinished copy."""
    names = set(fs.listdir(path)) - {"lost+found", "LOCK"} if fs.exists(path) else set()
    return not names or (UNFINISHED in names and "FORMAT" not in names)


def move_aside(fs: Fs, target: str, path: str | None) -> None:
    """Move a data directory that is in the way to the path, if one is given. Raise `CopyError` or `DataDirError`."""
    if path is None:
        raise CopyError(f"{target} is not empty; move it away, or let --force do that")
    was = DataDir(ReadOnlyFs(fs), target)
    was.inspect()  # raises if a server has it open, or if it is no data directory
    fs.rename(target, path)
    was.close()
    fs.sync_dir(posixpath.dirname(posixpath.normpath(target)) or ".")


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
        self._restored = {} if restored_ms is None else {snap.RESTORED: restored_ms}
        self._moved = self._total = 0
        self._read_bytes = 0
        self._fresh: set[str] = set()  # segments that any try of this run has copied
        self._examined: dict[tuple[int, ...], list[Problem]] = {}  # of segments that any try has read, by footer
        self._held = HeldBackup(target)
        self._missed: str | None = None  # the file that the last try did not find
        self._costs: list[str] = []  # damage that would cost the target a record
        self._unsynced: set[str] = set()  # folders with new names, to be synced together before the snapshot names them

    def run(self) -> None:
        """Make one try. Raise `_Overtaken` if the server has written a newer snapshot, or a file is missing once."""
        newest = newest_number(self.source)
        try:
            self._try()
        except FileNotFoundError as error:
            if isinstance(error, NotAFile):
                raise CopyError(f"{error.filename}: {error.strerror}; {next_step(error)}") from error
            missed, self._missed = self._missed, error.filename
            if newest_number(self.source) != newest or missed != error.filename:
                raise _Overtaken from None
            raise CopyError(f"{error.filename} is missing; run `topics verify {self.source.root}`") from error

    def _try(self) -> None:
        newest = newest_number(self.source)
        self.done.problems, self._costs = [], []
        snapshot = newest_snapshot(self.source, self.done.problems)
        if self.target.declared and not self._held.is_earlier_than(snapshot, self.target):
            refuse_history(self.source, self.target)
        for topic in snapshot.topics:
            for first, last in self._held.lost_since(topic):  # the source has reported them to its readers
                self._costs.append(f"topic {topic.name}, seqs {first} to {last}: a reader found the damage")
        self._copy_segments(snapshot)
        self._add_late_marks(newest, snapshot)
        account = ledger.read(self.source, snapshot.wal_number)  # before the log, which has what a ledger claims
        log = [number for number in self.source.wal_numbers() if number >= snapshot.wal_number]
        if newest_number(self.source) != newest:
            raise _Overtaken
        tails = self._stage_tails(snapshot)
        copied_log = CopiedLog(self.source, account, self.done.problems)
        copied_log.read(log, self._pause)
        copied_log.check(snapshot)
        self._check_log(snapshot.wal_number, copied_log.files)
        if self._costs:
            refuse_damage(self.source, self.target, self._costs)
        for file in copied_log.files:
            self._write(self.target.wal_path(file.number), file.data)
        self._switch(snapshot, tails, copied_log)
        self._remove_old(snapshot)
        self._sum_up(snapshot, len(copied_log.files))

    def discard(self) -> None:
        """Remove the files that this run has added to a complete backup."""
        if self.target.declared:
            self.target.sweep()
            self._remove_old(self._held.snapshot)

    def _switch(self, snapshot: snap.Snapshot, tails: list[int], copied_log: CopiedLog) -> None:
        """Make the new copy the valid one. A tails file of the old snapshot is replaced after the new one counts."""
        if self.target.declared:
            self.target.sign()  # before it gets files that older versions do not know
        for folder in self._unsynced:
            self.fs.sync_dir(folder)
        for tails_number in tails:
            if tails_number not in self._held.tails:
                self.target.publish(self.target.tails_path(tails_number))
        since = snapshot.wal_number
        if since:
            snap.mark_copy(snapshot, ledger=since, **self._restored)
            if copied_log.ledger and since not in self.target.ledger_numbers():
                self._publish(self.target.ledger_path(since), ledger.copied(self.source, since, [], {}))
            for topic in snapshot.topics:
                for ref in topic.segments:
                    ref.cold = False
            self._publish(self.target.snapshot_path(since), snap.encode(snapshot))
        for tails_number in self._held.tails.intersection(tails):
            self.target.publish(self.target.tails_path(tails_number))
        for file in copied_log.files:
            self.target.publish(self.target.wal_path(file.number))
        if copied_log.ledger:
            self._publish(self.target.ledger_path(since), copied_log.ledger)
        for other in self.target.ledger_numbers():
            if other != since or not copied_log.ledger:
                self.fs.unlink(self.target.ledger_path(other))
        self.target.complete()

    def _publish(self, path: str, data: bytes) -> None:
        self._write(path, data)
        self.target.publish(path)

    # --- whether the target is an earlier backup

    def _check_log(self, since: int, files: list[LogFile]) -> None:
        """Raise `CopyError` unless each log file of the target is a prefix of the new one."""
        if not self.target.declared or newest_number(self.target) != since:
            return
        staged = {file.number: file.data for file in files}
        for log_number in self.target.wal_numbers():
            if log_number < since:
                continue
            old, new = read_whole(self.fs, self.target.wal_path(log_number)), staged.get(log_number, b"")
            if new.startswith(old):
                continue
            if new and old.startswith(new):
                self.done.problems.append(f"{self.source.wal_path(log_number)} at byte {len(new)}: the log ends here")
            if self.done.problems:
                refuse_damage(self.source, self.target, self.done.problems)
            refuse_history(self.source, self.target)

    # --- segments

    def _copy_segments(self, snapshot: snap.Snapshot) -> None:
        wanted = [(topic, ref) for topic in snapshot.topics for ref in topic.segments]
        missing = [ref for topic, ref in wanted if not self._has(topic.topic_id, ref)]
        need_bytes = sum(codec.Footer(*ref.footer).file_bytes for ref in missing)
        free_bytes = self.fs.free_bytes(self.target.root)
        if need_bytes + SPARE_BYTES > free_bytes:
            lacks = f"needs {need_bytes + SPARE_BYTES} more bytes and has {free_bytes} free"
            raise CopyError(f"{self.target.root} {lacks}; free space on its disk, then run the command again")
        unread = [ref for _, ref in wanted if ref.footer not in self._examined]
        self._total = self._read_bytes + sum(codec.Footer(*ref.footer).file_bytes for ref in unread)
        for topic, ref in wanted:
            self._take_segment(topic, ref)

    def _has(self, topic_id: int, ref: snap.SegmentRef) -> bool:
        path = self.target.path_of(topic_id, ref)
        return self.fs.exists(path) and read_footer(self.fs, path) == codec.Footer(*ref.footer)

    def _take_segment(self, topic: snap.TopicSnapshot, ref: snap.SegmentRef) -> None:
        """Check a segment, once, and copy it if the target lacks it. Report its damage."""
        path = self._source_path(topic.topic_id, ref)
        if ref.footer not in self._examined:
            try:
                found = self.source.fs.open(path)
            except FileNotFoundError:
                return  # removed after a newer snapshot, or lost: `_add_late_marks` finds out
            with closing(found):
                self._examined[ref.footer] = self._read_segment(found, topic, ref)
        for problem in self._examined[ref.footer]:
            self._note_damage(problem, path, topic, ref)

    def _note_damage(self, problem: Problem, path: str, topic: snap.TopicSnapshot, ref: snap.SegmentRef) -> None:
        """Report damage of a segment, and note whether it would cost the target a record."""
        report = problem.report(path, topic.name, ref.first)
        self.done.problems.append(report)
        if self._would_cost(problem, topic, ref):
            self._costs.append(report)

    def _would_cost(self, problem: Problem, topic: snap.TopicSnapshot, ref: snap.SegmentRef) -> bool:
        if ref.footer in self._held.footers or self._has(topic.topic_id, ref):
            return False  # the file of the target stays
        first, last = ref.first + problem.low, ref.first + problem.high - 1
        return self._held.may_have(topic.topic_id, max(first, topic.earliest), last)

    def _read_segment(self, found: File, topic: snap.TopicSnapshot, ref: snap.SegmentRef) -> list[Problem]:
        """Return the problems of a segment. Copy it, unless the target has it or would lose records by the copy."""
        footer, path = codec.Footer(*ref.footer), self.target.path_of(topic.topic_id, ref)

        def check(copied: File | None) -> list[Problem]:
            def take(at: int, data: bytes) -> None:
                if copied is not None:
                    copied.pwrite(data, at)
                    self._moved += len(data)
                self._read_bytes += len(data)
                self._progress(self._read_bytes, self._total)

            return examine(found.pread, found.size(), path=found.path, known=footer, taken=take).problems

        if self._has(topic.topic_id, ref):
            return check(None)
        self.target.make_topic_dir(topic.topic_id)
        with self.target.new_file(path, named=False) as file:
            problems = check(file)
        if problems and (
            any(self._would_cost(one, topic, ref) for one in problems) or ref.footer in self._held.footers
        ):
            self.fs.unlink(path + TEMP_SUFFIX)
        else:
            self.fs.rename(path + TEMP_SUFFIX, path)
            self._unsynced.add(posixpath.dirname(path))
            self._fresh.add(path)
        return problems

    def _source_path(self, topic_id: int, ref: snap.SegmentRef) -> str:
        """Return the path of the file that the snapshot names: a second copy in the other folder may lack flags."""
        path = self.source.path_of(topic_id, ref, self.cold_dir)
        if ref.cold and self.cold_dir is None:
            raise CopyError(f"{path} is in the cold folder; name that folder with --cold-dir")
        return path

    # --- flags

    def _add_late_marks(self, newest: int, snapshot: snap.Snapshot) -> None:
        """Add to the snapshot the marks that segments of the target lack."""
        for topic, ref in [(one, ref) for one in snapshot.topics for ref in one.segments]:
            footer = codec.Footer(*ref.footer)
            try:
                marks = read_marks(self.source.fs, self._source_path(topic.topic_id, ref), footer)
                there = read_marks(self.fs, self.target.path_of(topic.topic_id, ref), footer)
            except FileNotFoundError as error:
                if newest_number(self.source) != newest:
                    raise
                self._note_damage(Problem(0, absence(error), 0, ref.count), error.filename, topic, ref)
                continue
            put_marks(marks, ref.pending)
            missing = np.flatnonzero((np.frombuffer(marks, np.uint8) > 0) & (np.frombuffer(there, np.uint8) == 0))
            ref.pending = pack_marks(marks, missing)

    # --- tails and log

    def _stage_tails(self, snapshot: snap.Snapshot) -> list[int]:
        """Copy the tails files to their temporary names. Return their numbers."""
        staged, topics = [], snapshot.topics
        for number in sorted({topic.tail.tails for topic in topics if topic.tail is not None}):
            path, source = self.target.tails_path(number), self.source.tails_path(number)
            kept = number in self._held.tails  # the target has this file, which never changes
            try:
                data = read_whole(self.source.fs, source)
            except FileNotFoundError:
                if not kept:
                    raise
                data = b""
            damaged = False
            for topic in topics:
                ref = topic.tail
                for text in () if ref is None or ref.tails != number else tail_problems(source, topic.name, ref, data):
                    damaged = True
                    self.done.problems.append(text)
                    if not kept and self._held.may_have(topic.topic_id, topic.tail_first, topic.head):
                        self._costs.append(text)
            if not kept or not damaged:
                self._write(path, data)
                staged.append(number)
        return staged

    # --- afterwards

    def _remove_old(self, snapshot: snap.Snapshot) -> None:
        """Remove the files of the target that this snapshot and the log after it do not need."""
        target, topics, number = self.target, snapshot.topics, snapshot.wal_number
        tails = {topic.tail.tails for topic in topics if topic.tail is not None}
        old = [target.wal_path(n) for n in target.wal_numbers() if n < number]
        old += [target.snapshot_path(n) for n in target.snapshot_numbers() if n != number]
        old += [target.tails_path(n) for n in target.tails_numbers() if n not in tails]
        segments = {topic.topic_id: {target.path_of(topic.topic_id, ref) for ref in topic.segments} for topic in topics}
        for topic_id in target.topic_ids():
            named = segments.get(topic_id, set())
            old += [path for path in target.segment_paths(topic_id) if path not in named]
        for path in old:
            with suppress(FileNotFoundError):
                self.fs.unlink(path)
        for topic_id in target.topic_ids():
            if topic_id not in segments:
                target.remove_topic_dir(topic_id)

    def _sum_up(self, snapshot: snap.Snapshot, log_files: int) -> None:
        done, topics = self.done, snapshot.topics
        done.snapshot, done.log_files = snapshot.wal_number, log_files
        done.topics = len(topics)
        done.records = sum(topic.count for topic in topics)
        paths = [self.target.path_of(topic.topic_id, ref) for topic in topics for ref in topic.segments]
        sizes = {path: self.fs.size(path) for path in paths if self.fs.exists(path)}
        reused = [size for path, size in sizes.items() if path not in self._fresh]
        done.segments_copied, done.segments_reused = len(sizes) - len(reused), len(reused)
        done.bytes_copied, done.bytes_reused = self._moved, sum(reused)

    def _write(self, path: str, data: bytes) -> None:
        with self.target.new_file(path, named=False) as file:
            file.pwrite(data, 0)
        self._moved += len(data)
