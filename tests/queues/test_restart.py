"""What a queue remembers of its workers when the server comes back."""

from __future__ import annotations

import pytest

from tests.queues.harness import Workshop, job, seqs

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
