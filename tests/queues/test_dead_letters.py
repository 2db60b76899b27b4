"""Jobs that were delivered too often: where they go, what is said about them, and how they come back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.queues.harness import QUEUE, Workshop, job, seqs
from tests.queues.test_staged import SlowShop
from topics.engine.queue.verbs import Want
from topics.errors import TopicsError
from topics.model.records import TagMatch

DEAD = "jobs.dead"


def wear_out(shop: Workshop, times: int, max: int = 10) -> None:
    """Every job that there is goes out so often and comes back, and is then asked for once more."""
    for _ in range(times):
        got = shop.claim("w", max)
        if got:
            shop.nack("w", *seqs(got))
    shop.claim("last", max)


def letters(shop: Workshop, name: str = DEAD) -> list[Any]:
    return [json.loads(row) for row in shop.server.walk(name)[0]]


def test_a_job_delivered_too_often_moves_with_its_history():
    shop = Workshop(max_deliveries=2, dead_letter=DEAD)
    shop.write(job('{"a": 1.50}', tag="t", meta='{"trace":"z"}'), job("2"))
    wear_out(shop, 2)
    assert shop.server.data(QUEUE) == []
    first, second = letters(shop)
    assert first["meta"] == {
        "trace": "z", "$dead_letter_from": QUEUE, "$dead_letter_deliveries": 2, "$dead_letter_src_seq": 1
    }  # fmt: skip
    assert second["meta"]["$dead_letter_src_seq"] == 2
    assert shop.server.data(DEAD) == ['{"a": 1.50}', "2"]
    assert shop.queue.dead_lettered == 2
    assert shop.counts == (0, 0, 0)
    assert shop.server.engine.topic(DEAD).pending == shop.topic.pending == 0


@pytest.mark.parametrize("config", [{"max_deliveries": 2}, {"dead_letter": DEAD}])
def test_job_without_a_dead_letter_topic_is_delivered_for_ever(config: dict[str, Any]):
    shop = Workshop(**config)
    shop.write("1")
    for times in range(1, 10):
        [got] = shop.claim("w")
        assert got["deliveries"] == times
        shop.nack("w", 1)
    assert DEAD not in shop.server.engine.topics


def test_dead_letters_of_a_queue_can_be_jobs_of_the_next():
    shop = Workshop(max_deliveries=1, dead_letter="second")
    shop.server.put("second", type="queue", max_deliveries=1, dead_letter=DEAD)
    shop.write(job("1", priority=4, tag="t"))
    wear_out(shop, 1)
    topic = shop.server.engine.queues.get("second")
    for _ in range(2):
        [claimed], _ = shop.server.engine.queues.claim(topic, [Want(node="w", max=1, lease_ms=100)])
        if claimed.jobs:
            assert claimed.jobs[0].priority == 4
            shop.server.engine.queues.nack(topic, "w", [1], None, delay_ms=0)
        shop.server.engine.flush()
    [letter] = letters(shop)
    assert letter["meta"] == {
        "$dead_letter_from": "second", "$dead_letter_deliveries": 1, "$dead_letter_src_seq": 1
    }  # fmt: skip


@pytest.mark.parametrize(
    ("prepare", "code"),
    [
        (lambda shop: shop.server.put(DEAD, cap_records=1, discard="reject"), "topic_full"),
        (lambda shop: shop.server.put(QUEUE, auto_create=False), "topic_not_found"),
    ],
)
def test_blocked_dead_letters_stay_and_the_queue_reports_why(prepare: Any, code: str):
    shop = Workshop(max_deliveries=1, dead_letter=DEAD)
    prepare(shop)
    shop.write("1", "2", "3")
    wear_out(shop, 1)
    moved = 1 if code == "topic_full" else 0
    assert shop.queue.dead_letter_error == code
    assert shop.queue.dead_lettered == moved
    assert shop.topic.count == 3 - moved
    assert shop.counts == (0, 0, 3 - moved)

    shop.server.put(DEAD, cap_records=0)
    shop.clock.advance(ms=1000)
    assert shop.claim("w", 10) == []
    assert shop.queue.dead_letter_error is None
    assert sorted(shop.server.data(DEAD)) == ["1", "2", "3"]
    assert shop.counts == (0, 0, 0)


def test_dead_letter_that_never_fits_does_not_block_the_others():
    shop = Workshop(max_deliveries=1, dead_letter=DEAD)
    shop.server.put(DEAD, cap_bytes=2000)
    shop.write(json.dumps("x" * 2000), "2", "3", "4")
    shop.claim("w", 4)
    assert shop.nack("w", 1, 2, 3, 4).dead_lettered == 3
    assert shop.server.data(DEAD) == ["2", "3", "4"]
    assert (shop.queue.dead_letter_error, shop.counts) == ("record_too_large", (0, 0, 1))


@pytest.mark.parametrize("how", ["stop", "keep", "lose", "tear"])
def test_a_move_survives_a_crash_whole(how: str):
    shop = Workshop(max_deliveries=1, dead_letter=DEAD, durability="fsync")
    shop.write("1", "2", "3")
    wear_out(shop, 1, max=2)
    assert shop.queue.dead_lettered == 2
    after = shop.restart(how)
    assert after.queue.dead_lettered == 2
    assert after.server.data(DEAD) == ["1", "2"]
    assert after.server.data(QUEUE) == ["3"]


def test_move_after_a_nack_that_a_checkpoint_ends_counts_once():
    """The nack takes effect when the checkpoint begins, and stages the move: the old log has both."""
    shop = SlowShop(durability="fsync", leases_durable=True, max_deliveries=1, dead_letter=DEAD, written=True)
    shop.write("1")
    shop.start_claim()
    shop.settle()
    nacked = shop.stage(shop.server.engine.queues.nack(shop.topic, "w", [1], None))
    assert not nacked.done
    assert shop.server.begin_checkpoint(topics=0)
    shop.settle()
    shop.server.steps.release()
    assert nacked.value().dead_lettered == 1
    after = shop.restart("keep")
    assert (after.queue.dead_lettered, after.server.data(DEAD)) == (1, ["1"])


def test_redrive_brings_dead_letters_back_as_if_never_delivered():
    shop = Workshop(max_deliveries=1, dead_letter=DEAD)
    shop.write(job("1", tag="x", meta='{"m":1}'), job("2", tag="y"), job("3", tag="x", priority=6))
    wear_out(shop, 1)
    dry = shop.redrive(match=TagMatch("Eq", "x"), dry_run=True)
    assert len(dry.seqs) == 2
    assert shop.counts == (0, 0, 0)

    done = shop.redrive(match=TagMatch("Eq", "x"))
    assert done.seqs == dry.seqs
    assert done.caught_up
    assert shop.server.data(DEAD) == ["2"]
    got = shop.claim("w", 10)
    assert [(one["data"], one["deliveries"], one.get("meta")) for one in sorted(got, key=lambda one: one["data"])] == [
        (1, 1, {"m": 1}), (3, 1, None)
    ]  # fmt: skip
    priority = {one["$seq"]: one["priority"] for one in shop.jobs()[0]}
    assert priority[next(one["$seq"] for one in got if one["data"] == 3)] == 6
    assert shop.server.engine.topic(DEAD).pending == shop.topic.pending == 0


def test_redrive_takes_seqs_and_leaves_what_others_sent_there():
    shop = Workshop(max_deliveries=1, dead_letter=DEAD)
    shop.write("1", "2", "3")
    wear_out(shop, 1)
    shop.server.append(DEAD, "99")
    assert shop.redrive(seqs=[2, 2, 4, 77]).seqs == [2]
    assert shop.redrive(limit=1).seqs == [1]
    assert shop.redrive().seqs == [3]
    assert shop.redrive().seqs == []
    assert shop.server.data(DEAD) == ["99"]


def test_redrive_into_a_full_queue_moves_nothing():
    shop = Workshop(max_deliveries=1, dead_letter=DEAD, cap_records=2, discard="reject")
    shop.write("1", "2")
    wear_out(shop, 1)
    shop.write("3")
    with pytest.raises(TopicsError) as refused:
        shop.redrive()
    assert refused.value.code.wire == "topic_full"
    assert shop.server.data(DEAD) == ["1", "2"]
    assert shop.server.data(QUEUE) == ["3"]


def test_redrive_needs_a_dead_letter_topic():
    shop = Workshop()
    for wanted in ({}, {"dead_letter": QUEUE}):
        with pytest.raises(TopicsError, match="dead_letter"):
            shop.redrive(**wanted)
    with pytest.raises(TopicsError, match="does not exist"):
        shop.redrive(dead_letter="nowhere")


def test_redrive_leaves_dead_letters_that_a_worker_holds():
    shop = Workshop(max_deliveries=1, dead_letter=DEAD)
    shop.server.put(DEAD, type="queue")
    shop.write("1", "2")
    wear_out(shop, 1)
    dead = shop.server.engine.queues.get(DEAD)
    shop.server.engine.queues.claim(dead, [Want(node="w", max=1, lease_ms=1000)])
    assert shop.redrive().seqs == [2]
    assert dead.queue is not None
    assert (dead.queue.ready, dead.queue.in_flight) == (0, 1)


def test_redrive_larger_than_the_queue_is_refused_for_good():
    shop = Workshop(max_deliveries=1, dead_letter=DEAD)
    shop.write("1", "2", "3")
    wear_out(shop, 1)
    shop.server.put(QUEUE, cap_records=2, discard="reject")
    with pytest.raises(TopicsError) as refused:
        shop.redrive()
    assert refused.value.code.wire == "batch_too_large"
    assert shop.server.data(DEAD) == ["1", "2", "3"]
    assert shop.redrive(limit=2).seqs == [1, 2]
