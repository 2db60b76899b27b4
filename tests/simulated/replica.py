"""A server with a replica, on a simulated disk and bucket.

    server = ReplicaServer.start(bucket)                    # on a new disk: restores what the bucket has
    server.append("orders", "1", durability="replicated")
    after = ReplicaServer.start(bucket)                     # the machine is lost; another one continues

Uploads run at once, or with a `DeferredWorker` when the test runs them. `later` collects timers; `pass_ms` fires them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulated.bucket import SimBucket
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.harness import ROOT, SimServer
from topics.engine.durable.recovery import Recovered
from topics.engine.durable.replication import Replication
from topics.engine.write.commit import Ticket
from topics.errors import TopicsError
from topics.storage.replica import start
from topics.storage.replica.sequence import Server
from topics.storage.replica.uploader import Uploader
from topics.storage.worker import INLINE, Worker

URL = "sim://bucket"


class ReplicaServer(SimServer):
    """A `SimServer` whose directory has a replica."""

    def __init__(
        self, disk: SimDisk, bucket: SimBucket, *, host: str = "a", worker: Worker = INLINE,
        file_worker: Worker = INLINE, interval_ms: int = 1000, timeout_ms: int = 10_000, max_lag_bytes: int = 1 << 40,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(disk, **options)
        self.bucket = bucket
        self._options = {"host": host, "interval_ms": interval_ms, "timeout_ms": timeout_ms, **options}
        self._host = host
        self._workers = worker, file_worker
        self._settings = interval_ms, timeout_ms, max_lag_bytes
        self._timers: list[tuple[int, Callable[[], None]]] = []
        self.opened: start.Opened | None = None
        self.replication: Replication

    @classmethod
    def begin(cls, bucket: SimBucket, disk: SimDisk | None = None, **options: Any) -> ReplicaServer:
        """Return an open server. Without a disk, on a new machine."""
        server = cls(disk or SimDisk(), bucket, **options)
        server.open()
        return server

    def open(self) -> Recovered:
        interval_ms, timeout_ms, max_lag_bytes = self._settings
        about = Server(url=URL, host=self._host, interval_ms=interval_ms, max_lag_bytes=max_lag_bytes)
        opened = self.opened or start.prepare(self.bucket, self.disk, ROOT, about, now_ms=self.clock.now_ms())
        self._dir.open()
        self.recovered = self.store.recover(lambda share: None)
        sequence = opened.sequence
        sequence.left = self.wal.left
        self.engine.routers.attach()
        start.claim(self._dir, sequence)
        uploader = Uploader(
            sequence, self.bucket, self._dir, worker=self._workers[0], file_worker=self._workers[1], clock=self.clock,
            later=self._later, known=opened.known,
        )  # fmt: skip
        self.replication = Replication(uploader, self.store, self.clock, timeout_ms=timeout_ms)
        report = uploader.read_checkpoint(self.store.snapshot_number)
        uploader.synced(self.wal.synced_to)
        report()
        self.replication.attach(self.engine.commits)
        self.engine.routers.table.moved = {}
        return self.recovered

    def tick(self) -> None:
        self.engine.routers.mark_moved()
        self.engine.flush()
        super().tick()

    def upload(self) -> None:
        """Have everything in the bucket now, without a wait."""
        self.tick()
        self.engine.commits.sync()
        self.wal.sync_now()
        self.replication.sequence.waiting = 1
        self.replication.uploader.pump()

    @property
    def state(self) -> str:
        return self.replication.sequence.state.value

    def restart(self, **options: Any) -> ReplicaServer:
        """Kill the process. Return the next start on the same disk."""
        clock = SimClock(self.clock.now_ms() + 1)
        return ReplicaServer.begin(self.bucket, self.disk.crash("keep"), **(self._options | {"clock": clock} | options))

    def elsewhere(self, **options: Any) -> ReplicaServer:
        """Lose the machine. Return a start on another one."""
        clock = SimClock(self.clock.now_ms() + 1)
        return ReplicaServer.begin(self.bucket, **(self._options | {"host": "b", "clock": clock} | options))

    def done(self, ticket: Ticket) -> Any:
        """Return the result of a verb. Let time pass while it waits for the bucket, until its caller gets an answer."""
        self.engine.flush()
        answers: list[TopicsError | None] = []
        ticket.on_done(lambda done: answers.append(done.error))
        while not answers:  # bound: the timeout of the replica
            self.pass_ms(100)
        if answers[0] is not None:
            raise answers[0]
        return ticket.value()

    def _later(self, ms: int, then: Callable[[], None]) -> None:
        self._timers.append((self.clock.now_ms() + ms, then))

    def pass_ms(self, ms: int) -> None:
        """Let time pass: sync what is written, and fire the timers that are due, each at its time."""
        end = self.clock.now_ms() + ms
        self.tick()
        while due := sorted((one for one in self._timers if one[0] <= end), key=lambda one: one[0]):
            self._timers.remove(due[0])
            self.clock.advance(ms=max(due[0][0] - self.clock.now_ms(), 0))
            due[0][1]()
        self.clock.advance(ms=end - self.clock.now_ms())
        self.replication.check()
