"""When forwarding gets its turns: at once for few copies, with rests in between for many."""

from itertools import count

import pytest
from msgspec import Raw

from tests.live.manual import ManualLoop, manual_app
from tests.simulated.clock import SimClock
from topics.engine.delays import FEW_RECORDS, FEW_WRITES, REST
from topics.engine.engine import Engine
from topics.model.records import NewRecord, WriteRequest
from topics.model.router import RouterRequest
from topics.server.app import TopicsApp
from topics.server.loop.forwarding import Forwarding

TURNS = 5


def routed(destinations: int) -> tuple[TopicsApp, ManualLoop]:
    """Return a server with routers out of one topic. Requests come all the time, and only forwarding takes time."""
    clock = SimClock()
    app, loop = manual_app(clock)
    forwarder = app.services.engine.routers.forwarder
    run = forwarder.run

    def slow_run(budget_ns: int, *, most: int = 0) -> int | None:
        clock.advance(ms=1)
        return run(budget_ns, most=most)

    forwarder.run = slow_run  # type: ignore[method-assign]
    Forwarding(app.services.runtime, count(1).__next__)
    for at in range(destinations):
        app.services.engine.routers.put(f"r{at}", RouterRequest(source="s", dest=f"d{at}"))
    turn(loop)
    clock.advance(ms=1000)
    return app, loop


def turn(loop: ManualLoop) -> None:
    for _ in range(TURNS):
        loop.turn()


def write(engine: Engine, records: int = 1) -> None:
    for _ in range(records):
        engine.append("s", WriteRequest([NewRecord(Raw(b"1"))]))


def test_copy_of_a_single_write_is_made_at_once_every_time():
    app, loop = routed(destinations=1)
    engine = app.services.engine
    for written in range(1, 6):
        write(engine)
        turn(loop)
        assert engine.topic("d0").head == written


def heads_after_one_turn(app: TopicsApp, loop: ManualLoop) -> list[int]:
    """Return the heads of all destinations when the callbacks of the loop that answer the writes have run."""
    loop.turn()
    engine = app.services.engine
    assert engine.topic("s").head
    return [topic.head for name, topic in sorted(engine.topics.items()) if name != "s"]


def test_few_copies_are_there_when_the_turn_of_their_write_ends():
    app, loop = routed(destinations=4)
    for written in range(1, 6):
        write(app.services.engine)
        assert heads_after_one_turn(app, loop) == [written] * 4


def test_copies_of_a_line_of_four_routers_are_there_when_the_turn_ends():
    app, loop = routed(destinations=1)
    for at in range(4):
        app.services.engine.routers.put(f"line{at}", RouterRequest(source=f"d{at}", dest=f"d{at + 1}"))
    turn(loop)
    write(app.services.engine)
    assert heads_after_one_turn(app, loop) == [1, 1, 1, 1, 0]
    assert loop.fire(REST / 1000) == 1
    assert app.services.engine.topic("d4").head == 1


@pytest.mark.parametrize(("destinations", "writes"), [(5, 1), (1, FEW_WRITES + 1)])
def test_answers_do_not_wait_for_many_copies(destinations: int, writes: int):
    app, loop = routed(destinations)
    write(app.services.engine, writes)
    assert heads_after_one_turn(app, loop) == [0] * destinations


@pytest.mark.parametrize("records", [FEW_RECORDS, FEW_RECORDS + 1])
def test_answer_of_a_large_write_does_not_wait_for_its_copies(records: int):
    app, loop = routed(destinations=1)
    app.services.engine.append("s", WriteRequest([NewRecord(Raw(b"1"))] * records))
    assert heads_after_one_turn(app, loop) == [records if records <= FEW_RECORDS else 0]


def test_forwarding_that_has_stopped_copies_nothing():
    app, _loop = routed(destinations=1)
    engine = app.services.engine
    forwarding: Forwarding = engine.routers.due.wake.__self__  # type: ignore[attr-defined]
    write(engine)
    engine.commits.flush()
    forwarding.stop()
    engine.commits.end_turn()
    assert engine.topic("d0").head == 0


def test_forwarding_rests_after_many_writes():
    app, loop = routed(destinations=1)
    engine = app.services.engine
    write(engine, FEW_WRITES + 1)
    turn(loop)
    assert engine.topic("d0").head == FEW_WRITES + 1
    write(engine)
    turn(loop)
    assert engine.topic("d0").head == FEW_WRITES + 1, "the timer of the rest never fires on this loop"


def test_forwarding_rests_after_copies_to_many_destinations():
    app, loop = routed(destinations=6)
    engine = app.services.engine
    for _ in range(2):
        write(engine)
        turn(loop)
    assert {engine.topic(f"d{at}").head for at in range(6)} == {1}
