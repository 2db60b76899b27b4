"""One topic's range from one server to another: the part of a mirror that executors do.

The range is cut into requests at multiples of `GRID` seqs of the source, and where a request grows too large. A request
has the seqs that it covers in its idempotency key, and lies in a plan that was written down before: whoever repeats the
plan sends the same requests. Requests go one after the other, so that the copy has the order of its source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import xxhash
from msgspec import UNSET, Struct

from topics.spark.options import ConnectionOptions
from topics.spark.pipelines.mirror.provenance import Hop, LostSeqs, hops_of, is_copy, stamped
from topics.spark.pipelines.run import delivery
from topics.spark.pipelines.run.delivery import OutgoingRow, RangeDelivery, fields_of, record_of
from topics.spark.pipelines.run.report import ReportedGap
from topics.spark.pipelines.run.trimmed import Watch
from topics.spark.sink.chunks import MAX_BYTES, MAX_RECORDS
from topics.spark.sink.write_options import WriteOptions
from topics.spark.source.catalog import client_for
from topics.spark.source.plan import GRID, Span
from topics.spark.source.read import How, read_span

LOSS = b'{"kind":"gap"}'  # meta of a record that stands for what was lost
MAX_ROUNDS = 8  # that a record may make through mirrors and routers which form a circle
_encode = msgspec.json.Encoder().encode


class CopyTask(Struct, kw_only=True):
    """Seqs [start, stop) of one life of a topic, for the topic of the same name on another server."""

    source: ConnectionOptions
    target: ConnectionOptions
    source_id: str
    target_id: str
    topic: str
    epoch: int
    generation: int = 0  # counts starts from the beginning: keys of another life are other keys
    start: int
    stop: int
    present: int = 0  # up to here an interrupted run has written everything, as the target itself shows
    lost_epoch: int | None = None  # the life before, where the rest of it was never seen
    nodes: tuple[str, ...] = ()  # whose records need not even be read: they are the target's
    only_local: bool = False
    lake: str | None = None  # of the source: what that has no more is read from there
    heeds_trims: bool = False  # ends where records were trimmed before they were read
    config: dict[str, Any] = {}
    behind: LostSeqs | None = None  # the loss right before `start`

    @property
    def run(self) -> str:
        return f"mirror/{self.source_id}/{self.epoch}.{self.generation}"

    def gap_row(self, gap_from: int, gap_to: int, reason: str) -> OutgoingRow:
        """The record that stands for a loss."""
        hop = Hop(at=self.source_id, topic=self.topic, epoch=self.epoch, seq=gap_from, to=gap_to)
        data = _encode({"topic": self.topic, "gap_from": gap_from, "gap_to": gap_to, "reason": reason})
        return OutgoingRow(gap_from, gap_to, record_of(data, None, None, stamped(LOSS, [hop])), reason)


class MirrorResult(delivery.DeliveryResult, kw_only=True):
    """What became of an errand."""

    echoes: int = 0  # that had been on the target, and were not sent
    foreign: int = 0  # that came from a third server, left out by `only_local`
    circling: int = 0  # that had left this topic of this server `MAX_ROUNDS` times, and were not sent again
    size_bytes: int = 0
    trimmed_at: int = 0  # where it ended early: from here on the source was trimmed while it was read
    behind: LostSeqs | None = None  # a loss of which the next record has to tell


def copy(task: CopyTask) -> MirrorResult:
    """Runs on an executor."""
    outcome = MirrorResult(behind=task.behind)
    with client_for(task.target, task.target.servers[0]) as client:
        options = WriteOptions(connection=task.target, config=task.config)
        sending = RangeDelivery(
            client, options, task.topic, epoch=task.epoch, present=task.present, gap_row=task.gap_row, into=outcome
        )
        if task.lost_epoch is not None:
            sending.put(f"{task.run}/after-{task.lost_epoch}", [_another_life(task)])
        for key, rows in cut(read(task, outcome), task):
            key, left = sending.new(key, rows)
            if left:
                sending.send(key, left)
    return outcome


def rehearse(task: CopyTask) -> MirrorResult:
    """What `copy` would do, counted: everything is read, and nothing is sent."""
    outcome = MirrorResult(behind=task.behind, records=int(task.lost_epoch is not None))
    for row in read(task, outcome):
        outcome.records += 1
        if row.lost is not None:
            outcome.gaps.append(ReportedGap(from_seq=row.first, to_seq=row.last, reason=row.lost, epoch=task.epoch))
    return outcome


def read(task: CopyTask, outcome: MirrorResult) -> Iterator[OutgoingRow]:
    """What of the errand's range goes on its way, in the order of its seqs."""
    span = Span(server=task.source.servers[0], topic=task.topic, epoch=task.epoch, start=task.start, stop=task.stop)
    if span.start >= span.stop:
        return
    how = How(connection=task.source, nodes=task.nodes, fail_on_data_loss=False, lake=task.lake)
    watch = Watch(span, task.source) if task.heeds_trims else None
    batches = read_span(span, how)
    for batch in batches if watch is None else watch.over(batches):
        yield from outgoing(batch, task, outcome)
    if watch is not None:
        outcome.trimmed_at = watch.trimmed_at


