"""Unique jobs: a second one with the same key is not stored while the first is pending, or for a time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.queues.harness import QUEUE, Workshop, job, seqs
from tests.queues.test_restart import WAYS
from tests.queues.test_staged import SlowShop
from topics.engine.state.jobs import unique as unique_jobs
from topics.errors import Code, TopicsError
from topics.model.records import Unique, WriteRequest

DEAD = "jobs.dead"


def write(shop: Workshop, key: str = "k", for_: Any = "pending", **terms: Any) -> tuple[int, bool]:
    ticket = shop.server.engine.append(QUEUE, WriteRequest([job("1", unique=Unique(key, for_), **terms)]))
    done = shop.done(ticket)
    return done.first, done.deduped


# --- while other entries wait


def test_two_writes_of_one_turn_store_one_job():
    shop = SlowShop(durability="fsync", written=True)
    first, second = (
        shop.stage(shop.server.engine.append(QUEUE, WriteRequest([job("1", unique=Unique("k"))]))) for _ in range(2)
    )
    assert not second.done
    shop.settle()
    assert (first.value().first, first.value().deduped) == (1, False)
    assert (second.value().first, second.value().deduped) == (1, True)
    assert shop.topic.staged_keys == {}
    assert shop.counts == (1, 0, 0)


def test_refused_write_leaves_no_key():
    shop = SlowShop(durability="disk")
    first, second = (shop.server.engine.append(QUEUE, WriteRequest([job("1", unique=Unique("k"))])) for _ in range(2))
    shop.refuse()
    for ticket in (first, second):
        assert ticket.error is not None
    assert shop.topic.staged_keys == {}
    assert write(shop) == (1, False)


def test_job_counts_until_its_ack_is_durable():
    shop = SlowShop(durability="fsync", written=True)
    write(shop)
    shop.start_claim()
    ack = shop.start_ack(1)
    twin = shop.server.engine.append(QUEUE, WriteRequest([job("1", unique=Unique("k"))]))
    assert twin.value().deduped
    shop.done(ack)
    assert write(shop) == (2, False)


# --- pending


def test_second_job_with_a_key_is_not_stored_while_the_first_is_pending():
    shop = Workshop(max_deliveries=2, dead_letter=DEAD)
    assert write(shop) == (1, False)
    assert (write(shop), write(shop, "other")) == ((1, True), (2, False))
    shop.claim("w", 9)
    assert write(shop, priority=3) == (1, True), "it is leased"
    shop.nack("w", 1, delay_ms=10)
    assert write(shop) == (1, True), "it is delayed"
    shop.clock.advance(ms=10)
    shop.claim("w", 9)
    shop.nack("w", 1)
    assert write(shop) == (3, False), "it is a dead letter"
    shop.redrive()
    assert write(shop) == (3, True)


@pytest.mark.parametrize("gone", ["ack", "delete", "trim", "cap", "ttl"])
def test_key_is_free_once_its_job_has_left(gone: str):
    shop = Workshop(cap_records=2 if gone == "cap" else 0, ttl_ms=1000 if gone == "ttl" else 0)
    write(shop)
    shop.write("2")
    if gone == "ack":
        shop.claim("w")
        shop.ack("w", 1)
    elif gone == "delete":
        shop.done(shop.server.engine.delete_seqs(QUEUE, [1]))
    elif gone == "trim":
        shop.server.delete(QUEUE, before_seq=2)
    elif gone == "cap":
        shop.write("3")
    else:
        shop.clock.advance(ms=1001)
    assert write(shop)[1] is False
    assert len(shop.queue.unique.pending) == 1


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_keys_survive_a_restart(how: str, checkpoint: bool):
    shop = Workshop(durability="fsync")
    write(shop, "a")
    write(shop, "b")
    write(shop, "c", 5000)
    if checkpoint:
        shop.server.checkpoint()
    shop.claim("w", 9)
    shop.ack("w", 1, 3)
    after = shop.restart(how)
    assert [write(after, key) for key in "abc"] == [(4, False), (2, True), (3, True)]
    after.clock.advance(ms=5001)
    assert write(after, "c") == (5, False)


def test_key_of_a_lost_record_is_free():
    shop = Workshop(durability="memory")
    write(shop)
    write(shop, "t", 60_000)
    after = shop.restart("lose")
    assert [write(after, key)[1] for key in "kt"] == [False, False]


# --- for a time


def test_write_that_was_not_stored_uses_up_no_idempotency_key():
    shop = Workshop()
    write(shop)

    def repeat() -> tuple[int, bool]:
        request = WriteRequest([job("1", unique=Unique("k"))], idempotency_key="i")
        done = shop.done(shop.server.engine.append(QUEUE, request))
        return done.first, done.deduped

    assert repeat() == (1, True)
    shop.claim("w")
    shop.ack("w", 1)
    assert repeat() == (2, False)
    shop.claim("w")
    shop.ack("w", 2)
    assert repeat() == (2, True), "now it was stored"


def test_key_for_a_time_outlives_its_job():
    shop = Workshop()
    write(shop, for_=1000)
    shop.claim("w")
    shop.ack("w", 1)
    shop.clock.advance(ms=1000)
    assert write(shop, for_=1000) == (1, True)
    shop.clock.advance(ms=1)
    assert write(shop, for_=1000) == (2, False)
    assert write(shop) == (2, True)


def test_few_keys_are_kept_for_a_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unique_jobs, "TIMED_MAX", 2)
    shop = Workshop()
    for key in "abc":
        write(shop, key, 1000 + ord(key))
    assert [write(shop, key, 1000)[1] for key in "cb"] == [True, True]
    assert write(shop, "a")[1] is False


# --- requests


@pytest.mark.parametrize(
    ("unique", "field"),
    [
        (Unique(""), "records[0].unique.key"),
        (Unique("x" * 257), "records[0].unique.key"),
        (Unique("k", 0), "records[0].unique.for"),
        (Unique("k", 2**60), "records[0].unique.for"),
    ],
)
def test_unique_is_checked(unique: Unique, field: str):
    shop = Workshop()
    with pytest.raises(TopicsError) as refused:
        shop.write(job(unique=unique))
    assert refused.value.detail["field"] == field  # type: ignore[index]


def test_unique_job_is_alone_in_its_write_and_in_a_queue():
    shop = Workshop()
    with pytest.raises(TopicsError) as refused:
        shop.write(job(unique=Unique("k")), "2")
    assert refused.value.code is Code.INVALID_REQUEST
    shop.server.put("log")
    with pytest.raises(TopicsError) as refused:
        shop.server.engine.append("log", WriteRequest([job(unique=Unique("k"))]))
    assert refused.value.code is Code.INVALID_REQUEST
    assert seqs(shop.claim("w", 9)) == []
