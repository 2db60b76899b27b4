"""Build new files from old ones: merged, or without some records. One row group at a time, so memory is bounded.

A new file has a new checksum, which must not cover damage in an old file. So each old file is verified first, its rows
are counted while they are read, and the new file must have the expected number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from topics.lake import disk
from topics.lake.errors import Damaged
from topics.lake.manifest import ArchivedEpoch, File, Staged
from topics.lake.write import FILE_BYTES, FilesWriter

if TYPE_CHECKING:
    from topics.lake.lake import Lake

MERGE_MIN = 8  # files
MERGE_BYTES = 64 << 20  # largest merged file; a file of half this size is not merged any more

Keep = Callable[[pa.RecordBatch], pa.BooleanArray]


class Rewritten(Struct, kw_only=True):
    """The result of a rewrite: `new` replaces the file, or no file does. The file stays if nothing was removed."""

    topic: str
    epoch: int
    old: File
    new: Staged | None = None
    removed: int = 0


def rewrite_file(
    lake: str, token: str, topic: str, epoch: int, file: File, keep: Keep, *, columns: Sequence[str] | None = None
) -> Rewritten:
    """Write the file without the records for which `keep` is not true. `keep` gets `columns`, or all columns.

    The file is read twice: the first pass only checks whether any record is removed.
    """
    from topics.lake.lake import Lake

    opened = Lake(lake)
    with _readable(file):
        parquet = opened.open(file)
        if parquet.metadata.num_rows != file.rows:
            raise Damaged(f"{file.path} has {parquet.metadata.num_rows} records, but {file.rows} were written")
        removed = sum(_lost(batch, keep) for batch in groups(parquet, columns))
    if not removed:
        return Rewritten(topic=topic, epoch=epoch, old=file)

    def kept() -> Iterator[pa.RecordBatch]:
        for batch in verified(opened, file):
            seen = batch if columns is None else batch.select(list(columns))
            yield batch.filter(keep(seen), null_selection_behavior="drop")

    new = _written(lake, token, topic, epoch, kept())
    left = 0 if new is None else new.file.rows
    if left + removed != file.rows:
        raise Damaged(f"{file.path}: {left} of {file.rows} records are left after {removed} were to be removed")
    return Rewritten(topic=topic, epoch=epoch, old=file, new=new, removed=removed)


def merge_files(lake: str, token: str, topic: str, epoch: int, files: Iterable[File]) -> Staged:
    """Merge neighbouring files of one date into one file."""
    from topics.lake.lake import Lake

    opened, parts = Lake(lake), list(files)
    merged = _written(lake, token, topic, epoch, (batch for file in parts for batch in verified(opened, file)))
    assert merged is not None, "files are not empty"
    found = (merged.file.first, merged.file.last, merged.file.rows)
    if found != (parts[0].first, parts[-1].last, sum(file.rows for file in parts)):
        raise Damaged(f"{parts[0].path} to {parts[-1].path}: the merged file does not have all of their records")
    return merged


def verified(lake: Lake, file: File) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file after a check of its checksum. Raise `Damaged`, at the latest after the last one."""
    rows, first, last = 0, 0, 0
    with _readable(file):
        lake.verify(file)
        for batch in groups(lake.open(file)):
            if batch.num_rows:
                rows, first = rows + batch.num_rows, first or batch.column("seq")[0].as_py()
                last = batch.column("seq")[-1].as_py()
                yield batch
    if (rows, first, last) != (file.rows, file.first, file.last):
        raise Damaged(f"{file.path}: its rows do not match the manifest")


@contextmanager
def _readable(file: File) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk; Arrow's own errors for invalid bytes have no errno
        raise Damaged(f"{file.path} cannot be read: {error}") from error


def _written(lake: str, token: str, topic: str, epoch: int, batches: Iterable[pa.RecordBatch]) -> Staged | None:
    """Write records of one date as one staged file. Return None if there are none."""
    writer = FilesWriter(lake, token, topic, epoch, file_bytes=1 << 62, mark=True)
    try:
        with disk.with_remedies(lake):
            for batch in batches:
                writer.write(batch)
            done = writer.finish()
    except BaseException:
        writer.abort()
        raise
    assert len(done) <= 1, "records of one date make one file"
    return done[0] if done else None


def plan_merges(
    archived: ArchivedEpoch, *, min_files: int = MERGE_MIN, target_bytes: int = MERGE_BYTES
) -> list[list[File]]:
    """Return groups of neighbouring files to merge.

    A file takes part only if the others of its group are as large as it is. So a record is rewritten a number of times
    that grows with the logarithm of the number of files.
    """
    groups: list[list[File]] = []
    for file in archived.files:
        last = groups[-1] if groups else []
        small = 2 * file.bytes < target_bytes
        fits = last and small and last[-1].date == file.date and _bytes(last) + file.bytes <= target_bytes
        if fits and 2 * last[-1].bytes < target_bytes:
            last.append(file)
        else:
            groups.append([file])
    return [group for group in map(_balanced, groups) if len(group) >= max(min_files, 2)]


def _balanced(group: list[File]) -> list[File]:
    while len(group) > 1 and group[0].bytes > _bytes(group[1:]):
        group = group[1:]
    return group


def _bytes(files: Iterable[File]) -> int:
    return sum(file.bytes for file in files)


def groups(parquet: pq.ParquetFile, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file, row group by row group."""
    names = None if columns is None else list(columns)
    for number in range(parquet.num_row_groups):
        yield from parquet.read_row_group(number, columns=names).combine_chunks().to_batches()


def _lost(batch: pa.RecordBatch, keep: Keep) -> int:
    kept = pc.sum(pc.fill_null(keep(batch), False).cast(pa.int64())).as_py()
    return int(batch.num_rows - (kept or 0))


__all__ = ["FILE_BYTES", "MERGE_MIN", "Keep", "Rewritten", "merge_files", "plan_merges", "rewrite_file"]
