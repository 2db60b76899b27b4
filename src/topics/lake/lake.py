"""A lake: topics as Parquet files, with a manifest of its files, its gaps, and how far each topic is archived."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import xxhash

from topics.lake import disk, ledger
from topics.lake.commits import Commits
from topics.lake.errors import Conflict, Damaged
from topics.lake.layout import COMMITS, SCHEMA, STAGING, local_path
from topics.lake.manifest import ArchivedEpoch, Change, File, Gap, Snapshot
from topics.lake.rewrite import Rewritten, merge_files, plan_merges, rewrite_file
from topics.lake.staging import Staging

LAST = (1 << 63) - 1
READ_AHEAD_BYTES = 1 << 20

KeepOf = Callable[[str, int, pa.RecordBatch], pa.BooleanArray]
Progress = Callable[[int, int], None]
Found = TypeVar("Found")


class Lake:
    """The lake in a directory. The constructor does no I/O beyond a check of the path; tasks may receive a `Lake`."""

    def __init__(self, location: str) -> None:
        self.path = local_path(location)
        self._commits = Commits(self.path)

    def __reduce__(self) -> tuple[Any, ...]:
        return Lake, (self.path,)

    # --- what there is

    def exists(self) -> bool:
        return self._commits.exists()

    def create(self) -> None:
        """Create the lake unless it exists."""
        with disk.with_remedies(self.path):
            os.makedirs(os.path.join(self.path, STAGING), exist_ok=True)
            ledger.create(self.path)
            os.makedirs(os.path.join(self.path, COMMITS), exist_ok=True)

    def snapshot(self) -> Snapshot:
        """Return the newest version. Raise `NoLake` if there is no lake."""
        return self._commits.newest()

    def ledger(self) -> pa.Table:
        """Return every gap: topic, epoch, from_seq, to_seq, reason, met_at."""
        return ledger.table_of(ledger.rows_of(self.snapshot()))

    def dataset(self, topic: str | None = None) -> ds.Dataset:
        """Return the records of a topic, or of all, by the manifest, with the columns `topic` and `date`.

        Unlike a dataset made from a directory listing, it keeps a topic called 007 a string.
        """
        while True:
            snapshot = self.snapshot()
            try:
                return self._dataset(snapshot, snapshot.topics() if topic is None else [topic])
            except Damaged:
                if not self._moved_since(snapshot):
                    raise

    def _dataset(self, snapshot: Snapshot, topics: Iterable[str]) -> ds.Dataset:
        found = [(file, name) for name in topics for archived in snapshot.epochs(name) for file in archived.files]
        return ds.FileSystemDataset.from_paths(
            [self.locate(file) for file, _ in found],
            schema=pa.schema([*SCHEMA, ("topic", pa.string()), ("date", pa.date32())]),
            format=ds.ParquetFileFormat(),
            filesystem=pa.fs.LocalFileSystem(),
            partitions=[
                (ds.field("topic") == name) & (ds.field("date") == date.fromisoformat(file.date))
                for file, name in found
            ],
        )

    # --- files

    def locate(self, file: File) -> str:
        """Return the present path of a file. Raise `Damaged` if it is missing."""
        for path in (file.staged, file.path):
            if path and os.path.exists(os.path.join(self.path, path)):
                return os.path.join(self.path, path)
        target = os.path.join(self.path, file.path)
        if os.path.exists(target):  # renamed between the two looks
            return target
        raise Damaged(f"{target} is missing: bring it back from a copy of the lake")

    def open(self, file: File) -> pq.ParquetFile:
        """Open a file. Raise `Damaged` if it is missing or cannot be read."""
        try:
            return self._at(file, lambda path: pq.ParquetFile(path, buffer_size=READ_AHEAD_BYTES, pre_buffer=False))
        except pa.ArrowException as error:
            raise _unreadable(self.path, file, error) from error

    def verify(self, file: File) -> None:
        """Read a file back. Raise `Damaged` if its checksum is wrong."""
        if self._at(file, _sum_of) != file.sum:
            path = os.path.join(self.path, file.path)
            raise Damaged(f"{path} does not hold what was written to it: bring it back from a copy of the lake")

    def _at(self, file: File, do: Callable[[str], Found]) -> Found:
        """Call `do` with the path of a file. Retry, because the file is renamed once, and then may be replaced."""
        for _ in range(2):
            with suppress(FileNotFoundError):
                return do(self.locate(file))
        return do(self.locate(file))

    def strays(self) -> list[str]:
        """Return the record files, relative to the lake, that no version has. Directory listings would read them.

        Files that a version has replaced, and that are about to be removed, do not count.
        """
        there = [
            os.path.relpath(os.path.join(folder, name), self.path)
            for folder, _, names in os.walk(self.path)
            if os.path.basename(folder).startswith("date=")
            for name in names
        ]
        snapshot = self.snapshot()  # after the listing: what came into place before it is known by now
        ours = {
            file.path for topic in snapshot.topics() for archived in snapshot.epochs(topic) for file in archived.files
        }
        ours |= {
            file.path for commit in self._commits.unfolded() for change in commit.changes for file in change.removes
        }
        return sorted(path for path in there if path not in ours and os.path.exists(os.path.join(self.path, path)))

    # --- records

    def read(
        self,
        topic: str,
        epoch: int,
        *,
        first: int = 1,
        last: int | None = None,
        columns: Sequence[str] | None = None,
        snapshot: Snapshot | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of an epoch from `first` to `last`, sorted by seq.

        If files are replaced meanwhile, the read continues in the new files, after the last yielded record.
        """
        end = LAST if last is None else last
        archived = (snapshot or self.snapshot()).archived(topic, epoch)
        while archived is not None:
            try:
                for file in archived.files_in(first, end):
                    yield from _within(self.open(file), first, end, columns)
                    first = file.last + 1
                return
            except Damaged:
                newer = self.snapshot().archived(topic, epoch)
                if newer is None or newer.files_in(first, end) == archived.files_in(first, end):
                    raise
                archived = newer
            except (pa.ArrowException, OSError) as error:  # beyond its first bytes, which were right
                raise _unreadable(self.path, file, error) from error

    def history(
        self, topic: str, epoch: int, *, first: int = 1, last: int | None = None, snapshot: Snapshot | None = None
    ) -> Iterator[pa.RecordBatch | Gap]:
        """Yield records and gaps, sorted by seq."""
        end = LAST if last is None else last
        snapshot = snapshot or self.snapshot()
        archived = snapshot.archived(topic, epoch)
        gaps = [] if archived is None else archived.gaps_in(first, end)
        for batch in self.read(topic, epoch, first=first, last=last, snapshot=snapshot):
            rest = batch
            while gaps and rest.num_rows and gaps[0].first <= rest.column("seq")[-1].as_py():
                at = int(np.searchsorted(rest.column("seq").to_numpy(), gaps[0].first))
                if at:
                    yield rest.slice(0, at)
                yield gaps.pop(0)
                rest = rest.slice(at)
            if rest.num_rows:
                yield rest
        yield from gaps

    # --- changes

    def stage(self) -> Staging:
        """Return a staging folder for changes. Raise `NoLake` if there is no lake."""
        self.snapshot()
        return Staging(self.path, self._commits)

    def merge(self, staging: Staging, topic: str, epoch: int, *, min_files: int) -> int:
        """Merge the small files of an epoch, with one commit per merged file. Return the number of files merged."""
        done = 0
        base = self.snapshot()
        archived = base.archived(topic, epoch)
        for group in [] if archived is None else plan_merges(archived, min_files=min_files):
            try:
                merged = merge_files(self.path, staging.token, topic, epoch, group)
            except Damaged:
                if self.has(topic, epoch, group):
                    raise
                continue  # replaced meanwhile
            try:
                staging.commit(base, [Change(op="merge", topic=topic, epoch=epoch, adds=[merged], removes=group)])
            except Conflict:
                staging.discard([merged.file])
                continue  # another process has merged or rewritten them: the next round tries again
            done += len(group)
        return done

    def has(self, topic: str, epoch: int, files: Iterable[File]) -> bool:
        """Return whether the newest version still has all of these files: only such a file must exist."""
        archived = self.snapshot().archived(topic, epoch)
        there = set() if archived is None else {file.path for file in archived.files}
        return all(file.path in there for file in files)

    def _moved_since(self, base: Snapshot) -> bool:
        """Return whether there is a newer version than `base`, which may have replaced a missing file."""
        return self.snapshot().version > base.version

    def erase(
        self,
        topics: Iterable[str] | None,
        keep: KeepOf,
        *,
        columns: Sequence[str] = ("tag",),
        note: dict[str, Any] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> list[Rewritten]:
        """Rewrite, in one commit, every file with a record for which `keep(topic, epoch, columns)` is not true.

        Every named topic is marked as erased even if no record was found: an archive run that read its records before
        they were erased from the topic, and has not committed them yet, must read again.
        """
        named = None if topics is None else sorted(set(topics))
        with self.stage() as staging:
            while True:
                base = self.snapshot()
                names = base.topics() if named is None else named
                epochs = [archived for name in names for archived in base.epochs(name)]
                try:
                    done = _rewrite_all(self.path, staging.token, epochs, keep, columns, progress)
                    if not dry_run:
                        staging.commit(base, _erasures(names, done), note=note)
                    return done
                except Conflict:
                    staging.discard([one.new.file for one in done if one.new is not None])
                except Damaged:
                    if not self._moved_since(base):
                        raise


def _unreadable(lake: str, file: File, error: Exception) -> Damaged:
    path = os.path.join(lake, file.path)
    return Damaged(f"{path} cannot be read: bring it back from a copy of the lake ({error})")


def _sum_of(path: str) -> str:
    found = xxhash.xxh3_64()
    with open(path, "rb", buffering=0) as opened:
        while data := opened.read(1 << 20):
            found.update(data)
    return found.hexdigest()


def _rewrite_all(
    lake: str,
    token: str,
    epochs: Sequence[ArchivedEpoch],
    keep: KeepOf,
    columns: Sequence[str],
    progress: Progress | None,
) -> list[Rewritten]:
    done: list[Rewritten] = []
    total, at = sum(len(archived.files) for archived in epochs), 0
    for archived in epochs:

        def kept(batch: pa.RecordBatch, archived: ArchivedEpoch = archived) -> pa.BooleanArray:
            return keep(archived.topic, archived.epoch, batch)

        for file in archived.files:
            one = rewrite_file(lake, token, archived.topic, archived.epoch, file, kept, columns=columns)
            if one.removed:
                done.append(one)
            at += 1
            if progress is not None:
                progress(at, total)
    return done


def _erasures(topics: Iterable[str], done: Sequence[Rewritten]) -> list[Change]:
    changes = [Change(op="erase", topic=topic, epoch=0) for topic in topics]  # epoch 0: only marks the topic
    for one in done:
        adds = [] if one.new is None else [one.new]
        changes.append(Change(op="erase", topic=one.topic, epoch=one.epoch, adds=adds, removes=[one.old]))
    return changes


def _within(parquet: pq.ParquetFile, first: int, last: int, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file within the range, row group by row group."""
    names = SCHEMA.names if columns is None else list(columns)
    needed = names if "seq" in names else [*names, "seq"]
    for number in range(parquet.num_row_groups):
        statistics = parquet.metadata.row_group(number).column(SCHEMA.get_field_index("seq")).statistics
        if statistics is not None and (statistics.max < first or statistics.min > last):
            continue
        for batch in parquet.read_row_group(number, columns=needed).combine_chunks().to_batches():
            seqs = batch.column("seq").to_numpy()
            low, high = int(np.searchsorted(seqs, first)), int(np.searchsorted(seqs, last, "right"))
            if low < high:
                yield batch.slice(low, high - low).select(names)
