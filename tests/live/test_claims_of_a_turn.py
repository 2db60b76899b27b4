"""Claims of one turn on one queue: the first is answered at once, and the others share a pass."""

from __future__ import annotations

import errno
import gc
import json
from typing import Any

import pytest
from msgspec import Raw

from tests.engine.harness import FakeLog
from tests.live.manual import manual_app
from tests.live.test_job_waiters import Worker
from tests.simulated.clock import SimClock
from topics.engine.queue import pick, verbs
from topics.engine.queue.verbs import Claimed, Want
from topics.engine.state.jobs.job import Holder
from topics.engine.state.topic import Topic
from topics.engine.write.commit import Ticket
from topics.errors import TopicsError
from topics.model.records import NewRecord, WriteRequest
from topics.model.topic import ConfigPatch, Rate
from topics.server.http.messages import Deferred, Request, Response
from topics.storage.segments.cold import Cold, Need

HEADERS = {b"content-type": b"application/json"}


class Shop:
    """A server with one queue on a manual loop. `passes` has the number of claims of each pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, jobs: int, **config: Any) -> None:
        self.clock = SimClock()
        self.app, self.loop = manual_app(self.clock)
        self.engine = self.app.services.engine
        self.app.requests.begin(self.app.services)
        self.engine.put_topic("q", ConfigPatch(type="queue", **config))
        self.engine.flush()
        if jobs:
            self.write(jobs)
        self.passes: list[int] = []
        claim = self.engine.queues.claim

        def counted(topic: Topic, wants: list[Want], *, in_order: bool = False) -> tuple[list[Claimed], Ticket | None]:
            self.passes.append(len(wants))
            return claim(topic, wants, in_order=in_order)

        monkeypatch.setattr(self.engine.queues, "claim", counted)

    def write(self, jobs: int) -> None:
        self.engine.append("q", WriteRequest([NewRecord(data=Raw(b"1"))] * jobs))
        self.engine.flush()
        self.loop.turn()

    def ask(self, verb: str, **body: Any) -> Response | Deferred:
        request = Request("POST", f"/v0/topics/q/{verb}".encode(), b"", HEADERS, json.dumps(body).encode(), "", 1)
        answer = self.app.answer(request)
        assert isinstance(answer, Response | Deferred)
        return answer

    def claim(self, node: str, most: int = 1, wait_ms: int = 0) -> Response | Deferred:
        return self.ask("claim", node=node, max=most, wait_ms=wait_ms)


def seqs(answer: Response | Deferred) -> list[int] | None:
    """Return the claimed seqs, or None if the claim is not answered yet."""
    found: list[Response] = []
    if isinstance(answer, Deferred):
        answer.then(found.append)
    else:
        found.append(answer)
    if not found:
        return None
    assert isinstance(found[0].body, bytes)
    assert found[0].status == 200, found[0].body
    return [job["$seq"] for job in json.loads(found[0].body)["claimed"]]


def test_first_claim_of_a_turn_is_answered_at_once_and_the_others_share_a_pass(monkeypatch: pytest.MonkeyPatch):
    shop = Shop(monkeypatch, jobs=8)
    first, second, third, fourth = (shop.claim(node, 2) for node in "abcd")
    assert (seqs(first), shop.passes) == ([1, 2], [1])
    shop.loop.turn()
    assert shop.passes == [1, 3]
    assert sorted([*seqs(second), *seqs(third), *seqs(fourth)]) == [3, 4, 5, 6, 7, 8]
    assert not shop.app.services.runtime.open_ended
    assert not shop.engine.topics["q"].listeners, "claims that do not wait follow no topic"


def test_next_turn_begins_with_the_next_write(monkeypatch: pytest.MonkeyPatch):
    shop = Shop(monkeypatch, jobs=8)
    assert seqs(shop.claim("a")) == [1]
    shop.ask("ack", node="a", seqs=[1])
    shop.loop.turn()
    assert seqs(shop.claim("a")) == [2]
    assert shop.passes == [1, 1]


def test_claims_of_a_turn_get_few_jobs_in_order_of_arrival(monkeypatch: pytest.MonkeyPatch):
    shop = Shop(monkeypatch, jobs=10)
    assert seqs(shop.claim("a")) == [1]
    answers = [shop.claim(node, 6) for node in "bcd"]
    for _ in range(4):
        shop.loop.turn()
    assert [seqs(answer) for answer in answers] == [[2, 3, 4, 5, 6, 7], [8, 9, 10], []]
    assert shop.loop.soon == []


@pytest.mark.parametrize("limit", [{"max_in_flight": 6}, {"rate": Rate(per_s=0.1, burst=6)}])
def test_limits_of_the_queue_cut_off_the_last_claims_of_a_turn(monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any]):
    shop = Shop(monkeypatch, jobs=10, **limit)
    assert seqs(shop.claim("a")) == [1]
    answers = [shop.claim(node, 3) for node in "bcd"]
    for _ in range(4):
        shop.loop.turn()
    assert [seqs(answer) for answer in answers] == [[2, 3, 4], [5, 6], []]


def test_claims_of_a_turn_whose_records_do_not_fit_into_one_answer_get_them_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pick, "MAX_BATCH_BYTES", 250)  # some six records
    shop = Shop(monkeypatch, jobs=10)
    shop.claim("a")
    answers = [shop.claim(node, 3) for node in "bcd"]
    for _ in range(4):
        shop.loop.turn()
    assert [seqs(answer) for answer in answers] == [[2, 3, 4], [5, 6, 7], [8, 9, 10]]
    assert len(shop.passes) > 2


def dead_letters(monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Return a shop with two jobs of one key. The only lease of the first has ended."""
    shop = Shop(monkeypatch, jobs=0, max_deliveries=1, dead_letter="dead", lease_ms=1000)
    shop.engine.append("q", WriteRequest([NewRecord(data=Raw(b"1"), key="k")] * 2))
    shop.engine.flush()
    shop.loop.turn()
    assert seqs(shop.claim("a", 2)) == [1]
    shop.engine.flush()
    shop.clock.advance(ms=1001)
    return shop


