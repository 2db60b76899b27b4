"""A subscription: one topic as one watcher follows it. Also the groups of subscriptions that share one position."""

from __future__ import annotations

from typing import Protocol

from topics.engine.state.topic import Topic
from topics.model.watch import View
from topics.server.push.rendering import Event, RenderedFrame, deleted_data


class Watcher(Protocol):
    """One connection, as the dispatcher uses it."""

    full: bool  # takes nothing now, and calls `Dispatcher.resume_all` when it takes more
    # Whether a gap that existed on connect, or after a long stall, is reported as `from_seq_too_old`. The contract
    # requires this for event streams. A WebSocket reports the reason itself.
    reports_too_old: bool

    def push(self, subscription: Subscription, frame: RenderedFrame) -> None:
        """Send records. The position of the subscription is already after them."""

    def notify(self, subscription: Subscription, event: Event, data: bytes) -> None:
        """Send any other event of one topic; `data` is a JSON object."""

    def topic_deleted(self, subscription: Subscription) -> None:
        """Note that the topic was deleted. The client was notified."""

    def topics_paused(self, names: list[str], retry_after_ms: int) -> None:
        """Report that these topics wait because the server is under pressure."""


class Subscription:
    """One topic of one watcher. Between connections it only keeps the position of its reader."""

    __slots__ = (
        "caught_up", "consumer", "deleted", "epoch", "fresh", "from_pattern", "group", "key", "nodes", "number", "seq",
        "stale", "start", "start_epoch", "topic", "view", "watcher",
    )  # fmt: skip

    def __init__(self, topic: Topic, view: View, *, seq: int, epoch: int | None = None, key: str = "") -> None:
        self.topic = topic
        self.view = view
        self.nodes = view.nodes  # here as well: delivery looks at it for every frame
        self.seq = seq  # the position while the subscription is in no group
        self.start = seq  # the first position
        self.epoch = self.start_epoch = epoch  # that the first position belongs to, if the reader gave it
        self.key = key or topic.name  # in event ids
        self.number = 0
        self.from_pattern = False  # a pattern matched the topic after the session was created
        self.group: TailGroup | None = None
        self.watcher: Watcher | None = None
        self.fresh = True  # nothing was delivered on this connection yet
        self.stale = False  # the connection was full for so long that a gap counts as too old
        self.caught_up = False  # the client was notified that it has caught up
        self.deleted = False
        self.consumer: str | None = None  # the named consumer whose position it began at

    @property
    def position(self) -> int:
        """The last seq that the reader does not need again."""
        group = self.group
        return self.seq if group is None else group.seq


class TailGroup:
    """The subscriptions at the same position near the head of a topic whose views differ in their nodes alone."""

    __slots__ = ("caught_up", "has_nodes", "members", "seq", "view")

    def __init__(self, view: View, seq: int) -> None:
        self.view = view  # without nodes
        self.seq = seq
        self.members: dict[Subscription, None] = {}
        self.has_nodes = False  # a member has, or had, nodes of its own
        self.caught_up = True


def notify_deleted(subscription: Subscription, data: bytes | None = None) -> None:
    topic, watcher = subscription.topic, subscription.watcher
    if data is None:
        data = deleted_data(topic)
    subscription.seq = topic.head
    subscription.deleted = True
    if watcher is not None:
        watcher.notify(subscription, Event.TOPIC_DELETED, data)
        watcher.topic_deleted(subscription)
