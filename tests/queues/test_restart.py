"""What a queue remembers of its workers when the server comes back."""

from __future__ import annotations

import pytest

from tests.queues.harness import QUEUE, Workshop, job, seqs
from tests.simulated.disk import SimDisk
from tests.simulated.harness import DeferredWorker, SimServer
from topics.engine.queue.verbs import Want
from topics.engine.state.jobs.job import Job
from topics.model.records import WriteRequest
from topics.model.topic import ConfigPatch

WAYS = ["stop", "keep", "lose", "tear", "reorder"]


@pytest.mark.parametrize("how", WAYS)
def test_acked_jobs_stay_deleted(how: str):
    shop = Workshop(durability="fsync")
    shop.write(*"12345")
    shop.claim("a", 4)
    shop.ack("a", 1, 3)
    after = shop.restart(how)
    assert after.counts == (3, 0, 0)
    assert seqs(after.claim("b", 9)) == [2, 4, 5]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_without_durable_leases_every_job_that_was_out_is_claimable_again(checkpoint: bool):
    shop = Workshop(durability="fsync")
    shop.write(job("1"), job("2", priority=3), job("3", delay_ms=50), job("4"), job("5", delay_ms=5000))
    shop.clock.advance(ms=50)
    shop.claim("a", 4)
    shop.nack("a", 1, delay_ms=60_000)
    shop.nack("a", 2)
    if checkpoint:
        shop.server.checkpoint()
    after = shop.restart()
    assert after.counts == (4, 0, 1)
    got = after.claim("b", 9)
    assert seqs(got) == [1, 2, 3, 4]
    assert {one["deliveries"] for one in got} == {1}
    after.clock.advance(ms=5000)
    assert 5 in seqs(after.claim("c", 9))


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_durable_leases_survive_with_deadlines_counts_and_tokens(how: str, checkpoint: bool):
    shop = Workshop(durability="fsync", leases_durable=True)
    shop.write(*(job(text) for text in "123"), job("4", priority=2))
    shop.claim("a", 4, lease_ms=100)
    shop.clock.advance(ms=101)
    got = {one["$seq"]: one for one in shop.claim("a", 4, lease_ms=5000)}
    shop.extend("a", 1, lease_ms=9000)
    shop.nack("a", 2, delay_ms=700)
    if checkpoint:
        shop.server.checkpoint()
    shop.ack("a", 3)
    after = shop.restart(how)
    assert after.counts == (0, 2, 1)
    assert after.ack("a", 4, lease_ids=["lease_0"]).skipped == [4]
    assert after.ack("a", 4, lease_ids=[got[4]["lease_id"]]).done == 1
    after.clock.advance(ms=700)
    [back] = after.claim("b", 9, lease_ms=60_000)
    assert (back["$seq"], back["deliveries"]) == (2, 3)
    after.clock.advance(ms=9000)
    [late] = after.claim("c", 9)
    assert (late["$seq"], late["deliveries"]) == (1, 3)


def test_lease_id_from_before_a_restart_is_never_reused():
    shop = Workshop(durability="fsync")
    shop.write("1")
    [before] = shop.claim("a")
    after = shop.restart()
    [again] = after.claim("a")
    assert again["lease_id"] != before["lease_id"]
    assert after.ack("a", 1, lease_ids=[before["lease_id"]]).skipped == [1]


def test_an_ephemeral_queue_comes_back_empty():
    shop = Workshop(durability="ephemeral", leases_durable=True)
    shop.write(job("1", priority=3), job("2", delay_ms=100), job("3"))
    shop.claim("a", 1)
    after = shop.restart("stop")
    assert after.counts == (0, 0, 0)
    after.write("4")
    assert [one["data"] for one in after.claim("a", 9)] == [4]


def test_restart_reads_no_jobs_before_a_claim():
    shop = Workshop(durability="fsync")
    for _ in range(30):
        shop.write(*["1"] * 10, job("2", priority=1))
    shop.server.close()
    before = len(shop.server.disk.calls)
    after = Workshop(shop.server.next(shop.server.disk))
    opened = [call.path for call in shop.server.disk.calls[before:] if call.op == "open"]
    assert not [path for path in opened if path.endswith(".seg")]
    assert after.counts == (330, 0, 0)
    assert after.claim("a", 2)


