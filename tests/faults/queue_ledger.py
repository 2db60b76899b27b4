"""What the server answered producers and workers, and what a restart may therefore show.

A `Shop` drives a `SimServer` and writes down every attempt and its answer, job by job. `QueueLedger.check` then judges
a server that came back after a crash: no job is lost, none is there twice, one that was acked does not come back beyond
what its topic's class allows, and a stored lease is the lease that its worker got.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

from tests.engine.harness import waiting
from tests.faults.ledger import Attempt, When, noting, raise_first
from tests.faults.syncs import Syncs
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.engine.queue.verbs import Want
from topics.engine.state.jobs.leases import Leases
from topics.engine.state.topic import leases_of
from topics.engine.write.commit import Ticket
from topics.errors import TopicsError
from topics.model.records import NewRecord, Unique, WriteRequest
from topics.model.topic import ConfigPatch, Rate

MAX_DELIVERIES = 2
RATE = Rate(per_s=2, burst=2)
NO_NODE = ""
NACKED = "nacked"


@dataclass
class Ack(Attempt):
    """An ack of a worker, or a delete, which has no node."""

    node: str = NO_NODE


@dataclass
class Job:
    """One job as its producer and its workers know it."""

    payload: str
    written: Attempt
    seq: int = 0
    due_ms: int = 0  # not before
    node: str = NO_NODE  # the node that got the job last
    lease_id: str = ""
    deadline_ms: int = 0
    deliveries: int = 0
    nacks: int = 0  # each with a reason
    acks: list[Ack] = field(default_factory=list)
    in_doubt: int = 0  # requests in flight that may change who holds it
    doubts: list[Attempt] = field(default_factory=list)  # requests that were refused and may have changed it
    key: str | None = None
    unique: bool = False
    dead: bool = False  # seen in the dead-letter topic

    def is_done(self) -> bool:
        """Return whether the ack was answered, or has no answer yet."""
        return any(ack.status in ("open", "acked") for ack in self.acks)

    def acked_by(self, node: str) -> bool:
        """Return whether an ack of this worker, or a delete, has no answer yet."""
        return any(ack.status == "open" and ack.node == node for ack in self.acks)

    def ended(self) -> bool:
        """Return whether an ack or a delete was answered."""
        return any(ack.status == "acked" for ack in self.acks)

    def held(self, now_ms: int) -> bool:
        return self.node != NO_NODE and now_ms <= self.deadline_ms

    def is_in_doubt(self) -> bool:
        return self.in_doubt > 0 or any(doubt.may_show for doubt in self.doubts)

    def gives_up(self) -> bool:
        return self.deliveries >= MAX_DELIVERIES

    def release(self, due_ms: int) -> None:
        self.node, self.due_ms = NO_NODE, due_ms


@dataclass
class Queue:
    """One queue and its dead-letter topic."""

    name: str
    durability: str
    leases_durable: bool
    jobs: dict[str, Job] = field(default_factory=dict)
    leases: set[str] = field(default_factory=set)  # every lease that a worker got
    limits: Attempt | None = None  # the request that limits its rate
    pauses: list[tuple[bool, Attempt]] = field(default_factory=lambda: [(False, Attempt("acked"))])  # and resumes

    @property
    def dead_letter(self) -> str:
        return f"{self.name}.dead"

    def held_by(self, node: str, now_ms: int) -> list[Job]:
        return [job for job in self.jobs.values() if job.node == node and job.held(now_ms) and not job.is_done()]


class QueueLedger:
    """All queues."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.wrong: list[AssertionError] = []  # wrong answers: an exception of a callback would not reach the test

    def copy(self) -> QueueLedger:
        return copy.deepcopy(self)

    def check(self, server: SimServer, mode: str) -> None:
        """Judge a server that came back after a crash of this mode, or with mode "none" one that goes on."""
        raise_first(self.wrong)
        for queue in self.queues.values():
            if queue.name in server.engine.topics:  # what is made with an answer is there: see the other ledger
                _Judge(server, queue, When(mode)).judge()
        if mode in ("keep", "lose", "tear"):
            assert server.recovered is not None
            assert server.recovered.damage == [], "nothing was damaged"

    def drain(self, server: SimServer) -> None:
        """Finish all jobs: each goes to one worker, or to the dead-letter topic."""
        for queue in self.queues.values():
            if queue.name in server.engine.topics:
                _drain(server, queue)


