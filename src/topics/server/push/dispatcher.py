"""The dispatcher: delivers new records of topics to the connections that watch them.

A `Subscription` is one topic as one watcher follows it. A `FanOut` holds all subscriptions of one topic. Those with the
same view and the same position form a `TailGroup`: what is new is read and rendered once for all of them. A
subscription that has not reached the tail yet, or has fallen back, is `behind` with its own position, and gets one
frame per turn until it can join a group.

Nothing is polled. The engine calls `topic_grew` once per turn for a topic with new records; the dispatcher serves all
such topics at the end of the turn; a connection that is full gets nothing until it has drained. A topic with many
watchers is served at once after a rest, and then about once per `GATHER_MS`: records that arrive in between share one
frame. Under pressure the dispatcher serves topics by effective priority, gathers for a few ms, and pauses topics below
zero: see `engine/pressure.py`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from topics import logs
from topics.engine.pressure import effective_priority
from topics.engine.state.topic import Topic
from topics.server.limits.loop_holds import Cause
from topics.server.push.fan_out import FanOut
from topics.server.push.subscription import Subscription, Watcher, notify_deleted

if TYPE_CHECKING:
    import asyncio

    from topics.server.limits.budget import MemoryBudget
    from topics.server.loop.runtime import Runtime
    from topics.server.loop.throttle import Throttle

log = logs.Log("watch")

TURN_S = 0.005  # of delivery, after which requests come first
# A frame costs a call of the kernel per watcher, whatever it holds. In a room of 30 with 1,500 messages per second this
# saves a fifth of the server's processor time, and adds 1.4 ms to the median latency: see docs/decisions/gathering.md.
GATHER_MS = 2
GATHER_WATCHERS = 16  # subscriptions of one topic; fewer do not repay the wait


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
        throttle.listeners.append(self.serve_paused)
        runtime.engine.staging.growth.then = self._serve_grown

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
        self.topic_grew(topic)

    def detach(self, subscription: Subscription) -> None:
        """Stop delivery. The subscription keeps its position."""
        subscription.watcher = None
        if (fan_out := self._fan_outs.get(subscription.topic)) is not None:
            fan_out.detach(subscription)

    def resume(self, subscription: Subscription) -> None:
        """Continue delivery: the watcher of the subscription has drained."""
        fan_out = self._fan_outs.get(subscription.topic)
        if fan_out is not None and subscription.group is None and subscription in fan_out.subscriptions:
            fan_out.behind[subscription] = None
            self.topic_grew(subscription.topic)

    # --- for fan-outs

    def topic_grew(self, topic: Topic) -> None:
        """Mark the topic. All marked topics are served together at the end of the turn."""
        self.mark(topic)
        if self._ready and not self._scheduled:
            self._schedule()

    def mark(self, topic: Topic) -> None:
        """Mark the topic, which grew or was deleted. The engine calls `_serve_grown` after the last topic of a turn."""
        fan_out = self._fan_outs.get(topic)
        if fan_out is None:
            return
        if topic.gone:
            fan_out.end()
            return
        if topic.waits_since_ms is None:
            topic.waits_since_ms = self._runtime.clock.now_ms()
        if self._gathers(fan_out):
            if fan_out not in self._gathering:
                self._gathering[fan_out] = self._runtime.call_later(GATHER_MS, partial(self._end_gathering, fan_out))
        else:
            self._ready[fan_out] = None

    def _gathers(self, fan_out: FanOut) -> bool:
        """Return whether the topic has many watchers and was served less than `GATHER_MS` ago.

        What waits must not be evicted meanwhile: it is at most an eighth of the live records of a topic that evicts.
        """
        topic = fan_out.topic
        if len(fan_out.subscriptions) < GATHER_WATCHERS or self._throttle.pressed:
            return False
        config = topic.config
        if config.cap_records or config.cap_bytes or config.ttl_ms:
            if (topic.head - fan_out.served_head) * 8 > topic.count:
                return False
        return self._runtime.clock.monotonic_ns() - fan_out.served_ns < GATHER_MS * 1_000_000

    def _end_gathering(self, fan_out: FanOut) -> None:
        del self._gathering[fan_out]
        if fan_out.subscriptions:
            self._ready[fan_out] = None
            self._serve_grown()

    def _serve_grown(self) -> None:
        """Serve the marked topics now, without another turn of the loop."""
        if self._ready and not self._scheduled:
            if self._throttle.pressed:
                self._schedule()
            else:
                self._turn()

    def remove(self, fan_out: FanOut) -> None:
        """Remove a fan-out without subscriptions."""
        self._ready.pop(fan_out, None)
        self._fan_outs.pop(fan_out.topic, None)
        fan_out.topic.waits_since_ms = None

    def serve_now(self, fan_out: FanOut) -> None:
        """Serve one topic out of turn, because its records are in memory only until this returns."""
        self._serve(fan_out, self._runtime.clock.now_ms(), self._loop.time() + TURN_S)
        self.topic_grew(fan_out.topic)

    def serve_paused(self) -> None:
        """Schedule a turn for paused topics: the pressure has changed, or time has passed."""
        if self._ready and not self._scheduled:
            self._schedule()

    # --- turns

    def _schedule(self) -> None:
        self._scheduled = True
        if not self._throttle.pressed:
            self._loop.call_soon(self._turn)
        else:
            self._loop.call_later(self._throttle.pressure.gather_ms / 1000, self._turn)

    def _turn(self) -> None:
        tick_ns = self._runtime.clock.monotonic_ns
        began_ns = tick_ns()
        self._serve_ready(began_ns)
        self._runtime.holds.note(Cause.DELIVERY, tick_ns() - began_ns)

    def _serve_ready(self, began_ns: int) -> None:
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
            fan_out.served_ns, fan_out.served_head = began_ns, fan_out.topic.head
            if self._gathering and (timer := self._gathering.pop(fan_out, None)) is not None:
                timer.cancel()
            if self._serve(fan_out, now_ms, deadline):
                self._ready[fan_out] = None
                fan_out.topic.waits_since_ms = now_ms
            elif fan_out not in self._ready:
                fan_out.topic.waits_since_ms = None
        if self._ready and not self._scheduled and not self._all_paused(now_ms):
            self._schedule()

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

    def _all_paused(self, now_ms: int) -> bool:
        """Return whether all ready topics are paused: then the next sample of the pressure schedules the turn."""
        if not self._throttle.pressed:
            return False
        pressure = self._throttle.pressure
        return all(pressure.pauses(fan_out.topic, now_ms) for fan_out in self._ready)