# --- a claim whose client leaves, while the disk fails


class FailingShop(Workshop):
    """A queue with one job that may be delivered once, on a disk that fails when the test says so."""

    def __init__(self, durability: str) -> None:
        self.syncs = DeferredWorker()
        server = SimServer.start(SimDisk(), sync_worker=self.syncs)
        super().__init__(server)
        config = ConfigPatch(
            type="queue", durability=durability, leases_durable=True, max_deliveries=1, dead_letter="dead"
        )
        server.engine.put_topic(QUEUE, config)
        self.land()
        server.engine.append(QUEUE, WriteRequest([job("1")]))
        self.land()

    def land(self) -> None:
        self.server.engine.commits.sync()
        self.syncs.run_all()

    def start_claim(self) -> list[Job]:
        """Claim the job and write its lease to the log: the client has no answer yet."""
        [claimed], _ = self.server.engine.queues.claim(self.topic, [Want(node="w", max=1, lease_ms=1000)])
        self.server.engine.flush()
        return claimed.jobs

    def free_space(self) -> None:
        """Undo `fill_log`."""
        self.server.disk.heal()
        for _ in range(2):
            self.server.tick()
            self.land()

    def deliveries(self) -> list[int]:
        """Return the deliveries of the job after a crash, and after the end of its lease."""
        after = Workshop(self.server.next(self.server.disk.clone().crash("keep")))
        after.clock.advance(ms=2000)
        return [one["deliveries"] for one in after.claim("next")]


@pytest.fixture(params=["fsync", "disk", "memory"])
def failing(request: pytest.FixtureRequest) -> FailingShop:
    return FailingShop(request.param)


def test_undone_claim_is_no_delivery_if_the_log_refuses_its_return(failing: FailingShop):
    jobs = failing.start_claim()
    failing.server.fill_log()
    undone = failing.undo_claim(jobs)
    failing.server.engine.flush()
    assert undone.error is not None
    failing.land()
    assert failing.counts == (1, 0, 0), "the next worker gets the job, whatever the log does"
    failing.free_space()
    assert failing.deliveries() == [1]
    assert [one.deliveries for one in failing.start_claim()] == [1]


@pytest.mark.parametrize("noticed", [False, True])
def test_undone_claim_is_no_delivery_if_its_lease_has_ended(failing: FailingShop, noticed: bool):
    jobs = failing.start_claim()
    failing.clock.advance(ms=1001)
    if noticed:
        assert failing.counts == (0, 0, 1), "it is exhausted: one delivery was allowed"
    failing.undo_claim(jobs)
    failing.land()
    assert (failing.counts, failing.jobs()[0][0].get("reasons")) == ((1, 0, 0), None)
    assert failing.deliveries() == [1]
    assert [one.deliveries for one in failing.start_claim()] == [1]


def test_claim_that_is_undone_late_leaves_the_lease_of_another_worker():
    shop = Workshop()
    shop.write("1")
    [claimed], _ = shop.server.engine.queues.claim(shop.topic, [Want(node="w", max=1, lease_ms=1000)])
    shop.clock.advance(ms=1001)
    shop.claim("v")
    shop.server.engine.queues.undo_claim(claimed)
    assert (shop.counts, shop.ack("v", 1).done) == ((0, 1, 0), 1)


@pytest.mark.parametrize("refused", [False, True])
def test_claim_that_follows_an_undone_claim_keeps_its_lease(failing: FailingShop, refused: bool):
    jobs = failing.start_claim()
    failing.server.fill_log()
    failing.undo_claim(jobs)
    failing.server.engine.flush()
    failing.land()
    if refused:
        failing.start_claim()
    failing.server.disk.heal()
    failing.server.wal.tick()
    failing.syncs.run_all()
    [again] = failing.start_claim()
    failing.server.engine.queues.log_returns()
    failing.land()
    failing.free_space()
    assert (failing.counts, again.deliveries) == ((0, 1, 0), 1)
    after = Workshop(failing.server.next(failing.server.disk.clone().crash("keep")))
    assert after.counts == (0, 1, 0)
    assert after.ack("w", 1).done == 1