class _Judge:
    """One queue after a crash."""

    def __init__(self, server: SimServer, queue: Queue, when: When) -> None:
        self.queue = queue
        self.when = when
        self.safe = queue.durability == "fsync" or not when.power
        self.topic = server.engine.expire_and_get(queue.name, touch=False)
        self.found = leases_of(self.topic)
        self.now_ms = server.clock.now_ms()
        self.rows = server.by_seq(queue.name)
        self.seqs = {payload: seq for seq, payload in self.rows.items()}
        dead = server.by_seq(queue.dead_letter) if queue.dead_letter in server.engine.topics else {}
        self.dead = list(dead.values())

    def judge(self) -> None:
        places = [*self.rows.values(), *self.dead]
        assert len(set(places)) == len(places), "a job is in two places"
        assert set(places) <= set(self.queue.jobs), "an unknown record"
        self.figures()
        limits = self.queue.limits
        assert self.topic.config.rate in (None, RATE if limits is not None and limits.may_show else None)
        kept = self.topic.config.rate == RATE or not self.safe
        assert kept or limits is None or limits.status != "acked", "limits are lost"
        pauses = self.queue.pauses
        last = max(at for at, (_, attempt) in enumerate(pauses) if attempt.status == "acked") if self.safe else 0
        allowed = {paused for paused, attempt in pauses[last:] if attempt.may_show}
        assert self.topic.config.paused in allowed, "a pause is lost, or nobody asked for it"
        for job in self.queue.jobs.values():
            self.place(job)
            if self.queue.leases_durable or self.when.mode == "none":
                self.lease(job)
            else:
                self.no_lease(job)

    def figures(self) -> None:
        found, topic = self.found, self.topic
        assert topic.pending == topic.staged_count == 0
        assert not found.leaving
        out = [*found.leases, *found.reclaim, *found.resting, *found.exhausted, *found.later]
        assert len(set(out)) == len(out), "a job is in two states"
        assert set(out) <= set(self.rows), "a job that is gone has a state"
        assert found.ready + found.in_flight + found.delayed == topic.count == len(self.rows)
        assert found.ready >= len(found.keys.blocked)
        keys: dict[str, list[int]] = {}
        for seq, payload in sorted(self.rows.items()):
            if (key := self.queue.jobs[payload].key) is not None:
                keys.setdefault(key, []).append(seq)
        assert found.keys.open.keys() == {first for first, *_ in keys.values()}
        unique = {seq for seq, payload in self.rows.items() if self.queue.jobs[payload].unique}
        assert found.unique.pending.keys() == unique
        assert found.keys.blocked == {seq for _, *rest in keys.values() for seq in rest}
        assert found.dead_lettered >= len(self.dead) or not self.safe

    def place(self, job: Job) -> None:
        if job.payload in self.dead:
            assert job.gives_up() or job.is_in_doubt(), f"{job.payload} was not delivered too often"
        if job.payload in self.seqs or job.payload in self.dead:
            assert job.written.may_show, f"{job.payload} was refused and is there"
        if not self.safe or job.written.status != "acked":
            return
        there = job.payload in self.seqs or job.payload in self.dead
        if not any(ack.may_show for ack in job.acks):
            assert there, f"{self.queue.name}: {job.payload} is lost"
        elif any(ack.status == "acked" for ack in job.acks):
            assert not there, f"{self.queue.name}: {job.payload} was acked and is back"
        assert not job.dead or job.payload in self.dead, f"{job.payload} left the dead letters"
        if job.payload in self.seqs:
            assert self.seqs[job.payload] == job.seq

    def lease(self, job: Job) -> None:
        """Check the lease against the last answer. A request without an answer may have taken effect."""
        seq = self.seqs.get(job.payload)
        held = None if seq is None else self.found.leases.get(seq)
        in_doubt = job.is_in_doubt()
        if held is not None and not in_doubt:
            assert held.lease_id in self.queue.leases, "no worker got this lease"
        acked = any(ack.may_show for ack in job.acks)
        if seq is None or in_doubt or acked or job.written.status != "acked" or not self.safe:
            return
        known = self.found.find(seq)
        assert (0 if known is None else known.deliveries) == job.deliveries
        reasons = () if known is None else self.found.reasons_of(known)
        assert [one.reason for one in reasons].count(NACKED) == job.nacks, reasons
        assert (held is not None) == job.held(self.now_ms), f"{self.queue.name}: {job.payload}"
        if held is not None:
            assert (held.lease_id, held.node, held.deadline_ms) == (job.lease_id, job.node, job.deadline_ms)
        elif self.when.mode != "none" or job.key is None or self.topic.config.rate_per_key is None:
            assert (seq in self.found.resting or seq in self.found.later) == (job.due_ms > self.now_ms)

    def no_lease(self, job: Job) -> None:
        seq = self.seqs.get(job.payload)
        if seq is not None:
            assert self.found.find(seq) is None, "a lease that was not written down"
            in_doubt = job.is_in_doubt()
            if job.written.status == "acked" and not job.deliveries and not in_doubt and self.safe:
                assert (seq in self.found.later) == (job.due_ms > self.now_ms)


