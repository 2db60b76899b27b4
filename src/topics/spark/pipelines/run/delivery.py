"""Records on their way from one topic to another: requests in order, each once, and what is refused is told of.

What `mirror` and `replay` have in common. Both put where a record comes from into its meta; that is also how a restart
finds out how far an interrupted run came, where the target has forgotten the keys of its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from topics.client import Client
from topics.client.request import Record
from topics.errors import Code, TopicsError
from topics.model import surrogates
from topics.spark.pipelines.run.failures import Failed
from topics.spark.pipelines.run.report import ReportedGap
from topics.spark.sink.chunks import Chunk
from topics.spark.sink.write_options import WriteOptions
from topics.spark.sink.writers import TaskWrites, send

REFUSED = (Code.RECORD_TOO_LARGE, Code.INVALID_REQUEST)
_encode = msgspec.json.Encoder().encode


class OutgoingRow(NamedTuple):
    """A record to send, and the source seqs that it stands for."""

    first: int
    last: int
    record: bytes
    lost: str | None = None  # the reason, of one that tells of a loss


class DeliveryResult(Struct, kw_only=True):
    """What became of a range."""

    records: int = 0
    repeated: int = 0  # of these, how many were there already
    gaps: list[ReportedGap] = field(default_factory=list)


class Fields(NamedTuple):
    """One row of the source: a record, or a gap."""

    kind: str
    seq: int
    ts: int  # milliseconds
    node: str | None
    tag: str | None
    to: int
    reason: str
    meta: bytes | None
    data: bytes


Tell = Callable[[int, int, str], OutgoingRow]  # the row that tells of a loss: first seq, last seq, reason


def fields_of(batch: pa.RecordBatch) -> Iterator[Fields]:
    kinds, times = batch.column("kind"), batch.column("ts")
    millis = pc.cast(times, pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    plain = (batch.column(name) for name in ("node", "tag", "gap_to", "reason"))
    texts = (column.to_pylist() for column in (kinds, batch.column("seq"), millis, *plain))
    raw = (batch.column(name).cast(pa.binary()).to_pylist() for name in ("meta", "data"))
    yield from map(Fields._make, zip(*texts, *raw, strict=True))


class RangeDelivery:
    """Sends requests of one range to one topic, and counts what became of them."""

    def __init__(
        self,
        client: Client,
        options: WriteOptions,
        topic: str,
        *,
        epoch: int,
        present: int,
        tell: Tell,
        into: DeliveryResult,
    ) -> None:
        self._client, self._options, self._topic = client, options, topic
        self._epoch = epoch
        self._present = present  # up to here the target has everything, as its own records show
        self._tell = tell
        self._outcome = into

    def new(self, key: str, rows: list[OutgoingRow]) -> tuple[str, list[OutgoingRow]]:
        """Without what the target is known to have; a request is taken whole or not at all, so it hardly parts one."""
        outcome = self._outcome
        outcome.gaps += [self._gap(row, row.lost) for row in rows if row.lost is not None]
        left = [row for row in rows if row.last > self._present]
        outcome.records += len(rows) - len(left)
        outcome.repeated += len(rows) - len(left)
        return (key if len(left) == len(rows) else f"{key}/after-{self._present}"), left

    def send(self, key: str, rows: list[OutgoingRow]) -> None:
        """One request. A record that the target refuses must not hold up all behind it: one tells of it instead."""
        try:
            self.put(key, [row.record for row in rows])
        except TopicsError as error:
            if error.code not in REFUSED:
                raise
            middle = len(rows) // 2
            if middle:
                self.send(f"{key}.0", rows[:middle])
                self.send(f"{key}.1", rows[middle:])
                return
            [row] = rows
            reason = f"refused: {error.message}"
            self.put(f"{key}/refused", [self._tell(row.first, row.last, reason).record])
            self._outcome.gaps.append(self._gap(row, reason))

    def put(self, key: str, records: list[bytes]) -> None:
        written = TaskWrites()
        try:
            send(self._client, self._options, [Chunk(self._topic, key, records)], written)
        except TopicsError as error:
            if error.code is not Code.TOPIC_FULL:
                raise
            raise self._full() from error
        self._outcome.records += written.records
        self._outcome.repeated += written.repeated

    def _full(self) -> Failed:
        """Nobody made room for as long as a request may take. Tasks tell only their message, so all is in it."""
        return Failed(
            f"topic {self._topic} on {self._client.url} is full and refuses what does not fit (discard: reject): "
            "raise its cap_records or cap_bytes, or let it evict its oldest records (discard: old)"
        )

    def _gap(self, row: OutgoingRow, reason: str) -> ReportedGap:
        return ReportedGap(from_seq=row.first, to_seq=row.last, reason=reason, epoch=self._epoch)


# --- records and their meta


def record_of(data: bytes, node: str | None, tag: str | None, meta: bytes) -> bytes:
    parts = [b'{"data":', data]
    if node is not None:
        parts += [b',"node":', _encode(node)]
    if tag is not None:
        parts += [b',"tag":', _encode(tag)]
    return b"".join([*parts, b',"meta":', meta, b"}"])


def stamped(meta: bytes | None, key: str, stamp: Any) -> bytes:
    """The meta with this stamp in it, in place of an older one. Its other keys keep their text and order."""
    mark = f'"{key}"'.encode()
    text = b"%b:%b" % (mark, _encode(stamp))
    if meta is None:
        return b"{%b}" % text
    if mark in meta:
        rest = {name: value for name, value in surrogates.members(meta).items() if name != key}
        return surrogates.object_of({**rest, key: stamp})
    inside = meta.strip()[1:-1].strip()
    return b"{%b,%b}" % (inside, text) if inside else b"{%b}" % text


# --- what a target shows


def target_of(client: Client, topic: str) -> tuple[int, int]:
    """Epoch and head of a topic; zeros while it is not there."""
    try:
        state = client.topic(topic)
    except TopicsError as error:
        if error.code is Code.TOPIC_NOT_FOUND:
            return 0, 0
        raise
    return state.epoch, state.head_seq


def metas(client: Client, topic: str, *, from_seq: int) -> Iterator[bytes]:
    """Of the records behind a seq that have any; none where there is no such topic."""
    try:
        for item in client.read(topic, from_seq=from_seq):
            if isinstance(item, Record) and item.meta:
                yield bytes(item.meta)
    except TopicsError as error:
        if error.code is not Code.TOPIC_NOT_FOUND:
            raise


def last_shown(client: Client, topic: str, *, from_seq: int, seq_of: Callable[[bytes], int]) -> int:
    """How far a copy has come by what the target holds behind a seq; `seq_of` gives 0 for what is not of this copy."""
    return max(map(seq_of, metas(client, topic, from_seq=from_seq)), default=0)
