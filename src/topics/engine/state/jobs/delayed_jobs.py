"""Jobs of one queue that may not be delivered before their time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from topics.engine.state.jobs.job import Job
from topics.engine.state.jobs.job_terms import Terms
from topics.engine.state.jobs.lease_deadlines import STALE_MAX


class DelayedJobs:
    """Delayed jobs by seq, and a heap of their times. A caller that removes a job leaves its mark in the heap."""

    __slots__ = ("heap", "later", "resting")

    def __init__(self) -> None:
        self.resting: dict[int, Job] = {}  # delivered before
        self.later: dict[int, int] = {}  # never delivered: seq → due_ms * 16 + priority
        self.heap: list[tuple[int, int]] = []  # due_ms, seq

    def __len__(self) -> int:
        return len(self.resting) + len(self.later)

    def add_new(self, seq: int, terms: Terms) -> None:
        """Add a job that was never delivered."""
        self.later[seq] = terms.due_ms << 4 | terms.priority
        heappush(self.heap, (terms.due_ms, seq))

    def add(self, job: Job, due_ms: int) -> None:
        """Add a job that was delivered before."""
        job.due_ms = due_ms
        self.resting[job.seq] = job
        heappush(self.heap, (due_ms, job.seq))

    def load_new(self, later: Mapping[int, int]) -> None:
        """Add the jobs of a snapshot that were never delivered."""
        self.later.update(later)
        self._rebuild()

    def take_due(self, now_ms: int) -> Iterator[Job | tuple[int, int]]:
        """Remove and yield the jobs whose time has come: the job if it was delivered before, else priority and seq."""
        heap = self.heap
        while heap and heap[0][0] <= now_ms:
            due_ms, seq = heappop(heap)
            job = self.resting.get(seq)
            if job is not None:
                if job.due_ms == due_ms:
                    yield self.resting.pop(seq)
            elif self.later.get(seq, -1) >> 4 == due_ms:
                yield self.later.pop(seq) & 15, seq

    def next_ms(self) -> int | None:
        """Return the next time at which a job may be delivered; None if no job is delayed."""
        # Bound: each round removes one entry of the heap.
        while self.heap and not self._is_current(*self.heap[0]):
            heappop(self.heap)
        return self.heap[0][0] if self.heap else None

    def _is_current(self, due_ms: int, seq: int) -> bool:
        job = self.resting.get(seq)
        return job.due_ms == due_ms if job is not None else self.later.get(seq, -1) >> 4 == due_ms

    def shrink(self) -> None:
        """Rebuild the heap if most of its marks are of jobs that were removed."""
        if len(self.heap) > 2 * len(self) + STALE_MAX:
            self._rebuild()

    def _rebuild(self) -> None:
        self.heap = [(job.due_ms, seq) for seq, job in self.resting.items()]
        self.heap += [(packed >> 4, seq) for seq, packed in self.later.items()]
        heapify(self.heap)