def _drain(server: SimServer, queue: Queue) -> None:
    engine, clock = server.engine, server.clock
    if (config := server.engine.expire_and_get(queue.name, touch=False).config).paused:
        assert not _claim(server, queue.name, "early", max_jobs=9, lease_ms=1_000)
        server.put(queue.name, paused=False)
    left = set(server.by_seq(queue.name).values())
    done: list[str] = []
    for turn in range(50):
        found: Leases = leases_of(server.engine.expire_and_get(queue.name, touch=False))
        held = {server.by_seq(queue.name)[seq] for seq in found.leases}
        rows = _claim(server, queue.name, f"late{turn}", max_jobs=3, lease_ms=60_000)
        payloads = [bytes(row.data).decode() for row in rows]
        assert config.rate is None or len(rows) <= RATE.burst
        assert not held & set(payloads), "held by two"
        assert not {row.lease_id for row in rows} & queue.leases, "a lease id came back"
        done += payloads
        keys = [queue.jobs[payload].key for payload in payloads if queue.jobs[payload].key]
        assert len(set(keys)) == len(keys), "two jobs of one key"
        if rows:
            seqs = [row.seq for row in rows]
            topic = engine.queues.get(queue.name)
            server.done(waiting(lambda topic=topic, seqs=seqs, turn=turn: engine.queues.ack(  # type: ignore[misc]
                topic, f"late{turn}", seqs, None)))  # fmt: skip
        elif not server.by_seq(queue.name):
            break
        clock.advance(ms=2_000)
    assert len(done) == len(set(done)), "done twice"
    for key in {queue.jobs[payload].key for payload in done} - {None}:
        order = [payload for payload in done if queue.jobs[payload].key == key]
        assert order == sorted(order), "payloads count up"
    letters = set(server.data(queue.dead_letter)) if queue.dead_letter in engine.topics else set()
    assert left <= set(done) | letters, "a job that no worker can get"
    assert leases_of(engine.expire_and_get(queue.name, touch=False)).in_flight == 0