@pytest.mark.parametrize("wait_ms", [0, 5000])
def test_claim_that_moves_a_dead_letter_gets_the_next_job_of_its_key(monkeypatch: pytest.MonkeyPatch, wait_ms: int):
    shop = dead_letters(monkeypatch)
    answer = shop.claim("b", 2, wait_ms=wait_ms)
    shop.engine.flush()
    for _ in range(4):
        shop.loop.turn()
    assert (seqs(answer), shop.engine.topics["dead"].count) == ([2], 1)


@pytest.mark.parametrize("half", [True, False])
def test_client_that_leaves_while_a_dead_letter_is_moved_takes_no_job(monkeypatch: pytest.MonkeyPatch, half: bool):
    shop = dead_letters(monkeypatch)
    answer = shop.claim("b", 2)
    shop.loop.turn()
    assert isinstance(answer, Deferred)
    answer.hurry() if half else answer.cancel()
    assert shop.engine.topics["q"].pending == 1, "the move waits for the log"
    shop.engine.flush()
    for _ in range(4):
        shop.loop.turn()
    later = shop.claim("c", 2)
    for _ in range(4):
        shop.loop.turn()
    shop.engine.flush()
    assert seqs(later) == [2]


class Stream:
    """A work stream: it has one job at a time, and is woken once it has acked it."""

    fresh = False

    def __init__(self, shop: Shop) -> None:
        self.got: list[int] = []
        self.holder = Holder(lambda: self.waiters.wake())
        self.waiters = shop.app.services.job_waiters.join(shop.engine.topics["q"], self)

    def want(self) -> Want | None:
        return None if self.holder.held else Want(node="stream", max=1, lease_ms=60_000, holder=self.holder)

    def assign(self, claimed: Claimed, ticket: Ticket | None) -> bool:
        self.got += [job.seq for job in claimed.jobs]
        return True

    def refuse(self, error: TopicsError) -> bool:
        raise error

    def queue_deleted(self) -> None: ...


