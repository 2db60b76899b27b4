"""Rendering of a large write in steps, before its seqs are known.

The stored form of 64 MiB takes a tenth of a second to write, so it is written a piece at a time, with the seqs that the
write would have now. Other writes may come in between: `entry` then puts the right seqs and commit time over these,
which takes half a microsecond per record. That works as long as no number changes its length; see `fits`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
from msgspec import UNSET, Raw, Struct

from topics.engine.state.jobs.job import job_terms
from topics.engine.steps import Steps
from topics.engine.write import render
from topics.model.record_bytes import node_part, parts, seq_and_ts
from topics.model.records import Limits, PlainWriteRequest, WriteRequest
from topics.storage.log.entry import Append

PIECE_BYTES = 256 << 10  # of records per step: about a third of a millisecond
LARGE_BYTES = 1 << 20  # a larger body is rendered here: a mebibyte takes four milliseconds up to the topic
STEP_RECORDS = 128  # that are checked per step

Parts = list[bytes | Raw]


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
            if render.LF in piece or render.CR in piece:
                piece = piece.translate(render.LINE_BREAKS)
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
    tags = render.checked_tags(request, limits)
    nodes = render.checked_nodes(request, len(records), limits)
    yield None
    rows: list[Parts] = []
    sizes: list[int] = []
    metas: list[int] = []
    for at, record in enumerate(records):
        node = nodes if nodes is None or isinstance(nodes, str) else nodes[at]
        raw = getattr(record, "meta", UNSET)  # a plain record has no meta
        meta = () if raw is UNSET else render.checked_meta(raw, at, limits)
        row = parts(first + at, ts, node_part(node), record.data, meta)
        rows.append(row)
        sizes.append(sum(map(render.size_of, row)))
        metas.append(sum(map(render.size_of, meta)))
        if not at % STEP_RECORDS:
            yield None
    if max(sizes) > limits.max_record_bytes:
        render.check_sizes(records, limits)
    blob = np.empty(sum(sizes), np.uint8).data  # not cleared first: that takes 25 ms for 64 MiB
    return LargeBlob(request, first, ts, rows, sizes, tags, nodes, metas if any(metas) else None, blob)


def _pieces(rows: list[Parts]) -> Iterator[bytes]:
    """Yield all parts of all rows in pieces of about `PIECE_BYTES`."""
    waiting: Parts = []
    size_bytes = 0
    for row in rows:
        for part in row:
            size = render.size_of(part)
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
