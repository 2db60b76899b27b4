"""Events of watched topics, and frames of records that are rendered once for all connections with the same view."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import structs

from topics.engine.read.read import Query, Tombstone, expire_and_read
from topics.engine.state.topic import Topic
from topics.model.watch import View
from topics.server.push import cursors, sse

if TYPE_CHECKING:
    from topics.server.limits.budget import MemoryBudget

MAX_SHARED_SEQS = 64  # nodes of so many records are compared one by one, to share a frame between different views
FULL_FRAME_BYTES = 16 << 10  # of records, while the memory budget is full

Key = tuple[View, int, int | None]  # what is read: the view, the position, and the epoch if the reader gave it


class Event(Enum):
    """Kinds of events: the name in an event stream, and the `op` of a WebSocket message."""

    RECORD = b"record", b"record"
    TOMBSTONE = b"tombstone", b"tombstone"
    CAUGHT_UP = b"caught-up", b"caught_up"
    TOPIC_DELETED = b"topic-deleted", b"topic_deleted"

    def __init__(self, event: bytes, op: bytes) -> None:
        self.event = event
        self.op = op


class RenderedFrame:
    """One range of one topic in one form: the payload, and the frames that many connections share."""

    __slots__ = ("_single", "_socket", "count", "from_seq", "next_seq", "payload", "tombstone", "topic")

    def __init__(self, topic: Topic, *, from_seq: int, next_seq: int, tombstone: Tombstone | None) -> None:
        self.topic = topic
        self.from_seq = from_seq  # after the gap, if there is one
        self.next_seq = next_seq
        self.tombstone = tombstone
        self.count = 0
        self.payload = b""
        self._single: bytes | None = None
        self._socket: bytes | None = None

    def single(self) -> bytes:
        """Return the event for a watcher of this topic alone: even the event id is the same for all of them."""
        if self._single is None:
            cursor = cursors.encode({self.topic.name: self.next_seq})
            self._single = sse.event_frame(Event.RECORD.event, self.payload, id=cursor)
        return self._single

    def socket(self, frame: Callable[[bytes], bytes]) -> bytes:
        """Return the WebSocket frame, which `frame` makes from a JSON text."""
        if self._socket is None:
            self._socket = frame(socket_payload(Event.RECORD, self.payload))
        return self._socket


def socket_payload(event: Event, data: bytes) -> bytes:
    """Return a WebSocket message: the JSON object `data` with the `op` of the event."""
    return b'{"op":"%b",%b' % (event.op, data[1:])


def tombstone_data(topic: Topic, gap: Tombstone, reason: str) -> bytes:
    """Return the JSON object of a tombstone event."""
    return (
        b'{"topic":"%b","reason":"%b","gap_from":%d,"gap_to":%d,"missed_estimate":%d,"earliest_seq":%d,"head_seq":%d}'
        % (
            topic.wire_name, reason.encode(), gap.gap_from, gap.gap_to, gap.missed_estimate, gap.earliest_seq,
            gap.head_seq,
        )
    )  # fmt: skip


def after_gap(gap: Tombstone) -> int:
    """Return the position after the gap. A position of an earlier epoch moves to the beginning of the present one."""
    return gap.earliest_seq - 1 if gap.reason == "recreated" else gap.gap_to


def deleted_data(topic: Topic) -> bytes:
    """Return the JSON object of a topic-deleted event."""
    return b'{"topic":"%b","head_seq":%d,"reason":"deleted"}' % (topic.wire_name, topic.head)


class FrameRenderer:
    """Renders ranges of one topic, and keeps the frames until the end of the turn."""

    __slots__ = ("_budget", "_frames", "_topic", "_visible")

    def __init__(self, topic: Topic, budget: MemoryBudget, visible: Callable[[View], int]) -> None:
        self._topic = topic
        self._budget = budget
        self._visible = visible  # returns the highest seq that a view may show
        self._frames: dict[Key, RenderedFrame] = {}

    def clear(self) -> None:
        """Drop the frames: the turn has ended."""
        self._frames.clear()

    def end(self) -> None:
        """Drop the reference to the owner, so that both are freed without a garbage collection. Render no more."""
        self.clear()
        del self._visible

    def render(self, view: View, from_seq: int, epoch: int | None, now_ms: int) -> RenderedFrame:
        """Return the frame of the records after `from_seq`. Raise `Cold` if they must be loaded first."""
        key = (view, from_seq, epoch)
        found = self._frames.get(key)
        if found is None:
            found = self._share(view, from_seq, epoch, now_ms) or self._read(view, from_seq, epoch, now_ms)
            self._frames[key] = found
        return found

    def _share(self, view: View, from_seq: int, epoch: int | None, now_ms: int) -> RenderedFrame | None:
        """Return the frame for readers without a node if it has no record that this reader must not get.

        Otherwise a thousand watchers with different nodes would have every new record rendered a thousand times.
        """
        topic = self._topic
        if view.nodes is None or topic.head - from_seq > MAX_SHARED_SEQS:
            return None
        plain = self.render(structs.replace(view, nodes=None), from_seq, epoch, now_ms)
        for segment, low, high in topic.spans(plain.from_seq + 1, plain.next_seq + 1):
            columns = segment.columns
            if columns.nodes is not None and any(columns.node_at(at) in view.nodes for at in range(low, high)):
                return None
        return plain

    def _read(self, view: View, from_seq: int, epoch: int | None, now_ms: int) -> RenderedFrame:
        topic = self._topic
        query = Query(
            from_seq=from_seq, limit=view.limit, max_bytes=self._frame_bytes(view), nodes=view.nodes, match=view.match,
            projection=view.projection, upto=self._visible(view) if view.strong else None, epoch=epoch,
        )  # fmt: skip
        reading = expire_and_read(topic, query, now_ms)
        gap = reading.tombstone
        frame = RenderedFrame(
            topic,
            from_seq=from_seq if gap is None else after_gap(gap),
            next_seq=reading.next_from_seq,
            tombstone=gap,
        )
        if reading.count:
            frame.count = reading.count
            start = b'{"topic":"%b","records":[' % topic.wire_name
            end = b'],"from_seq":%d,"to_seq":%d,"head_seq":%d}' % (frame.from_seq, frame.next_seq, topic.head)
            frame.payload = b"".join((start, *reading.body(), end))
        return frame

    def _frame_bytes(self, view: View) -> int:
        """Return the maximum size of a frame: small while the memory budget is full, as clients may not read it."""
        return min(view.max_bytes, FULL_FRAME_BYTES) if self._budget.full else view.max_bytes
