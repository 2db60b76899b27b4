"""Queues under load: the answers to producers and workers, and whether a restarted server agrees with them.

The vocabulary is that of `tests.faults.queue_ledger`. Jobs that were acked leave `Queue.jobs`, so that a check costs as
much as there is work left.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.faults.kills.logs import REFUSED, Page, Tally, now_ms, read
from tests.faults.kills.server import Connection, Request, require
from tests.faults.ledger import Attempt
from tests.faults.queue_ledger import MAX_DELIVERIES, NO_NODE, Ack, Job, Queue

BACKLOG = 60  # jobs past this number wait for workers


class Jobs:
    """One queue with its dead-letter topic."""

    def __init__(self, name: str, tally: Tally, *, durability: str, leases_durable: bool) -> None:
        self.queue = Queue(name, durability, leases_durable)
        self.config = {
            "type": "queue", "durability": durability, "leases_durable": leases_durable,
            "max_deliveries": MAX_DELIVERIES + 1, "dead_letter": self.queue.dead_letter,
        }  # fmt: skip
        self._done: set[str] = set()  # acked, and answered
        self._dead: set[str] = set()
        self._dead_checked = 0
        self._overtaken: dict[
            str, int
        ] = {}  # jobs that must have left the queue: a later one of their key was given out
        self._tally = tally
        self._number = 0

    @property
    def name(self) -> str:
        return self.queue.name

    def killed(self) -> None:
        """Forget the leases that a kill ends."""
        if not self.queue.leases_durable:
            for job in self.queue.jobs.values():
                job.node = NO_NODE

    # --- load ---

    def next(self, rng: Random, node: str) -> list[Request]:
        """What a client that produces and works does next."""
        held = self.queue.held_by(node, now_ms())
        picked = rng.sample(held, rng.randint(1, len(held))) if held else []
        action = rng.random()
        if action < 0.3 and len(self.queue.jobs) < BACKLOG:
            return [self._produce(rng, rng.choice((1, 2, 10)))]
        if picked and action < 0.7:
            return [self._ack(node, picked)]
        if picked and action < 0.8:
            return [self._nack(node, picked, rng.choice((0, 0, 50)))]
        if picked and action < 0.85:
            return [self._extend(node, picked, rng.choice((200, 5_000)))]
        return [self._claim(node, rng.choice((1, 4)), rng.choice((100, 300, 5_000)))]

    def _request(self, verb: str, body: dict[str, Any], done: Any) -> Request:
        def answered(status: int, answer: Any) -> None:
            if status in (200, 201):
                done(answer)
            else:
                require(status in REFUSED, f"{verb or 'append'} on {self.name}: {status} {answer}")
                done(None)

        return Request("POST", f"/v0/topics/{self.name}{verb and '/' + verb}", body, answered)

    def _produce(self, rng: Random, n: int) -> Request:
        attempt, key = Attempt(), rng.choice((None, "a", "b"))
        jobs = [
            Job(f"{self.name}.{self._number + at}.{'x' * rng.choice((0, 200))}", attempt, key=key) for at in range(n)
        ]
        self._number += n
        self.queue.jobs.update((job.payload, job) for job in jobs)

        def done(answer: Any) -> None:
            if answer is None:
                for job in jobs:
                    del self.queue.jobs[job.payload]
                return
            attempt.status = "acked"
            self._tally["acknowledged"] += n
            for seq, job in enumerate(jobs, answer["first_seq"]):
                require(job.seq in (0, seq), f"{self.name}: {job.payload[:40]} is {seq}, and was claimed as {job.seq}")
                job.seq = seq

        return self._request("", {"records": [{"data": job.payload, "key": job.key} for job in jobs]}, done)

    def _claim(self, node: str, n: int, lease_ms: int) -> Request:
        def done(answer: Any) -> None:
            for row in answer["claimed"] if answer is not None else ():
                self._claimed(node, row)

        return self._request("claim", {"node": node, "max": n, "lease_ms": lease_ms}, done)

    def _claimed(self, node: str, row: dict[str, Any]) -> None:
        payload, queue = row["data"], self.queue
        require(payload not in self._done, f"{self.name}: {payload[:40]} was acked and is given out")
        require(payload in queue.jobs, f"{self.name}: no producer wrote {payload[:40]}")
        require(row["lease_id"] not in queue.leases, f"{self.name}: lease {row['lease_id']} was given out twice")
        self._require_order(payload)
        job = queue.jobs[payload]
        require(job.seq in (0, row["$seq"]), f"{self.name}: {payload[:40]} was {job.seq} and is {row['$seq']}")
        held = job.held(now_ms()) and not job.acks
        require(not held, f"{self.name}: {payload[:40]} is held by {job.node} and was given to {node}")
        counted = row["deliveries"] > (job.deliveries if queue.leases_durable else 0)
        require(counted, f"{self.name}: {payload[:40]} was delivered {job.deliveries} times, now {row['deliveries']}")
        if job.key is not None:
            # They may be dead letters: a claim without an answer has delivered them more often than is known here.
            self._overtaken |= {
                other.payload: row["$seq"]
                for other in queue.jobs.values()
                if other.key == job.key and 0 < other.seq < row["$seq"] and not other.acks
            }
        queue.leases.add(row["lease_id"])
        job.written.status, job.acks, job.seq = "acked", [], row["$seq"]
        job.node, job.lease_id, job.deadline_ms = node, row["lease_id"], row["deadline"]
        job.deliveries = row["deliveries"]
        self._tally["claims"] += 1

    def _ack(self, node: str, jobs: list[Job]) -> Request:
        attempt = Ack(node=node)
        for job in jobs:
            job.acks = [attempt]

        def done(answer: Any) -> None:
            skipped = self._skipped(node, jobs, answer)
            for job in jobs:
                if answer is None or job.seq in skipped:
                    job.acks = []
                else:
                    self._require_order(job.payload)
                    self._done.add(job.payload)
                    del self.queue.jobs[job.payload]
                    self._tally["acks"] += 1

        return self._request("ack", {"node": node, "seqs": [job.seq for job in jobs]}, done)

    def _nack(self, node: str, jobs: list[Job], delay_ms: int) -> Request:
        deadlines = [(job, job.lease_id) for job in jobs]
        for job in jobs:
            job.node = NO_NODE

        def done(answer: Any) -> None:
            if answer is None:
                for job, lease_id in deadlines:
                    if job.lease_id == lease_id:
                        job.node = node

        return self._request("nack", {"node": node, "seqs": [job.seq for job in jobs], "delay_ms": delay_ms}, done)

    def _extend(self, node: str, jobs: list[Job], lease_ms: int) -> Request:
        before = {job.seq: job.deadline_ms for job in jobs}
        for job in jobs:  # a shorter lease may count from now on
            job.deadline_ms = min(job.deadline_ms, now_ms() + lease_ms)

        def done(answer: Any) -> None:
            self._skipped(node, jobs, answer)
            for job in jobs:
                if answer is None:
                    job.deadline_ms = before[job.seq]
                elif str(job.seq) in answer["deadlines"]:
                    job.deadline_ms = answer["deadlines"][str(job.seq)]

        return self._request("extend", {"node": node, "seqs": [job.seq for job in jobs], "lease_ms": lease_ms}, done)

    def _skipped(self, node: str, jobs: list[Job], answer: Any) -> set[int]:
        """Return the seqs that the server says the worker does not hold; raise if it must hold one of them."""
        skipped = set() if answer is None else set(answer["skipped"])
        for job in jobs:
            wrong = job.seq in skipped and job.node == node and job.held(now_ms())
            require(not wrong, f"{self.name}: {node} holds {job.seq} until {job.deadline_ms}, its request was refused")
        return skipped

    def _require_order(self, payload: str) -> None:
        """Raise if a later job of the same key was given out while this one was in the queue."""
        later = self._overtaken.get(payload)
        require(later is None, f"{self.name}: {payload[:40]} is in the queue, and {later} of its key came before it")

    # --- check ---

    async def check(self, connection: Connection) -> None:
        """Compare what a restarted server answers with what was promised. No load runs meanwhile."""
        letters = -1
        while letters < len(self._dead):  # the server may move an exhausted job between two of these requests
            await self._read_dead(connection)
            letters = len(self._dead)
            page = await read(connection, self.name, 0)
            status, state = await connection.ask("GET", f"/v0/topics/{self.name}?touch=false")
            require(status == 200, f"{self.name}: {status} {state}")
            await self._read_dead(connection)
        require(not page.gaps, f"{self.name}: {page.gaps}")
        require(state["count"] == len(page.rows), f"{self.name}: counts {state['count']} jobs of {len(page.rows)}")
        seqs = {row["data"]: seq for seq, row in page.rows.items()}
        require(len(seqs) == len(page.rows), f"{self.name}: a job is there twice")
        for place, payloads in (("is back", self._done), ("is also a dead letter", self._dead)):
            both = payloads & seqs.keys()
            require(not both, f"{self.name}: {sorted(both)[:3]} was dealt with and {place}")
        strangers = seqs.keys() - self.queue.jobs.keys()
        require(not strangers, f"{self.name}: no producer wrote {sorted(strangers)[:3]}")
        for job in list(self.queue.jobs.values()):
            self._check_job(job, seqs)
        self._check_state(state["queue"], page)
        self._tally["checked"] += len(page.rows)

    async def _read_dead(self, connection: Connection) -> None:
        name = self.queue.dead_letter
        status, _ = await connection.ask("GET", f"/v0/topics/{name}?touch=false")
        if status == 404:
            require(not self._dead, f"{name} is lost")
            return
        page = await read(connection, name, self._dead_checked)
        require(page.head >= self._dead_checked, f"{name}: the head went back to {page.head}")
        require(len(page.rows) == page.head - self._dead_checked, f"{name}: letters are missing")
        for row in page.rows.values():
            require(row["data"] not in self._dead, f"{name}: {row['data'][:40]} is there twice")
            require(row["data"] not in self._done, f"{name}: {row['data'][:40]} was acked")
            self._dead.add(row["data"])
        self._dead_checked = page.head
        self._tally["checked"] += len(page.rows)

    def _check_job(self, job: Job, seqs: dict[str, int]) -> None:
        payload = job.payload
        if payload in seqs:
            self._require_order(payload)
            require(job.seq in (0, seqs[payload]), f"{self.name}: {payload[:40]} moved from {job.seq}")
            job.written.status, job.acks, job.seq = "acked", [], seqs[payload]
            return
        if payload not in self._dead:
            excused = bool(job.acks) or job.written.status == "open"
            require(excused, f"{self.name}: {payload[:40]} ({job.seq}) was acknowledged and is lost")
            self._done.add(payload)  # acked without an answer, or never written
        del self.queue.jobs[payload]

    def _check_state(self, state: dict[str, int], page: Page) -> None:
        held = [job for job in self.queue.jobs.values() if job.held(now_ms())]
        if self.queue.leases_durable:
            low, high = len(held), len(page.rows)
        else:
            low = high = 0
        require(low <= state["in_flight"] <= high, f"{self.name}: {len(held)} leases are known, state is {state}")
        require(state["ready"] + state["in_flight"] <= len(page.rows), f"{self.name}: {state} of {len(page.rows)} jobs")
