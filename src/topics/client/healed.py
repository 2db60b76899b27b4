"""`Client.read` with a lake: what the server has no more comes from there. Needs pyarrow, so it is imported when asked.

See `topics.lake.heal` for which of the two answers for a seq.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Raw

from topics.client import request
from topics.client.request import Diff, Record, Tombstone
from topics.errors import Code, TopicsError
from topics.lake import Gap, Lake, heal
from topics.lake.heal import Healer, Wanted
from topics.model.records import parse_match

Ask = Callable[..., Diff]
DROPPED = "dropped"  # the word of the Spark source for a topic that is gone from the server


def read(
    ask: Ask, lake: Lake, topic: str, *, from_seq: int, dedupes: Callable[[], bool], fields: Mapping[str, Any]
) -> Iterator[Record | Tombstone]:
    """Everything behind the cursor up to the head. `ask` is `Client.diff`; `dedupes` whether the topic heeds `node`."""
    lake.snapshot()  # a lake that is not there is an error now, and not when the first hole is met
    asked = {"limit": 1000, **fields}
    form = Form(tags=bool(asked.get("include_tags")), meta=bool(asked.get("include_meta", True)))
    wanted = _wanted(asked, dedupes)
    from_ts = asked.pop("from_ts", None)
    if from_ts is not None:
        from_seq = max(from_seq, _before(ask, lake, topic, from_ts, asked))
    while True:
        try:
            page = ask(topic, from_seq=from_seq, **asked)
        except TopicsError as error:
            if error.code is not Code.TOPIC_NOT_FOUND:
                raise
            yield from form.tell(_only_archived(lake, topic, asked.get("epoch"), from_seq, wanted, error))
            return
        yield from _page(page, from_seq, Healer(lake, topic, page.epoch, wanted), form)
        from_seq = page.next_from_seq
        asked["epoch"] = page.epoch
        if page.caught_up:
            return


def _page(page: Diff, from_seq: int, healer: Healer, form: Form) -> Iterator[Record | Tombstone]:
    at = from_seq + 1
    lost = page.tombstone
    if lost is not None and lost.reason == "recreated":
        yield lost
        at = 1
    elif lost is not None:
        yield from form.tell(healer.passed_over(at, lost.gap_from - 1))
        yield from form.tell(healer.lost(lost.gap_from, lost.gap_to, lost.reason))
        at = lost.gap_to + 1
    life = healer.life()  # after the answer: whatever it does not hold because of a trim is noted by now
    trimmed_to = 0 if life is None else life.trimmed_to
    for record in page.records:
        if at < record.seq and at <= trimmed_to:
            yield from form.tell(healer.passed_over(at, record.seq - 1))
        yield record
        at = record.seq + 1
    yield from form.tell(healer.passed_over(at, page.next_from_seq))


def _only_archived(
    lake: Lake, topic: str, epoch: int | None, from_seq: int, wanted: Wanted, missing: TopicsError
) -> Iterator[pa.RecordBatch | Gap]:
    """A topic that is gone from the server, as far as it was archived."""
    life = heal.newest_life(lake, topic) if epoch is None else lake.snapshot().life(topic, epoch)
    if life is None:
        raise missing
    yield from Healer(lake, topic, life.epoch, wanted).lost(from_seq + 1, heal.last_seq(life), DROPPED)


def _before(ask: Ask, lake: Lake, topic: str, from_ts: int, asked: Mapping[str, Any]) -> int:
    """The cursor behind which everything from this time on lies, in the lake or on the server."""
    try:
        page = ask(topic, from_seq=0, from_ts=from_ts, **{**asked, "limit": 1, "wait_ms": 0})
    except TopicsError as error:
        if error.code is not Code.TOPIC_NOT_FOUND:
            raise
        life = heal.newest_life(lake, topic)
        return 0 if life is None else heal.first_at(lake, life, from_ts) - 1
    life = lake.snapshot().life(topic, page.epoch)
    floor = 0 if page.tombstone is None else page.tombstone.gap_to
    begin = 1
    if life is not None:
        begin = heal.first_at(lake, life, from_ts)
        floor = max(floor, life.trimmed_to)
    if begin <= floor:
        return begin - 1
    return page.records[0].seq - 1 if page.records else page.next_from_seq


def _wanted(asked: Mapping[str, Any], dedupes: Callable[[], bool]) -> Wanted:
    given = asked.get("node")
    nodes = (given,) if isinstance(given, str) else tuple(given or ())
    match = None if asked.get("filter") is None else parse_match(_listed(asked["filter"]), field="filter")
    return Wanted(tag=match, nodes=nodes if nodes and dedupes() else ())


def _listed(match: Any) -> Any:
    return list(match) if isinstance(match, tuple) else match


class Form(msgspec.Struct, frozen=True):
    """Which parts of a record the reader asked for."""

    tags: bool
    meta: bool

    def tell(self, pieces: Iterator[pa.RecordBatch | Gap]) -> Iterator[Record | Tombstone]:
        """Archived rows and gaps as a server would have told them."""
        for piece in pieces:
            if isinstance(piece, Gap):
                missed = piece.last - piece.first + 1
                yield Tombstone(piece.first, piece.last, piece.reason, missed)
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
