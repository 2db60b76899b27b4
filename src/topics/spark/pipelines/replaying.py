"""The rows of a replay, written to their topic: the part that an executor does.

One task writes a plan's rows, one request after the other, so that the replay has the order of its source. Requests are
cut at multiples of `GRID` source seqs and have the seqs that they cover in their idempotency key; the plan was written
down before, so whoever repeats it sends the same requests. Every record carries where it comes from in its meta:

    {"trace": "abc", "_topics_replay": {"id": "9f…", "topic": "orders", "epoch": 1794715944778, "seq": 17,
                                        "ts": 1794715950000, "node": "till-1"}}

All else in its meta stays as it was. That is also how a restart finds out how far an interrupted run came.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from msgspec import UNSET, Struct, UnsetType, field

from topics.client import Client
from topics.errors import TopicsError
from topics.model import surrogates
from topics.spark.catalog import client_for
from topics.spark.chunks import MAX_BYTES, MAX_RECORDS, Chunk
from topics.spark.options import Connection
from topics.spark.pipelines.copying import REFUSED
from topics.spark.pipelines.report import Gap
from topics.spark.plan import GRID
from topics.spark.sink import Written, send
from topics.spark.write_options import WriteOptions

KEY = "_topics_replay"
_MARK = f'"{KEY}"'.encode()
SMOOTH_S = 0.2  # a rate is kept over stretches of this length
OUTCOME = pa.schema([pa.field("outcome", pa.binary())])

_encode = msgspec.json.Encoder().encode


class Origin(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a replayed record was, under `_topics_replay` in its meta. `to` is the last seq of a loss."""

    id: str
    topic: str
    epoch: int
    seq: int
    ts: int | UnsetType = UNSET
    node: str | None = None
    to: int | UnsetType = UNSET

    @property
    def last(self) -> int:
        return self.seq if isinstance(self.to, UnsetType) else self.to


class Outcome(Struct, kw_only=True):
    """What became of a plan."""

    records: int = 0
    repeated: int = 0  # of these, how many were there already
    gaps: list[Gap] = field(default_factory=list)


class Row(NamedTuple):
    """A record to send, and the source seqs that it stands for."""

    first: int
    last: int
    record: bytes
    lost: str | None = None  # the reason, of one that tells of a loss


