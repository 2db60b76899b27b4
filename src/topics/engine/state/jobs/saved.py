"""The part of a queue in a snapshot."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from topics.engine.state.jobs.job import NO_TERM, PRIORITIES, Job, Notes
from topics.engine.state.jobs.keys import SavedLine
from topics.engine.state.jobs.leases import Leases
from topics.engine.state.jobs.unique import SavedUnique
from topics.model.queue import Reason


class SavedJob(Struct, array_like=True):
    seq: int
    priority: int | None
    deliveries: int
    due_ms: int
    lease: int
    node: str
    deadline_ms: int
    reasons: Sequence[Reason] = ()  # not in snapshots of earlier versions


class SavedLeases(Struct, array_like=True):
    """The state of a queue in a snapshot. `by_priority` has packed u64 seqs, `later` packed pairs of u64."""

    dead_lettered: int = 0
    last_lease: int = 0
    by_priority: list[bytes] = []
    later: bytes = b""
    out: list[SavedJob] = []
    keys: list[SavedLine] = []  # not in snapshots of earlier versions, and neither is this
    unique: list[SavedUnique] = []
    cancelled: dict[int, str] = {}


def save(queue: Leases, *, durable: bool, kept: bool) -> SavedLeases:
    """Return what a snapshot keeps: with leases if `durable`, nothing of the records unless `kept`."""
    saved = SavedLeases(queue.dead_lettered, queue.last_lease)
    if not kept:
        return saved
    by_priority: list[list[int]] = [[] for _ in range(PRIORITIES)]
    for priority, waiting in queue.by_priority.items():
        by_priority[priority] = waiting.seqs[waiting.at :].tolist()
    places = queue.leases, queue.leaving, queue.reclaim, queue.resting, queue.exhausted
    out = [job for place in places for job in place.values()]
    for job in out:
        if durable:
            held = job.seq in queue.leases or (job.seq in queue.leaving and job.term is not NO_TERM)
            lease = job.lease if held else 0
            due_ms = job.due_ms if job.seq in queue.resting else 0
            fields = job.seq, job.priority, job.deliveries, due_ms, lease, job.node, job.deadline_ms
            saved.out.append(SavedJob(*fields, queue.reasons_of(job, expired=False if lease else None)))
        elif job.priority is not None:
            by_priority[job.priority].append(job.seq)
    saved.by_priority = [array("Q", sorted(seqs) if not durable else seqs).tobytes() for seqs in by_priority]
    saved.later = array("Q", [part for pair in queue.later.items() for part in pair]).tobytes()
    saved.keys, saved.unique = queue.keys.save(), queue.unique.save()
    saved.cancelled = dict(queue.cancelled) if durable else {}
    return saved


def load(queue: Leases, saved: SavedLeases) -> None:
    """Add the jobs of a snapshot to a queue that has none."""
    queue.dead_lettered, queue.last_lease, queue.cancelled = saved.dead_lettered, saved.last_lease, saved.cancelled
    for priority, packed in enumerate(saved.by_priority):
        if packed:
            queue.by_priority[priority].seqs.frombytes(packed)
    pairs = array("Q")
    pairs.frombytes(saved.later)
    queue.later.update(zip(pairs[::2], pairs[1::2], strict=True))
    queue.sort_delays()
    queue.keys.load(saved.keys)
    for unique in saved.unique:
        queue.unique.add(*unique)
    most = queue.max_deliveries()
    for one in saved.out:
        job = Job(one.seq, one.priority, one.deliveries)
        queue.check_upto = max(queue.check_upto, one.seq)
        if one.lease:
            job.lease, job.node = one.lease, one.node
            queue.leases[one.seq] = job
            queue.deadlines.set(one.deadline_ms, [job])
        elif most and one.deliveries >= most:
            queue.exhausted[one.seq] = job
        elif one.due_ms:
            queue.delay(job, one.due_ms)
        else:
            queue.reclaim[one.seq] = job
        if one.reasons:
            queue.reasons.keep(job, Notes(tuple(one.reasons)))


def undelivered(queue: Leases, topic: Any) -> Leases:
    """Return the queue as a restart finds it without durable leases: with all its jobs, and none delivered."""
    found = Leases(topic)
    load(found, save(queue, durable=False, kept=True))
    queue.left([seq for place in queue.places() for seq in place])
    return found
