"""Copy a range of one topic from one server to another: the part of a mirror that runs in tasks.

The range is part of a plan that was saved before. A request has the seqs that it covers in its idempotency key, so a
repetition of the plan sends the same requests. They are sent one after the other, in the order of the source.

The meta of a copy lists the servers and topics that the record was in, oldest first; its other members stay:

    {"trace": "abc", "_topics_mirror": [{"at": "5f0c…", "topic": "shop.orders", "epoch": 1794715944778, "seq": 17, …}]}

The first entry is where the record was written, the last one where the copy was taken from. A record is not copied to a
topic of a server that is in its list. This ends the loops of mirrors, with or without a `node`.

Routers, `replay` and `compact` copy the meta of a record to the records that they derive from it, the list included. A
derived record was not in these topics itself. It is recognised by its topic, which differs from the last entry.

A record that reports a gap (`"kind": "gap"` beside the list) has the last lost seq as `to`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import xxhash
from msgspec import UNSET, Struct, UnsetType

from topics.spark.options import ConnectionOptions, ReadOptions, WriteOptions
from topics.spark.pipelines.run import delivery
from topics.spark.pipelines.run.delivery import DeliveryResult, OutgoingRow, RangeDelivery
from topics.spark.pipelines.run.report import ReportedGap
from topics.spark.pipelines.run.trimmed import Watch
from topics.spark.source.catalog import client_for
from topics.spark.source.plan import Span
from topics.spark.source.read import read_span

MAX_ROUNDS = 8  # how often a record may pass a circle of mirrors and routers
_encode = msgspec.json.Encoder().encode


class CopyTask(Struct, kw_only=True):
    """Copies the seqs [start, stop) of one epoch of a topic to the topic of the same name on another server."""

    source: ConnectionOptions
    target: ConnectionOptions
    source_id: str
    target_id: str
    topic: str
    epoch: int
    generation: int = 0  # counts restarts from the first seq; part of every key
    start: int
    stop: int
    present: int = 0  # the target has every record up to this source seq already
    lost_epoch: int | None = None  # the earlier epoch, if it was not read to its end
    only_local: bool = False
    lake: str | None = None  # lake of the source, for records that the source no longer has
    heeds_trims: bool = False  # whether to end at records that are trimmed before they are read
    config: dict[str, Any] = {}
    expected_bytes: int = 0  # of the records that it reads

    @property
    def run(self) -> str:
        return f"mirror/{self.source_id}/{self.epoch}.{self.generation}"

    def key(self, first: int, last: int, rows: list[OutgoingRow]) -> str:
        """Return the key of a request. It contains the gaps, so that a repetition with other gaps is written too."""
        losses = [(row.first, row.last) for row in rows if row.last > row.first]
        suffix = f"/{xxhash.xxh3_64_hexdigest(str(losses).encode())}" if losses else ""
        return f"{self.run}/{first}-{last}{suffix}"

    def gap_row(self, gap_from: int, gap_to: int, reason: str) -> OutgoingRow:
        hop = Hop(at=self.source_id, topic=self.topic, epoch=self.epoch, seq=gap_from, to=gap_to)
        return delivery.gap_row(self.topic, gap_from, gap_to, reason, KEY, [hop])


class MirrorResult(DeliveryResult, kw_only=True):
    """The result of one copy task."""

    echoes: int = 0  # records that were on the target before, and were not sent
    foreign: int = 0  # records of a third server, left out because of `only_local`
    circling: int = 0  # records that left this topic `MAX_ROUNDS` times before, and were not sent again
    size_bytes: int = 0
    trimmed_at: int = 0  # if not 0: the copy ended before this seq, because the source was trimmed meanwhile


def copy(task: CopyTask) -> MirrorResult:
    outcome = MirrorResult()
    with client_for(task.target) as client:
        options = WriteOptions(connection=task.target, config=task.config)
        sending = RangeDelivery(
            client=client, options=options, topic=task.topic, epoch=task.epoch, present=task.present,
            gap_row=task.gap_row, outcome=outcome,
        )  # fmt: skip
        if task.lost_epoch is not None:
            # A record reports the unread rest of the earlier epoch, whose length is unknown.
            hop = Hop(at=task.source_id, topic=task.topic, epoch=task.epoch, seq=0, to=0)
            data = _encode({"topic": task.topic, "epoch": task.lost_epoch, "reason": "recreated"})
            record = delivery.record_of(data, None, None, delivery.stamped(delivery.LOSS, KEY, [hop]))
            sending.put(f"{task.run}/after-{task.lost_epoch}", [record])
        for first, last, rows in delivery.cut(read(task, outcome), task.start, task.stop):
            sending.send(task.key(first, last, rows), rows)
    return outcome


def rehearse(task: CopyTask) -> MirrorResult:
    """Return the result that `copy` would have: read everything, send nothing."""
    outcome = MirrorResult(records=int(task.lost_epoch is not None))
    for row in read(task, outcome):
        outcome.records += 1
        if row.lost is not None:
            outcome.gaps.append(ReportedGap(from_seq=row.first, to_seq=row.last, reason=row.lost, epoch=task.epoch))
    return outcome


def read(task: CopyTask, outcome: MirrorResult) -> Iterator[OutgoingRow]:
    """Yield the rows of the range to send, sorted by seq."""
    span = Span(server=task.source.server, topic=task.topic, epoch=task.epoch, start=task.start, stop=task.stop)
    if span.start >= span.stop:
        return
    options = ReadOptions(connection=task.source, fail_on_data_loss=False, lake=task.lake)
    watch = Watch(span, task.source) if task.heeds_trims else None
    batches = read_span(span, options)
    for batch in batches if watch is None else watch.over(batches):
        yield from outgoing(batch, task, outcome)
    if watch is not None:
        outcome.trimmed_at = watch.trimmed_at


def outgoing(batch: pa.RecordBatch, task: CopyTask, outcome: MirrorResult) -> Iterator[OutgoingRow]:
    """Yield the rows of a batch to send."""
    for one in delivery.fields_of(batch):
        if one.kind == "gap":
            yield task.gap_row(one.seq, one.to, one.reason)
            continue
        hops = hops_of(one.meta)
        if any((hop.at, hop.topic) == (task.target_id, task.topic) for hop in hops):
            outcome.echoes += 1
        elif task.only_local and is_copy(hops, task.topic):
            outcome.foreign += 1
        elif sum((hop.at, hop.topic) == (task.source_id, task.topic) for hop in hops) >= MAX_ROUNDS:
            outcome.circling += 1
        else:
            hop = Hop(at=task.source_id, topic=task.topic, epoch=task.epoch, seq=one.seq, ts=one.ts)
            record = delivery.record_of(one.data, one.node, one.tag, delivery.stamped(one.meta, KEY, [*hops, hop]))
            outcome.size_bytes += len(record)
            yield OutgoingRow(one.seq, one.seq, record)


# --- the list of servers in the meta of a record

KEY = "_topics_mirror"


class Hop(Struct, frozen=True, kw_only=True):
    """One server that a record was on, with its topic, epoch and seq there."""

    at: str  # the server's id
    topic: str
    epoch: int
    seq: int
    ts: int | UnsetType = UNSET  # when it was committed there
    to: int | UnsetType = UNSET

    @property
    def last(self) -> int:
        return self.seq if isinstance(self.to, UnsetType) else self.to


def hops_of(meta: bytes | None) -> list[Hop]:
    """Return the servers that the record was on; an empty list if it was written here, or the entry is invalid."""
    return delivery.stamp_in(meta, KEY, list[Hop]) or []


def is_copy(hops: list[Hop], topic: str) -> bool:
    """Return whether a record with this list was mirrored to its topic, and not derived there from a mirrored one."""
    return bool(hops) and hops[-1].topic == topic
