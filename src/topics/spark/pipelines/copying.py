"""One topic's range from one server to another: the part of a mirror that executors do.

The range is cut into requests at multiples of `GRID` seqs of the source, and where a request grows too large. A request
has the seqs that it covers in its idempotency key, and lies in a plan that was written down before: whoever repeats the
plan sends the same requests. Requests go one after the other, so that the copy has the order of its source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from msgspec import Struct, field

from topics.client import Client
from topics.errors import Code, TopicsError
from topics.spark.catalog import client_for
from topics.spark.chunks import MAX_BYTES, MAX_RECORDS, Chunk
from topics.spark.options import Connection
from topics.spark.pipelines.provenance import Hop, hops_of, stamped
from topics.spark.pipelines.report import Gap
from topics.spark.plan import GRID, Span
from topics.spark.read import How, read_span
from topics.spark.sink import Written, send
from topics.spark.write_options import WriteOptions

REFUSED = (Code.RECORD_TOO_LARGE, Code.INVALID_REQUEST)
_encode = msgspec.json.Encoder().encode


class Errand(Struct, kw_only=True):
    """Seqs [start, stop) of one life of a topic, for the topic of the same name on another server."""

    source: Connection
    target: Connection
    source_id: str
    target_id: str
    topic: str
    epoch: int
    life: int = 0  # counts starts from the beginning: keys of another life are other keys
    start: int
    stop: int
    present: int = 0  # up to here an interrupted run has written everything, as the target itself shows
    lost_epoch: int | None = None  # the life before, where the rest of it was never seen
    nodes: tuple[str, ...] = ()  # whose records need not even be read: they are the target's
    only_local: bool = False
    config: dict[str, Any] = {}

    @property
    def run(self) -> str:
        return f"mirror/{self.source_id}/{self.epoch}.{self.life}"


class Outcome(Struct, kw_only=True):
    """What became of an errand."""

    records: int = 0
    repeated: int = 0
    echoes: int = 0  # that had been on the target, and were not sent
    foreign: int = 0  # that came from a third server, left out by `only_local`
    size_bytes: int = 0
    gaps: list[Gap] = field(default_factory=list)


class Row(NamedTuple):
    """A record to send, and the source seqs that it stands for."""

    first: int
    last: int
    record: bytes


def copy(errand: Errand) -> Outcome:
    """Runs on an executor."""
    outcome = Outcome()
    span = Span(
        server=errand.source.servers[0], topic=errand.topic, epoch=errand.epoch, start=errand.start, stop=errand.stop
    )
    how = How(connection=errand.source, nodes=errand.nodes, fail_on_data_loss=False)
    batches = read_span(span, how) if span.start < span.stop else ()
    rows = (row for batch in batches for row in outgoing(batch, errand, outcome))
    written = Written()
    with client_for(errand.target, errand.target.servers[0]) as client:
        options = WriteOptions(connection=errand.target, config=errand.config)
        if errand.lost_epoch is not None:
            send(client, options, [_another_life(errand)], written)
        for key, new in _new(cut(rows, errand), errand, outcome):
            _deliver(client, options, key, new, errand, written, outcome)
    outcome.records += written.records
    outcome.repeated += written.repeated
    return outcome


def outgoing(batch: pa.RecordBatch, errand: Errand, outcome: Outcome) -> Iterator[Row]:
    """What of a batch goes on its way."""
    columns = (batch.column(name) for name in ("kind", "seq", "ts", "node", "tag", "meta", "data", "gap_to", "reason"))
    kinds, seqs, times, nodes, tags, metas, datas, ends, reasons = columns
    millis = pc.cast(times, pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    texts = (column.to_pylist() for column in (kinds, seqs, millis, nodes, tags, ends, reasons))
    raw = (column.cast(pa.binary()).to_pylist() for column in (metas, datas))
    for kind, seq, ts, node, tag, to, reason, meta, data in zip(*texts, *raw, strict=True):
        if kind == "gap":
            outcome.gaps.append(Gap(from_seq=seq, to_seq=to, reason=reason, epoch=errand.epoch))
            yield Row(seq, to, _loss(errand, seq, to, reason))
            continue
        hops = hops_of(meta)
        if any(hop.at == errand.target_id for hop in hops):
            outcome.echoes += 1
        elif hops and errand.only_local:
            outcome.foreign += 1
        else:
            hop = Hop(at=errand.source_id, epoch=errand.epoch, seq=seq, ts=ts)
            record = _record(data, node, tag, stamped(meta, [*hops, hop]))
            outcome.size_bytes += len(record)
            yield Row(seq, seq, record)


def cut(rows: Iterable[Row], errand: Errand) -> Iterator[tuple[str, list[Row]]]:
    """Rows, in the order of their seqs, as requests under their keys; each covers the seqs behind the one before it."""
    held: list[Row] = []
    size_bytes, covered = 0, errand.start
    for row in rows:
        cell = row.first // GRID * GRID
        if held and held[0].first < cell:
            yield _key(errand, covered, cell - 1, held), held
            held, size_bytes, covered = [], 0, cell
        elif held and (size_bytes + len(row.record) > MAX_BYTES or len(held) >= MAX_RECORDS):
            yield _key(errand, covered, row.first - 1, held), held
            held, size_bytes, covered = [], 0, row.first
        held.append(row)
        size_bytes += len(row.record)
    if held:
        end = min(errand.stop, (held[-1].first // GRID + 1) * GRID) - 1
        yield _key(errand, covered, end, held), held


def _key(errand: Errand, first: int, last: int, rows: list[Row]) -> str:
    """A loss is part of the key: a repetition that finds more lost than before must say so."""
    losses = [(row.first, row.last) for row in rows if row.last > row.first]
    suffix = f"/{xxhash.xxh3_64_hexdigest(str(losses).encode())}" if losses else ""
    return f"{errand.run}/{first}-{last}{suffix}"


def _new(found: Iterable[tuple[str, list[Row]]], errand: Errand, outcome: Outcome) -> Iterator[tuple[str, list[Row]]]:
    """Without what the target is known to have. A request is taken whole or not at all, so it hardly ever parts one."""
    for key, rows in found:
        left = [row for row in rows if row.last > errand.present]
        outcome.records += len(rows) - len(left)
        outcome.repeated += len(rows) - len(left)
        if len(left) == len(rows):
            yield key, rows
        elif left:
            yield f"{key}/after-{errand.present}", left


def _deliver(
    client: Client, options: WriteOptions, key: str, rows: list[Row], errand: Errand, written: Written, outcome: Outcome
) -> None:
    """One request. A record that the target refuses must not hold up all behind it: a record tells of it instead."""
    try:
        send(client, options, [Chunk(errand.topic, key, [row.record for row in rows])], written)
    except TopicsError as error:
        if error.code not in REFUSED:
            raise
        middle = len(rows) // 2
        if middle:
            _deliver(client, options, f"{key}.0", rows[:middle], errand, written, outcome)
            _deliver(client, options, f"{key}.1", rows[middle:], errand, written, outcome)
            return
        [row] = rows
        reason = f"refused: {error.message}"
        told = _loss(errand, row.first, row.last, reason)
        send(client, options, [Chunk(errand.topic, f"{key}/refused", [told])], written)
        outcome.gaps.append(Gap(from_seq=row.first, to_seq=row.last, reason=reason, epoch=errand.epoch))


def _another_life(errand: Errand) -> Chunk:
    """Tells of the rest of a life that ended before it was read to its end; nobody knows how much that was."""
    hop = Hop(at=errand.source_id, epoch=errand.epoch, seq=0, to=0)
    data = _encode({"topic": errand.topic, "epoch": errand.lost_epoch, "reason": "recreated"})
    record = _record(data, None, None, stamped(b'{"kind":"gap"}', [hop]))
    return Chunk(errand.topic, f"{errand.run}/after-{errand.lost_epoch}", [record])


def _loss(errand: Errand, gap_from: int, gap_to: int, reason: str) -> bytes:
    hop = Hop(at=errand.source_id, epoch=errand.epoch, seq=gap_from, to=gap_to)
    data = _encode({"topic": errand.topic, "gap_from": gap_from, "gap_to": gap_to, "reason": reason})
    return _record(data, None, None, stamped(b'{"kind":"gap"}', [hop]))


def _record(data: bytes, node: str | None, tag: str | None, meta: bytes) -> bytes:
    parts = [b'{"data":', data]
    if node is not None:
        parts += [b',"node":', _encode(node)]
    if tag is not None:
        parts += [b',"tag":', _encode(tag)]
    return b"".join([*parts, b',"meta":', meta, b"}"])
