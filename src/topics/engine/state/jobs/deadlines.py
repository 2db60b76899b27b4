"""When leases end: all leases that end at the same millisecond, together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from topics.engine.state.jobs.job import Job, Term

RECLAIM_MAX = 4096  # jobs that one call of `take_ended` looks at: one to two milliseconds
STALE_MAX = 4096  # outdated marks that a heap may hold beyond its use before it is rebuilt


class LeaseDeadlines:
    """The terms of the leases in `leases`, which belongs to the caller. `take_ended` removes jobs from it."""

    __slots__ = ("_leases", "_listed", "_terms", "ended", "ending", "heap")

    def __init__(self, leases: dict[int, Job]) -> None:
        self._leases = leases
        self._terms: dict[int, Term] = {}  # by deadline, those that have not ended
        self.heap: list[int] = []  # their deadlines
        self._listed = 0  # jobs in these terms, with those that have left
        self.ending: deque[Term] = deque()  # terms that have ended and whose jobs have not all been taken out
        self.ended = 0  # jobs in `leases` whose term has ended

    def set(self, deadline_ms: int, jobs: list[Job]) -> None:
        """Let the leases of these jobs, which have no term now, end at `deadline_ms`."""
        n = len(jobs)
        if self._listed + len(self.heap) > 2 * (len(self._leases) + n) + STALE_MAX:
            self._rebuild()
        term = self._terms.get(deadline_ms)
        if term is None:
            term = self._terms[deadline_ms] = Term(deadline_ms)
            heappush(self.heap, deadline_ms)
        term.jobs += jobs
        term.held += n
        self._listed += n
        for job in jobs:
            job.term = term

    def move(self, jobs: list[Job], deadline_ms: int) -> None:
        """Let the leases of these jobs end at another time."""
        self.leave(jobs)
        self.set(deadline_ms, jobs)

    def leave(self, jobs: Iterable[Job]) -> None:
        """Count jobs that are no longer leased, or get another term."""
        for job in jobs:
            term = job.term
            term.held -= 1
            if term.ended:
                self.ended -= 1
            elif not term.held:  # free the jobs at once: they refer to the term, and it to them
                self._listed -= len(term.jobs)
                term.jobs.clear()

    def end(self, now_ms: int) -> None:
        """End the terms whose deadline is before `now_ms`. Takes half a microsecond per deadline."""
        heap = self.heap
        while heap and heap[0] < now_ms:
            term = self._terms.pop(heappop(heap))
            self._listed -= len(term.jobs)
            if term.held:
                term.ended = True
                self.ended += term.held
                self.ending.append(term)

    def take_ended(self) -> list[Job]:
        """Look at `RECLAIM_MAX` jobs whose lease has ended, in this order; take out and return those still leased."""
        ending, leases, left = self.ending, self._leases, RECLAIM_MAX
        taken = []
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
                    taken.append(job)
            if not term.jobs:
                ending.popleft()
        self.ended -= len(taken)
        return taken

    def next_ms(self) -> int | None:
        """Return the first millisecond after the next deadline of a lease; None if there is none."""
        # Bound: each round removes one entry of the heap.
        while self.heap and not self._terms[self.heap[0]].held:
            self._listed -= len(self._terms.pop(heappop(self.heap)).jobs)
        return self.heap[0] + 1 if self.heap else None

    def _rebuild(self) -> None:
        """Free the memory of jobs that have left their terms: most have."""
        self._terms = {at: term for at, term in self._terms.items() if term.held}
        self.heap = list(self._terms)
        heapify(self.heap)
        for term in self._terms.values():
            term.jobs = [job for job in term.jobs if job.term is term and self._leases.get(job.seq) is job]
        self._listed = sum(len(term.jobs) for term in self._terms.values())
