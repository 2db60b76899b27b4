"""The verbs of a queue: claim, ack, nack, extend, release. `leases` has the state of jobs, `pick` their order.

An ack is a delete of the record, as durable as the topic. It takes the lease out of its place when it is staged, so
that no second ack finds it, and puts it back if the log refuses. No verb touches a job that another staged entry
removes: an ack has it in `leaving`, a delete or a move in `staged_deletes`. Leases are logged only if the topic says
`leases_durable`; otherwise a restart makes every leased job claimable again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import accumulate, count, islice
from operator import attrgetter
from typing import Any

from msgspec import Struct

from topics.engine import past_damage, retention
from topics.engine.queue import pick
from topics.engine.queue.acks import Acks, Outcome
from topics.engine.queue.dead_letters import DeadLetters
from topics.engine.queue.lease_log import Extended, Leased, Released
from topics.engine.state.jobs.buckets import QUEUE
from topics.engine.state.jobs.job import NOTHING, Holder, Job, Notes
from topics.engine.state.jobs.leases import Leases
from topics.engine.state.topic import Topic, leases_of
from topics.engine.write.commit import Ticket
from topics.engine.write.delete import taking
from topics.engine.write.staging import Staging
from topics.errors import TopicsError
from topics.model.queue import JobState, Progress, Why, not_a_queue
from topics.model.record_bytes import SEQ
from topics.model.topic import RetryPolicy
from topics.storage.segments.cold import Cold, waiting
from topics.storage.segments.segment import Damaged

PASS_MAX_JOBS = 10_000
_seq_of, _max_of = attrgetter("seq"), attrgetter("max")
STREAM_CLOSED: Why = ("the work stream was closed", None)
CLAIMED = SEQ + b'%d,"lease_id":"lease_%x","deadline":%d,"deliveries":%d,%b%b'


class Want(Struct, kw_only=True):
    node: str
    max: int
    lease_ms: int
    holder: Holder | None = None


class Claimed(Struct):
    """The jobs of one worker, rendered and ascending by seq, and how many are left for others."""

    topic: Topic
    rows: list[bytes]
    jobs: list[Job]
    ready: int
    first_lease: int = 0  # the leases of the jobs count up from it
    moved: bool = False  # whether the pass moved dead letters: once the log has them, other jobs of their keys are open
    others: bool = False  # whether it has no jobs, others of its pass have, and there are more


class Queues:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self.acks = Acks(staging)
        self.dead_letters = DeadLetters(staging)
        self.claimed_total = 0  # jobs leased since the process started
        # Jobs that returned undelivered, and the lease that the log may still have of each.
        self._unlogged: list[tuple[Topic, Job, int]] = []
        self._queues: Iterator[int] = iter(())  # ids of the queues that `move_exhausted` has not looked at

    def get(self, name: str) -> Topic:
        """Return the topic, once no change of it is pending. Raises `topic_not_found` and `not_a_queue`."""
        topic = self._staging.topics.get(name)
        if topic is None or topic.changing:
            topic = self._staging.resolve(name) or self._staging.topic(name)
        if topic.queue is None:
            raise not_a_queue(name)
        return topic

    def claim(self, topic: Topic, wants: list[Want], *, in_order: bool = False) -> tuple[list[Claimed], Ticket | None]:
        """Serve all wants in one pass, each with its share. Return a ticket if the workers have to wait for the log.

        With `in_order`, as if each had its own pass: those that get no jobs although `others` did need another pass.
        Jobs that were delivered too often are in the dead-letter topic once the ticket is resolved. Its error, if it
        has one, means that no job was leased.
        """
        topic.last_read_ts = now = self._staging.clock.now_ms()
        queue, config = expire(topic, now), topic.config
        wholes = list(accumulate(map(_max_of, wants))) if in_order else []
        most = _whole(wholes, _most(topic, queue, wants, now))
        queue.refill(most)
        moved = self.dead_letters.move(topic, now) if queue.exhausted else None
        expiring_before = retention.expiring_before(topic, now) if topic.staged_times else 0
        try:
            taken, rendered = _take(topic, queue, most, wholes, expiring_before)
        except Damaged:
            taken, rendered = past_damage.read(topic, lambda: _take(topic, queue, most, wholes, expiring_before))
        self.claimed_total += len(taken)
        queue.claimed_in = self._staging.commits.turn
        if config.rate is not None:
            queue.buckets.take(config.rate, QUEUE, len(taken), now)
        claims, grants = [], []
        shares = [taken] if len(wants) == 1 else divide(taken, [want.max for want in wants], in_order=in_order)
        for want, jobs in zip(wants, shares, strict=True):
            jobs.sort(key=_seq_of)
            if not jobs:
                claims.append(Claimed(topic, [], [], 0))
                continue
            # The time makes the numbers higher than those of all leases before a restart.
            first, deadline = max(queue.last_lease + 1, now << 16), now + want.lease_ms
            if config.leases_durable:
                fields = [job.seq for job in jobs], [job.deliveries for job in jobs], [job.priority for job in jobs]
                grants.append(Leased(topic.topic_id, want.node, first, deadline, *fields))
            queue.grant(jobs, want.node, first, deadline, want.holder)
            rows = [
                CLAIMED % (
                    job.seq, job.lease, deadline, job.deliveries,
                    b"" if job.notes is NOTHING else pick.reasons_field(job.notes.reasons), rendered[job.seq],
                )
                for job in jobs
            ]  # fmt: skip
            claims.append(Claimed(topic, rows, jobs, 0, first))
        ready, more = queue.ready, bool(taken) and has_open(queue)
        for done in claims:
            done.ready, done.moved, done.others = ready, moved is not None, more and in_order and not done.jobs
        if not grants or not self._writes_leases(topic):
            return claims, None if moved is None else _after(moved)
        granted = {job.seq: (job, job.lease) for done in claims for job in done.jobs}

        def take_effect(_: Ticket) -> None:
            if self._unlogged:  # in the log, the new lease of a job replaces the old one
                first = grants[0].first_lease
                kept = (
                    one for one in self._unlogged if one[0] is not topic or one[1].seq not in granted or one[2] >= first
                )
                self._unlogged = list(kept)

        return claims, self._staging.stage(topic, grants, take_effect, undo=lambda: _free(queue, granted.values()))

    def ack(self, topic: Topic, node: str, seqs: list[int], lease_ids: list[str] | None) -> Ticket:
        """Delete jobs that are done, as durably as the topic keeps anything. Ends with `Outcome`."""
        now, _, jobs, skipped = self._held(topic, node, seqs, lease_ids)
        if not jobs:
            return Ticket.of(_outcome(topic, node, 0, skipped))
        return self.acks.stage(topic, node, jobs, skipped, now)

    def nack(
        self,
        topic: Topic,
        node: str,
        seqs: list[int],
        lease_ids: list[str] | None,
        *,
        delay_ms: int | None = None,
        retry: RetryPolicy | None = None,
        why: Why | None = None,
    ) -> Ticket:
        """Return jobs to the queue, with the reason why they failed. Ends with `Outcome`.

        They are claimable after `delay_ms`, or else as the queue's policy says, or else after `retry`, or else at once.
        A job that is exhausted moves to the dead letters before the ticket is resolved, if it can.
        """
        now, _, jobs, skipped = self._held(topic, node, seqs, lease_ids)
        policy = topic.config.retry or retry if delay_ms is None else None
        by_due: dict[int, list[Job]] = {}
        for job in jobs:
            after_ms = delay_ms or 0 if policy is None else policy.delay_ms(job.deliveries, job.lease)
            by_due.setdefault(now + after_ms, []).append(job)
        return self._release(topic, node, by_due, skipped, now, why)

    def extend(
        self,
        topic: Topic,
        node: str,
        seqs: list[int],
        lease_ids: list[str] | None,
        *,
        lease_ms: int | None,
        progress: Progress | None = None,
    ) -> Ticket:
        """Let the leases run for `lease_ms` from now, and note how far the jobs are. Ends with `Outcome`.

        The new deadline counts at once, while its entry is on its way: an ack in between must find the lease.
        """
        now, queue, jobs, skipped = self._held(topic, node, seqs, lease_ids)
        if progress is not None:
            for job in jobs:
                queue.reasons.keep(job, Notes(job.notes.reasons, progress, job.lease))
        before = [job.deadline_ms for job in jobs]
        deadline = now + (lease_ms or 0)
        if lease_ms is not None:
            queue.deadlines.move(jobs, deadline)
        result = _outcome(topic, node, len(jobs), skipped)
        result.deadlines = {str(job.seq): job.deadline_ms for job in jobs}
        if not jobs or lease_ms is None or not self._writes_leases(topic):
            return Ticket.of(result)

        def undo() -> None:
            for job, deadline_ms in zip(jobs, before, strict=True):
                if queue.held(job.seq) is job and job.deadline_ms == deadline:
                    queue.deadlines.move([job], deadline_ms)

        entry = Extended(topic.topic_id, [job.seq for job in jobs], deadline)
        return self._staging.stage(topic, [entry], lambda _: result, undo=undo)

    def release(self, topic: Topic, holder: Holder) -> Ticket:
        """Return all jobs that a connection holds to the queue at once: the connection is closed."""
        queue = self._of_client_that_left(topic)
        if queue is None:
            return Ticket.of(None)
        jobs = [job for seq in sorted(holder.held) if (job := queue.held(seq)) is not None]
        return self._release(topic, "", {0: jobs}, [], self._staging.clock.now_ms(), STREAM_CLOSED)

    def undo_claim(self, claimed: Claimed) -> Ticket:
        """Return claimed jobs to the queue as if they had not been delivered: their client left before the answer.

        They return at once, also if their leases have ended meanwhile, unless another worker has got them since. If the
        log refuses the entry, `log_returns` tries again.
        """
        topic = claimed.topic
        queue = self._of_client_that_left(topic)
        if queue is None:
            return Ticket.of(None)
        return self._log_return(topic, _free(queue, zip(claimed.jobs, count(claimed.first_lease), strict=False)))

    def log_returns(self) -> None:
        """Log the return of undelivered jobs that the log has refused before, of those that are still unclaimed.

        Else a restart would count a delivery that never happened. The caller calls this while the log works.
        """
        unlogged, self._unlogged = self._unlogged, []
        returned: dict[Topic, list[Job]] = {}
        for topic, job, lease in unlogged:
            queue = topic.queue
            if queue is not None and queue.reclaim.get(job.seq) is job and not topic.changing:
                returned.setdefault(topic, []).append(job)
            elif queue is not None and queue.find(job.seq) is job:
                self._unlogged.append((topic, job, lease))  # the log may still refuse its new lease
        for topic, jobs in returned.items():
            self._log_return(topic, jobs)

    def _log_return(self, topic: Topic, jobs: list[Job]) -> Ticket:
        if not jobs or not self._writes_leases(topic):
            return Ticket.of(None)

        unlogged = [(topic, job, job.lease) for job in jobs]

        def undo() -> None:
            self._unlogged += unlogged

        entry = Released(topic.topic_id, [job.seq for job in jobs], 0, self._staging.clock.now_ms(), True)
        return self._staging.stage(topic, [entry], lambda _: None, undo=undo)

    def _of_client_that_left(self, topic: Topic) -> Leases | None:
        """Return the queue, None if it was deleted. Waits for the disk: there is no client that could retry."""
        if topic.changing:
            self._staging.commits.sync()
        return None if topic.gone else waiting(lambda: expire(topic, self._staging.clock.now_ms()))

    def _release(
        self, topic: Topic, node: str, by_due: dict[int, list[Job]], skipped: list[int], now_ms: int, why: Why | None
    ) -> Ticket:
        """Return jobs to the queue at the times in `by_due`, then move those that are exhausted."""
        queue, most = leases_of(topic), leases_of(topic).max_deliveries()
        jobs = [job for group in by_due.values() for job in group]
        worn_out = [job for job in jobs if most and job.deliveries >= most]

        def take_effect(_: Ticket) -> Outcome:
            for due_ms, group in by_due.items():
                queue.release(group, due_ms=due_ms, now_ms=now_ms, why=why)
            queue.freed()
            return _outcome(topic, node, len(jobs), skipped)

        if not jobs or not self._writes_leases(topic):
            ticket = Ticket.of(take_effect(Ticket()))
        else:
            queue.take_out(jobs)
            releases = [
                Released(topic.topic_id, [job.seq for job in group], due_ms, now_ms, why=why)
                for due_ms, group in by_due.items()
            ]
            ticket = self._staging.stage(topic, releases, take_effect, undo=lambda: queue.put_back(jobs))
        if not worn_out:
            return ticket
        ended = Ticket()

        def move(released: Ticket) -> None:
            moved: Ticket | None = None
            if released.error is None and not topic.gone and not topic.changing:
                with suppress(Cold, TopicsError):  # `move_exhausted` tries again
                    moved = self.dead_letters.move(topic, self._staging.clock.now_ms())
            (moved or released).on_done(lambda last: end(last, released))

        def end(last: Ticket, released: Ticket) -> None:
            if released.error is None:
                released.result.dead_lettered = sum(queue.find(job.seq) is not job for job in worn_out)
            _resolve(ended, last, released.result, released.error)

        ticket.on_done(move)
        return ended

    def move_exhausted(self, topics: int) -> None:
        """Move exhausted jobs of so many queues; the next call continues with the others. Raises `Cold` like a read."""
        now = self._staging.clock.now_ms()
        for _ in range(topics):
            topic_id = next(self._queues, None)
            if topic_id is None:
                self._queues = iter(list(self._staging.state.queues))
                return
            topic = self._staging.state.queues.get(topic_id)
            if topic is None or topic.queue is None or topic.changing or not topic.queue.max_deliveries():
                continue
            topic.queue.expire(now)
            if topic.queue.exhausted:
                with suppress(TopicsError):  # the dead-letter topic is about to change
                    self.dead_letters.move(topic, now)

    def _held(
        self, topic: Topic, node: str, seqs: list[int], lease_ids: list[str] | None
    ) -> tuple[int, Leases, list[Job], list[int]]:
        """Expire up to now. Return now, the queue, the jobs among `seqs` that the worker holds, and the other seqs.

        A job that a staged delete takes is not held.
        """
        now = self._staging.clock.now_ms()
        queue = expire(topic, now)
        jobs: dict[int, Job] = {}
        skipped = []
        for at, (seq, job) in enumerate(zip(seqs, map(queue.leases.get, seqs), strict=True)):
            if (  # as `queue.held` does, without a call for each job
                job is None
                or job.term.ended
                or job.node != node
                or seq in jobs
                or (lease_ids is not None and lease_ids[at] != job.lease_id)
                or (topic.staged_deletes and taking(topic, seq) is not None)
            ):
                skipped.append(seq)
            else:
                jobs[seq] = job
        return now, queue, list(jobs.values()), skipped

    def _writes_leases(self, topic: Topic) -> bool:
        config = topic.config
        return self._staging.logged and config.leases_durable and config.durability != "ephemeral"


def expire(topic: Topic, now_ms: int) -> Leases:
    """Expire records and leases up to `now_ms`, then return the queue. Raises `Cold` like a read."""
    if topic.config.ttl_ms:
        retention.expire_loaded(topic, now_ms)
    queue = topic.queue
    assert queue is not None
    queue.expire(now_ms)
    return queue


# --- claim


def _most(topic: Topic, queue: Leases, wants: list[Want], now_ms: int) -> int:
    """Return how many jobs the wants may get together, by the settings of the queue."""
    config = topic.config
    most = 0 if config.paused else min(sum(map(_max_of, wants)), PASS_MAX_JOBS)
    if config.max_in_flight:
        most = max(min(most, config.max_in_flight - queue.in_flight), 0)
    return most if config.rate is None else min(most, queue.buckets.left(config.rate, QUEUE, now_ms))


def _whole(wholes: list[int], most: int) -> int:
    """Return how many of `most` jobs the first wants take that get all they ask for; all if the first one does not.

    `wholes` has the sums of the wants from the first on. It is empty for wants that share evenly: these take all.
    """
    return most if not wholes or most < wholes[0] else wholes[bisect_right(wholes, most) - 1]


def _take(
    topic: Topic, queue: Leases, want: int, wholes: list[int], expiring_before: int
) -> tuple[list[Job], dict[int, bytes]]:
    """Take as many jobs as fit into one answer, at least one. Return them, and their records by seq, see `pick.rows`.

    Take fewer if their records are not in memory and one load cannot fetch them all. If this raises, no job was taken.
    """
    # Bound: every round but the last lowers `want`, and not below 1.
    while True:
        taken = pick.Pass(topic, queue, want, expiring_before=expiring_before)
        try:
            found = pick.fitting(topic, sorted(map(_seq_of, taken.jobs)))
        except BaseException:
            taken.undo()
            raise
        want = _whole(wholes, len(found))
        if want == len(taken.jobs):
            if queue.by_priority:
                taken.keep()
            return taken.jobs, found
        taken.undo()


def has_open(queue: Leases) -> bool:
    """Return whether a job is neither leased nor delayed, and does not wait for its key."""
    return queue.ready > len(queue.keys.blocked)


def divide(jobs: list[Job], wants: list[int], *, in_order: bool = False) -> list[list[Job]]:
    """Divide jobs in proportion to the wants, dealt out in turns. The first wants get the remainder.

    With `in_order`, each want gets all its jobs before the next one gets any.
    """
    if in_order:
        rest = iter(jobs)
        return [list(islice(rest, want)) for want in wants]
    total = sum(wants)
    if len(jobs) >= total:
        quotas = list(wants)
    else:
        quotas = [len(jobs) * want // total for want in wants]
        by_rest = sorted(range(len(wants)), key=lambda at: -(len(jobs) * wants[at] % total))
        for at in by_rest[: len(jobs) - sum(quotas)]:
            quotas[at] += 1
    shares: list[list[Job]] = [[] for _ in wants]
    left = iter(jobs)
    # Bound: each round lowers every quota that is left by one.
    while any(quotas):
        for at, quota in enumerate(quotas):
            if quota:
                shares[at].append(next(left))
                quotas[at] -= 1
    return shares


def _free(queue: Leases, granted: Iterable[tuple[Job, int]]) -> list[Job]:
    """Undo a grant: the log did not take the leases, or their worker did not get them. Return the jobs that return.

    They may have expired. A job that has another lease since, or moves to the dead letters, stays as it is.
    """
    held = [job for job, lease in granted if job.lease == lease and queue.find(job.seq) is job]
    held = [job for job in held if job.seq not in queue.leaving]
    queue.release(held, due_ms=0, now_ms=0, undelivered=True)
    pick.take_tokens(queue, [job.seq for job in held], -1)
    if (rate := queue.topic.config.rate) is not None:
        queue.buckets.take(rate, QUEUE, -len(held), queue.now_ms)
    queue.freed()
    return held


def _after(moved: Ticket) -> Ticket:
    """Return a ticket that is resolved after the move, without its error."""
    ended = Ticket()
    moved.on_done(lambda last: _resolve(ended, last))
    return ended


def _resolve(ended: Ticket, last: Ticket, result: Any = None, error: TopicsError | None = None) -> None:
    """Resolve `ended` after the move `last`, without its error: jobs that could not move do not fail the request."""
    ended.wal_ns, ended.sync_ns = last.wal_ns, last.sync_ns
    ended.resolve(result, error)


def _outcome(topic: Topic, node: str, done: int, skipped: list[int]) -> Outcome:
    queue = topic.queue
    assert queue is not None
    return Outcome(topic, node, done, skipped, queue.ready, queue.in_flight)


# --- list


def expire_and_list(
    topic: Topic, *, state: JobState | None, after: int, limit: int, now_ms: int
) -> tuple[list[bytes], int | None]:
    """Expire up to `now_ms`, then return rendered jobs behind `after`, and the cursor of the next page, if any.

    Raises `Cold` like any read.
    """
    queue = expire(topic, now_ms)
    return past_damage.read(topic, lambda: pick.page(topic, queue, state, after, limit))
