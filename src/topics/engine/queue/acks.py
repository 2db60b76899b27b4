"""Acks on their way to the log: those of one turn to one topic share an entry, see docs/decisions/shared-entries.md."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import attrgetter

from msgspec import Struct

from topics.engine import retention
from topics.engine.state.jobs.job import Job
from topics.engine.state.topic import Topic, leases_of
from topics.engine.write import apply, removal
from topics.engine.write.commit import Ticket
from topics.engine.write.removal import Chosen
from topics.engine.write.staging import Staging
from topics.engine.write.uploads import GATES
from topics.storage.log import entry as entries

SHARED_MAX_JOBS = 4096  # of one entry; it takes effect in one step

_seq_of = attrgetter("seq")


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


class AckBatch(Struct, eq=False):
    """The acks that share an entry: for each its worker, its jobs by seq, and the seqs that it skips."""

    acks: list[tuple[str, dict[int, Job], list[int]]]
    count: int  # of the jobs
    kept: list[object]  # see `Removal`
    chosen: Mapping[int, Chosen]


class Acks:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self.total = 0  # jobs completed since the process started

    def stage(self, topic: Topic, node: str, jobs: list[Job], skipped: list[int], now_ms: int) -> Ticket:
        """Take the jobs out of their place, and delete their records. Ends with `Outcome`. Raises `Cold`.

        If the last entry of the topic in this turn is of acks, too, this ack becomes a part of it.
        """
        done = {job.seq: job for job in jobs}
        found = removal.by_seq(topic, sorted(done))
        queue, leader = leases_of(topic), topic.leader
        queue.take_out(jobs)
        batch = None if leader is None else leader.entry
        if (
            type(batch) is AckBatch and batch.count + len(jobs) <= SHARED_MAX_JOBS
            and not batch.chosen and not found.chosen
        ):  # fmt: skip
            batch.acks.append((node, done, skipped))
            batch.count += len(jobs)
            batch.kept += found.kept
            ticket = Ticket(topic)
            leader.followers = leader.followers or []
            leader.followers.append(ticket)
            return ticket
        acks = [(node, done, skipped)]
        ticket = Ticket(topic, None, self._take_effect, AckBatch(acks, len(jobs), found.kept, found.chosen))
        ticket.undo = lambda: queue.put_back(chain.from_iterable(jobs.values() for _, jobs, _ in acks))
        ticket.at_ms, ticket.close = now_ms, self._close
        durability = topic.config.durability
        if self._staging.logged and durability != "ephemeral":
            ticket.frame, ticket.gated = b"", GATES[durability]  # `_close` adds the entry, behind what routers need
        self._staging.commits.stage(ticket)
        return ticket

    def _close(self, leader: Ticket) -> None:
        """Make the entry: the turn ends."""
        batch: AckBatch = leader.entry
        assert leader.topic is not None
        assert leader.at_ms is not None
        seqs = sorted(chain.from_iterable(jobs for _, jobs, _ in batch.acks))
        entry = entries.Delete(leader.topic.topic_id, 0, None, "", leader.at_ms, seqs, done=True)
        leader.entry = batch, entry
        if isinstance(leader.frame, bytes):
            leader.frame = entries.encode(entry, after=leader.frame)

    def _take_effect(self, leader: Ticket) -> Outcome:
        batch, entry = leader.entry
        topic = leader.topic
        assert topic is not None
        queue = leases_of(topic)
        if topic.config.ttl_ms:
            retention.expire(topic, entry.at_ms)
        leaving = queue.leaving
        # Those that are missing were evicted, or had expired before the ack was staged.
        gone = [sorted(jobs.keys() - leaving.keys()) for _, jobs, _ in batch.acks]
        apply.delete(topic, entry, batch.chosen)
        self.total += batch.count - sum(map(len, gone))
        ready, in_flight = queue.ready, queue.in_flight
        outcomes = [
            Outcome(topic, node, len(jobs) - len(evicted), skipped + evicted, ready, in_flight)
            for (node, jobs, skipped), evicted in zip(batch.acks, gone, strict=True)
        ]
        for follower, outcome in zip(leader.followers or (), outcomes[1:], strict=True):
            follower.result = outcome
        return outcomes[0]