def outgoing(batch: pa.RecordBatch, task: CopyTask, outcome: MirrorResult) -> Iterator[OutgoingRow]:
    """What of a batch goes on its way. A record right behind a loss tells of it, too: see `provenance`."""
    for one in fields_of(batch):
        if one.kind == "gap":
            outcome.behind = LostSeqs(gap_from=one.seq, gap_to=one.to, reason=one.reason)
            yield task.gap_row(one.seq, one.to, one.reason)
            continue
        hops = hops_of(one.meta)
        if any(hop.at == task.target_id and hop.was_in(task.topic) for hop in hops):
            outcome.echoes += 1
        elif task.only_local and is_copy(hops, task.topic):
            outcome.foreign += 1
        elif sum((hop.at, hop.topic) == (task.source_id, task.topic) for hop in hops) >= MAX_ROUNDS:
            outcome.circling += 1
        else:
            hop = Hop(
                at=task.source_id, topic=task.topic, epoch=task.epoch, seq=one.seq, ts=one.ts,
                lost=outcome.behind or UNSET,
            )  # fmt: skip
            record = record_of(one.data, one.node, one.tag, stamped(one.meta, [*hops, hop]))
            outcome.behind = None
            outcome.size_bytes += len(record)
            yield OutgoingRow(one.seq, one.seq, record)


def cut(rows: Iterable[OutgoingRow], task: CopyTask) -> Iterator[tuple[str, list[OutgoingRow]]]:
    """Rows, in the order of their seqs, as requests under their keys; each covers the seqs behind the one before it."""
    held: list[OutgoingRow] = []
    size_bytes, covered = 0, task.start
    for row in rows:
        cell = row.first // GRID * GRID
        if held and held[0].first < cell:
            yield _key(task, covered, cell - 1, held), held
            held, size_bytes, covered = [], 0, cell
        elif held and (size_bytes + len(row.record) > MAX_BYTES or len(held) >= MAX_RECORDS):
            yield _key(task, covered, row.first - 1, held), held
            held, size_bytes, covered = [], 0, row.first
        held.append(row)
        size_bytes += len(row.record)
    if held:
        end = min(task.stop, (held[-1].first // GRID + 1) * GRID) - 1
        yield _key(task, covered, end, held), held


def _key(task: CopyTask, first: int, last: int, rows: list[OutgoingRow]) -> str:
    """A loss is part of the key: a repetition that finds more lost than before must say so."""
    losses = [(row.first, row.last) for row in rows if row.last > row.first]
    suffix = f"/{xxhash.xxh3_64_hexdigest(str(losses).encode())}" if losses else ""
    return f"{task.run}/{first}-{last}{suffix}"


def _another_life(task: CopyTask) -> bytes:
    """Tells of the rest of a life that ended before it was read to its end; nobody knows how much that was."""
    hop = Hop(at=task.source_id, topic=task.topic, epoch=task.epoch, seq=0, to=0)
    data = _encode({"topic": task.topic, "epoch": task.lost_epoch, "reason": "recreated"})
    return record_of(data, None, None, stamped(LOSS, [hop]))
