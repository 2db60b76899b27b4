"""Queues that give out no jobs, or only so many at a time, and jobs that are deleted while a worker holds them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.queues.harness import QUEUE, Workshop, job, seqs
from tests.queues.test_staged import SlowShop
from topics.engine.queue.verbs import Want
from topics.engine.state.jobs import leases
from topics.model.topic import ConfigPatch

DEAD = "jobs.dead"


def test_paused_queue_takes_jobs_and_gives_out_none():
    shop = Workshop(durability="fsync", leases_durable=True)
    shop.write("1", job("2", priority=3))
    [held] = shop.claim("w")
    shop.server.put(QUEUE, paused=True)
    shop.write("3")
    shop.nack("w", held["$seq"])
    assert shop.claim("w", 9) == []
    assert shop.counts == (3, 0, 0)
    after = shop.restart("lose")
    assert after.claim("w", 9) == []
    after.server.put(QUEUE, paused=False)
    assert seqs(after.claim("w", 9)) == [1, 2, 3]


def test_held_jobs_of_a_paused_queue_are_finished_and_exhausted_ones_move():
    shop = Workshop(max_deliveries=1, dead_letter=DEAD)
    shop.write("1", "2", "3")
    shop.claim("w", 3)
    shop.server.put(QUEUE, paused=True)
    assert (shop.ack("w", 1).done, shop.nack("w", 2).dead_lettered) == (1, 1)
    shop.clock.advance(ms=1001)
    assert shop.claim("w") == []
    assert shop.server.data(DEAD) == ["2", "3"]


def test_pause_that_waits_for_its_sync_comes_before_a_claim_of_the_same_turn():
    shop = SlowShop(durability="fsync", written=True)
    shop.write("1")
    woken: list[int] = []
    shop.queue.freed = lambda: woken.append(1)
    paused = shop.stage(shop.server.engine.put_topic(QUEUE, ConfigPatch(paused=True)))
    assert shop.start_claim()[0] == []
    assert paused.done
    woken.clear()
    shop.done(shop.server.engine.put_topic(QUEUE, ConfigPatch(paused=False)))
    assert woken, "clients that wait are served"
    assert shop.claim_all() == [1]


def test_workers_hold_as_many_jobs_as_the_queue_allows():
    shop = Workshop(max_in_flight=3)
    shop.write("1", "2", job("3", priority=1), "4", "5")
    first, second = shop.claims(Want(node="v", max=2, lease_ms=1000), Want(node="w", max=5, lease_ms=500))
    assert len(first) + len(second) == 3
    assert shop.claim("x", 9) == []
    woken: list[int] = []
    shop.queue.freed = lambda: woken.append(1)
    shop.ack("w", *seqs(second))
    assert woken, "an ack makes room"
    assert len(shop.claim("x", 9)) == len(second)
    shop.server.put(QUEUE, max_in_flight=1)
    assert shop.claim("x") == []
    shop.clock.advance(ms=1001)
    assert len(shop.claim("x", 9)) == 1


@pytest.mark.parametrize("durable", [False, True])
def test_worker_learns_that_its_job_was_cancelled(durable: bool):
    shop = Workshop(leases_durable=durable)
    shop.write(job("1", tag="t"), "2", "3")
    shop.claim("w", 2)
    shop.claim("v")
    shop.server.engine.delete_seqs(QUEUE, [1])
    shop.server.engine.flush()
    for verb, more in (("extend", {"lease_ms": 100}), ("nack", {}), ("ack", {})):
        answer = getattr(shop, verb)("w", 1, 2, 3, **more)
        assert (answer.cancelled, 1 in answer.skipped) == ([1], True), verb
    assert shop.ack("v", 1, 3).cancelled == []


def test_acked_moved_and_expired_jobs_are_not_cancelled():
    shop = Workshop(max_deliveries=1, dead_letter=DEAD)
    shop.write("1", "2", "3")
    shop.claim("w", 3)
    shop.ack("w", 1)
    shop.nack("w", 2)
    shop.clock.advance(ms=1001)
    shop.move_exhausted()
    assert shop.ack("w", 1, 2, 3).cancelled == []


@pytest.mark.parametrize("checkpoint", [False, True])
def test_restart_knows_which_held_jobs_were_cancelled_and_which_were_done(checkpoint: bool):
    shop = Workshop(leases_durable=True, durability="fsync", max_deliveries=1, dead_letter=DEAD)
    shop.write("1", "2", "3", "4")
    shop.claim("w", 3, lease_ms=60_000)
    shop.claim("w")
    shop.ack("w", 1)
    shop.nack("w", 2)
    shop.server.engine.delete_seqs(QUEUE, [3])
    shop.server.engine.flush()
    shop.clock.advance(ms=1001)
    shop.move_exhausted()
    if checkpoint:
        shop.server.checkpoint()
    after = shop.restart("lose")
    assert after.queue.dead_lettered == 2
    answer = after.ack("w", 1, 2, 3, 4)
    assert (answer.cancelled, answer.skipped) == ([3], [1, 2, 3, 4])


def test_few_cancelled_jobs_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(leases, "CANCELLED_MAX", 2)
    shop = Workshop()
    shop.write(*("1" for _ in range(5)))
    shop.claim("w", 5)
    shop.server.delete(QUEUE, before_seq=6)
    answer: Any = shop.ack("w", *range(1, 6))
    assert answer.cancelled == [4, 5]
