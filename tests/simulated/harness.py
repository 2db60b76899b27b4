"""A complete engine on a simulated disk and clock, for crash tests.

    server = SimServer.start(SimDisk(seed=7))
    server.append("orders", "1", "2", durability="fsync")
    after = server.crash("tear")            # the machine crashes; `after` is the next start on the same disk
    assert after.data("orders") == ["1", "2"]

Verbs end their loop turn at once and raise the errors of the engine. Work for threads runs immediately, or with a
`DeferredWorker` when the test runs it.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from tests.simulated.clock import SimClock
from tests.simulated.disk import FOREVER, SimDisk
from tests.simulated.inode import CrashMode
from topics.engine.durable.recovery import Recovered
from topics.engine.durable.store import Done, Store, run_inline
from topics.engine.engine import Configured, Dropped, Engine
from topics.engine.read.read import Query, Reading
from topics.engine.state.consumers import Consumer
from topics.engine.state.topics import SegmentLimits, State
from topics.engine.steps import Steps, run_all
from topics.engine.write.append import Appended
from topics.engine.write.commit import Ticket
from topics.engine.write.delete import Deleted
from topics.model.records import Limits, NewRecord, TagMatch, WriteRequest
from topics.model.topic import ConfigPatch, TopicConfig
from topics.storage.datadir import DataDir
from topics.storage.log import frame, walfile
from topics.storage.log.background import LogRefused
from topics.storage.log.wal import Wal
from topics.storage.segments.cold import waiting
from topics.storage.worker import InlineWorker, Worker

ROOT = "/data"
SMALL_SEGMENTS = SegmentLimits(max_events=3)
SMALL_WAL_BYTES = 4096

_decode = msgspec.json.decode


class DeferredWorker:
    """A worker that runs its jobs when the test calls `run`, instead of on a thread.

    `work` and `report` split a run: the thread is done, but the loop has not been notified yet.
    """

    def __init__(self) -> None:
        self._jobs: deque[tuple[Callable[[], None], Callable[[Exception | None], None]]] = deque()
        self._reports: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        self._jobs.append((work, done))

    def rest(self) -> None:
        pass

    def __len__(self) -> int:
        """Return the number of jobs that are not reported yet."""
        return len(self._jobs) + len(self._reports)

    def work(self) -> None:
        """Run the next job, if there is one, without reporting it."""
        if self._jobs:
            work, done = self._jobs.popleft()
            InlineWorker().submit(work, lambda error: self._reports.append(partial(done, error)))

    def report(self) -> None:
        """Report all finished jobs."""
        while self._reports:
            self._reports.popleft()()

    def run(self, jobs: int = 1) -> None:
        """Run and report the next jobs."""
        self.report()
        for _ in range(min(jobs, len(self._jobs))):
            self.work()
            self.report()

    def run_all(self) -> None:
        while len(self):
            self.run()


class HeldSteps:
    """Runs work in steps at once, or holds it after some steps: what a server does in slices, with requests between."""

    def __init__(self) -> None:
        self.hold_after: int | None = None
        self._held: tuple[Steps[None], Done] | None = None

    def __call__(self, steps: Steps[None], done: Done) -> None:
        if self.hold_after is None:
            run_inline(steps, done)
            return
        for _ in range(self.hold_after):
            next(steps, None)
        self._held = steps, done

    def release(self) -> None:
        """Run the steps that are held, and hold no more."""
        self.hold_after = None
        if self._held is not None:
            held, self._held = self._held, None
            run_inline(*held)


class TopicView(NamedTuple):
    """All state of a topic that clients can observe."""

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
    consumers: tuple[Consumer, ...]


class SimServer:
    """One server process. `disk.calls` lists its file calls; `recovered` is the result of its recovery."""

    def __init__(self, disk: SimDisk, *, clock: SimClock | None = None, segments: SegmentLimits = SMALL_SEGMENTS,
                 wal_file_bytes: int = SMALL_WAL_BYTES, sync_worker: Worker | None = None,
                 store_worker: Worker | None = None, write_worker: Worker | None = None,
                 gather_turns: int = 0, cold_dir: str | None = None, hot_segments: int = 0, rewrite_percent: int = 0,
                 max_copies: int = 10_000) -> None:  # fmt: skip
        self.disk = disk
        self.clock = clock or SimClock()
        self._segments = segments
        self._wal_file_bytes = wal_file_bytes
        self._cold: dict[str, Any] = {
            "cold_dir": cold_dir,
            "hot_segments": hot_segments,
            "rewrite_percent": rewrite_percent,
        }
        self._dir = DataDir(disk, ROOT)
        self.steps = HeldSteps()
        limits = Limits(max_copies=max_copies)
        state = State(segments=segments, max_keys=limits.max_idempotency_keys)
        self.wal = Wal(
            self._dir,
            file_bytes=wal_file_bytes,
            worker=InlineWorker() if sync_worker is None else sync_worker,
            clock=self.clock,
            writer=write_worker,
        )
        self.store = Store(
            self._dir,
            state,
            self.wal,
            worker=InlineWorker() if store_worker is None else store_worker,
            clock=self.clock,
            runner=self.steps,
            rewrite_min_bytes=1,
            **self._cold,
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
        """Return an open server."""
        server = cls(disk or SimDisk(), **options)
        server.open()
        return server

    def open(self) -> Recovered:
        """Recover as a server does. Records of `memory` topics are replayed later, by a verb or `replay_some`."""
        self._dir.open()
        self.recovered = self.store.recover(lambda share: None, defer_memory=True)
        self.engine.await_replay(self.recovered.backlog)
        return self.recovered

    def stop(self) -> SimServer:
        """Stop in order and return the next start on the same disk."""
        self.close()
        return self.next(self.disk)

    def close(self) -> None:
        self.steps.release()
        self.engine.replay_all()
        self.store.checkpoint(clean=True)
        self.store.close()

    def crash(self, mode: CrashMode) -> SimServer:
        """Crash in the given mode and return the next start."""
        return self.next(self.disk.crash(mode))

    def next(self, disk: SimDisk) -> SimServer:
        """Return a new server with the same settings on `disk`."""
        clock = SimClock(self.clock.now_ms() + 1)
        same = {"segments": self._segments, "wal_file_bytes": self._wal_file_bytes, **self._cold}
        return SimServer.start(disk, clock=clock, **same)

    # --- verbs

    def done(self, ticket: Ticket) -> Any:
        """End the loop turn and return the result of a verb. Raise its error. Hold no checkpoint that it waits for."""
        self.engine.flush()
        if not ticket.done:
            self.engine.flush()  # a nack moves exhausted jobs in a second step
            self.steps.release()
        return ticket.value()

    def put(self, name: str, **config: Any) -> Configured:
        found: Configured = self.done(self.engine.put_topic(name, ConfigPatch(**config)))
        return found

    def append(self, name: str, *data: str, tag: str | None = None, key: str | None = None, **config: Any) -> Appended:
        """Append one record per JSON text in `data`. `config` applies if this creates the topic."""
        found: Appended = self.done(self.engine.append(name, request(*data, tag=tag, key=key, **config)))
        return found

    def delete(self, name: str, *, before_seq: int | None = None, match: TagMatch | None = None) -> Deleted:
        found: Deleted = self.done(run_all(self.engine.delete_records(name, before_seq=before_seq, match=match)))
        return found

    def drop(self, name: str) -> Dropped:
        found: Dropped = self.done(self.engine.drop_topic(name))
        return found

    def tick(self) -> None:
        """Run the periodic work of a server."""
        self.wal.tick()
        if self.wal.read_only is None:
            self.engine.queues.log_returns()
        self.store.save()

    def fill_log(self) -> None:
        """Leave no space on the disk for a log file, and none in the present one, until `disk.heal`."""
        self.disk.fail(at=len(self.disk.calls), op="allocate", error=errno.ENOSPC, times=FOREVER)
        with suppress(LogRefused):
            while True:
                room_bytes = self._wal_file_bytes - self.wal.tail - frame.OVERHEAD_BYTES
                # A frame that is no log entry.
                self.wal.write([frame.encode(walfile.FOLLOWS, 0, 0, 0, bytes(max(8, room_bytes)))])

    def turn(self) -> None:
        """Run the work scheduled for the end of the loop turn. Only a server with `gather_turns` schedules work."""
        work = self._turns[:]
        self._turns.clear()
        for piece in work:
            piece()

    def checkpoint(self) -> bool:
        self.engine.replay_all()  # as a server does before a checkpoint
        return self.store.checkpoint()

    def begin_checkpoint(self, *, topics: int, done: Done = lambda error: None) -> bool:
        """Begin a checkpoint and hold it after so many topics. `steps.release` ends it."""
        self.steps.release()
        self.engine.replay_all()
        self.steps.hold_after = topics
        return self.store.checkpoint(done)

    # --- reading

    def read(self, name: str, from_seq: int = 0, **query: Any) -> Reading:
        return waiting(lambda: self.engine.read(name, Query(from_seq=from_seq, limit=1000, **query))[1])

    def walk(self, name: str, **query: Any) -> tuple[list[bytes], list[tuple[int, int, str]]]:
        """Return all records and tombstones that a reader gets from the start to the head."""
        rows: list[bytes] = []
        gaps: list[tuple[int, int, str]] = []
        at = 0
        while at < self.engine.topic(name).head:
            reading = self.read(name, at, **query)
            if reading.tombstone is not None:
                gaps.append((reading.tombstone.gap_from, reading.tombstone.gap_to, reading.tombstone.reason))
            rows += [row for part in reading.parts for row in _rows(bytes(part))]
            assert reading.next_from_seq > at, f"{name}: a reader is stuck at {at}"
            at = reading.next_from_seq
        return rows, gaps

    def data(self, name: str) -> list[str]:
        """Return the `data` of all records, as JSON text."""
        return [bytes(_decode(row, type=_Row).data).decode() for row in self.walk(name)[0]]

    def by_seq(self, name: str) -> dict[int, str]:
        found = [_decode(row, type=_Row) for row in self.walk(name)[0]]
        return {row.seq: bytes(row.data).decode() for row in found}

    def listing(self) -> dict[str, tuple[int, int, int, int]]:
        """Return head, earliest, count and bytes of each topic, as the list shows them."""
        page = [self.engine.topics[name] for name in self.engine.state.names.visible(())]
        for topic in page:
            self.engine.expire(topic)
        return {topic.name: (topic.head, topic.earliest, topic.count, topic.bytes) for topic in page}

    def view(self) -> dict[str, TopicView]:
        """Return all topics as clients see them, to compare two servers."""
        return {name: self._view(name) for name in sorted(self.engine.topics)}

    def _view(self, name: str) -> TopicView:
        topic = waiting(lambda: self.engine.expire_and_get(name, touch=False))
        rows, gaps = self.walk(name)
        topic = self.engine.topic(name)
        keys = tuple((key, write.first, write.last, write.at_ms) for key, write in topic.keys.items())
        return TopicView(
            topic.epoch, topic.config, topic.head, topic.earliest, topic.evict_floor, topic.count, topic.bytes,
            tuple(topic.losses.runs), keys, tuple(rows), tuple(gaps), topic.archived, topic.trimmed,
            tuple(copy(one) for _, one in self.engine.consumers.of_topic(topic)),
        )  # fmt: skip


class _Row(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    data: Raw = Raw(b"null")


def request(*data: str, tag: str | None = None, key: str | None = None, **config: Any) -> WriteRequest:
    records = [NewRecord(Raw(text.encode()), tag) for text in data]
    return WriteRequest(records, idempotency_key=key, config=ConfigPatch(**config) if config else None)


def _rows(part: bytes) -> list[bytes]:
    """Split a slice of rendered records, each of which ends in a comma."""
    whole = _decode(b"[" + part[:-1] + b"]", type=list[Raw])
    return [bytes(row) for row in whole]
