"""Records that `archive --trim` took out of a topic: they are in a lake, and the server passes over them in silence.

A delete is on purpose, so a server tells nothing of it, and a pipeline that reads such a topic without its lake would
miss records without a word. The server knows how far it was told that the topic is trimmed (`trimmed_seq`): what is
gone from its front up to there can be had from a lake. Other deletes are meant to be gone, archived or not.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from msgspec import Struct

from topics.client import Client
from topics.errors import Code, TopicsError
from topics.lake import Lake
from topics.spark.options import ConnectionOptions
from topics.spark.source.catalog import client_for
from topics.spark.source.plan import Span


class Removed(Struct, frozen=True, kw_only=True):
    """Seqs that were deleted at the front of a topic, and of which nobody tells as lost: trimmed ones, if any were."""

    first: int
    last: int
    is_trimmed: bool  # whether a lake has them, by what the server was told

    def __str__(self) -> str:
        return f"seqs {self.first} to {self.last}"

    def is_in(self, lake: str, topic: str, epoch: int) -> bool:
        """Whether this lake is the one that has them."""
        archived = Lake(lake).snapshot().archived(topic, epoch)
        return archived is not None and archived.archived_to >= self.last


def removed(client: Client, topic: str, *, epoch: int, start: int) -> Removed | None:
    """What is gone of seqs from `start` on, where the topic begins later; None where nothing is, or it is told."""
    try:
        page = client.diff(topic, from_seq=start - 1, epoch=epoch, limit=1, include_meta=False)
        told = page.tombstone is not None and page.tombstone.gap_from <= start
        if told or page.earliest_seq <= start:
            return None
        last = page.earliest_seq - 1
        trimmed = min(client.topic(topic).trimmed_seq or 0, last)
    except TopicsError as error:
        if error.code is Code.TOPIC_NOT_FOUND:
            return None
        raise
    is_trimmed = trimmed >= start
    return Removed(first=start, last=trimmed if is_trimmed else last, is_trimmed=is_trimmed)


class Watch:
    """Looks at what is read of a span for records that are trimmed meanwhile, and ends before the first of them.

    A trim takes away the front of a topic. So where seqs are missing and the topic by now begins behind them, nobody
    can say whether they had been deleted before or went with the trim.
    """

    def __init__(self, span: Span, connection: ConnectionOptions) -> None:
        self.trimmed_at = 0
        self._span = span
        self._connection = connection

    def over(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        at = self._span.start
        for batch in (one for one in batches if one.num_rows):
            missing = _missing(batch, at)
            if missing is not None and self._is_trimmed(missing):
                yield batch.slice(0, int(np.searchsorted(batch.column("seq").to_numpy(), missing)))
                return
            at = _last(batch) + 1
            yield batch
        if at < self._span.stop:
            self._is_trimmed(at)

    def _is_trimmed(self, seq: int) -> bool:
        with client_for(self._connection, self._span.server) as client:
            found = removed(client, self._span.topic, epoch=self._span.epoch, start=seq)
        if found is not None and found.is_trimmed:
            self.trimmed_at = seq
        return self.trimmed_at > 0


def _missing(batch: pa.RecordBatch, at: int) -> int | None:
    """The first seq from `at` on that the batch, of records or of one gap, passes over."""
    seqs = batch.column("seq").to_numpy()
    if seqs[0] > at:
        return at
    jumps = np.flatnonzero(np.diff(seqs) != 1)
    return int(seqs[jumps[0]]) + 1 if len(jumps) else None


def _last(batch: pa.RecordBatch) -> int:
    end = batch.column("gap_to")[-1].as_py()
    last: int = batch.column("seq")[-1].as_py() if end is None else end
    return last
