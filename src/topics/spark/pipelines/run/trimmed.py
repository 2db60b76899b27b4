"""Detect records that `archive --trim` deleted from a topic: they are in a lake, and the server skips them silently.

A server does not report deletes, because they are on request. So a pipeline that reads a trimmed topic without its lake
would silently leave records out. The server knows the last trimmed seq (`trimmed_seq`): deleted records at the front of
the topic up to that seq are in a lake. Other deleted records are not wanted, archived or not.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from topics.client import Client
from topics.lake.archived import Range
from topics.spark.options import ConnectionOptions
from topics.spark.source.catalog import client_for, state_of
from topics.spark.source.plan import Span


def trimmed(client: Client, topic: str, *, epoch: int, start: int) -> Range | None:
    """Return the trimmed seqs from `start` to the first record; None if there are none, or a gap reports them."""
    state = state_of(client, topic, epoch=epoch)
    if state is None or not start <= (last := min(state.trimmed_seq or 0, state.earliest_seq - 1)):
        return None
    page = client.diff(topic, from_seq=start - 1, limit=1, include_meta=False)
    is_reported = page.tombstone is not None and page.tombstone.gap_from <= start
    return None if is_reported else (start, last)


class Watch:
    """Ends the read of a span before the first record that is trimmed while the span is read.

    A trim deletes the front of a topic. If seqs are missing and the topic now begins after them, they may have been
    deleted before, or by the trim: the two cannot be distinguished, so the read ends there.
    """

    def __init__(self, span: Span, connection: ConnectionOptions) -> None:
        self.trimmed_at = 0
        self._span = span
        self._connection = connection

    def over(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        at = self._span.start
        for batch in (one for one in batches if one.num_rows):
            seqs = batch.column("seq").to_numpy()  # of records, or of one gap
            jumps = np.flatnonzero(np.diff(seqs) != 1)
            missing = at if seqs[0] > at else int(seqs[jumps[0]]) + 1 if len(jumps) else None
            if missing is not None and self._is_trimmed(missing):
                yield batch.slice(0, int(np.searchsorted(seqs, missing)))
                return
            ends = batch.slice(batch.num_rows - 1).to_pylist()[0]
            at = (ends["seq"] if ends["gap_to"] is None else ends["gap_to"]) + 1
            yield batch
        if at < self._span.stop:
            self._is_trimmed(at)

    def _is_trimmed(self, seq: int) -> bool:
        with client_for(self._connection) as client:
            if trimmed(client, self._span.topic, epoch=self._span.epoch, start=seq) is not None:
                self.trimmed_at = seq
        return self.trimmed_at > 0
