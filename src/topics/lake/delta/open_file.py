"""A Parquet file that is being written, one row group at a time, so that memory is bounded.

It is written to its final place, where no reader looks at it before a commit names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from topics.lake.storage import Storage

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
