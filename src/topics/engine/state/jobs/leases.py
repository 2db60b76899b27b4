"""The state of jobs: which are leased, and which may be delivered next.

The jobs are the topic's records. A job that was never claimed costs nothing here: a cursor walks over the log. An
object (`Job`) exists only for a job that was delivered, and a number or two for one that is delayed or has a priority.
The place that has a live job is its state:

    leases     held by a worker until its deadline (a lease that has ended may stay a while, see `Term`)
    leaving    taken out by an ack or a nack whose entry is on its way to the log
    reclaim    was delivered, may be delivered again: served first, the longest waiting job before the others
    resting    was delivered and may be delivered again, but not before its time
    exhausted  was delivered as often as the queue allows: it waits for its move to the dead-letter topic
    later      was never delivered, and may not be before its time
    by_priority      was never delivered; has terms, or had a delay (a seq may stay that is elsewhere or deleted)
    keys.blocked     was never delivered; waits until another job of its key leaves the queue
    the log    all others, from `cursor` on

Nothing here reads a clock or a file. Expiry is lazy: callers call `expire` with the time before they decide or count.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from topics.engine.state.jobs.buckets import QUEUE, Buckets
from topics.engine.state.jobs.deadlines import STALE_MAX, LeaseDeadlines
from topics.engine.state.jobs.job import NO_TERM, NOTHING, PRIORITIES, Holder, Job, Notes, WaitingSeqs
from topics.engine.state.jobs.keys import Keys
from topics.engine.state.jobs.reasons import Reasons, with_reason
from topics.engine.state.jobs.unique import UniqueJobs
from topics.model.queue import Reason, Why
from topics.model.topic import TopicConfig
from topics.storage.segments.extras import has_terms, terms_of

CANCELLED_MAX = 1024


class Leases:
    """The state of one queue beside its log."""

    __slots__ = (
        "_delays",
        "buckets",
        "by_priority",
        "cancelled",
        "check_upto",
        "claimed_in",
        "cursor",
        "dead_letter_error",
        "dead_lettered",
        "deadlines",
        "exhausted",
        "freed",
        "keys",
        "last_lease",
        "later",
        "leases",
        "leaving",
        "move_after_ms",
        "now_ms",
        "reasons",
        "reclaim",
        "resting",
        "served",
        "topic",
        "turn",
        "unique",
    )  # fmt: skip

    def __init__(self, topic: Any) -> None:
        self.topic = topic  # the `Topic` of the queue, for the number of its records
        self.leases: dict[int, Job] = {}
        self.leaving: dict[int, Job] = {}
        self.reclaim: OrderedDict[int, Job] = OrderedDict()
        self.resting: dict[int, Job] = {}
        self.exhausted: dict[int, Job] = {}
        self.later: dict[int, int] = {}  # seq → due_ms * 16 + priority
        self._delays: list[tuple[int, int]] = []  # a heap of due_ms and seq; a job that has left may still be in it
        self.by_priority: defaultdict[int, WaitingSeqs] = defaultdict(WaitingSeqs)
        self.cursor = 1  # below it, the log itself has no job left to deliver
        self.check_upto = 0  # up to here, the cursor may meet jobs that are already in one of the places above
        self.turn = 0  # jobs delivered while more than one priority had jobs
        self.served = [0] * PRIORITIES  # the turn at which each priority was served last
        self.last_lease = 0
        self.dead_lettered = 0
        self.dead_letter_error: str | None = None  # why the last move to the dead-letter topic failed
        self.freed: Callable[[], None] = lambda: None  # called when jobs become claimable other than by an append
        self.move_after_ms = 0  # no move is tried before this time: the last one failed
        self.cancelled: dict[int, str] = {}  # leased jobs that were deleted last, and their workers
        self.reasons: Reasons = topic.totals.reasons
        self.deadlines = LeaseDeadlines(self.leases)
        self.keys = Keys(topic.config.max_in_flight_per_key)
        self.unique = UniqueJobs()
        self.buckets = Buckets()
        self.now_ms = 0  # of the last `expire`
        self.claimed_in = -1  # the turn of the last claim: the next claims of the turn share a pass

    # --- counting

    @property
    def in_flight(self) -> int:
        return len(self.leases) - self.deadlines.ended + len(self.leaving)

    @property
    def delayed(self) -> int:
        return len(self.resting) + len(self.later) + len(self.exhausted)

    @property
    def ready(self) -> int:
        """The number of jobs that are neither leased nor delayed. Those that wait for their key are among them."""
        count: int = self.topic.count
        held = len(self.leases) - self.deadlines.ended + len(self.leaving)  # as `in_flight`, without the call
        return count - held - len(self.resting) - len(self.later) - len(self.exhausted)

    # --- time

    def expire(self, now_ms: int) -> None:
        """Return jobs whose lease has ended to the queue, and admit jobs whose time has come.

        Leases end all at once, but at most `RECLAIM_MAX` jobs move to `reclaim`. The rest follows in later calls: a job
        that is nacked meanwhile comes before them. Takes half a microsecond per deadline, and that time for the moves.
        """
        deadlines, delays = self.deadlines, self._delays
        self.now_ms = now_ms
        if self.unique.ends:
            self.unique.expire(now_ms)
        if deadlines.heap and deadlines.heap[0] < now_ms:
            deadlines.end(now_ms)
        if deadlines.ending:
            self._reclaim_ended()
        while delays and delays[0][0] <= now_ms:
            due_ms, seq = heappop(delays)
            if not self._is_due(due_ms, seq):
                continue
            if (job := self.resting.pop(seq, None)) is not None:
                self.reclaim[seq] = job
            else:
                self.by_priority[self.later.pop(seq) & 15].seqs.append(seq)

    def _is_due(self, due_ms: int, seq: int) -> bool:
        """Return whether the job is delayed until `due_ms`: a mark in the heap may be outdated."""
        job = self.resting.get(seq)
        return job.due_ms == due_ms if job is not None else self.later.get(seq, -1) >> 4 == due_ms

    def _reclaim_ended(self) -> None:
        jobs = self.deadlines.take_ended()
        most = self.max_deliveries()
        if most:
            self.exhausted.update((job.seq, job) for job in jobs if job.deliveries >= most)
            self.reclaim.update((job.seq, job) for job in jobs if job.deliveries < most)
        else:
            self.reclaim.update((job.seq, job) for job in jobs)
        for job in jobs:
            job.unhold()

    def max_deliveries(self) -> int:
        """Return after how many deliveries a job is exhausted; 0 for never."""
        config: TopicConfig = self.topic.config
        return 0 if config.dead_letter is None else config.max_deliveries

    def config_changed(self) -> None:
        """Put each job into its place again, except that jobs that were returned stay open."""
        most = self.max_deliveries()

        def undelivered() -> dict[int, int]:
            """Return the jobs with terms that were never delivered, and their terms as in `later`."""
            waiting = {seq: at for at, one in self.by_priority.items() for seq in one.seqs[one.at :]} | self.later
            return {seq: terms for seq, terms in waiting.items() if self.find(seq) is None}

        for opened in self.keys.limit(self.topic.config.max_in_flight_per_key, undelivered):
            self.wait(*opened)
        blocked = self.keys.blocked
        for seq in blocked & self.later.keys():
            del self.later[seq]
        for waiting in self.by_priority.values() if blocked else ():
            waiting.drop(blocked)
        for job in [job for job in self.exhausted.values() if not most or job.deliveries < most]:
            self.reclaim[job.seq] = self.exhausted.pop(job.seq)
        for place in (self.reclaim, self.resting) if most else ():
            for job in [job for job in place.values() if job.deliveries >= most]:
                self.exhausted[job.seq] = place.pop(job.seq)
        self.move_after_ms = 0
        self.freed()

    def refill(self, jobs: int) -> None:
        """Move jobs whose lease has ended until `reclaim` has so many, or there are no more."""
        # Bound: each round looks at `RECLAIM_MAX` of them. A claim takes longer to answer than to move what it takes.
        while self.deadlines.ending and len(self.reclaim) < jobs:
            self._reclaim_ended()

    def next_ms(self) -> int | None:
        """Return when `expire` will next have something to do; None for never."""
        if self.deadlines.ending:
            return 0
        # Bound: each round removes one entry of the heap.
        while self._delays and not self._is_due(*self._delays[0]):
            heappop(self._delays)
        times = [self.deadlines.next_ms(), self._delays[0][0] if self._delays else None]
        if (rate := self.topic.config.rate) is not None and not self.buckets.left(rate, QUEUE, self.now_ms):
            times.append(self.buckets.next_ms(rate, QUEUE))
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    # --- records come and go

    def arrived(self, first: int, n: int, ts: int, extras: dict[int, bytes]) -> None:
        """Take up the terms of `n` appended records, which begin at seq `first`."""
        terms = {first + at: terms_of(extra) for at, extra in extras.items() if has_terms(extra)}
        for seq, one in terms.items():
            if one.unique is not None:
                self.unique.add(one.unique[0], seq, one.unique[1])
            packed = (one.due_ms if one.due_ms > ts else 0) << 4 | one.priority
            if one.key is None or self.keys.opens(seq, packed, one.key):
                self.wait(seq, packed)
        if len(terms) == n and self.cursor == first:
            self.cursor += n

    def wait(self, seq: int, packed: int) -> None:
        """Put a job that was never delivered into its place. `packed` is due_ms * 16 + priority."""
        if packed >> 4 > self.now_ms:
            self.later[seq] = packed
            heappush(self._delays, (packed >> 4, seq))
        else:
            self.by_priority[packed & 15].seqs.append(seq)

    def left(self, seqs: Collection[int]) -> None:
        """Forget jobs whose records were deleted, evicted or lost. The next jobs of their keys take their places."""
        self.forget(seqs)
        if self.unique.pending:
            self.unique.left(seqs)
        opened = self.keys.left(seqs) if self.keys.open else []
        for one in opened:
            self.wait(*one)
        if opened or self.topic.config.max_in_flight:
            self.freed()

    def forget(self, seqs: Collection[int]) -> None:
        """Take jobs out of their places, but for their keys."""
        job: Job | None
        leaving = self.leaving
        for seq in seqs:
            if seq in leaving:
                job = leaving[seq]
                del leaving[seq]
                if job.holder is not None:
                    job.unhold()
            elif (job := self.leases.pop(seq, None)) is not None:
                self.deadlines.leave((job,))
                job.unhold()
                self.cancelled[seq] = job.node
                if len(self.cancelled) > CANCELLED_MAX:
                    del self.cancelled[next(iter(self.cancelled))]
            else:
                job = self._take_ended(seq) or self.resting.pop(seq, None)
                self.later.pop(seq, None)
            if job is not None and job.notes is not NOTHING:
                self.reasons.keep(job, NOTHING)

    def places(self) -> list[Collection[int]]:
        return [
            self.leases, self.leaving, self.reclaim, self.resting, self.exhausted, self.later,
            self.keys.open, self.keys.blocked, self.unique.pending,
        ]  # fmt: skip

    # --- leases

    def grant(
        self, jobs: list[Job], node: str, first_lease: int, deadline_ms: int, holder: Holder | None = None
    ) -> None:
        """Lease the jobs to a worker, and count one more delivery of each."""
        leases = self.leases
        for lease, job in enumerate(jobs, first_lease):
            if job.term.ended:
                self.reasons.keep(job, Notes(self.reasons_of(job)))
            job.node, job.lease, job.holder = node, lease, holder
            job.deliveries += 1
            leases[job.seq] = job
        self.deadlines.set(deadline_ms, jobs)
        self.last_lease = max(self.last_lease, first_lease + len(jobs) - 1)
        if holder is not None:
            holder.held.update(job.seq for job in jobs)

    def take_out(self, jobs: list[Job]) -> None:
        """Keep leased jobs from all other verbs while an entry about them is on its way to the log."""
        self.deadlines.leave(jobs)
        for job in jobs:
            del self.leases[job.seq]
            self.leaving[job.seq] = job

    def put_back(self, jobs: Iterable[Job]) -> None:
        """Undo `take_out`: the log refused the entry."""
        for job in jobs:
            if self.leaving.pop(job.seq, None) is not None:
                self.leases[job.seq] = job
                self.deadlines.set(job.deadline_ms, [job])

    def release(
        self, jobs: Iterable[Job], *, due_ms: int, now_ms: int, undelivered: bool = False, why: Why | None = None
    ) -> None:
        """Return jobs to the queue, at once or at `due_ms`. The last delivery of `undelivered` jobs does not count."""
        most = self.max_deliveries()
        for job in jobs:
            if self.leases.pop(job.seq, None) is not None:
                self.deadlines.leave((job,))
            elif self.leaving.pop(job.seq, None) is None and not (undelivered and self._take_ended(job.seq)):
                continue  # deleted in between
            job.unhold()
            job.term = NO_TERM
            job.deliveries -= undelivered
            if why is not None:
                failed = Reason(now_ms, job.node, job.deliveries, *why)
                self.reasons.keep(job, Notes(with_reason(self.reasons_of(job), failed)))
            if most and job.deliveries >= most:
                self.exhausted[job.seq] = job
            elif due_ms > now_ms:
                self.delay(job, due_ms)
            else:
                self.reclaim[job.seq] = job
        if len(self._delays) > 2 * self.delayed + STALE_MAX:
            self.sort_delays()

    def _take_ended(self, seq: int) -> Job | None:
        """Take out a job whose lease has ended. Return it, if there is one."""
        return self.reclaim.pop(seq, None) or self.exhausted.pop(seq, None)

    def delay(self, job: Job, due_ms: int) -> None:
        job.due_ms = due_ms
        self.resting[job.seq] = job
        heappush(self._delays, (due_ms, job.seq))

    def sort_delays(self) -> None:
        """Rebuild the heap, without jobs that have left."""
        self._delays = [(job.due_ms, seq) for seq, job in self.resting.items()]
        self._delays += [(packed >> 4, seq) for seq, packed in self.later.items()]
        heapify(self._delays)

    def reasons_of(self, job: Job, *, expired: bool | None = None) -> tuple[Reason, ...]:
        """Return why deliveries of the job failed. Pass `expired` if its term does not say whether its lease has."""
        reasons = job.notes.reasons
        if not (job.term.ended and job.seq not in self.leaving if expired is None else expired):
            return reasons
        held_s = max(job.deadline_ms - (job.lease >> 16), 0) / 1000  # see `Queues.claim` for the numbers of leases
        text = f"lease expired, held by {job.node} for {held_s:g} s"
        return with_reason(reasons, Reason(job.deadline_ms, job.node, job.deliveries, text))

    def touched(self, seq: int) -> bool:
        """Return whether a place has the job, so that the cursor and `by_priority` must not deliver it."""
        return (
            seq in self.leases or seq in self.reclaim or seq in self.resting or seq in self.later or seq in self.leaving
            or seq in self.exhausted or seq in self.keys.blocked
        )  # fmt: skip

    def leased(self, seqs: Iterable[int]) -> list[Job]:
        """Return the jobs that have a lease, also if it has ended."""
        return [job for seq in seqs if (job := self.leases.get(seq)) is not None]

    def held(self, seq: int) -> Job | None:
        """Return the job if a worker holds a lease of it that has not ended."""
        job = self.leases.get(seq)
        return None if job is None or job.term.ended else job

    def find(self, seq: int) -> Job | None:
        """Return the job if it was ever delivered."""
        for place in (self.leases, self.leaving, self.reclaim, self.resting, self.exhausted):
            if (job := place.get(seq)) is not None:
                return job
        return None


# --- ranges of seqs


def left_range(queue: Leases, low: int, high: int) -> None:
    """Forget all jobs with seqs [low, high). Takes time for the records or for the jobs, whichever are fewer."""
    touched = sum(map(len, queue.places()))
    if high - low > touched:
        queue.left([seq for place in queue.places() for seq in place if low <= seq < high])
    elif touched:
        queue.left(range(low, high))


def left_taken(queue: Leases, parts: list[tuple[int, npt.NDArray[np.uint8]]]) -> None:
    """Forget the jobs with seqs `first + i` for which `taken[i]` is 1, for each `(first, taken)` in `parts`."""
    touched = np.sort(np.array([seq for place in queue.places() for seq in place], np.int64))
    for first, taken in parts if len(touched) else ():
        low, high = np.searchsorted(touched, (first, first + len(taken)))
        mine = touched[low:high]
        queue.left(mine[taken[mine - first] > 0].tolist())
