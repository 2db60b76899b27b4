"""Copy a range of one topic from one server to another: the part of a mirror that runs in tasks.

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
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from topics.spark.options import ConnectionOptions, ReadOptions
from topics.spark.pipelines.run import delivery
from topics.spark.pipelines.run.delivery import CopyTask, DeliveryResult, Fields, OutgoingRow
from topics.spark.pipelines.run.trimmed import Watch
from topics.spark.source.plan import Span
from topics.spark.source.read import read_span

MAX_ROUNDS = 8  # how often a record may pass a circle of mirrors and routers
_encode = msgspec.json.Encoder().encode


KEY = "_topics_mirror"


class MirrorResult(DeliveryResult, kw_only=True):
    """The result of one task."""

    echoes: int = 0  # records that were on the target before, and were not sent
    foreign: int = 0  # records of a third server, left out because of `only_local`
    circling: int = 0  # records that left this topic `MAX_ROUNDS` times before, and were not sent again
    size_bytes: int = 0
    trimmed_at: int = 0  # if not 0: the copy ended before this seq, because the source was trimmed meanwhile


class MirrorTask(CopyTask[MirrorResult], kw_only=True):
    """Copies a range of a topic to the topic of the same name on another server."""

    meta_key: ClassVar[str] = KEY

    source: ConnectionOptions
    source_id: str
    target_id: str
    generation: int = 0  # counts restarts from the first seq; part of every key
    lost_epoch: int | None = None  # the earlier epoch, if it was not read to its end
    only_local: bool = False
    lake: str | None = None  # lake of the source, for records that the source no longer has
    heeds_trims: bool = False  # whether to end at records that are trimmed before they are read
    expected_bytes: int = 0  # of the records that it reads

    @property
    def run(self) -> str:
        return f"mirror/{self.source_id}/{self.epoch}.{self.generation}"

    def origin(self, seq: int, **more: Any) -> list[Hop]:
        return [Hop(at=self.source_id, topic=self.topic, epoch=self.epoch, seq=seq, **more)]

    def row(self, one: Fields, outcome: MirrorResult) -> OutgoingRow | None:
        hops = hops_of(one.meta)
        if any((hop.at, hop.topic) == (self.target_id, self.topic) for hop in hops):
            outcome.echoes += 1
        elif self.only_local and is_copy(hops, self.topic):
            outcome.foreign += 1
        elif sum((hop.at, hop.topic) == (self.source_id, self.topic) for hop in hops) >= MAX_ROUNDS:
            outcome.circling += 1
        else:
            meta = delivery.stamped(one.meta, KEY, [*hops, *self.origin(one.seq, ts=one.ts)])
            record = delivery.record_of(one.data, one.node, one.tag, meta)
            outcome.size_bytes += len(record)
            return OutgoingRow(one.seq, one.seq, record)
        return None

    def seq_of(self, meta: bytes) -> int:
        hops = hops_of(meta)
        if not is_copy(hops, self.topic) or (hops[-1].at, hops[-1].epoch) != (self.source_id, self.epoch):
            return 0
        return hops[-1].last

    def read(self, outcome: MirrorResult) -> Iterator[OutgoingRow]:
        """Yield the rows of the range to send, sorted by seq."""
        span = Span(server=self.source.server, topic=self.topic, epoch=self.epoch, start=self.start, stop=self.stop)
        if span.start >= span.stop:
            return
        batches = read_span(span, ReadOptions(connection=self.source, fail_on_data_loss=False, lake=self.lake))
        watch = Watch(span, self.source) if self.heeds_trims else None
        yield from self.rows(batches if watch is None else watch.over(batches), outcome)
        if watch is not None:
            outcome.trimmed_at = watch.trimmed_at


def copy(task: MirrorTask) -> MirrorResult:
    outcome, before = MirrorResult(), {}
    if task.lost_epoch is not None:
        # A record reports the unread rest of the earlier epoch, whose length is unknown.
        data = _encode({"topic": task.topic, "epoch": task.lost_epoch, "reason": "recreated"})
        meta = delivery.stamped(delivery.LOSS, KEY, task.origin(0, to=0))
        before[f"{task.run}/after-{task.lost_epoch}"] = delivery.record_of(data, None, None, meta)
    return task.send(task.read(outcome), outcome, before=before)


def rehearse(task: MirrorTask) -> MirrorResult:
    """Return the result that `copy` would have: read everything, send nothing."""
    outcome = MirrorResult(records=int(task.lost_epoch is not None))
    return task.rehearse(task.read(outcome), outcome)


# --- the list of servers in the meta of a record


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
