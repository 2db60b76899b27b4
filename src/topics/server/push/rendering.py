"""Events of watched topics, and frames of records that are rendered once for all connections with the same view."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from topics.engine.read.read import Query, Reading, Span, Tombstone, expire_and_read
from topics.engine.state.topic import Topic
from topics.model.records import STORED_FORM, Projection
from topics.model.watch import View, without_nodes
from topics.server.limits.budget import MemoryBudget
from topics.server.push import cursors
from topics.storage.segments.columns import render_without
from topics.storage.segments.segment import Rendered

# So many records are read for a reader with nodes of its own, and those of its nodes are cut out. Behind more, the read
# itself skips them: it looks at many records at a time.
MAX_SHARED_SEQS = 64
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
    """One range of one topic in one form: the payload, and the frames that many connections share.

    A reader with nodes of its own gets the frame `without` their records. The records are cut apart once for all such
    readers, and their frames are joined from the pieces: that takes 1 µs per reader, where a read of its own takes 20.
    """

    __slots__ = (
        "_by_node", "_cursor", "_end", "_others", "_pieces", "_records", "_spans", "_start", "count",
        "from_seq", "next_seq", "sent_s", "single_frame", "socket_frame", "tombstone", "topic",
    )  # fmt: skip

    def __init__(self, topic: Topic, *, from_seq: int, next_seq: int, tombstone: Tombstone | None) -> None:
        self.topic = topic
        self.from_seq = from_seq  # after the gap, if there is one
        self.next_seq = next_seq
        self.tombstone = tombstone
        self.count = 0
        self._start = self._records = self._end = b""
        self._spans: list[tuple[Rendered, Span]] = []  # the records as they were read, and where they lie
        self._pieces: list[bytes | memoryview] | None = None  # one for each record, without its comma
        self._by_node: dict[str, list[int]] = {}  # the pieces of each node
        self._others: dict[frozenset[str], RenderedFrame] = {}
        self._cursor: bytes | None = None
        self.sent_s = 0.0  # by the loop's clock; all that get the frame get it then
        # The results of `single` and `socket`, once they were called.
        self.single_frame: bytes | None = None
        self.socket_frame: bytes | None = None

    def fill(self, reading: Reading, projection: Projection) -> None:
        """Take the records that were read in their stored form, and render them as `projection` has them."""
        spans = reading.spans
        assert spans is not None
        self.count = reading.count
        self._start = b'{"topic":"%b","records":[' % self.topic.name.encode()
        self._end = b'],"from_seq":%d,"to_seq":%d,"head_seq":%d}' % (self.from_seq, self.next_seq, self.topic.head)
        self._spans = list(zip(reading.parts, spans, strict=True))
        if projection.is_stored_form:
            self._records = b"".join(reading.body())
        else:
            self._cut(projection)
            self._records = b",".join(self._pieces or ())

    def without(self, nodes: frozenset[str]) -> RenderedFrame:
        """Return the frame without the records of `nodes`: this one if it has none of them."""
        if nodes.isdisjoint(self.by_node) or not self.topic.config.dedupe_node:
            return self
        found = self._others.get(nodes)
        if found is not None:
            return found
        pieces, by_node = self._pieces, self._by_node
        assert pieces is not None
        if len(nodes) == 1:
            own = by_node[next(iter(nodes))]
        else:
            own = sorted(at for node in nodes for at in by_node.get(node, ()))
        frame = RenderedFrame(self.topic, from_seq=self.from_seq, next_seq=self.next_seq, tombstone=self.tombstone)
        frame.count = self.count - len(own)
        if frame.count:
            kept = pieces.copy()
            for at in reversed(own):
                del kept[at]
            frame._start, frame._records, frame._end = self._start, b",".join(kept), self._end
            frame._cursor, frame.sent_s = self.cursor(), self.sent_s
        self._others[nodes] = frame
        return frame

    @property
    def by_node(self) -> dict[str, list[int]]:
        """The nodes that wrote the records, each with the positions of its records in the frame."""
        if self._pieces is None:
            self._cut(STORED_FORM)
        return self._by_node

    def _cut(self, projection: Projection) -> None:
        """Cut the records apart, and note which node wrote which of them."""
        pieces: list[bytes | memoryview] = []
        for part, (segment, low, high) in self._spans:
            columns = segment.columns
            offsets, ids, names = columns.offsets, columns.nodes, columns.node_names
            base, by_node = offsets[low], self._by_node
            for at in range(low, high):
                piece = part[offsets[at] - base : offsets[at + 1] - base]
                if not projection.is_stored_form:
                    piece = render_without(piece, columns, at, projection)
                if ids is not None and ids[at]:
                    by_node.setdefault(names.name_of(ids[at]), []).append(len(pieces))
                pieces.append(piece[:-1])
        self._pieces, self._spans = pieces, []

    @property
    def payload(self) -> bytes:
        return b"".join((self._start, self._records, self._end))

    def cursor(self) -> bytes:
        if self._cursor is None:
            self._cursor = cursors.encode({self.topic.name: self.next_seq})
        return self._cursor

    def single(self) -> bytes:
        """Return the event for a watcher of this topic alone: even the event id is the same for all of them."""
        if self.single_frame is None:
            # `live_stream.event_frame`, in one copy of the records.
            start = b"id: %b\nevent: %b\ndata: %b" % (self.cursor(), Event.RECORD.event, self._start)
            self.single_frame = b"".join((start, self._records, self._end, b"\n\n"))
        return self.single_frame

    def socket(self, head: Callable[[int], bytes]) -> bytes:
        """Return the WebSocket frame; `head` makes the head of a frame of so many bytes."""
        if self.socket_frame is None:
            start = b'{"op":"%b",%b' % (Event.RECORD.op, self._start[1:])
            size_bytes = len(start) + len(self._records) + len(self._end)
            self.socket_frame = b"".join((head(size_bytes), start, self._records, self._end))
        return self.socket_frame


def socket_payload(event: Event, data: bytes) -> bytes:
    return b'{"op":"%b",%b' % (event.op, data[1:])


def tombstone_data(topic: Topic, gap: Tombstone, reason: str) -> bytes:
    """Return the JSON object of a tombstone event. A `reason` that says only when is followed by the `cause`."""
    cause = b"" if reason == gap.reason else b',"cause":"%b"' % gap.reason.encode()
    return (
        b'{"topic":"%b","reason":"%b"%b,"gap_from":%d,"gap_to":%d,"missed_estimate":%d,"earliest_seq":%d,"head_seq":%d}'
        % (
            topic.name.encode(), reason.encode(), cause, gap.gap_from, gap.gap_to, gap.missed_estimate,
            gap.earliest_seq, gap.head_seq,
        )
    )  # fmt: skip


def deleted_data(topic: Topic) -> bytes:
    return b'{"topic":"%b","head_seq":%d,"reason":"deleted"}' % (topic.name.encode(), topic.head)


class FrameRenderer:
    """Renders ranges of one topic, and keeps the frames until the end of the turn."""

    __slots__ = ("_budget", "_frames", "_topic", "_visible")

    def __init__(self, topic: Topic, budget: MemoryBudget, visible: Callable[[View], int]) -> None:
        self._topic = topic
        self._budget = budget
        self._visible = visible  # returns the highest seq that a view may show
        self._frames: dict[Key, RenderedFrame] = {}

    def clear(self) -> None:
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
            if view.nodes is not None and self._topic.head - from_seq <= MAX_SHARED_SEQS:
                found = self.render(without_nodes(view), from_seq, epoch, now_ms).without(view.nodes)
            else:
                found = self._read(view, from_seq, epoch, now_ms)
            self._frames[key] = found
        return found

    def _read(self, view: View, from_seq: int, epoch: int | None, now_ms: int) -> RenderedFrame:
        topic = self._topic
        # Small while the memory budget is full, as clients may not read it.
        max_bytes = min(view.max_bytes, FULL_FRAME_BYTES) if self._budget.full else view.max_bytes
        query = Query(
            from_seq=from_seq, limit=view.limit, max_bytes=max_bytes, nodes=view.nodes, match=view.match,
            upto=self._visible(view) if view.strong else None, epoch=epoch, spans=True,
        )  # fmt: skip
        reading = expire_and_read(topic, query, now_ms)
        gap = reading.tombstone
        if gap is not None:  # a position of an earlier epoch moves to the beginning of the present one
            from_seq = gap.earliest_seq - 1 if gap.reason == "recreated" else gap.gap_to
        frame = RenderedFrame(topic, from_seq=from_seq, next_seq=reading.next_from_seq, tombstone=gap)
        if reading.count:
            frame.fill(reading, view.projection)
        return frame