class Pace:
    """When the next records may go, at a rate. What was not used is not saved up: there is no burst after a pause."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._free_at = 0.0

    def pause_s(self, count: int, now_s: float) -> float:
        """How long to wait before so many records are sent."""
        if self._rate is None:
            return 0.0
        begin = max(self._free_at, now_s)
        self._free_at = begin + count / self._rate
        return begin - now_s


class Sender(Struct, kw_only=True):
    """What the task of one plan does with its rows, for `mapInArrow`."""

    target: Connection
    into: str
    id: str
    topic: str
    epoch: int
    start: int
    stop: int
    present: int = 0  # up to here the target has everything, as its own records show
    rate: float | None = None
    node: str | None = None  # in place of the original one

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome = self.send(row for batch in batches for row in self._rows(batch))
        yield pa.RecordBatch.from_pylist([{"outcome": _encode(outcome)}], schema=OUTCOME)

    def send(self, rows: Iterable[Row]) -> Outcome:
        outcome, written, pace = Outcome(), Written(), Pace(self.rate)
        with client_for(self.target, self.target.servers[0]) as client:
            options = WriteOptions(connection=self.target)
            for chunk, held in self.cut(rows):
                outcome.gaps += [
                    Gap(from_seq=row.first, to_seq=row.last, reason=row.lost, epoch=self.epoch)
                    for row in held
                    if row.lost is not None
                ]
                left = [row for row in held if row.last > self.present]
                outcome.records += len(held) - len(left)
                outcome.repeated += len(held) - len(left)
                if not left:
                    continue
                time.sleep(pace.pause_s(len(left), time.monotonic()))
                key = chunk.key if len(left) == len(held) else f"{chunk.key}/after-{self.present}"
                self._deliver(client, options, key, left, written, outcome)
        outcome.records += written.records
        outcome.repeated += written.repeated
        return outcome

    def _deliver(
        self, client: Client, options: WriteOptions, key: str, rows: list[Row], written: Written, outcome: Outcome
    ) -> None:
        """One request. A record that is refused, being too large with its origin, is told of and holds up nothing."""
        try:
            send(client, options, [Chunk(self.into, key, [row.record for row in rows])], written)
        except TopicsError as error:
            if error.code not in REFUSED:
                raise
            middle = len(rows) // 2
            if middle:
                self._deliver(client, options, f"{key}.0", rows[:middle], written, outcome)
                self._deliver(client, options, f"{key}.1", rows[middle:], written, outcome)
                return
            [row] = rows
            told = self._loss(row.first, row.last, f"refused: {error.message}")
            send(client, options, [Chunk(self.into, f"{key}/refused", [told.record])], written)
            outcome.gaps.append(Gap(from_seq=row.first, to_seq=row.last, reason=told.lost or "", epoch=self.epoch))

    def _loss(self, first: int, last: int, reason: str) -> Row:
        data = _encode({"topic": self.topic, "gap_from": first, "gap_to": last, "reason": reason})
        origin = Origin(id=self.id, topic=self.topic, epoch=self.epoch, seq=first, to=last)
        return Row(first, last, _record(data, None, None, stamped(b'{"kind":"gap"}', origin)), reason)

    def cut(self, rows: Iterable[Row]) -> Iterator[tuple[Chunk, list[Row]]]:
        """Rows, in the order of their seqs, as requests."""
        most = MAX_RECORDS if self.rate is None else min(max(int(self.rate * SMOOTH_S), 1), MAX_RECORDS)
        held: list[Row] = []
        size_bytes, last = 0, self.start - 1
        for row in rows:
            assert last < row.first <= row.last < self.stop, "rows come in the order of their seqs"
            last = row.last
            is_next = bool(held) and held[0].first // GRID != row.first // GRID
            if is_next or len(held) >= most or (held and size_bytes + len(row.record) > MAX_BYTES):
                yield self._chunk(held), held
                held, size_bytes = [], 0
            held.append(row)
            size_bytes += len(row.record)
        if held:
            yield self._chunk(held), held

    def _chunk(self, rows: list[Row]) -> Chunk:
        seqs = xxhash.xxh3_64_hexdigest(str([(row.first, row.last) for row in rows]).encode())
        key = f"replay/{self.id}/{self.epoch}/{rows[0].first}-{rows[-1].last}/{seqs}"
        return Chunk(self.into, key, [row.record for row in rows])

    def _rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        names = ("kind", "seq", "ts", "node", "tag", "gap_to", "reason")
        kinds, seqs, times, nodes, tags, ends, reasons = (batch.column(name) for name in names)
        millis = pc.cast(times, pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        texts = (column.to_pylist() for column in (kinds, seqs, millis, nodes, tags, ends, reasons))
        raw = (batch.column(name).cast(pa.binary()).to_pylist() for name in ("meta", "data"))
        for kind, seq, ts, node, tag, to, reason, meta, data in zip(*texts, *raw, strict=True):
            if kind == "gap":
                yield self._loss(seq, to, reason)
            else:
                origin = Origin(id=self.id, topic=self.topic, epoch=self.epoch, seq=seq, ts=ts, node=node)
                yield Row(seq, seq, _record(data, self.node or node, tag, stamped(meta, origin)))


def stamped(meta: bytes | None, origin: Origin) -> bytes:
    """The meta with this origin in it, in place of an older one. Its other keys keep their text."""
    stamp = b"%b:%b" % (_MARK, _encode(origin))
    if meta is None:
        return b"{%b}" % stamp
    if _MARK in meta:
        rest = {name: value for name, value in surrogates.members(meta).items() if name != KEY}
        return surrogates.object_of({**rest, KEY: origin})
    inside = meta.strip()[1:-1].strip()
    return b"{%b,%b}" % (inside, stamp) if inside else b"{%b}" % stamp


def origin_of(meta: bytes | None) -> Origin | None:
    """Where a record was replayed from; None for one that was not."""
    if meta is None or _MARK not in meta:
        return None
    try:
        return msgspec.json.decode(surrogates.members(meta)[KEY], type=Origin)
    except (msgspec.MsgspecError, KeyError):
        return None


def _record(data: bytes, node: str | None, tag: str | None, meta: bytes) -> bytes:
    parts = [b'{"data":', data]
    if node is not None:
        parts += [b',"node":', _encode(node)]
    if tag is not None:
        parts += [b',"tag":', _encode(tag)]
    return b"".join([*parts, b',"meta":', meta, b"}"])
