"""The state of jobs: which are leased, and which may be delivered next.

The jobs are the topic's records. A job that was never claimed costs nothing here: a cursor walks over the log. An
object (`Job`) exists only for a job that was delivered, and a number or two for one that is delayed or has a priority.
The place that has a live job is its state:

    leases     held by a worker until its deadline (a lease that has ended may stay a while, see `Term`)
    leaving    taken out by an ack or a nack whose entry is on its way to the log
    reclaim    was delivered, may be delivered again: served first, the longest waiting job before the others
    resting    was delivered and may be delivered again, but not before its time
    later      was never delivered, and may not be before its time
    by_priority      was never delivered; has a priority, or had a delay (a seq may stay that is elsewhere or deleted)
    the log    all others, from `cursor` on

Nothing here reads a clock or a file. Expiry is lazy: callers call `expire` with the time before they decide or count.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

if TYPE_CHECKING:
    from topics.engine.state.topic import Topic

PRIORITIES = 10
RECLAIM_MAX = 4096  # jobs that one call of `expire` moves: one to two milliseconds
STALE_MAX = 4096  # outdated marks that a heap may hold beyond its use before it is rebuilt


class Terms(Struct, array_like=True, frozen=True, gc=False):
    """The terms of a job: its priority, and the time before which it is not delivered (0: at once)."""

    priority: int = 0
    due_ms: int = 0


class Extra(Struct, frozen=True, omit_defaults=True, gc=False):
    """What the engine keeps of a record and no reader sees. Other modules have keys of their own in it."""

    q: Terms | None = None


_encode_extra = msgspec.msgpack.Encoder().encode
_decode_extra = msgspec.msgpack.Decoder(Extra).decode


def pack_terms(terms: Terms) -> bytes:
    return _encode_extra(Extra(terms))


def terms_of(extra: bytes) -> Terms | None:
    """Return the terms of a job out of its extra, if it has terms."""
    try:
        return _decode_extra(extra).q
    except msgspec.MsgspecError:
        return None


class Holder:
    """A connection that jobs are pushed to: the jobs it holds, and a callback for changes of these."""

    __slots__ = ("changed", "held")

    def __init__(self, changed: Callable[[], None]) -> None:
        self.held: set[int] = set()
        self.changed = changed


class Term:
    """All leases that end at the same millisecond.

    When the term ends, all its leases end at once, however many: `ended` says so, and the jobs count as claimable. They
    move from `leases` to `reclaim` afterwards, at most `RECLAIM_MAX` per call of `expire`.
    """

    __slots__ = ("deadline_ms", "ended", "held", "jobs")

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.jobs: list[Job] = []  # some may have left since: they have another term, or are in another place
        self.held = 0  # jobs of this term that are in `leases`
        self.ended = False


class Job:
    """A job that was delivered at least once. The lease fields count only while it is in `leases` or `leaving`."""

    __slots__ = ("deliveries", "due_ms", "holder", "lease", "node", "priority", "seq", "term")

    def __init__(self, seq: int, priority: int | None = None, deliveries: int = 0) -> None:
        self.seq = seq
        self.priority = priority  # None for a job without terms
        self.deliveries = deliveries
        self.lease = 0
        self.node = ""
        self.due_ms = 0
        self.holder: Holder | None = None
        self.term = NO_TERM

    @property
    def deadline_ms(self) -> int:
        return self.term.deadline_ms

    @property
    def lease_id(self) -> str:
        return f"lease_{self.lease:x}"


NO_TERM = Term(0)


class WaitingSeqs:
    """Seqs in the order in which they may be delivered; taken from the front."""

    __slots__ = ("at", "seqs")

    def __init__(self, seqs: Iterable[int] = ()) -> None:
        self.seqs = array("Q", seqs)
        self.at = 0

    def __len__(self) -> int:
        return len(self.seqs) - self.at

    def trim(self) -> None:
        """Free the memory of seqs that were taken, seldom enough to cost nothing."""
        if self.at == len(self.seqs) or (self.at > 1024 and self.at * 2 > len(self.seqs)):
            del self.seqs[: self.at]
            self.at = 0


class Leases:
    """The state of one queue beside its log."""

    __slots__ = (
        "_due", "_ended", "_ending", "_expiry", "_expiry_jobs", "_terms", "by_priority", "check_upto", "cursor",
        "dead_letter_error", "dead_lettered", "freed", "last_lease", "later", "leases", "leaving", "reclaim", "resting",
        "served", "topic", "turn",
    )  # fmt: skip

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.leases: dict[int, Job] = {}
        self.leaving: dict[int, Job] = {}
        self.reclaim: OrderedDict[int, Job] = OrderedDict()
        self.resting: dict[int, Job] = {}
        self.later: dict[int, int] = {}  # seq → due_ms * 16 + priority
        self.by_priority = [WaitingSeqs() for _ in range(PRIORITIES)]
        self.cursor = 0  # below it, the log itself has no job left to deliver
        self.check_upto = 0  # up to here, the cursor may meet jobs that are already in one of the places above
        self.turn = 0  # jobs delivered while more than one priority had jobs
        self.served = [0] * PRIORITIES  # the turn at which each priority was served last
        self.last_lease = 0
        self.dead_lettered = 0
        self.dead_letter_error: str | None = None  # why the last move to the dead-letter topic failed
        self.freed: Callable[[], None] | None = None  # called when jobs become claimable other than by an append
        self._terms: dict[int, Term] = {}  # by deadline, those that have not ended
        self._expiry: list[int] = []  # heap: their deadlines
        self._expiry_jobs = 0
        self._ending: deque[Term] = deque()  # terms that have ended and whose jobs have not all moved
        self._ended = 0  # jobs in `leases` whose term has ended
        self._due: list[tuple[int, int]] = []  # heap: due_ms, seq

    # --- counting

    @property
    def in_flight(self) -> int:
        return len(self.leases) - self._ended + len(self.leaving)

    @property
    def delayed(self) -> int:
        return len(self.resting) + len(self.later)

    @property
    def ready(self) -> int:
        """The number of claimable jobs: every live job that is neither leased nor delayed."""
        return self.topic.count - self.in_flight - self.delayed

    # --- time

    def expire(self, now_ms: int) -> None:
        """Return jobs whose lease has ended to the queue, and admit jobs whose time has come.

        Leases end all at once, but at most `RECLAIM_MAX` jobs move to `reclaim`. The rest follows in later calls: a job
        that is nacked meanwhile comes before them. Takes half a microsecond per deadline, and that time for the moves.
        """
        expiry = self._expiry
        while expiry and expiry[0] < now_ms:
            term = self._terms.pop(heappop(expiry))
            self._expiry_jobs -= len(term.jobs)
            if term.held:
                term.ended = True
                self._ended += term.held
                self._ending.append(term)
        if self._ending:
            self._reclaim_ended()
        due = self._due
        while due and due[0][0] <= now_ms:
            due_ms, seq = heappop(due)
            job_or_none = self.resting.get(seq)
            if job_or_none is not None:
                if job_or_none.due_ms == due_ms:
                    self.reclaim[seq] = self.resting.pop(seq)
            elif self.later.get(seq, -1) >> 4 == due_ms:
                self.by_priority[self.later.pop(seq) & 15].seqs.append(seq)

    def _reclaim_ended(self) -> None:
        """Look at `RECLAIM_MAX` jobs whose lease has ended, in this order, and move those that are still there."""
        ending, leases, left = self._ending, self.leases, RECLAIM_MAX
        # Bound: each round removes a term, or the last `left` jobs of one.
        while ending and left:
            term = ending[0]
            jobs = term.jobs[:left]
            del term.jobs[:left]
            left -= len(jobs)
            for job in jobs:
                if job.term is term and leases.get(job.seq) is job:
                    del leases[job.seq]
                    term.held -= 1
                    self._ended -= 1
                    self._unhold(job)
                    self.reclaim[job.seq] = job
            if not term.jobs:
                ending.popleft()

    def refill(self, jobs: int) -> None:
        """Move jobs whose lease has ended until `reclaim` has so many, or there are no more."""
        # Bound: each round looks at `RECLAIM_MAX` of them. A claim takes longer to answer than to move what it takes.
        while self._ending and len(self.reclaim) < jobs:
            self._reclaim_ended()

    def next_ms(self) -> int | None:
        """Return when `expire` will next have something to do; None for never."""
        if self._ending:
            return 0
        # Bound: each round removes one entry of the heap.
        while self._expiry and not self._terms[self._expiry[0]].held:
            self._expiry_jobs -= len(self._terms.pop(heappop(self._expiry)).jobs)
        # Bound: each round removes one entry of the heap.
        while self._due and not self._is_due(*self._due[0]):
            heappop(self._due)
        times = [self._expiry[0] + 1] if self._expiry else []
        if self._due:
            times.append(self._due[0][0])
        return min(times, default=None)

    def _is_due(self, due_ms: int, seq: int) -> bool:
        job = self.resting.get(seq)
        return job.due_ms == due_ms if job is not None else self.later.get(seq, -1) >> 4 == due_ms

    # --- records come and go

    def arrived(self, first: int, ts: int, extras: dict[int, bytes]) -> None:
        """Take up the terms of appended records, which begin at seq `first`."""
        for at, extra in extras.items():
            terms = terms_of(extra)
            if terms is None:
                continue
            if terms.due_ms > ts:
                self.wait_until(first + at, terms)
            else:
                self.by_priority[terms.priority].seqs.append(first + at)

    def wait_until(self, seq: int, terms: Terms) -> None:
        """Make a job that was never delivered claimable at its time."""
        self.later[seq] = terms.due_ms << 4 | terms.priority
        heappush(self._due, (terms.due_ms, seq))

    def left(self, seqs: Iterable[int]) -> None:
        """Forget jobs whose records were deleted, evicted or lost."""
        for seq in seqs:
            if (job := self.leases.pop(seq, None)) is not None:
                self._leave_term(job)
                self._unhold(job)
            elif (job := self.leaving.pop(seq, None)) is not None:
                self._unhold(job)
            else:
                self.reclaim.pop(seq, None)
                self.resting.pop(seq, None)
                self.later.pop(seq, None)

    def left_range(self, low: int, high: int) -> None:
        """Forget all jobs with seqs [low, high). Takes time for the records or for the jobs, whichever are fewer."""
        touched = self._touched()
        if high - low > touched:
            self.left([seq for place in self._places() for seq in place if low <= seq < high])
        elif touched:
            self.left(range(low, high))

    def left_taken(self, parts: list[tuple[int, npt.NDArray[np.uint8]]]) -> None:
        """Forget the jobs with seqs `first + i` for which `taken[i]` is 1, for each `(first, taken)` in `parts`."""
        if not parts or not self._touched():
            return
        touched = np.sort(np.array([seq for place in self._places() for seq in place], np.int64))
        for first, taken in parts:
            low, high = np.searchsorted(touched, (first, first + len(taken)))
            mine = touched[low:high]
            self.left(mine[taken[mine - first] > 0].tolist())

    def _places(self) -> list[Mapping[int, object]]:
        """Return the places that hold jobs by seq."""
        return [self.leases, self.leaving, self.reclaim, self.resting, self.later]

    def _touched(self) -> int:
        return len(self.leases) + len(self.leaving) + len(self.reclaim) + len(self.resting) + len(self.later)

    # --- leases

    def grant(
        self, jobs: list[Job], node: str, first_lease: int, deadline_ms: int, holder: Holder | None = None
    ) -> None:
        """Lease the jobs to a worker, and count one more delivery of each."""
        leases, term = self.leases, self._term(deadline_ms, jobs)
        for lease, job in enumerate(jobs, first_lease):
            job.node, job.lease, job.term, job.holder = node, lease, term, holder
            job.deliveries += 1
            leases[job.seq] = job
        self.last_lease = max(self.last_lease, first_lease + len(jobs) - 1)
        if holder is not None:
            holder.held.update(job.seq for job in jobs)

    def take_back(self, jobs: Iterable[Job]) -> None:
        """Undo `grant`: the log did not take the leases."""
        for job in jobs:
            if self.leases.get(job.seq) is job:
                del self.leases[job.seq]
                self._leave_term(job)
                self._unhold(job)
                job.deliveries -= 1
                self.reclaim[job.seq] = job

    def extend(self, jobs: Iterable[Job], deadline_ms: int) -> None:
        extended = list(jobs)
        for job in extended:
            self._leave_term(job)
        self._begin_term(deadline_ms, extended)

    def take_out(self, jobs: Iterable[Job]) -> None:
        """Keep leased jobs from all other verbs while an entry about them is on its way to the log."""
        for job in jobs:
            del self.leases[job.seq]
            self._leave_term(job)
            self.leaving[job.seq] = job

    def put_back(self, jobs: Iterable[Job]) -> None:
        """Undo `take_out`: the log refused the entry."""
        again: dict[int, list[Job]] = {}
        for job in jobs:
            if self.leaving.pop(job.seq, None) is not None:
                self.leases[job.seq] = job
                again.setdefault(job.deadline_ms, []).append(job)
        for deadline_ms, group in again.items():
            self._begin_term(deadline_ms, group)

    def release(self, jobs: Iterable[Job], *, due_ms: int, now_ms: int) -> None:
        """Return jobs to the queue, at once or at `due_ms`."""
        for job in jobs:
            if self.leases.pop(job.seq, None) is not None:
                self._leave_term(job)
            elif self.leaving.pop(job.seq, None) is None:
                continue  # deleted in between
            self._unhold(job)
            if due_ms > now_ms:
                job.due_ms = due_ms
                self.resting[job.seq] = job
                heappush(self._due, (due_ms, job.seq))
            else:
                self.reclaim[job.seq] = job
        self._shrink_due()

    def touched(self, seq: int) -> bool:
        """Return whether a place has the job, so that the cursor and `by_priority` must not deliver it."""
        return (
            seq in self.leases or seq in self.reclaim or seq in self.resting or seq in self.later or seq in self.leaving
        )

    def held(self, seq: int) -> Job | None:
        """Return the job if a worker holds a lease of it that has not ended."""
        job = self.leases.get(seq)
        return None if job is None or job.term.ended else job

    def is_out(self, seq: int) -> bool:
        """Return whether a worker has the job."""
        return self.held(seq) is not None or seq in self.leaving

    def in_flight_seqs(self) -> Iterable[int]:
        """Return the seqs of the jobs that workers have."""
        return chain((seq for seq, job in self.leases.items() if not job.term.ended), self.leaving)

    def find(self, seq: int) -> Job | None:
        """Return the job if it was ever delivered."""
        for place in (self.leases, self.leaving, self.reclaim, self.resting):
            if (job := place.get(seq)) is not None:
                return job
        return None

    def next_lease(self, now_ms: int) -> int:
        """Return a lease number that no lease of this queue ever had, not even before a restart."""
        return max(self.last_lease + 1, now_ms << 16)

    # --- inside

    def _unhold(self, job: Job) -> None:
        holder, job.holder = job.holder, None
        if holder is not None:
            holder.held.discard(job.seq)
            holder.changed()

    def _leave_term(self, job: Job) -> None:
        """Count a job that is no longer leased, or gets another term."""
        term = job.term
        term.held -= 1
        if term.ended:
            self._ended -= 1

    def _begin_term(self, deadline_ms: int, jobs: list[Job]) -> None:
        """Let the leases of these jobs, which have no term now, end at `deadline_ms`."""
        term = self._term(deadline_ms, jobs)
        for job in jobs:
            job.term = term

    def _term(self, deadline_ms: int, jobs: list[Job]) -> Term:
        """Return the term that ends at `deadline_ms`, with these jobs added. The caller sets it in the jobs."""
        if self._expiry_jobs + len(self._expiry) > 2 * (len(self.leases) + len(jobs)) + STALE_MAX:
            self._rebuild_terms()
        term = self._terms.get(deadline_ms)
        if term is None:
            term = self._terms[deadline_ms] = Term(deadline_ms)
            heappush(self._expiry, deadline_ms)
        term.jobs += jobs
        term.held += len(jobs)
        self._expiry_jobs += len(jobs)
        return term

    def _rebuild_terms(self) -> None:
        """Free the memory of jobs that have left their terms: most have."""
        self._terms = {at: term for at, term in self._terms.items() if term.held}
        self._expiry = list(self._terms)
        heapify(self._expiry)
        for term in self._terms.values():
            term.jobs = [job for job in term.jobs if job.term is term and self.leases.get(job.seq) is job]
        self._expiry_jobs = sum(len(term.jobs) for term in self._terms.values())

    def _shrink_due(self) -> None:
        if len(self._due) > 2 * self.delayed + STALE_MAX:
            self._due = [(job.due_ms, seq) for seq, job in self.resting.items()]
            self._due += [(packed >> 4, seq) for seq, packed in self.later.items()]
            heapify(self._due)

    # --- snapshots

    def save(self, *, durable: bool, kept: bool) -> SavedLeases:
        """Return what a snapshot keeps: with leases if `durable`, nothing of the records unless `kept`."""
        saved = SavedLeases(self.dead_lettered, self.last_lease)
        if not kept:
            return saved
        by_priority: list[list[int]] = [waiting.seqs[waiting.at :].tolist() for waiting in self.by_priority]
        out = [job for place in (self.leases, self.leaving, self.reclaim, self.resting) for job in place.values()]
        if durable:
            saved.out = [self._saved_job(job) for job in out]
        else:
            for job in out:
                if job.priority is not None:
                    by_priority[job.priority].append(job.seq)
        saved.by_priority = [array("Q", sorted(seqs) if not durable else seqs).tobytes() for seqs in by_priority]
        saved.later = array("Q", [part for pair in self.later.items() for part in pair]).tobytes()
        return saved

    def _saved_job(self, job: Job) -> SavedJob:
        held = job.seq in self.leases or job.seq in self.leaving
        due_ms = job.due_ms if job.seq in self.resting else 0
        return SavedJob(
            job.seq, job.priority, job.deliveries, due_ms, job.lease if held else 0, job.node, job.deadline_ms
        )

    def load(self, saved: SavedLeases) -> None:
        self.dead_lettered, self.last_lease = saved.dead_lettered, saved.last_lease
        for waiting, packed in zip(self.by_priority, saved.by_priority, strict=False):
            waiting.seqs.frombytes(packed)
        pairs = array("Q")
        pairs.frombytes(saved.later)
        self.later = dict(zip(pairs[::2], pairs[1::2], strict=True))
        self._due = [(packed >> 4, seq) for seq, packed in self.later.items()]
        for one in saved.out:
            self._load_job(one)
        heapify(self._due)

    def _load_job(self, one: SavedJob) -> None:
        job = Job(one.seq, one.priority, one.deliveries)
        self.check_upto = max(self.check_upto, one.seq)
        if one.lease:
            job.lease, job.node = one.lease, one.node
            self.leases[one.seq] = job
            self._begin_term(one.deadline_ms, [job])
        elif one.due_ms:
            job.due_ms = one.due_ms
            self.resting[one.seq] = job
            self._due.append((one.due_ms, one.seq))
        else:
            self.reclaim[one.seq] = job


def leases_of(topic: Topic) -> Leases:
    """Return the leases of a topic that is a queue."""
    queue = topic.queue
    assert queue is not None
    return queue


class SavedJob(Struct, array_like=True):
    """One job that is or was leased."""

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
