"""A queue of a simulated server. Each verb ends its turn at once and returns plain values."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw

from tests.engine.harness import waiting
from tests.reference.oracle_queue import Delivery
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.engine.queue import verbs
from topics.engine.queue.acks import Outcome
from topics.engine.queue.dead_letters import Redriven
from topics.engine.queue.verbs import Claimed, Want
from topics.engine.state.jobs.job import Holder, Job
from topics.engine.state.jobs.leases import Leases
from topics.engine.state.topic import Topic, leases_of
from topics.engine.write.commit import Ticket
from topics.model.queue import Progress
from topics.model.records import NewRecord, Unique, WriteRequest

QUEUE = "jobs"


class Workshop:
    """A server with one queue."""

    def __init__(self, server: SimServer | None = None, **config: Any) -> None:
        self.server = server or SimServer.start(SimDisk())
        if server is None or config:
            self.server.put(QUEUE, type="queue", **config)

    @property
    def clock(self) -> SimClock:
        return self.server.clock

    @property
    def topic(self) -> Topic:
        return self.server.engine.expire_and_get(QUEUE, touch=False)

    @property
    def queue(self) -> Leases:
        return leases_of(self.topic)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Return how many jobs are ready, in flight and delayed."""
        queue = self.queue
        return queue.ready, queue.in_flight, queue.delayed

    def done(self, ticket: Ticket) -> Any:
        return self.server.done(ticket)

    # --- producers

    def write(self, *jobs: NewRecord | str) -> list[int]:
        """Write jobs and return their seqs. A plain text is the data of a job."""
        records = [job(one) if isinstance(one, str) else one for one in jobs]
        landed = self.done(self.server.engine.append(QUEUE, WriteRequest(records)))
        return list(range(landed.first, landed.last + 1))

    # --- workers

    def claim(self, node: str = "w", max: int = 1, lease_ms: int = 1000, holder: Holder | None = None) -> list[Any]:
        """Claim, and once more if it had nothing and moved dead letters, as the server does."""
        want, letters = Want(node=node, max=max, lease_ms=lease_ms, holder=holder), len(self.queue.exhausted)
        [rows] = self.claims(want)
        return rows if rows or not letters else self.claims(want)[0]

    def claims(self, *wants: Want) -> list[list[Any]]:
        """Serve all wants in one pass."""
        found, ticket = waiting(lambda: self.server.engine.queues.claim(self._queue(), list(wants)))
        self.server.engine.flush()
        if ticket is not None:
            ticket.value()
        return [[msgspec.json.decode(row) for row in claimed.rows] for claimed in found]

    def ack(self, node: str, *seqs: int, lease_ids: list[str] | None = None) -> Outcome:
        done: Outcome = self.done(
            waiting(lambda: self.server.engine.queues.ack(self._queue(), node, list(seqs), lease_ids))
        )
        return done

    def nack(
        self,
        node: str,
        *seqs: int,
        delay_ms: int = 0,
        lease_ids: list[str] | None = None,
        reason: str = "",
        error: Any = None,
    ) -> Outcome:
        done: Outcome = self.done(
            self.server.engine.queues.nack(
                self._queue(), node, list(seqs), lease_ids, delay_ms=delay_ms, why=(reason, error) if reason else None
            )
        )
        return done

    def extend(
        self,
        node: str,
        *seqs: int,
        lease_ms: int | None,
        lease_ids: list[str] | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        done: Outcome = self.done(
            self.server.engine.queues.extend(
                self._queue(), node, list(seqs), lease_ids, lease_ms=lease_ms, progress=progress
            )
        )
        return done

    def move_exhausted(self) -> None:
        """Move exhausted jobs, as a server does several times a second."""
        for _ in range(2):  # the first call may only end a round over all queues
            waiting(lambda: self.server.engine.queues.move_exhausted(topics=1000))
        self.server.engine.flush()

    def undo_claim(self, jobs: list[Job] | None = None) -> Ticket:
        """Let the client of a claim leave before its answer: that of all leases, or of `jobs`."""
        jobs = list(self.queue.leases.values()) if jobs is None else jobs
        return self.server.engine.queues.undo_claim(Claimed(self.topic, [], jobs, 0, jobs[0].lease))

    def redrive(self, **wanted: Any) -> Redriven:
        asked = {
            "dead_letter": None,
            "match": None,
            "seqs": None,
            "from_seq": 0,
            "limit": 1000,
            "dry_run": False,
        } | wanted
        done: Redriven = self.done(
            waiting(lambda: self.server.engine.queues.dead_letters.redrive(self._queue(), **asked))
        )
        return done

    def jobs(self, state: Any = None, after: int = 0, limit: int = 100) -> tuple[list[Any], int | None]:
        rows, more = waiting(
            lambda: verbs.expire_and_list(
                self._queue(), state=state, after=after, limit=limit, now_ms=self.clock.now_ms()
            )
        )
        return [msgspec.json.decode(row) for row in rows], more

    # --- restarts

    def restart(self, how: str = "keep") -> Workshop:
        """Stop in order (`stop`), or crash in one of the ways of the disk."""
        return Workshop(self.server.stop() if how == "stop" else self.server.crash(how))  # type: ignore[arg-type]

    def _queue(self) -> Topic:
        return self.server.engine.queues.get(QUEUE)


def job(
    data: str = "1",
    *,
    tag: str | None = None,
    meta: str | None = None,
    priority: int | None = None,
    delay_ms: int | None = None,
    deliver_at: int | None = None,
    key: str | None = None,
    unique: Unique | None = None,
) -> NewRecord:
    """`data` and `meta` are JSON text."""
    return NewRecord(
        Raw(data.encode()), tag, None, UNSET if meta is None else Raw(meta.encode()), priority, delay_ms, deliver_at,
        key, unique,
    )  # fmt: skip


def seqs(jobs: list[Any]) -> list[int]:
    return [one["$seq"] for one in jobs]


def deliveries(jobs: list[Any]) -> list[Delivery]:
    return [
        Delivery(
            one["$seq"], one["lease_id"], one["deadline"], one["deliveries"],
            [(why["node"], why["delivery"], why["reason"]) for why in one.get("reasons", [])],
        )
        for one in jobs
    ]  # fmt: skip
