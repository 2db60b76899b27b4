"""Queues: claims that wait and time out while jobs arrive, failing workers, dead letters, redrive and deletes.

Answers to different workers arrive in any order, and late. So the ledger has each delivery of a job by its number, with
the times of the server: lease 2 was granted after lease 1 had ended, whichever answer came first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.faults.kills.logs import clock, now_ms, read
from tests.faults.kills.server import LOST, Connection, require
from tests.faults.soak.part import Part
from tests.faults.soak.target import Client, Target

WORKERS = 3
BACKLOG = 40  # the producer waits while there are more jobs
MAX_JOBS = 5_000  # then the queue is deleted and created again
MAX_OVERTAKEN = 10 * BACKLOG  # a job that so many later deliveries have overtaken is starved
CLOCKS_MS = 10  # by which the time of the server and that of this process may differ on a busy machine
MOVE_S = 5.0  # the counts of a queue without requests are exact after this time


@dataclass
class Lease:
    """One delivery of a job, in times of the server."""

    node: str
    granted_ms: int
    deadline_ms: int
    released: bool = False  # a nack was sent, and may have ended the lease

    def held(self, at_ms: int) -> bool:
        return not self.released and at_ms <= self.deadline_ms


@dataclass
class Job:
    """One job as its producer and its workers know it."""

    payload: str
    plain: bool  # no delay and no priority: delivered in order
    at: int  # the number of deliveries when it was written
    seq: int = 0  # 0: not known
    leases: dict[int, Lease] = field(default_factory=dict)  # by number of the delivery
    first: int = 1  # the number of the first delivery that is known for certain
    deleted: bool = False  # a delete was answered, and counted it
    doubt: bool = False  # a request without an answer may have changed it

    @property
    def deliveries(self) -> int:
        return max(self.leases, default=0)

    def held(self, at_ms: int) -> bool:
        return bool(self.leases) and self.leases[self.deliveries].held(at_ms)


class QueuePart(Part):
    """One queue with its dead-letter topic."""

    def __init__(self, target: Target, rng: Random, name: str, *, durability: str, durable: bool, most: int) -> None:
        super().__init__(target, rng)
        self.name, self.dead, self.most, self.durable = name, f"{name}.dead", most, durable
        self.config = {
            "type": "queue", "durability": durability, "leases_durable": durable, "max_deliveries": most,
            "dead_letter": self.dead,
        }  # fmt: skip
        self.jobs: dict[str, Job] = {}
        self.done: dict[str, str] = {}  # payload -> how it ended: acked, deleted, or without an answer
        self._acked_as: dict[str, int] = {}  # payload -> number of the delivery that was acked
        self._number = self._served = self._created = 0
        self._over = False

    async def begin(self) -> None:
        for name in (self.name, self.dead):
            await self.client.ask("DELETE", f"/v0/topics/{name}")
        await self.client.must("PUT", f"/v0/topics/{self.name}", self.config)
        await self.client.must("PUT", f"/v0/topics/{self.dead}", {"durability": self.config["durability"]})

    def killed(self) -> None:
        for job in self.jobs.values():
            job.doubt = True
            if not self.durable:
                job.leases.clear()

    # --- load

    async def round(self) -> None:
        """Let a producer, workers and a client that deletes run for some seconds."""
        self._over = False
        loads = [self._produce, self._delete, *[self._worker(number) for number in range(WORKERS)]]
        tasks = [asyncio.create_task(self._client(load)) for load in loads]
        await asyncio.wait(tasks, timeout=self.rng.uniform(1, 4), return_when=asyncio.FIRST_EXCEPTION)
        self._over = True
        lost = [error for error in await asyncio.gather(*tasks, return_exceptions=True) if error is not None]
        for error in sorted(lost, key=lambda error: isinstance(error, LOST)):
            raise error  # a violation before a lost connection

    async def _client(self, load: Any) -> None:
        client = Client(self.target)
        try:
            while not self._over:
                await load(client)
        finally:
            client.close()

    async def _produce(self, client: Connection) -> None:
        rng = self.rng
        await asyncio.sleep(rng.expovariate(1 / 0.04))
        if sum(not job.held(now_ms()) for job in self.jobs.values()) > BACKLOG:
            return
        jobs, records = [], []
        for _ in range(rng.choice((1, 1, 4))):
            fields = rng.choice(({}, {}, {}, {"delay_ms": rng.choice((1, 100))}, {"priority": rng.choice((1, 9))}))
            jobs.append(Job(f"{self.name}.{self._created}.{self._number}", not fields, self._served, doubt=True))
            records.append({"data": jobs[-1].payload, "tag": rng.choice(("x", "y")), **fields})
            self._number += 1
        self.jobs |= {job.payload: job for job in jobs}
        answer = await client.must("POST", f"/v0/topics/{self.name}", {"records": records})
        for seq, job in enumerate(jobs, answer["first_seq"]):
            require(job.seq in (0, seq), f"{self.name}: {job.payload} is {seq} and was claimed as {job.seq}")
            job.seq, job.doubt = seq, False
        self.target.tally["jobs"] += len(jobs)

    def _worker(self, number: int) -> Any:
        node = f"worker-{number}"

        async def work(client: Connection) -> None:
            rng = self.rng
            lease_ms = rng.choice((150, 30_000, 30_000))
            gone = {job.payload for job in self.jobs.values() if job.deleted} | self.done.keys()
            body = {"node": node, "max": rng.choice((1, 1, 4)), "lease_ms": lease_ms, "wait_ms": rng.randint(0, 250)}
            answer = await client.must("POST", f"/v0/topics/{self.name}/claim", body)
            self.target.tally["claims"] += 1
            self.target.tally["claims_timed_out"] += not answer["claimed"]
            rows = answer["claimed"]
            jobs = [self._claimed(node, row, gone, lease_ms=lease_ms) for row in rows]
            first = [row["$seq"] for job, row in zip(jobs, rows, strict=True) if job.plain and row["deliveries"] == 1]
            require(first == sorted(first), f"{self.name}: {first} were delivered in this order")
            for job, row in zip(jobs, rows, strict=True):
                await self._deal_with(client, job, row["deliveries"])

        return work

    def _claimed(self, node: str, row: dict[str, Any], gone: set[str], *, lease_ms: int) -> Job:
        payload, number = row["data"], row["deliveries"]
        lease = Lease(node, row["deadline"] - lease_ms, row["deadline"])
        require(payload not in gone, f"{self.name}: {payload} was acked or deleted and is delivered")
        job = self.jobs.get(payload)
        if job is None:
            require(payload in self.done, f"{self.name}: no producer wrote {payload}")
            late = number < self._acked_as.get(payload, self.most + 1)
            require(late, f"{self.name}: {payload} was acked and is delivered again")
            return Job(payload, plain=False, at=0, deleted=True, seq=row["$seq"], leases={number: lease}, doubt=True)
        require(job.seq in (0, row["$seq"]), f"{self.name}: {payload} was {job.seq} and is {row['$seq']}")
        if job.doubt:
            job.leases, job.first = {}, number
        require(number not in job.leases, f"{self.name}: {payload} was delivered twice as number {number}")
        require(number <= self.most, f"{self.name}: {payload} was delivered {number} times")
        job.seq, job.leases[number], job.doubt = row["$seq"], lease, False
        self._check_leases(job)
        self._served += 1
        return job

    def _check_leases(self, job: Job) -> None:
        """A lease begins after the one before it has ended."""
        for number, lease in job.leases.items():
            after = job.leases.get(number + 1)
            given = after is not None and lease.held(after.granted_ms)
            require(not given, f"{self.name}: {job.payload} is held by {lease} and was given to {after}")

    async def _deal_with(self, client: Connection, job: Job, number: int) -> None:
        """Ack the job, nack it, extend its lease before, or forget it."""
        roll, lease = self.rng.random(), job.leases[number]
        body: dict[str, Any] = {"node": lease.node, "seqs": [job.seq]}
        if roll < 0.1:
            answer = await client.must("POST", f"/v0/topics/{self.name}/extend", {**body, "lease_ms": 20_000})
            self._check_skipped(job, lease, answer)
            lease.deadline_ms = answer["deadlines"].get(str(job.seq), lease.deadline_ms)
            self._check_leases(job)
        if roll < 0.05:
            return
        if roll < 0.65:
            answer = await client.must("POST", f"/v0/topics/{self.name}/ack", body)
            self._check_skipped(job, lease, answer)
            if not answer["skipped"]:
                require(not job.deleted, f"{self.name}: {job.payload} was deleted and acked, and both counted it")
                last = job.deliveries == number
                require(last, f"{self.name}: {job.payload} was acked as delivery {number} of {job.deliveries}")
                self.jobs.pop(job.payload, None)
                self.done[job.payload], self._acked_as[job.payload] = "acked", number
                self.target.tally["acks"] += 1
        else:
            lease.released = True
            wanted = {**body, "delay_ms": self.rng.choice((0, 0, 50))}
            answer = await client.must("POST", f"/v0/topics/{self.name}/nack", wanted)
            if answer["skipped"]:
                lease.released = False
                self._check_skipped(job, lease, answer)
                self._check_leases(job)
            self.target.tally["nacks"] += 1

    def _check_skipped(self, job: Job, lease: Lease, answer: dict[str, Any]) -> None:
        """A worker whose lease has not expired holds the job, unless the job is being deleted."""
        held = lease.held(now_ms() + CLOCKS_MS + clock.doubt_ms)
        wrong = answer["skipped"] and held and not job.deleted and not self._deleting(job)
        require(not wrong, f"{self.name}: {job.payload} has the {lease}, and its request was skipped")

    # --- deletes

    _deleted_now: Job | None = None

    def _deleting(self, job: Job) -> bool:
        return self._deleted_now is job

    async def _delete(self, client: Connection) -> None:
        """Delete one job, whether a worker holds it or not."""
        await asyncio.sleep(self.rng.expovariate(1 / 0.15))
        known = [job for job in self.jobs.values() if job.seq and not job.doubt and not job.deleted]
        if not known:
            return
        job = self._deleted_now = self.rng.choice(known)
        payload, seq = job.payload, job.seq
        answer = await client.must("POST", f"/v0/topics/{self.name}/delete", {"seqs": [seq]})
        self._deleted_now = None
        if answer["deleted"]:
            require(payload not in self.done, f"{self.name}: {payload} was acked and deleted, and both counted it")
            job.deleted = True
            self.jobs.pop(payload, None)
            self.done[payload] = "deleted"
            self.target.tally["deletes"] += 1

    # --- check

    async def check(self) -> None:
        await self.target.eventually(self._check_counts, seconds=MOVE_S)
        await self._check_letters()
        for job in self.jobs.values():
            missing = set(range(job.first, job.deliveries)) - job.leases.keys()
            require(job.doubt or not missing, f"{self.name}: {job} was delivered {job.deliveries} times")
        starved = [job for job in self.jobs.values() if job.plain and not job.deliveries and not job.doubt
                   and self._served - job.at > MAX_OVERTAKEN]  # fmt: skip
        require(not starved, f"{self.name}: {starved[:1]} is overtaken by all others")
        if self._number > MAX_JOBS * (self._created + 1):
            self._created += 1
            self.jobs, self.done, self._acked_as = {}, {}, {}
            self.target.tally["recreated"] += 1
            await self.begin()

    async def _check_counts(self) -> None:
        page = await read(self.client, self.name, 0)
        letters = {row["data"]: row for row in (await read(self.client, self.dead, 0)).rows.values()}
        require(not page.gaps, f"{self.name}: {page.gaps}")
        there = {row["data"]: seq for seq, row in page.rows.items()}
        require(len(there) == len(page.rows), f"{self.name}: a job is there twice")
        both = there.keys() & letters.keys()
        require(not both, f"{self.name}: {sorted(both)[:3]} are in the queue and in the dead letters")
        for place, payloads in (("the queue", there), ("the dead letters", letters)):
            back = {payload: self.done[payload] for payload in payloads if payload in self.done}
            require(not back, f"{self.name}: {back} and still in {place}")
        for payload, job in list(self.jobs.items()):
            self._locate(job, there.get(payload, 0), payload in letters)
        strangers = there.keys() - self.jobs.keys()
        require(not strangers, f"{self.name}: no producer wrote {sorted(strangers)[:3]}")
        await self._check_state(len(there))

    def _locate(self, job: Job, seq: int, dead: bool) -> None:
        if seq:
            require(job.seq in (0, seq), f"{self.name}: {job.payload} was {job.seq} and is {seq}")
            job.seq = seq
        elif not dead:
            require(job.doubt, f"{self.name}: {job.payload} ({job.seq}) was acknowledged and is lost")
            del self.jobs[job.payload]  # acked or deleted without an answer, or never written
            self.done[job.payload] = "absent"

    async def _check_state(self, count: int) -> None:
        before = now_ms()
        state = await self.client.must("GET", f"/v0/topics/{self.name}?touch=false")
        queue, after = state["queue"], now_ms()
        require(state["count"] == count, f"{self.name}: counts {state['count']}, has {count}")
        total = queue["ready"] + queue["in_flight"] + queue["delayed"]
        require(total == count, f"{self.name}: {queue} of {count} jobs")
        if not any(job.doubt for job in self.jobs.values()):
            low = sum(job.held(after + clock.doubt_ms) for job in self.jobs.values())
            high = sum(job.held(before - clock.doubt_ms) for job in self.jobs.values())
            counted = low <= queue["in_flight"] <= high
            require(counted, f"{self.name}: workers hold {low} to {high} jobs, the state shows {queue}")

    async def _check_letters(self) -> None:
        """Check that each dead letter was delivered as often as allowed; then redrive some, and delete the others."""
        rows = (await read(self.client, self.dead, 0)).rows
        for row in rows.values():
            job = self.jobs.get(row["data"])
            require(job is not None, f"{self.dead}: no producer wrote {row['data']}")
            assert job is not None
            counted = job.deliveries == row["meta"]["$dead_letter_deliveries"] == self.most or job.doubt
            require(counted, f"{self.dead}: {job} was delivered {row['meta']['$dead_letter_deliveries']} times")
        seqs = list(rows)
        self.target.tally["dead_letters"] += len(seqs)
        await self._redrive({seq: rows[seq]["data"] for seq in seqs[::2]})
        await self._drop({seq: rows[seq]["data"] for seq in seqs[1::2]})

    async def _redrive(self, letters: dict[int, str]) -> None:
        if not letters:
            return
        for payload in letters.values():
            job = self.jobs[payload]
            job.doubt, job.seq, job.plain = True, 0, False
            job.leases, job.first = {}, 1
        answer = await self.client.must("POST", f"/v0/topics/{self.name}/redrive", {"seqs": list(letters)})
        require(answer["redriven"] == len(letters), f"{self.name}: {answer['redriven']} of {len(letters)} redriven")
        for payload in letters.values():
            self.jobs[payload].doubt = False
        self.target.tally["redriven"] += len(letters)

    async def _drop(self, letters: dict[int, str]) -> None:
        if not letters:
            return
        for payload in letters.values():
            self.jobs[payload].doubt = True
        answer = await self.client.must("POST", f"/v0/topics/{self.dead}/delete", {"seqs": list(letters)})
        require(answer["deleted"] == len(letters), f"{self.dead}: {answer['deleted']} of {len(letters)} deleted")
        for payload in letters.values():
            del self.jobs[payload]
            self.done[payload] = "deleted as a dead letter"


def queue_parts(target: Target, seed: int) -> list[Part]:
    kinds: dict[str, dict[str, Any]] = {
        "work": {"durability": "fsync", "durable": True, "most": 3},
        "once": {"durability": "fsync", "durable": True, "most": 1},
        "tasks": {"durability": "disk", "durable": False, "most": 2},
    }
    return [QueuePart(target, Random(f"{seed} {name}"), name, **kind) for name, kind in kinds.items()]
