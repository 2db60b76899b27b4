"""Why deliveries of jobs failed, and how far jobs are: for each job, within one bound on memory for all queues."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from msgspec import Struct, structs

from topics.model.queue import Progress, Reason

MAX_REASONS = 5  # of one job
MAX_BYTES = 16 << 20  # of all jobs; the notes of the job that failed longest ago make room
EARLIER_CHARS = 256  # of a reason that is not the last one of its job: it has no `error`, either
REASON_BYTES = 512  # of a reason or a progress beside its texts
STALE_MAX = 1024  # outdated entries that the heap may have beyond its use before it is rebuilt


class Notes(Struct, frozen=True):
    """What is known of one job."""

    reasons: tuple[Reason, ...] = ()
    progress: Progress | None = None
    lease: int = 0  # of the progress

    @property
    def size_bytes(self) -> int:
        error = self.reasons[-1].error if self.reasons else None
        texts = 0 if error is None else 4 * sum(len(text or "") for text in structs.astuple(error))
        if self.progress is not None:
            texts += REASON_BYTES + 4 * len(self.progress.text or "")
        return texts + sum(REASON_BYTES + 4 * len(one.reason) for one in self.reasons)

    @property
    def failed_ms(self) -> int:
        return self.reasons[-1].at if self.reasons else 0


NOTHING = Notes()


def with_reason(reasons: tuple[Reason, ...], last: Reason) -> tuple[Reason, ...]:
    """Return the reasons with one more. Shorten the one before it: only the last one is complete."""
    if reasons and (reasons[-1].error is not None or len(reasons[-1].reason) > EARLIER_CHARS):
        cut = structs.replace(reasons[-1], reason=reasons[-1].reason[:EARLIER_CHARS], error=None)
        reasons = (*reasons[:-1], cut)
    return (*reasons[1 - MAX_REASONS :], last)


class Reasons:
    """The notes of all queues, by topic id and seq. Those of a dropped queue stay until others need the room."""

    __slots__ = ("_ages", "_by_job", "bytes")

    def __init__(self) -> None:
        self._by_job: dict[tuple[int, int], Notes] = {}
        self._ages: list[tuple[int, int, int]] = []  # a heap of `failed_ms` and the job; some entries are outdated
        self.bytes = 0

    def get(self, topic_id: int, seq: int) -> Notes:
        return self._by_job.get((topic_id, seq), NOTHING)

    def keep(self, topic_id: int, seq: int, notes: Notes) -> None:
        self.forget(topic_id, seq)
        self._by_job[topic_id, seq] = notes
        self.bytes += notes.size_bytes
        heappush(self._ages, (notes.failed_ms, topic_id, seq))
        while self.bytes > MAX_BYTES:
            failed_ms, *job = heappop(self._ages)
            if self.get(*job).failed_ms == failed_ms:
                self.forget(*job)
        if len(self._ages) > 2 * len(self._by_job) + STALE_MAX:
            self._ages = [(kept.failed_ms, *job) for job, kept in self._by_job.items()]
            heapify(self._ages)

    def forget(self, topic_id: int, seq: int) -> None:
        notes = self._by_job.pop((topic_id, seq), None)
        if notes is not None:
            self.bytes -= notes.size_bytes
