"""A standby takes over: it is killed at every request to the bucket, and races with the writer and another standby.

Every acknowledged `replicated` write is there afterwards, and no seq is given out twice.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from tests.conftest import Counts
from tests.sampling import amount
from tests.simulated.bucket import SimBucket
from tests.simulated.clock import SimClock
from tests.simulated.disk import Crashed, SimDisk
from tests.simulated.harness import DeferredWorker, request
from tests.simulated.replica import ReplicaServer
from tests.simulated.standby import SimStandby
from topics.engine.write.commit import Ticket
from topics.errors import TopicsError
from topics.storage.replica.start import NotOurs

SILENCE_MS = 8_000


def prepared() -> tuple[SimBucket, SimStandby, int]:
    """Return a bucket whose writer is lost, its standby, and the last seq of `plain` that the writer gave out."""
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket)
    writer.append("sure", "1", durability="replicated")
    writer.append("plain", "1", "2")
    writer.pass_ms(2_000)
    clock = SimClock(writer.clock.now_ms())
    standby = SimStandby.begin(bucket, clock=clock, takeover_after_ms=2_000)
    writer.append("sure", "2", key="k")
    last = writer.append("plain", "3").last  # is not uploaded
    return bucket, standby, last


def succeeded(standby: SimStandby) -> ReplicaServer:
    standby.pass_ms(SILENCE_MS)
    return standby.successor()


def begin_again(bucket: SimBucket, disk: SimDisk, now_ms: int) -> ReplicaServer:
    """Start `topics serve --standby` on the disk, and wait until it takes over; the last writer goes on at once."""
    clock = SimClock(now_ms)
    try:
        return succeeded(SimStandby.begin(bucket, disk, clock=clock, takeover_after_ms=2_000))
    except AssertionError:  # the directory is that of the last writer
        return ReplicaServer.begin(bucket, disk, clock=clock)


def play(bucket: SimBucket, standby: SimStandby, acked: list[str]) -> None:
    """Take over, and write. Note what is acknowledged."""
    server = succeeded(standby)
    server.append("sure", "3", key="j")
    acked.append("3")
    server.checkpoint()
    server.pass_ms(2_000)


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_takeover_survives_a_kill_at_every_request(after: bool, elsewhere: bool, counts: Counts):
    bucket, standby, _ = prepared()
    began = len(bucket.requests)
    play(bucket, standby, [])
    requests = len(bucket.requests) - began
    for number in range(requests):
        bucket, standby, last = prepared()
        bucket.crash_at(len(bucket.requests) + number, after=after)
        acked = ["1", "2"]
        with pytest.raises(Crashed):
            play(bucket, standby, acked)
        bucket.heal()
        disk = SimDisk() if elsewhere else standby.disk.crash("keep")
        found = begin_again(bucket, disk, standby.clock.now_ms() + 1)
        assert found.data("sure")[: len(acked)] == acked
        assert found.append("sure", "2", key="k").first == 2
        assert found.append("sure", "3", key="j").first == 3
        assert found.append("plain", "4").first > last
        assert {reason for _, _, reason in found.walk("plain")[1]} == {"failover"}
    counts(f"{requests} kills")


class Race:
    """A writer and two standbys for one replica, whose steps are mixed at random, also between two requests."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.bucket = SimBucket()
        self.workers = {"a": DeferredWorker()}
        self.servers = {"a": ReplicaServer.begin(self.bucket, worker=self.workers["a"])}
        self.workers["a"].run_all()
        self.standbys: dict[str, SimStandby] = {}
        self.tickets: list[tuple[str, Ticket]] = []
        self.number = 0
        self.write("a")
        self.workers["a"].run_all()
        self.servers["a"].pass_ms(2_000)
        self.workers["a"].run_all()
        for name in ("b", "c"):
            clock = SimClock(self.servers["a"].clock.now_ms())
            self.standbys[name] = SimStandby.begin(self.bucket, host=name, clock=clock, takeover_after_ms=1_500)
        self.busy = False
        self.bucket.before = self.between

    def between(self, op: str, name: str) -> None:
        """Let another server act between two requests."""
        if not self.busy and self.random.random() < 0.3:
            self.busy = True
            self.step(self.random.choice("abc"))
            self.busy = False

    def step(self, name: str) -> None:
        """Let one server do something: write, upload, follow, or let its time pass."""
        if (server := self.servers.get(name)) is not None:
            match self.random.randrange(4):
                case 0:
                    self.write(name)
                case 1 | 2:
                    self.workers[name].run()
                case _:
                    server.pass_ms(self.random.choice([10, 300, 1_200]))
        elif (standby := self.standbys.get(name)) is not None and not standby.must_load:
            if self.busy:
                standby.worker.work()
            else:
                standby.pass_ms(self.random.choice([0, 300, 1_200, 4_000]))
                self.take_over(name, standby)

    def take_over(self, name: str, standby: SimStandby) -> None:
        if standby.opened is not None:
            self.workers[name] = DeferredWorker()
            self.servers[name] = standby.successor(worker=self.workers[name])

    def write(self, name: str) -> None:
        server = self.servers[name]
        self.number += 1
        with suppress(TopicsError):
            ticket = server.engine.append("sure", request(str(self.number), durability="replicated"))
            self.tickets.append((str(self.number), ticket))
            server.engine.flush()

    def check(self) -> None:
        """Continue the replica elsewhere, and look for everything that was acknowledged."""
        self.bucket.before = lambda op, name: None
        found = ReplicaServer.begin(self.bucket, clock=SimClock(10_000_000))
        shown = found.by_seq("sure")
        acked = {}
        for data, ticket in self.tickets:
            if ticket.done and ticket.error is None:
                assert ticket.result.first not in acked, "a seq was given out twice"
                acked[ticket.result.first] = data
        assert {seq: shown.get(seq) for seq in acked} == acked


def race(seed: int) -> int:
    one = Race(seed)
    for _ in range(60):
        with suppress(NotOurs):
            one.step(one.random.choice("aabbcc"))
    one.check()
    return len(one.servers) - 1


def test_racing_servers_lose_no_acknowledged_write(counts: Counts):
    takeovers = sum(race(seed) for seed in range(amount(150, 1_000)))
    counts(f"{takeovers} takeovers")
    assert takeovers > 50
