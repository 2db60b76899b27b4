"""Build new files from old ones: merged, or without some records. One row group at a time, so memory is bounded.

Arrow checks the pages of an old file while it reads them. Its rows are counted, and the new file must have the expected
number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from topics.lake.archived import ArchivedEpoch, File
from topics.lake.columns import TypedColumns
from topics.lake.errors import Damaged
from topics.lake.files import NO_COLUMNS, FilesWriter
from topics.lake.layout import parse_path
from topics.lake.storage import Storage
from topics.plurals import counted

MERGE_MIN = 8  # files
MERGE_BYTES = 64 << 20  # largest merged file; a file of half this size is not merged any more

Keep = Callable[[pa.RecordBatch], pa.BooleanArray]


class Rewritten(Struct, kw_only=True):
    """The result of a rewrite: `new` replaces the file, or no file does. The file stays if nothing was removed."""

    topic: str
    epoch: int
    old: File
    new: File | None = None
    removed: int = 0


def open_file(storage: Storage, file: File) -> pq.ParquetFile:
    """Open a file. Raise `Damaged` if it is missing, has another size, or is not Parquet."""
    try:
        opened = storage.open(file.path)
        size = int(opened.size())
    except FileNotFoundError:
        raise Damaged(f"{storage.uri(file.path)} is missing: bring it back from a copy of the lake") from None
    if size != file.bytes:
        raise Damaged(
            f"{storage.uri(file.path)} has {size} bytes, but {file.bytes} were written: bring it back from a copy of "
            "the lake"
        )
    with readable(storage, file):
        return pq.ParquetFile(
            opened, page_checksum_verification=True, pre_buffer=not storage.is_local, buffer_size=1 << 20
        )


def rows_of(storage: Storage, file: File, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, sorted by seq. Raise `Damaged`, at the latest after the last one.

    If all columns are read, the checksum of the file is compared first.
    """
    rows = 0
    if columns is None:
        open_file(storage, file)  # raises if the file is missing
        named = parse_path(file.path.partition("/")[2])
        if named is not None and named.sum is not None and storage.sum(file.path) != named.sum:
            raise Damaged(
                f"{storage.uri(file.path)} does not hold what was written to it: bring it back from a copy of the lake"
            )
    for batch in row_groups(storage, file, columns):
        rows += batch.num_rows
        yield batch
    if rows != file.rows:
        raise Damaged(f"{storage.uri(file.path)} has {counted(rows, 'record')}, but {file.rows:,} were written")


def row_groups(
    storage: Storage, file: File, columns: Sequence[str] | None = None, *, first: int = 0, last: int = 1 << 63
) -> Iterator[pa.RecordBatch]:
    """Yield the row groups of a file that may hold records of the range, sorted by seq.

    Files that topics has written are sorted. A file that another program has merged is sorted here, in memory.
    """
    parquet = open_file(storage, file)
    with readable(storage, file):
        if parse_path(file.path.partition("/")[2]) is None:
            order = pc.sort_indices(parquet.read(columns=["seq"]).column("seq"))
            names = None if columns is None else list(columns)
            yield from parquet.read(columns=names).take(order).combine_chunks().to_batches()
            return
        at = parquet.schema_arrow.get_field_index("seq")
        for number in range(parquet.num_row_groups):
            bounds = parquet.metadata.row_group(number).column(at).statistics
            if bounds is None or (bounds.max >= first and bounds.min <= last):
                group = parquet.read_row_group(number, columns=None if columns is None else list(columns))
                yield from group.combine_chunks().to_batches()


@contextmanager
def readable(storage: Storage, file: File) -> Iterator[None]:
    """Turn errors of invalid bytes into `Damaged`."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk; Arrow's own errors for invalid bytes have no errno
        raise Damaged(
            f"{storage.uri(file.path)} cannot be read: bring it back from a copy of the lake ({error})"
        ) from error


def rewrite_file(
    storage: Storage,
    topic: str,
    epoch: int,
    file: File,
    keep: Keep,
    *,
    columns: Sequence[str],
    typed: TypedColumns = NO_COLUMNS,
    dry_run: bool = False,
) -> Rewritten:
    """Write the file without the records for which `keep` is not true. `keep` gets `columns`.

    The file is read twice: the first pass only counts the records to remove, and a dry run ends there.
    """
    removed = 0
    for batch in rows_of(storage, file, columns):
        removed += batch.num_rows - (pc.sum(pc.fill_null(keep(batch), False)).as_py() or 0)
    if not removed or dry_run:
        return Rewritten(topic=topic, epoch=epoch, old=file, removed=removed)
    kept = (
        batch.filter(keep(batch.select(list(columns))), null_selection_behavior="drop")
        for batch in rows_of(storage, file)
    )
    new = _written(storage, topic, epoch, kept, last=file.last, typed=typed)
    left = 0 if new is None else new.rows
    if left + removed != file.rows:
        raise Damaged(f"{file.path}: {left} of {file.rows} records are left after {removed} were to be removed")
    return Rewritten(topic=topic, epoch=epoch, old=file, new=new, removed=removed)


def merge_files(
    storage: Storage, topic: str, epoch: int, files: Sequence[File], *, typed: TypedColumns = NO_COLUMNS
) -> File:
    batches = (batch for file in files for batch in rows_of(storage, file))
    merged = _written(storage, topic, epoch, batches, last=files[-1].last, typed=typed)
    found = None if merged is None else (merged.first, merged.last, merged.rows)
    if merged is None or found != (files[0].first, files[-1].last, sum(file.rows for file in files)):
        raise Damaged(f"{files[0].path} to {files[-1].path}: the merged file does not have all of their records")
    return merged


def _written(
    storage: Storage, topic: str, epoch: int, batches: Iterable[pa.RecordBatch], *, last: int, typed: TypedColumns
) -> File | None:
    """Write records of one date as one file. Return None if there are none."""
    with FilesWriter(storage, topic, epoch, file_bytes=1 << 62, last=last, typed=typed) as writer:
        for batch in batches:
            writer.write(batch)
        done = writer.finish()
    if len(done) > 1:
        raise Damaged(f"{done[1].path}: a file of topic {topic} has records of several dates")
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
        if fits and 2 * last[-1].bytes < target_bytes and last[-1].last < file.first:
            last.append(file)
        else:
            groups.append([file])
    for group in groups:
        while len(group) > 1 and group[0].bytes > _bytes(group[1:]):
            del group[0]
    return [group for group in groups if len(group) >= max(min_files, 2)]


def _bytes(files: Iterable[File]) -> int:
    return sum(file.bytes for file in files)
