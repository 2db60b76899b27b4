"""Verbs of a queue that meet deletes, moves and acks which wait for the log, in every class and in both orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.engine.harness import waiting
from tests.queues.harness import QUEUE, Workshop, job
from tests.simulated.disk import SimDisk
from tests.simulated.harness import DeferredWorker, SimServer, request
from topics.engine.queue.lease_log import Leased
from topics.engine.queue.verbs import Want
from topics.engine.steps import run_all
from topics.engine.write.commit import Ticket
from topics.errors import TopicsError
from topics.model.records import Limits, TagMatch
from topics.model.topic import ConfigPatch
from topics.storage.log.background import LogRefused
from topics.storage.log.entry import Delete

DEAD = "jobs.dead"
CLASSES = ["fsync", "disk", "memory", "ephemeral"]


class SlowShop(Workshop):
    """A queue whose entries wait: until `settle` at the latest, and on an `fsync` queue after `wait_for_sync`, too."""

    def __init__(self, *, written: bool = False, **config: Any) -> None:
        self.sync = DeferredWorker()
        self.written = written
        super().__init__(SimServer.start(SimDisk(), sync_worker=self.sync))
        self.put(QUEUE, type="queue", **config)

    def done(self, ticket: Ticket) -> Any:
        self.settle()
        return ticket.value()

    def put(self, name: str, **config: Any) -> None:
        self.done(self.server.engine.put_topic(name, ConfigPatch(**config)))

    def settle(self) -> None:
        self.server.engine.commits.sync()

    def stage(self, ticket: Ticket | None) -> Ticket:
        """Let the entry wait: in this turn, or for its sync."""
        assert ticket is not None
        if self.written:
            self.server.engine.flush()
        return ticket

    # --- verbs that wait

    def start_delete(self, how: str, seq: int, name: str = QUEUE) -> Ticket:
        """Delete one record by its seq, by its tag `t<seq>`, or with all records up to it."""
        engine = self.server.engine
        if how == "seqs":
            return self.stage(engine.delete_seqs(name, [seq]))
        match = TagMatch("Eq", f"t{seq}") if how == "tag" else None
        before_seq = seq + 1 if how == "before_seq" else None
        return self.stage(run_all(engine.delete_records(name, before_seq=before_seq, match=match)))

    def start_claim(self, node: str = "w", max: int = 1, name: str = QUEUE) -> tuple[list[int], Ticket | None]:
        engine = self.server.engine
        want = Want(node=node, max=max, lease_ms=1000)
        [claimed], ticket = waiting(lambda: engine.queues.claim(engine.queues.get(name), [want]))
        if ticket is not None:
            self.stage(ticket)
        return [row["$seq"] for row in map(msgspec.json.decode, claimed.rows)], ticket

    def start_ack(self, seq: int, node: str = "w") -> Ticket:
        return self.stage(self.server.engine.queues.ack(self.topic, node, [seq], None))

    def start_redrive(self) -> Ticket:
        asked: dict[str, Any] = {"dead_letter": None, "match": None, "seqs": None}
        return self.stage(
            self.server.engine.queues.dead_letters.redrive(self.topic, **asked, from_seq=0, limit=10, dry_run=False)
        )

    def refuse(self) -> None:
        """Let the log refuse everything that is staged."""
        commits = self.server.engine.commits
        staged, commits._staged = commits._staged, []
        commits.refuse(staged, LogRefused("no space left"))

    def claim_all(self) -> list[int]:
        got, _ = self.start_claim("last", 100)
        self.settle()
        return got

    def bury(self, *tags: str) -> None:
        """Make jobs that were delivered as often as they may be, whose lease has ended. A claim moves them."""
        self.write(*(job("1", tag=tag) for tag in tags))
        self.start_claim(max=len(tags))
        self.settle()
        self.clock.advance(ms=1001)


@pytest.fixture(
    params=[(name, written) for name in CLASSES for written in (False, True) if name == "fsync" or not written]
)
def shop_of(request: pytest.FixtureRequest) -> Callable[..., SlowShop]:
    durability, written = request.param
    return lambda **config: SlowShop(durability=durability, written=written, **config)


HOW = pytest.mark.parametrize("how", ["seqs", "tag", "before_seq"])
DURABLE = pytest.mark.parametrize("leases_durable", [False, True])


@HOW
@DURABLE
@pytest.mark.parametrize("terms", [{}, {"priority": 3}, {"delay_ms": 5}])
def test_claim_passes_over_a_job_that_a_delete_takes(shop_of, how: str, leases_durable: bool, terms: dict[str, int]):
    shop = shop_of(leases_durable=leases_durable)
    shop.write(*(job("1", tag=f"t{seq}", **terms) for seq in (1, 2, 3)))
    shop.clock.advance(ms=5)
    deleted = shop.start_delete(how, 1)
    got, _ = shop.start_claim(max=9)
    assert got == [2, 3]
    shop.settle()
    assert deleted.value().deleted == 1
    assert shop.counts == (0, 2, 0)
    after = shop.restart("keep")
    if shop.topic.config.durability != "ephemeral":
        assert after.counts == ((0, 2, 0) if leases_durable else (2, 0, 0))
        after.clock.advance(ms=2000)
        assert [one["$seq"] for one in after.claim("x", 9)] == [2, 3]


def test_delete_of_a_seq_that_is_not_written_yet_hides_no_later_delete():
    shop = SlowShop(durability="fsync", written=True)
    early = shop.start_delete("seqs", 1)
    written = shop.stage(shop.server.engine.append(QUEUE, request("1")))
    late = shop.server.engine.delete_seqs(QUEUE, [1])
    while not written.done:
        shop.sync.run()
    assert not late.done
    assert shop.start_claim()[0] == []
    shop.settle()
    assert (early.value().deleted, late.value().deleted) == (0, 1)


@HOW
@pytest.mark.parametrize("terms", [{}, {"priority": 3}, {"delay_ms": 5}])
@pytest.mark.parametrize("returned", [False, True])
def test_job_whose_delete_is_refused_is_claimable_again(how: str, terms: dict[str, int], returned: bool):
    shop = SlowShop(durability="fsync")
    shop.write(*(job("1", tag=f"t{seq}", **terms) for seq in (1, 2, 3)))
    shop.clock.advance(ms=5)
    if returned:
        shop.done(shop.server.engine.queues.nack(shop.topic, "w", shop.start_claim(max=9)[0], None, delay_ms=0))
    shop.start_delete(how, 2)
    got, _ = shop.start_claim(max=9)
    assert got == ([3] if how == "before_seq" else [1, 3])
    woken: list[int] = []
    shop.queue.freed = lambda: woken.append(1)
    shop.refuse()
    assert woken
    assert shop.claim_all() == ([1, 2] if how == "before_seq" else [2])
    assert shop.counts == (0, 3, 0)


@HOW
@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_held_job_that_a_delete_takes_is_skipped(shop_of, how: str, verb: str):
    shop = shop_of(leases_durable=True)
    shop.write(*(job("1", tag=f"t{seq}") for seq in (1, 2)))
    shop.start_claim(max=2)
    shop.settle()
    deleted = shop.start_delete(how, 1)
    more: dict[str, Any] = {"nack": {"delay_ms": 0}, "extend": {"lease_ms": 100}}.get(verb, {})
    done = shop.stage(getattr(shop.server.engine.queues, verb)(shop.topic, "w", [1, 2], None, **more))
    shop.settle()
    assert (done.value().done, done.value().skipped) == (1, [1])
    assert deleted.value().deleted == 1
    assert shop.counts[0] + shop.counts[1] == shop.topic.count == (0 if verb == "ack" else 1)


@HOW
def test_delete_after_an_ack_counts_other_jobs_only(shop_of, how: str):
    shop = shop_of()
    shop.write(*(job("1", tag=f"t{seq}") for seq in (1, 2)))
    shop.start_claim(max=2)
    shop.settle()
    acked = shop.start_ack(1)
    deleted = shop.start_delete(how, 1)
    shop.settle()
    assert (acked.value().done, deleted.value().deleted) == (1, 0)
    assert shop.counts == (0, 1, 0)


@HOW
@DURABLE
def test_deleted_job_does_not_become_a_dead_letter(shop_of, how: str, leases_durable: bool):
    shop = shop_of(leases_durable=leases_durable, max_deliveries=1, dead_letter=DEAD)
    shop.bury("t1", "t2")
    deleted = shop.start_delete(how, 1)
    shop.start_claim(max=9)
    shop.settle()
    assert deleted.value().deleted == 1
    assert shop.queue.dead_lettered == 1
    assert len(shop.server.data(DEAD)) == 1
    assert shop.counts == (0, 0, 0)


@HOW
@pytest.mark.parametrize("letters", ["fsync", "disk"])
def test_delete_does_not_count_a_job_that_is_on_its_way_to_the_dead_letters(shop_of, how: str, letters: str):
    shop = shop_of(max_deliveries=1, dead_letter=DEAD)
    shop.put(DEAD, durability=letters)
    shop.bury("t1")
    got, moved = shop.start_claim()
    deleted = shop.start_delete(how, 1)
    shop.server.engine.flush()
    if moved is not None and not moved.done:
        assert not deleted.done, "the delete follows the move in the log"
    shop.settle()
    assert got == []
    assert deleted.value().deleted == 0
    assert (shop.counts, len(shop.server.data(DEAD))) == ((0, 0, 0), 1)


def test_delete_waits_for_a_move_that_waits_for_the_sync_after_this_one():
    shop = SlowShop(durability="disk", max_deliveries=1, dead_letter=DEAD, written=True)
    shop.put(DEAD, durability="fsync")
    shop.bury("t1")
    shop.sync.run_all()
    written = shop.stage(shop.server.engine.append(DEAD, request("0")))
    _, moved = shop.start_claim()
    deleted = shop.start_delete("seqs", 1)
    shop.sync.run()  # the sync that began before the move was written
    assert moved is not None
    assert (written.done, moved.done, deleted.done) == (True, False, False)
    shop.settle()
    assert (deleted.value().deleted, len(shop.server.data(DEAD))) == (0, 2)


@HOW
@pytest.mark.parametrize("kind", ["log", "queue"])
def test_deleted_dead_letter_is_not_redriven(shop_of, how: str, kind: str):
    shop = shop_of(max_deliveries=1, dead_letter=DEAD)
    shop.put(DEAD, type=kind, durability=shop.topic.config.durability)
    shop.bury("t1", "t2")
    shop.claim_all()
    deleted = shop.start_delete(how, 1, DEAD)
    redriven = shop.start_redrive()
    shop.settle()
    assert (deleted.value().deleted, redriven.value().seqs) == (1, [2])
    assert (shop.server.data(DEAD), shop.topic.count) == ([], 1)


@HOW
def test_delete_of_a_dead_letter_that_is_redriven_counts_nothing(shop_of, how: str):
    shop = shop_of(max_deliveries=1, dead_letter=DEAD)
    shop.bury("t1")
    shop.claim_all()
    redriven = shop.start_redrive()
    deleted = shop.start_delete(how, 1, DEAD)
    shop.settle()
    assert (redriven.value().seqs, deleted.value().deleted) == ([1], 0)
    assert (shop.server.data(DEAD), shop.topic.count) == ([], 1)


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_two_redrives_at_once_move_a_letter_once(shop_of, kind: str):
    shop = shop_of(max_deliveries=1, dead_letter=DEAD)
    shop.put(DEAD, type=kind, durability=shop.topic.config.durability)
    shop.bury("t1", "t2")
    shop.claim_all()
    first, second = shop.start_redrive(), shop.start_redrive()
    shop.settle()
    assert (first.value().seqs, second.value().seqs) == ([1, 2], [])
    assert (shop.server.data(DEAD), shop.topic.count) == ([], 2)


def test_worker_of_the_dead_letters_gets_no_letter_that_is_redriven(shop_of):
    shop = shop_of(max_deliveries=1, dead_letter=DEAD)
    shop.put(DEAD, type="queue", durability=shop.topic.config.durability)
    shop.bury("t1", "t2")
    shop.claim_all()
    redriven = shop.start_redrive()
    assert shop.start_claim("other", 9, DEAD)[0] == []
    shop.settle()
    assert redriven.value().seqs == [1, 2]


def test_letters_of_a_refused_redrive_stay_claimable():
    shop = SlowShop(durability="fsync", max_deliveries=1, dead_letter=DEAD)
    shop.put(DEAD, type="queue")
    shop.bury("t1", "t2")
    shop.claim_all()
    redriven = shop.start_redrive()
    assert shop.start_claim("other", 9, DEAD)[0] == []
    shop.refuse()
    with pytest.raises(TopicsError):
        redriven.value()
    assert shop.start_claim("other", 9, DEAD)[0] == [1, 2]
    assert shop.topic.pending == shop.topic.waiting == 0
    dead = shop.server.engine.topic(DEAD)
    assert dead.pending == dead.waiting == 0


def test_move_is_complete_when_the_claim_that_caused_it_is_answered(shop_of):
    shop = shop_of(max_deliveries=1, dead_letter=DEAD)
    shop.bury("t1")
    shop.write("2")
    got, ticket = shop.start_claim(max=2)
    assert got == [2]
    assert ticket is not None
    seen: list[Any] = []
    ticket.on_done(lambda _: seen.append((shop.queue.dead_lettered, len(shop.server.data(DEAD)), shop.counts)))
    shop.settle()
    assert seen == [(1, 1, (0, 1, 0))]


def test_claim_keeps_its_jobs_though_the_log_refuses_the_move():
    shop = SlowShop(durability="fsync", max_deliveries=1, dead_letter=DEAD)
    shop.bury("t1")
    shop.write("2")
    got, ticket = shop.start_claim(max=2)
    shop.refuse()
    assert ticket is not None
    assert (got, ticket.done, ticket.error) == ([2], True, None)
    assert shop.counts == (0, 1, 1)


def test_second_half_of_a_move_waits_for_the_topic_that_the_first_creates():
    """All dead letters together are more than the server may hold, so they move in halves."""
    shop = SlowShop(max_deliveries=1, dead_letter=DEAD)
    shop.bury(*(f"t{seq}" for seq in range(4)))
    staging = shop.server.engine.staging
    staging.limits = Limits(max_total_bytes=shop.server.engine.state.totals.bytes + 400)
    shop.start_claim(max=9)
    shop.settle()
    found = len(shop.server.data(DEAD))
    assert 0 < found < 4
    assert shop.topic.count + found == 4
    staging.limits = Limits()
    shop.clock.advance(ms=1000)
    shop.claim_all()
    assert (len(shop.server.data(DEAD)), shop.counts) == (4, (0, 0, 0))


@pytest.mark.parametrize("how", ["stop", "keep", "lose"])
def test_queue_forgets_leases_of_the_log_once_it_writes_none(how: str):
    shop = Workshop(SimServer.start(SimDisk()), durability="fsync", leases_durable=True)
    shop.write(job("1"), job("2", priority=4), job("3"), job("4", delay_ms=9000))
    shop.claim("old", 2, lease_ms=60_000)
    shop.server.put(QUEUE, leases_durable=False)
    assert shop.counts == (1, 2, 1), "the workers keep their leases"
    shop.nack("old", 1)
    after = shop.restart(how)
    assert after.counts == (3, 0, 1)
    got = after.claim("new", 9)
    assert [(one["$seq"], one["deliveries"]) for one in got] == [(1, 1), (2, 1), (3, 1)]


def test_undelivered_jobs_return_with_their_old_count_after_a_crash():
    shop = Workshop(SimServer.start(SimDisk()), durability="fsync", leases_durable=True)
    shop.write("1", "2")
    want = Want(node="w", max=2, lease_ms=1000)
    [claimed], _ = shop.server.engine.queues.claim(shop.topic, [want])
    shop.done(shop.server.engine.queues.undo_claim(claimed))
    assert shop.counts == (2, 0, 0)
    assert [one["deliveries"] for one in shop.restart("keep").claim("x", 2)] == [1, 1]


def test_replay_gives_no_lease_of_a_deleted_job():
    """Logs of earlier versions have a lease behind the delete of its job."""
    shop = Workshop(SimServer.start(SimDisk()), durability="fsync", leases_durable=True)
    shop.write(*"12345")
    shop.server.checkpoint()
    topic = shop.topic
    delete = Delete(topic.topic_id, 0, None, "", shop.clock.now_ms(), [2, 5])
    lease = Leased(topic.topic_id, "w", 77, shop.clock.now_ms() + 60_000, [1, 2, 5], [0, 0, 0], [None, None, None])
    shop.done(shop.server.engine.staging.stage(topic, [delete, lease], lambda _: None))
    after = shop.restart("keep")
    assert after.counts == (2, 1, 0)
    assert [one["$seq"] for one in after.claim("x", 9)] == [3, 4]
    assert after.ack("w", 1, 2, 5).skipped == [2, 5]


@pytest.mark.parametrize("leases_durable", [False, True])
def test_snapshot_that_begins_during_a_claim_has_every_job(leases_durable: bool):
    """The move to the dead letters is staged before the leases, and captures the queue."""
    shop = Workshop(
        SimServer.start(SimDisk()),
        durability="fsync",
        leases_durable=leases_durable,
        max_deliveries=1,
        dead_letter=DEAD,
    )
    shop.write(job("1"))
    shop.claim("w")
    shop.clock.advance(ms=1001)
    shop.write(job("2", priority=5), job("3"))
    shop.server.begin_checkpoint(topics=0)
    assert [one["$seq"] for one in shop.claim("w", 2)] == [2, 3]
    shop.server.steps.release()
    after = shop.restart("keep")
    after.clock.advance(ms=2000)
    assert sorted(one["$seq"] for one in after.claim("x", 9)) == ([] if leases_durable else [2, 3])
    assert after.topic.count == (0 if leases_durable else 2)


def test_due_delayed_jobs_do_not_starve_older_jobs():
    shop = Workshop()
    shop.write(*"12345")
    got: list[int] = []
    for _ in range(5):
        shop.write(job("6", delay_ms=1), job("7", delay_ms=1))
        shop.clock.advance(ms=1)
        got += [one["$seq"] for one in shop.claim("w")]
    assert got == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("restart", [False, True])
def test_jobs_of_a_priority_come_in_the_order_in_which_they_became_claimable(restart: bool):
    shop = Workshop(durability="fsync")
    shop.write(job("1", delay_ms=10), job("2"))
    shop.clock.advance(ms=10)
    shop.write("3")
    shop.clock.advance(ms=1)
    shop.write("4", job("5", delay_ms=1))
    shop.clock.advance(ms=1)
    if restart:
        shop.counts  # noqa: B018 - admits the delayed jobs
        shop = shop.restart("stop")
    order = [shop.claim("w")[0]["$seq"] for _ in range(5)]
    assert order == [2, 1, 3, 4, 5]
