"""Jobs that were delivered, the leases that end together, and the seqs of jobs that wait."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

PRIORITIES = 10


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
