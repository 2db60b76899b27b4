"""Repair a data directory from a backup or a replica: fetch the bytes of damaged ranges, and nothing else.

Every range is written only if it then matches the checksum that the directory itself has for it (of its chunk or index;
a file of the log must have the same other frames in the source), so a source that is older, damaged or of another
directory changes nothing. A crash in between leaves the range damaged, as before.
Records that a server has already reported to readers as lost stay lost.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from msgspec import Struct

from topics.errors import Corrupt, DamageReport
from topics.storage import snapshot as snap
from topics.storage.backup_files import newest_snapshot, tail_problems
from topics.storage.check import Examined, Read, examine
from topics.storage.datadir import DataDir
from topics.storage.fs import File, Fs, ReadOnlyFs, read_whole, reader_of
from topics.storage.log import walfile
from topics.storage.replica.history import History, State
from topics.storage.replica.objects import FileRef, pieces_of
from topics.storage.segments import codec
from topics.storage.segments.columns import Columns
from topics.storage.segments.marks import DELETED, put_marks

Held = tuple[Read, int]
Progress = Callable[[int, int], None]  # topics that are checked, all topics


class Repaired(Struct, kw_only=True):
    """The result: the ranges that are whole again, and the damage for which the source has no bytes."""

    ranges: list[str] = []
    missing: list[str] = []
    bytes: int = 0


class Backup:
    def __init__(self, fs: Fs, root: str) -> None:
        self._dir = DataDir(ReadOnlyFs(fs), root)
        self._dir.inspect()

    def snapshot(self) -> snap.Snapshot:
        return newest_snapshot(self._dir, [])

    def file(self, path: str) -> Held | None:
        """Return what reads this file, and its size; None if the source has none."""
        try:
            file = self._dir.fs.open(posixpath.join(self._dir.root, path))
        except FileNotFoundError:
            return None
        return file.pread, file.size()


class Replica:
    """The newest checkpoint of a replica, and the log after it."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._state: State = history.state(history.last_number)
        self._files: dict[str, FileRef] = {ref.path: ref for ref in self._state.checkpoint.files}

    def snapshot(self) -> snap.Snapshot:
        path = next(path for path in self._files if path.endswith(".snap"))
        return snap.decode(self._history.file(self._files[path]), path=path)

    def file(self, path: str) -> Held | None:
        if path.endswith(".wal"):
            data = self._log(int(posixpath.basename(path).removesuffix(".wal")))
            return reader_of(data), len(data)
        if (ref := self._files.get(path)) is None:
            return None
        return partial(self._history.bucket.get_range, ref.name), ref.size_bytes

    def _log(self, number: int) -> bytes:
        found = b""
        for at in range(self._state.checkpoint.since, self._state.last.number + 1):
            one = self._history.read(at)
            if one.head.kind == "bytes" and one.head.term == self._state.head.term:
                found += b"".join(data for file, at, data in pieces_of(one) if file == number and at == len(found))
        return found


Source = Backup | Replica  # where good bytes come from; a path is relative to a data directory


def repair(
    fs: Fs, root: str, source: Source, *, cold_dir: str | None = None, progress: Progress = lambda done, total: None
) -> Repaired:
    """Repair the directory of a stopped server. Raise `CopyError`, `DataDirError` or OSError."""
    with closing(DataDir(fs, root)) as datadir:
        datadir.open()
        work = _Repair(datadir, source, cold_dir)
        snapshot = work.snapshot()
        for at, topic in enumerate(snapshot.topics):
            for ref in topic.segments:
                work.segment(topic, ref)
            if topic.tail is not None:
                work.tail(topic, topic.tail)
            progress(at + 1, len(snapshot.topics))
        for number in [number for number in datadir.wal_numbers() if number >= snapshot.wal_number]:
            work.log(datadir.wal_path(number))
        return work.done


