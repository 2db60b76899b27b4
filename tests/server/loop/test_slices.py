"""Sliced work: how much of it runs per turn of the loop, and how it ends."""

import json
from collections.abc import Callable, Generator
from itertools import pairwise
from typing import Any

import pytest

from tests.live.manual import ManualLoop, TickingClock, create, manual_app
from tests.simulated.clock import SimClock
from tests.simulated.harness import SimServer
from topics.engine.durable.deferred_replay import PER_STEP
from topics.engine.state.topic import Topic
from topics.errors import TopicsError, invalid
from topics.model.router import RouterRequest
from topics.model.topic import ArchiveConfig, ConfigPatch
from topics.server.access.caller import ANYONE
from topics.server.api import metrics
from topics.server.api.handlers import inspection, routers, topics
from topics.server.api.route import Call
from topics.server.http.messages import Answer, Deferred, Request, Response
from topics.server.limits.budget import MemoryBudget
from topics.server.limits.loop_holds import Cause, LoopHolds
from topics.server.loop.runtime import Loads
from topics.server.loop.sliced_work import SLICE_NS, TURN_NS, Slices
from topics.storage.segments.cold import Cold, Need


def request() -> Request:
    return Request("GET", b"/v0/x", b"", {}, b"", "", 0)


class Steps:
    """Counts steps, each of which takes a quarter of a slice."""

    def __init__(self, clock: SimClock, count: int) -> None:
        self.clock = clock
        self.count = count
        self.done = 0
        self.closed = False

    def run(self) -> Generator[Cold | None, None, Answer]:
        try:
            for _ in range(self.count):
                self.done += 1
                self.clock._monotonic_ns += SLICE_NS // 4
                yield None
            return Response(200, b"%d" % self.done)
        finally:
            self.closed = True


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def loop() -> ManualLoop:
    return ManualLoop()


@pytest.fixture
def slices(loop: ManualLoop, clock: SimClock) -> Slices:
    return Slices(Loads(loop, None), clock, MemoryBudget(), LoopHolds())  # type: ignore[arg-type]


def text_of(response: Response) -> bytes:
    return response.body if isinstance(response.body, bytes) else b"".join(response.body)


def answered(deferred: Answer) -> list[Response]:
    got: list[Response] = []
    assert isinstance(deferred, Deferred)
    deferred.then(got.append)
    return got


def test_short_work_is_answered_at_once(slices: Slices, clock: SimClock) -> None:
    answer = slices.answer(request(), Steps(clock, 3).run())
    assert isinstance(answer, Response)
    assert answer.body == b"3"


def test_long_work_runs_one_slice_per_turn(slices: Slices, clock: SimClock, loop: ManualLoop) -> None:
    steps = Steps(clock, 40)
    got = answered(slices.answer(request(), steps.run()))
    while not got:
        before = steps.done
        loop.turn()
        assert steps.done - before <= 4
    assert got[0].body == b"40"


