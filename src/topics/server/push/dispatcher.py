"""The delivery loop: from a topic that grew to frames on its watchers' connections.

A `Lane` is one topic as one watcher follows it. Lanes that want the same form of the same topic and are equally far
form the tail `Group` of their `Feed`: what is new is read and rendered once for all of them. A lane that is not there
yet, or has fallen back, is `behind` with a cursor of its own and gets a frame a turn until it can join the tail.

Nothing is polled. The engine tells a feed once a turn that its topic has grown, the hub serves all feeds that have
something at the end of the turn, and a connection that is full is left alone until it has drained. Under pressure the
hub serves feeds by effective priority, gathers for a few ms, and lets topics below zero wait: `engine/pressure.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from topics import logs
from topics.engine.pressure import effective_priority
from topics.engine.read.read import Query, expire_and_read
from topics.engine.state.topic import Topic
from topics.model.watch import View
from topics.server.push.subscription import (
    Event,
    Group,
    Lane,
    Rendered,
    Watcher,
    after_gap,
    tell_deleted,
    tombstone_data,
)
from topics.storage.segments.cold import Cold

if TYPE_CHECKING:
    from topics.server.app import TopicsApp

log = logs.Log("watch")

TURN_S = 0.005  # of pushing, after which requests come first again
FRAMES_A_TURN = 4  # for a tail that got more at once than a frame may hold
SHARED_NODES = 64  # records whose nodes are looked at one by one, to share a rendering between readers of other nodes
RELOAD_MS = 1000  # until a read from the disk that failed is tried again
FULL_FRAME_BYTES = 16 << 10  # of records, while the memory budget is full
TOO_OLD = "from_seq_too_old"

Key = tuple[View, int, int | None]  # what is read of a topic: from which seq on, and of which epoch if that matters


class Feed:
    """Everybody who follows one topic."""

    __slots__ = (
        "_advised",
        "_loading",
        "_syncing",
        "_unlisten",
        "behind",
        "groups",
        "hub",
        "lanes",
        "rendered",
        "topic",
    )

    def __init__(self, hub: Hub, topic: Topic) -> None:
        self.hub = hub
        self.topic = topic
        self.lanes: dict[Lane, None] = {}  # all of them
        self.behind: dict[Lane, None] = {}  # those that want a frame of their own; a full one is in neither place
        self.groups: dict[View, Group] = {}
        self.rendered: dict[Key, Rendered] = {}  # of this turn
        self._advised = False
        self._loading = False
        self._syncing = False
        self._unlisten = hub.engine.listen(topic, hub.grew)

    # --- who follows

    def attach(self, lane: Lane) -> None:
        self.lanes[lane] = self.behind[lane] = None
        lane.fresh, lane.live, lane.group = True, False, None

    def detach(self, lane: Lane) -> None:
        """The lane keeps its position."""
        self._leave_tail(lane)
        self.lanes.pop(lane, None)
        self.behind.pop(lane, None)
        if not self.lanes:
            self._unlisten()
            self.hub.forget(self)

    def _leave_tail(self, lane: Lane) -> None:
        group = lane.group
        if group is not None:
            lane.seq = group.seq
            lane.group = None
            del group.tail[lane]
            if not group.tail:
                del self.groups[group.view]

    def end(self) -> None:
        """The topic is gone: the last thing that everybody here is told about it."""
        topic = self.topic
        data = b'{"topic":"%b","head_seq":%d,"reason":"deleted"}' % (topic.wire_name, topic.head)
        for lane in list(self.lanes):
            self.detach(lane)
            tell_deleted(lane, data)

    # --- delivery

    def visible(self, view: View) -> int:
        """The highest seq that may be shown: with `strong`, only what a crash of the machine cannot take back."""
        topic, engine = self.topic, self.hub.engine
        if not view.strong or not engine.logged or topic.config.durability in ("ephemeral", "fsync"):
            return topic.head
        if topic.synced < topic.head and not self._syncing:
            self._syncing = True
            engine.commits.log.after_sync(self._sync_noted(topic.head))
        return topic.synced

    def _sync_noted(self, head: int) -> Callable[[], None]:
        def synced() -> None:
            self._syncing = False
            self.topic.synced = max(self.topic.synced, head)
            self.hub.grew(self.topic)

        return synced

    def deliver(self, now_ms: int, deadline: float) -> bool:
        """Everything there is for this topic's watchers, as far as the turn allows; whether there is more."""
        if self.topic.gone:  # dropped in this very turn, and about to be told
            self.end()
            return False
        self.topic.last_read_ts = now_ms
        self._advised = False
        more = False
        try:
            for group in list(self.groups.values()):
                more |= self._serve_tail(group, now_ms)
            if self.behind:
                more |= self._serve_behind(now_ms, deadline)
        finally:
            self.rendered.clear()
        return more

    def _serve_tail(self, group: Group, now_ms: int) -> bool:
        visible = self.visible(group.view)
        for _ in range(FRAMES_A_TURN):
            if group.seq >= visible or not group.tail:
                break
            rendered = self._render(group.view, group.seq, None, now_ms)
            if rendered is None:
                return False
            self._push_tail(group, rendered)
            group.live = group.live and group.seq >= visible
        if group.seq < visible:
            return bool(group.tail)
        if not group.live:
            group.live = True
            data = self._caught_up(visible)
            for lane in group.tail:
                assert lane.watcher is not None
                lane.watcher.tell(lane, Event.CAUGHT_UP, data)
        return False

    def _push_tail(self, group: Group, rendered: Rendered) -> None:
        """To every lane of the tail that takes it; the others fall behind. Never stops halfway: they share a cursor."""
        gap = rendered.tombstone
        if gap is not None:
            self._part_with_full(group)
            group.seq = rendered.from_seq
            data = tombstone_data(self.topic, gap, gap.reason)
            for lane in group.tail:
                lane.watcher.tell(lane, Event.TOMBSTONE, data)  # type: ignore[union-attr]
        if not rendered.count:
            group.seq = rendered.next_seq
            return
        self._part_with_full(group)
        group.seq = rendered.next_seq
        for lane in group.tail:
            lane.watcher.push(lane, rendered)  # type: ignore[union-attr]

    def _part_with_full(self, group: Group) -> None:
        for lane in [lane for lane in group.tail if lane.watcher.full]:  # type: ignore[union-attr]
            self._leave_tail(lane)
            lane.live = False

    def _serve_behind(self, now_ms: int, deadline: float) -> bool:
        more = False
        behind, time = self.behind, self.hub.loop.time
        for lane in list(behind):
            if time() > deadline:
                return True
            if self._serve_one(lane, now_ms):
                more = True
                if lane in behind:  # to the end of the line
                    del behind[lane]
                    behind[lane] = None
        return more

    def _serve_one(self, lane: Lane, now_ms: int) -> bool:
        watcher, view = lane.watcher, lane.view
        assert watcher is not None
        if watcher.full:
            del self.behind[lane]
            lane.live = False
            return False
        visible = self.visible(view)
        if lane.seq < visible or lane.fresh:
            rendered = self._render(view, lane.seq, lane.epoch, now_ms)
            if rendered is None:
                return False
            gap = rendered.tombstone
            if gap is not None:
                lane.seq = rendered.from_seq
                old = (lane.fresh or lane.stale) and gap.reason != "recreated" and watcher.reports_too_old
                reason = TOO_OLD if old else gap.reason
                watcher.tell(lane, Event.TOMBSTONE, tombstone_data(self.topic, gap, reason))
            lane.seq = rendered.next_seq
            if rendered.count:
                watcher.push(lane, rendered)
            lane.fresh = lane.stale = False
            lane.epoch = None
        if lane.seq < visible:
            lane.live = False
            return True
        self._join(lane, visible)
        return False

    def _join(self, lane: Lane, visible: int) -> None:
        """The lane has got to the end: it goes with the tail, as soon as that is there too."""
        assert lane.watcher is not None
        if not lane.live:
            lane.live = True
            lane.watcher.tell(lane, Event.CAUGHT_UP, self._caught_up(visible))
        group = self.groups.get(lane.view)
        if group is None:
            group = self.groups[lane.view] = Group(lane.view, lane.seq)
        if group.seq == lane.seq:
            del self.behind[lane]
            lane.group = group
            group.tail[lane] = None

    def _caught_up(self, head: int) -> bytes:
        return b'{"topic":"%b","head_seq":%d}' % (self.topic.wire_name, head)

    def advise(self, retry_after_ms: int) -> None:
        """Tells everybody who is kept waiting so, once each time."""
        if not self._advised:
            self._advised = True
            for lane in self.lanes:
                if lane.watcher is not None and not lane.watcher.full:
                    lane.watcher.advise([self.topic.name], retry_after_ms)

    # --- rendering

    def _render(self, view: View, from_seq: int, epoch: int | None, now_ms: int) -> Rendered | None:
        """What comes after `from_seq`; None if the disk has to be asked first, after which the feed is served again."""
        key = (view, from_seq, epoch)
        found = self.rendered.get(key)
        if found is None:
            try:
                found = self._share(view, from_seq, epoch, now_ms) or self._read(view, from_seq, epoch, now_ms)
            except Cold as cold:
                self._load(cold, key)
                return None
            self.rendered[key] = found
        return found

    def _share(self, view: View, from_seq: int, epoch: int | None, now_ms: int) -> Rendered | None:
        """The rendering for readers without a node, where it holds nothing that this reader must not get.

        A thousand watchers with a node each would otherwise have every new record rendered a thousand times.
        """
        if view.nodes is None or self.topic.head - from_seq > SHARED_NODES:
            return None
        plain = self._render(structs.replace(view, nodes=None), from_seq, epoch, now_ms)
        if plain is None:
            return None
        for segment, low, high in self.topic.spans(plain.from_seq + 1, plain.next_seq + 1):
            columns = segment.columns
            if columns.nodes is not None and any(columns.node_at(at) in view.nodes for at in range(low, high)):
                return None
        return plain

    def _read(self, view: View, from_seq: int, epoch: int | None, now_ms: int) -> Rendered:
        topic = self.topic
        query = Query(
            from_seq=from_seq, limit=view.limit, max_bytes=self._frame_bytes(view), nodes=view.nodes, match=view.match,
            projection=view.projection, upto=self.visible(view) if view.strong else None, epoch=epoch,
        )  # fmt: skip
        reading = expire_and_read(topic, query, now_ms)
        gap = reading.tombstone
        rendered = Rendered(
            topic,
            from_seq=from_seq if gap is None else after_gap(gap),
            next_seq=reading.next_from_seq,
            tombstone=gap,
        )
        if reading.count:
            rendered.count = reading.count
            start = b'{"topic":"%b","records":[' % topic.wire_name
            end = b'],"from_seq":%d,"to_seq":%d,"head_seq":%d}' % (rendered.from_seq, rendered.next_seq, topic.head)
            rendered.payload = b"".join((start, *reading.body(), end))
        return rendered

    def _frame_bytes(self, view: View) -> int:
        """Return how large a frame may be: small ones while the memory budget is full, because clients may not read."""
        return min(view.max_bytes, FULL_FRAME_BYTES) if self.hub.app.budget.full else view.max_bytes

    def _load(self, cold: Cold, key: Key) -> None:
        """Has the disk asked on another thread. One request a feed: its lanes mostly want the same."""
        if not self._loading:
            self._loading = True
            self.hub.app.loads.load(cold, partial(self._loaded, key))

    def _loaded(self, key: Key, failure: BaseException | None) -> None:
        if failure is not None:
            log.failure("cannot_read", failure, topic=self.topic.name)
            self.hub.app.call_later(RELOAD_MS, self._load_no_more)
        elif not self.lanes or self.topic.gone:
            self._load_no_more()
        else:
            self._loading = False
            try:
                self.rendered[key] = self._read(*key, self.hub.app.clock.now_ms())
            except Cold:
                self._loading = True
                raise
            self.hub.serve_now(self)

    def _load_no_more(self) -> None:
        self._loading = False
        self.hub.grew(self.topic)


