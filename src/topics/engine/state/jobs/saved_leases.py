"""The jobs of a queue in a snapshot."""

from __future__ import annotations

from array import array

from msgspec import Struct

from topics.engine.state.jobs.job import Job
from topics.engine.state.jobs.leases import JobTopic, Leases


class SavedJob(Struct, array_like=True):
    seq: int
    priority: int | None
    deliveries: int
    due_ms: int
    lease: int
    node: str
    deadline_ms: int


class SavedLeases(Struct, array_like=True):
    """The state of a queue in a snapshot. `by_priority` has packed u64 seqs, `later` packed pairs of u64."""

    dead_lettered: int = 0
    last_lease: int = 0
    by_priority: list[bytes] = []
    later: bytes = b""
    out: list[SavedJob] = []


def save(queue: Leases, *, durable: bool, kept: bool) -> SavedLeases:
    """Return what a snapshot keeps: with leases if `durable`, nothing of the records unless `kept`."""
    saved = SavedLeases(queue.dead_lettered, queue.last_lease)
    if not kept:
        return saved
    by_priority: list[list[int]] = [waiting.seqs[waiting.at :].tolist() for waiting in queue.by_priority]
    out = [job for place in (queue.leases, queue.leaving, queue.reclaim, queue.resting) for job in place.values()]
    for job in out:
        if durable:
            lease = job.lease if job.seq in queue.leases or job.seq in queue.leaving else 0
            due_ms = job.due_ms if job.seq in queue.resting else 0
            fields = job.seq, job.priority, job.deliveries, due_ms, lease, job.node, job.deadline_ms
            saved.out.append(SavedJob(*fields))
        elif job.priority is not None:
            by_priority[job.priority].append(job.seq)
    saved.by_priority = [array("Q", sorted(seqs) if not durable else seqs).tobytes() for seqs in by_priority]
    saved.later = array("Q", [part for pair in queue.later.items() for part in pair]).tobytes()
    return saved


def undelivered(queue: Leases, topic: JobTopic) -> Leases:
    """Return the queue as a restart finds it without durable leases: with all its jobs, and none delivered."""
    found = Leases(topic)
    load(found, save(queue, durable=False, kept=True))
    return found


def load(queue: Leases, saved: SavedLeases) -> None:
    """Add the jobs of a snapshot to a queue that has none."""
    queue.dead_lettered, queue.last_lease = saved.dead_lettered, saved.last_lease
    for waiting, packed in zip(queue.by_priority, saved.by_priority, strict=False):
        waiting.seqs.frombytes(packed)
    pairs = array("Q")
    pairs.frombytes(saved.later)
    queue.load_later(dict(zip(pairs[::2], pairs[1::2], strict=True)))
    for one in saved.out:
        job = Job(one.seq, one.priority, one.deliveries)
        if one.lease:
            job.lease, job.node = one.lease, one.node
        queue.load_job(job, deadline_ms=one.deadline_ms, due_ms=one.due_ms)
