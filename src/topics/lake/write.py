"""Write records to Parquet files: sorted by seq, zstd, one date per file. Memory is bounded for any range.

Files are written to the staging folder of one run. A repeated task writes files with other names. Files that are not
committed are removed with the folder.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from topics.lake import disk
from topics.lake.errors import LakeError
from topics.lake.layout import DAY_US, SCHEMA, STAGING, date_of, file_path
from topics.lake.manifest import File, Staged

ROW_GROUP_BYTES = 16 << 20  # before compression
ROW_GROUP_ROWS = 1 << 17
FILE_BYTES = 128 << 20  # after compression; a file is closed at the row group that passes it

WRITING: Final[dict[str, Any]] = {
    "compression": "zstd",
    "use_dictionary": ["epoch", "node", "tag"],
    "column_encoding": {"seq": "DELTA_BINARY_PACKED", "ts": "DELTA_BINARY_PACKED"},
    "sorting_columns": [pq.SortingColumn(SCHEMA.get_field_index("seq"))],
}


def write_files(
    lake: str, token: str, topic: str, epoch: int, batches: Iterable[pa.RecordBatch], *, file_bytes: int = FILE_BYTES
) -> list[Staged]:
    """Write batches of one epoch, sorted by seq, as staged files. Columns that a file does not have are dropped."""
    writer = FilesWriter(lake, token, topic, epoch, file_bytes=file_bytes)
    try:
        with disk.with_remedies(lake):
            for batch in batches:
                writer.write(batch)
            return writer.finish()
    except BaseException:
        writer.abort()
        raise


class FilesWriter:
    """Writes the files of one epoch, one after the other. With `mark`, their names contain a part of the checksum."""

    def __init__(
        self, lake: str, token: str, topic: str, epoch: int, *, file_bytes: int = FILE_BYTES, mark: bool = False
    ) -> None:
        self._lake, self._token, self._topic, self._epoch = lake, token, topic, epoch
        self._file_bytes, self._mark = file_bytes, mark
        self._open: _OpenFile | None = None
        self._done: list[Staged] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if "epoch" not in batch.schema.names:
            batch = batch.append_column(
                SCHEMA.field("epoch"), pa.repeat(pa.scalar(self._epoch, pa.int64()), len(batch))
            )
        for day, part in by_day(batch.select(SCHEMA.names)):
            if self._open is not None and (self._open.day != day or self._open.written_bytes >= self._file_bytes):
                self._close()
            if self._open is None:
                path = f"{STAGING}/{self._token}/{os.urandom(12).hex()}.tmp"
                self._open = _OpenFile(self._lake, path, topic=self._topic, epoch=self._epoch, day=day)
            self._open.write(part)

    def finish(self) -> list[Staged]:
        if self._open is not None:
            self._close()
        return self._done

    def abort(self) -> None:
        """Close the open file. The files themselves are removed with their folder."""
        if self._open is not None:
            self._open.drop()
            self._open = None

    def _close(self) -> None:
        assert self._open is not None
        self._done.append(Staged(self._open.finish(mark=self._mark)))
        self._open = None


class _OpenFile:
    def __init__(self, lake: str, path: str, *, topic: str, epoch: int, day: int) -> None:
        self.day = day
        self._topic, self._epoch, self._path = topic, epoch, path
        try:
            self._out = Summed(open(os.path.join(lake, path), "xb"))
        except FileNotFoundError:
            raise LakeError(
                f"{lake}: the staging folder of this run does not exist; check that all machines mount the lake"
            ) from None
        schema = SCHEMA.with_metadata({"topics.topic": topic, "topics.epoch": str(epoch)})
        self._writer = pq.ParquetWriter(pa.PythonFile(self._out, "w"), schema, **WRITING)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = self._held_rows = self._rows = 0
        self._first = self._last = 0
        self._min_ts, self._max_ts = 1 << 62, 0

    @property
    def written_bytes(self) -> int:
        return self._out.size

    def write(self, part: pa.RecordBatch) -> None:
        self._note(part)
        self._held.append(part)
        self._held_bytes += part.nbytes
        self._held_rows += part.num_rows
        if self._held_bytes >= ROW_GROUP_BYTES or self._held_rows >= ROW_GROUP_ROWS:
            self._flush()

    def _note(self, part: pa.RecordBatch) -> None:
        seqs = part.column("seq")
        first, last = seqs[0].as_py(), seqs[-1].as_py()
        assert first > self._last or not self._rows, "records come in the order of their seqs"
        self._first, self._last = self._first or first, last
        self._rows += part.num_rows
        ts = pc.min_max(part.column("ts").cast(pa.int64()))
        self._min_ts = min(self._min_ts, ts["min"].as_py() // 1000)
        self._max_ts = max(self._max_ts, ts["max"].as_py() // 1000)

    def _flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held, SCHEMA)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._held, self._held_bytes, self._held_rows = [], 0, 0

    def finish(self, *, mark: bool) -> File:
        self._flush()
        self._writer.close()
        self._out.sync_and_close()
        digest, date = self._out.hexdigest(), date_of(self.day)
        return File(
            path=file_path(self._topic, date, self._epoch, self._first, self._last, digest[:8] if mark else ""),
            date=date, first=self._first, last=self._last, rows=self._rows, bytes=self._out.size,
            min_ts=self._min_ts, max_ts=self._max_ts, sum=digest, staged=self._path,
        )  # fmt: skip

    def drop(self) -> None:
        self._held = []
        self._out.give_up()


class Summed:
    """A file that computes the checksum of its content. It relies on Parquet writing from front to back."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sum = xxhash.xxh3_64()
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        if not self._file.closed:
            self._sum.update(data)
            self._file.write(data)
        self.size += len(memoryview(data).cast("B"))
        return len(memoryview(data).cast("B"))

    def tell(self) -> int:
        return self.size

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def hexdigest(self) -> str:
        return str(self._sum.hexdigest())

    def sync_and_close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def give_up(self) -> None:
        """Close the file. Later writes, when Arrow's writer is garbage collected, are discarded."""
        self._file.close()


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the parts of a batch that lie in one UTC day, with the day, in order."""
    days = batch.column("ts").cast(pa.int64()).to_numpy() // DAY_US
    if days[0] == days[-1] and (days == days[0]).all():
        yield int(days[0]), batch
        return
    edges = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
    for low, high in itertools.pairwise(edges):
        yield int(days[low]), batch.slice(low, high - low)
