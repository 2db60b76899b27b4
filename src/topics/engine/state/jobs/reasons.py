"""Why deliveries of jobs failed, and how far jobs are: each job has its notes, within one bound on memory for all."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from msgspec import structs

from topics.engine.state.jobs.job import NOTHING, Job, Notes
from topics.model.queue import Reason

MAX_REASONS = 5  # of one job
MAX_BYTES = 16 << 20  # of all jobs; the notes of the job that failed longest ago make room
EARLIER_CHARS = 256  # of a reason that is not the last one of its job: it has no `error`, either
STALE_MAX = 1024  # outdated entries that the heap may have beyond its use before it is rebuilt


def with_reason(reasons: tuple[Reason, ...], last: Reason) -> tuple[Reason, ...]:
    """Return the reasons with one more. Shorten the one before it: only the last one is complete."""
    if reasons and (reasons[-1].error is not None or len(reasons[-1].reason) > EARLIER_CHARS):
        cut = structs.replace(reasons[-1], reason=reasons[-1].reason[:EARLIER_CHARS], error=None)
        reasons = (*reasons[:-1], cut)
    return (*reasons[1 - MAX_REASONS :], last)


class Reasons:
    """The jobs of all queues that have notes. Those of a dropped queue stay until others need the room."""

    __slots__ = ("_ages", "_jobs", "bytes")

    def __init__(self) -> None:
        self._jobs: set[Job] = set()
        self._ages: list[tuple[int, int, int, Job]] = []  # a heap of `failed_ms`, seq and job; some are outdated
        self.bytes = 0

    def keep(self, job: Job, notes: Notes) -> None:
        """Replace the notes of a job."""
        self.bytes += notes.size_bytes - job.notes.size_bytes
        job.notes = notes
        if notes is NOTHING:
            self._jobs.discard(job)
            return
        self._jobs.add(job)
        heappush(self._ages, _age(job))
        while self.bytes > MAX_BYTES:
            failed_ms, *_, oldest = heappop(self._ages)
            if oldest.notes.failed_ms == failed_ms:
                self.keep(oldest, NOTHING)
        if len(self._ages) > 2 * len(self._jobs) + STALE_MAX:
            self._ages = [_age(job) for job in self._jobs]
            heapify(self._ages)


def _age(job: Job) -> tuple[int, int, int, Job]:
    return job.notes.failed_ms, job.seq, id(job), job