class _Repair:
    def __init__(self, datadir: DataDir, source: Source, cold_dir: str | None) -> None:
        self.done = Repaired()
        self._dir = datadir
        self._fs = datadir.fs
        self._source = source
        self._cold_dir = cold_dir
        self._held: dict[int, snap.TopicSnapshot] | None = None  # topics of the source

    def snapshot(self) -> snap.Snapshot:
        """Return the newest snapshot. A damaged copy of it is written again from the other one."""
        snapshot = newest_snapshot(self._dir, [])
        if snapshot.wal_number:
            path = self._dir.snapshot_path(snapshot.wal_number)
            data = read_whole(self._fs, path)
            if bad := snap.damaged_copies(reader_of(data), len(data)):
                half = len(data) // 2
                self._dir.write_file(path, [data[half - bad[0] : len(data) - bad[0]] * 2])
                self._note(path, bad[0], half, "from its other copy")
        return snapshot

    # --- segments

    def segment(self, topic: snap.TopicSnapshot, ref: snap.SegmentRef) -> None:
        footer = codec.Footer(*ref.footer)
        path = self._dir.path_of(topic.topic_id, ref, self._cold_dir)
        try:
            file = self._fs.open(path, write=True)
        except FileNotFoundError:
            self._missing_file(topic, ref, footer, path)
            return
        with closing(file):
            found = examine(file.pread, file.size(), path=path, known=footer)
            if found.problems and _is_whole(found):
                self._ends(file, topic, footer)
                found = examine(file.pread, file.size(), path=path, known=footer)
            if found.problems and found.columns is not None:
                for problem in found.problems:
                    self._data(file, topic, footer, found.columns, problem.offset)
                if any(problem.offset >= footer.flags_at for problem in found.problems):
                    self._flags(file, topic, ref, footer, found.flags)
                file.datasync()
                found = examine(file.pread, file.size(), path=path, known=footer)
        self.done.missing += [problem.report(path, topic.name, ref.first) for problem in found.problems]

    def _ends(self, file: File, topic: snap.TopicSnapshot, footer: codec.Footer) -> None:
        """Repair the first bytes and the footer, which follow from the snapshot, and the index."""
        ends = codec.encode_footer(footer)
        for at, data in ((0, codec.MAGIC), (footer.file_bytes - len(ends), ends)):
            if file.pread(len(data), at) != data:
                self._write(file, at, data, "from the snapshot")
        size = footer.flags_at - footer.sums_at
        if codec.sum64(file.pread(size, footer.sums_at)) == footer.index_sum:
            return
        for read, _ in self._sources(topic, footer, older=False):
            index = read(size, footer.sums_at)
            if codec.sum64(index) == footer.index_sum:
                self._write(file, footer.sums_at, index)
                return

    def _data(self, file: File, topic: snap.TopicSnapshot, footer: codec.Footer, columns: Columns, offset: int) -> None:
        """Repair the chunk of data at this offset of the file, if there is one."""
        if not codec.HEADER_BYTES <= offset < footer.sums_at:
            return
        at = offset - codec.HEADER_BYTES
        size = min(codec.CHUNK_BYTES, footer.data_bytes - at)
        wanted = int.from_bytes(file.pread(8, footer.sums_at + 8 * (at // codec.CHUNK_BYTES)), "little")
        for held in self._sources(topic, footer, older=True):
            chunk = _chunk(held, columns, footer, at, size)
            if codec.sum64(chunk) == wanted:
                self._write(file, offset, chunk)
                return

    def _sources(self, topic: snap.TopicSnapshot, footer: codec.Footer, *, older: bool) -> Iterator[Held]:
        """Yield this segment in the source, and if `older`, the same records before their segment was rewritten."""
        for generation in range(footer.generation, -1 if older else footer.generation - 1, -1):
            path = self._dir.segment_path(topic.topic_id, footer.first, generation=generation)
            if (held := self._source.file(self._inside(path))) is not None:
                yield held

    def _flags(
        self, file: File, topic: snap.TopicSnapshot, ref: snap.SegmentRef, footer: codec.Footer, flags: bytes
    ) -> None:
        """Repair damaged flags, if only one value of them fits the number of live records in the snapshot."""
        flags = flags.ljust(footer.count, b"\0")
        bad = codec.damaged_flags(flags)
        known = codec.decode_flags(flags) or bytearray(footer.count)
        for mark in (None, 0, DELETED):
            marks = bytearray(known)
            for at in bad if mark is not None else ():
                marks[at] = mark or 0
            if _live(marks, topic, ref) == ref.live:
                for at in bad:
                    self._write(file, footer.flags_at + at, codec.encode_flags(marks[at : at + 1]), "from the snapshot")
                return

    def _missing_file(self, topic: snap.TopicSnapshot, ref: snap.SegmentRef, footer: codec.Footer, path: str) -> None:
        """Copy a file that is missing, unless that would bring deleted records back."""
        what = "the file is missing"
        for read, _ in self._sources(topic, footer, older=False):
            data = read(footer.file_bytes, 0)
            found = examine(reader_of(data), len(data), path=path, known=footer)
            if found.problems:
                break
            marks = codec.decode_flags(found.flags) or bytearray(footer.count)
            put_marks(marks, self._pending(topic, ref))
            if _live(marks, topic, ref) != ref.live:
                what += ", and the source has it with records that were deleted since"
                break
            self._fs.mkdir(posixpath.dirname(path))
            flags = codec.encode_flags(marks)
            self._dir.write_file(path, [data[: footer.flags_at], flags, data[footer.flags_at + len(flags) :]])
            self._note(path, 0, len(data))
            return
        seqs = ref.first, ref.first + ref.count - 1
        self.done.missing.append(DamageReport(path, 0, what, topic=topic.name, seqs=seqs))

    def _pending(self, topic: snap.TopicSnapshot, ref: snap.SegmentRef) -> bytes:
        """Return the marks that the file of the source may lack."""
        known = self._known(topic)
        refs = known.segments if known is not None else ()
        return next((one.pending for one in refs if one.footer == ref.footer), b"")

    def _known(self, topic: snap.TopicSnapshot) -> snap.TopicSnapshot | None:
        """Return what the source has of the topic."""
        if self._held is None:
            self._held = {one.topic_id: one for one in self._source.snapshot().topics}
        return self._held.get(topic.topic_id)

    # --- tails and log

    def tail(self, topic: snap.TopicSnapshot, ref: snap.TailRef) -> None:
        path = self._dir.tails_path(ref.tails)
        here = snap.TailRef(ref.tails, 0, ref.size, ref.opened_ms, ref.live, ref.live_bytes)
        with closing(self._fs.open(path, create=True)) as file:
            bad = file.pread(ref.size, ref.offset)
            problems = tail_problems(path, topic.name, here, bad)
            held = self._source.file(self._inside(path)) if problems else None
            data = held[0](ref.size, ref.offset) if held is not None else b""
            fits = len(data) == ref.size and not tail_problems(path, topic.name, here, data)
            if fits and _is_same_tail(bad, data, topic, self._known(topic)):
                self._write(file, ref.offset, data)
                file.sync()
            elif problems:
                what, seqs = "the last records of a topic are damaged", (topic.tail_first, topic.head)
                self.done.missing.append(DamageReport(path, ref.offset, what, topic=topic.name, seqs=seqs))

    def log(self, path: str) -> None:
        """Repair damaged frames of a log file. Its last write may be cut short: that is no damage."""
        data = read_whole(self._fs, path)
        found = list(walfile.scan(data))
        damaged = [item for item in found if isinstance(item, walfile.Damage) and not item.torn]
        held = self._source.file(self._inside(path)) if damaged else None
        whole = held[0](min(held[1], len(data)), 0) if held is not None else b""
        if _without_damage(whole, found) != _without_damage(data[: len(whole)], found):
            whole = b""  # of another directory, or of a copy that a server went on with
        has_frames = any(isinstance(item, walfile.FoundFrame) for item in found)
        with closing(self._fs.open(path, write=True)) as file:
            for item in damaged:
                good = whole[item.at : item.end]
                if not has_frames and good[-8:] != data[item.end - 8 : item.end]:  # no frame shows that it is the same
                    good = b""
                patched = data[: item.at] + good + data[item.end :]
                again = [one for one in walfile.scan(patched) if isinstance(one, walfile.Damage)]
                if len(good) == item.end - item.at and all(one.at != item.at for one in again):
                    self._write(file, item.at, good)
                    data = patched
                else:
                    what = f"{item.end - item.at} damaged bytes in the log"
                    self.done.missing.append(DamageReport(path, item.at, what))
            file.datasync()

    # --- what was done

    def _inside(self, path: str) -> str:
        return posixpath.relpath(path, self._dir.root)

    def _write(self, file: File, at: int, data: bytes, origin: str = "from the source") -> None:
        file.pwrite(data, at)
        self._note(file.path, at, len(data), origin)

    def _note(self, path: str, at: int, size_bytes: int, origin: str = "from the source") -> None:
        self.done.bytes += size_bytes
        self.done.ranges.append(f"{path}, bytes {at} to {at + size_bytes - 1}, {origin}")


def _is_same_tail(bad: bytes, good: bytes, topic: snap.TopicSnapshot, known: snap.TopicSnapshot | None) -> bool:
    """Return whether the footers are the same. If one is damaged, both directories must have it at the same place."""
    try:
        codec.decode_footer(bad[-codec.FOOTER_BYTES :], path="", file_bytes=len(bad))
    except Corrupt:
        return known is not None and _tail_of(known) == _tail_of(topic)
    return bad.endswith(good[-codec.FOOTER_BYTES :])


def _tail_of(topic: snap.TopicSnapshot) -> tuple[int, ...]:
    tail = topic.tail
    return () if tail is None else (topic.epoch, topic.tail_first, tail.tails, tail.offset, tail.size)


def _without_damage(data: bytes, found: list[walfile.FoundFrame | walfile.Damage]) -> bytes:
    kept = bytearray(data)
    for item in found:
        if isinstance(item, walfile.Damage):
            end = min(item.end, len(kept))
            kept[item.at : end] = bytes(max(end - item.at, 0))
    return bytes(kept)


def _is_whole(found: Examined) -> bool:
    """Return whether more than data and flags is damaged."""
    footer = found.footer
    assert footer is not None
    outside = (footer.sums_at, footer.file_bytes - codec.FOOTER_BYTES, 0)
    return found.columns is None or any(problem.offset in outside for problem in found.problems)


def _live(marks: bytearray, topic: snap.TopicSnapshot, ref: snap.SegmentRef) -> int:
    marks = bytearray(marks)
    put_marks(marks, ref.pending)
    return marks.count(0, max(topic.earliest - ref.first, 0))


def _chunk(found: Held, columns: Columns, footer: codec.Footer, at: int, size: int) -> bytes:
    """Return the chunk at offset `at` of the data; b"" if the source cannot have it.

    A source that had the records before their segment was rewritten has those that were removed between them, too.
    """
    read, file_bytes = found
    try:
        tail = read(codec.FOOTER_BYTES, file_bytes - codec.FOOTER_BYTES)
        there = codec.decode_footer(tail, path="", file_bytes=file_bytes)
        if there == footer:
            return read(size, codec.HEADER_BYTES + at)
        _, held = codec.decode_index(read(there.flags_at - there.sums_at, there.sums_at), there, path="")
    except Corrupt:
        return b""
    if (there.epoch, there.first, there.count) != (footer.epoch, footer.first, footer.count):
        return b""
    low, high = columns.records_in(at, at + size)
    begin = held.offsets[low]
    data, offsets = read(held.offsets[high] - begin, codec.HEADER_BYTES + begin), columns.offsets
    kept = [one for one in range(low, high) if offsets[one] < offsets[one + 1]]
    joined = b"".join(data[held.offsets[one] - begin : held.offsets[one + 1] - begin] for one in kept)
    return joined[at - offsets[low] :][:size]
