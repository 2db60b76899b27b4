"""The rings of queues: bounded in number and size, and sampled without a client that looks."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tests.engine.harness import open_engine, record, write
from tests.simulated.clock import SimClock
from topics.engine.queue.verbs import Want
from topics.model.topic import ConfigPatch
from topics.server.loop.runtime import Runtime
from topics.server.loop.samples import MAX_QUEUES, QueueRing, QueueSamples
from topics.server.loop.samples import QUEUE_CAPACITY as CAPACITY
from topics.server.loop.samples import QUEUE_COLUMNS as COLUMNS
from topics.server.loop.samples import QUEUE_INTERVAL_MS as INTERVAL_MS


class Queues:
    """Queues of an engine, and their samples."""

    def __init__(self, *names: str) -> None:
        self.clock = SimClock(ms=1_000_000)
        self.engine = open_engine(self.clock)
        self.timers: list[Any] = []
        runtime = SimpleNamespace(clock=self.clock, engine=self.engine, call_later=self._call_later)
        self.samples = QueueSamples(cast(Runtime, runtime))
        self.samples.begin()
        for name in names:
            self.engine.put_topic(name, ConfigPatch(type="queue"))
        self.engine.flush()

    def _call_later(self, delay_ms: int, callback: Any) -> asyncio.TimerHandle:
        assert delay_ms == INTERVAL_MS
        self.timers.append(callback)
        return cast(asyncio.TimerHandle, SimpleNamespace(cancel=self.timers.clear))

    def tick(self) -> None:
        self.clock.advance(ms=INTERVAL_MS)
        self.timers.pop()()

    def rows(self, name: str, after_ms: int = 0) -> list[dict[str, float]]:
        rows = self.samples.rows(self.engine.topic(name), after_ms)
        return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def test_queue_is_sampled_before_a_client_asks() -> None:
    queues = Queues("mail")
    queues.tick()
    queues.engine.append("mail", write(record(), record(), record()))
    queues.engine.flush()
    mail = queues.engine.topic("mail")
    queues.engine.queues.claim(mail, [Want(node="w", max=2, lease_ms=40_000)])
    queues.tick()
    queues.engine.queues.ack(mail, "w", [1], None)
    queues.engine.flush()
    queues.tick()
    queues.tick()
    first, second, third = queues.rows("mail")
    assert first == {"ts": 1_030_000, "ready": 1, "in_flight": 2, "delayed": 0, "finished": 0, "age_ms": 15_000}
    assert (second["ready"], second["in_flight"], second["finished"]) == (1, 1, 1)
    assert (third["ready"], third["in_flight"], third["finished"]) == (2, 0, 0), "the lease has ended meanwhile"
    assert [row["ts"] for row in queues.rows("mail", 1_045_000)] == [1_060_000]


def test_ring_of_a_queue_keeps_the_last_hour() -> None:
    queues = Queues("mail")
    for _ in range(CAPACITY + 5):
        queues.tick()
    rows = queues.rows("mail")
    assert len(rows) == CAPACITY
    assert rows[-1]["ts"] - rows[0]["ts"] == (CAPACITY - 1) * INTERVAL_MS
    assert CAPACITY * INTERVAL_MS == 3_600_000


def test_queue_that_is_asked_for_replaces_the_one_asked_for_longest_ago() -> None:
    queues = Queues(*(f"q{number:03d}" for number in range(MAX_QUEUES + 1)))
    for _ in range(2):
        queues.tick()
    known = queues.samples._rings
    assert len(known) == MAX_QUEUES
    last = f"q{MAX_QUEUES:03d}"
    for number in range(1, MAX_QUEUES):
        assert len(queues.rows(f"q{number:03d}")) == 1
    assert queues.rows(last) == [], "it is sampled from now on"
    queues.tick()
    assert len(queues.rows(last)) == 1
    assert len(known) == MAX_QUEUES
    assert queues.engine.topic("q000").topic_id not in known


def test_ring_of_a_deleted_queue_is_released() -> None:
    queues = Queues("mail", "jobs")
    queues.tick()
    queues.engine.drop_topic("mail")
    queues.engine.flush()
    queues.tick()
    assert [ring.topic.name for ring in queues.samples._rings.values()] == ["jobs"]


def test_rings_take_less_than_a_mebibyte() -> None:
    [ring] = [QueueRing(Queues("mail").engine.topic("mail"))]
    assert MAX_QUEUES * ring.values.nbytes < 1 << 20
