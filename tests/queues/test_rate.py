"""Queues, and keys of queues, that deliver only so many jobs in a second."""

from __future__ import annotations

import pytest

from tests.queues.harness import QUEUE, Workshop, job, seqs
from tests.queues.test_staged import SlowShop
from topics.engine.queue.verbs import Want
from topics.errors import TopicsError
from topics.model.topic import Rate


def test_rate_limits_deliveries_to_a_burst_and_then_so_many_in_a_second():
    shop = Workshop(rate=Rate(per_s=10, burst=3))
    shop.write(*"123456789012")
    assert [len(rows) for rows in shop.claims(*(Want(node="v", max=2, lease_ms=99) for _ in range(3)))] == [1, 1, 1]
    given = []
    for _ in range(20):
        shop.clock.advance(ms=30)
        given.append(len(shop.claim("w", 9, lease_ms=60_000)))
    assert sum(given) == 6, "600 ms"
    shop.clock.advance(ms=10_000)
    assert len(shop.claim("w", 9)) == 3


def test_claim_that_waits_wakes_when_there_is_a_token():
    shop = Workshop(rate=Rate(per_s=3))
    shop.write("1", "2")
    shop.claim("w", lease_ms=60_000)
    assert shop.queue.next_ms() == shop.clock.now_ms() + 334
    shop.clock.advance(ms=333)
    assert (shop.claim("w"), shop.queue.next_ms() is not None) == ([], True)
    shop.clock.advance(ms=1)
    assert shop.queue.next_ms() != shop.clock.now_ms(), "a time that has passed would wake clients without end"
    assert len(shop.claim("w")) == 1


def test_restart_and_clock_cost_one_burst_at_most():
    shop = Workshop(durability="fsync", rate=Rate(per_s=1, burst=2))
    shop.write(*"123456")
    assert len(shop.claim("w", 9)) == 2
    shop.clock.set(ms=shop.clock.now_ms() - 500_000)
    shop.claim("w", 9)
    shop.clock.advance(ms=2000)
    assert len(shop.claim("w", 9)) == 2, "the difference is not waited for"
    assert len(shop.restart().claim("w", 9)) == 2


def test_job_that_no_worker_got_returns_its_token():
    shop = SlowShop(durability="disk", leases_durable=True, rate=Rate(per_s=1), rate_per_key=Rate(per_s=1))
    shop.write(job("1", key="a"))
    assert shop.start_claim()[0] == [1]
    shop.refuse()
    assert shop.start_claim()[0] == [1]
    shop.settle()
    shop.undo_claim()
    assert shop.start_claim()[0] == [1]


def test_rate_of_a_key_does_not_slow_down_others():
    shop = Workshop(rate_per_key=Rate(per_s=10), max_in_flight_per_key=0)
    shop.write(*(job("1", key=key) for key in "aaab"), "5")
    assert seqs(shop.claim("w", 9)) == [1, 4, 5]
    assert shop.counts == (0, 3, 2), "they wait for a token"
    assert {one["deliver_at"] for one in shop.jobs("delayed")[0]} == {shop.clock.now_ms() + 100}
    assert shop.queue.next_ms() == shop.clock.now_ms() + 100
    shop.nack("w", 1)
    assert shop.claim("w", 9) == [], "a second delivery needs a token, too"
    shop.clock.advance(ms=100)
    assert len(shop.claim("w", 9)) == 1
    shop.clock.advance(ms=100)
    assert len(shop.claim("w", 9)) == 1


def test_full_buckets_of_keys_take_no_memory():
    shop = Workshop(rate_per_key=Rate(per_s=1000))
    for _ in range(3):
        shop.write(*(job("1", key=f"{seq}") for seq in range(1500)))
        for _ in range(2):
            shop.ack("w", *seqs(shop.claim("w", 1000)))
        shop.clock.advance(ms=5)
    assert len(shop.queue.buckets._full_ns) < 4500


def test_rate_is_reached_by_a_worker_that_claims_many_jobs_now_and_then():
    shop = Workshop(rate=Rate(per_s=1000))
    assert shop.topic.config.rate == Rate(per_s=1000, burst=100)
    assert Rate(per_s=3).burst == 1
    for _ in range(5):
        shop.write(*("1" for _ in range(100)))
    got = 0
    for _ in range(10):
        shop.clock.advance(ms=40)
        got += len(shop.claim("w", 100))
    assert 400 <= got <= 500


@pytest.mark.parametrize("rate", [Rate(per_s=0), Rate(per_s=-1), Rate(per_s=1e7), Rate(per_s=1, burst=10**7)])
@pytest.mark.parametrize("field", ["rate", "rate_per_key"])
def test_rate_is_checked(rate: Rate, field: str):
    shop = Workshop()
    with pytest.raises(TopicsError) as refused:
        shop.server.put(QUEUE, **{field: rate})
    assert refused.value.detail == {"field": field}
