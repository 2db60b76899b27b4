"""Write Parquet files for a commit, with Delta's statistics, and read rows of an output table back.

A file is written one row group at a time, so that memory is bounded. Files are written to their final place, where no
reader looks at them before a commit names them. A repeated task writes files with other names. A file that is never
committed is removed later (`topics.lake.table`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Generic, Self, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Raw, Struct

from topics.lake.archived import File, Unfit
from topics.lake.columns import TypedColumns, type_name
from topics.lake.errors import Damaged
from topics.lake.layout import DAY_US, PARTITIONS, SCHEMA, date_of, file_path
from topics.lake.storage import Storage, with_remedies

FILE_BYTES = 128 << 20  # of records, after compression; a file is closed at the row group that passes it
ROWS_FILE_BYTES = 32 << 20  # of an output table
ROW_GROUP_BYTES = 16 << 20  # before compression
ROW_GROUP_ROWS = 1 << 17

FILE_SCHEMA = pa.schema([field for field in SCHEMA if field.name not in PARTITIONS])

WRITING: Final[dict[str, Any]] = {
    "use_dictionary": ["node", "tag"],
    "column_encoding": {"seq": "DELTA_BINARY_PACKED", "ts": "DELTA_BINARY_PACKED"},
    "sorting_columns": [pq.SortingColumn(FILE_SCHEMA.get_field_index("seq"))],
}

NO_COLUMNS = TypedColumns(())
EPOCH_START, MS = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


class RowsFile(Struct, frozen=True, kw_only=True):
    """A file of an output table. Its name is used once. `low` and `high` are the bounds of one column, if known."""

    path: str
    rows: int
    bytes: int
    stats: str = ""  # Delta's statistics as JSON; only for a file that is not committed yet
    low: Any = None
    high: Any = None


Written = TypeVar("Written", RowsFile, File)


class _Writer(Generic[Written]):
    """Writes one file after the other, with its statistics, as a context manager. An error removes the files."""

    def __init__(self, storage: Storage, *, file_bytes: int) -> None:
        self._storage, self._file_bytes = storage, file_bytes
        self._done: list[Written] = []
        self._writer: pq.ParquetWriter | None = None  # of the open file
        self._out: Any = None
        self._path = ""
        self._held: list[pa.RecordBatch] = []  # the rows of the next row group
        self._held_bytes = self._held_rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        paths = [file.path for file in self._done]
        if self._writer is not None:
            paths.append(self._path)
            for close in (self._writer.close, self._out.close):
                with suppress(OSError, pa.ArrowException):
                    close()
        for path in paths:
            with suppress(OSError, pa.ArrowException):
                self._storage.remove(path)

    def write(self, batch: pa.RecordBatch) -> None:
        with with_remedies(self._storage.location):
            if not batch.num_rows:
                return
            if self._writer is not None and self._out.tell() >= self._file_bytes:
                self.cut()
            if self._writer is None:
                self._open(batch)
            self._statistics.add(batch)
            self._held.append(batch)
            self._held_bytes += batch.nbytes
            self._held_rows += batch.num_rows
            if self._held_bytes >= ROW_GROUP_BYTES or self._held_rows >= ROW_GROUP_ROWS:
                self._flush()

    def cut(self) -> None:
        """Close the file: the next row begins another one."""
        if self._writer is not None:
            self._flush()
            self._writer.close()
            size_bytes = int(self._out.tell())
            self._out.close()
            self._writer = None
            self._done.append(self._written(size_bytes))

    def finish(self) -> list[Written]:
        with with_remedies(self._storage.location):
            self.cut()
            return self._done

    def _begin(self, path: str, schema: pa.Schema, bounded: Collection[str] | None = None, **options: Any) -> None:
        """Create a file. `options` are those of Arrow's writer."""
        self._path, self._statistics, self._out = path, Statistics(bounded), self._storage.create(path)
        # Checksums of pages let a reader find damage.
        self._writer = pq.ParquetWriter(self._out, schema, compression="zstd", write_page_checksum=True, **options)

    def _flush(self) -> None:
        if self._held and self._writer is not None:
            table = pa.Table.from_batches(self._held, self._writer.schema)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
            self._held, self._held_bytes, self._held_rows = [], 0, 0

    def _open(self, batch: pa.RecordBatch) -> None:
        """Create the file that begins with these rows."""
        raise NotImplementedError

    def _written(self, size_bytes: int) -> Written:
        """Return what a commit says about the file that was closed."""
        raise NotImplementedError


class RowsWriter(_Writer[RowsFile]):
    """Writes rows of an output table."""

    def __init__(self, storage: Storage, schema: pa.Schema, *, file_bytes: int = ROWS_FILE_BYTES) -> None:
        super().__init__(storage, file_bytes=file_bytes)
        self._schema = schema

    def _open(self, batch: pa.RecordBatch) -> None:
        self._begin(f"{os.urandom(16).hex()}.parquet", self._schema)

    def _written(self, size_bytes: int) -> RowsFile:
        found = self._statistics
        return RowsFile(path=self._path, rows=found.rows, bytes=size_bytes, stats=found.json())