def test_claims_of_each_turn_leave_jobs_for_a_stream(monkeypatch: pytest.MonkeyPatch):
    shop = Shop(monkeypatch, jobs=600)
    stream, queue = Stream(shop), shop.engine.topics["q"]
    for turn in range(100):
        shop.loop.turn()
        for node in "abcd":
            shop.claim(f"{node}{turn}")
        if stream.holder.held:
            shop.engine.queues.ack(queue, "stream", list(stream.holder.held), None)
            shop.engine.flush()
    assert len(stream.got) == 100


def test_waiting_claims_that_one_answer_has_no_room_for_get_jobs_from_the_next_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pick, "MAX_BATCH_BYTES", 100)  # some two records
    shop = Shop(monkeypatch, jobs=0)
    answers = [shop.claim(node, wait_ms=30_000) for node in "abcdef"]
    shop.loop.turn()
    shop.write(6)
    for _ in range(20):
        shop.loop.turn()
    assert [seqs(answer) for answer in answers] == [[1], [2], [3], [4], [5], [6]]


def test_claims_of_a_window_that_get_nothing_are_answered_at_its_end(monkeypatch: pytest.MonkeyPatch):
    shop, log = Shop(monkeypatch, jobs=0), FakeLog()
    shop.engine.attach(log)
    shop.app.services.throttle.end()
    shop.engine.put_topic("q", ConfigPatch(claim_jitter_ms=1000, leases_durable=True, max_in_flight=1))
    shop.engine.flush()
    log.finish()
    shop.write(20)
    answers = [shop.claim(node) for node in "abc"]
    shop.loop.fire(1.0)
    for _ in range(4):
        shop.loop.turn()
        log.finish()
    assert [seqs(answer) for answer in answers] == [[1], [], []]


def test_claims_that_need_a_disk_that_fails_are_told_so(monkeypatch: pytest.MonkeyPatch):
    def failing() -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    def unloaded(*_: object) -> dict[int, bytes]:
        raise Cold([Need(("x", 1), 10, load=failing, trim=lambda: None)])

    monkeypatch.setattr(pick, "fitting", unloaded)
    shop, found = Shop(monkeypatch, jobs=4), list[Response]()
    for answer in [shop.claim("a"), shop.claim("b")]:
        assert isinstance(answer, Deferred)
        answer.then(found.append)
    for _ in range(6):
        shop.loop.turn()
    assert [(one.status, b'"storage_unavailable"' in one.body) for one in found] == [(503, True)] * 2  # type: ignore[operator]


def test_claim_without_room_asks_for_jobs_once_more_and_no_more(monkeypatch: pytest.MonkeyPatch):
    shop = dead_letters(monkeypatch)
    shop.engine.append("q", WriteRequest([NewRecord(data=Raw(b"1"))] * 4))
    shop.engine.put_topic("q", ConfigPatch(paused=True))
    shop.engine.flush()
    shop.passes.clear()
    answer = shop.claim("b", 2)
    shop.engine.flush()
    for _ in range(4):
        shop.loop.turn()
    assert (seqs(answer), shop.passes) == ([], [1, 1])


def test_claim_of_this_turn_comes_before_clients_that_wait(monkeypatch: pytest.MonkeyPatch):
    shop = Shop(monkeypatch, jobs=1)
    assert seqs(shop.claim("a")) == [1]
    waits = shop.claim("b", 2, wait_ms=5000)
    shop.loop.turn()
    shop.engine.append("q", WriteRequest([NewRecord(data=Raw(b"1"))] * 3))
    shop.engine.flush()
    first, fresh = shop.claim("c"), shop.claim("d")
    for _ in range(4):
        shop.loop.turn()
    assert (seqs(first), seqs(fresh), seqs(waits)) == ([2], [3], [4])


