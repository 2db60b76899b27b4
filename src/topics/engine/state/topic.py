"""What the engine knows of one topic.

Some of it a restart must find again: records, losses, configuration, archive marks, consumers (`KEPT` in
`test_state_changes.py`). It changes in `apply`, `retention`, `archived`, `consumer_log` and `idempotency` only, by the
same functions for a live write and for a replayed entry; `snapshot_parts` builds it from files. The rest
belongs to the running process: pending entries, which the methods of `Topic` count, and which readers wait (`staging`,
the server's push).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from topics.engine.state.consumers import TopicConsumers
from topics.engine.state.jobs.leases import Leases
from topics.engine.state.jobs.reasons import Reasons
from topics.engine.state.losses import NO_LOSSES, NOTHING, Losses, LossSums
from topics.model.topic import TopicConfig
from topics.storage.segments.segment import MemorySegment, Segment

Encoded = bytes  # a name for the type, because a topic has a field `bytes`
FIRST_CEILING = 4096  # of a new topic: no entry of the log says so
NO_CEILING = 1 << 64  # of a topic without a log: no start continues above it
EMPTY: Any = MappingProxyType({})  # in place of mappings that an idle topic does not need: 80 bytes each
UNKNOWN_STEP = 1 << 62  # so large that the first write has `Ceilings.guard` determine the step

_first_of = attrgetter("first")


class Remembered(Struct, frozen=True, array_like=True, gc=False):
    """A write that carried an idempotency key: its seqs, and its time, which decides when the key is forgotten."""

    first: int
    last: int
    at_ms: int


@dataclass(slots=True, eq=False)
class Totals:
    """Sums over all topics. They are updated with every change, so that a quota check is one comparison."""

    records: int = 0
    removed: int = 0  # records that were live before: `records + removed` grows by each appended record
    lost: LossSums = field(default_factory=LossSums)
    bytes: int = 0
    key_bytes: int = 0  # memory of remembered idempotency keys
    reasons: Reasons = field(default_factory=Reasons)
    follows: bool = False  # whether the topics are those of a standby, which may be behind its readers


@dataclass(slots=True, eq=False)
class Topic:
    """One topic: one epoch of its name.

    Every seq from 1 to `head` is live, deleted, or in `losses`. Below `earliest` nothing is live. `evict_floor` is one
    past the last involuntary loss below `earliest`; a loss above it is a gap between live records.
    """

    name: str  # the charset needs no escaping in JSON
    topic_id: int = field(kw_only=True)
    epoch: int = field(kw_only=True)
    config: TopicConfig = field(kw_only=True)
    totals: Totals = field(kw_only=True)
    segments: list[Segment] = field(default_factory=list)  # in seq order; the last one is open
    head: int = 0  # highest published seq
    next_seq: int = 1  # the first seq of the next write: above head + 1 while writes wait for the log
    earliest: int = 1
    evict_floor: int = 1
    losses: Losses = NO_LOSSES  # to add to them: `own_losses`
    lost_ts: int = 0  # commit time of the last record lost at the front
    count: int = 0
    bytes: int = 0
    last_ts: int = 0
    front_ts: int = 0  # at most the commit time of the first live record
    # No seq above the ceiling is acknowledged before a higher ceiling is durable: no seq is ever given out twice.
    ceiling: int = FIRST_CEILING
    ceiling_staged: int = FIRST_CEILING
    ceiling_step: int = UNKNOWN_STEP
    ceiling_raised: tuple[int, int] | None = None  # with a replica: when it was raised, and for which seq
    last_write_ts: int | None = None
    last_read_ts: int | None = None
    keys: OrderedDict[str, Remembered] = field(init=False)  # oldest first; see `idempotency`
    key_bytes: int = 0
    staged_keys: dict[Any, Any] = field(init=False)  # `append.Name` → the pending ticket
    leader: Any = None  # the ticket of this turn that a plain append, or an ack, may follow
    staged_count: int = 0
    staged_bytes: int = 0
    # `StagedDelete`s and moves out that wait for the log, in its order
    staged_deletes: list[Any] = field(init=False)
    # Of deletes, moves and changes that wait: see `retention.cutoff_ms`.
    staged_times: list[int] = field(init=False)
    pending: int = 0  # entries that wait for the log
    waiting: int = 0  # of these, the entries that take effect only once synced
    changing: bool = False  # whether one of these changes the topic itself
    # Called after every turn in which it grew or ended.
    listeners: dict[int, Callable[[Topic], None]] = field(init=False)
    evicted_unarchived: int = 0  # records that a cap evicted before they were archived, against `archive.hold`
    waits_since_ms: int | None = None  # since when something waits to be pushed to watchers
    # The number of a change that made the class promise more than the log has; 0 once a snapshot has the rest.
    needs_snapshot: int = 0
    captured_in: int = 0  # number of the last snapshot that was taken of the topic
    saved_tail: Any = None  # the tail in the last snapshot that was written, see `snapshot_parts.SavedTail`
    gone: bool = False  # whether the topic was dropped
    links: Any = None  # the routers around the topic: `routers.graph.Links`, None without routers
    queue: Leases | None = None
    consumers: TopicConsumers | None = None  # None until one is stored; only `consumer_log` changes them
    diff_start: Encoded = b""  # of every answer to a diff; empty before the first, see `begin_diff`
    archived: int = 0  # an archive reported to have everything up to this seq
    trimmed: int = 0  # that archive has deleted the records up to this seq, or is about to

    def __post_init__(self) -> None:
        self.keys = self.staged_keys = self.listeners = EMPTY
        self.staged_deletes = self.staged_times = NOTHING
        if self.config.type == "queue":
            self.queue = Leases(self)

    def begin_epoch(self, epoch: int) -> None:
        """Begin another history: of a new topic, or of one that was restored from a backup."""
        self.epoch, self.diff_start = epoch, b""
        self.archived = self.trimmed = 0

    def begin_diff(self) -> Encoded:
        self.diff_start = f'{{"topic":"{self.name}","epoch":{self.epoch},"records":['.encode()
        return self.diff_start

    def own_losses(self) -> Losses:
        """Return the losses, to add to them: all topics that have lost nothing have the same object."""
        if self.losses is NO_LOSSES:
            self.losses = Losses(sums=self.totals.lost)
        return self.losses

    @property
    def open(self) -> MemorySegment:
        last = self.segments[-1]
        assert isinstance(last, MemorySegment)
        return last

    @property
    def holds(self) -> bool:
        """Whether records that are not archived yet are kept from expiring."""
        archive = self.config.archive
        return archive is not None and archive.hold

    @property
    def has_losses_above_floor(self) -> bool:
        """Return whether records with a seq of at least `evict_floor` were lost."""
        runs = self.losses.runs
        return bool(runs) and runs[-1][1] >= self.evict_floor

    def index_of(self, seq: int) -> int:
        """Return the index of the segment that holds `seq`, or of the nearest one behind it."""
        segments = self.segments
        if segments and seq >= segments[-1].first:
            return len(segments) - 1
        at = bisect_right(segments, seq, key=_first_of) - 1
        return at + 1 if at < 0 or seq >= segments[at].end else at

    def segment_of(self, seq: int) -> Segment:
        """Return the segment that holds `seq`, or the nearest one behind it."""
        last = self.segments[-1]
        return last if seq >= last.first else self.segments[self.index_of(seq)]

    def spans(self, low: int, high: int) -> Iterator[tuple[Segment, int, int]]:
        """Yield the parts of segments with seqs [low, high): segment, first position, position after the last."""
        if low >= high:
            return
        for segment in self.segments[self.index_of(low) :]:
            if segment.first >= high:
                return
            start, stop = max(low - segment.first, 0), min(high - segment.first, segment.count)
            if start < stop:
                yield segment, start, stop

    def walk(self, low: int, high: int) -> Iterator[tuple[Segment, int, int]]:
        """Like `spans`, for work in steps: each part is looked up when it is asked for, so the topic may change."""
        # Bound: every round moves `low` past one segment.
        while not self.gone and (span := next(self.spans(max(low, self.earliest), high), None)) is not None:
            segment, _, stop = span
            low = segment.first + stop
            yield span

    def is_live(self, seq: int) -> bool:
        """Return whether there is a record with this seq. Raises `Cold` like a read."""
        if not self.earliest <= seq <= self.head:
            return False
        segment = self.segment_of(seq)
        if seq < segment.first or not segment.live:
            return False
        marks = segment.marks
        return marks is None or not marks[seq - segment.first]

    # --- seqs and pending tickets (`write.ticket.Ticket`): no other module assigns what these methods do

    def enter(self, ticket: Any) -> None:
        """Count a ticket that changes this topic until it leaves. One about this topic takes its seqs now."""
        self.pending += 1
        if ticket.gated:
            self.waiting += 1
        if ticket.at_ms is not None:
            self.staged_times = self.staged_times or []
            self.staged_times.append(ticket.at_ms)
        if ticket.topic is self:
            self.leader = ticket if ticket.close is not None else None
            if ticket.first:
                self.next_seq = ticket.first + ticket.count + ticket.skips
                self.staged_count += ticket.count
                self.staged_bytes += ticket.size_bytes

    def leave(self, ticket: Any) -> None:
        """End what `enter` began: the ticket takes effect, or the log refuses it."""
        self.pending -= 1
        if ticket.gated:
            self.waiting -= 1
        if ticket.at_ms is not None:
            self.staged_times.remove(ticket.at_ms)
            self.staged_times = self.staged_times or NOTHING
        if ticket.topic is self and ticket.first:
            self.staged_count -= ticket.count
            self.staged_bytes -= ticket.size_bytes

    def follow(self, n: int, size_bytes: int, ts: int, most: int, most_bytes: int) -> Any:
        """Let `n` records take the seqs behind the leader's; return the leader, or None if they need a ticket.

        `Ceilings.guard` gates a ticket whose seqs pass the ceiling, so no seqs that a follower takes may pass it.
        """
        leader, end = self.leader, self.next_seq + n
        if (
            leader is None or leader.ts != ts or end > self.ceiling
            or end - leader.first > most or leader.size_bytes + size_bytes > most_bytes
        ):  # fmt: skip
            return None
        self.next_seq = end
        self.staged_bytes += size_bytes
        leader.size_bytes += size_bytes
        return leader

    def enlarge(self, ticket: Any, n: int) -> None:
        """Count `n` more records, which have followed the leader, for a ticket of theirs."""
        ticket.count += n
        if ticket is self.leader:
            self.staged_count += n

    def give_back(self, ticket: Any) -> None:
        """Let a refused ticket leave, and assign its seqs again. Those behind it are refused, too, and before it."""
        self.leave(ticket)
        self.leader = None
        if ticket.first:
            self.next_seq = ticket.first

    def pass_head(self) -> None:
        """Assign no seq up to the head again: it was moved by a copy, a loss or a replay."""
        if self.next_seq <= self.head:
            self.next_seq = self.head + 1

    def removed(self, n: int, size_bytes: int) -> None:
        """Subtract records that are no longer live from the counts."""
        self.count -= n
        self.bytes -= size_bytes
        totals = self.totals
        totals.records -= n
        totals.removed += n
        totals.bytes -= size_bytes


def leases_of(topic: Topic) -> Leases:
    queue = topic.queue
    assert queue is not None
    return queue