class FilesWriter(_Writer[File]):
    """Writes the records of one epoch of a topic. `last`: see `layout.file_path`."""

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
        super().__init__(storage, file_bytes=file_bytes)
        self._topic, self._epoch, self._last, self._typed = topic, epoch, last, typed
        self._day = 0
        self._seq = 0  # the last one written
        self._unfit: dict[str, Unfit] = {}  # of the open file, by column

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        for day, day_batch in by_day(batch):
            part, unfit = self._typed.extended(day_batch, FILE_SCHEMA)
            first = part.column("seq")[0].as_py()
            if first <= self._seq:
                raise Damaged(f"topic {self._topic}: seq {first} was read after seq {self._seq}")
            self._seq = part.column("seq")[-1].as_py()
            if day != self._day:
                with with_remedies(self._storage.location):
                    self.cut()
                self._day = day
            super().write(part)
            for name, positions in unfit.items():
                kind, first = type_name(part.schema.field(name).type), part.column("seq")[positions[0]].as_py()
                new = Unfit(type=kind, records=len(positions), epoch=self._epoch, first_seq=first)
                self._unfit[name] = new.and_(self._unfit.get(name))

    def _open(self, batch: pa.RecordBatch) -> None:
        first, token = batch.column("seq")[0].as_py(), os.urandom(8).hex()
        path = file_path(self._topic, date_of(self._day), self._epoch, first, token, last=self._last)
        self._unfit = {}
        bounded = {"seq", "ts", "tag", *(name for name, _ in self._typed.fields)}
        self._begin(path, batch.schema, bounded, **WRITING)

    def _written(self, size_bytes: int) -> File:
        statistics = self._statistics
        (first, last), (begin, end) = statistics.bounds("seq"), statistics.bounds("ts")
        return File(
            path=self._storage.seal(self._path), date=date_of(self._day), first=first, last=last,
            rows=statistics.rows, bytes=size_bytes, stats=statistics.json(),
            min_ts=(begin - EPOCH_START) // MS, max_ts=-((EPOCH_START - end) // MS), unfit=self._unfit,
        )  # fmt: skip


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
    with FilesWriter(storage, topic, epoch, file_bytes=file_bytes, typed=typed) as writer:
        for batch in batches:
            writer.write(batch)
        return writer.finish()


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the parts of a batch that lie in one UTC day, with the day, in order."""
    days = batch.column("ts").cast(pa.int64()).to_numpy() // DAY_US
    if days[0] == days[-1] and (days == days[0]).all():
        yield int(days[0]), batch
        return
    edges = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
    for low, high in itertools.pairwise(edges):
        yield int(days[low]), batch.slice(low, high - low)


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


# --- Delta's statistics of one file, by which readers skip it

MAX_BOUND_CHARS = 1024  # a column with a longer text has no bounds

ORDERED = (  # types whose values have bounds
    pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_string, pa.types.is_date,
    pa.types.is_timestamp,
)  # fmt: skip

Path = tuple[str, ...]  # a column, or a field of a struct

_encode = msgspec.json.Encoder(decimal_format="number").encode


class Statistics:
    """Collects the statistics of the rows of one file. `bounded`: the columns that get bounds; by default all."""

    def __init__(self, bounded: Collection[str] | None = None) -> None:
        self.rows = 0
        self._bounded = bounded
        self._nulls: dict[Path, int] = {}
        self._bounds: dict[Path, tuple[Any, Any] | None] = {}  # None: a value has no JSON form, so there are no bounds

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for name in batch.schema.names:
            self._add((name,), batch.column(name))

    def bounds(self, column: str) -> tuple[Any, Any]:
        """Return the least and the greatest value of a column that always has values with an order."""
        return self._bounds[column,] or (None, None)

    def json(self) -> str:
        bounds = {path: bound for path, bound in self._bounds.items() if bound is not None}
        found = {
            "numRecords": self.rows,
            "minValues": _nested({path: _shown(low) for path, (low, _) in bounds.items()}),
            "maxValues": _nested({path: _shown(high) for path, (_, high) in bounds.items()}),
            "nullCount": _nested(self._nulls),
        }
        return _encode(found).decode()

    def _add(self, path: Path, column: pa.Array) -> None:
        if pa.types.is_struct(column.type):
            for at, field in enumerate(column.type):
                self._add((*path, field.name), pc.struct_field(column, [at]))
            return
        self._nulls[path] = self._nulls.get(path, 0) + column.null_count
        wanted = self._bounded is None or path[0] in self._bounded
        if not wanted or not any(has(column.type) for has in ORDERED) or column.null_count == len(column):
            return
        new = _bounds(column)
        known = self._bounds.get(path, new)
        if known is None or new is None:
            self._bounds[path] = None
        else:
            self._bounds[path] = min(known[0], new[0]), max(known[1], new[1])


def _bounds(column: pa.Array) -> tuple[Any, Any] | None:
    """Return the least and the greatest value, or None if JSON has no form for one of the values."""
    if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column)).as_py():
        return None
    try:
        found = pc.min_max(column)
        low, high = found["min"].as_py(), found["max"].as_py()
    except (ValueError, OverflowError):  # a time that Python cannot show
        return None
    if isinstance(low, str) and max(len(low), len(high)) > MAX_BOUND_CHARS:
        return None
    return low, high


def _shown(value: Any) -> Any:
    """Return a bound as Delta's statistics show it."""
    if isinstance(value, datetime):
        utc = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return utc.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return Raw(_encode(value))
    return value.isoformat() if isinstance(value, date) else value


def _nested(values: dict[Path, Any]) -> dict[str, Any]:
    """Return a tree of the values: a field of a struct is in an object under the name of the struct."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        at = found
        for name in path[:-1]:
            at = at.setdefault(name, {})
        at[path[-1]] = value
    return found
