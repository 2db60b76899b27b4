"""Acks of one turn to one topic share an entry of the log."""

from __future__ import annotations

from typing import Any

import pytest

from tests.queues.harness import QUEUE, Workshop
from tests.queues.test_staged import CLASSES, SlowShop
from tests.simulated.harness import request
from topics.engine.queue import acks
from topics.engine.write.commit import Ticket
from topics.errors import TopicsError
from topics.model.router import RouterRequest


def shop_with_leases(jobs: int = 6, *, written: bool = False, **config: Any) -> SlowShop:
    """A queue whose jobs are held in pairs by the workers a, b, c, and so on."""
    shop = SlowShop(written=written, **config)
    shop.write(*["1"] * jobs)
    for node in "abcdefgh"[: jobs // 2]:
        shop.start_claim(node, 2)
        shop.settle()
    return shop


def ack(shop: Workshop, node: str, *seqs: int) -> Ticket:
    return shop.server.engine.queues.ack(shop.server.engine.topics[QUEUE], node, list(seqs), None)


def staged(shop: Workshop) -> int:
    return len(shop.server.engine.commits._staged)


@pytest.mark.parametrize("leases_durable", [False, True])
@pytest.mark.parametrize("durability", CLASSES)
def test_acks_of_one_turn_share_an_entry_and_each_has_its_outcome(durability: str, leases_durable: bool):
    shop = shop_with_leases(durability=durability, leases_durable=leases_durable)
    last, first, mixed = ack(shop, "c", 6, 5), ack(shop, "a", 1), ack(shop, "b", 4, 4, 1, 9)
    assert (staged(shop), last.done, mixed.done) == (1, False, False)
    shop.settle()
    outcomes = [ticket.value() for ticket in (last, first, mixed)]
    assert [(one.node, one.done, one.skipped) for one in outcomes] == [
        ("c", 2, []), ("a", 1, []), ("b", 1, [4, 1, 9]),
    ]  # fmt: skip
    assert {(one.ready, one.in_flight) for one in outcomes} == {(0, 2)}
    assert (shop.counts, shop.server.engine.queues.acks.total) == ((0, 2, 0), 4)
    if durability != "ephemeral":
        after = shop.restart("keep")
        assert sum(after.counts) == 2
        after.clock.advance(ms=2000)
        assert [one["$seq"] for one in after.claim("x", 9)] == [2, 3]


def test_next_turn_begins_another_entry():
    shop = shop_with_leases(durability="fsync", written=True)
    first = shop.stage(ack(shop, "a", 1))
    second = ack(shop, "b", 3)
    assert (first.done, staged(shop)) == (False, 1)
    shop.settle()
    assert (first.value().done, second.value().done) == (1, 1)


def test_refused_entry_returns_the_jobs_of_all_its_acks_to_their_workers():
    shop = shop_with_leases()
    tickets = [ack(shop, "a", 1, 2), ack(shop, "b", 3), ack(shop, "c", 5)]
    shop.refuse()
    for ticket in tickets:
        with pytest.raises(TopicsError):
            ticket.value()
    assert shop.counts == (0, 6, 0)
    again = [ack(shop, "c", 5, 6), ack(shop, "a", 1, 2)]
    shop.settle()
    assert [ticket.value().done for ticket in again] == [2, 2]


def test_acks_of_an_fsync_queue_wait_for_the_same_sync_and_are_lost_with_it():
    shop = shop_with_leases(durability="fsync")
    tickets = [ack(shop, "a", 1), ack(shop, "b", 3)]
    shop.server.engine.flush()
    assert not any(ticket.done for ticket in tickets)
    assert sum(shop.restart("lose").counts) == 6


@pytest.mark.parametrize("entry", ["append", "delete"])
def test_entry_of_the_topic_in_between_ends_the_sharing(entry: str):
    shop = shop_with_leases()
    engine = shop.server.engine
    first = ack(shop, "a", 1)
    between = engine.append(QUEUE, request("1")) if entry == "append" else engine.delete_seqs(QUEUE, [3])
    second, third = ack(shop, "b", 3, 4), ack(shop, "c", 5)
    assert staged(shop) == 3
    shop.settle()
    assert between.error is None
    skipped = [] if entry == "append" else [3]
    assert [ticket.value().skipped for ticket in (first, second, third)] == [[], skipped, []]


def test_append_does_not_follow_an_ack():
    shop = shop_with_leases()
    acked, landed = ack(shop, "a", 1), shop.server.engine.append(QUEUE, request("1"))
    shop.settle()
    assert (acked.value().done, landed.value().first) == (1, 7)


def test_job_that_an_earlier_write_evicts_is_skipped_in_its_own_ack_alone():
    shop = shop_with_leases(cap_records=6)
    shop.server.engine.append(QUEUE, request("1"))
    tickets = [ack(shop, "a", 1, 2), ack(shop, "b", 3, 4)]
    shop.settle()
    assert [(one.value().done, one.value().skipped) for one in tickets] == [(1, [1]), (2, [])]
    assert shop.server.engine.queues.acks.total == 3


def test_record_does_not_expire_between_the_acks_of_one_entry():
    shop = shop_with_leases(ttl_ms=500)
    shop.clock.advance(ms=500)
    first = ack(shop, "a", 1)
    shop.clock.advance(ms=1)
    second = ack(shop, "b", 3)
    shop.settle()
    assert (staged(shop), first.value().done, second.value().done) == (0, 1, 1)


def test_entry_has_a_limited_number_of_acks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(acks, "SHARED_MAX", 1)
    shop = shop_with_leases()
    tickets = [ack(shop, "a", 1, 2), ack(shop, "b", 3, 4), ack(shop, "c", 5)]
    assert staged(shop) == 2
    shop.settle()
    assert [ticket.value().done for ticket in tickets] == [2, 2, 1]


def test_acks_share_an_entry_in_a_topic_with_a_router():
    shop = shop_with_leases()
    shop.put("copy")
    shop.done(shop.server.engine.routers.put("r", RouterRequest(source=QUEUE, dest="copy")))
    tickets = [ack(shop, "a", 1), ack(shop, "b", 3)]
    shop.settle()
    assert [ticket.value().done for ticket in tickets] == [1, 1]
    assert sum(shop.restart("keep").counts) == 4
