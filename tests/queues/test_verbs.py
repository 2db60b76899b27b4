"""What workers may count on, on simulated time."""

from __future__ import annotations

import sys

import pytest

from tests.queues.harness import QUEUE, Workshop, job, seqs
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.engine.queue import pick
from topics.engine.queue.verbs import Want, divide
from topics.engine.state.jobs.job import Holder, Job
from topics.engine.write.commit import Ticket
from topics.errors import TopicsError
from topics.model.records import TagMatch, WriteRequest
from topics.storage.log.background import LogRefused


def test_a_claim_leases_the_oldest_jobs_and_an_ack_deletes_them():
    shop = Workshop()
    shop.write("1", "2", "3")
    first, second = shop.claim("a", 2, lease_ms=500)
    assert (first["$seq"], first["deliveries"], first["data"]) == (1, 1, 1)
    assert first["deadline"] == shop.clock.now_ms() + 500
    assert first["lease_id"] != second["lease_id"]
    assert shop.counts == (1, 2, 0)

    answer = shop.ack("a", 1, 2)
    assert (answer.done, answer.skipped, answer.ready, answer.in_flight) == (2, [], 1, 0)
    assert shop.server.data(QUEUE) == ["3"]


def test_a_job_returns_to_the_queue_once_its_deadline_has_passed():
    shop = Workshop()
    shop.write("1")
    [first] = shop.claim("a", lease_ms=500)
    shop.clock.advance(ms=500)
    assert shop.claim("b") == []
    shop.clock.advance(ms=1)
    [second] = shop.claim("b")
    assert (second["$seq"], second["deliveries"]) == (1, 2)
    assert shop.ack("a", 1).skipped == [1]
    assert shop.ack("b", 1, lease_ids=[first["lease_id"]]).skipped == [1]
    assert shop.ack("b", 1, lease_ids=[second["lease_id"]]).done == 1


def test_ack_after_the_deadline_is_skipped():
    shop = Workshop()
    shop.write("1")
    shop.claim("a", lease_ms=100)
    shop.clock.advance(ms=101)
    assert shop.ack("a", 1).skipped == [1]
    assert shop.counts == (1, 0, 0)


def test_a_job_named_twice_is_acked_once():
    shop = Workshop()
    shop.write("1")
    shop.claim("a")
    answer = shop.ack("a", 1, 1)
    assert (answer.done, answer.skipped) == (1, [1])


def test_jobs_that_come_back_go_out_before_new_ones():
    shop = Workshop()
    shop.write("1", "2", "3")
    shop.claim("a", 2)
    shop.nack("a", 2, 1)
    assert seqs(shop.claim("b", 1)) == [2]
    assert seqs(shop.claim("b", 2)) == [1, 3]


def test_a_nack_with_a_delay_hides_the_job_for_that_long():
    shop = Workshop()
    shop.write("1")
    shop.claim("a")
    answer = shop.nack("a", 1, delay_ms=200)
    assert (answer.ready, answer.in_flight) == (0, 0)
    assert shop.counts == (0, 0, 1)
    shop.clock.advance(ms=199)
    assert shop.claim("b") == []
    shop.clock.advance(ms=1)
    assert seqs(shop.claim("b")) == [1]


def test_an_extended_lease_runs_from_now():
    shop = Workshop()
    shop.write("1")
    shop.claim("a", lease_ms=100)
    shop.clock.advance(ms=60)
    answer = shop.extend("a", 1, 7, lease_ms=300)
    assert answer.deadlines == {"1": shop.clock.now_ms() + 300}
    assert answer.skipped == [7]
    shop.clock.advance(ms=300)
    assert shop.claim("b") == []
    shop.clock.advance(ms=1)
    assert shop.extend("a", 1, lease_ms=300).skipped == [1]
    assert [one["deliveries"] for one in shop.claim("b")] == [2]


