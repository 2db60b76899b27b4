"""Read a live topic and its lake as one history: records that the server lost or trimmed come from the lake.

The server has precedence. If it has a record, that record counts; if a record was deleted on request, the delete
counts. The lake fills only two kinds of ranges: those that the server reports as lost, and those that the server skips
silently because `--trim` removed them. Each seq is read once, in order. A range that neither has is a gap.

A plan may carry what it has read of the table. Where that does not have the whole range, the table is read again,
always after the server's answer. An archiver records a trim in the table before it trims, so a reader that sees the
effect of a trim also finds it in the table. The archiver reports
the trim to the server as well. If the server knows of a longer trim than this lake, the lake is an older copy, another
lake, or has lost its last versions. Then its records are still read, and the rest is a gap, because trimmed and deleted
records can no longer be distinguished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from topics.lake import ArchivedEpoch, Gap, Lake
from topics.lake.layout import UTC_TIMESTAMP
from topics.lake.rewrite import matching
from topics.model.records import TagMatch

Piece: TypeAlias = pa.RecordBatch | Gap

OTHER_LAKE = "other_lake"  # reason of a gap: archived according to the server, but not in this lake


class Healer(Struct, kw_only=True):
    """Fills the gaps in one epoch of a topic from a lake. Filters archived records as the server filters live ones."""

    lake: Lake
    topic: str
    epoch: int
    match: TagMatch | None = None
    nodes: tuple[str, ...] = ()  # whose records are left out
    trimmed_to: Callable[[], int] = lambda: 0  # asks the server for the last trimmed seq of this epoch
    planned: ArchivedEpoch | None = None  # an earlier state of the epoch
    typed: tuple[str, ...] = ()  # typed columns that archived records have, if their files have them

    def archived(self) -> ArchivedEpoch | None:
        """Return the archived part of the epoch as of now, or None if it was never archived."""
        return self.lake.snapshot().archived(self.topic, self.epoch)

    def lost(self, first: int, last: int, reason: str) -> Iterator[Piece]:
        """Yield the archived records of a range that the server lost, and gaps for the rest."""
        if first > last:
            return
        archived = self.planned
        if archived is None or archived.archived_to < last:
            archived = self.archived()
        if archived is None:
            yield Gap(first, last, reason, 0)
            return
        end = min(archived.archived_to, last)
        if first <= end:
            for piece in self.lake.history(archived, first=first, last=end, typed=self.typed):
                if isinstance(piece, Gap):
                    yield piece
                elif (kept := self._filtered(piece)).num_rows:
                    yield kept
        if end < last:
            yield Gap(max(first, end + 1), last, reason, 0)

    def skipped(self, first: int, last: int) -> Iterator[Piece]:
        """Yield the archived records of a range that the server skipped silently, up to the last trimmed seq."""
        if first > last:
            return
        trimmed_to = 0 if self.planned is None else self.planned.trimmed_to
        if trimmed_to < last and (archived := self.archived()) is not None:
            trimmed_to = archived.trimmed_to
        if trimmed_to < last:
            trimmed_to = max(trimmed_to, self.trimmed_to())
        yield from self.lost(first, min(last, trimmed_to), OTHER_LAKE)

    def _filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.match is not None:
            batch = batch.filter(matching(batch, self.match))
        if self.nodes:
            theirs = pc.is_in(batch.column("node"), value_set=pa.array(self.nodes, pa.string()))
            batch = batch.filter(pc.invert(theirs))
        return batch


def first_at(lake: Lake, archived: ArchivedEpoch, ts_ms: int) -> int:
    """Return the seq at which a read from a time on begins: right after the last archived record that is older.

    This may be before the first newer record: a gap between the two has no known time, so it must be reported.
    """
    begin = max((file.last + 1 for file in archived.files if file.max_ts < ts_ms), default=1)
    newer = next((file for file in archived.files if file.max_ts >= ts_ms), None)
    if newer is None or newer.min_ts >= ts_ms:
        return begin
    bound = pa.scalar(ts_ms * 1000, UTC_TIMESTAMP)
    for batch in lake.read(archived.topic, archived.epoch, first=newer.first, last=newer.last, columns=["seq", "ts"]):
        older = batch.filter(pc.less(batch.column("ts"), bound))
        if older.num_rows:
            begin = older.column("seq")[older.num_rows - 1].as_py() + 1
        if older.num_rows < batch.num_rows:
            break
    return begin
