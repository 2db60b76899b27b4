"""Leases in the log and in snapshots: the entries of a queue whose topic says `leases_durable`."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import msgspec
from msgspec import Struct

from topics.engine import past_damage
from topics.engine.state import snapshot_parts
from topics.engine.state.jobs.job import Job, Notes
from topics.engine.state.jobs.saved import SavedLeases, load, save
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.model.queue import Why
from topics.storage.log import entry as entries


@entries.known
class Leased(Struct, array_like=True):
    """Jobs went to a worker. Lease numbers count up from `first_lease` in the order of `seqs`."""

    kind: ClassVar[int] = 25
    topic_id: int
    node: str
    first_lease: int
    deadline_ms: int
    seqs: list[int]
    deliveries: list[int]  # of each before this one
    priorities: list[int | None]


@entries.known
class Released(Struct, array_like=True):
    """Jobs came back without being done; claimable at `due_ms`. `undelivered` if their worker never got them."""

    kind: ClassVar[int] = 26
    topic_id: int
    seqs: list[int]
    due_ms: int
    at_ms: int
    undelivered: bool = False  # not in frames of earlier versions, and neither are these
    why: Why | None = None


@entries.known
class Extended(Struct, array_like=True):
    """Leases run until `deadline_ms`."""

    kind: ClassVar[int] = 27
    topic_id: int
    seqs: list[int]
    deadline_ms: int


def replay_leased(state: State, topic: Topic, entry: Leased) -> None:
    queue = topic.queue
    if queue is None:
        return
    known = {
        seq: queue.reasons_of(
            job, expired=job.deliveries == deliveries and (seq in queue.leases or job.term.ended)
        )  # a lease that was not given back has expired, unless its worker never got the job
        for seq, deliveries in zip(entry.seqs, entry.deliveries, strict=True)
        if (job := queue.find(seq)) is not None
    }
    queue.forget(entry.seqs)  # wherever they were: now they are held
    queue.keys.open_leased(entry.seqs)
    jobs = [
        Job(seq, priority, deliveries)
        for seq, priority, deliveries in zip(entry.seqs, entry.priorities, entry.deliveries, strict=True)
    ]
    queue.check_upto = max(queue.check_upto, *entry.seqs)
    queue.grant(jobs, entry.node, entry.first_lease, entry.deadline_ms)
    for job in jobs:
        if reasons := known.get(job.seq):
            queue.reasons.keep(job, Notes(reasons))
    # A delete or damage may have taken the job: its lease would count as held without end.
    queue.left([seq for seq in entry.seqs if not past_damage.present(topic, partial(topic.is_live, seq))])


def replay_released(state: State, topic: Topic, entry: Released) -> None:
    if (queue := topic.queue) is not None:
        jobs = queue.leased(entry.seqs)
        queue.release(jobs, due_ms=entry.due_ms, now_ms=entry.at_ms, undelivered=entry.undelivered, why=entry.why)


def replay_extended(state: State, topic: Topic, entry: Extended) -> None:
    if (queue := topic.queue) is not None:
        queue.deadlines.move(queue.leased(entry.seqs), entry.deadline_ms)


def _save(state: State, topic: Topic) -> SavedLeases | None:
    if topic.queue is None:
        return None
    return save(topic.queue, durable=topic.config.leases_durable, kept=topic.config.durability != "ephemeral")


def _load(state: State, topic: Topic, packed: msgspec.Raw) -> None:
    if topic.queue is not None:
        load(topic.queue, msgspec.msgpack.decode(packed, type=SavedLeases))


snapshot_parts.TOPIC_PARTS.append(snapshot_parts.Part("queue", _save, _load))
