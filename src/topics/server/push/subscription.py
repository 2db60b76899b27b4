"""What the delivery loop deals in: lanes and their groups, renderings that many share, and who takes them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from topics.engine.read.read import Tombstone
from topics.engine.state.topic import Topic
from topics.model.watch import View
from topics.server.push import cursors, sse


class Event(Enum):
    """What a watcher can be told: the name of the event, and of the WebSocket frame."""

    RECORD = b"record", b"record"
    TOMBSTONE = b"tombstone", b"tombstone"
    CAUGHT_UP = b"caught-up", b"caught_up"
    TOPIC_DELETED = b"topic-deleted", b"topic_deleted"

    def __init__(self, event: bytes, op: bytes) -> None:
        self.event = event
        self.op = op


class Watcher(Protocol):
    """One connection, as the loop sees it."""

    full: bool  # takes nothing now; it calls `Hub.resume` when it does again
    # Whether a gap that was there on connect, or after a long stall, is reported as `from_seq_too_old`: the contract
    # says so for event streams. A WebSocket gets the reason itself.
    reports_too_old: bool

    def push(self, lane: Lane, rendered: Rendered) -> None:
        """Records. The lane has moved on past them."""

    def tell(self, lane: Lane, event: Event, data: bytes) -> None:
        """Anything else about one topic; `data` is a JSON object."""

    def lost(self, lane: Lane) -> None:
        """The lane's topic is gone, and the client has been told."""

    def advise(self, names: list[str], retry_after_ms: int) -> None:
        """These topics wait because the server is pressed."""


class Rendered:
    """One range of one topic in one form: the frame's payload, and the frames that many connections share."""

    __slots__ = ("_single", "_socket", "count", "from_seq", "next_seq", "payload", "tombstone", "topic")

    def __init__(self, topic: Topic, *, from_seq: int, next_seq: int, tombstone: Tombstone | None) -> None:
        self.topic = topic
        self.from_seq = from_seq  # after the gap, where there is one
        self.next_seq = next_seq
        self.tombstone = tombstone
        self.count = 0
        self.payload = b""
        self._single: bytes | None = None
        self._socket: bytes | None = None

    def single(self) -> bytes:
        """The event for a watcher of this topic alone: even its id is the same for all of them."""
        if self._single is None:
            cursor = cursors.encode({self.topic.name: self.next_seq})
            self._single = sse.frame(Event.RECORD.event, self.payload, id=cursor)
        return self._single

    def socket(self, frame: Callable[[bytes], bytes]) -> bytes:
        """The WebSocket frame, made by `frame` from a JSON text."""
        if self._socket is None:
            self._socket = frame(socket_payload(Event.RECORD, self.payload))
        return self._socket


def socket_payload(event: Event, data: bytes) -> bytes:
    return b'{"op":"%b",%b' % (event.op, data[1:])


class Lane:
    """One topic of one watcher: between connections it only remembers how far its reader has got."""

    __slots__ = (
        "epoch", "fresh", "gone", "group", "key", "live", "number", "picked", "seq", "stale", "start", "topic", "view",
        "watcher",
    )  # fmt: skip

    def __init__(self, topic: Topic, view: View, *, seq: int, epoch: int | None = None, key: str = "") -> None:
        self.topic = topic
        self.view = view
        self.seq = seq  # the cursor, while the lane is not in a tail
        self.start = seq  # where it began
        self.epoch = epoch  # of the life that the first cursor belongs to, if the reader said
        self.key = key or topic.name  # in event ids
        self.number = 0
        self.picked = False  # by a pattern, after the session began
        self.group: Group | None = None
        self.watcher: Watcher | None = None
        self.fresh = True  # nothing was delivered yet on this connection
        self.stale = False  # its connection was full for so long that it counts as fallen off
        self.live = False  # told that it has caught up
        self.gone = False

    @property
    def position(self) -> int:
        """The last seq that its reader needs no more."""
        group = self.group
        return self.seq if group is None else group.seq


class Group:
    """The lanes of one view that are equally far."""

    __slots__ = ("live", "seq", "tail", "view")

    def __init__(self, view: View, seq: int) -> None:
        self.view = view
        self.seq = seq
        self.tail: dict[Lane, None] = {}
        self.live = True


def tombstone_data(topic: Topic, gap: Tombstone, reason: str) -> bytes:
    return (
        b'{"topic":"%b","reason":"%b","gap_from":%d,"gap_to":%d,"missed_estimate":%d,"earliest_seq":%d,"head_seq":%d}'
        % (
            topic.wire_name, reason.encode(), gap.gap_from, gap.gap_to, gap.missed_estimate, gap.earliest_seq,
            gap.head_seq,
        )
    )  # fmt: skip


def after_gap(gap: Tombstone) -> int:
    """The cursor once the gap is behind: a cursor from another life goes to the beginning of this one."""
    return gap.earliest_seq - 1 if gap.reason == "recreated" else gap.gap_to


def tell_deleted(lane: Lane, data: bytes | None = None) -> None:
    topic, watcher = lane.topic, lane.watcher
    if data is None:
        data = b'{"topic":"%b","head_seq":%d,"reason":"deleted"}' % (topic.wire_name, topic.head)
    lane.seq = topic.head
    lane.gone = True
    if watcher is not None:
        watcher.tell(lane, Event.TOPIC_DELETED, data)
        watcher.lost(lane)