class Hub:
    """All feeds of a server, and the turn in which they are served."""

    def __init__(self, app: TopicsApp) -> None:
        self.app = app
        self.engine = app.engine
        self.loop: asyncio.AbstractEventLoop = app.loop
        self.feeds: dict[Topic, Feed] = {}
        self._ready: dict[Feed, None] = {}
        self._scheduled = False

    # --- for watchers

    def attach(self, lane: Lane, watcher: Watcher) -> None:
        """From now on the watcher gets what the lane has to give, beginning at the end of this turn."""
        lane.watcher = watcher
        topic = lane.topic
        if topic.gone:
            tell_deleted(lane)
            return
        feed = self.feeds.get(topic)
        if feed is None:
            feed = self.feeds[topic] = Feed(self, topic)
        feed.attach(lane)
        self.grew(topic)

    def detach(self, lane: Lane) -> None:
        lane.watcher = None
        if (feed := self.feeds.get(lane.topic)) is not None:
            feed.detach(lane)

    def resume(self, lane: Lane) -> None:
        """The lane's watcher takes more again."""
        feed = self.feeds.get(lane.topic)
        if feed is not None and lane.group is None and lane in feed.lanes:
            feed.behind[lane] = None
            self.grew(lane.topic)

    # --- for feeds

    def grew(self, topic: Topic) -> None:
        """Marks the topic's feed; all that are marked are served together at the end of the turn."""
        feed = self.feeds.get(topic)
        if feed is None:
            return
        if topic.gone:
            feed.end()
            return
        self._ready[feed] = None
        if topic.waits_since_ms is None:
            topic.waits_since_ms = self.app.clock.now_ms()
        if not self._scheduled:
            self._schedule()

    def forget(self, feed: Feed) -> None:
        self._ready.pop(feed, None)
        self.feeds.pop(feed.topic, None)
        feed.topic.waits_since_ms = None

    def serve_now(self, feed: Feed) -> None:
        """Serves one feed out of turn: what it needs is in memory only for the moment."""
        self._serve(feed, self.app.clock.now_ms(), self.loop.time() + TURN_S)
        self.grew(feed.topic)

    def poke(self) -> None:
        """The pressure has changed, or time has passed: what was kept waiting may go now."""
        if self._ready and not self._scheduled:
            self._schedule()

    # --- inside

    def _schedule(self) -> None:
        self._scheduled = True
        if not self.app.pressed:
            self.loop.call_soon(self._turn)
        else:
            self.loop.call_later(self.app.throttle.pressure.gather_ms / 1000, self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        ready, self._ready = self._ready, {}
        now_ms, deadline = self.app.clock.now_ms(), self.loop.time() + TURN_S
        order = list(ready) if not self.app.pressed else self._by_priority(ready, now_ms)
        for at, feed in enumerate(order):
            if self.loop.time() > deadline:
                # Those that had no turn come first in the next one.
                self._ready = dict.fromkeys(order[at:]) | self._ready
                break
            if not feed.lanes:
                continue
            if self._serve(feed, now_ms, deadline):
                self._ready[feed] = None
                feed.topic.waits_since_ms = now_ms
            elif feed not in self._ready:
                feed.topic.waits_since_ms = None
        if self._ready and not self._scheduled and not self._all_paused(now_ms):
            self._schedule()

    def _serve(self, feed: Feed, now_ms: int, deadline: float) -> bool:
        try:
            return feed.deliver(now_ms, deadline)
        except Exception as error:  # a broken invariant of one topic must not keep the others waiting
            log.failure("delivery_failed", error, topic=feed.topic.name)
            return False

    def _by_priority(self, ready: dict[Feed, None], now_ms: int) -> list[Feed]:
        """Highest first; what is below zero under heavy pressure stays marked and is told to wait."""
        pressure = self.app.throttle.pressure
        served = []
        for feed in sorted(ready, key=lambda feed: effective_priority(feed.topic, now_ms), reverse=True):
            if pressure.pauses(feed.topic, now_ms):
                self._ready[feed] = None
                feed.advise(pressure.retry_after_ms(effective_priority(feed.topic, now_ms)))
            else:
                served.append(feed)
        return served

    def _all_paused(self, now_ms: int) -> bool:
        """Then the next sample of the pressure calls again: `poke`."""
        if not self.app.pressed:
            return False
        pressure = self.app.throttle.pressure
        return all(pressure.pauses(feed.topic, now_ms) for feed in self._ready)
