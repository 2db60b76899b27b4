"""Topics with many watchers: records that arrive within two milliseconds share one frame."""

import json

import msgspec
import pytest

from tests.live.manual import create, manual_app
from tests.simulated.clock import SimClock
from topics.engine.delays import GATHER_MS, GATHER_WATCHERS
from topics.model.records import WriteRequest
from topics.model.topic import ConfigPatch
from topics.model.watch import ViewOptions, make_view
from topics.server.push.rendering import Event, RenderedFrame
from topics.server.push.subscription_set import Subscription

GATHER_S = GATHER_MS / 1000


class Watcher:
    """Collects the seqs of each frame."""

    full = False
    reports_too_old = True

    def __init__(self, clock: SimClock) -> None:
        self.frames: list[list[int]] = []
        self.clock = clock
        self.takes_ms = 0  # for each frame

    def push(self, subscription: Subscription, frame: RenderedFrame) -> None:
        self.clock.advance(ms=self.takes_ms)
        self.frames.append([record["$seq"] for record in json.loads(frame.payload)["records"]])

    def notify(self, subscription: Subscription, event: Event, data: bytes) -> None:
        pass

    def topic_deleted(self, subscription: Subscription) -> None:
        pass

    def topics_paused(self, names: list[str], retry_after_ms: int) -> None:
        pass


class Room:
    """A topic with watchers, on a loop and a clock that the test moves."""

    def __init__(self, watchers: int, **config: int) -> None:
        self.clock = SimClock()
        self.clock.advance(ms=1000)
        self.app, self.loop = manual_app(self.clock)
        create(self.app, self.loop, ["room"])
        engine = self.app.services.engine
        engine.put_topic("room", ConfigPatch(**config))
        engine.flush()
        topic = engine.topics["room"]
        view = make_view(ViewOptions(), max_limit=1000)
        self.watchers = [Watcher(self.clock) for _ in range(watchers)]
        self.subscriptions = [Subscription(topic, view, seq=0) for _ in self.watchers]
        for watcher, subscription in zip(self.watchers, self.subscriptions, strict=True):
            self.app.services.dispatcher.attach(subscription, watcher)
        self.loop.turn()
        self.clock.advance(ms=1000)

    def write(self) -> None:
        request = msgspec.json.decode(b'{"records":[{"data":1}]}', type=WriteRequest)
        self.app.services.engine.append("room", request)
        self.app.services.engine.flush()
        self.loop.turn()

    def steady(self, writes: int, *, every_ms: int, takes_ms: int) -> list[int]:
        """Write at a steady rate while a delivery takes `takes_ms`. Return how many records each frame had."""
        self.watchers[0].takes_ms = takes_ms
        begun_ns, due_ns = self.clock.monotonic_ns(), None
        for number in range(writes):
            wanted_ns = begun_ns + number * every_ms * 1_000_000
            while self.clock.monotonic_ns() < wanted_ns:
                self.clock.advance(ms=1)
                if due_ns is not None and self.clock.monotonic_ns() >= due_ns:
                    due_ns = None
                    self.loop.fire(GATHER_S)
            self.write()
            waits = any(timer.delay_s == GATHER_S and not timer.cancelled for timer in self.loop.timers)
            due_ns = (due_ns or self.clock.monotonic_ns() + GATHER_MS * 1_000_000) if waits else None
        self.loop.fire(GATHER_S)
        return [len(frame) for frame in self.frames()]

    def frames(self) -> list[list[int]]:
        """Return the frames of a watcher, which are the same for all."""
        first = self.watchers[0].frames
        assert all(watcher.frames == first for watcher in self.watchers)
        return first


def test_first_record_after_a_rest_is_delivered_at_once() -> None:
    many = Room(GATHER_WATCHERS)
    many.write()
    assert many.frames() == [[1]]
    many.clock.advance(ms=GATHER_MS)
    many.write()
    assert many.frames() == [[1], [2]]


def test_records_of_one_wait_share_a_frame() -> None:
    many = Room(GATHER_WATCHERS)
    for _ in range(4):
        many.write()
    assert many.frames() == [[1]]
    assert many.loop.fire(GATHER_S) == 1
    assert many.frames() == [[1], [2, 3, 4]]


def test_record_after_the_wait_takes_gathered_ones_along() -> None:
    many = Room(GATHER_WATCHERS)
    many.write()
    many.write()
    many.clock.advance(ms=GATHER_MS)
    many.write()
    assert many.frames() == [[1], [2, 3]]
    assert many.loop.fire(GATHER_S) == 0  # its timer is cancelled


@pytest.mark.parametrize("config", [{"cap_records": 3}, {"cap_bytes": 150}])
def test_topic_that_evicts_soon_does_not_wait(config: dict[str, int]) -> None:
    many = Room(GATHER_WATCHERS, **config)
    for _ in range(20):
        many.write()
    assert many.frames() == [[seq] for seq in range(1, 21)]


def test_topic_with_a_high_cap_waits() -> None:
    many = Room(GATHER_WATCHERS, cap_records=1000)
    for _ in range(100):
        many.write()
        many.clock.advance(ms=GATHER_MS)
    many.write()
    before = len(many.frames())
    many.write()
    assert len(many.frames()) == before


def test_few_watchers_never_wait() -> None:
    few = Room(GATHER_WATCHERS - 1)
    for _ in range(3):
        few.write()
    assert few.frames() == [[1], [2], [3]]


def test_topic_without_watchers_left_gathers_nothing() -> None:
    many = Room(GATHER_WATCHERS)
    many.write()
    many.write()
    for subscription in many.subscriptions:
        many.app.services.dispatcher.detach(subscription)
    assert many.loop.fire(GATHER_S) == 1
    assert many.frames() == [[1]]


def test_records_after_a_long_delivery_share_a_frame() -> None:
    many = Room(GATHER_WATCHERS)
    many.watchers[0].takes_ms = 5
    for _ in range(3):
        many.write()
    assert many.frames() == [[1]]
    assert many.loop.fire(GATHER_S) == 1
    assert many.frames() == [[1], [2, 3]]
    many.clock.advance(ms=GATHER_MS)
    many.write()
    assert many.frames() == [[1], [2, 3], [4]]


def test_rest_is_no_longer_than_the_delivery() -> None:
    many = Room(GATHER_WATCHERS)
    many.watchers[0].takes_ms = 1
    many.write()
    many.clock.advance(ms=GATHER_MS - 1)
    many.write()
    assert many.frames() == [[1], [2]]


def test_writes_at_full_load_share_frames() -> None:
    """A delivery takes as long as five writes. What arrives meanwhile is read after it, and more comes in the rest."""
    sizes = Room(GATHER_WATCHERS).steady(100, every_ms=1, takes_ms=5)
    assert sum(sizes) == 100
    assert len(sizes) <= 100 / (5 + GATHER_MS) + 2


def test_steady_writes_with_time_between_them_never_wait() -> None:
    sizes = Room(GATHER_WATCHERS).steady(100, every_ms=10, takes_ms=5)
    assert sizes == [1] * 100
