"""The dispatcher: delivers new records of topics to the connections that watch them.

A `FanOut` holds all subscriptions of one topic. Those with the same view and the same position form a `TailGroup`: what
is new is read and rendered once for all of them. A subscription that has not reached the tail, or has fallen back, is
`behind` with its own position, and gets one frame per turn until it can join a group.

Nothing is polled: the engine calls `make_ready` once per turn for a topic with new records, then `serve_ready`. A topic
with many watchers is served about once per `GATHER_MS`. Under pressure the dispatcher serves topics by effective
priority, and pauses topics below zero: see `server/loop/throttle.py` and `engine/delays.py`.
"""

from __future__ import annotations

import asyncio
from functools import partial

from msgspec import Struct

from topics import logs
from topics.engine.delays import GATHER_MS, GATHER_WATCHERS, PRESSED_PUSH_MS
from topics.engine.routers.graph import into
from topics.engine.state.topic import Topic
from topics.model.topic import SYNCED
from topics.model.watch import View, without_nodes
from topics.server.limits.budget import MemoryBudget
from topics.server.limits.loop_holds import Cause
from topics.server.loop.runtime import NOT_LOADING, Runtime
from topics.server.loop.sliced_work import Slices
from topics.server.loop.throttle import Throttle, effective_priority
from topics.server.push.rendering import Event, FrameRenderer, Key, RenderedFrame, deleted_data, tombstone_data
from topics.server.push.subscription_set import PatternWaiters, Subscription, TailGroup, Watcher, notify_deleted
from topics.storage.segments.cold import Cold

log = logs.Log("watch")

FRAMES_PER_TURN = 4  # of a group that got more records at once than one frame may hold
RELOAD_MS = 1000  # until a failed read from the disk is tried again
TOO_OLD = "from_seq_too_old"


class FanOut:
    """All subscriptions of one topic: in groups at its tail, or `behind` with a position of their own."""

    __slots__ = (
        "_loading", "_owner", "_paused_notified", "_reload", "_renderer", "_runtime", "_synced", "_syncing",
        "_unlisten", "behind", "groups", "rests_until_ns", "served_head", "subscriptions", "topic",
    )  # fmt: skip

    def __init__(self, owner: Dispatcher, runtime: Runtime, budget: MemoryBudget, topic: Topic) -> None:
        self.topic = topic
        self.rests_until_ns = 0  # when records no longer wait for others
        self.served_head = topic.head  # the head of the topic when its last turn began
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
        self._synced = 0  # the highest seq that is known to be on the disk; of `strong` views only
        self._unlisten = runtime.engine.listen(topic, owner.make_ready)

    # --- subscriptions

    def attach(self, subscription: Subscription) -> None:
        self.subscriptions[subscription] = self.behind[subscription] = None
        subscription.fresh, subscription.caught_up, subscription.group = True, False, None

    def detach(self, subscription: Subscription) -> None:
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
        data = deleted_data(self.topic)
        for subscription in list(self.subscriptions):
            self.detach(subscription)
            notify_deleted(subscription, data)

    # --- delivery

    def visible(self, view: View) -> int:
        """Return the highest seq that may be shown. A `strong` view shows only records that are synced to the disk."""
        topic, engine = self.topic, self._runtime.engine
        if not view.strong or not engine.staging.logged or topic.config.durability == "ephemeral":
            return topic.head
        if topic.config.durability in SYNCED and into(topic) is None:  # a copy takes effect before it is synced
            return topic.head
        if self._synced < topic.head and not self._syncing:
            self._syncing = True
            engine.commits.wal.after_sync(partial(self._note_sync, topic.head))
        return self._synced

    def _note_sync(self, head: int) -> None:
        self._syncing = False
        self._synced = max(self._synced, head)
        self._owner.serve_soon(self.topic)

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
                behind, time = self.behind, self._runtime.loop.time
                for subscription in list(behind):
                    if time() > deadline:
                        return True
                    if self._serve_one(subscription, now_ms):
                        more = True
                        if subscription in behind:  # move it to the end of the line
                            del behind[subscription]
                            behind[subscription] = None
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
        if not subscription.caught_up:
            subscription.caught_up = True
            watcher.notify(subscription, Event.CAUGHT_UP, self._caught_up_data(visible))
        # It moves into its group once that has the same position.
        view = without_nodes(view)
        group = self.groups.get(view)
        if group is None:
            group = self.groups[view] = TailGroup(view, subscription.seq)
        if group.seq == subscription.seq:
            del self.behind[subscription]
            group.has_nodes = group.has_nodes or subscription.nodes is not None
            subscription.group = group
            group.members[subscription] = None
        return False

    def _caught_up_data(self, head: int) -> bytes:
        return b'{"topic":"%b","head_seq":%d}' % (self.topic.name.encode(), head)

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
            frame = self._renderer.render(view, from_seq, epoch, now_ms)
            frame.sent_s = self._runtime.loop.time()
            return frame
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
            self._owner.serve_loaded(self)
        else:
            self._owner.serve_soon(self.topic)

    def _load_failed(self, failure: BaseException) -> None:
        def retry() -> None:
            self._reload = None
            self._owner.serve_soon(self.topic)

        log.failure("cannot_read", failure, topic=self.topic.name)
        self._reload = self._runtime.call_later(RELOAD_MS, retry)


