"""`Client.read` with a lake: records that the server no longer has come from the lake.

Needs pyarrow, so it is imported at the first use. `topics.lake.heal` defines which of the two answers for a seq.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Raw, Struct

from topics.client import request
from topics.client.request import Diff, Record, State, Tombstone
from topics.errors import Code, TopicsError
from topics.lake import ArchivedEpoch, Gap, Lake, heal
from topics.lake.heal import Healer, RecordFilter
from topics.model.records import parse_match

DROPPED = "dropped"  # reason of a gap, as in the Spark source: the topic was deleted from the server


class HealedTopic(Struct, frozen=True):
    """A topic on a server and in a lake. `ask` is `Client.diff`; `look` returns its state, or None if deleted."""

    topic: str
    lake: Lake
    ask: Callable[..., Diff]
    look: Callable[[], State | None]

    def trimmed_to(self, epoch: int) -> int:
        """Return the last trimmed seq that the server knows for this epoch."""
        state = self.look()
        return 0 if state is None or state.epoch != epoch else state.trimmed_seq or 0

    def healer(self, epoch: int, wanted: RecordFilter) -> Healer:
        return Healer(self.lake, self.topic, epoch, wanted, trimmed_to=lambda: self.trimmed_to(epoch))


def read(source: HealedTopic, *, from_seq: int, last: int, fields: Mapping[str, Any]) -> Iterator[Record | Tombstone]:
    """Yield records and gaps after `from_seq` up to the head, with archived records from the lake.

    No page is requested that begins after `last`, but the last page may go beyond it.
    """
    source.lake.snapshot()  # raise for a missing lake now, and not at the first gap
    asked = dict(fields)
    wanted = _wanted(source, asked)
    from_ts = asked.pop("from_ts", None)
    if from_ts is not None:
        from_seq = max(from_seq, _before(source, from_ts, asked))
    while from_seq < last:
        try:
            page = source.ask(source.topic, from_seq=from_seq, **asked)
        except TopicsError as error:
            if error.code is not Code.TOPIC_NOT_FOUND:
                raise
            yield from _only_archived(source, asked, from_seq, wanted, error)
            return
        yield from _page(page, from_seq, source.healer(page.epoch, wanted), _form(asked, page))
        from_seq = page.next_from_seq
        asked["epoch"] = page.epoch
        if page.caught_up:
            return


def _page(page: Diff, from_seq: int, healer: Healer, form: RecordForm) -> Iterator[Record | Tombstone]:
    at = from_seq + 1
    lost = page.tombstone
    if lost is not None and lost.reason == "recreated":
        yield lost
        at = 1
    elif lost is not None:
        yield from form.items(healer.skipped(at, lost.gap_from - 1))
        yield from form.items(healer.lost(lost.gap_from, lost.gap_to, lost.reason))
        at = lost.gap_to + 1
    # A trim deletes everything up to a seq. So a seq that is missing after a live record was deleted on request.
    first = page.records[0].seq if page.records else page.next_from_seq + 1
    yield from form.items(healer.skipped(at, min(first, page.earliest_seq) - 1))
    yield from page.records


def _only_archived(
    source: HealedTopic, asked: Mapping[str, Any], from_seq: int, wanted: RecordFilter, missing: TopicsError
) -> Iterator[Record | Tombstone]:
    """Yield the archived records of a topic that was deleted from the server. Raise `missing` if there are none."""
    epoch = asked.get("epoch")
    archived = heal.newest_epoch(source.lake, source.topic)
    if epoch is not None:
        archived = source.lake.snapshot().archived(source.topic, epoch)
    if archived is None:
        raise missing
    healer = Healer(source.lake, source.topic, archived.epoch, wanted)
    yield from _form(asked, archived).items(healer.lost(from_seq + 1, archived.archived_to, DROPPED))


def _before(source: HealedTopic, from_ts: int, asked: Mapping[str, Any]) -> int:
    """Return the cursor before the first record from this time on, in the lake or on the server."""
    lake = source.lake
    try:
        page = source.ask(source.topic, from_seq=0, from_ts=from_ts, **{**asked, "limit": 1, "wait_ms": 0})
    except TopicsError as error:
        if error.code is not Code.TOPIC_NOT_FOUND:
            raise
        archived = heal.newest_epoch(lake, source.topic)
        return 0 if archived is None else heal.first_at(lake, archived, from_ts) - 1
    floor = 0 if page.tombstone is None else page.tombstone.gap_to
    floor = max(floor, source.trimmed_to(page.epoch))
    archived = lake.snapshot().archived(source.topic, page.epoch)
    begin = 1
    if archived is not None:
        begin = heal.first_at(lake, archived, from_ts)
        floor = max(floor, archived.trimmed_to)
    if begin <= floor:
        return begin - 1
    return page.records[0].seq - 1 if page.records else page.next_from_seq


def _wanted(source: HealedTopic, asked: Mapping[str, Any]) -> RecordFilter:
    given = asked.get("node")
    nodes = (given,) if isinstance(given, str) else tuple(given or ())
    if nodes and (state := source.look()) is not None and not state.config.dedupe_node:
        nodes = ()
    match = None if asked.get("filter") is None else parse_match(_listed(asked["filter"]), field="filter")
    return RecordFilter(tag=match, nodes=nodes)


def _listed(match: Any) -> Any:
    return list(match) if isinstance(match, tuple) else match


def _form(asked: Mapping[str, Any], known: Diff | ArchivedEpoch) -> RecordForm:
    if isinstance(known, ArchivedEpoch):
        head = known.archived_to
        ends = (known.earliest, head, known.epoch)
    else:
        ends = (known.earliest_seq, known.head_seq, known.epoch)
    return RecordForm(bool(asked.get("include_tags")), asked.get("include_meta") is not False, *ends)


class RecordForm(Struct, frozen=True):
    """The requested parts of a record, and the state of the topic for tombstones."""

    tags: bool
    meta: bool
    earliest_seq: int
    head_seq: int
    epoch: int

    def items(self, pieces: Iterator[pa.RecordBatch | Gap]) -> Iterator[Record | Tombstone]:
        """Yield archived rows and gaps as the records and tombstones that a server would return."""
        for piece in pieces:
            if isinstance(piece, Gap):
                missed = piece.last - piece.first + 1
                yield Tombstone(
                    piece.first, piece.last, piece.reason, missed, self.earliest_seq, self.head_seq, self.epoch
                )
            else:
                yield from self._records(piece)

    def _records(self, batch: pa.RecordBatch) -> Iterator[Record]:
        columns = {name: batch.column(name) for name in ("seq", "ts", "data", "node", "tag", "meta")}
        columns["ts"] = columns["ts"].cast(pa.int64())  # microseconds
        rows = zip(*(column.to_pylist() for column in columns.values()), strict=True)
        for seq, ts_us, data, node, tag, meta in rows:
            yield request.Record(
                seq, ts_us // 1000, Raw(data.encode()), node, tag if self.tags else None,
                Raw(meta.encode()) if self.meta and meta is not None else msgspec.UNSET,
            )  # fmt: skip
