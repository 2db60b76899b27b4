"""Jobs: those that were delivered, the leases that end together, and the seqs of those that wait."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec import Struct, structs

from topics.errors import invalid
from topics.model.queue import MAX_DELIVER_AT, Progress, Reason
from topics.model.records import MAX_KEY_BYTES, NewRecord, Unique, too_long
from topics.storage.segments.extras import Terms, pack

PRIORITIES = 10
REASON_BYTES = 512  # of a reason or a progress beside its texts


class Holder(Struct, eq=False):
    """A connection that jobs are pushed to: a callback for changes of the jobs that it holds, and these."""

    changed: Callable[[], None]
    held: set[int] = set()


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


NO_TERM = Term(0)


class Notes(Struct, frozen=True):
    """Why deliveries of a job failed, and how far the worker of one lease is. See `Reasons`."""

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


class Job(Struct, eq=False):
    """A job that was delivered at least once. The lease fields count only while it is in `leases` or `leaving`."""

    seq: int
    priority: int | None = None  # None for a job without terms
    deliveries: int = 0
    lease: int = 0
    node: str = ""
    due_ms: int = 0
    holder: Holder | None = None
    term: Term = NO_TERM
    notes: Notes = NOTHING

    def unhold(self) -> None:
        """Take the job from the connection that holds it, if one does."""
        holder, self.holder = self.holder, None
        if holder is not None:
            holder.held.discard(self.seq)
            holder.changed()

    @property
    def deadline_ms(self) -> int:
        return self.term.deadline_ms

    @property
    def lease_id(self) -> str:
        return f"lease_{self.lease:x}"

    @property
    def progress(self) -> Progress | None:
        return self.notes.progress if self.notes.lease == self.lease else None


class WaitingSeqs:
    """Seqs in the order in which they may be delivered; taken from the front."""

    __slots__ = ("at", "seqs")

    def __init__(self, seqs: Iterable[int] = ()) -> None:
        self.seqs = array("Q", seqs)
        self.at = 0

    def drop(self, seqs: Collection[int]) -> None:
        """Remove seqs."""
        self.seqs, self.at = array("Q", (seq for seq in self.seqs[self.at :] if seq not in seqs)), 0

    def trim(self) -> None:
        """Free the memory of seqs that were taken, seldom enough to cost nothing."""
        if self.at == len(self.seqs) or (self.at > 1024 and self.at * 2 > len(self.seqs)):
            del self.seqs[: self.at]
            self.at = 0


def job_terms(records: Sequence[NewRecord], ts: int) -> dict[int, bytes] | None:
    """Return the extras of the records that have terms, by position. None if no producer asked for terms."""
    found: dict[int, bytes] | None = None
    for at, record in enumerate(records):
        priority, delay_ms, deliver_at, key = record.priority, record.delay_ms, record.deliver_at, record.key
        if priority is None and delay_ms is None and deliver_at is None and key is None and record.unique is None:
            continue
        found = found or {}
        if key is not None:
            check_key(key, f"records[{at}].key")
        if delay_ms is not None and deliver_at is not None:
            raise invalid("a job takes delay_ms or deliver_at, not both", field=f"records[{at}].deliver_at")
        due_ms = (deliver_at or 0) if delay_ms is None else ts + delay_ms
        if due_ms > MAX_DELIVER_AT:
            field = "deliver_at" if delay_ms is None else "delay_ms"
            raise invalid(f"{field} is too far away", field=f"records[{at}].{field}")
        unique = None if record.unique is None else _checked_unique(record.unique, len(records), ts)
        if priority or due_ms > ts or key is not None or unique is not None:
            found[at] = pack(Terms(priority or 0, due_ms if due_ms > ts else 0, key, unique))
    return found


def _checked_unique(unique: Unique, records: int, ts: int) -> tuple[str, int]:
    """Return the key, and the time at which another job may have it; 0 if that is once the job has left."""
    if records > 1:
        raise invalid("a write with a unique job has one record", field="records")
    check_key(unique.key, "records[0].unique.key")
    ends_ms = 0 if unique.for_ == "pending" else ts + unique.for_
    if ends_ms > MAX_DELIVER_AT or unique.for_ == 0:
        raise invalid("unique.for must be `pending` or a time in milliseconds", field="records[0].unique.for")
    return unique.key, ends_ms


def check_key(key: str, field: str) -> None:
    if not key:
        raise invalid(f"{field} must not be empty", field=field)
    if len(key) * 4 > MAX_KEY_BYTES and len(key.encode()) > MAX_KEY_BYTES:
        raise too_long(field, len(key.encode()), MAX_KEY_BYTES)
