"""What the engine knows of one topic.

Some of it a restart must find again: records, losses, configuration, archive marks, consumers (`KEPT` in the tests of
the module). It changes in `apply`, `retention`, `archived`, `consumer_log` and `idempotency` only, by the same
functions for a live write and for a replayed entry; `snapshot_parts` builds it from files. The rest
belongs to the running process: pending entries (`staging`, `append`, `commit`, `ceilings`), and which readers wait
(`staging`, the server's push).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from msgspec import Struct

from topics.engine.state.consumers import TopicConsumers
from topics.engine.state.jobs.leases import Leases
from topics.engine.state.jobs.reasons import Reasons
from topics.engine.state.losses import Losses
from topics.model.topic import TopicConfig
from topics.storage.segments.segment import MemorySegment, Segment

FIRST_CEILING = 4096  # of a new topic: no entry of the log says so
UNKNOWN_STEP = 1 << 62  # so large that the first write has `Ceilings.guard` determine the step

_first_of = attrgetter("first")


class Remembered(Struct, frozen=True, array_like=True, gc=False):
    """A write that carried an idempotency key: its seqs, and its time, which decides when the key is forgotten."""

    first: int
    last: int
    at_ms: int


class Totals:
    """Sums over all topics. They are updated with every change, so that a quota check is one comparison."""

    __slots__ = ("bytes", "follows", "key_bytes", "lost", "reasons", "records", "removed")

    def __init__(self) -> None:
        self.records = 0
        self.removed = 0  # records that were live before: `records + removed` grows by each appended record
        self.lost: dict[str, int] = {}  # seqs that were lost, by reason
        self.bytes = 0
        self.key_bytes = 0  # memory of remembered idempotency keys
        self.reasons = Reasons()
        self.follows = False  # whether the topics are those of a standby, which may be behind its readers


class Topic:
    """One topic: one epoch of its name.

    Every seq from 1 to `head` is live, deleted, or in `losses`. Below `earliest` nothing is live. `evict_floor` is one
    past the last involuntary loss below `earliest`; a loss above it is a gap between live records.
    """

    __slots__ = (
        "archived", "bytes", "captured_in", "ceiling", "ceiling_raised", "ceiling_staged", "ceiling_step", "changing",
        "config", "consumers", "count", "diff_start", "earliest", "epoch", "evict_floor", "evicted_unarchived",
        "front_ts", "gone", "head", "key_bytes", "keys", "last_read_ts", "last_ts", "last_write_ts", "leader",
        "links", "listeners", "losses", "lost_ts", "name", "needs_snapshot", "next_seq", "pending", "queue",
        "saved_tail", "segments", "staged_bytes", "staged_count", "staged_deletes", "staged_keys", "staged_times",
        "topic_id", "totals", "trimmed", "waiting", "waits_since_ms", "wire_name",
    )  # fmt: skip

    def __init__(self, name: str, *, topic_id: int, epoch: int, config: TopicConfig, totals: Totals) -> None:
        self.name = name
        self.wire_name = name.encode()  # the charset needs no escaping in JSON
        self.topic_id = topic_id
        self.begin_epoch(epoch)
        self.config = config
        self.totals = totals
        self.segments: list[Segment] = []  # in seq order; the last one is open
        self.head = 0  # highest published seq
        self.next_seq = 1  # the first seq of the next write: above head + 1 while writes wait for the log
        self.earliest = 1
        self.evict_floor = 1
        self.losses = Losses(counts=totals.lost)
        self.lost_ts = 0  # commit time of the last record lost at the front
        self.count = 0
        self.bytes = 0
        self.last_ts = 0
        self.front_ts = 0  # at most the commit time of the first live record
        # No seq above the ceiling is acknowledged before a higher ceiling is durable: no seq is ever given out twice.
        self.ceiling = self.ceiling_staged = FIRST_CEILING
        self.ceiling_step = UNKNOWN_STEP
        self.ceiling_raised: tuple[int, int] | None = None  # with a replica: when it was raised, and for which seq
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None
        self.keys: OrderedDict[str, Remembered] = OrderedDict()  # oldest first; only `idempotency` changes it
        self.key_bytes = 0
        self.staged_keys: dict[Any, Any] = {}  # `append.Name` → the pending ticket
        self.leader: Any = None  # the ticket of this turn that a plain append may follow
        self.staged_count = 0
        self.staged_bytes = 0
        self.staged_deletes: list[Any] = []  # `StagedDelete`s and moves out that wait for the log, in its order
        self.staged_times: list[int] = []  # of deletes, moves and changes that wait: see `retention.cutoff_ms`
        self.pending = 0  # entries that wait for the log
        self.waiting = 0  # of these, the entries that take effect only once synced
        self.changing = False  # whether one of these changes the topic itself
        self.listeners: dict[int, Callable[[Topic], None]] = {}  # called after every turn in which it grew or ended
        self.evicted_unarchived = 0  # records that a cap evicted before they were archived, against `archive.hold`
        self.waits_since_ms: int | None = None  # since when something waits to be pushed to watchers
        # The number of a change that made the class promise more than the log has; 0 once a snapshot has the rest.
        self.needs_snapshot = 0
        self.captured_in = 0  # number of the last snapshot that was taken of the topic
        self.saved_tail: Any = None  # the tail in the last snapshot that was written, see `snapshot_parts.SavedTail`
        self.gone = False  # whether the topic was dropped
        self.links: Any = None  # the routers around the topic: `routers.graph.Links`, None without routers
        self.queue = Leases(self) if config.type == "queue" else None
        self.consumers: TopicConsumers | None = None  # None until one is stored; only `consumer_log` changes them

    def begin_epoch(self, epoch: int) -> None:
        """Begin another history: of a new topic, or of one that was restored from a backup."""
        self.epoch = epoch
        self.diff_start = f'{{"topic":"{self.name}","epoch":{epoch},"records":['.encode()  # of every answer to a diff
        self.archived = 0  # an archive reported to have everything up to this seq
        self.trimmed = 0  # that archive has deleted the records up to this seq, or is about to

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
