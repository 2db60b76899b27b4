"""w24: appends of a few records a request, against appends of one: processor time of the server per request."""

from __future__ import annotations

from api import Api
from load import Load
from peers import running, start_topics
from plan import Plan
from row import Ask, Outcome, Reading, Row, Side, at_most
from rows.append import append_load
from turns import Contender, cpu_us, held_up, is_crowded, take_turns

BOUNDS = {2: (1.3, 1.1), 5: (1.5, 1.2), 10: (1.8, 1.4)}  # bar and goal by records a request


def measure(plan: Plan) -> Outcome:
    with running(start_topics(plan, plan.fresh_dir("topics"))) as server:

        def contender(size: int) -> Contender:
            topic = f"by{size}"
            Api(server.port).create(topic, durability="disk")

            def run() -> Load:
                return append_load(server.port, seconds=plan.scale.round_s, topic=topic, batch=size)

            return Contender(name=f"{size} a request", unit="requests/s", run=run, pid=lambda: server.pid)

        one, *batches = take_turns([contender(size) for size in (1, *BOUNDS)], rounds=plan.scale.rounds)
    readings = [_cost(size, side, one) for size, side in zip(BOUNDS, batches, strict=True)]
    return Outcome(readings, [one, *batches])


def _cost(size: int, side: Side, one: Side) -> Reading:
    """Return how many times more processor time a request needs than one with one record."""
    cost, base = cpu_us(side), cpu_us(one)
    notes = [f"{cost:.1f} µs against {base:.1f} µs", held_up(one), held_up(side)]
    note, crowded = "; ".join(filter(None, notes)), is_crowded(one, side)
    return Reading(key=f"{size} records", value=cost / base, note=note, crowded=crowded)


ROW = Row(
    id="w24",
    title="append 2, 5 and 10 records a request, 32 connections, `disk`: server CPU per request",
    peer="the same with 1 record a request",
    asks=tuple(
        Ask(key=f"{size} records", bar=at_most(bar), goal=at_most(goal)) for size, (bar, goal) in BOUNDS.items()
    ),
    measure=measure,
)
