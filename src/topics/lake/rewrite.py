"""New files from old ones: merged, or without some of their records. A row group at a time, so memory is bounded.

A new file has a new checksum. So that it cannot vouch for records that somebody changed in an old one, an old file is
verified first, its rows are counted while they are read, and the new one must have as many as it should.
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
MERGE_BYTES = 64 << 20  # that a merged file should have at most; one of half that size is no small file any more

Keep = Callable[[pa.RecordBatch], pa.BooleanArray]


class Rewritten(Struct, kw_only=True):
    """What became of a file: `new` takes its place, or nothing does. Where nothing was removed the file stays."""

    topic: str
    epoch: int
    old: File
    new: Staged | None = None
    removed: int = 0


def rewrite_file(
    lake: str, token: str, topic: str, epoch: int, file: File, keep: Keep, *, columns: Sequence[str] | None = None
) -> Rewritten:
    """The file without the records for which `keep` is not true. It is asked twice: first whether there are any.

    `keep` gets these columns of it, or all.
    """
    from topics.lake.lake import Lake

    opened = Lake(lake)
    with _readable(file):
        parquet = opened.open(file)
        if parquet.metadata.num_rows != file.rows:
            raise Damaged(f"{file.path} has {parquet.metadata.num_rows} records where {file.rows} were written")
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
        raise Damaged(f"{file.path}: {left} of {file.rows} records are left where {removed} were to go")
    return Rewritten(topic=topic, epoch=epoch, old=file, new=new, removed=removed)


def merge_files(lake: str, token: str, topic: str, epoch: int, files: Iterable[File]) -> Staged:
    """Neighbours of one date as one file."""
    from topics.lake.lake import Lake

    opened, parts = Lake(lake), list(files)
    merged = _written(lake, token, topic, epoch, (batch for file in parts for batch in verified(opened, file)))
    assert merged is not None, "files are not empty"
    found = (merged.file.first, merged.file.last, merged.file.rows)
    if found != (parts[0].first, parts[-1].last, sum(file.rows for file in parts)):
        raise Damaged(f"{parts[0].path} to {parts[-1].path}, merged, do not have the records that they have")
    return merged


def verified(lake: Lake, file: File) -> Iterator[pa.RecordBatch]:
    """The records of a file that holds what was written to it. Raises `Damaged`, at the latest behind the last one."""
    rows, first, last = 0, 0, 0
    with _readable(file):
        lake.verify(file)
        for batch in groups(lake.open(file)):
            if batch.num_rows:
                rows, first = rows + batch.num_rows, first or batch.column("seq")[0].as_py()
                last = batch.column("seq")[-1].as_py()
                yield batch
    if (rows, first, last) != (file.rows, file.first, file.last):
        raise Damaged(f"{file.path}: its rows are not those that the manifest names")


@contextmanager
def _readable(file: File) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's; Arrow's own, for bytes that it does not understand, have no number
        raise Damaged(f"{file.path} cannot be read: {error}") from error


def _written(lake: str, token: str, topic: str, epoch: int, batches: Iterable[pa.RecordBatch]) -> Staged | None:
    """Records of one date as one file; None where there are none."""
    writer = FilesWriter(lake, token, topic, epoch, file_bytes=1 << 62, mark=True)
    try:
        with disk.telling(lake):
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
    """Groups of neighbours worth merging.

    A file takes part only where the others of its group are as much as itself. So what a small file costs over its
    life, until it is part of one that is no longer small, grows with the logarithm of its neighbours' number.
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
    """Row group by row group."""
    names = None if columns is None else list(columns)
    for number in range(parquet.num_row_groups):
        yield from parquet.read_row_group(number, columns=names).combine_chunks().to_batches()


def _lost(batch: pa.RecordBatch, keep: Keep) -> int:
    kept = pc.sum(pc.fill_null(keep(batch), False).cast(pa.int64())).as_py()
    return int(batch.num_rows - (kept or 0))


__all__ = ["FILE_BYTES", "MERGE_MIN", "Keep", "Rewritten", "merge_files", "plan_merges", "rewrite_file"]
