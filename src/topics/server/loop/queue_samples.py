"""Samples of queues: a ring of fixed size for each of up to `MAX_QUEUES` queues, for the console.

A sample of every ring is taken each `INTERVAL_MS`, whether or not a client looks. Until there are `MAX_QUEUES` queues,
each has a ring. Beyond that, a queue that a client asks for takes the ring of the queue whose samples were not asked
for the longest. A ring holds `CAPACITY` samples, one hour: 12 KiB, so all of them take at most 0.8 MiB.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from topics.engine.consumers.lag import rough_age_ms

if TYPE_CHECKING:
    from topics.engine.engine import Engine
    from topics.engine.state.topic import Topic
    from topics.server.loop.runtime import Runtime

INTERVAL_MS = 15_000
CAPACITY = 240
MAX_QUEUES = 64
COLUMNS = ["ts", "ready", "in_flight", "delayed", "finished", "age_ms"]


class _Ring:
    """The samples of one queue, in the order of `COLUMNS`."""

    __slots__ = ("_finished", "_taken", "_values", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._values = array("d", bytes(8 * CAPACITY * len(COLUMNS)))
        self._taken = 0
        self._finished = _finished(topic)

    def take(self, now_ms: int) -> None:
        queue, finished = self.topic.queue, _finished(self.topic)
        assert queue is not None
        grown, self._finished = max(finished - self._finished, 0), finished
        row = (now_ms, queue.ready, queue.in_flight, queue.delayed, grown, rough_age_ms(self.topic, now_ms))
        at = self._taken % CAPACITY * len(COLUMNS)
        self._values[at : at + len(COLUMNS)] = array("d", row)
        self._taken += 1

    def rows(self, after_ms: int) -> Iterator[list[float]]:
        for number in range(max(self._taken - CAPACITY, 0), self._taken):
            at = number % CAPACITY * len(COLUMNS)
            if self._values[at] > after_ms:
                yield [int(value) for value in self._values[at : at + len(COLUMNS)]]


class QueueSamples:
    """The rings and their timer."""

    def __init__(self, runtime: Runtime, engine: Engine) -> None:
        self._runtime = runtime
        self._engine = engine
        self._rings: dict[int, _Ring] = {}  # by topic id; the ring that was asked for last is the last
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Start the timer. The first sample is the first interval from now."""
        self._timer = self._runtime.call_later(INTERVAL_MS, self._tick)

    def end(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def rows(self, topic: Topic, after_ms: int = 0) -> list[list[float]]:
        """Return the samples of a queue after a time, oldest first. Without a ring it gets one, and has no samples."""
        ring = self._rings.pop(topic.topic_id, None)
        if ring is None:
            if len(self._rings) >= MAX_QUEUES:
                del self._rings[next(iter(self._rings))]
            ring = _Ring(topic)
        self._rings[topic.topic_id] = ring
        return list(ring.rows(after_ms))

    def take(self) -> None:
        """Sample the queues that have a ring, and give rings to other queues while there are some left."""
        if not self._engine.is_replayed:
            return
        queues = self._engine.state.queues
        for topic_id in [topic_id for topic_id in self._rings if topic_id not in queues]:
            del self._rings[topic_id]
        now_ms = self._runtime.clock.now_ms()
        for ring in self._rings.values():
            self._engine.expire_in_memory(ring.topic)
            ring.take(now_ms)
        for topic_id, topic in islice(queues.items(), MAX_QUEUES):
            if topic_id not in self._rings and len(self._rings) < MAX_QUEUES:
                self._rings = {topic_id: _Ring(topic)} | self._rings

    def _tick(self) -> None:
        self.take()
        self.begin()


def _finished(topic: Topic) -> int:
    """Return how many jobs of a queue were completed or moved to its dead letters so far."""
    return topic.head - topic.count - topic.losses.total