def test_evicted_and_deleted_jobs_leave_every_count():
    shop = Workshop(cap_records=4)
    shop.write(*"1234")
    shop.claim("a", 2)
    shop.claim("b", 1)
    shop.nack("b", 3, delay_ms=500)
    shop.write("5")
    assert shop.counts == (2, 1, 1)  # the first job went, and its lease with it
    assert shop.ack("a", 1, 2).skipped == [1]
    shop.write("6", "7")
    assert shop.counts == (4, 0, 0)
    shop.server.delete(QUEUE, before_seq=6)
    assert shop.counts == (2, 0, 0)
    assert seqs(shop.claim("c", 9)) == [6, 7]
    shop.server.delete(QUEUE, before_seq=100)
    assert shop.counts == (0, 0, 0)


def test_delete_by_tag_takes_leased_jobs():
    shop = Workshop()
    shop.write(job("1", tag="x"), job("2", tag="y"), job("3", tag="x", delay_ms=50))
    shop.claim("a", 2)
    shop.server.delete(QUEUE, match=TagMatch("Eq", "x"))
    assert shop.counts == (0, 1, 0)
    shop.clock.advance(ms=5000)
    assert seqs(shop.claim("b", 9)) == [2]


def test_delayed_job_is_not_claimable_before_its_time():
    shop = Workshop()
    at = shop.clock.now_ms() + 300
    shop.write(job("1", delay_ms=300), job("2"), job("3", deliver_at=at), job("4", deliver_at=5))
    assert shop.counts == (2, 0, 2)
    assert shop.server.data(QUEUE) == ["1", "2", "3", "4"]
    assert seqs(shop.claim("a", 9)) == [2, 4]
    shop.clock.advance(ms=299)
    assert shop.claim("a", 9) == []
    shop.clock.advance(ms=1)
    assert seqs(shop.claim("a", 9)) == [1, 3]


def test_higher_priorities_go_first_and_lower_ones_still_move():
    shop = Workshop()
    shop.write(*(job("0") for _ in range(20)), *(job("5", priority=5) for _ in range(20)))
    shop.write(*(job("9", priority=9) for _ in range(40)))
    order = [shop.claim("a")[0]["data"] for _ in range(40)]
    assert order[:7] == [9] * 7
    assert order.count(9) == 35
    assert order[7::8] == [5, 0, 5, 0, 5] or order[7::8] == [0, 5, 0, 5, 0]
    rest = [shop.claim("a")[0]["data"] for _ in range(40)]
    assert sorted(order + rest) == [0] * 20 + [5] * 20 + [9] * 40


def test_priority_and_delay_are_refused_on_a_log():
    shop = Workshop()
    for one in (job("1", priority=0), job("1", delay_ms=0), job("1", deliver_at=0)):
        with pytest.raises(TopicsError) as refused:
            shop.server.done(shop.server.engine.append("plain", WriteRequest([one])))
        assert refused.value.code.wire == "invalid_request"
    assert "plain" not in shop.server.engine.topics


def test_a_cohort_shares_evenly_in_proportion_to_what_each_asked_for():
    shop = Workshop()
    shop.write(*(str(number) for number in range(12)))
    got = shop.claims(*(Want(node=node, max=10, lease_ms=1000) for node in "abc"))
    assert [len(jobs) for jobs in got] == [4, 4, 4]
    assert seqs(got[0]) == [1, 4, 7, 10]
    assert shop.claims(Want(node="d", max=5, lease_ms=1000)) == [[]]


@pytest.mark.parametrize(
    ("jobs", "wants", "shares"),
    [
        (6, [10, 10, 10], [2, 2, 2]),
        (5, [1, 9], [1, 4]),
        (4, [1, 3], [1, 3]),
        (100, [1, 3, 7], [1, 3, 7]),
        (1, [5, 5], [1, 0]),
        (0, [5, 5], [0, 0]),
    ],
)
def test_shares(jobs, wants, shares):
    assert [len(share) for share in divide([Job(seq) for seq in range(min(jobs, sum(wants)))], wants)] == shares


def test_a_connection_that_ends_gives_back_only_what_it_was_pushed():
    shop = Workshop()
    shop.write("1", "2", "3")
    changes = []
    holder = Holder(lambda: changes.append(1))
    shop.claim("a", 2, holder=holder)
    shop.claim("a", 1)
    shop.ack("a", 1)
    assert holder.held == {2}
    shop.done(shop.server.engine.queues.release(shop.topic, holder))
    assert shop.counts == (1, 1, 0)
    assert not holder.held
    assert len(changes) == 2


