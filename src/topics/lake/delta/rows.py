"""Rows of an output table: write them to Parquet files for a commit, and read them back. Executors use this module."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from topics.lake.delta.statistics import Statistics
from topics.lake.errors import Damaged
from topics.lake.storage import Storage, with_remedies

FILE_BYTES = 32 << 20  # after compression; a file is closed at the row group that passes it


class RowsFile(Struct, frozen=True, kw_only=True):
    """A written file that a commit can add. Its name is used once."""

    path: str
    rows: int
    bytes: int
    stats: str


class RowsWriter:
    """Writes rows to one file after the other, as a context manager. An error removes the files."""

    def __init__(self, storage: Storage, schema: pa.Schema, *, file_bytes: int = FILE_BYTES) -> None:
        self._storage, self._schema, self._file_bytes = storage, schema, file_bytes
        self._open: tuple[OpenFile, Statistics] | None = None
        self._done: list[RowsFile] = []

    def __enter__(self) -> RowsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            unfinished = None if self._open is None else self._open[0]
            remove_written(self._storage, unfinished, (file.path for file in self._done))

    def write(self, batch: pa.RecordBatch) -> None:
        with with_remedies(self._storage.location):
            if not batch.num_rows:
                return
            if self._open is not None and self._open[0].written_bytes >= self._file_bytes:
                self.cut()
            if self._open is None:
                self._open = OpenFile(self._storage, f"{os.urandom(16).hex()}.parquet", self._schema), Statistics()
            file, statistics = self._open
            statistics.add(batch)
            file.write(batch)

    def cut(self) -> None:
        """Close the file: the next row begins another one."""
        if self._open is not None:
            file, statistics = self._open
            size_bytes = file.close()
            self._done.append(RowsFile(path=file.path, rows=statistics.rows, bytes=size_bytes, stats=statistics.json()))
            self._open = None

    def finish(self) -> list[RowsFile]:
        with with_remedies(self._storage.location):
            self.cut()
            return self._done


def read_rows(storage: Storage, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns of `schema`. Raise `Damaged` if the file is missing or not readable.

    Another program may have written the file, with other Arrow types for the same columns.
    """
    try:
        file = pq.ParquetFile(storage.open(path), page_checksum_verification=True)
        for batch in file.iter_batches(columns=schema.names):
            yield from pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()
    except FileNotFoundError:
        raise Damaged(f"{storage.uri(path)} is missing") from None
    except pa.ArrowInvalid as error:
        raise Damaged(f"{storage.uri(path)} cannot be read: {error}") from None


# --- A Parquet file that is being written, one row group at a time, so that memory is bounded

ROW_GROUP_BYTES = 16 << 20  # before compression
ROW_GROUP_ROWS = 1 << 17


class OpenFile:
    """An unfinished file. `options` are those of Arrow's writer."""

    def __init__(self, storage: Storage, path: str, schema: pa.Schema, **options: Any) -> None:
        self._storage, self.path, self._schema = storage, path, schema
        self._out = storage.create(path)
        # Checksums of pages let a reader find damage.
        self._writer = pq.ParquetWriter(self._out, schema, compression="zstd", write_page_checksum=True, **options)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = self._held_rows = 0

    @property
    def written_bytes(self) -> int:
        return int(self._out.tell())

    def write(self, part: pa.RecordBatch) -> None:
        self._held.append(part)
        self._held_bytes += part.nbytes
        self._held_rows += part.num_rows
        if self._held_bytes >= ROW_GROUP_BYTES or self._held_rows >= ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> int:
        """Finish the file, and return its size."""
        self._flush()
        self._writer.close()
        size_bytes = int(self._out.tell())
        self._out.close()
        return size_bytes

    def give_up(self) -> None:
        """Close and remove the unfinished file."""
        self._held = []
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
        with suppress(OSError, pa.ArrowException):
            self._out.close()
        with suppress(OSError, pa.ArrowException):
            self._storage.remove(self.path)

    def _flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held, self._schema)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._held, self._held_bytes, self._held_rows = [], 0, 0


def remove_written(storage: Storage, unfinished: OpenFile | None, finished: Iterable[str]) -> None:
    """Remove the files of a write that failed."""
    if unfinished is not None:
        unfinished.give_up()
    for path in finished:
        with suppress(OSError):
            storage.remove(path)
