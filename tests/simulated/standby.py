"""A standby on a simulated disk and bucket, which follows a `ReplicaServer`.

standby = SimStandby.begin(bucket, clock=server.clock)
standby.follow()                                        # up to the end of the sequence
assert standby.view() == server.view()
standby.pass_ms(31_000)                                 # the writer is silent
after = standby.successor()                             # it has taken over
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulated.bucket import SimBucket
from tests.simulated.disk import SimDisk
from tests.simulated.harness import ROOT, DeferredWorker, SimServer
from tests.simulated.replica import URL, ReplicaServer
from topics.engine.durable.recovery import Recovered
from topics.engine.durable.standby import FollowedClock, Follower, Standby
from topics.engine.engine import Engine
from topics.storage.replica import start
from topics.storage.replica.following import Following
from topics.storage.replica.sequence import Server


class SimStandby(SimServer):
    """One standby process, until it takes over or has to load its state again."""

    def __init__(
        self, disk: SimDisk, bucket: SimBucket, *, host: str = "b", takes_over: bool = True, save_bytes: int = 2000,
        takeover_after_ms: int = 15_000, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(disk, **options)
        self.bucket = bucket
        self._host = host
        self._takes_over, self._after_ms, self._save_bytes = takes_over, takeover_after_ms, save_bytes
        self._options = options
        self.worker = DeferredWorker()
        self.opened: start.Opened | None = None
        self.must_load = False
        self._timers: list[tuple[int, Callable[[], None]]] = []
        self.standby: Standby

    @classmethod
    def begin(cls, bucket: SimBucket, disk: SimDisk | None = None, **options: Any) -> SimStandby:
        standby = cls(disk or SimDisk(), bucket, **options)
        standby.open()
        return standby

    def open(self) -> Recovered:
        loaded = start.load(self.bucket, self.disk, ROOT)
        assert loaded is not None, "the directory is not that of the writer"
        self._dir.open()
        state, clock, now_ms = self.store.state, FollowedClock(self.clock), self._elapsed_ms()
        follower = Follower(self._dir, state, self.store.caches, cold_dir=None)
        self.engine = Engine(clock=clock, limits=self.engine.limits, state=state)
        self.engine.staging.follows = True
        follower.routers.resume()
        follower.grew = self.engine.staging.grew
        self.store.commits = self.engine.commits
        following = Following(
            last=loaded.last, term=loaded.term, name=self._host, takes_over=self._takes_over,
            takeover_after_ms=self._after_ms, now_ms=now_ms,
        )  # fmt: skip
        self.standby = Standby(
            loaded, Server(url=URL, host=self._host), following, follower, self.store, worker=self.worker,
            clock=self.clock, followed=clock, later=self._later, runner=self.steps, save_bytes=self._save_bytes,
            instance=f"instance-{self._host}",
        )  # fmt: skip
        self.standby.on_taken = self._taken
        self.standby.on_load = self._load
        self.standby.begin()
        return self.recovered  # type: ignore[return-value]  # there was no recovery

    def _taken(self, opened: start.Opened) -> None:
        self.opened = opened

    def _load(self) -> None:
        self.standby.end()
        self.must_load = True

    def _later(self, ms: int, then: Callable[[], None]) -> None:
        self._timers.append((self._elapsed_ms() + ms, then))

    def _elapsed_ms(self) -> int:
        return self.clock.monotonic_ns() // 1_000_000

    def follow(self) -> None:
        """Apply all objects that are in the bucket."""
        timers, self._timers = self._timers, []
        for _, then in timers:
            then()
        self.worker.run_all()

    def pass_ms(self, ms: int) -> None:
        """Let time pass, and ask for objects when they are due."""
        end = self._elapsed_ms() + ms
        self.worker.run_all()
        while due := sorted((one for one in self._timers if one[0] <= end), key=lambda one: one[0]):
            self._timers.remove(due[0])
            self.clock.advance(ms=max(due[0][0] - self._elapsed_ms(), 0))
            due[0][1]()
            self.worker.run_all()
        self.clock.advance(ms=max(end - self._elapsed_ms(), 0))

    def loaded_again(self, **options: Any) -> SimStandby:
        """Return a new start on the same disk."""
        self.store.close()
        return SimStandby.begin(self.bucket, self.disk, **(self._options | {"clock": self.clock} | options))

    def successor(self, **options: Any) -> ReplicaServer:
        """Return the server that this one has become."""
        assert self.opened is not None, "it has taken over"
        self.store.close()
        server = ReplicaServer(self.disk, self.bucket, host=self._host, **({"clock": self.clock} | options))
        server.opened = self.opened
        server.open()
        return server