def test_claim_that_a_full_pass_leaves_out_gets_jobs_from_the_next_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verbs, "PASS_MAX_JOBS", 2)
    shop = Shop(monkeypatch, jobs=4)
    shop.claim("a")
    answers = [shop.claim(node) for node in "bcd"]
    shop.loop.turn()
    assert [seqs(answer) for answer in answers[:2]] == [[2], [3]]
    shop.loop.turn()
    assert seqs(answers[2]) == [4]


def test_claims_of_a_turn_on_an_empty_queue_are_answered_without_jobs(monkeypatch: pytest.MonkeyPatch):
    shop = Shop(monkeypatch, jobs=2)
    shop.claim("a")
    answers = [shop.claim(node) for node in "bcd"]
    shop.loop.turn()
    shop.loop.turn()
    assert [seqs(answer) for answer in answers] == [[2], [], []]
    assert (shop.passes, shop.loop.soon) == ([1, 3], [])


def test_client_that_leaves_before_the_pass_takes_no_job(monkeypatch: pytest.MonkeyPatch):
    shop = Shop(monkeypatch, jobs=3)
    shop.claim("a")
    gone, stays = shop.claim("b"), shop.claim("c")
    assert isinstance(gone, Deferred)
    gone.cancel()
    shop.loop.turn()
    assert (seqs(stays), shop.engine.topics["q"].queue.ready) == ([2], 1)


def test_claim_that_waits_gets_a_job_that_is_written_after_the_pass(monkeypatch: pytest.MonkeyPatch):
    shop = Shop(monkeypatch, jobs=1)
    shop.claim("a")
    waits, leaves = shop.claim("b", wait_ms=5000), shop.claim("c")
    shop.loop.turn()
    assert seqs(leaves) == []
    shop.write(1)
    shop.loop.turn()
    assert seqs(waits) == [2]


def test_queue_that_is_deleted_before_the_pass_answers_its_claims(monkeypatch: pytest.MonkeyPatch):
    shop = Shop(monkeypatch, jobs=3)
    shop.claim("a")
    answer, found = shop.claim("b"), []
    assert isinstance(answer, Deferred)
    answer.then(found.append)
    shop.engine.drop_topic("q")
    shop.engine.flush()
    shop.loop.turn()
    assert [response.status for response in found] == [404]


def test_drain_answers_claims_that_share_a_pass(monkeypatch: pytest.MonkeyPatch):
    shop = Shop(monkeypatch, jobs=3)
    shop.claim("a")
    answer = shop.claim("b")
    shop.app.begin_drain()
    assert seqs(answer) == []


def test_claims_of_a_turn_do_not_ask_the_streams_that_are_full(monkeypatch: pytest.MonkeyPatch):
    shop = Shop(monkeypatch, jobs=4)
    asked: list[str] = []

    class Full(Worker):
        def want(self) -> Want | None:
            asked.append(self.node)
            return None

    shop.app.services.job_waiters.join(shop.engine.topics["q"], Full("stream"))
    shop.loop.turn()
    assert asked == ["stream"]
    shop.claim("a")
    second = shop.claim("b")
    shop.loop.turn()
    assert (seqs(second), asked, shop.loop.soon) == ([2], ["stream"], [])
    shop.write(1)
    shop.loop.turn()
    assert asked == ["stream", "stream"]


def test_claims_and_acks_of_a_turn_leave_no_reference_cycles(monkeypatch: pytest.MonkeyPatch):
    shop = Shop(monkeypatch, jobs=20)

    def work() -> None:
        answers = [shop.claim(node, 2) for node in "abc"]
        shop.loop.turn()
        for node, answer in zip("abc", answers, strict=True):
            shop.ask("ack", node=node, seqs=seqs(answer))
        shop.loop.turn()

    work()
    gc.collect()
    gc.disable()
    try:
        work()
        assert gc.collect() == 0
    finally:
        gc.enable()
