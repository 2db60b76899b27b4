"""`Client.read` with a lake: records that the server no longer has come from the lake.

Needs pyarrow, so it is imported at the first use. `topics.lake.heal` defines which of the two answers for a seq.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Raw, Struct

from topics.client.request import Diff, Record, State, Tombstone
from topics.errors import Code, TopicsError
from topics.lake import Gap, Lake, heal
from topics.lake.heal import Healer, RecordFilter
from topics.model.records import parse_match

DROPPED = "dropped"  # reason of a gap, as in the Spark source: the topic was deleted from the server
Pieces = Iterator[pa.RecordBatch | Gap]
Items = Iterator[Record | Tombstone]


class HealedRead(Struct):
    """One read of a topic on a server and in a lake."""

    topic: str
    lake: Lake
    ask: Callable[..., Diff]  # `Client.diff`
    look: Callable[[], State | None]  # returns the state of the topic, or None if it was deleted
    fields: dict[str, Any]  # of the request

    def items(self, from_seq: int, last: int) -> Items:
        """Yield records and gaps after `from_seq` up to the head, with archived records from the lake.

        No page is requested that begins after `last`, but the last page may go beyond it.
        """
        self.lake.snapshot()  # raise for a missing lake now, and not at the first gap
        wanted = self._wanted()
        from_ts = self.fields.pop("from_ts", None)
        if from_ts is not None:
            from_seq = max(from_seq, self._before(from_ts))
        while from_seq < last:
            try:
                page = self.ask(self.topic, from_seq=from_seq, **self.fields)
            except TopicsError as error:
                if error.code is not Code.TOPIC_NOT_FOUND:
                    raise
                yield from self._only_archived(from_seq, wanted, error)
                return
            yield from self._page(page, from_seq, wanted)
            from_seq = page.next_from_seq
            self.fields["epoch"] = page.epoch
            if page.caught_up:
                return

    def _page(self, page: Diff, from_seq: int, wanted: RecordFilter) -> Items:
        def items(pieces: Pieces) -> Items:
            return self._as_items(pieces, page.earliest_seq, page.head_seq, page.epoch)

        healer = Healer(self.lake, self.topic, page.epoch, wanted, trimmed_to=lambda: self._trimmed_to(page.epoch))
        at = from_seq + 1
        lost = page.tombstone
        if lost is not None and lost.reason == "recreated":
            yield lost
            at = 1
        elif lost is not None:
            yield from items(healer.skipped(at, lost.gap_from - 1))
            yield from items(healer.lost(lost.gap_from, lost.gap_to, lost.reason))
            at = lost.gap_to + 1
        # A trim deletes everything up to a seq. So a seq that is missing after a live record was deleted on request.
        first = page.records[0].seq if page.records else page.next_from_seq + 1
        yield from items(healer.skipped(at, min(first, page.earliest_seq) - 1))
        yield from page.records

    def _only_archived(self, from_seq: int, wanted: RecordFilter, missing: TopicsError) -> Items:
        """Yield the archived records of a topic that was deleted from the server. Raise `missing` if there are none."""
        epoch = self.fields.get("epoch")
        archived = heal.newest_epoch(self.lake, self.topic)
        if epoch is not None:
            archived = self.lake.snapshot().archived(self.topic, epoch)
        if archived is None:
            raise missing
        pieces = Healer(self.lake, self.topic, archived.epoch, wanted).lost(from_seq + 1, archived.archived_to, DROPPED)
        yield from self._as_items(pieces, archived.earliest, archived.archived_to, archived.epoch)

    def _before(self, from_ts: int) -> int:
        """Return the cursor before the first record from this time on, in the lake or on the server."""
        lake, first_page = self.lake, {"limit": 1, "wait_ms": 0}
        try:
            page = self.ask(self.topic, from_seq=0, from_ts=from_ts, **{**self.fields, **first_page})
        except TopicsError as error:
            if error.code is not Code.TOPIC_NOT_FOUND:
                raise
            archived = heal.newest_epoch(lake, self.topic)
            return 0 if archived is None else heal.first_at(lake, archived, from_ts) - 1
        floor = 0 if page.tombstone is None else page.tombstone.gap_to
        floor = max(floor, self._trimmed_to(page.epoch))
        archived = lake.snapshot().archived(self.topic, page.epoch)
        begin = 1
        if archived is not None:
            begin = heal.first_at(lake, archived, from_ts)
            floor = max(floor, archived.trimmed_to)
        if begin <= floor:
            return begin - 1
        return page.records[0].seq - 1 if page.records else page.next_from_seq

    def _trimmed_to(self, epoch: int) -> int:
        """Return the last trimmed seq that the server knows for this epoch."""
        state = self.look()
        return 0 if state is None or state.epoch != epoch else state.trimmed_seq or 0

    def _wanted(self) -> RecordFilter:
        node, match = self.fields.get("node"), self.fields.get("filter")
        nodes = (node,) if isinstance(node, str) else tuple(node or ())
        if nodes and (state := self.look()) is not None and not state.config.dedupe_node:
            nodes = ()
        tag = None if match is None else parse_match(list(match) if isinstance(match, tuple) else match, field="filter")
        return RecordFilter(tag=tag, nodes=nodes)

    def _as_items(self, pieces: Pieces, earliest_seq: int, head_seq: int, epoch: int) -> Items:
        """Yield archived rows and gaps as the records and tombstones that a server would return."""
        tags, metas = bool(self.fields.get("include_tags")), self.fields.get("include_meta") is not False
        for piece in pieces:
            if isinstance(piece, Gap):
                missed = piece.last - piece.first + 1
                yield Tombstone(piece.first, piece.last, piece.reason, missed, earliest_seq, head_seq, epoch)
                continue
            columns = {name: piece.column(name) for name in ("seq", "ts", "data", "node", "tag", "meta")}
            columns["ts"] = columns["ts"].cast(pa.int64())  # microseconds
            rows = zip(*(column.to_pylist() for column in columns.values()), strict=True)
            for seq, ts_us, data, node, tag, meta in rows:
                yield Record(
                    seq, ts_us // 1000, Raw(data.encode()), node, tag if tags else None,
                    Raw(meta.encode()) if metas and meta is not None else msgspec.UNSET,
                )  # fmt: skip
