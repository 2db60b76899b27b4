"""Lake and live topic as one history: what a server lost, or gave up because the lake has it, comes from the lake.

The server goes first. Where it has a record, that one counts, and where somebody deleted one that it would still have,
the delete counts. The lake is asked for two kinds of ranges only: what the server tells as lost, and what it passes
over in silence because `--trim` took it away. Each seq comes once, in order, and what neither has is a gap.

The manifest is looked at anew for every such range, always after the server's answer: an archiver notes what it will
trim before it trims, so whoever has seen the effect of a trim finds the note. It tells the server as well. Where that
knows of more than this lake, then the lake is an older copy, another one, or has lost its last versions: what it has
comes all the same, and what it lacks is a gap, because nobody can tell any more what was trimmed from what was deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from topics.lake import ArchivedEpoch, Gap, Lake
from topics.model.records import TagMatch

Piece: TypeAlias = pa.RecordBatch | Gap

OTHER_LAKE = "other_lake"  # of a gap: archived, as the server was told, but not in this lake


class RecordFilter(Struct, frozen=True, kw_only=True):
    """What a reader asked a server to leave out: the lake leaves out the same."""

    tag: TagMatch | None = None
    nodes: tuple[str, ...] = ()  # whose records are left out

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.tag is not None:
            tags, text = batch.column("tag"), self.tag.text
            hit = pc.equal(tags, text) if self.tag.op == "Eq" else pc.starts_with(tags, text)
            batch = batch.filter(pc.fill_null(hit, False))
        if self.nodes:
            theirs = pc.is_in(batch.column("node"), value_set=pa.array(self.nodes, pa.string()))
            batch = batch.filter(pc.invert(theirs))
        return batch


EVERYTHING = RecordFilter()


class Healer:
    """Fills the holes in one life of one topic."""

    def __init__(
        self,
        lake: Lake,
        topic: str,
        epoch: int,
        wanted: RecordFilter = EVERYTHING,
        *,
        trimmed_to: Callable[[], int] = lambda: 0,
    ) -> None:
        """`trimmed_to` asks the server up to where it was told that this life is trimmed."""
        self._lake = lake
        self._topic, self._epoch = topic, epoch
        self._wanted = wanted
        self._trimmed_to = trimmed_to

    def archived(self) -> ArchivedEpoch | None:
        """What the lake has of it now; None if it was never archived."""
        return self._lake.snapshot().archived(self._topic, self._epoch)

    def lost(self, first: int, last: int, reason: str) -> Iterator[Piece]:
        """In place of seqs that the server lost: the lake's records, and gaps where it has none either."""
        if first > last:
            return
        archived = self.archived()
        if archived is None:
            yield Gap(first, last, reason, 0)
            return
        at = first
        for low, high in [*archived.uncovered(first, last), (last + 1, last)]:
            if at < low:
                yield from self._history(at, low - 1)
            if low <= high:
                yield Gap(low, high, reason, 0)
            at = high + 1

    def passed_over(self, first: int, last: int) -> Iterator[Piece]:
        """In place of seqs that the server skipped without a word: only what was trimmed comes back."""
        if first > last:
            return
        archived = self.archived()
        trimmed_to = 0 if archived is None else archived.trimmed_to
        if trimmed_to < last:
            trimmed_to = max(trimmed_to, self._trimmed_to())
        yield from self.lost(first, min(last, trimmed_to), OTHER_LAKE)

    def _history(self, first: int, last: int) -> Iterator[Piece]:
        for piece in self._lake.history(self._topic, self._epoch, first=first, last=last):
            if isinstance(piece, Gap):
                yield piece
            elif (kept := self._wanted.of(piece)).num_rows:
                yield kept


def newest_epoch(lake: Lake, topic: str) -> ArchivedEpoch | None:
    """The last life of a topic that the lake knows of."""
    epochs = lake.snapshot().epochs(topic)
    return epochs[-1] if epochs else None


def last_seq(archived: ArchivedEpoch) -> int:
    """The last seq that the lake knows anything of."""
    return max([archived.archived_to, *(high for _, high in archived.covered)])


def first_record(archived: ArchivedEpoch | None) -> int | None:
    """The lowest seq that is in a file."""
    return None if archived is None or not archived.files else archived.files[0].first


def first_at(lake: Lake, archived: ArchivedEpoch, ts_ms: int) -> int:
    """Where somebody begins who wants everything from a time on: right behind the last archived record that is older.

    Not at the first one that is newer: between the two may lie a gap whose time nobody knows any more, which is to be
    told and not jumped.
    """
    begin = max((file.last + 1 for file in archived.files if file.max_ts < ts_ms), default=1)
    newer = next((file for file in archived.files if file.max_ts >= ts_ms), None)
    if newer is None or newer.min_ts >= ts_ms:
        return begin
    bound = pa.scalar(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ts_ms), pa.timestamp("us", tz="UTC"))
    for batch in lake.read(archived.topic, archived.epoch, first=newer.first, last=newer.last, columns=["seq", "ts"]):
        older = batch.filter(pc.less(batch.column("ts"), bound))
        if older.num_rows:
            begin = older.column("seq")[older.num_rows - 1].as_py() + 1
        if older.num_rows < batch.num_rows:
            break
    return begin
