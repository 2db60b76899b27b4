"""Send records from one topic to another: requests in order, each once. A rejected record is replaced by a gap record.

`mirror` and `replay` copy ranges of topics, each in a `CopyTask`. The range is part of a plan that was saved before
(`CopyPosition`). Requests are cut at multiples of `GRID` source seqs, their idempotency keys contain the seqs that they
cover, and one follows the other: a repetition of the plan sends the same requests, and the copy has the order of the
source. Every copy has its origin in its meta. If the idempotency window of the target has passed, a restart finds from
the origins how far an interrupted run came.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from msgspec import Raw, Struct, field

from topics.client import Client
from topics.client.request import Record
from topics.errors import Code, TopicsError
from topics.model import surrogates
from topics.spark.failures import Failed, allowed
from topics.spark.options import ConnectionOptions, WriteOptions
from topics.spark.pipelines.run.report import ReportedGap
from topics.spark.sink.chunks import MAX_BYTES, MAX_RECORDS, Chunk, Sent, send
from topics.spark.source.catalog import client_for, state_of
from topics.spark.source.plan import GRID

Row = TypeVar("Row")
Stamp = TypeVar("Stamp")
LOSS = b'{"kind":"gap"}'  # meta of a record that reports a gap
SEQS_A_REQUEST = 1000  # of a delete
SMOOTH_S = 0.2  # a rate holds over intervals of this length
REFUSED = (Code.RECORD_TOO_LARGE, Code.INVALID_REQUEST)
_encode = msgspec.json.Encoder().encode


class OutgoingRow(NamedTuple):
    """A record to send, and the source seqs that it represents."""

    first: int
    last: int
    record: bytes
    lost: str | None = None  # the reason, for a record that reports a gap

    def gap(self, epoch: int, reason: str | None = None) -> ReportedGap:
        """Return the gap that the record reports, or that its refusal makes."""
        return ReportedGap(from_seq=self.first, to_seq=self.last, reason=reason or self.lost or "", epoch=epoch)


class DeliveryResult(Sent, kw_only=True):
    """The result of sending one range."""

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


GapRow = Callable[[int, int, str], OutgoingRow]  # returns the row that reports a gap: first seq, last seq, reason


def fields_of(batch: pa.RecordBatch) -> Iterator[Fields]:
    kinds, times = batch.column("kind"), batch.column("ts")
    millis = pc.cast(times, pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    plain = (batch.column(name) for name in ("node", "tag", "gap_to", "reason"))
    texts = (column.to_pylist() for column in (kinds, batch.column("seq"), millis, *plain))
    raw = (batch.column(name).cast(pa.binary()).to_pylist() for name in ("meta", "data"))
    yield from map(Fields._make, zip(*texts, *raw, strict=True))


class Pace:
    """Limits the records and the bytes per second. Unused time is not saved up, so there is no burst after a pause."""

    def __init__(self, rate: float = math.inf, bytes_per_second: float = math.inf) -> None:
        self._rate, self._bytes_per_second = rate, bytes_per_second
        self._free_at = 0.0

    def pause_s(self, count: int, size_bytes: int, now_s: float) -> float:
        """Return how long to wait before sending `count` records."""
        begin = max(self._free_at, now_s)
        self._free_at = begin + max(count / self._rate, size_bytes / self._bytes_per_second)
        return begin - now_s


class RangeDelivery(Struct, kw_only=True):
    """Sends the requests of one range to one topic, and counts the results."""

    client: Client
    options: WriteOptions
    topic: str
    epoch: int
    present: int  # the target has every record up to this source seq already
    gap_row: GapRow
    outcome: DeliveryResult
    pace: Pace = field(default_factory=Pace)

    def send(self, key: str, rows: list[OutgoingRow]) -> None:
        """Send one request without the rows that the target has, under another key if there are some.

        A record that the target rejects must not block later ones: a gap record replaces it.
        """
        outcome = self.outcome
        outcome.gaps += [row.gap(self.epoch) for row in rows if row.lost is not None]
        missing = [row for row in rows if row.last > self.present]
        outcome.records += len(rows) - len(missing)
        outcome.repeated += len(rows) - len(missing)
        if not missing:
            return
        size_bytes = sum(len(row.record) for row in missing)
        time.sleep(self.pace.pause_s(len(missing), size_bytes, time.monotonic()))
        key = key if len(missing) == len(rows) else f"{key}/after-{self.present}"

        def put(part: list[OutgoingRow], suffix: str) -> None:
            self.put(key + suffix, [row.record for row in part])

        for row, suffix, reason in refused_rows(missing, put):
            self.put(f"{key}{suffix}/refused", [self.gap_row(row.first, row.last, reason).record])
            self.outcome.gaps.append(row.gap(self.epoch, reason))

    def put(self, key: str, records: list[bytes]) -> None:
        written = Sent()
        try:
            send(self.client, self.options, [Chunk(self.topic, key, records)], written)
        except TopicsError as error:
            if error.code is not Code.TOPIC_FULL:
                raise
            raise Failed(  # a task keeps only its message, so the remedy is in it
                f"topic {self.topic} on {self.client.url} is full and rejects new records (discard: reject): "
                "raise its cap_records or cap_bytes, or let it evict its oldest records (discard: old)"
            ) from error
        self.outcome.add(written)


# --- copies of ranges


class CopyPosition(Struct, frozen=True, kw_only=True):
    """How far a topic was copied. A killed run may have written the seqs after `done` up to `plan`."""

    epoch: int  # of the source
    done: int = 0
    plan: int = 0
    target_epoch: int = 0  # epoch of the target topic; 0 if it does not exist
    target_seq: int = 0  # its head when the plan was saved, and when it was done


Result = TypeVar("Result", bound=DeliveryResult)


class CopyTask(Struct, Generic[Result], kw_only=True):
    """Copies the seqs [start, stop) of one epoch of a topic to the topic `into`."""

    meta_key: ClassVar[str]  # of the origin

    target: ConnectionOptions
    topic: str
    into: str
    epoch: int
    start: int
    stop: int
    present: int = 0  # the target has every record up to this source seq already
    config: dict[str, Any] = {}
    rate: float = math.inf  # most records per second
    bytes_per_second: float = math.inf  # most that is sent

    @property
    def run(self) -> str:
        """Return the start of every key."""
        raise NotImplementedError

    def origin(self, seq: int, **more: Any) -> Any:
        """Return the origin of a record that was not copied before, or of a gap."""
        raise NotImplementedError

    def row(self, one: Fields, outcome: Result) -> OutgoingRow | None:
        """Return the copy of a record, or None if it is not copied."""
        raise NotImplementedError

    def seq_of(self, meta: bytes) -> int:
        """Return the last source seq of a record in the target, or 0 if it is not of this copy."""
        raise NotImplementedError

    def rows(self, batches: Iterable[pa.RecordBatch], outcome: Result) -> Iterator[OutgoingRow]:
        for one in (one for batch in batches for one in fields_of(batch)):
            is_gap = one.kind == "gap"
            row = self.gap_row(one.seq, one.to, one.reason) if is_gap else self.row(one, outcome)
            if row is not None:
                yield row

    def gap_row(self, first: int, last: int, reason: str) -> OutgoingRow:
        return gap_row(self.topic, first, last, reason, self.meta_key, self.origin(first, to=last))

    def key(self, first: int, last: int, rows: list[OutgoingRow]) -> str:
        """Return the key of a request. It contains the gaps, so that a repetition with other gaps is written too."""
        losses = [(row.first, row.last) for row in rows if row.last > row.first]
        suffix = f"/{xxhash.xxh3_64_hexdigest(str(losses).encode())}" if losses else ""
        return f"{self.run}/{first}-{last}{suffix}"

    def send(
        self, rows: Iterable[OutgoingRow], outcome: Result, *, before: Mapping[str, bytes] | None = None
    ) -> Result:
        """Send the rows, after the records `before` by their keys."""
        # At a low rate requests are small, so that they are evenly spread. One has at least one record.
        most, most_bytes = min(self.rate * SMOOTH_S, MAX_RECORDS), min(self.bytes_per_second * SMOOTH_S, MAX_BYTES)
        with client_for(self.target) as client:
            sending = RangeDelivery(
                client=client, options=WriteOptions(connection=self.target, config=self.config), topic=self.into,
                epoch=self.epoch, present=self.present, gap_row=self.gap_row, outcome=outcome,
                pace=Pace(self.rate, self.bytes_per_second),
            )  # fmt: skip
            for key, record in (before or {}).items():
                sending.put(key, [record])
            for first, last, held in cut(rows, self.start, self.stop, most=most, most_bytes=most_bytes):
                sending.send(self.key(first, last, held), held)
        return outcome

    def rehearse(self, rows: Iterable[OutgoingRow], outcome: Result) -> Result:
        """Add the rows to the result, and send nothing."""
        for row in rows:
            outcome.records += 1
            if row.lost is not None:
                outcome.gaps.append(row.gap(self.epoch))
        return outcome

    def shown(self, client: Client, *, from_seq: int) -> int:
        """Return the last source seq of this copy in the target after `from_seq`, or 0 if there is none."""
        return max(map(self.seq_of, metas(client, self.into, from_seq=from_seq)), default=0)


def cut(
    rows: Iterable[OutgoingRow], start: int, stop: int, *, most: float = MAX_RECORDS, most_bytes: float = MAX_BYTES
) -> Iterator[tuple[int, int, list[OutgoingRow]]]:
    """Cut rows of [start, stop), sorted by seq, into requests: first and last covered seq, and the rows.

    Cuts are at multiples of `GRID` and where a request becomes too large. A request covers the seqs after the previous
    one, so that its key does not depend on records that are deleted meanwhile.
    """
    held: list[OutgoingRow] = []
    size_bytes, covered, last = 0, start, start - 1
    for row in rows:
        if not last < row.first <= row.last < stop:
            raise Failed(f"seq {row.first} was read after seq {last}, in a range that ends at seq {stop - 1}")
        last = row.last
        cell = row.first // GRID * GRID
        is_full = len(held) + 1 > most or size_bytes + len(row.record) > most_bytes
        if held and (is_full or held[0].first < cell):
            begin = cell if held[0].first < cell else row.first
            yield covered, begin - 1, held
            held, size_bytes, covered = [], 0, begin
        held.append(row)
        size_bytes += len(row.record)
    if held:
        yield covered, min(stop, (held[-1].first // GRID + 1) * GRID) - 1, held


def refused_rows(
    rows: list[Row], put: Callable[[list[Row], str], None], suffix: str = ""
) -> Iterator[tuple[Row, str, str]]:
    """Write rows with `put`; if the server rejects them, in halves. Yield each row that is rejected alone, and why.

    The suffix tells the parts apart, and is the same in a repetition.
    """
    try:
        put(rows, suffix)
    except TopicsError as error:
        if error.code not in REFUSED:
            raise
        middle = len(rows) // 2
        if middle:
            yield from refused_rows(rows[:middle], put, f"{suffix}.0")
            yield from refused_rows(rows[middle:], put, f"{suffix}.1")
        else:
            yield rows[0], suffix, f"refused: {error.message}"


# --- records and their meta


def record_of(data: bytes, node: str | None, tag: str | None, meta: bytes) -> bytes:
    fields = {"data": Raw(data), "node": node, "tag": tag, "meta": Raw(meta)}
    return _encode({name: value for name, value in fields.items() if value is not None})


def stamped(meta: bytes | None, key: str, stamp: Any) -> bytes:
    """Return the meta with the stamp under `key`, replacing an older one. Other keys keep their text and order."""
    mark = f'"{key}"'.encode()
    text = b"%b:%b" % (mark, _encode(stamp))
    if meta is None:
        return b"{%b}" % text
    if mark in meta:
        rest = {name: value for name, value in surrogates.members(meta).items() if name != key}
        return surrogates.object_of({**rest, key: stamp})
    inside = meta.strip()[1:-1].strip()
    return b"{%b,%b}" % (inside, text) if inside else b"{%b}" % text


def gap_row(
    topic: str, first: int, last: int, reason: str, key: str, stamp: Any, *, tag: str | None = None
) -> OutgoingRow:
    """Return the record that reports a gap."""
    data = _encode({"topic": topic, "gap_from": first, "gap_to": last, "reason": reason})
    return OutgoingRow(first, last, record_of(data, None, tag, stamped(LOSS, key, stamp)), reason)


def stamp_in(meta: bytes | None, key: str, kind: type[Stamp]) -> Stamp | None:
    """Return the stamp under `key`, or None if there is no valid one."""
    if meta is None or f'"{key}"'.encode() not in meta:
        return None
    try:
        found = surrogates.members(meta).get(key)
        return None if found is None else msgspec.json.decode(found, type=kind)
    except msgspec.MsgspecError:
        return None


# --- the state of the target


def target_of(client: Client, topic: str) -> tuple[int, int]:
    """Return epoch and head of a topic, or zeros if it does not exist."""
    state = state_of(client, topic)
    return (0, 0) if state is None else (state.epoch, state.head_seq)


def delete_seqs(client: Client, topic: str, seqs: Sequence[int], *, epoch: int) -> int:
    """Delete records by seq, many in one request. Return the number of records that were there."""
    return sum(
        client.delete(topic, seqs=seqs[at : at + SEQS_A_REQUEST], epoch=epoch).deleted
        for at in range(0, len(seqs), SEQS_A_REQUEST)
    )


def metas(client: Client, topic: str, *, from_seq: int) -> Iterator[bytes]:
    """Yield the meta of each record after `from_seq` that has one; nothing if the topic does not exist."""
    with allowed(Code.TOPIC_NOT_FOUND):
        for item in client.read(topic, from_seq=from_seq):
            if isinstance(item, Record) and item.meta:
                yield bytes(item.meta)
