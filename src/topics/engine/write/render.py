"""Turn a write request into a log entry: check every record, and write its stored form.

The stored form of 64 MiB takes a tenth of a second to write. So that of a large write is made a piece at a time, with
the seqs that the write would have now. Other writes may come in between: `LargeBlob.entry` then puts the right seqs and
commit time over these, which takes half a microsecond per record. That works as long as no number changes its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import cast

import numpy as np
from msgspec import UNSET, Raw, Struct

from topics.engine.state.jobs.job import job_terms
from topics.engine.steps import Steps
from topics.errors import Code, TopicsError, invalid
from topics.model import record_bytes, surrogates
from topics.model.record_bytes import META, node_part, seq_and_ts, write_alike
from topics.model.records import (
    MAX_META_KEYS,
    Limits,
    NewRecord,
    PlainRecord,
    PlainWriteRequest,
    WriteRequest,
    record_too_large,
    too_long,
)
from topics.storage.log.entry import Append

PIECE_BYTES = 256 << 10  # of records per step: about a third of a millisecond
LARGE_BYTES = 1 << 20  # a larger body is rendered in steps: a mebibyte takes four milliseconds up to the topic
STEP_RECORDS = 128  # that are checked per step
PLAIN_MAX_RECORDS, PLAIN_MAX_BYTES = 1024, 256 << 10  # of an entry that the plain appends of one turn share

Parts = list[bytes | Raw]

LINE_BREAKS = bytes.maketrans(b"\n\r", b"  ")
LF, CR = b"\n\r"  # as numbers: a search for a byte takes a tenth of the time of a search for a string


def plain_bytes(request: WriteRequest, limits: Limits) -> int:
    """Return the size of the data of a request, or 0 if its records are not valid, not plain, or too many.

    Plain records have at most a tag, and the node of their request.
    """
    records, node, most = request.records, request.node, limits.max_tag_bytes
    n, only_plain = len(records), request.only_plain
    if n == 1:  # as below, in half of the time
        record = records[0]
        tag, size_bytes = record.tag, len(memoryview(record.data))
        if (tag is not None and len(tag) * 4 > most) or not (only_plain or _is_plain(record)):
            return 0
    elif not 0 < n <= PLAIN_MAX_RECORDS or n > limits.max_batch_records:
        return 0
    else:
        size_bytes = len(b"".join([record.data for record in records]))
        for record in records:
            if (tag := record.tag) is not None and len(tag) * 4 > most:
                return 0
        if not only_plain and not all(map(_is_plain, records)):
            return 0
    if size_bytes > PLAIN_MAX_BYTES or size_bytes > limits.max_record_bytes:
        return 0
    return 0 if node is not None and len(node) * 4 > limits.max_node_bytes else size_bytes


def plain_entry(requests: Sequence[WriteRequest], topic_id: int, first: int, ts: int) -> Append:
    """Return one entry for the plain records of one request, or of several in turn."""
    request = requests[0]
    records, node, key = request.records, request.node, request.idempotency_key
    nodes: list[str | None] | str | None = node
    if len(requests) > 1:
        nodes = [one.node for one in requests]
        nodes = node if nodes.count(node) == len(nodes) else [one.node for one in requests for _ in one.records]
        records = [record for one in requests for record in one.records]
    elif len(records) == 1:  # as below, in half of the time
        record = records[0]
        if node is None:
            blob = record_bytes.write_plain(first, ts, record.data)
        else:
            blob = record_bytes.write(first, ts, node_part(node), record.data, b"")
        if LF in blob or CR in blob:
            blob = blob.translate(LINE_BREAKS)
        tag = record.tag
        return Append(topic_id, first, ts, (len(blob),), blob, None if tag is None else (tag,), node, None, key)
    n, datas, tags = len(records), [record.data for record in records], [record.tag for record in records]
    if isinstance(nodes, list):
        rows = [record_bytes.write(first + at, ts, node_part(nodes[at]), datas[at], b"") for at in range(n)]
        blob, sizes = b"".join(rows), list(map(len, rows))
    else:
        blob, sizes = write_alike(datas, nodes, first, ts)
    if LF in blob or CR in blob:
        blob = blob.translate(LINE_BREAKS)
    return Append(topic_id, first, ts, sizes, blob, None if tags.count(None) == n else tags, nodes, None, key)


def _is_plain(record: NewRecord) -> bool:
    return (
        record.node is None and record.meta is UNSET and record.priority is None and record.delay_ms is None
        and record.deliver_at is None and record.key is None and record.unique is None
    )  # fmt: skip


def render(request: WriteRequest, topic_id: int, first: int, ts: int, limits: Limits) -> Append:
    """Return the entry for the records of a request. Raise the error of the first record that is invalid."""
    if plain_bytes(request, limits):  # as most writes: what follows does the same at twice the cost
        return plain_entry([request], topic_id, first, ts)
    records, n = request.records, len(request.records)
    plain = type(request) is PlainWriteRequest
    tags = checked_tags(request, limits)
    nodes = checked_nodes(request, n, limits)
    meta_sizes = None
    if plain or (isinstance(nodes, str | None) and not any(record.meta is not UNSET for record in records)):
        blob, sizes = write_alike([record.data for record in records], nodes, first, ts)  # type: ignore[arg-type]
    else:
        rows, sizes, metas = map(list, zip(*_rows(request, nodes, first, ts, limits), strict=True))
        blob, meta_sizes = b"".join(chain.from_iterable(rows)), metas if any(metas) else None
    if LF in blob or CR in blob:
        # A stored record is one line. A raw line break, which is legal only between tokens, becomes a space.
        blob = blob.translate(LINE_BREAKS)
    if len(blob) > limits.max_record_bytes and max(sizes) > limits.max_record_bytes:
        check_sizes(records, limits)
    extras = None if plain else job_terms(records, ts)
    key = request.idempotency_key
    return Append(topic_id, first, ts, sizes, blob, tags, nodes, meta_sizes, key, extras)


def _rows(
    request: WriteRequest, nodes: list[str | None] | str | None, first: int, ts: int, limits: Limits
) -> Iterator[tuple[Parts, int, int]]:
    """Yield each record in parts, without a copy of data and meta, with its size and the size of its meta part."""
    for at, record in enumerate(request.records):
        node = nodes if nodes is None or isinstance(nodes, str) else nodes[at]
        raw = getattr(record, "meta", UNSET)  # a plain record has no meta
        meta = () if raw is UNSET else checked_meta(raw, at, limits)
        row = record_bytes.parts(first + at, ts, node_part(node), record.data, meta)
        yield row, sum(map(size_of, row)), sum(map(size_of, meta))


def size_of(part: bytes | Raw) -> int:
    return len(part) if isinstance(part, bytes) else len(memoryview(part))


def checked_tags(request: WriteRequest, limits: Limits) -> list[str | None] | None:
    """Return the tag of each record, or None if no record has one. Raise if there are too many records, or too few."""
    records = request.records
    n = len(records)
    if not n:
        raise invalid("records must not be empty", field="records")
    if n > limits.max_batch_records:
        what = f"a write takes at most {limits.max_batch_records} records, not {n}"
        raise TopicsError(Code.BATCH_TOO_LARGE, what, detail={"records": n, "max": limits.max_batch_records})
    tags = [record.tag for record in records]
    _check_lengths("tag", tags, limits.max_tag_bytes)
    return None if tags[0] is None and tags.count(None) == n else tags


def checked_nodes(request: WriteRequest, n: int, limits: Limits) -> list[str | None] | str | None:
    """Return one name if all records come from one node, else a list."""
    if request.node is not None:
        _check_lengths("node", [request.node], limits.max_node_bytes)
    if type(request) is PlainWriteRequest:
        return request.node
    nodes: list[str | None] = [record.node for record in request.records]
    if nodes.count(None) == n:
        return request.node
    _check_lengths("node", nodes, limits.max_node_bytes)
    return [request.node if node is None else node for node in nodes]


def _check_lengths(field: str, values: Sequence[str | None], limit_bytes: int) -> None:
    for value in set(values):
        if value is not None and len(value) * 4 > limit_bytes and len(value.encode()) > limit_bytes:
            raise too_long(field, len(value.encode()), limit_bytes)


def checked_meta(meta: Raw, at: int, limits: Limits) -> tuple[bytes | Raw, ...]:
    """Return the parts of a record that hold the meta. Raise `invalid_request`."""
    field = f"records[{at}].meta"
    text = bytes(meta)
    if text == b"null":
        return ()
    if text[:1] != b"{":
        raise invalid(f"{field} must be an object", field=field)
    if len(text) > limits.max_meta_bytes:
        raise too_long(field, len(text), limits.max_meta_bytes)
    # A member has at least five bytes and a colon, so most objects need not be decoded.
    many = len(text) > 5 * MAX_META_KEYS and text.count(b":") > MAX_META_KEYS
    if many and (keys := surrogates.count_members(text)) > MAX_META_KEYS:
        raise invalid(f"{field} has {keys} keys; the limit is {MAX_META_KEYS}", field=field)
    return META, meta


def check_sizes(records: Sequence[NewRecord | PlainRecord], limits: Limits) -> None:
    """Raise `record_too_large` if a record has more data and meta than it may."""
    for at, record in enumerate(records):
        meta = getattr(record, "meta", UNSET)  # a plain record has no meta
        size_bytes = len(memoryview(record.data)) + (0 if meta is UNSET else len(memoryview(meta)))
        if size_bytes > limits.max_record_bytes:
            raise record_too_large(at, size_bytes, limits)


# --- a large write: rendered in steps, before its seqs are known


class LargeBlob(Struct):
    """The records of a write in their stored form, for some first seq and commit time."""

    request: WriteRequest
    first: int
    ts: int
    rows: list[Parts]  # until `fill` has copied them
    sizes: list[int]
    tags: list[str | None] | None
    nodes: list[str | None] | str | None
    metas: list[int] | None
    blob: memoryview

    def fill(self) -> Steps[None]:
        """Copy the records into the blob, in steps.

        A raw line break, which is legal only between tokens, becomes a space: a stored record is one line.
        """
        at = 0
        for piece in _pieces(self.rows):
            if LF in piece or CR in piece:
                piece = piece.translate(LINE_BREAKS)
            self.blob[at : at + len(piece)] = piece
            at += len(piece)
            yield None
        self.rows = []

    def fits(self, first: int, ts: int) -> bool:
        """Return whether the blob has the same size with these numbers in it."""
        more = len(self.sizes) - 1
        was = [len(str(number)) for number in (self.first, self.first + more, self.ts)]
        digits = [len(str(number)) for number in (first, first + more, ts)]
        # If the seqs pass a power of ten, they must do so at the same record.
        return was == digits and (first == self.first or digits[0] == digits[1])

    def entry(self, topic_id: int, first: int, ts: int) -> Append:
        """Return the entry for the records with these seqs. The blob becomes a part of it."""
        assert not self.rows, "the blob is not filled"
        if (first, ts) != (self.first, self.ts):
            at = 0
            for seq, size in enumerate(self.sizes, first):
                head = seq_and_ts(seq, ts)
                self.blob[at : at + len(head)] = head
                at += size
            self.first, self.ts = first, ts
        request = self.request
        extras = None if type(request) is PlainWriteRequest else job_terms(request.records, ts)
        return Append(
            topic_id, first, ts, self.sizes, cast(bytes, self.blob.toreadonly()), self.tags, self.nodes, self.metas,
            request.idempotency_key, extras,
        )  # fmt: skip


def lay_out(request: WriteRequest, first: int, ts: int, limits: Limits) -> Steps[LargeBlob]:
    """Check all records of a write, and return the blob that they are to fill.

    Raise the error of the first record that is invalid.
    """
    records = request.records
    tags = checked_tags(request, limits)
    nodes = checked_nodes(request, len(records), limits)
    yield None
    rows: list[Parts] = []
    sizes: list[int] = []
    metas: list[int] = []
    for row, size, meta_size in _rows(request, nodes, first, ts, limits):
        rows.append(row)
        sizes.append(size)
        metas.append(meta_size)
        if not len(rows) % STEP_RECORDS:
            yield None
    if max(sizes) > limits.max_record_bytes:
        check_sizes(records, limits)
    blob = np.empty(sum(sizes), np.uint8).data  # not cleared first: that takes 25 ms for 64 MiB
    return LargeBlob(request, first, ts, rows, sizes, tags, nodes, metas if any(metas) else None, blob)


def _pieces(rows: list[Parts]) -> Iterator[bytes]:
    """Yield all parts of all rows in pieces of about `PIECE_BYTES`."""
    waiting: Parts = []
    size_bytes = 0
    for row in rows:
        for part in row:
            size = size_of(part)
            if size <= PIECE_BYTES:
                waiting.append(part)
                size_bytes += size
            else:
                yield b"".join(waiting)
                waiting, size_bytes = [], 0
                view = memoryview(part)
                yield from (bytes(view[at : at + PIECE_BYTES]) for at in range(0, size, PIECE_BYTES))
        if size_bytes >= PIECE_BYTES:
            yield b"".join(waiting)
            waiting, size_bytes = [], 0
    yield b"".join(waiting)
