"""Dead letters: jobs that were delivered too often move to the dead-letter topic, and `redrive` moves them back.

A job that cannot be moved (the other topic is full, or missing and may not be created) stays where it is and rests for
a moment. The queue reports why, and no job is lost.
"""

from __future__ import annotations

from msgspec import UNSET, Struct

from topics import logs
from topics.engine import retention
from topics.engine.queue import letter_records, pick
from topics.engine.queue.job_moves import Copy, Moved, Moves, undo_also
from topics.engine.state.jobs.job import Job
from topics.engine.state.jobs.job_terms import terms_of
from topics.engine.state.topic import Topic, leases_of
from topics.engine.write import removal
from topics.engine.write.commit import Ticket
from topics.engine.write.removal import Removal
from topics.engine.write.staging import Staging
from topics.errors import TopicsError, invalid, topic_not_found
from topics.model.records import TagMatch

logger = logs.Log("queue")

RETRY_MS = 1000


class Redriven(Struct):
    """The jobs that a redrive moved, or would move."""

    topic: Topic
    dead_letter: str
    seqs: list[int]  # in the dead-letter topic
    next_from_seq: int
    caught_up: bool


class DeadLetters:
    """The dead letters of all queues."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._moves = Moves(staging)

    def prepare(self, topic: Topic) -> None:
        """Wait for pending changes of the dead-letter topic, before a pass picks jobs."""
        name = topic.config.dead_letter
        if name is not None and topic.config.max_deliveries:
            dest = self._staging.topics.get(name)
            if name in self._staging.commits.creating or (dest is not None and dest.changing):
                self._staging.resolve(name)

    def bury(
        self, topic: Topic, jobs: list[Job], rendered: dict[int, pick.StoredRecord], leaving: Removal, now_ms: int
    ) -> Ticket | None:
        """Move jobs that the caller has taken out of the queue. Jobs that cannot be moved rest in it for a while.

        Return the ticket of the last move, if there is one.
        """
        queue = leases_of(topic)
        copies = []
        for job in jobs:
            [row] = letter_records.decode(rendered[job.seq].whole())
            meta = letter_records.stamp(None if row.meta is UNSET else bytes(row.meta), topic.name, job)
            copies.append(Copy(bytes(row.data), row.tag, row.node, meta, job.priority or 0))
        for job in jobs:
            queue.leaving[job.seq] = job
        return self._bury(topic, jobs, copies, leaving, now_ms)

    def _bury(self, topic: Topic, jobs: list[Job], copies: list[Copy], leaving: Removal, now_ms: int) -> Ticket | None:
        """Move all jobs together; if that is refused, one half after the other."""
        queue = leases_of(topic)

        def rest() -> None:
            queue.release(jobs, due_ms=now_ms + RETRY_MS, now_ms=now_ms)

        name = topic.config.dead_letter
        assert name is not None
        if name in self._staging.commits.creating:  # by the move of the other half: a later pass moves this one
            rest()
            return None
        try:
            move = Moved(topic.topic_id, [job.seq for job in jobs], now_ms, True)
            ticket = self._moves.stage(topic, name, move, copies, leaving)
        except TopicsError as error:
            if len(jobs) > 1:
                half = len(jobs) // 2
                first = self._bury(topic, jobs[:half], copies[:half], leaving, now_ms)
                return self._bury(topic, jobs[half:], copies[half:], leaving, now_ms) or first
            queue.dead_letter_error = error.code.wire
            logger.warning(
                "dead_letter_blocked", topic=topic.name, dead_letter=name, seq=jobs[0].seq, reason=error.code.wire
            )
            rest()
            return None
        queue.dead_letter_error = None
        undo_also(ticket, rest)
        return ticket

    def redrive(
        self,
        topic: Topic,
        *,
        dead_letter: str | None,
        match: TagMatch | None,
        seqs: list[int] | None,
        from_seq: int,
        limit: int,
        dry_run: bool,
    ) -> Ticket:
        """Return dead jobs of this queue to it, with new seqs and no deliveries. Ends with `Redriven`."""
        name = topic.config.dead_letter if dead_letter is None else dead_letter
        if name is None:
            raise invalid(f'queue "{topic.name}" has no dead_letter topic', field="dead_letter")
        if name == topic.name:
            raise invalid("dead_letter must name another topic", field="dead_letter")
        source = self._staging.topics.get(name)
        if source is None or source.changing:
            source = self._staging.resolve(name)
        if source is None:
            if dead_letter is None:  # the queue's own, which the first dead job creates: there was none
                return Ticket.of(Redriven(topic, name, [], 0, True))
            raise topic_not_found(name)
        now = self._staging.clock.now_ms()
        found = letter_records.find(
            source, topic.name, match=match, seqs=seqs, from_seq=from_seq, limit=limit, now_ms=now
        )
        expiring_before = retention.expiring_before(source, now)
        rows = [row for row in found.letters if row.seq >= expiring_before]
        result = Redriven(topic, name, [row.seq for row in rows], found.upto, found.caught_up)
        if dry_run or not rows:
            return Ticket.of(result)
        copies = [
            Copy(
                bytes(row.data), row.tag, row.node, letter_records.unstamp(bytes(row.meta)), _priority(source, row.seq)
            )
            for row in rows
            if row.meta is not UNSET
        ]
        leaving = removal.by_seq(source, sorted(result.seqs))
        move = Moved(source.topic_id, result.seqs, now, False)
        return self._moves.stage(source, topic.name, move, copies, leaving, result=result)


def _priority(topic: Topic, seq: int) -> int:
    segment = topic.segments[topic.index_of(seq)]
    extra = segment.columns.extras.get(seq - segment.first)
    terms = None if extra is None else terms_of(extra)
    return 0 if terms is None else terms.priority
