"""Why deliveries of jobs failed: what is kept, for how long, and where it is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.queues.harness import QUEUE, Workshop, job, seqs
from tests.queues.test_staged import SlowShop
from topics.engine.state.jobs import reasons
from topics.engine.state.jobs.job import Holder
from topics.model.queue import JobError, Progress
from topics.model.topic import ConfigPatch

DEAD = "jobs.dead"
BOOM = JobError("ValueError", "boom", "line 1\nline 2")


def texts(one: dict[str, Any]) -> list[str]:
    return [reason["reason"] for reason in one.get("reasons", [])]


def test_claim_and_list_show_why_a_job_failed():
    shop = Workshop()
    shop.write("1", "2")
    shop.claim("w", 2)
    now = shop.clock.now_ms()
    shop.nack("w", 1, reason="no route", error=BOOM)
    expected = [
        {"at": now, "node": "w", "delivery": 1, "reason": "no route",
         "error": {"type": "ValueError", "message": "boom", "stack": "line 1\nline 2"}}
    ]  # fmt: skip
    first, second = shop.jobs()[0]
    assert first["reasons"] == expected
    assert "reasons" not in second
    [again] = shop.claim("v")
    assert (again["$seq"], again["reasons"]) == (1, expected)


def test_expired_lease_is_a_reason_with_its_worker_and_its_time():
    shop = Workshop()
    shop.write("1")
    shop.claim("worker-3", lease_ms=30_000)
    deadline = shop.clock.now_ms() + 30_000
    shop.clock.advance(ms=30_001)
    expected = [
        {"at": deadline, "node": "worker-3", "delivery": 1, "reason": "lease expired, held by worker-3 for 30 s"}
    ]
    assert shop.jobs()[0][0]["reasons"] == expected
    assert shop.claim("v")[0]["reasons"] == expected


def test_closed_stream_is_a_reason_and_an_undelivered_claim_is_none():
    shop = Workshop()
    shop.write("1")
    holder = Holder(lambda: None)
    shop.claim("w", holder=holder)
    shop.done(shop.server.engine.queues.release(shop.topic, holder))
    assert texts(shop.jobs()[0][0]) == ["the work stream was closed"]
    shop.claim("w")
    shop.done(shop.undo_claim())
    assert texts(shop.jobs()[0][0]) == ["the work stream was closed"]


def test_job_keeps_its_last_five_reasons_and_only_the_last_one_is_complete():
    shop = Workshop(leases_durable=True)
    shop.write("1")
    for number in range(7):
        shop.claim("w")
        shop.nack("w", 1, reason=f"{number}" * 300, error=BOOM)
    for one in (shop, shop.restart("keep")):
        [shown] = one.jobs()[0]
        assert [len(text) for text in texts(shown)] == [256, 256, 256, 256, 300]
        assert [reason["delivery"] for reason in shown["reasons"]] == [3, 4, 5, 6, 7]
        assert ["error" in reason for reason in shown["reasons"]] == [False] * 4 + [True]


def test_reasons_of_all_queues_stay_within_a_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reasons, "MAX_BYTES", 4_000)
    shop = Workshop()
    shop.write(*("1" for _ in range(9)))
    for seq in seqs(shop.claim("w", 9)):
        shop.nack("w", seq, reason="x" * 100)
    kept = [one["$seq"] for one in shop.jobs()[0] if "reasons" in one]
    assert kept == [6, 7, 8, 9]
    store = shop.topic.totals.reasons
    assert 0 < store.bytes <= 4_000
    shop.claim("w", 9)
    shop.ack("w", *range(1, 10))
    assert store.bytes == 0


def test_restart_changes_nothing_about_which_reasons_make_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reasons, "MAX_BYTES", 4_000)
    shop = Workshop(leases_durable=True, durability="fsync")
    shop.write(*("1" for _ in range(9)))
    shop.claim("w", 9)
    for seq in (4, 2, 3, 1):
        shop.clock.advance(ms=1)
        shop.nack("w", seq, delay_ms=5000 - seq, reason="x" * 100)
    shop.server.checkpoint()
    after = Workshop(shop.server.next(shop.server.disk.clone().crash("keep")))
    for one in (shop, after):
        one.nack("w", 5, reason="x" * 100)
        assert [row["$seq"] for row in one.jobs()[0] if "reasons" in row] == [1, 2, 3, 5]


def test_progress_takes_its_share_of_the_bound_and_gives_it_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reasons, "MAX_BYTES", 4_000)
    shop = Workshop()
    shop.write(*("1" for _ in range(9)))
    shop.claim("w", 9)
    shop.nack("w", 9, reason="x" * 100)
    store = shop.topic.totals.reasons
    only_reason = store.bytes
    for seq in range(1, 9):
        shop.extend("w", seq, lease_ms=None, progress=Progress(0.5, "x" * 100))
        shop.extend("w", seq, lease_ms=None, progress=Progress(0.6, "x" * 100))
    shown = {job["$seq"]: job["progress"]["share"] for job in shop.jobs("in_flight")[0] if "progress" in job}
    assert shown == dict.fromkeys(range(6, 9), 0.6)
    assert len(shop.jobs()[0][8]["reasons"]) == 1, "progress makes room first"
    assert store.bytes <= 4_000
    shop.ack("w", *range(1, 9))
    assert store.bytes == only_reason


def test_dead_letter_has_the_reason_and_the_history_and_a_redrive_removes_both():
    shop = Workshop(max_deliveries=2, dead_letter=DEAD)
    shop.write(job("1", meta='{"m":1}'))
    shop.claim("w", lease_ms=100)
    shop.clock.advance(ms=101)
    shop.claim("v")
    shop.nack("v", 1, reason="disk full")
    shop.claim("w")
    [letter] = [json.loads(row) for row in shop.server.walk(DEAD)[0]]
    assert letter["meta"]["$dead_letter_reason"] == "disk full"
    history = letter["meta"]["$dead_letter_history"]
    assert [(one["node"], one["delivery"], one["reason"]) for one in history] == [
        ("w", 1, "lease expired, held by w for 0.1 s"), ("v", 2, "disk full")
    ]  # fmt: skip
    assert shop.redrive().seqs == [1]
    [again] = shop.claim("w")
    assert (again["meta"], again["deliveries"], texts(again)) == ({"m": 1}, 1, [])


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_reasons_are_as_durable_as_leases(durable: bool, checkpoint: bool):
    shop = Workshop(leases_durable=durable, durability="fsync")
    shop.write("1", "2", "3")
    shop.claim("w", 3, lease_ms=100)
    shop.nack("w", 1, reason="first", error=BOOM)
    shop.clock.advance(ms=101)
    shop.claim("v", 2, lease_ms=60_000)  # 1 and 2; the lease of 3 has expired, and no entry says so
    if checkpoint:
        shop.server.checkpoint()
    after = shop.restart("lose")
    assert [texts(one) for one in after.jobs()[0]] == (
        [["first"], ["lease expired, held by w for 0.1 s"], ["lease expired, held by w for 0.1 s"]]
        if durable
        else [[], [], []]
    )
    assert after.jobs()[0] == shop.jobs()[0] or not durable


def test_switching_durable_leases_off_forgets_reasons_at_the_next_restart():
    shop = Workshop(leases_durable=True, durability="fsync")
    shop.write("1")
    shop.claim("w")
    shop.nack("w", 1, reason="first")
    shop.server.put(QUEUE, leases_durable=False)
    assert texts(shop.jobs()[0][0]) == ["first"]
    after = shop.restart("keep")
    assert texts(after.jobs()[0][0]) == []
    after.claim("w")
    after.nack("w", 1, reason="second")
    assert texts(after.jobs()[0][0]) == ["second"]


def test_switching_durable_leases_on_keeps_reasons_from_before():
    shop = Workshop(durability="fsync")
    shop.write("1")
    shop.claim("w")
    shop.nack("w", 1, reason="first")
    shop.server.put(QUEUE, leases_durable=True)
    shop.claim("w")
    shop.nack("w", 1, reason="second")
    assert texts(shop.restart("lose").jobs()[0][0]) == ["first", "second"]


# --- while entries wait for the log


def waiting_nack(shop: SlowShop, reason: str) -> Any:
    nack = shop.server.engine.queues.nack
    return shop.stage(nack(shop.topic, "w", [1], None, delay_ms=0, why=(reason, None)))


@pytest.mark.parametrize("deletes_first", [False, True])
def test_nack_with_a_reason_meets_a_delete_that_waits_for_its_sync(deletes_first: bool):
    shop = SlowShop(durability="fsync", leases_durable=True, written=True)
    shop.write("1", "2")
    shop.start_claim(max=1)
    shop.settle()
    tickets = [shop.start_delete("seqs", 1)] if deletes_first else []
    nacked = shop.server.engine.queues.nack(shop.topic, "w", [1], None, delay_ms=0, why=("late", None))
    if not deletes_first:
        tickets.append(shop.start_delete("seqs", 1))
    shop.settle()
    assert nacked.value().done == (not deletes_first)
    assert tickets[0].value().deleted == 1
    assert shop.topic.totals.reasons.bytes == 0
    assert shop.restart("keep").topic.totals.reasons.bytes == 0


def test_lease_that_ends_while_its_nack_waits_has_the_reason_of_the_nack():
    shop = SlowShop(durability="fsync", leases_durable=True, written=True)
    shop.write("1", "2")
    shop.start_claim(max=2)
    shop.settle()
    nacked = waiting_nack(shop, "slow")
    shop.clock.advance(ms=1001)
    assert texts(shop.jobs()[0][0]) == []
    assert not nacked.done
    shop.settle()
    expected = [["slow"], ["lease expired, held by w for 1 s"]]
    assert [texts(one) for one in shop.jobs()[0]] == expected
    after = shop.restart("keep")
    after.clock.set(ms=shop.clock.now_ms())
    assert [texts(one) for one in after.jobs()[0]] == expected


def test_reason_of_a_nack_that_the_log_refuses_is_not_kept():
    shop = SlowShop(durability="fsync", leases_durable=True)
    shop.write("1")
    shop.start_claim()
    shop.settle()
    shop.server.engine.queues.nack(shop.topic, "w", [1], None, delay_ms=0, why=("refused", None))
    shop.refuse()
    assert shop.topic.totals.reasons.bytes == 0
    shop.clock.advance(ms=1001)
    assert texts(shop.jobs()[0][0]) == ["lease expired, held by w for 1 s"]


def test_reason_is_kept_if_durable_leases_are_switched_on_while_its_nack_waits():
    shop = SlowShop(durability="fsync", leases_durable=True, written=True)
    shop.write("1")
    shop.start_claim()
    shop.settle()
    waiting_nack(shop, "waits")
    for durable in (False, True):
        shop.done(shop.server.engine.put_topic(QUEUE, ConfigPatch(leases_durable=durable)))
    assert texts(shop.jobs()[0][0]) == ["waits"]
