"""The reference model of a queue: what may happen to jobs, in the plainest code that says it.

It does not foretell which of several claimable jobs a worker gets, because the contract leaves that open. It is told
what the engine did and says whether that was allowed, and it counts everything anew whenever somebody asks. A job is
one object for as long as its record is live; records themselves are the business of `oracle.Oracle`.
"""

from collections.abc import Collection
from dataclasses import dataclass

from topics.clock import Clock


@dataclass
class Hold:
    """A worker's hold on a job. Over once the clock has passed the deadline."""

    node: str
    lease_id: str
    deadline_ms: int


@dataclass
class Work:
    """One job."""

    seq: int
    priority: int = 0
    not_before_ms: int = 0
    deliveries: int = 0
    hold: Hold | None = None

    def held(self, now_ms: int) -> bool:
        return self.hold is not None and now_ms <= self.hold.deadline_ms

    def claimable(self, now_ms: int) -> bool:
        return not self.held(now_ms) and now_ms >= self.not_before_ms


@dataclass
class Delivery:
    """One job as a worker got it."""

    seq: int
    lease_id: str
    deadline_ms: int
    deliveries: int


class QueueOracle:
    """One queue. Verbs take what the engine answered and raise `AssertionError` where the contract forbids it."""

    def __init__(self, clock: Clock, *, max_deliveries: int = 0, dead_letter: bool = False) -> None:
        self.clock = clock
        self.bury_after = max_deliveries if dead_letter else 0
        self.jobs: dict[int, Work] = {}
        self.acked: set[int] = set()
        self.dead: set[int] = set()
        self.lost: set[int] = set()  # evicted, expired or deleted by somebody who is no worker
        self.tokens: set[str] = set()  # of all leases there ever were

    # --- records

    def written(self, seq: int, *, priority: int = 0, not_before_ms: int = 0) -> None:
        assert seq not in self.acked | self.dead | self.lost | self.jobs.keys(), "a seq is given out once"
        self.jobs[seq] = Work(seq, priority, not_before_ms)

    def removed(self, seqs: Collection[int]) -> None:
        for seq in seqs:
            if self.jobs.pop(seq, None) is not None:
                self.lost.add(seq)

    # --- workers

    def claimed(self, node: str, want: int, got: list[Delivery], buried: Collection[int]) -> None:
        """`buried` are the jobs that this claim moved to the dead-letter topic."""
        now = self.clock.now_ms()
        for seq in buried:
            work = self.jobs.pop(seq)
            assert work.claimable(now), work
            assert 0 < self.bury_after <= work.deliveries, work
            self.dead.add(seq)
        claimable = {seq for seq, work in self.jobs.items() if work.claimable(now)}
        good = {seq for seq in claimable if not self._worn_out(seq)}
        seqs = [one.seq for one in got]
        assert seqs == sorted(set(seqs)), "ascending, and no job twice"
        assert set(seqs) <= good, "not claimable, or delivered too often"
        assert len(seqs) == min(want, len(good)), "as many as were asked for, unless there are fewer"
        if len(seqs) < want:
            assert not claimable - good, "what was delivered too often has to go before the queue counts as empty"
        again = {seq for seq in good if self.jobs[seq].deliveries}
        fresh = set(seqs) - again
        assert not fresh or again <= set(seqs), "jobs that come back go out before new ones"
        for one in got:
            work = self.jobs[one.seq]
            work.deliveries += 1
            assert one.deliveries == work.deliveries, (one, work)
            assert one.lease_id not in self.tokens, "a lease id is given out once"
            self.tokens.add(one.lease_id)
            work.hold = Hold(node, one.lease_id, one.deadline_ms)

    def ack(self, node: str, seqs: list[int], lease_ids: list[str] | None) -> list[int]:
        """Which of them are done now; the others are skipped."""
        done = self._held(node, seqs, lease_ids)
        for seq in done:
            assert seq not in self.acked, "acked twice"
            self.acked.add(seq)
            del self.jobs[seq]
        return done

    def nack(self, node: str, seqs: list[int], lease_ids: list[str] | None, delay_ms: int) -> list[int]:
        done = self._held(node, seqs, lease_ids)
        for seq in done:
            self.jobs[seq].hold = None
            self.jobs[seq].not_before_ms = self.clock.now_ms() + delay_ms
        return done

    def extend(self, node: str, seqs: list[int], lease_ids: list[str] | None, lease_ms: int) -> list[int]:
        done = self._held(node, seqs, lease_ids)
        for seq in done:
            hold = self.jobs[seq].hold
            assert hold is not None
            hold.deadline_ms = self.clock.now_ms() + lease_ms
        return done

    def restarted(self, *, leases_durable: bool) -> None:
        """Leases that were not written down are forgotten, and with them how often a job was delivered."""
        if not leases_durable:
            for work in self.jobs.values():
                if work.deliveries:
                    work.hold, work.deliveries, work.not_before_ms = None, 0, 0

    # --- counting

    @property
    def in_flight(self) -> int:
        now = self.clock.now_ms()
        return sum(work.held(now) for work in self.jobs.values())

    @property
    def ready(self) -> int:
        now = self.clock.now_ms()
        return sum(work.claimable(now) for work in self.jobs.values())

    @property
    def delayed(self) -> int:
        return len(self.jobs) - self.ready - self.in_flight

    def _worn_out(self, seq: int) -> bool:
        return bool(self.bury_after) and self.jobs[seq].deliveries >= self.bury_after

    def _held(self, node: str, seqs: list[int], lease_ids: list[str] | None) -> list[int]:
        now = self.clock.now_ms()
        held = []
        for at, seq in enumerate(seqs):
            work = self.jobs.get(seq)
            if work is None or seq in held or work.hold is None or not work.held(now) or work.hold.node != node:
                continue
            if lease_ids is None or lease_ids[at] == work.hold.lease_id:
                held.append(seq)
        return held