def test_many_pieces_of_work_share_one_turn(slices: Slices, clock: SimClock, loop: ManualLoop) -> None:
    many = [Steps(clock, 40) for _ in range(20)]
    answers = [answered(slices.answer(request(), steps.run())) for steps in many]
    turns = 0
    while not all(answers):
        before = sum(steps.done for steps in many)
        loop.turn()
        turns += 1
        assert sum(steps.done for steps in many) - before <= (TURN_NS // SLICE_NS + 1) * 4
        assert max(steps.done for steps in many) - min(steps.done for steps in many) <= 8  # all progress alike
    assert turns > 10


def test_cancelled_answer_closes_its_steps(slices: Slices, clock: SimClock, loop: ManualLoop) -> None:
    steps = Steps(clock, 40)
    answer = slices.answer(request(), steps.run())
    assert isinstance(answer, Deferred)
    answer.cancel()
    loop.turn()
    assert steps.closed
    assert steps.done == 4


def test_errors_after_the_first_slice_are_answered(slices: Slices, clock: SimClock, loop: ManualLoop) -> None:
    def failing(error: Exception) -> Generator[Cold | None, None, Answer]:
        clock.advance(ms=1)
        yield None
        raise error

    got = [answered(slices.answer(request(), failing(error))) for error in (invalid("no"), RuntimeError("a bug"))]
    loop.turn()
    assert [each[0].status for each in got] == [400, 500]
    with pytest.raises(TopicsError):
        slices.answer(request(), _fails_at_once())


def _fails_at_once() -> Generator[Cold | None, None, Answer]:
    raise invalid("no")
    yield None


def needing(load: Callable[[], object]) -> Cold:
    return Cold([Need(load, 1, load=load, trim=lambda: None)])


def test_needed_data_is_loaded_before_the_next_step(slices: Slices, loop: ManualLoop) -> None:
    loaded: list[str] = []

    def reading() -> Generator[Cold | None, None, Answer]:
        yield needing(lambda: loaded.append("one"))
        assert loaded == ["one"]
        yield needing(lambda: 1 // 0)
        raise AssertionError("goes on though the disk failed")

    got = answered(slices.answer(request(), reading()))
    loop.turn()
    assert got[0].status == 500
    assert "cannot be read" in json.loads(bytes(got[0].body))["error"]["message"]  # type: ignore[arg-type]


def test_metrics_of_many_topics_take_many_turns() -> None:
    app, loop = manual_app(TickingClock())
    create(app, loop, [f"t{at:04}" for at in range(5_000)])
    app.services.engine.put_topic("queue", ConfigPatch(type="queue", durability="fsync"))
    app.services.engine.flush()
    call: Any = Call(request(), None, {}, ANYONE)  # type: ignore[arg-type]
    call.request.headers = {b"accept": b"application/json"}
    got = answered(inspection.get_metrics(app.services, call))
    turns = 0
    while not got:
        loop.turn()
        turns += 1
    assert turns > 5
    found = json.loads(text_of(got[0]))
    assert found["topics_topics"] == 5_001
    assert found["topics_topics_by_class"] == {"ephemeral": 0, "memory": 0, "disk": 5_000, "fsync": 1, "replicated": 0}
    assert found["topics_queue_topics"] == 1
    assert len(found["topics_topic_head_seq"]) == 1_000
    app.services.engine.put_topic("t0000", ConfigPatch(durability="memory"))
    app.services.engine.drop_topic("t0001")
    app.services.engine.flush()
    assert app.services.engine.state.by_class == {"disk": 4_998, "fsync": 1, "memory": 1}


@pytest.mark.parametrize("query", [b"page_size=400", b"page_size=400&source=s"])
def test_list_of_many_routers_takes_many_turns(query: bytes) -> None:
    app, loop = manual_app(TickingClock())
    engine = app.services.engine
    for at in range(500):
        engine.routers.put(f"r{at:03}", RouterRequest(source="s", dest=f"d{at:03}"))
    asked = Request("GET", b"/v0/routers", query, {}, b"", "", 0)
    got = answered(routers.list_routers(app.services, Call(asked, None, {}, ANYONE)))  # type: ignore[arg-type]
    loop.turn()
    engine.routers.drop("r000")
    engine.routers.drop("r399")
    turns = 1
    while not got:
        loop.turn()
        turns += 1
    assert turns > 5
    page = json.loads(text_of(got[0]))
    assert [row["router"] for row in page["routers"]] == [f"r{at:03}" for at in range(401) if at != 399]
    assert page["next_cursor"]


@pytest.mark.parametrize("config", [ConfigPatch(type="queue"), ConfigPatch(archive=ArchiveConfig(hold=True))])
def test_topic_deleted_between_steps_does_not_break_metrics(config: ConfigPatch) -> None:
    dropped_at, done = 0, False
    while not done:
        app, _ = manual_app()
        app.services.engine.put_topic("t", config)
        app.services.engine.flush()
        done = True
        for step, _ in enumerate(metrics.collect(app.services, ())):
            if step == dropped_at:
                app.services.engine.drop_topic("t")
                app.services.engine.flush()
                done = False
        dropped_at += 1
    assert dropped_at > 20


@pytest.mark.parametrize("handler", [topics.list_topics, inspection.get_metrics])
def test_deferred_records_are_replayed_over_many_turns(handler: Callable[..., Answer]) -> None:
    server = SimServer.start()
    for number in range(10 * PER_STEP):
        server.append(f"t{number % 5}", str(number), durability="memory")
    after = server.crash("keep")
    assert after.recovered is not None
    app, loop = manual_app(TickingClock(), state=after.engine.state)
    app.services.engine.await_replay(after.recovered.backlog)
    call: Any = Call(request(), None, {}, ANYONE)  # type: ignore[arg-type]
    call.request.headers = {b"accept": b"application/json"}
    got = answered(handler(app.services, call))
    waiting = [len(after.recovered.backlog)]
    while not got:
        loop.turn()
        waiting.append(len(after.recovered.backlog))
    assert max(before - now for before, now in pairwise(waiting)) <= 4 * PER_STEP
    assert waiting[0] > waiting[-1] == 0
    body = json.loads(text_of(got[0]))
    heads = body.get("topics_topic_head_seq") or {row["topic"]: row["head_seq"] for row in body["topics"]}
    assert heads == {f"t{number}": 2 * PER_STEP for number in range(5)}


@pytest.mark.parametrize("body", [b"{}", b'{"from_seq": 5, "wait_ms": 1}'])
def test_read_of_a_huge_waiting_topic_replays_it_over_many_turns(body: bytes) -> None:
    server = SimServer.start()
    for number in range(20 * PER_STEP):
        server.append("huge", str(number), durability="memory")
    server.append("small", "1", durability="memory")
    after = server.crash("keep")
    assert after.recovered is not None
    backlog = after.recovered.backlog
    app, loop = manual_app(TickingClock(), state=after.engine.state)
    app.services.engine.await_replay(backlog)
    app.requests.begin(app.services)
    waiting = [len(backlog)]
    asked = Request("POST", b"/v0/topics/huge/diff", b"", {b"content-type": b"application/json"}, body, "", 1)
    got = answered(app.answer(asked))
    while not got:
        waiting.append(len(backlog))
        loop.turn()
    assert max(before - now for before, now in pairwise(waiting)) <= 4 * PER_STEP
    whole = got[0].body if isinstance(got[0].body, bytes) else b"".join(got[0].body)
    assert json.loads(whole)["head_seq"] == 20 * PER_STEP
    assert app.services.engine.waits_for_replay("small")
    assert not app.requests.direct
    app.services.engine.replay_all()
    assert isinstance(app.answer(asked), Response)
    assert app.requests.direct, "the fast path is open again"


def test_step_of_a_replay_is_bounded_in_bytes() -> None:
    server = SimServer.start()
    for _ in range(20):
        server.append("t", *[f'"{"x" * 1000}"'] * 100, durability="memory")
    after = server.crash("keep")
    assert after.recovered is not None
    backlog, engine = after.recovered.backlog, after.engine
    engine.await_replay(backlog)
    left = [len(backlog)]
    for _ in engine.replay_in_steps("t"):
        left.append(len(backlog))
    assert {before - now for before, now in pairwise(left)} <= {1, 2, 3}
    assert (left[-1], after.engine.topics["t"].count) == (0, 2000)


def test_longest_slice_is_noted_under_its_cause(slices: Slices, loop: ManualLoop, clock: SimClock):
    def steps() -> Generator[None, None, None]:
        for took_ms in (1, 3, 2):
            clock.advance(ms=took_ms)
            yield None

    slices.run(steps(), lambda _: None, lambda _: None, Cause.CHECKPOINT)
    for _ in range(5):
        loop.turn()
    longest = slices.holds.longest_ns
    assert longest[Cause.CHECKPOINT] == 3_000_000
    assert longest[Cause.REQUEST] == 0


@pytest.mark.parametrize("accept", [b"application/json", b"text/plain"])
@pytest.mark.parametrize("handler", [topics.list_topics, inspection.get_metrics])
def test_one_step_looks_at_a_bounded_number_of_topics(
    monkeypatch: pytest.MonkeyPatch, handler: Callable[..., Answer], accept: bytes
) -> None:
    """A page, and the metrics of as many topics as are named, are made a few hundred topics at a time."""
    app, loop = manual_app(TickingClock(), metrics_max_topics=3000)
    create(app, loop, [f"t{number:04}" for number in range(1100)])
    looked_at, most = 0, 0

    def count(name: str) -> None:
        expire = getattr(app.services.engine, name)

        def counting(topic: Topic) -> Any:
            nonlocal looked_at
            looked_at += 1
            return expire(topic)

        monkeypatch.setattr(app.services.engine, name, counting)

    count("expire")
    count("expire_in_memory")
    call: Any = Call(request(), None, {}, ANYONE)  # type: ignore[arg-type]
    call.request.query, call.request.headers = b"page_size=1000", {b"accept": accept}
    answer = handler(app.services, call)
    got = answered(answer)
    while not got:
        most, looked_at = max(most, looked_at), 0
        loop.turn()
    assert 0 < most <= 250
    text = text_of(got[0])
    assert text.count(b"t0999") >= 1
    if accept == b"application/json":
        json.loads(text)
