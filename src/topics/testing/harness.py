"""A whole engine on a simulated disk and clock: open it, use it, kill it, open what is left.

    server = SimServer.start(SimDisk(seed=7))
    server.append("orders", "1", "2", durability="fsync")
    after = server.crash("tear")            # the machine dies; this is the next start, on what the disk kept
    assert after.data("orders") == ["1", "2"]

Verbs end their turn at once and raise what the engine answers. Work that a server gives to its threads is done on the
spot, or, with a `DeferredWorker`, when the test says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from topics.engine.durable.recovery import Recovered
from topics.engine.durable.store import Store
from topics.engine.engine import Configured, Dropped, Engine
from topics.engine.read.read import Query, Reading
from topics.engine.state.topics import SegmentLimits, State
from topics.engine.steps import run_all
from topics.engine.write.append import Appended
from topics.engine.write.commit import Ticket
from topics.engine.write.delete import Deleted
from topics.model.records import Limits, NewRecord, TagMatch, WriteRequest
from topics.model.topic import ConfigPatch, TopicConfig
from topics.storage.datadir import DataDir
from topics.storage.log.wal import InlineWorker, Wal, Worker
from topics.storage.segments.cold import waiting
from topics.testing.clock import SimClock
from topics.testing.disk import SimDisk
from topics.testing.inode import CrashMode

ROOT = "/data"
SMALL_SEGMENTS = SegmentLimits(max_events=3)
SMALL_WAL_BYTES = 4096

_decode = msgspec.json.decode


class DeferredWorker:
    """Keeps work until `run`: what a thread does between two turns of the loop, at a moment of the test's choice.

    `work` and `report` split a run in two: the thread is done, and the loop has not heard of it yet.
    """

    def __init__(self) -> None:
        self._jobs: deque[tuple[Callable[[], None], Callable[[Exception | None], None]]] = deque()
        self._reports: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        self._jobs.append((work, done))

    def __len__(self) -> int:
        """Pieces of work that were not reported yet."""
        return len(self._jobs) + len(self._reports)

    def work(self) -> None:
        """Does the next piece of work, if there is one, and keeps its report."""
        if self._jobs:
            work, done = self._jobs.popleft()
            InlineWorker().submit(work, lambda error: self._reports.append(partial(done, error)))

    def report(self) -> None:
        """Reports all work that was done."""
        while self._reports:
            self._reports.popleft()()

    def run(self, jobs: int = 1) -> None:
        """Does the next pieces of work and reports each of them."""
        self.report()
        for _ in range(min(jobs, len(self._jobs))):
            self.work()
            self.report()

    def run_all(self) -> None:
        while len(self):
            self.run()


class View(NamedTuple):
    """Everything a client could find out about a topic."""

    epoch: int
    config: TopicConfig
    head: int
    earliest: int
    evict_floor: int
    live: int
    size_bytes: int
    losses: tuple[tuple[int, int, str], ...]
    keys: tuple[tuple[str, int, int, int], ...]
    records: tuple[bytes, ...]
    tombstones: tuple[tuple[int, int, str], ...]
    archived: int
    trimmed: int


class SimServer:
    """One life of a process. `disk.calls` counts what it did; `recovered` tells what it found."""

    def __init__(self, disk: SimDisk, *, clock: SimClock | None = None, segments: SegmentLimits = SMALL_SEGMENTS,
                 wal_file_bytes: int = SMALL_WAL_BYTES, sync_worker: Worker | None = None,
                 store_worker: Worker | None = None, gather_turns: int = 0) -> None:  # fmt: skip
        self.disk = disk
        self.clock = clock or SimClock()
        self._segments = segments
        self._wal_file_bytes = wal_file_bytes
        self._dir = DataDir(disk, ROOT)
        limits = Limits()
        state = State(segments=segments, max_keys=limits.max_idempotency_keys)
        self.wal = Wal(
            self._dir,
            file_bytes=wal_file_bytes,
            worker=InlineWorker() if sync_worker is None else sync_worker,
            clock=self.clock,
        )
        self.store = Store(
            self._dir,
            state,
            self.wal,
            worker=InlineWorker() if store_worker is None else store_worker,
            clock=self.clock,
        )
        self._turns: list[Callable[[], None]] = []
        schedule = self._turns.append if gather_turns else lambda work: None
        self.engine = Engine(clock=self.clock, limits=limits, log=self.wal, state=state, schedule=schedule)
        self.engine.commits.gather_turns = gather_turns
        self.store.commits = self.engine.commits
        self.engine.saver = self.store.when_saved
        self.recovered: Recovered | None = None

    @classmethod
    def start(cls, disk: SimDisk | None = None, **options: Any) -> SimServer:
        """A server that is open."""
        server = cls(disk or SimDisk(), **options)
        server.open()
        return server

    def open(self) -> Recovered:
        """Start as a server does: records of `memory` topics wait until a verb, or `replay_some`, brings them back."""
        self._dir.open()
        self.recovered = self.store.recover(lambda share: None, defer_memory=True)
        self.engine.await_replay(self.recovered.backlog)
        return self.recovered

    def stop(self) -> SimServer:
        """An orderly stop, and the next start on the same disk."""
        self.close()
        return self.next(self.disk)

    def close(self) -> None:
        self.engine.replay_all()
        self.store.checkpoint(clean=True)
        self.store.close()

    def crash(self, mode: CrashMode) -> SimServer:
        """Dies as `mode` says; the next start, a moment later."""
        return self.next(self.disk.crash(mode))

    def next(self, disk: SimDisk) -> SimServer:
        """The same server on what is left of its disk."""
        clock = SimClock(self.clock.now_ms() + 1)
        return SimServer.start(disk, clock=clock, segments=self._segments, wal_file_bytes=self._wal_file_bytes)

    # --- verbs

    def done(self, ticket: Ticket) -> Any:
        """What a verb ended with; raises its error."""
        self.engine.flush()
        return ticket.value()

    def put(self, name: str, **config: Any) -> Configured:
        found: Configured = self.done(self.engine.put_topic(name, ConfigPatch(**config)))
        return found

    def append(self, name: str, *data: str, tag: str | None = None, key: str | None = None, **config: Any) -> Appended:
        """One record for each JSON text in `data`; `config` is for a topic that this makes."""
        found: Appended = self.done(self.engine.append(name, request(*data, tag=tag, key=key, **config)))
        return found

    def delete(self, name: str, *, before_seq: int | None = None, match: TagMatch | None = None) -> Deleted:
        found: Deleted = self.done(run_all(self.engine.delete_records(name, before_seq=before_seq, match=match)))
        return found

    def drop(self, name: str) -> Dropped:
        found: Dropped = self.done(self.engine.drop_topic(name))
        return found

    def tick(self) -> None:
        """What a server does now and then."""
        self.wal.tick()
        self.store.save()

    def turn(self) -> None:
        """Does what was put off to the end of this turn of the loop. Only a server with `gather_turns` puts it off."""
        work = self._turns[:]
        self._turns.clear()
        for piece in work:
            piece()

    def checkpoint(self) -> bool:
        self.engine.replay_all()  # a server takes no checkpoint before
        return self.store.checkpoint()

    # --- looking

    def read(self, name: str, from_seq: int = 0, **query: Any) -> Reading:
        return waiting(lambda: self.engine.read(name, Query(from_seq=from_seq, limit=1000, **query))[1])

    def walk(self, name: str) -> tuple[list[bytes], list[tuple[int, int, str]]]:
        """All records and tombstones that a reader meets who starts at the beginning and follows its cursor."""
        rows: list[bytes] = []
        gaps: list[tuple[int, int, str]] = []
        at = 0
        while at < self.engine.topic(name).head:
            reading = self.read(name, at)
            if reading.tombstone is not None:
                gaps.append((reading.tombstone.gap_from, reading.tombstone.gap_to, reading.tombstone.reason))
            rows += [row for part in reading.parts for row in _rows(bytes(part))]
            assert reading.next_from_seq > at, f"{name}: a reader is stuck at {at}"
            at = reading.next_from_seq
        return rows, gaps

    def data(self, name: str) -> list[str]:
        """The records' `data`, as JSON text."""
        return [bytes(_decode(row, type=_Row).data).decode() for row in self.walk(name)[0]]

    def by_seq(self, name: str) -> dict[int, str]:
        found = [_decode(row, type=_Row) for row in self.walk(name)[0]]
        return {row.seq: bytes(row.data).decode() for row in found}

    def listing(self) -> dict[str, tuple[int, int, int, int]]:
        """What the list of topics shows: head, earliest, count and bytes of each."""
        page, more = self.engine.expire_and_list(prefix="", after="", limit=1000)
        assert not more
        return {topic.name: (topic.head, topic.earliest, topic.count, topic.bytes) for topic in page}

    def view(self) -> dict[str, View]:
        """All topics as their clients see them, for comparing one life with another."""
        return {name: self._view(name) for name in sorted(self.engine.topics)}

    def _view(self, name: str) -> View:
        topic = waiting(lambda: self.engine.expire_and_get(name, touch=False))
        rows, gaps = self.walk(name)
        topic = self.engine.topic(name)
        keys = tuple((key, write.first, write.last, write.at_ms) for key, write in topic.keys.items())
        return View(
            topic.epoch, topic.config, topic.head, topic.earliest, topic.evict_floor, topic.count, topic.bytes,
            tuple(topic.losses.runs), keys, tuple(rows), tuple(gaps), topic.archived, topic.trimmed,
        )  # fmt: skip


class _Row(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    data: Raw = Raw(b"null")


def request(*data: str, tag: str | None = None, key: str | None = None, **config: Any) -> WriteRequest:
    records = [NewRecord(Raw(text.encode()), tag) for text in data]
    return WriteRequest(records, idempotency_key=key, config=ConfigPatch(**config) if config else None)


def _rows(part: bytes) -> list[bytes]:
    """A slice of rendered records, each of which ends in a comma and holds no other line of its own, cut apart."""
    whole = _decode(b"[" + part[:-1] + b"]", type=list[Raw])
    return [bytes(row) for row in whole]
