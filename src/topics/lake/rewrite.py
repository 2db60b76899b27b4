"""Build new files from old ones: merged, or without some records. One row group at a time, so memory is bounded.

The functions that take a `Rewrite` are tasks: they get all that they need, and read no log. Arrow checks the pages of
an old file while it reads them. Its rows are counted, and the new file must have the expected number of rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct, structs

from topics.engine.read.field_tests import Fields, compiled
from topics.lake.archived import ArchivedEpoch, File
from topics.lake.columns import TypedColumns
from topics.lake.errors import Damaged
from topics.lake.files import FILE_SCHEMA, NO_COLUMNS, FilesWriter
from topics.lake.layout import parse_path
from topics.lake.storage import Storage
from topics.model.records import TagMatch
from topics.plurals import counted

MERGE_MIN = 8  # files
MERGE_BYTES = 64 << 20  # largest merged file; a file of half this size is not merged any more

LAST = (1 << 63) - 1

Run = Callable[..., list[Any]]  # runs tasks, perhaps on other machines: as `here`, with the results in the same order


def here(items: Sequence[Any], task: Callable[[Any], Any], *, result: type, weight: Callable[[Any], int]) -> list[Any]:
    """Run `task(item)` for each item, one by one, in this thread. A weight is a size in bytes."""
    return [task(item) for item in items]


class Erasure(Struct, frozen=True, kw_only=True):
    """The records of one epoch to erase: those with a tag, and those with one of these seqs, up to a seq."""

    match: TagMatch
    seqs: Sequence[int] = ()  # sorted
    upto: int = LAST

    def has(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        seqs = batch.column("seq")
        found = pc.or_(tagged(batch, self.match), pc.is_in(seqs, value_set=pa.array(self.seqs, pa.int64())))
        return pc.and_(found, pc.less_equal(seqs, self.upto))

    def within(self, file: File) -> Erasure | None:
        """Return the part of the erasure that a file may have; None if its statistics show that it has no record."""
        low, high = bisect_left(self.seqs, file.first), bisect_right(self.seqs, min(file.last, self.upto))
        if file.first > self.upto or (low >= high and file.tags is not None and not self._is_between(*file.tags)):
            return None
        return structs.replace(self, seqs=tuple(self.seqs[low:high]))

    def _is_between(self, low: str, high: str) -> bool:
        text = self.match.text
        return text <= high and (low <= text or (self.match.op == "Glob" and low.startswith(text)))


def matching(batch: pa.RecordBatch, match: TagMatch) -> pa.BooleanArray:
    """Return which records a filter keeps, as a server that has them does."""
    if match.op != "Where":
        return tagged(batch, match)
    where, columns = compiled(match.text), (batch.column(name).to_pylist() for name in ("data", "meta", "tag"))
    rows = (Fields(data.encode(), meta and meta.encode(), tag) for data, meta, tag in zip(*columns, strict=True))
    return pa.array(map(where.matches, rows), pa.bool_())


def tagged(batch: pa.RecordBatch, match: TagMatch) -> pa.BooleanArray:
    tags = batch.column("tag")
    found = pc.equal(tags, match.text) if match.op == "Eq" else pc.starts_with(tags, match.text)
    return pc.fill_null(found, False)


class Rewrite(Struct, frozen=True, kw_only=True):
    """Files of one epoch that one file replaces: merged, and without the records of an erasure."""

    topic: str
    epoch: int
    files: tuple[File, ...]
    typed: TypedColumns = NO_COLUMNS
    erasure: Erasure | None = None

    @property
    def size_bytes(self) -> int:
        return _bytes(self.files)


class Rewritten(Struct, kw_only=True):
    """The result of a rewrite: `new` replaces the files, or no file does. They stay if one of them is damaged."""

    new: File | None = None
    removed: int = 0
    damage: str | None = None


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

    Files that topics has written are sorted. A file that another program has merged is sorted here, in memory, and
    without its typed columns: they are NULL for the records of files that did not have them.
    """
    parquet = open_file(storage, file)
    with readable(storage, file):
        if parse_path(file.path.partition("/")[2]) is None:
            order = pc.sort_indices(parquet.read(columns=["seq"]).column("seq"))
            names = FILE_SCHEMA.names if columns is None else [name for name in columns if name in FILE_SCHEMA.names]
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


def rewrite(work: Rewrite, *, lake: str, dry_run: bool = False) -> Rewritten:
    """Write the rows of the files to one file, without the records to erase. With `dry_run`, only count these.

    Files without such records are left as they are: first, only the columns that decide are read.
    """
    storage, erasure, removed = Storage(lake), work.erasure, 0
    try:
        if erasure is not None:
            decisive = (batch for file in work.files for batch in rows_of(storage, file, ("tag", "seq")))
            removed = sum(pc.sum(erasure.has(batch)).as_py() or 0 for batch in decisive)
            if dry_run or not removed:
                return Rewritten(removed=removed)
        batches = (batch for file in work.files for batch in rows_of(storage, file))
        with FilesWriter(
            storage, work.topic, work.epoch, file_bytes=1 << 62, last=work.files[-1].last, typed=work.typed
        ) as writer:
            for batch in batches:
                writer.write(batch if erasure is None else batch.filter(pc.invert(erasure.has(batch))))
            new = writer.finish()
            if len(new) > 1 or sum(file.rows for file in new) != sum(file.rows for file in work.files) - removed:
                raise Damaged(
                    f"{work.files[0].path} to {work.files[-1].path}: they have records of several dates, or not all of "
                    "their records can be read"
                )
    except Damaged as error:
        return Rewritten(damage=str(error))
    return Rewritten(new=new[0] if new else None, removed=removed)


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
