"""Topics in snapshots: save what a restart must find again, and restore it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from topics.engine.state import idempotency
from topics.engine.state.losses import Losses
from topics.engine.state.name_index import NamedRows
from topics.engine.state.topic import FIRST_CEILING, Topic
from topics.engine.state.topics import State
from topics.engine.steps import Steps
from topics.errors import UnknownFormat
from topics.storage import snapshot as snap
from topics.storage.segments import codec
from topics.storage.segments.columns import first_of
from topics.storage.segments.sealed import SealedSegment
from topics.storage.segments.segment import MemorySegment, Segment
from topics.storage.worker import INLINE, Worker

TAIL_MAX_BYTES = 256 << 10
TAIL_MAX_EVENTS = 4096

# About what a snapshot needs beside the rendered records. A snapshot file has every topic and key twice.
TOPIC_BYTES, KEY_BYTES, SEGMENT_BYTES, RECORD_BYTES = 512, 64, 4096, 25


# A checkpoint makes some of these for every topic. None of them is one that a garbage collection has to look at, or the
# capture of 10,000 topics would bring about full collections.


class SavedTail(msgspec.Struct, frozen=True, gc=False):
    """Where the tail of a topic is, and which records of its open segment it has."""

    ref: snap.TailRef
    first: int
    count: int

    def has(self, segment: MemorySegment) -> bool:
        """Return whether the segment is still as it was saved."""
        if (segment.first, segment.count) != (self.first, self.count):
            return False
        ref = self.ref
        return (segment.live, segment.live_bytes, segment.opened_ms) == (ref.live, ref.live_bytes, ref.opened_ms)


class Frozen(msgspec.Struct, gc=False):
    """A memory segment as it was when the snapshot was taken: it may grow or lose records afterwards.

    A segment that still grows is measured and not copied: copies would delay all requests if there are many topics.
    `encode` cuts off later records.
    """

    segment: MemorySegment
    growing: bool
    count: int
    rendered_bytes: int
    tag_names: int
    node_names: int
    marks: bytes | None
    live: int
    live_bytes: int

    def encode(self, topic_id: int, epoch: int, worker: Worker = INLINE) -> list[bytes | memoryview]:
        """Return the file of the segment. May run on any thread: `worker` is the one that runs it."""
        columns, rendered = self.segment.columns, self.segment.rendered
        if self.growing:
            columns = first_of(columns, self.count, tag_names=self.tag_names, node_names=self.node_names)
            rendered = rendered[: self.rendered_bytes]
        return codec.encode(columns, rendered, self.marks, topic_id=topic_id, epoch=epoch, worker=worker)


class Part(NamedTuple):
    """What a module saves of each topic, under a name of its own. None saves nothing."""

    name: str
    save: Callable[[State, Topic], Any]
    load: Callable[[State, Topic, msgspec.Raw], None]


_NO_EXTRA: dict[str, msgspec.Raw] = {}

TOPIC_PARTS: list[Part] = []
# In `Snapshot.extra`: all of them, see `routers.graph` and `NamedRows`.
ROUTERS, SCHEDULES, ACCESS = "routers", "schedules", "access"


def named_rows(state: State) -> dict[str, NamedRows[Any]]:
    """Return the rows that a snapshot has as a whole, each kind by the name of its part."""
    return {SCHEDULES: state.schedules, ACCESS: state.access}


def check_known(snapshot: snap.Snapshot) -> None:
    """Raise `UnknownFormat` if the snapshot has parts beside its topics that no module of this version loads."""
    known = {ROUTERS, SCHEDULES, ACCESS, snap.RESTORED, snap.FAILOVER, snap.LEDGER, snap.WAITING}
    if unknown := snapshot.extra.keys() - known:
        raise UnknownFormat(f"snapshot {snapshot.wal_number} has the part {min(unknown)!r}")


class Captured(msgspec.Struct, gc=False):
    """One topic at the point of the snapshot. `sealing` and `tail` still have to be written."""

    snapshot: snap.TopicSnapshot
    sealing: tuple[tuple[Frozen, int], ...]  # with the index at which the finished ref belongs among the segments
    tail: Frozen | None
    keys: snap.KeyLists | None  # instead of those in `snapshot`

    def note_saved(self, topic: Topic) -> None:
        """Note in the topic where its tail is, once the snapshot is written."""
        ref = self.snapshot.tail
        if ref is None:
            topic.saved_tail = None
        elif self.tail is not None:  # else it is where it was
            topic.saved_tail = SavedTail(ref, self.tail.segment.first, self.tail.count)


def capture(state: State, topic: Topic) -> Captured:
    """Return everything that a snapshot needs of the topic as it is now."""
    kept = topic.config.durability != "ephemeral"
    open_segment = topic.open
    saved: SavedTail | None = topic.saved_tail
    is_saved = saved is not None and saved.has(open_segment)
    fits = is_saved or (open_segment.count < TAIL_MAX_EVENTS and len(open_segment.rendered) < TAIL_MAX_BYTES)
    if kept and not fits:
        # Not by `State.roll`: that would have the segment written on its own, and the snapshot writes it anyway.
        topic.segments.append(MemorySegment(open_segment.end, opened_ms=open_segment.opened_ms))
        open_segment = topic.open
    refs: list[snap.SegmentRef] = []
    sealing: list[tuple[Frozen, int]] = []
    for segment in topic.segments[:-1] if kept else ():
        if isinstance(segment, SealedSegment):
            refs.append(segment.snapshot_ref())
        elif isinstance(segment, MemorySegment):
            sealing.append((freeze(segment), len(refs)))
            refs.append(snap.SegmentRef(segment.first, segment.count, segment.live, segment.live_bytes, ()))
    tail, tail_ref = None, None
    if kept and open_segment.count:
        if saved is not None and is_saved:
            tail_ref = saved.ref
        else:
            tail = freeze(open_segment, growing=True)
    extra = {
        name: msgspec.Raw(msgspec.msgpack.encode(value))
        for name, save, _ in TOPIC_PARTS
        if (value := save(state, topic)) is not None
    }
    snapshot = outline(topic)
    if not kept:
        snapshot.count = snapshot.bytes = 0
    snapshot.segments, snapshot.tail, snapshot.extra = tuple(refs), tail_ref, extra or _NO_EXTRA
    keys = snap.KeyLists(list(topic.keys), list(topic.keys.values())) if topic.keys else None
    return Captured(snapshot, tuple(sealing), tail, keys)


def outline(topic: Topic) -> snap.TopicSnapshot:
    """Return the topic as a snapshot has it, without its records, its keys and the parts of modules."""
    return snap.TopicSnapshot(
        topic_id=topic.topic_id,
        name=topic.name,
        epoch=topic.epoch,
        config=topic.config,
        head=topic.head,
        earliest=topic.earliest,
        evict_floor=topic.evict_floor,
        lost_ts=topic.lost_ts,
        last_ts=topic.last_ts,
        last_write_ts=topic.last_write_ts,
        ceiling=topic.ceiling_staged,  # the log file that raises it may go once this is in place
        count=topic.count,
        bytes=topic.bytes,
        losses=tuple(topic.losses.runs),
        keys=(),
        segments=(),
        extra=_NO_EXTRA,
    )


def size_bytes_of(topic: Topic) -> int:
    """Return about how many bytes a snapshot writes for the topic: its own entry, and the records that no file has."""
    size_bytes = TOPIC_BYTES + KEY_BYTES * len(topic.keys)
    if topic.config.durability == "ephemeral":
        return size_bytes
    saved: SavedTail | None = topic.saved_tail
    for segment in topic.segments:
        if isinstance(segment, MemorySegment) and (saved is None or not saved.has(segment)):
            size_bytes += SEGMENT_BYTES + RECORD_BYTES * segment.count + len(segment.rendered)
    return size_bytes


def end_ephemeral(state: State) -> None:
    """Lower the ceilings of ephemeral topics to their heads, for the last snapshot of an orderly stop.

    The next start then gives out no seq twice and skips none. Any write after this raises the ceiling in the log.
    """
    for topic in state.by_id.values():
        if topic.config.durability == "ephemeral":
            topic.ceiling = topic.ceiling_staged = topic.head


def restore(
    state: State, snapshot: snap.TopicSnapshot, *, sealed: Sequence[Segment], tail: MemorySegment | None
) -> Topic:
    """Return the topic as it was captured. A tail of None could not be read: its records are recorded as lost.

    Raise `UnknownFormat` if it has parts that no module of this version loads. The caller calls
    `state.index_all` once all topics are back.
    """
    config = state.shared(snapshot.config)
    topic = Topic(snapshot.name, topic_id=snapshot.topic_id, epoch=snapshot.epoch, config=config, totals=state.totals)
    topic.head = snapshot.head
    topic.pass_head()
    topic.earliest, topic.evict_floor = snapshot.earliest, snapshot.evict_floor
    if snapshot.losses:
        topic.losses = Losses(list(snapshot.losses), sums=topic.totals.lost)
    topic.lost_ts, topic.last_ts = snapshot.lost_ts, snapshot.last_ts
    topic.last_write_ts = snapshot.last_write_ts
    if snapshot.ceiling != FIRST_CEILING:
        topic.ceiling = topic.ceiling_staged = snapshot.ceiling
    topic.count, topic.bytes = snapshot.count, snapshot.bytes
    if snapshot.keys:
        idempotency.restore(state, topic, snapshot.keys)
    if tail is not None and snapshot.tail is not None:
        tail.live, tail.live_bytes = snapshot.tail.live, snapshot.tail.live_bytes
        _share_numbers(topic, snapshot.tail, tail)
    else:
        tail = MemorySegment(topic.head + 1, opened_ms=0 if snapshot.tail is None else snapshot.tail.opened_ms)
    topic.segments = [*sealed, tail]
    state.add(topic, index=False)
    state.totals.records += topic.count
    state.totals.bytes += topic.bytes
    if snapshot.extra:
        _load_parts(state, topic, snapshot)
    return topic


def _load_parts(state: State, topic: Topic, snapshot: snap.TopicSnapshot) -> None:
    if unknown := snapshot.extra.keys() - {part.name for part in TOPIC_PARTS}:
        raise UnknownFormat(f"topic {snapshot.name} has the part {min(unknown)!r} in the snapshot")
    for part in TOPIC_PARTS:
        if part.name in snapshot.extra:
            part.load(state, topic, snapshot.extra[part.name])


def _share_numbers(topic: Topic, ref: snap.TailRef, tail: MemorySegment) -> None:
    """Let equal numbers of an idle topic be one object, as after an append: each one takes 32 bytes."""
    ts = topic.last_ts
    if topic.last_write_ts == ts:
        topic.last_write_ts = ts
    if tail.max_ts == ts:
        tail.max_ts = ts
    if tail.min_ts == ts:
        tail.min_ts = ts
    if ref.opened_ms == tail.min_ts:
        ref.opened_ms = tail.opened_ms = tail.min_ts
    if ref.live_bytes == topic.bytes:
        ref.live_bytes = tail.live_bytes = topic.bytes


def freeze(segment: MemorySegment, *, growing: bool = False) -> Frozen:
    columns, marks = segment.columns, segment.marks
    return Frozen(
        segment, growing, segment.count, len(segment.rendered), len(columns.tag_names), len(columns.node_names),
        None if marks is None else bytes(marks), segment.live, segment.live_bytes,
    )  # fmt: skip


# --- all topics, a few at a time, while the server goes on


class Capture:
    """The topics of snapshot `number`. It is complete once all steps have run.

    A snapshot has the state at the beginning of a log file, and a start replays that file on top of it. So a topic must
    be captured before the first change that this file holds takes effect. `Commits.before_change` reports each topic
    before such a change is staged; a topic whose turn has not come is then captured at once.

    Changes that are not logged, as by a TTL, may be in the snapshot or not. The exception is a router, which copies
    without a log entry. The snapshot has the cursors of all routers from the beginning, so a router reports its source
    and its destination, too, before it copies.
    """

    def __init__(self, state: State, number: int) -> None:
        self.awaited: list[tuple[Topic, int]] = []  # topics that wait for this snapshot, see `Topic.needs_snapshot`
        self._state = state
        self._number = number
        self._ids = tuple(state.by_id)
        self._next_topic_id = state.next_topic_id
        self._early: dict[int, Captured] = {}
        self.captured: list[Captured] = []  # in the order of `State.by_id`

    def tails(self) -> Iterator[bytes]:
        """Yield the parts of the tails file, and note in each topic where its part is."""
        at = 0
        for one in self.captured:
            if one.tail is None:
                continue
            part = b"".join(one.tail.encode(one.snapshot.topic_id, one.snapshot.epoch))
            one.snapshot.tail = snap.TailRef(
                self._number, at, len(part), one.tail.segment.opened_ms, one.tail.live, one.tail.live_bytes
            )
            at += len(part)
            yield part

    def drain(self) -> Iterator[Captured]:
        """Yield the captured topics and forget them, one at a time: to free them all at once would take long."""
        # Bound: the captured topics. Each round forgets one.
        while self.captured:
            yield self.captured.pop()

    def before_change(self, topic: Topic) -> None:
        """Capture the topic now, unless it was captured before or is younger than the snapshot."""
        if topic.captured_in != self._number and topic.topic_id < self._next_topic_id:
            self._early[topic.topic_id] = self._capture(topic)

    def steps(self) -> Steps[None]:
        """Capture every topic that is left, one topic per step of about 10 µs."""
        for topic_id in self._ids:
            captured = self._early.pop(topic_id, None)
            self.captured.append(self._capture(self._state.by_id[topic_id]) if captured is None else captured)
            yield None

    def _capture(self, topic: Topic) -> Captured:
        topic.captured_in = self._number
        if topic.needs_snapshot:
            self.awaited.append((topic, topic.needs_snapshot))
        return capture(self._state, topic)
