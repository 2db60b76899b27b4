"""Write records to Parquet files: sorted by seq, zstd, one date per file. Memory is bounded for any range.

Files are written to their final place, where no reader looks at them before a commit names them. A repeated task writes
files with other names. `Lake.remove_dead_files` removes files that were never committed.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from topics.lake.archived import File
from topics.lake.columns import TypedColumns
from topics.lake.delta.rows import OpenFile, remove_written
from topics.lake.delta.statistics import Statistics
from topics.lake.layout import DAY_US, PARTITIONS, SCHEMA, date_of, file_path
from topics.lake.storage import Storage, with_remedies

FILE_BYTES = 128 << 20  # after compression; a file is closed at the row group that passes it

FILE_SCHEMA = pa.schema([field for field in SCHEMA if field.name not in PARTITIONS])

WRITING: Final[dict[str, Any]] = {
    "use_dictionary": ["node", "tag"],
    "column_encoding": {"seq": "DELTA_BINARY_PACKED", "ts": "DELTA_BINARY_PACKED"},
    "sorting_columns": [pq.SortingColumn(FILE_SCHEMA.get_field_index("seq"))],
}

NO_COLUMNS = TypedColumns(())


def write_files(
    storage: Storage,
    topic: str,
    epoch: int,
    batches: Iterable[pa.RecordBatch],
    *,
    file_bytes: int = FILE_BYTES,
    typed: TypedColumns = NO_COLUMNS,
) -> list[File]:
    """Write batches of one epoch, sorted by seq, as files for a commit. Columns that a file does not have are dropped.

    The files are removed if the batches cannot be read or written to their end.
    """
    writer = FilesWriter(storage, topic, epoch, file_bytes=file_bytes, typed=typed)
    with writer:
        for batch in batches:
            writer.write(batch)
        return writer.finish()


class FilesWriter:
    """Writes the files of one epoch, one after the other, as a context manager. `last`: see `layout.file_path`."""

    def __init__(
        self,
        storage: Storage,
        topic: str,
        epoch: int,
        *,
        file_bytes: int = FILE_BYTES,
        last: int | None = None,
        typed: TypedColumns = NO_COLUMNS,
    ) -> None:
        self._storage, self._topic, self._epoch = storage, topic, epoch
        self._file_bytes, self._last = file_bytes, last
        self._typed = typed
        self._open: _DayFile | None = None
        self._done: list[File] = []

    def __enter__(self) -> FilesWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            unfinished = None if self._open is None else self._open.file
            remove_written(self._storage, unfinished, (file.path for file in self._done))

    def write(self, batch: pa.RecordBatch) -> None:
        with with_remedies(self._storage.location):
            if not batch.num_rows:
                return
            for day, part in by_day(self._typed.extended(batch, FILE_SCHEMA)):
                if self._open is not None and (
                    self._open.day != day or self._open.file.written_bytes >= self._file_bytes
                ):
                    self._close()
                if self._open is None:
                    self._open = self._new(day, part)
                self._open.write(part)

    def finish(self) -> list[File]:
        with with_remedies(self._storage.location):
            if self._open is not None:
                self._close()
            return self._done

    def _new(self, day: int, part: pa.RecordBatch) -> _DayFile:
        first = part.column("seq")[0].as_py()
        path = file_path(self._topic, date_of(day), self._epoch, first, os.urandom(8).hex(), last=self._last)
        return _DayFile(self._storage, path, day=day, schema=part.schema, typed=self._typed)

    def _close(self) -> None:
        assert self._open is not None
        self._done.append(self._open.finish())
        self._open = None


class _DayFile:
    """The unfinished file of one day."""

    def __init__(self, storage: Storage, path: str, *, day: int, schema: pa.Schema, typed: TypedColumns) -> None:
        self.day = day
        self._storage = storage
        self.file = OpenFile(storage, path, schema, **WRITING)
        self._stats = FileStatistics(typed)

    def write(self, part: pa.RecordBatch) -> None:
        self._stats.add(part)
        self.file.write(part)

    def finish(self) -> File:
        size_bytes = self.file.close()
        return self._stats.file(self._storage.seal(self.file.path), date_of(self.day), size_bytes)


class FileStatistics:
    """Collects what a commit says about a file: its seqs and times, and Delta's statistics."""

    def __init__(self, typed: TypedColumns) -> None:
        self._delta = Statistics(bounded={"seq", "ts", *(name for name, _ in typed.fields)})
        self._first = self._last = 0
        self._min_us, self._max_us = 1 << 62, -(1 << 62)

    def add(self, part: pa.RecordBatch) -> None:
        seqs = part.column("seq")
        first, last = seqs[0].as_py(), seqs[-1].as_py()
        assert first > self._last or not self._delta.rows, "records come in the order of their seqs"
        self._first, self._last = self._first or first, last
        ts = pc.min_max(part.column("ts").cast(pa.int64()))
        self._min_us, self._max_us = min(self._min_us, ts["min"].as_py()), max(self._max_us, ts["max"].as_py())
        self._delta.add(part)

    def file(self, path: str, date: str, size_bytes: int) -> File:
        return File(
            path=path, date=date, first=self._first, last=self._last, rows=self._delta.rows, bytes=size_bytes,
            min_ts=self._min_us // 1000, max_ts=-(-self._max_us // 1000), stats=self._delta.json(),
        )  # fmt: skip


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the parts of a batch that lie in one UTC day, with the day, in order."""
    days = batch.column("ts").cast(pa.int64()).to_numpy() // DAY_US
    if days[0] == days[-1] and (days == days[0]).all():
        yield int(days[0]), batch
        return
    edges = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
    for low, high in itertools.pairwise(edges):
        yield int(days[low]), batch.slice(low, high - low)
