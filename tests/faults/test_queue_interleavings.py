"""Verbs of queues while other verbs wait for their sync, in random order.

Five rules need no model of the queue. No claim returns a job while one of its key is before it, or that a pending
delete takes, or that a worker holds: from its claim to its deadline, unless a nack has taken effect. Every job that was
written is in the queue or in the dead letters, has expired and is reported as lost, or was counted by exactly one
delete or ack. And a killed server comes back with the state that the running one has once everything that is written
has taken effect.

`make torture` plays 800 histories, `TORTURE=all make torture` 4,000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from msgspec import Raw

from tests.conftest import Counts
from tests.engine.harness import waiting
from tests.sampling import SEED, amount
from tests.simulated.disk import SimDisk
from tests.simulated.harness import DeferredWorker, SimServer
from topics.engine.queue.pick import terms_at
from topics.engine.queue.verbs import Want
from topics.engine.state.jobs.leases import Leases
from topics.engine.state.topic import Topic, leases_of
from topics.engine.steps import run_all
from topics.engine.write.commit import Ticket
from topics.errors import TopicsError
from topics.model.records import NewRecord, TagMatch, Unique, WriteRequest
from topics.model.topic import ConfigPatch, Rate

QUEUE, DEAD = "q", "d"
RATE = Rate(per_s=20, burst=2)
TAGS = ["a", "b", "c"]
Covers = Callable[[int, str | None], bool]  # seq and tag of a record


@dataclass(eq=False)
class Lease:
    """One delivery of a job, as its worker knows it."""

    node: str
    deadline_ms: int
    acked: bool = False
    moving: bool = False  # nacked together with an exhausted job: the answer comes after the move of that job


class Race:
    """One random history."""

    def __init__(self, seed: int, *, faults: bool) -> None:
        self.rng = rng = Random(seed)
        self.faults = faults
        self.sync = DeferredWorker()
        self.server = SimServer.start(SimDisk(seed=seed), sync_worker=self.sync, gather_turns=seed % 3)
        self.engine = self.server.engine
        self.deletes: dict[Ticket, tuple[str, Covers]] = {}  # the pending ones
        self.leases: dict[tuple[str, int], Lease] = {}  # by queue and seq: the last one of each job
        self.written = self.deleted = self.acked = self.number = self.kills = 0
        self.put(
            DEAD,
            type=rng.choice(["log", "queue"]),
            durability=rng.choice(["fsync", "disk", "memory"]),
        )
        self.put(
            QUEUE,
            type="queue",
            durability=rng.choice(["fsync", "fsync", "disk", "memory"]),
            leases_durable=rng.random() < 0.6,
            max_deliveries=2,
            dead_letter=DEAD,
            ttl_ms=rng.choice([0, 0, 2500]),
        )
        self.names = [name for name in (QUEUE, DEAD) if self.engine.topic(name).queue is not None]

    def put(self, name: str, **config: Any) -> None:
        self.server.steps.release()
        ticket = self.engine.put_topic(name, ConfigPatch(**config))
        self.settle()
        self.server.store.save()  # durable leases wait for a snapshot
        assert ticket.done or self.faults

    def settle(self) -> None:
        for _ in range(4):
            self.engine.commits.sync()
            self.sync.run_all()
            self.server.turn()

    # --- steps

    def step(self) -> None:
        rng = self.rng
        steps: list[tuple[int, Callable[[], object]]] = [
            (20, self.append),
            (22, self.claim),
            (12, self.ack),
            (7, self.nack),
            (4, self.extend),
            (4, lambda: waiting(lambda: self.engine.queues.move_exhausted(topics=9))),
            (12, self.delete),
            (5, self.redrive),
            (6, lambda: self.server.clock.advance(ms=rng.choice([1, 50, 1001]))),
            (14, self.engine.flush),
            (10, lambda: self.sync.run(rng.choice([1, 2]))),
            (4, self.sync.work),
            (6, self.server.turn),
            (1, self.server.checkpoint),
            (2, lambda: self.server.begin_checkpoint(topics=rng.choice([0, 1]))),
            (3, self.server.steps.release),
            (1, lambda: self.put(QUEUE, leases_durable=rng.random() < 0.5)),
            (1, lambda: self.put(QUEUE, paused=rng.random() < 0.3, max_in_flight=rng.choice([0, 4]))),
            (1, lambda: self.put(QUEUE, **{rng.choice(["rate", "rate_per_key"]): rng.choice([None, RATE])})),
            (3, self.break_something if self.faults else self.kill),
        ]
        chosen = rng.choices([step for _, step in steps], [weight for weight, _ in steps])[0]
        with suppress(TopicsError) if self.faults else nullcontext():
            chosen()
        for name in self.names:
            self.check_figures(self.engine.expire_and_get(name, touch=False))

    def append(self) -> None:
        rng, records = self.rng, []
        for _ in range(rng.choice([1, 1, 3])):
            self.number += 1
            records.append(
                NewRecord(
                    Raw(b"%d" % self.number),
                    rng.choice([None, *TAGS]),
                    priority=rng.choice([None, None, 0, 5]),
                    delay_ms=rng.choice([None, None, None, 40]),
                    key=rng.choice([None, None, "k", "l"]),
                )
            )

        if len(records) == 1 and rng.random() < 0.3:
            records[0].unique = Unique(rng.choice("uv"), rng.choice(["pending", 60]))

        def landed(done: Any) -> None:
            self.written += 0 if done.deduped else len(records)

        self.follow(self.engine.append(QUEUE, WriteRequest(records)), landed)

    def claim(self) -> None:
        name = self.rng.choice(self.names)
        want = Want(node=self.rng.choice("vw"), max=self.rng.choice([1, 2, 5]), lease_ms=1000)
        topic = self.engine.queues.get(name)
        [claimed], ticket = waiting(lambda: self.engine.queues.claim(topic, [want]))
        granted = {}
        for row in map(msgspec.json.decode, claimed.rows):
            for deleted, covers in self.deletes.values():
                assert deleted != name or not covers(row["$seq"], row.get("$tag")), f"{row} is being deleted"
            key = name, row["$seq"]
            self.check_free(key)
            self.check_order(topic, *key, row.get("$key"))
            self.leases[key] = granted[key] = Lease(want.node, row["deadline"])
        if ticket is not None:
            ticket.on_done(lambda done: None if done.error is None else self.release(granted))
        if ticket is not None and self.rng.random() < 0.15:
            self.engine.queues.undo_claim(claimed)
            self.release(granted)

    def check_free(self, key: tuple[str, int]) -> None:
        before = self.leases.get(key)
        if before is not None:
            assert not before.acked, f"{key} was acked"
            assert before.moving or before.deadline_ms < self.server.clock.now_ms(), f"{key} is held by {before}"

    def check_order(self, topic: Topic, name: str, seq: int, key: str | None) -> None:
        """Check that no job of the same key is before this one."""
        for other in range(topic.earliest, seq if key is not None else 0):
            if waiting(lambda at=other: topic.is_live(at) and terms_at(topic, at).key) == key:  # type: ignore[misc]
                raise AssertionError(f"{seq} of {name} comes before {other}")

    def release(self, leases: dict[tuple[str, int], Lease]) -> None:
        for key, lease in leases.items():
            if self.leases.get(key) is lease:
                del self.leases[key]

    def ack(self) -> None:
        def acked(leases: dict[tuple[str, int], Lease], outcome: Any) -> None:
            self.acked += outcome.done
            for lease in leases.values():
                lease.acked = True

        self.held(lambda topic, node, seqs: self.engine.queues.ack(topic, node, seqs, None), acked)

    def nack(self) -> None:
        delay_ms, reason = self.rng.choice([0, 30]), self.rng.choice(["", "a", "b"])

        def nack(topic: Topic, node: str, seqs: list[int]) -> Ticket:
            queue = leases_of(topic)
            most = queue.max_deliveries()
            moves = most and any(queue.leases[seq].deliveries >= most for seq in seqs)
            for seq in seqs if moves else ():
                self.leases[topic.name, seq].moving = True
            why = (reason, None) if reason else None
            return self.engine.queues.nack(topic, node, seqs, None, delay_ms=delay_ms, why=why)

        self.held(nack, lambda leases, outcome: self.release(leases))

    def extend(self) -> None:
        def extended(leases: dict[tuple[str, int], Lease], outcome: Any) -> None:
            for (_, seq), lease in leases.items():
                lease.deadline_ms = outcome.deadlines[str(seq)]

        self.held(lambda topic, node, seqs: self.engine.queues.extend(topic, node, seqs, None, lease_ms=3000), extended)

    def held(
        self,
        verb: Callable[[Topic, str, list[int]], Ticket],
        answered: Callable[[dict[tuple[str, int], Lease], Any], None],
    ) -> None:
        """Call a verb for jobs of one worker. Pass on the leases of those that it did not skip."""
        topic = self.engine.queues.get(self.rng.choice(self.names))
        node = self.rng.choice("vw")
        seqs = [seq for seq, job in leases_of(topic).leases.items() if job.node == node][:3]
        leases = {(topic.name, seq): self.leases.get((topic.name, seq)) for seq in seqs}

        def landed(outcome: Any) -> None:
            done = {key: lease for key, lease in leases.items() if key[1] not in outcome.skipped}
            for key, lease in done.items():
                assert lease is not None, f"{key} is held by no worker"
                assert lease.moving or self.leases.get(key) is lease, f"{key} was claimed again before the answer"
                assert lease.node == node, key
            answered({key: lease for key, lease in done.items() if lease is not None}, outcome)

        if seqs:
            self.follow(waiting(lambda: verb(topic, node, seqs)), landed)

    def delete(self) -> None:
        rng, name = self.rng, self.rng.choice([QUEUE, QUEUE, DEAD])
        topic = self.engine.topic(name)
        covers: Covers
        if rng.random() < 0.4:
            seqs = sorted({rng.randint(topic.earliest, max(topic.head, topic.earliest)) for _ in range(2)})
            ticket = waiting(lambda: self.engine.delete_seqs(name, seqs))
            covers = lambda seq, tag: seq in seqs  # noqa: E731
        else:
            tag = rng.choice([*TAGS, None])
            before = topic.next_seq if tag is not None else topic.earliest + rng.choice([1, 2])
            match = None if tag is None else TagMatch("Eq", tag)
            ticket = run_all(self.engine.delete_records(name, before_seq=before, match=match))
            covers = lambda seq, found: seq < before and (tag is None or found == tag)  # noqa: E731
        self.deletes[ticket] = name, covers

        def landed(result: Any) -> None:
            self.deleted += result.deleted

        self.follow(ticket, landed)

    def redrive(self) -> None:
        topic = self.engine.queues.get(QUEUE)
        self.follow(
            waiting(
                lambda: self.engine.queues.dead_letters.redrive(
                    topic, dead_letter=None, match=None, seqs=None, from_seq=0, limit=2, dry_run=False
                )
            )
        )

    def follow(self, ticket: Ticket, landed: Callable[[Any], None] = lambda result: None) -> None:
        def done(done: Ticket) -> None:
            self.deletes.pop(done, None)
            if done.error is None:
                landed(done.result)
            else:
                assert self.faults, done.error

        ticket.on_done(done)

    def break_something(self) -> None:
        disk = self.server.disk
        if self.rng.random() < 0.5:
            disk.heal()
            self.sync.run_all()
            self.server.tick()
        else:
            self.server.fill_log()

    # --- checks

    def kill(self) -> None:
        """Compare a server that is killed now with this one, once all its pending entries have taken effect."""
        self.engine.flush()
        self.engine.commits.flush_now()
        after = self.server.next(self.server.disk.clone().crash("keep"))
        with patch.object(self.engine.queues.dead_letters, "move", lambda *_: None):  # it would stage one after a nack
            self.settle()
        self.server.clock.advance(ms=after.clock.now_ms() - self.server.clock.now_ms())
        self.kills += 1
        for name in (QUEUE, DEAD):
            assert after.by_seq(name) == self.server.by_seq(name), name
            assert after.engine.topic(name).losses.runs == self.engine.topic(name).losses.runs, name
        for name in self.names:
            assert self.view(after, name) == self.view(self.server, name)
            queue = leases_of(after.engine.topic(name))
            if not after.engine.topic(name).config.leases_durable:
                assert [*queue.leases, *queue.reclaim, *queue.resting, *queue.exhausted] == [], (
                    "a lease that was not written down"
                )

    def view(self, server: SimServer, name: str) -> Any:
        """Return what a restart must find of a queue."""
        topic = server.engine.expire_and_get(name, touch=False)
        queue = leases_of(topic)
        self.check_figures(topic)
        if not topic.config.leases_durable:
            return topic.count, queue.dead_lettered, sorted(queue.keys.blocked), sorted(queue.unique.save())
        delivered = {
            job.seq: (
                job.deliveries,
                job.lease_id if queue.held(job.seq) else "",
                job.seq in queue.resting,
                queue.reasons_of(job),
            )
            for place in (queue.leases, queue.reclaim, queue.resting, queue.exhausted)
            for job in place.values()
            if job.deliveries
        }
        deadlines = {seq: job.deadline_ms for seq, job in queue.leases.items() if queue.held(seq)}
        keys = sorted(queue.keys.open), sorted(queue.keys.blocked), sorted(queue.unique.save())
        # A job that only waits for a token of its key is ready after a restart: rates are exact to within one burst.
        later = [
            seq for seq, due in queue.later.items() if waiting(lambda at=seq: terms_at(topic, at)).due_ms == due >> 4
        ]  # type: ignore[misc]
        return topic.count, queue.dead_lettered, delivered, deadlines, sorted(later), keys

    def check_figures(self, topic: Topic) -> None:
        queue: Leases = leases_of(topic)
        places = [
            *queue.leases, *queue.leaving, *queue.reclaim, *queue.resting, *queue.exhausted, *queue.later
        ]  # fmt: skip
        places += queue.keys.blocked
        assert len(set(places)) == len(places), "a job is in two states"
        assert queue.ready >= len(queue.keys.blocked)
        assert queue.ready + queue.in_flight + queue.delayed == topic.count

    def finish(self) -> None:
        """Let everything take effect, count all jobs, then drain the queue."""
        self.server.disk.heal()
        for _ in range(3):
            self.settle()
            self.server.steps.release()
            self.server.tick()
        self.put(QUEUE, paused=False, max_in_flight=0, rate=None, rate_per_key=None)
        self.settle()  # a tick may have logged jobs that returned
        left = len(self.server.by_seq(QUEUE)) + len(self.server.by_seq(DEAD))
        if not self.faults:
            counted = left + self.deleted + self.acked + self.engine.topic(QUEUE).losses.total
            assert self.written == counted, "a job was lost, doubled, or counted twice"
        for name in (QUEUE, DEAD):
            topic = self.engine.topic(name)
            assert (topic.pending, topic.waiting, list(topic.staged_deletes)) == (0, 0, [])
        for _ in range(100):
            self.server.clock.advance(ms=4000)
            if not self.drain_some():
                break
        assert self.server.by_seq(QUEUE) == {}

    def drain_some(self) -> bool:
        topic = self.engine.queues.get(QUEUE)
        [claimed], _ = waiting(lambda: self.engine.queues.claim(topic, [Want(node="z", max=50, lease_ms=1000)]))
        self.settle()
        if claimed.jobs:
            seqs = [job.seq for job in claimed.jobs]
            ticket = waiting(lambda: self.engine.queues.ack(topic, "z", seqs, None))
            self.settle()
            assert ticket.value().done == len(seqs)
        return topic.count > 0


def play(seeds: Sequence[int], *, faults: bool, steps: int) -> int:
    kills = 0
    for seed in seeds:
        race = Race(seed, faults=faults)
        try:
            for _ in range(steps):
                race.step()
            if not faults:
                race.kill()
            race.finish()
        except BaseException as error:
            error.add_note(f"history {seed}, faults={faults}, {steps} steps")
            raise
        kills += race.kills
    return kills


@pytest.mark.parametrize("faults", [False, True])
def test_verbs_between_pending_syncs_agree_with_a_replay(faults: bool) -> None:
    play(range(SEED * 1000, SEED * 1000 + 30), faults=faults, steps=80)


@pytest.mark.torture
@pytest.mark.parametrize("block", range(8))
def test_many_histories_between_pending_syncs_agree_with_a_replay(block: int, counts: Counts) -> None:
    histories = range(10_000 * block, 10_000 * block + amount(100, 500))
    kills = play(histories, faults=bool(block % 2), steps=200)
    counts(f"of queues in block {block}", histories=len(histories), kills=kills)
