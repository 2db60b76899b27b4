"""Fan-out of one topic: delivery of its new records to all its subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from topics import logs
from topics.engine.state.topic import Topic
from topics.model.watch import View, without_nodes
from topics.server.loop.runtime import NOT_LOADING
from topics.server.push.rendering import Event, FrameRenderer, Key, RenderedFrame, deleted_data, tombstone_data
from topics.server.push.subscription import Subscription, TailGroup, notify_deleted
from topics.storage.segments.cold import Cold

if TYPE_CHECKING:
    import asyncio

    from topics.server.limits.budget import MemoryBudget
    from topics.server.loop.runtime import Runtime

log = logs.Log("watch")

FRAMES_PER_TURN = 4  # of a group that got more records at once than one frame may hold
RELOAD_MS = 1000  # until a failed read from the disk is tried again
TOO_OLD = "from_seq_too_old"


class FanOutOwner(Protocol):
    """What a fan-out needs of the dispatcher."""

    delivered_total: int  # records that were sent to subscriptions

    def topic_grew(self, topic: Topic) -> None:
        """Serve the topic at the end of the turn."""

    def mark(self, topic: Topic) -> None:
        """Serve the topic after the listeners of all topics that grew in this turn."""

    def serve_now(self, fan_out: FanOut) -> None:
        """Serve the topic out of turn."""

    def remove(self, fan_out: FanOut) -> None:
        """Remove a fan-out without subscriptions."""


class FanOut:
    """All subscriptions of one topic: in groups at its tail, or `behind` with a position of their own."""

    __slots__ = (
        "_loading", "_owner", "_paused_notified", "_reload", "_renderer", "_runtime", "_syncing", "_unlisten", "behind",
        "groups", "served_head", "served_ns", "subscriptions", "topic",
    )  # fmt: skip

    def __init__(self, owner: FanOutOwner, runtime: Runtime, budget: MemoryBudget, topic: Topic) -> None:
        self.topic = topic
        self.served_ns = 0  # when its last turn began
        self.served_head = topic.head  # the head of the topic then
        self.subscriptions: dict[Subscription, None] = {}
        # Subscriptions that need frames of their own. One whose watcher is full is in neither place.
        self.behind: dict[Subscription, None] = {}
        self.groups: dict[View, TailGroup] = {}
        self._owner = owner
        self._runtime = runtime
        self._renderer = FrameRenderer(topic, budget, self.visible)
        self._paused_notified = False
        self._loading = NOT_LOADING
        self._reload: asyncio.TimerHandle | None = None  # set after a read from the disk has failed
        self._syncing = False
        self._unlisten = runtime.engine.listen(topic, owner.mark)

    # --- subscriptions

    def attach(self, subscription: Subscription) -> None:
        """Start delivery to the subscription at its position."""
        self.subscriptions[subscription] = self.behind[subscription] = None
        subscription.fresh, subscription.caught_up, subscription.group = True, False, None

    def detach(self, subscription: Subscription) -> None:
        """Stop delivery to the subscription, which keeps its position."""
        self._leave_group(subscription)
        self.subscriptions.pop(subscription, None)
        self.behind.pop(subscription, None)
        if not self.subscriptions:
            self._unlisten()
            self._owner.remove(self)
            self._renderer.end()

    def _leave_group(self, subscription: Subscription) -> None:
        group = subscription.group
        if group is not None:
            subscription.seq = group.seq
            subscription.group = None
            del group.members[subscription]
            if not group.members:
                del self.groups[group.view]

    def end(self) -> None:
        """Detach and notify all subscriptions: the topic was deleted."""
        data = deleted_data(self.topic)
        for subscription in list(self.subscriptions):
            self.detach(subscription)
            notify_deleted(subscription, data)

    # --- delivery

    def visible(self, view: View) -> int:
        """Return the highest seq that may be shown. A `strong` view shows only records that are synced to the disk."""
        topic, engine = self.topic, self._runtime.engine
        if not view.strong or not engine.staging.logged or topic.config.durability in ("ephemeral", "fsync"):
            return topic.head
        if topic.synced < topic.head and not self._syncing:
            self._syncing = True
            engine.commits.log.after_sync(self._note_sync(topic.head))
        return topic.synced

    def _note_sync(self, head: int) -> Callable[[], None]:
        def synced() -> None:
            self._syncing = False
            self.topic.synced = max(self.topic.synced, head)
            self._owner.topic_grew(self.topic)

        return synced

    def deliver(self, now_ms: int, deadline: float) -> bool:
        """Send what is new to all subscriptions, until `deadline`. Return whether there is more to send."""
        if self.topic.gone:  # deleted in this turn; its listeners are not notified yet
            self.end()
            return False
        self.topic.last_read_ts = now_ms
        self._paused_notified = False
        more = False
        try:
            for group in list(self.groups.values()):
                more |= self._serve_group(group, now_ms)
            if self.behind:
                more |= self._serve_behind(now_ms, deadline)
        finally:
            self._renderer.clear()
        return more

    def _serve_group(self, group: TailGroup, now_ms: int) -> bool:
        visible = self.visible(group.view)
        for _ in range(FRAMES_PER_TURN):
            if group.seq >= visible or not group.members:
                break
            frame = self._render(group.view, group.seq, None, now_ms)
            if frame is None:
                return False
            self._push_to_group(group, frame)
            group.caught_up = group.caught_up and group.seq >= visible
        if group.seq < visible:
            return bool(group.members)
        if not group.caught_up:
            group.caught_up = True
            data = self._caught_up_data(visible)
            for subscription in group.members:
                assert subscription.watcher is not None
                subscription.watcher.notify(subscription, Event.CAUGHT_UP, data)
        return False

    def _push_to_group(self, group: TailGroup, frame: RenderedFrame) -> None:
        """Send a frame to every member; full ones leave the group first. Never stops halfway: they share a position."""
        gap = frame.tombstone
        if gap is not None:
            self._remove_full(group)
            group.seq = frame.from_seq
            data = tombstone_data(self.topic, gap, gap.reason)
            for subscription in group.members:
                subscription.watcher.notify(subscription, Event.TOMBSTONE, data)  # type: ignore[union-attr]
        if not frame.count:
            group.seq = frame.next_seq
            return
        self._remove_full(group)
        group.seq = frame.next_seq
        written = frame.by_node if group.has_nodes else {}
        self._owner.delivered_total += frame.count * len(group.members)
        for subscription in group.members:
            own, nodes = frame, subscription.nodes
            if nodes is not None and not nodes.isdisjoint(written):
                own = frame.without(nodes)
                self._owner.delivered_total -= frame.count - own.count
                if not own.count:
                    continue
            subscription.watcher.push(subscription, own)  # type: ignore[union-attr]

    def _remove_full(self, group: TailGroup) -> None:
        for subscription in [one for one in group.members if one.watcher.full]:  # type: ignore[union-attr]
            self._leave_group(subscription)
            subscription.caught_up = False

    def _serve_behind(self, now_ms: int, deadline: float) -> bool:
        more = False
        behind, time = self.behind, self._runtime.loop.time
        for subscription in list(behind):
            if time() > deadline:
                return True
            if self._serve_one(subscription, now_ms):
                more = True
                if subscription in behind:  # move it to the end of the line
                    del behind[subscription]
                    behind[subscription] = None
        return more

    def _serve_one(self, subscription: Subscription, now_ms: int) -> bool:
        """Send one frame to a subscription that is behind. Return whether it needs another."""
        watcher, view = subscription.watcher, subscription.view
        assert watcher is not None
        if watcher.full:
            del self.behind[subscription]
            subscription.caught_up = False
            return False
        visible = self.visible(view)
        if subscription.seq < visible or subscription.fresh:
            frame = self._render(view, subscription.seq, subscription.epoch, now_ms)
            if frame is None:
                return False
            gap = frame.tombstone
            if gap is not None:
                subscription.seq = frame.from_seq
                old = subscription.fresh or subscription.stale
                too_old = old and gap.reason != "recreated" and watcher.reports_too_old
                data = tombstone_data(self.topic, gap, TOO_OLD if too_old else gap.reason)
                watcher.notify(subscription, Event.TOMBSTONE, data)
            subscription.seq = frame.next_seq
            if frame.count:
                self._owner.delivered_total += frame.count
                watcher.push(subscription, frame)
            subscription.fresh = subscription.stale = False
            subscription.epoch = None
        if subscription.seq < visible:
            subscription.caught_up = False
            return True
        self._join_group(subscription, visible)
        return False

    def _join_group(self, subscription: Subscription, visible: int) -> None:
        """Report that the subscription has caught up, and move it into its group once that has the same position."""
        assert subscription.watcher is not None
        if not subscription.caught_up:
            subscription.caught_up = True
            subscription.watcher.notify(subscription, Event.CAUGHT_UP, self._caught_up_data(visible))
        view = without_nodes(subscription.view)
        group = self.groups.get(view)
        if group is None:
            group = self.groups[view] = TailGroup(view, subscription.seq)
        if group.seq == subscription.seq:
            del self.behind[subscription]
            group.has_nodes = group.has_nodes or subscription.nodes is not None
            subscription.group = group
            group.members[subscription] = None

    def _caught_up_data(self, head: int) -> bytes:
        return b'{"topic":"%b","head_seq":%d}' % (self.topic.wire_name, head)

    def notify_paused(self, retry_after_ms: int) -> None:
        """Report to all watchers that the topic waits under pressure, once per pause."""
        if not self._paused_notified:
            self._paused_notified = True
            for subscription in self.subscriptions:
                if subscription.watcher is not None and not subscription.watcher.full:
                    subscription.watcher.topics_paused([self.topic.name], retry_after_ms)

    # --- records on the disk

    def _render(self, view: View, from_seq: int, epoch: int | None, now_ms: int) -> RenderedFrame | None:
        """Return the frame after `from_seq`, or None if it is being loaded: then the topic is served again later."""
        try:
            return self._renderer.render(view, from_seq, epoch, now_ms)
        except Cold as cold:
            # One load per topic at a time: its subscriptions mostly need the same records.
            if not self._loading.waiting and self._reload is None:
                key = (view, from_seq, epoch)
                self._loading = self._runtime.load(cold, partial(self._serve_loaded, key), self._load_failed)
            return None

    def _serve_loaded(self, key: Key) -> None:
        """Deliver now, while the records are in memory. Raise `Cold` if more must be loaded."""
        if self.subscriptions and not self.topic.gone:
            try:
                self._renderer.render(*key, self._runtime.clock.now_ms())
            except Cold:
                self._renderer.clear()
                raise
            self._owner.serve_now(self)
        else:
            self._owner.topic_grew(self.topic)

    def _load_failed(self, failure: BaseException) -> None:
        log.failure("cannot_read", failure, topic=self.topic.name)
        self._reload = self._runtime.call_later(RELOAD_MS, self._retry)

    def _retry(self) -> None:
        self._reload = None
        self._owner.topic_grew(self.topic)
