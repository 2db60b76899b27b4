"""Samples of the last hour, for the console: figures of the server, and of up to `MAX_QUEUES` queues.

Those of the server are also kept for a day, a row per minute (300 KiB), and saved in the data directory every ten
minutes and at a stop: a restart continues them. A file that is damaged or of other columns costs its history alone.

A sample of the server costs one call per column; its ring takes about 130 KiB with 22 columns. Readers (consumers and
routers) have samples as well: up to `MAX_READERS` of each kind, in at most 0.5 MiB. Beyond `MAX_QUEUES`, a queue that a
client asks for takes the ring of the queue whose samples were not asked for the longest.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

import msgspec
import numpy as np
import xxhash
from msgspec import Struct

from topics.engine.consumers.lag import lag_of, rough_age_ms
from topics.engine.state.topic import Topic
from topics.server.loop.runtime import Runtime, Ticker

INTERVAL_MS, QUEUE_INTERVAL_MS = 5_000, 15_000
CAPACITY, QUEUE_CAPACITY = 720, 240
MINUTE_MS, MINUTES, SAVE_MS = 60_000, 1440, 600_000
MAX_QUEUES, MAX_READERS = 64, 64
CONSUMER = "consumer"
Reader = tuple[str, str, str]  # kind, topic, name
QUEUE_COLUMNS = ["ts", "ready", "in_flight", "delayed", "finished", "age_ms"]


class Column(Struct, frozen=True):
    """One figure. The column of a counter has its growth since the sample before."""

    name: str
    read: Callable[[], float]
    counter: bool = False
    peak: bool = False  # a minute has the highest of its values, not the last one


class Ring:
    """The last `capacity` samples. Each is a row that begins with its time."""

    def __init__(self, capacity: int, width: int) -> None:
        self.values = np.zeros((capacity, width))
        self._taken = 0

    def add(self, row: Sequence[float]) -> None:
        self.values[self._taken % len(self.values)] = row
        self._taken += 1

    def rows(self, after_ms: int) -> list[list[float]]:
        rows = np.roll(self.values, -self._taken, axis=0)
        found: list[list[float]] = rows[rows[:, 0] > after_ms].tolist()
        return [[int(value) if value.is_integer() else value for value in row] for row in found]


class Samples(Ticker):
    """Figures of the server. Counters do not count the replay of the log."""

    interval_ms = INTERVAL_MS

    def __init__(self, runtime: Runtime, columns: list[Column]) -> None:
        super().__init__(runtime)
        self._columns = columns
        self.names = ["ts", *(column.name for column in columns)]
        self._ring = Ring(CAPACITY, len(self.names))
        self._minutes = Ring(MINUTES, len(self.names))
        self._minute: list[float] = []  # the row of the present minute, without its time
        self._minute_ms = 0
        self._before: list[float] = []
        self.save: Callable[[bytes], None] | None = None  # into the data directory

    def begin(self) -> None:
        self._before = self._read()
        super().begin()

    def take(self) -> None:
        values = self._read()
        before = values if self._engine.is_replaying else self._before
        row = [now - was if one.counter else now for one, now, was in zip(self._columns, values, before, strict=True)]
        now_ms = self._runtime.clock.now_ms()
        self._ring.add((now_ms, *row))
        self._before = values
        self._add_to_minute(now_ms, row)

    def _add_to_minute(self, now_ms: int, row: list[float]) -> None:
        if now_ms // MINUTE_MS != self._minute_ms // MINUTE_MS and self._minute:
            self._minutes.add((self._minute_ms, *self._minute))
            self._minute = []
            if self.save is not None and now_ms // SAVE_MS != self._minute_ms // SAVE_MS:
                self.save(self.saved())
        self._minute_ms = now_ms
        self._minute = [
            was + now if one.counter else max(was, now) if one.peak else now
            for one, was, now in zip(self._columns, self._minute or [0.0] * len(row), row, strict=True)
        ]

    def rows(self, after_ms: int = 0, *, minutes: bool = False) -> list[list[float]]:
        return (self._minutes if minutes else self._ring).rows(after_ms)

    def saved(self) -> bytes:
        """Return the minutes for a file, with a checksum at the end."""
        data = msgspec.msgpack.encode((self.names, self._minutes.rows(0)))
        return data + xxhash.xxh3_64_digest(data)

    def load(self, data: bytes) -> None:
        """Take the minutes of a file. Raise `ValueError` if it is damaged or of another version."""
        if xxhash.xxh3_64_digest(data[:-8]) != data[-8:]:
            raise ValueError("the samples do not match their checksum")
        names, rows = msgspec.msgpack.decode(data[:-8], type=tuple[list[str], list[list[float]]])
        for row in rows[-MINUTES:]:
            known = dict(zip(names, row, strict=True))
            self._minutes.add([known.get(name, 0) for name in self.names])

    def _read(self) -> list[float]:
        return [float(column.read()) for column in self._columns]


class QueueRing(Ring):
    def __init__(self, topic: Topic) -> None:
        super().__init__(QUEUE_CAPACITY, len(QUEUE_COLUMNS))
        self.topic = topic
        self._finished = _finished(topic)

    def take(self, now_ms: int) -> None:
        queue, finished = self.topic.queue, _finished(self.topic)
        assert queue is not None
        grown, self._finished = max(finished - self._finished, 0), finished
        self.add((now_ms, queue.ready, queue.in_flight, queue.delayed, grown, rough_age_ms(self.topic, now_ms)))


class QueueSamples(Ticker):
    interval_ms = QUEUE_INTERVAL_MS

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._rings: dict[int, QueueRing] = {}  # by topic id; the ring that was asked for last is the last

    def rows(self, topic: Topic, after_ms: int = 0) -> list[list[float]]:
        ring = self._rings.pop(topic.topic_id, None)
        if ring is None:
            if len(self._rings) >= MAX_QUEUES:
                del self._rings[next(iter(self._rings))]
            ring = QueueRing(topic)
        self._rings[topic.topic_id] = ring
        return ring.rows(after_ms)

    def take(self) -> None:
        if self._engine.is_replaying:
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
                self._rings = {topic_id: QueueRing(topic)} | self._rings


class ReaderSamples(Ticker):
    """The lag and the progress of consumers and routers."""

    interval_ms = QUEUE_INTERVAL_MS

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        # Time, readers, and two values of each. Neighbours with the same readers share the tuple.
        self._taken: deque[tuple[int, tuple[Reader, ...], array[int]]] = deque(maxlen=QUEUE_CAPACITY)

    def take(self) -> None:
        """Sample the first `MAX_READERS` consumers and routers."""
        if self._engine.is_replaying:
            return
        now_ms = self._runtime.clock.now_ms()
        found = dict(self._look(now_ms))
        readers = tuple(found)
        if self._taken and self._taken[-1][1] == readers:
            readers = self._taken[-1][1]
        self._taken.append((now_ms, readers, array("q", chain.from_iterable(found.values()))))

    def rows(self, may_use: Callable[[str], bool], after_ms: int = 0) -> tuple[list[str], list[list[float]]]:
        """Return names of columns, two for each reader, and rows. A value is -1 where the reader did not exist."""
        known: tuple[Reader, ...] = self._taken[-1][1] if self._taken else ()
        shown = [one for one in known if may_use(one[1]) and (one[0] == CONSUMER or may_use(one[2]))]
        rows: list[list[float]] = []
        places: list[int | None] = []
        before = None
        for ts, readers, values in self._taken:
            if ts <= after_ms:
                continue
            if readers is not before:
                at = {one: 2 * number for number, one in enumerate(readers)}
                places, before = [at.get(one) for one in shown], readers
            row: list[float] = [ts]
            for place in places:
                row += (-1, -1) if place is None else values[place : place + 2]
            rows.append(row)
        return ["ts", *(f"{figure} {' '.join(one)}" for one in shown for figure in ("lag", "done"))], rows

    def _look(self, now_ms: int) -> Iterator[tuple[Reader, tuple[int, int]]]:
        for topic, consumer in islice(self._engine.consumers.everywhere(), MAX_READERS):
            lag = lag_of(topic, consumer, now_ms, exact=False).records
            yield (CONSUMER, topic.name, consumer.name), (lag, consumer.seq)
        for router in islice(self._engine.routers.table.by_name.values(), MAX_READERS):
            yield ("router", router.edge.source.name, router.name), (router.lag, router.forwarded_total)


def _finished(topic: Topic) -> int:
    """Return how many jobs of a queue were completed or moved to its dead letters so far."""
    return topic.head - topic.count - topic.losses.total
