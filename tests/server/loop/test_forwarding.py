"""When forwarding gets its turns: at once for few copies, with rests in between for many."""

from itertools import count

from msgspec import Raw

from tests.live.manual import ManualLoop, manual_app
from tests.simulated.clock import SimClock
from topics.engine.engine import Engine
from topics.model.records import NewRecord, WriteRequest
from topics.model.router import RouterRequest
from topics.server.app import TopicsApp
from topics.server.loop.forwarding import FEW_WRITES, Forwarding

TURNS = 5


def routed(destinations: int) -> tuple[TopicsApp, ManualLoop]:
    """Return a server with routers out of one topic. Requests come all the time, and only forwarding takes time."""
    clock = SimClock()
    app, loop = manual_app(clock)
    forwarder = app.services.engine.routers.forwarder
    run = forwarder.run

    def slow_run(budget_ns: int) -> int | None:
        clock.advance(ms=1)
        return run(budget_ns)

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
