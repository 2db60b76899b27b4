"""Very many leases that end together: exact at once, and moved a bounded number at a time."""

import random
from typing import Any

import pytest

from tests.queues.harness import Workshop
from topics.engine.state.jobs import deadlines
from topics.engine.state.jobs.deadlines import RECLAIM_MAX
from topics.engine.state.jobs.job import Holder


@pytest.fixture
def few_moves(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let one call move fewer jobs than a test claims."""
    monkeypatch.setattr(deadlines, "RECLAIM_MAX", 10)
    return 10


def shop_with(jobs: int, **config: Any) -> Workshop:
    shop = Workshop(**config)
    for at in range(0, jobs, 1000):
        shop.write(*["1"] * min(1000, jobs - at))
    return shop


def claim_all(shop: Workshop, **options: Any) -> list[int]:
    found: list[int] = []
    while rows := shop.claim(max=1000, **options):
        found += [row["$seq"] for row in rows]
    return found


def test_one_call_moves_a_bounded_number_of_ended_leases():
    total = RECLAIM_MAX + 3000
    shop = shop_with(total)
    assert len(claim_all(shop)) == total
    queue = shop.queue
    shop.clock.advance(ms=1001)
    queue.expire(shop.clock.now_ms())
    assert (len(queue.reclaim), len(queue.leases)) == (RECLAIM_MAX, 3000)
    assert (queue.ready, queue.in_flight) == (total, 0)
    assert queue.next_ms() == 0, "the rest must follow soon"
    queue.expire(shop.clock.now_ms())
    assert (len(queue.reclaim), len(queue.leases), queue.next_ms()) == (total, 0, None)


def test_ended_leases_that_wait_to_move_are_over(few_moves: int):
    shop = shop_with(100)
    seqs = claim_all(shop)
    shop.clock.advance(ms=1001)
    assert shop.counts == (100, 0, 0)
    last = seqs[-1]
    assert shop.queue.leases, "some wait"
    for outcome in (shop.ack("w", last), shop.nack("w", last), shop.extend("w", last, lease_ms=5000)):
        assert (outcome.done, outcome.skipped, outcome.in_flight) == (0, [last], 0)
    assert shop.jobs(state="in_flight") == ([], None)
    assert {row["state"] for row in shop.jobs()[0]} == {"ready"}


def test_ended_jobs_are_delivered_again_once_each(few_moves: int):
    shop = shop_with(100)
    claim_all(shop)
    shop.clock.advance(ms=1001)
    again: list[int] = []
    while rows := shop.claim(max=few_moves):
        again += [row["$seq"] for row in rows]
        assert {row["deliveries"] for row in rows} == {2}
    assert again == list(range(1, 101))
    assert shop.counts == (0, 100, 0)


def test_deleted_records_of_ended_leases_are_not_counted(few_moves: int):
    shop = shop_with(100)
    claim_all(shop)
    shop.clock.advance(ms=1001)
    assert shop.counts == (100, 0, 0)
    shop.server.delete("jobs", before_seq=91)
    assert shop.counts == (10, 0, 0)
    assert sorted(claim_all(shop)) == list(range(91, 101))


def test_holder_loses_its_jobs_as_they_move(few_moves: int):
    shop = shop_with(30)
    holder = Holder(lambda: None)
    assert len(shop.claim(max=30, holder=holder)) == 30
    shop.clock.advance(ms=1001)
    queue = shop.queue
    left = [len(holder.held)]
    while queue.next_ms() == 0:
        queue.expire(shop.clock.now_ms())
        left.append(len(holder.held))
    assert left == [20, 10, 0]


def test_state_survives_a_restart_while_ended_leases_wait(few_moves: int):
    shop = shop_with(50, leases_durable=True)
    claim_all(shop)
    shop.clock.advance(ms=1001)
    assert shop.counts == (50, 0, 0)
    shop.server.checkpoint()
    after = shop.restart()
    assert after.counts == (50, 0, 0)
    assert sorted(claim_all(after)) == list(range(1, 51))


@pytest.mark.parametrize("seed", range(5))
def test_counts_stay_exact_whatever_happens_to_leases(few_moves: int, seed: int):
    rng = random.Random(seed)
    shop = shop_with(200)
    held: dict[int, int] = {}  # seq → deadline
    gone: set[int] = set()
    for _ in range(300):
        now = shop.clock.now_ms()
        live = [seq for seq, deadline in held.items() if deadline >= now]
        seqs = rng.sample(live, min(len(live), rng.randrange(1, 8)))
        match rng.randrange(5):
            case 0:
                lease_ms = rng.choice([100, 500, 501])
                for row in shop.claim(max=rng.randrange(1, 60), lease_ms=lease_ms):
                    assert row["$seq"] not in live
                    held[row["$seq"]] = now + lease_ms
                seqs = []
            case 1 if seqs:
                gone.update(seqs)
                assert shop.ack("w", *seqs).done == len(seqs)
            case 2 if seqs:
                assert shop.nack("w", *seqs).done == len(seqs)
            case 3 if seqs:
                assert shop.extend("w", *seqs, lease_ms=700).done == len(seqs)
                held |= dict.fromkeys(seqs, now + 700)
                seqs = []
            case 4:
                shop.clock.advance(ms=rng.choice([1, 50, 100, 700]))
                seqs = []
            case _:
                seqs = []
        held = {seq: deadline for seq, deadline in held.items() if seq not in seqs and deadline >= shop.clock.now_ms()}
        assert shop.counts == (200 - len(gone) - len(held), len(held), 0)
