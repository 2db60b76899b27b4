"""Why deliveries of jobs failed, and how far jobs are: for each job, within one bound on memory for all queues."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from msgspec import structs

from topics.model.queue import Progress, Reason

MAX_REASONS = 5  # of one job
MAX_BYTES = 16 << 20  # of all jobs; the reasons of the job that failed longest ago make room
EARLIER_CHARS = 256  # of a reason that is not the last one of its job: it has no `error`, either
REASON_BYTES = 512  # of a reason or a progress beside its texts
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


def _progress_bytes(progress: Progress) -> int:
    return REASON_BYTES + 4 * len(progress.text or "")


class Reasons:
    """The reasons and the progress of all queues, by topic id and seq.

    Those of a dropped queue stay until others need the room.
    """

    __slots__ = ("_ages", "_by_job", "_progress", "bytes")

    def __init__(self) -> None:
        self._by_job: dict[tuple[int, int], tuple[Reason, ...]] = {}
        self._ages: list[
            tuple[int, int, int]
        ] = []  # a heap of when jobs failed, and of these; it has outdated ones, too
        self._progress: dict[tuple[int, int], tuple[int, Progress]] = {}  # with the lease; the oldest job first
        self.bytes = 0

    def note_progress(self, topic_id: int, seq: int, lease: int, progress: Progress) -> None:
        self._forget_progress((topic_id, seq))
        self._progress[topic_id, seq] = lease, progress
        self.bytes += _progress_bytes(progress)
        self._make_room()

    def progress(self, topic_id: int, seq: int, lease: int) -> Progress | None:
        of_lease, progress = self._progress.get((topic_id, seq), (0, None))
        return progress if of_lease == lease else None

    def get(self, topic_id: int, seq: int) -> tuple[Reason, ...]:
        return self._by_job.get((topic_id, seq), ())

    def keep(self, topic_id: int, seq: int, reasons: tuple[Reason, ...]) -> None:
        self.forget(topic_id, seq)
        self._by_job[topic_id, seq] = reasons
        self.bytes += _size_bytes(reasons)
        heappush(self._ages, (reasons[-1].at, topic_id, seq))
        self._make_room()
        if len(self._ages) > 2 * len(self._by_job) + STALE_MAX:
            self._ages = [(kept[-1].at, *job) for job, kept in self._by_job.items()]
            heapify(self._ages)

    def _make_room(self) -> None:
        while self.bytes > MAX_BYTES and self._progress:
            self._forget_progress(next(iter(self._progress)))
        while self.bytes > MAX_BYTES:
            at, *job = heappop(self._ages)
            if (oldest := self.get(*job)) and oldest[-1].at == at:
                self.forget(*job)

    def _forget_progress(self, job: tuple[int, int]) -> None:
        if (known := self._progress.pop(job, None)) is not None:
            self.bytes -= _progress_bytes(known[1])

    def forget(self, topic_id: int, seq: int) -> None:
        self._forget_progress((topic_id, seq))
        reasons = self._by_job.pop((topic_id, seq), None)
        if reasons is not None:
            self.bytes -= _size_bytes(reasons)
