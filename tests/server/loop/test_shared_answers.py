"""Answers that requests share: how many are made, and which request gets which."""

from collections.abc import Generator

import pytest

from tests.live.manual import ManualLoop, manual_app
from tests.simulated.clock import SimClock
from topics.errors import invalid
from topics.server.api import metrics
from topics.server.http.messages import Deferred, Request, Response
from topics.server.limits.budget import MemoryBudget
from topics.server.limits.loop_holds import LoopHolds
from topics.server.loop.runtime import Loads
from topics.server.loop.sliced_work import SharedAnswers, Slices
from topics.storage.segments.cold import Cold


class Bench:
    """Makes numbered answers of three steps each."""

    def __init__(self) -> None:
        self.loop = ManualLoop()
        budget = MemoryBudget()
        loads = Loads(self.loop, None)  # type: ignore[arg-type]
        slices = Slices(loads, SimClock(), budget, LoopHolds())  # type: ignore[arg-type]
        self.shared = SharedAnswers(slices, budget)
        self.made = 0
        self.fails = False

    def make(self) -> Generator[Cold | None, None, Response]:
        self.made += 1
        number = self.made
        yield None
        yield None
        if self.fails:
            raise invalid("no")
        return Response(200, b"%d" % number)

    def ask(self, key: str = "k") -> list[Response]:
        found: list[Response] = []
        self.shared.answer(key, Request("GET", b"/", b"", {}, b"", "", 0), self.make).then(found.append)
        return found

    def finish(self) -> None:
        while self.loop.soon:
            self.loop.turn()


def bodies(*answers: list[Response]) -> list[object]:
    return [answer.body for [answer] in answers]


def test_requests_that_arrive_while_an_answer_is_made_share_the_next():
    bench = Bench()
    first = bench.ask()
    others = [bench.ask() for _ in range(50)]
    bench.finish()
    assert bodies(first, *others) == [b"1"] + [b"2"] * 50
    again = bench.ask()
    bench.finish()
    assert bodies(again) == [b"3"]


def test_keys_are_answered_apart():
    bench = Bench()
    answers = [bench.ask(key) for key in "abab"]
    bench.finish()
    assert bench.made == 4
    assert len(set(bodies(*answers))) == 4


def test_failure_is_reported_to_every_request_and_ends_there():
    bench = Bench()
    bench.fails = True
    answers = [bench.ask() for _ in range(3)]
    bench.finish()
    assert [answer.status for [answer] in answers] == [400] * 3
    bench.fails = False
    later = bench.ask()
    bench.finish()
    assert bodies(later) == [b"2"]


def test_request_whose_client_left_is_skipped():
    bench = Bench()
    bench.ask()
    left = bench.shared.answer("k", Request("GET", b"/", b"", {}, b"", "", 0), bench.make)
    stays = bench.ask()
    left.cancel()
    bench.finish()
    assert bodies(stays) == [b"2"]


@pytest.mark.parametrize("headers", [{}, {b"accept": b"application/json"}], ids=["text", "json"])
def test_flood_of_metrics_is_measured_a_few_times(monkeypatch: pytest.MonkeyPatch, headers: dict[bytes, bytes]):
    app, loop = manual_app()
    collect, runs = metrics.collect, []

    def counted(*arguments):
        runs.append(1)
        return collect(*arguments)

    monkeypatch.setattr(metrics, "collect", counted)
    found: list[Response] = []
    for _ in range(100):
        answer = app.answer(Request("GET", b"/v0/metrics", b"", headers, b"", "", 1))
        assert isinstance(answer, Deferred)
        answer.then(found.append)
    while loop.soon:
        loop.turn()
    assert len(runs) == 2
    assert len({b"".join(answer.body) for answer in found}) <= 2  # type: ignore[arg-type]
    assert {answer.status for answer in found} == {200}
    assert len(found) == 100