TURN_S = 0.005  # of delivery, after which requests come first
GATHER_NS = GATHER_MS * 1_000_000


class Dispatcher:
    """The fan-outs of all watched topics, and the turn in which they are served."""

    def __init__(self, runtime: Runtime, throttle: Throttle, budget: MemoryBudget) -> None:
        self._runtime = runtime
        self._loop = runtime.loop
        self._throttle = throttle
        self._budget = budget
        self._fan_outs: dict[Topic, FanOut] = {}
        self._ready: dict[FanOut, None] = {}
        self._gathering: dict[FanOut, asyncio.TimerHandle] = {}  # each with the timer that ends its wait
        self._scheduled = False
        self.delivered_total = 0  # records that were sent to subscriptions
        throttle.listeners.append(self._schedule)  # serves paused topics: the pressure has changed, or time has passed
        runtime.engine.staging.after_growth = self.serve_ready

    # --- for watchers

    def attach(self, subscription: Subscription, watcher: Watcher) -> None:
        """Deliver the subscription to `watcher`, from the end of this turn on."""
        subscription.watcher = watcher
        topic = subscription.topic
        if topic.gone:
            notify_deleted(subscription)
            return
        fan_out = self._fan_outs.get(topic)
        if fan_out is None:
            fan_out = self._fan_outs[topic] = FanOut(self, self._runtime, self._budget, topic)
        fan_out.attach(subscription)
        self.serve_soon(topic)

    def detach(self, subscription: Subscription) -> None:
        subscription.watcher = None
        if (fan_out := self._fan_outs.get(subscription.topic)) is not None:
            fan_out.detach(subscription)

    def detach_all(self, subscriptions: dict[str, Subscription], watcher: Watcher) -> None:
        for subscription in subscriptions.values():
            if subscription.watcher is watcher:
                self.detach(subscription)

    def resume_all(self, subscriptions: dict[str, Subscription], *, stale: bool) -> None:
        """Continue delivery: the watcher of the subscriptions has drained."""
        for subscription in list(subscriptions.values()):
            if subscription.group is None:
                subscription.stale = stale
                fan_out = self._fan_outs.get(subscription.topic)
                if fan_out is not None and subscription in fan_out.subscriptions:
                    fan_out.behind[subscription] = None
                    self.serve_soon(subscription.topic)

    # --- for fan-outs

    def serve_soon(self, topic: Topic) -> None:
        """Serve the topic at the end of the turn, together with all others that are ready."""
        self.make_ready(topic)
        self._schedule()

    def make_ready(self, topic: Topic) -> None:
        """Note that the topic grew or was deleted. The engine calls `serve_ready` after the last topic of a turn."""
        fan_out = self._fan_outs.get(topic)
        if fan_out is None:
            return
        if topic.gone:
            fan_out.end()
            return
        if topic.waits_since_ms is None:
            topic.waits_since_ms = self._runtime.clock.now_ms()
        # A topic with many watchers that was just served waits. What waits must not be evicted meanwhile: it is at most
        # an eighth of the live records of a topic that evicts.
        config = topic.config
        evicts = config.cap_records or config.cap_bytes or config.ttl_ms
        if (
            len(fan_out.subscriptions) >= GATHER_WATCHERS
            and not self._throttle.pressed
            and not (evicts and (topic.head - fan_out.served_head) * 8 > topic.count)
            and self._runtime.clock.monotonic_ns() < fan_out.rests_until_ns
        ):
            if fan_out not in self._gathering:
                self._gathering[fan_out] = self._runtime.call_later(GATHER_MS, partial(self._end_gathering, fan_out))
        else:
            self._ready[fan_out] = None

    def _end_gathering(self, fan_out: FanOut) -> None:
        del self._gathering[fan_out]
        if fan_out.subscriptions:
            self._ready[fan_out] = None
            self.serve_ready()

    def serve_ready(self) -> None:
        """Serve the topics that are ready now, without another turn of the loop."""
        if self._ready and not self._scheduled:
            if self._throttle.pressed:
                self._schedule()
            else:
                self._turn()

    def remove(self, fan_out: FanOut) -> None:
        self._ready.pop(fan_out, None)
        self._fan_outs.pop(fan_out.topic, None)
        fan_out.topic.waits_since_ms = None

    def serve_loaded(self, fan_out: FanOut) -> None:
        """Serve one topic out of turn, because its records are in memory only until this returns."""
        self._serve(fan_out, self._runtime.clock.now_ms(), self._loop.time() + TURN_S)
        self.serve_soon(fan_out.topic)

    # --- turns

    def _schedule(self) -> None:
        if not self._ready or self._scheduled:
            return
        self._scheduled = True
        if not self._throttle.pressed:
            self._loop.call_soon(self._turn)
        else:
            self._loop.call_later(PRESSED_PUSH_MS[self._throttle.pressure.step] / 1000, self._turn)

    def _turn(self) -> None:
        tick_ns = self._runtime.clock.monotonic_ns
        began_ns = at_ns = tick_ns()
        self._scheduled = False
        ready, self._ready = self._ready, {}
        now_ms, deadline = self._runtime.clock.now_ms(), self._loop.time() + TURN_S
        order = list(ready) if not self._throttle.pressed else self._by_priority(ready, now_ms)
        for at, fan_out in enumerate(order):
            if self._loop.time() > deadline:
                # Topics without a turn come first in the next one.
                self._ready = dict.fromkeys(order[at:]) | self._ready
                break
            if not fan_out.subscriptions:
                continue
            fan_out.served_head = fan_out.topic.head
            if self._gathering and (timer := self._gathering.pop(fan_out, None)) is not None:
                timer.cancel()
            more, from_ns, at_ns = self._serve(fan_out, now_ms, deadline), at_ns, tick_ns()
            # A rest follows a delivery that takes longer than `GATHER_MS`: else nothing would gather at full load.
            fan_out.rests_until_ns = max(from_ns + GATHER_NS, at_ns + min(at_ns - from_ns, GATHER_NS))
            if more:
                self._ready[fan_out] = None
                fan_out.topic.waits_since_ms = now_ms
            elif fan_out not in self._ready:
                fan_out.topic.waits_since_ms = None
        # If all ready topics are paused, the next sample of the pressure schedules the turn.
        pressure = self._throttle.pressure
        if not self._throttle.pressed or not all(pressure.pauses(one.topic, now_ms) for one in self._ready):
            self._schedule()
        self._runtime.holds.note(Cause.DELIVERY, tick_ns() - began_ns)

    def _serve(self, fan_out: FanOut, now_ms: int, deadline: float) -> bool:
        try:
            return fan_out.deliver(now_ms, deadline)
        except Exception as error:  # a broken invariant of one topic must not stop delivery of the others
            log.failure("delivery_failed", error, topic=fan_out.topic.name)
            return False

    def _by_priority(self, ready: dict[FanOut, None], now_ms: int) -> list[FanOut]:
        """Return the topics to serve, highest priority first. Paused ones stay ready, and watchers are notified."""
        pressure = self._throttle.pressure
        served = []
        for fan_out in sorted(ready, key=lambda one: effective_priority(one.topic, now_ms), reverse=True):
            if pressure.pauses(fan_out.topic, now_ms):
                self._ready[fan_out] = None
                fan_out.notify_paused(pressure.retry_after_ms(effective_priority(fan_out.topic, now_ms)))
            else:
                served.append(fan_out)
        return served


class PushServices(Struct, frozen=True, kw_only=True, eq=False):
    """What streams and WebSockets use of a server."""

    runtime: Runtime
    dispatcher: Dispatcher
    pattern_waiters: PatternWaiters
    throttle: Throttle
    slices: Slices
    budget: MemoryBudget

    def check_writer(self) -> None:
        """Raise `not_writer` if the server is a standby."""
