"""Jobs with keys: in the order of the log, one at a time, whatever becomes of their leases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.queues.harness import QUEUE, Workshop, job, seqs
from tests.queues.test_restart import WAYS
from tests.queues.test_staged import HOW, SlowShop
from tests.routers.test_forwarding import forward, route
from topics.engine.queue import pick
from topics.errors import TopicsError
from topics.model.records import Projection, TagMatch

DEAD = "jobs.dead"
WITH_TAGS = Projection(tags=True)


def keyed(*keys: str, **terms: Any) -> list[Any]:
    return [job("1", key=key, **terms) for key in keys]


def drain(shop: Workshop) -> list[int]:
    """Claim and ack until nothing is left. Return the seqs in this order."""
    order: list[int] = []
    while got := seqs(shop.claim("last", 9)):
        shop.ack("last", *got)
        order += got
    return order


# --- while other entries wait


def test_next_job_of_a_key_waits_until_the_ack_is_durable():
    shop = SlowShop(durability="fsync", written=True)
    shop.write(*keyed("a", "a"))
    assert shop.start_claim()[0] == [1]
    ack = shop.start_ack(1)
    assert shop.start_claim()[0] == [], "the ack waits for its sync"
    shop.settle()
    assert ack.value().done == 1
    assert shop.start_claim()[0] == [2]


def test_refused_ack_keeps_the_turn_of_its_key():
    shop = SlowShop(durability="disk")
    shop.write(*keyed("a", "a", "b"))
    assert shop.start_claim(max=9)[0] == [1, 3]
    shop.start_ack(1)
    shop.refuse()
    assert shop.claim_all() == []
    assert shop.done(shop.start_ack(1)).done == 1
    assert shop.claim_all() == [2]


@HOW
def test_pending_delete_of_a_job_keeps_its_key(how: str):
    shop = SlowShop(durability="fsync", written=True)
    shop.write(job("1", key="a", tag="t1"), *keyed("a"))
    shop.start_delete(how, 1)
    assert shop.start_claim()[0] == [], "the log may refuse the delete"
    shop.settle()
    assert shop.claim_all() == [2]


def test_claim_that_the_log_refuses_or_its_client_leaves_keeps_the_order():
    shop = SlowShop(durability="disk", leases_durable=True)
    shop.write(*keyed("a", "a"))
    assert shop.start_claim()[0] == [1]
    shop.refuse()
    assert shop.start_claim()[0] == [1]
    shop.settle()
    shop.undo_claim()
    shop.settle()
    assert shop.claim_all() == [1]


def test_waiting_clients_learn_that_a_key_is_free():
    shop = Workshop()
    shop.write(*keyed("a", "a"))
    shop.claim("w")
    woken: list[int] = []
    shop.queue.freed = lambda: woken.append(1)
    shop.ack("w", 1)
    assert woken


# --- order


def test_jobs_of_a_key_come_one_at_a_time_and_block_no_other_key():
    shop = Workshop()
    shop.write(*keyed("a", "a", "b", "a"), "5", *keyed("b"))
    got = shop.claim("w", 9)
    assert [(one["$seq"], one.get("$key")) for one in got] == [(1, "a"), (3, "b"), (5, None)]
    assert shop.claim("v", 9) == []
    assert shop.counts == (3, 3, 0), "blocked jobs are ready"
    shop.ack("w", 1)
    assert seqs(shop.claim("v", 9)) == [2]
    shop.ack("w", 3, 5)
    shop.ack("v", 2)
    assert drain(shop) == [4, 6]
    assert not shop.queue.keys._lines


@pytest.mark.parametrize("durable", [False, True])
def test_failed_job_keeps_the_turn_of_its_key(durable: bool):
    shop = Workshop(durability="fsync", leases_durable=durable)
    shop.write(*keyed("a", "a"))
    shop.claim("w")
    shop.nack("w", 1, delay_ms=500)
    assert shop.claim("w", 9) == []
    shop.clock.advance(ms=500)
    assert seqs(shop.claim("w", 9, lease_ms=100)) == [1]
    shop.clock.advance(ms=101)
    assert seqs(shop.claim("v", 9)) == [1], "the lease has expired"
    shop.nack("v", 1)
    assert drain(shop) == [1, 2]


def test_delayed_job_holds_back_later_ones_of_its_key():
    shop = Workshop()
    shop.write(*keyed("a", delay_ms=100), *keyed("a", "a", priority=9), *keyed("a", delay_ms=100))
    assert shop.counts == (3, 0, 1)
    assert shop.claim("w", 9) == []
    shop.clock.advance(ms=100)
    assert drain(shop) == [1, 2, 3, 4]


def test_exhausted_job_moves_with_its_key_and_comes_back_behind_the_others():
    shop = Workshop(max_deliveries=1, dead_letter=DEAD)
    shop.write(*keyed("a", "a", "b", "a"))
    shop.claim("w", 9)
    shop.nack("w", 1, 3)
    [letter, _] = [json.loads(row) for row in shop.server.walk(DEAD, projection=WITH_TAGS)[0]]
    assert letter["$key"] == "a"
    assert seqs(shop.claim("w", 9)) == [2]
    shop.redrive()
    assert shop.claim("v", 9)[0]["$key"] == "b"
    shop.ack("w", 2)
    shop.ack("v", 6)
    assert drain(shop) == [4, 5]


@pytest.mark.parametrize("gone", ["seqs", "tag", "trim", "cap", "ttl"])
def test_jobs_that_are_removed_free_their_key(gone: str):
    shop = Workshop(cap_records=4 if gone == "cap" else 0, ttl_ms=1000 if gone == "ttl" else 0)
    shop.write(*keyed("a", "a", tag="t"))
    shop.clock.advance(ms=500)
    shop.write(*keyed("a", "a"))
    assert seqs(shop.claim("w", 9)) == [1]
    if gone == "seqs":
        shop.done(shop.server.engine.delete_seqs(QUEUE, [1, 2]))
    elif gone == "cap":
        shop.write(*keyed("b", "b"))
    elif gone == "ttl":
        shop.clock.advance(ms=501)
    else:
        shop.server.delete(QUEUE, **{"match": TagMatch("Eq", "t")} if gone == "tag" else {"before_seq": 3})
    assert drain(shop)[:1] == [3]
    assert shop.counts == (0, 0, 0)


# --- restarts


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_order_of_keys_survives_a_restart(how: str, checkpoint: bool, durable: bool):
    shop = Workshop(durability="fsync", leases_durable=durable)
    shop.write(*keyed("a", "a", "b", "b", "a"), *keyed("c", "c", delay_ms=50))
    shop.claim("w", 9)
    shop.ack("w", 1)
    shop.nack("w", 3, delay_ms=200)
    shop.claim("w", 9)
    shop.server.delete(QUEUE, match=TagMatch("Eq", "none"))
    if checkpoint:
        shop.server.checkpoint()
    shop.write(*keyed("b"))
    after = shop.restart(how)
    assert seqs(after.claim("v", 9)) == ([] if durable else [2, 3])
    after.clock.advance(ms=1001)
    order = drain(after)
    assert [seq for seq in order if seq in (2, 5)] == [2, 5]
    assert [seq for seq in order if seq in (3, 4, 8)] == [3, 4, 8]
    assert [seq for seq in order if seq in (6, 7)] == [6, 7]


def test_replay_leases_a_job_whose_predecessor_had_expired():
    shop = Workshop(durability="fsync", leases_durable=True, ttl_ms=1000)
    shop.write(*keyed("a"))
    shop.clock.advance(ms=600)
    shop.write(*keyed("a", "a"))
    shop.clock.advance(ms=401)
    [got] = shop.claim("w", lease_ms=10_000)
    assert got["$seq"] == 2
    after = shop.restart()
    assert after.claim("v", 9) == []
    after.ack("w", 2)
    assert seqs(after.claim("v", 9)) == [3]


def test_queue_that_forgets_its_leases_keeps_its_keys():
    shop = Workshop(durability="fsync", leases_durable=True)
    shop.write(*keyed("a", "a", "b"))
    shop.claim("w", 9)
    shop.server.put(QUEUE, leases_durable=False)
    after = shop.restart()
    assert seqs(after.claim("v", 9)) == [1, 3]


# --- limits


def test_more_jobs_of_a_key_are_held_if_the_queue_says_so():
    shop = Workshop(max_in_flight_per_key=2)
    shop.write(*keyed("a", "a", "a", "a", priority=3))
    assert seqs(shop.claim("w", 9)) == [1, 2]
    shop.server.put(QUEUE, max_in_flight_per_key=0)
    assert seqs(shop.claim("w", 9)) == [3, 4]


def test_lower_limit_blocks_jobs_that_were_not_delivered():
    shop = Workshop(max_in_flight_per_key=0)
    shop.write(*keyed("a", "a"), *keyed("a", delay_ms=10), *keyed("a", "b"))
    shop.claim("w", 1)
    shop.server.put(QUEUE, max_in_flight_per_key=1)
    assert seqs(shop.claim("w", 9)) == [5]
    assert shop.counts == (3, 2, 0)
    shop.ack("w", 1, 5)
    shop.clock.advance(ms=10)
    assert drain(shop) == [2, 3, 4]


def test_lower_limit_keeps_the_order_and_leaves_no_blocked_job_to_the_next_claim():
    shop = Workshop(max_in_flight_per_key=0)
    shop.write(*keyed(*"ab" * 200))
    shop.server.put(QUEUE, max_in_flight_per_key=3)
    shop.server.put(QUEUE, max_in_flight_per_key=1)
    assert shop.queue.by_priority[0].seqs.tolist() == [1, 2]
    assert drain(shop) == [*range(1, 401)]


# --- cost


def test_claim_looks_at_no_blocked_job():
    shop = Workshop()
    for _ in range(10):
        shop.write(*keyed("a") * 1000)
    topic, queue = shop.topic, shop.queue
    taken = pick.Pass(topic, queue, 9)
    assert ([one.seq for one in taken.jobs], taken._examined) == ([1], 0)
    taken.undo()
    shop.claim("w")
    assert (pick.Pass(topic, queue, 9).jobs, pick.Pass(topic, queue, 9)._examined) == ([], 0)
    after = shop.restart("stop")
    assert len(queue.keys.blocked) == len(after.queue.keys.blocked) == 9999
    assert [one.seq for one in pick.Pass(after.topic, after.queue, 9).jobs] == [1]
    assert pick.Pass(after.topic, after.queue, 9)._examined <= 2 * pick.EXAMINE_MAX


# --- reading


def test_readers_and_routers_get_the_key():
    shop = Workshop()
    server = shop.server
    for name, kind in (("log", "log"), ("copies", "queue")):
        server.put(name, type=kind)
    route(server, "log", "copies")
    route(server, QUEUE, "log")
    shop.write(*keyed("a", 'ä"', priority=3), job("3", tag="t"))
    forward(server)
    for name in (QUEUE, "log", "copies"):
        rows = [json.loads(row) for row in server.walk(name, projection=WITH_TAGS)[0]]
        assert [row.get("$key") for row in rows] == ["a", 'ä"', None], name
        assert "$key" not in json.loads(server.walk(name)[0][0])
    assert server.engine.topic("copies").queue.keys.open.keys() == {1, 2}  # type: ignore[union-attr]
    assert [one.get("$key") for one in shop.jobs()[0]] == ["a", 'ä"', None]


@pytest.mark.parametrize("key", ["", "x" * 257])
def test_key_has_1_to_256_bytes(key: str):
    shop = Workshop()
    with pytest.raises(TopicsError) as refused:
        shop.write(job(key=key))
    assert refused.value.detail["field"] == "records[0].key"  # type: ignore[index]
    assert shop.counts == (0, 0, 0)
