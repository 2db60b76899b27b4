"""Convert runs of records to Arrow columns, without a Python step per record and without parsing `data`.

The string offsets of an Arrow array must be contiguous, but the values in a run's bytes are not: the rendered
`{"$seq":…` and `},` lie between them. So starts and ends alternate in one offsets array over the raw bytes. Its even
slots are the values, its odd slots the bytes between them, and `take` keeps the even slots.

Needs pyarrow, which the server does not require: it is imported only for a request that accepts Arrow.
"""

from __future__ import annotations

import io
from collections.abc import Collection
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topics.model.record_bytes import DATA, END_BYTES, META, NODE, SEQ_AND_TS_BYTES, encode_json
from topics.storage.segments.columns import GrowingNames, SortedNames
from topics.storage.segments.record_run import Run

RECORD, GAP = "record", "gap"
UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("seq", pa.int64()),
        ("ts", UTC_TIMESTAMP),
        ("node", pa.string()),
        ("tag", pa.string()),
        ("meta", pa.string()),
        ("data", pa.string()),
        ("gap_to", pa.int64()),
        ("reason", pa.string()),
    ]
)

Positions = npt.NDArray[np.int64]


class Cells(NamedTuple):
    """The columns of a run's records, sorted by seq. A value that a record lacks is null."""

    seq: pa.Array
    ts: pa.Array
    node: pa.Array
    tag: pa.Array
    meta: pa.Array
    data: pa.Array


def cells(run: Run, *, without: Collection[str] = ()) -> Cells:
    """Return the columns of a run. Those in `without` (`ts`, `node`, `tag`, `meta`) are not read, and are null."""
    columns = run.columns
    n = len(columns)
    at = None if run.marks is None else np.flatnonzero(np.frombuffer(run.marks, np.uint8) == 0)
    seq = np.arange(columns.first, columns.first + n, dtype=np.int64)
    ts = np.frombuffer(columns.ts, np.uint64).astype(np.int64)
    offsets = np.frombuffer(columns.offsets, np.uint32).astype(np.int64)
    data_at = offsets[:-1] + (SEQ_AND_TS_BYTES + len(DATA) + _digits(seq) + _digits(ts) + _node_sizes(run))
    data_end: Positions = offsets[1:] - END_BYTES
    meta_text = pa.nulls(n if at is None else len(at), pa.string())
    if columns.metas is not None:
        sizes = np.frombuffer(columns.metas, np.uint32).astype(np.int64)
        if "meta" not in without:
            meta_text = _slices(run.data, data_end - sizes + len(META), data_end, at, absent=sizes == 0)
        data_end = data_end - sizes
    if at is not None:
        seq, ts = seq[at], ts[at]
    none = pa.nulls(len(seq), pa.string())
    return Cells(
        _integers(seq, pa.int64()),
        pa.nulls(len(seq), UTC_TIMESTAMP) if "ts" in without else _integers(ts * 1000, UTC_TIMESTAMP),
        none if "node" in without else _named(columns.nodes, columns.node_names, n, at),
        none if "tag" in without else _named(columns.tags, columns.tag_names, n, at),
        meta_text,
        _slices(run.data, data_at, data_end, at),
    )


def record_batch(run: Run, topic: str, *, meta: bool = True) -> pa.RecordBatch:
    found = cells(run, without=() if meta else ("meta",))
    n = len(found.seq)
    none = pa.nulls(n, pa.int64()), pa.nulls(n, pa.string())
    return pa.RecordBatch.from_arrays([pa.repeat(RECORD, n), pa.repeat(topic, n), *found, *none], schema=SCHEMA)


def gap_batch(topic: str, gap_from: int, gap_to: int, reason: str) -> pa.RecordBatch:
    row = {"kind": GAP, "topic": topic, "seq": gap_from, "gap_to": gap_to, "reason": reason}
    return pa.RecordBatch.from_pylist([row], schema=SCHEMA)


class StreamEncoder:
    """Encodes batches as an Arrow IPC stream, piece by piece."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._buffer, "w"), SCHEMA)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def note(self, name: str, value: Any) -> None:
        """Write a batch without rows whose metadata holds `value` as JSON."""
        batch = pa.RecordBatch.from_pylist([], schema=SCHEMA)
        self._writer.write_batch(batch, custom_metadata={name: msgspec.json.encode(value)})

    def close(self) -> None:
        self._writer.close()

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        data = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return data


def _digits(values: Positions) -> Positions | int:
    """Return the number of decimal digits of each value: one number if it is the same for all (values ascend)."""
    first, last = len(str(values[0])), len(str(values[-1]))
    if first == last:
        return first
    powers = np.array([10**exponent for exponent in range(1, 19)], np.int64)
    return 1 + np.searchsorted(powers, values, "right")


def _node_sizes(run: Run) -> Positions | int:
    """Return the size of `,"$node":"…"` in each record."""
    ids, names = run.columns.nodes, run.columns.node_names
    if ids is None:
        return 0
    ends, blob = _dictionary(names)
    raw = np.frombuffer(blob, np.uint8)
    if np.any((raw < 0x20) | (raw == ord('"')) | (raw == ord("\\"))):  # some names have escapes: measure each one
        sizes = np.array(
            [0, *(len(NODE) + len(encode_json(names.name_of(at + 1))) for at in range(len(ends) - 1))], np.int64
        )
    else:
        sizes = np.concatenate((np.zeros(1, np.int64), np.diff(ends) + (len(NODE) + len('""'))))
    return sizes[np.frombuffer(ids, np.uint32)]


def _named(ids: Any, names: GrowingNames | SortedNames, n: int, at: npt.NDArray[np.intp] | None) -> pa.Array:
    """Return an id column as strings, null for id 0."""
    if ids is None:
        return pa.nulls(n if at is None else len(at), pa.string())
    ends, blob = _dictionary(names)
    values = pa.StringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(blob))
    wanted = np.frombuffer(ids, np.uint32)
    if at is not None:
        wanted = wanted[at]
    # Unsigned arithmetic would turn id 0 into a huge index, so convert to a signed type first.
    return values.take(pa.array(wanted.astype(np.int64) - 1, mask=wanted == 0))


def _dictionary(names: GrowingNames | SortedNames) -> tuple[Positions, bytes]:
    """Return the offsets of the names, one more than there are names, and the bytes that they index."""
    if isinstance(names, SortedNames):
        return np.concatenate((np.zeros(1, np.int64), np.frombuffer(names.ends, np.uint32))), names.blob
    encoded = [name.encode() for name in names.names]
    sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes))), b"".join(encoded)


def _slices(
    data: bytes, start: Positions, stop: Positions, at: npt.NDArray[np.intp] | None,
    absent: npt.NDArray[np.bool_] | None = None,
) -> pa.Array:  # fmt: skip
    """Return data[start[i]:stop[i]] for the positions `at`, or for all. UTF-8 was checked when they were written."""
    if at is not None:
        start, stop = start[at], stop[at]
        absent = None if absent is None else absent[at]
    if absent is not None:  # offsets must not decrease, even in slots that are masked
        start = np.where(absent, stop, start)
    n = len(start)
    offsets = np.empty(2 * n + 1, np.int32)
    offsets[0 : 2 * n : 2] = start
    offsets[1 : 2 * n : 2] = stop
    offsets[2 * n] = offsets[2 * n - 1]
    both = pa.StringArray.from_buffers(2 * n, pa.py_buffer(offsets), pa.py_buffer(data))
    return both.take(pa.array(np.arange(0, 2 * n, 2, dtype=np.int32), mask=absent))


def _integers(values: Positions, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
