"""Rows of an output table: write them to Parquet files for a commit, and read them back. Executors use this module."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from topics.lake.delta.open_file import OpenFile, remove_written
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