class _Row(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    data: Raw
    lease_id: str
    deadline: int
    deliveries: int


_decode_row = msgspec.json.Decoder(_Row).decode


def _claim(server: SimServer, name: str, node: str, *, max_jobs: int, lease_ms: int) -> list[_Row]:
    engine = server.engine
    topic = engine.queues.get(name)
    want = Want(node=node, max=max_jobs, lease_ms=lease_ms)
    [claimed], ticket = waiting(lambda: engine.queues.claim(topic, [want]))
    engine.flush()
    if ticket is not None:
        ticket.value()
    return [_decode_row(row) for row in claimed.rows]


class Shop:
    """Producers and workers. Payloads are numbers, each used once."""

    def __init__(self, server: SimServer, syncs: Syncs | None = None) -> None:
        self.server = server
        self.syncs = Syncs() if syncs is None else syncs  # an idle worker is false
        self.ledger = QueueLedger()
        self._number = 0

    @classmethod
    def on(cls, disk: SimDisk) -> Shop:
        """Return the clients of an open server whose syncs can be slow."""
        syncs = Syncs()
        return cls(SimServer.start(disk, sync_worker=syncs), syncs)

    @property
    def now_ms(self) -> int:
        return self.server.clock.now_ms()

    def restart(self, server: SimServer) -> None:
        """Go on with a server that has started after a kill: leases that are not durable have ended."""
        self.server = server
        for queue in self.ledger.queues.values():
            for job in queue.jobs.values() if not queue.leases_durable else ():
                job.nacks = 0
                if job.node != NO_NODE:
                    job.release(self.now_ms)

    def open(self, name: str, *, durability: str, leases_durable: bool) -> None:
        queue = self.ledger.queues[name] = Queue(name, durability, leases_durable)
        self.server.put(
            name, type="queue", durability=durability, leases_durable=leases_durable, max_deliveries=MAX_DELIVERIES,
            dead_letter=queue.dead_letter,
        )  # fmt: skip

    def write(
        self,
        name: str,
        n: int = 1,
        *,
        delay_ms: int | None = None,
        priority: int | None = None,
        key: str | None = None,
        unique: bool = False,
    ) -> None:
        attempt, jobs = Attempt(), []
        for _ in range(n):
            self._number += 1
            due_ms = self.now_ms + (delay_ms or 0)
            jobs.append(Job(f'"{self._number:04d}"', attempt, due_ms=due_ms, key=key, unique=unique))
        self.ledger.queues[name].jobs.update((job.payload, job) for job in jobs)
        records = [
            NewRecord(
                Raw(job.payload.encode()), priority=priority, delay_ms=delay_ms, key=key,
                unique=Unique(job.payload) if unique else None,
            )
            for job in jobs
        ]  # fmt: skip

        def answered(result: Any) -> None:
            for seq, job in enumerate(jobs, result.first):
                job.seq = seq

        self._follow(attempt, lambda: self.server.engine.append(name, WriteRequest(records)), answered)

    def claim(self, name: str, node: str, n: int = 1, *, lease_ms: int = 1_000) -> None:
        """Claim jobs. The worker gets them once the claim is answered: at once, or after a slow sync."""
        queue, engine = self.ledger.queues[name], self.server.engine
        free = [job for job in queue.jobs.values() if not job.held(self.now_ms)]
        gone = [job.payload for job in free if job.ended()]
        attempt = Attempt()
        want = Want(node=node, max=n, lease_ms=lease_ms)
        _doubt(free, 1)

        def answered(error: TopicsError | None, rows: list[_Row]) -> None:
            _doubt(free, -1)
            # A move to the dead letters that is refused, or not written before the server ends, is not reported.
            if self.server.wal.read_only is not None or self.syncs.slow:
                for job in free:
                    if job.gives_up():
                        job.doubts.append(Attempt())
            if error is not None:
                attempt.failed(error)
                for job in free:
                    job.doubts.append(attempt)
                return
            with noting(self.ledger.wrong):
                self._got(queue, node, rows, gone)

        try:
            [claimed], ticket = waiting(lambda: engine.queues.claim(engine.queues.get(name), [want]))
        except TopicsError as error:
            return answered(error, [])
        except OSError:
            return answered(None, [])  # before anything was staged: a server answers it with `internal`
        if ticket is not None:
            rows = claimed.rows
            ticket.on_done(lambda ticket: answered(ticket.error, [] if ticket.error else [*map(_decode_row, rows)]))
        engine.flush()
        if ticket is None:
            answered(None, [_decode_row(row) for row in claimed.rows])

    def _got(self, queue: Queue, node: str, rows: list[_Row], gone: list[str]) -> None:
        for row in rows:
            job = queue.jobs[bytes(row.data).decode()]
            assert job.payload not in gone, f"{job.payload} was acked or deleted, and is given out"
            assert job.is_in_doubt() or not job.held(self.now_ms), "held by two"
            job.node, job.lease_id, job.deadline_ms = node, row.lease_id, row.deadline
            job.deliveries = row.deliveries
        assert not {row.lease_id for row in rows} & queue.leases
        queue.leases |= {row.lease_id for row in rows}
        if queue.dead_letter in self.server.engine.topics:
            for payload in self.server.data(queue.dead_letter):
                queue.jobs[payload].dead = True

    def ack(self, name: str, node: str, n: int = 1) -> None:
        jobs = [job for job in self.ledger.queues[name].jobs.values() if job.node == node and job.held(self.now_ms)]
        jobs = [job for job in jobs if not job.ended() and not job.acked_by(node)][:n]
        attempt = Ack(node=node)
        for job in jobs:
            job.acks.append(attempt)

        def answered(result: Any) -> None:
            for job in jobs:
                if job.seq in result.skipped:  # deleted meanwhile, or its lease has expired
                    job.acks.remove(attempt)
                else:
                    assert not job.ended(), f"{job.payload} was deleted, and its ack counts too"

        verb = self.server.engine.queues.ack
        self._finish(attempt, name, jobs, lambda topic, seqs: verb(topic, node, seqs, None), answered, doubts=False)

    def nack(self, name: str, node: str, n: int = 1, *, delay_ms: int = 0) -> None:
        jobs = self.ledger.queues[name].held_by(node, self.now_ms)[:n]
        due_ms = self.now_ms + delay_ms
        leases = [job.lease_id for job in jobs]

        def answered(result: Any) -> None:
            for job, lease_id in zip(jobs, leases, strict=True):
                if job.seq not in result.skipped and job.lease_id == lease_id:
                    job.release(due_ms)
                    job.nacks += 1

        def verb(topic: Any, seqs: list[int]) -> Ticket:
            return self.server.engine.queues.nack(topic, node, seqs, None, delay_ms=delay_ms, why=(NACKED, None))

        self._finish(Attempt(), name, jobs, verb, answered)

    def extend(self, name: str, node: str, n: int = 1, *, lease_ms: int = 5_000) -> None:
        jobs = self.ledger.queues[name].held_by(node, self.now_ms)[:n]
        deadline_ms = self.now_ms + lease_ms

        def answered(result: Any) -> None:
            for job in jobs:
                if job.seq not in result.skipped and job.node == node:
                    job.deadline_ms = deadline_ms

        verb = self.server.engine.queues.extend
        self._finish(
            Attempt(), name, jobs, lambda topic, seqs: verb(topic, node, seqs, None, lease_ms=lease_ms), answered
        )

    def limit(self, name: str) -> None:
        """Limit the rates of the queue and of its keys."""
        attempt = self.ledger.queues[name].limits = Attempt()
        self._follow(attempt, lambda: self.server.engine.put_topic(name, ConfigPatch(rate=RATE, rate_per_key=RATE)))

    def pause(self, name: str, *, paused: bool) -> None:
        attempt = Attempt()
        self.ledger.queues[name].pauses.append((paused, attempt))
        self._follow(attempt, lambda: self.server.engine.put_topic(name, ConfigPatch(paused=paused)))

    def delete(self, name: str, *, held: bool) -> None:
        """Delete one job that a worker holds, or one that is ready. It ends a job as an ack does."""
        jobs = [
            job
            for job in self.ledger.queues[name].jobs.values()
            if job.seq and not job.ended() and not job.acked_by(NO_NODE) and not job.dead
            if job.held(self.now_ms) == held and job.due_ms <= self.now_ms
        ]
        if not jobs:
            return
        job, attempt = jobs[0], Ack(node=NO_NODE)
        job.acks.append(attempt)

        def answered(result: Any) -> None:
            if not result.deleted:  # acked or moved before
                job.acks.remove(attempt)
            else:
                assert not job.ended(), f"{job.payload} was acked, and its delete counts too"

        delete = self.server.engine.delete_seqs
        self._finish(attempt, name, [job], lambda _, seqs: delete(name, seqs), answered, doubts=False)

    def _finish(
        self,
        attempt: Attempt,
        name: str,
        jobs: list[Job],
        verb: Callable[[Any, list[int]], Ticket],
        answered: Callable[[Any], None],
        *,
        doubts: bool = True,
    ) -> None:
        """Send a request about these jobs. With `doubts`, one that is refused leaves it open who holds them."""
        if not jobs:
            return
        topic, seqs = self.server.engine.queues.get(name), [job.seq for job in jobs]
        _doubt(jobs, 1)

        def ended() -> None:
            _doubt(jobs, -1)
            if attempt.status != "acked" and doubts:
                for job in jobs:
                    job.doubts.append(attempt)

        self._follow(attempt, lambda: waiting(lambda: verb(topic, seqs)), answered, ended)

    def _follow(
        self,
        attempt: Attempt,
        verb: Callable[[], Ticket],
        answered: Callable[[Any], None] = lambda result: None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        def done(ticket: Ticket) -> None:
            if ticket.error is not None:
                attempt.failed(ticket.error)
            else:
                with noting(self.ledger.wrong):
                    answered(ticket.result)
                attempt.status = "acked"
            ended()

        try:
            verb().on_done(done)
        except (TopicsError, OSError):
            attempt.status = "refused"
            ended()
        self.server.engine.flush()


def _doubt(jobs: list[Job], step: int) -> None:
    """Note that a request about these jobs was sent (1) or has ended (-1)."""
    for job in jobs:
        job.in_doubt += step
