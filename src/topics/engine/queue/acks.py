"""Acks on their way to the log: those of one turn to one topic share an entry, see docs/decisions/shared-entries.md."""

from __future__ import annotations

from itertools import chain
from typing import Any

from msgspec import Struct

from topics.engine import retention
from topics.engine.state.jobs.job import Job
from topics.engine.state.topic import Topic, leases_of
from topics.engine.write import apply, removal
from topics.engine.write.commit import Ticket
from topics.engine.write.removal import Removal
from topics.engine.write.staging import Staging
from topics.engine.write.uploads import GATES
from topics.storage.log import entry as entries

SHARED_MAX = 256  # acks that follow one; an entry takes effect in one step


class Outcome(Struct):
    """The result of an ack, a nack or an extend: how many jobs, and which seqs the worker did not hold."""

    topic: Topic
    node: str
    done: int
    skipped: list[int]
    ready: int
    in_flight: int
    deadlines: dict[str, int] = {}
    dead_lettered: int = 0  # of the jobs that were nacked

    @property
    def cancelled(self) -> list[int]:
        """The skipped jobs that were deleted while this worker held them."""
        known = {} if self.topic.queue is None else self.topic.queue.cancelled
        return [seq for seq in self.skipped if known.get(seq) == self.node]


class Ack(Struct, eq=False):
    """One request: its worker, its jobs by seq, the seqs that it skips, and what was found of its records."""

    node: str
    jobs: dict[int, Job]
    skipped: list[int]
    found: Removal
    delete: entries.Delete | None = None  # of the ack that leads: the entry of all that follow it


class Acks:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self.total = 0  # jobs completed since the process started

    def stage(self, topic: Topic, node: str, jobs: list[Job], skipped: list[int], now_ms: int) -> Ticket:
        """Take the jobs out of their place, and delete their records. Ends with `Outcome`. Raises `Cold`.

        If the last entry of the topic in this turn is of acks, too, this ack becomes a part of it.
        """
        found = removal.by_seq(topic, sorted([job.seq for job in jobs]))
        queue, leader = leases_of(topic), topic.leader
        done = {job.seq: job for job in jobs if job.seq in queue.leases}
        if len(done) < len(jobs):  # the look has found damage: the records of the others are lost
            skipped = skipped + sorted(job.seq for job in jobs if job.seq not in done)
            if not done:
                return Ticket.of(Outcome(topic, node, 0, skipped, queue.ready, queue.in_flight))
            jobs = list(done.values())
        queue.take_out(jobs)
        ticket = Ticket(topic, entry=Ack(node, done, skipped, found))
        if leader is not None and type(leader.entry) is Ack and not (leader.entry.found.chosen or found.chosen):
            if len(leader.followers) < SHARED_MAX:
                leader.followers.append(ticket)
                return ticket
        followers: list[Ticket] = []
        ticket.followers = followers

        def undo() -> None:  # without the ticket, which refers to it: a cycle would wait for the garbage collector
            queue.put_back(chain(jobs, *(one.entry.jobs.values() for one in followers)))

        ticket.apply, ticket.undo, ticket.at_ms, ticket.close = self._take_effect, undo, now_ms, _close
        durability = topic.config.durability
        if self._staging.logged and durability != "ephemeral":
            ticket.frame, ticket.gated = b"", GATES[durability]  # `_close` adds the entry, behind what routers need
        self._staging.commits.stage(ticket)
        return ticket

    def _take_effect(self, leader: Ticket) -> Any:
        topic, entry, tickets = leader.topic, leader.entry.delete, (leader, *(leader.followers or ()))
        assert topic is not None
        if topic.config.ttl_ms:
            retention.expire(topic, entry.at_ms)
        queue, leaving = leases_of(topic), leases_of(topic).leaving
        # Those that are missing were evicted, or had expired before the ack was staged.
        gone = [sorted(seq for seq in one.entry.jobs if seq not in leaving) for one in tickets]
        apply.delete(topic, entry, leader.entry.found.chosen)
        ready, in_flight = queue.ready, queue.in_flight
        for ticket, evicted in zip(tickets, gone, strict=True):
            ack = ticket.entry
            acked = len(ack.jobs) - len(evicted)
            self.total += acked
            ticket.result = Outcome(topic, ack.node, acked, ack.skipped + evicted, ready, in_flight)
        return leader.result


def _close(leader: Ticket) -> None:
    """Make the entry: the turn ends."""
    ack: Ack = leader.entry
    assert leader.topic is not None
    assert leader.at_ms is not None
    seqs = sorted(chain(ack.jobs, *(one.entry.jobs for one in leader.followers or ())))
    ack.delete = entries.Delete(leader.topic.topic_id, 0, None, "", leader.at_ms, seqs, done=True)
    if isinstance(leader.frame, bytes):
        leader.frame = entries.encode(ack.delete, after=leader.frame)
