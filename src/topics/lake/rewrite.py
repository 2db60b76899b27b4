"""New files from old ones: merged, or without some of their records. A row group at a time, so memory is bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from topics.lake.manifest import File, Life, Staged
from topics.lake.write import FILE_BYTES, FilesWriter

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

    parquet = Lake(lake).open(file)
    removed = sum(_lost(batch, keep) for batch in groups(parquet, columns))
    if not removed:
        return Rewritten(topic=topic, epoch=epoch, old=file)
    if removed == file.rows:
        return Rewritten(topic=topic, epoch=epoch, old=file, removed=removed)
    writer = FilesWriter(lake, token, topic, epoch, file_bytes=1 << 62, mark=True)
    try:
        for batch in groups(parquet):
            seen = batch if columns is None else batch.select(list(columns))
            writer.write(batch.filter(keep(seen), null_selection_behavior="drop"))
        [new] = writer.finish()
    except BaseException:
        writer.abort()
        raise
    return Rewritten(topic=topic, epoch=epoch, old=file, new=new, removed=removed)


def merge_files(lake: str, token: str, topic: str, epoch: int, files: Iterable[File]) -> Staged:
    """Neighbours of one date as one file."""
    from topics.lake.lake import Lake

    opened = Lake(lake)
    writer = FilesWriter(lake, token, topic, epoch, file_bytes=1 << 62, mark=True)
    try:
        for file in files:
            for batch in groups(opened.open(file)):
                writer.write(batch)
        [merged] = writer.finish()
    except BaseException:
        writer.abort()
        raise
    return merged


def plan_merges(life: Life, *, min_files: int = MERGE_MIN, target_bytes: int = MERGE_BYTES) -> list[list[File]]:
    """Groups of neighbours worth merging.

    A file takes part only where the others of its group are as much as itself. So what a small file costs over its
    life, until it is part of one that is no longer small, grows with the logarithm of its neighbours' number.
    """
    groups: list[list[File]] = []
    for file in life.files:
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
