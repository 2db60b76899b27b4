"""The reference model of a queue: what may happen to jobs, in the simplest code.

The model does not predict which of several ready jobs a worker gets, because the contract leaves that open. It checks
whether the result of the engine is allowed, and computes every figure from its jobs. A job is one object while its
record is live; `oracle.Oracle` models the records.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from fractions import Fraction

from topics.clock import Clock


@dataclass
class ModelLease:
    """The lease of a worker. It expires when the clock passes the deadline."""

    node: str
    lease_id: str
    deadline_ms: int
    since_ms: int = 0


@dataclass
class Work:
    """One job."""

    seq: int
    priority: int = 0
    not_before_ms: int = 0
    deliveries: int = 0
    hold: ModelLease | None = None
    key: str | None = None
    reasons: list[tuple[str, int, str]] = field(default_factory=list)  # node, delivery, text: the last five

    def failed(self, node: str, text: str) -> None:
        self.reasons = [*self.reasons[-4:], (node, self.deliveries, text)]

    def held(self, now_ms: int) -> bool:
        return self.hold is not None and now_ms <= self.hold.deadline_ms

    def claimable(self, now_ms: int) -> bool:
        return not self.held(now_ms) and now_ms >= self.not_before_ms


@dataclass
class Delivery:
    """One job as a worker gets it."""

    seq: int
    lease_id: str
    deadline_ms: int
    deliveries: int
    reasons: list[tuple[str, int, str]]


class QueueOracle:
    """One queue. Its methods take results of the engine and raise `AssertionError` if the contract forbids them."""

    def __init__(
        self,
        clock: Clock,
        *,
        max_deliveries: int = 0,
        dead_letter: bool = False,
        max_in_flight: int = 0,
        max_in_flight_per_key: int = 1,
        rate: tuple[int, int] | None = None,
    ) -> None:
        self.clock = clock
        self.bury_after = max_deliveries if dead_letter else 0
        self.max_in_flight = max_in_flight
        self.max_per_key = max_in_flight_per_key
        self.rate = rate  # jobs in a second, and at once
        self.uniques: dict[str, tuple[int, int]] = {}  # the last job with each key, and when the key ends or 0
        self.given: list[int] = []  # times of deliveries since the last start
        self.paused = False
        self.jobs: dict[int, Work] = {}
        self.acked: set[int] = set()
        self.dead: set[int] = set()
        self.lost: set[int] = set()  # evicted, expired, or deleted other than by an ack
        self.tokens: set[str] = set()  # ids of all leases so far

    # --- records

    def written(self, seq: int, *, priority: int = 0, not_before_ms: int = 0, key: str | None = None) -> None:
        assert seq not in self.acked | self.dead | self.lost | self.jobs.keys(), "a seq is assigned once"
        self.jobs[seq] = Work(seq, priority, not_before_ms, key=key)

    def unique(self, key: str) -> int:
        """Return the job that has the unique key; 0 if another one may have it."""
        seq, ends_ms = self.uniques.get(key, (0, 0))
        return seq if (seq in self.jobs and not ends_ms) or self.clock.now_ms() <= ends_ms else 0

    def removed(self, seqs: Collection[int]) -> None:
        for seq in seqs:
            if self.jobs.pop(seq, None) is not None:
                self.lost.add(seq)

    # --- workers

    def claimed(self, node: str, want: int, got: list[Delivery], buried: Collection[int]) -> None:
        """Check a claim. `buried` are the jobs that it moved to the dead-letter topic."""
        now = self.clock.now_ms()
        keys = {self.jobs[seq].key for seq in buried & self.jobs.keys()} - {None}
        self.moved(buried)
        good = {seq for seq, work in self.jobs.items() if work.claimable(now) and not self.blocked(work)}
        if self.max_in_flight:
            want = max(min(want, self.max_in_flight - self.in_flight), 0)
        want = 0 if self.paused else min(want, self.tokens_left(now))
        seqs = [one.seq for one in got]
        assert seqs == sorted(set(seqs)), "jobs must be ascending and distinct"
        assert set(seqs) <= good, "a job is not ready, or was delivered too often"
        opened = {seq for seq in good if self.jobs[seq].key in keys}  # behind jobs that move once the log has them
        least = max(min(want, len(good - opened)), min(want, len(good), 1))
        assert len(seqs) >= least, "a claim returns as many jobs as wanted, unless fewer are ready"
        assert len(seqs) <= want
        again = {seq for seq in good if self.jobs[seq].deliveries}
        fresh = set(seqs) - again
        assert not fresh or again <= set(seqs), "returned jobs are delivered before new ones"
        for one in got:
            work = self.jobs[one.seq]
            if work.hold is not None:
                held_s = (work.hold.deadline_ms - work.hold.since_ms) / 1000
                work.failed(work.hold.node, f"lease expired, held by {work.hold.node} for {held_s:g} s")
            assert one.reasons == work.reasons, (one, work)
            work.deliveries += 1
            assert one.deliveries == work.deliveries, (one, work)
            assert one.lease_id not in self.tokens, "a lease id is used once"
            self.tokens.add(one.lease_id)
            self.given.append(now)
            work.hold = ModelLease(node, one.lease_id, one.deadline_ms, now)

    def moved(self, seqs: Collection[int]) -> None:
        """Check which jobs moved to the dead-letter topic: all that are exhausted."""
        now = self.clock.now_ms()
        worn_out = {seq for seq, work in self.jobs.items() if self.worn_out(seq) and not work.held(now)}
        assert worn_out == set(seqs), "exhausted jobs move, and no others"
        for seq in seqs:
            self.dead.add(seq)
            del self.jobs[seq]

    def ack(self, node: str, seqs: list[int], lease_ids: list[str] | None) -> list[int]:
        """Ack jobs. Return the seqs that were held; the others are skipped."""
        done = self._held(node, seqs, lease_ids)
        for seq in done:
            assert seq not in self.acked, "acked twice"
            self.acked.add(seq)
            del self.jobs[seq]
        return done

    def nack(
        self, node: str, seqs: list[int], lease_ids: list[str] | None, delay_ms: int, reason: str = ""
    ) -> list[int]:
        done = self._held(node, seqs, lease_ids)
        for seq in done:
            self.jobs[seq].hold = None
            if reason:
                self.jobs[seq].failed(node, reason)
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
        """Apply a restart: leases and delivery counts are lost unless they are durable, and the bucket is full."""
        self.given = []
        if not leases_durable:
            for work in self.jobs.values():
                if work.deliveries:
                    work.hold, work.deliveries, work.not_before_ms, work.reasons = None, 0, 0, []

    # --- counting

    @property
    def in_flight(self) -> int:
        now = self.clock.now_ms()
        return sum(work.held(now) for work in self.jobs.values())

    @property
    def ready(self) -> int:
        now = self.clock.now_ms()
        return sum(
            (work.claimable(now) or self.blocked(work)) and not self.worn_out(seq) for seq, work in self.jobs.items()
        )

    @property
    def delayed(self) -> int:
        return len(self.jobs) - self.ready - self.in_flight

    def tokens_left(self, now_ms: int) -> int:
        """Pour a bucket again, from the first delivery on."""
        if self.rate is None:
            return 1 << 30
        (per_s, burst), since_ms = self.rate, 0
        tokens = Fraction(burst)
        for at_ms in [*self.given, now_ms]:
            tokens = min(tokens + Fraction((at_ms - since_ms) * per_s, 1000), Fraction(burst)) - 1
            since_ms = at_ms
        return int(tokens + 1)

    def blocked(self, work: Work) -> bool:
        """Return whether the job waits for earlier ones of its key to leave the queue."""
        if work.key is None or not self.max_per_key:
            return False
        earlier = [other for other in self.jobs.values() if other.key == work.key and other.seq < work.seq]
        return len(earlier) >= self.max_per_key

    def worn_out(self, seq: int) -> bool:
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
