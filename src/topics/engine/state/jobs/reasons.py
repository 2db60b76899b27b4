"""Why deliveries of jobs failed: the last reasons of each job, within one bound on memory for all queues."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from msgspec import structs

from topics.model.queue import Reason

MAX_REASONS = 5  # of one job
MAX_BYTES = 16 << 20  # of all jobs; the reasons of the job that failed longest ago make room
EARLIER_CHARS = 256  # of a reason that is not the last one of its job: it has no `error`, either
REASON_BYTES = 512  # of a reason beside its texts
STALE_MAX = 1024  # outdated entries that the heap may have beyond its use before it is rebuilt


def with_reason(reasons: tuple[Reason, ...], last: Reason) -> tuple[Reason, ...]:
    """Return the reasons with one more. Shorten the one before it: only the last one is complete."""
    if reasons and (reasons[-1].error is not None or len(reasons[-1].reason) > EARLIER_CHARS):
        cut = structs.replace(reasons[-1], reason=reasons[-1].reason[:EARLIER_CHARS], error=None)
        reasons = (*reasons[:-1], cut)
    return (*reasons[1 - MAX_REASONS :], last)


def _size_bytes(reasons: tuple[Reason, ...]) -> int:
    error = reasons[-1].error
    texts = 0 if error is None else 4 * sum(len(text or "") for text in structs.astuple(error))
    return texts + sum(REASON_BYTES + 4 * len(one.reason) for one in reasons)


class Reasons:
    """The reasons of all queues, by topic id and seq. Those of a dropped queue stay until others need the room."""

    __slots__ = ("_ages", "_by_job", "bytes")

    def __init__(self) -> None:
        self._by_job: dict[tuple[int, int], tuple[Reason, ...]] = {}
        self._ages: list[tuple[int, int, int]] = []  # a heap of when jobs failed, and of these; it has outdated ones, too
        self.bytes = 0

    def get(self, topic_id: int, seq: int) -> tuple[Reason, ...]:
        return self._by_job.get((topic_id, seq), ())

    def keep(self, topic_id: int, seq: int, reasons: tuple[Reason, ...]) -> None:
        self.forget(topic_id, seq)
        self._by_job[topic_id, seq] = reasons
        self.bytes += _size_bytes(reasons)
        heappush(self._ages, (reasons[-1].at, topic_id, seq))
        while self.bytes > MAX_BYTES:
            at, *job = heappop(self._ages)
            if (oldest := self.get(*job)) and oldest[-1].at == at:
                self.forget(*job)
        if len(self._ages) > 2 * len(self._by_job) + STALE_MAX:
            self._ages = [(kept[-1].at, *job) for job, kept in self._by_job.items()]
            heapify(self._ages)

    def forget(self, topic_id: int, seq: int) -> None:
        reasons = self._by_job.pop((topic_id, seq), None)
        if reasons is not None:
            self.bytes -= _size_bytes(reasons)