@pytest.mark.parametrize("leases_durable", [False, True])
def test_what_the_log_refuses_has_not_happened(leases_durable: bool):
    shop = Workshop(SimServer.start(SimDisk()), durability="fsync", leases_durable=leases_durable)
    shop.write("1", "2")
    [held] = shop.claim("a")
    commits = shop.server.engine.commits

    def refused(ticket: Ticket) -> None:
        staged, commits._staged = commits._staged, []
        commits.refuse(staged, LogRefused("no space left"))
        with pytest.raises(TopicsError, match="no space left"):
            ticket.value()
        assert shop.counts == (1, 1, 0)

    engine, topic = shop.server.engine, shop.topic
    ticket = engine.queues.ack(topic, "a", [1], None)
    second = engine.queues.ack(topic, "a", [1], None)
    assert second.value().skipped == [1], "a second ack is skipped while the first is pending"
    refused(ticket)
    if leases_durable:
        refused(engine.queues.nack(topic, "a", [1], None, delay_ms=0))
        refused(engine.queues.extend(topic, "a", [1], None, lease_ms=9000))
        _, ticket = engine.queues.claim(topic, [Want(node="b", max=1, lease_ms=100)])
        refused(ticket)
        assert [one["deliveries"] for one in shop.claim("b")] == [1]
    assert shop.ack("a", 1, lease_ids=[held["lease_id"]]).done == 1


def test_a_claim_does_not_answer_more_bytes_than_a_read_may():
    shop = Workshop()
    shop.write(*('"' + "x" * 1_000_000 + '"' for _ in range(12)))
    assert len(shop.claim("a", 100)) == 8
    assert len(shop.claim("a", 100)) == 4


def test_jobs_are_listed_by_state_and_page():
    shop = Workshop()
    shop.write(job("1", tag="t"), job("2"), job("3", delay_ms=500), job("4", priority=7))
    [held] = shop.claim("a")
    assert held["$seq"] == 4
    everything, more = shop.jobs()
    assert [(one["$seq"], one["state"]) for one in everything] == [
        (1, "ready"), (2, "ready"), (3, "delayed"), (4, "in_flight")
    ]  # fmt: skip
    assert more is None
    assert everything[3]["priority"] == 7
    assert everything[3]["node"] == "a"
    assert everything[2]["deliver_at"] == shop.clock.now_ms() + 500
    assert everything[0]["$tag"] == "t"
    page, more = shop.jobs("ready", limit=1)
    assert (seqs(page), more) == ([1], 1)
    assert shop.jobs("ready", after=1, limit=1) == ([everything[1]], None)
    assert seqs(shop.jobs("delayed")[0]) == [3]


def test_claim_gets_as_many_jobs_as_one_answer_holds_and_at_least_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pick, "MAX_BATCH_BYTES", 1000)
    shop = Workshop()
    shop.write(*(f'"{"x" * size}"' for size in (300, 300, 300, 2000, 10, 10)), job(f'"{"y" * 900}"', priority=9))
    assert [seqs(shop.claim("w", 9)) for _ in range(5)] == [[7], [1, 2], [3], [4], [5, 6]]
    shop.nack("w", *range(1, 8))
    assert [row["$seq"] for row in shop.jobs()[0]] == [1, 2]
    assert shop.counts == (7, 0, 0)


def test_what_a_claim_takes_does_not_grow_with_the_backlog():
    """Counted in bytecode lines rather than in time: the same claim at a backlog of 100 and of 5,000 sealed jobs."""

    def steps(backlog: int) -> int:
        shop = Workshop()
        for _ in range(backlog // 50):
            shop.write(*["1"] * 50)
        shop.claim("a", 5)
        shop.ack("a", *range(1, 6))
        count = 0

        def trace(frame, event, arg):
            nonlocal count
            count += 1
            return trace

        sys.settrace(trace)
        try:
            found, _ = shop.server.engine.queues.claim(shop.topic, [Want(node="a", max=5, lease_ms=100)])
        finally:
            sys.settrace(None)
        assert len(found[0].rows) == 5
        return count

    steps(100)
    assert steps(5_000) < steps(100) * 1.1
