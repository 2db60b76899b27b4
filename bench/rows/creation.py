"""w31: what it costs to create a topic, by its first append and by `PUT`, one after the other on one connection.

The figure is processor time of the server. The server waits for the client between two requests, so how busy it was
says nothing: how long it waited for its core does.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from fill import send_all
from payload import batch, post, put
from peers import Server, cpu_s, running, start_topics, waited_s
from plan import Plan
from row import Ask, Outcome, Reading, Row, Side, at_most
from turns import Contender, cpu_us, take_turns

A_ROUND = 2_000
CROWDED = 0.1  # of its processor time: if a server waited longer for its core, others have emptied its caches
BY_APPEND, BY_PUT = "first append", "PUT"


def by_append() -> Iterator[bytes]:
    """Yield appends of one record, each to a topic of its own."""
    return (post(f"/v0/topics/a{number}", batch(1)) for number in count())


def by_put() -> Iterator[bytes]:
    return (put(f"/v0/topics/p{number}", b"{}") for number in count())


def measure(plan: Plan) -> Outcome:
    with running(start_topics(plan, plan.fresh_dir("topics"), TOPICS_MAX_TOPICS="0")) as server:
        waited, used = waited_s(server.pid), cpu_s(server.pid)
        contenders = [_contender(server, BY_APPEND, by_append()), _contender(server, BY_PUT, by_put())]
        sides = take_turns(contenders, rounds=plan.scale.rounds)
        waited, used = waited_s(server.pid) - waited, cpu_s(server.pid) - used
    share = waited / used
    return Outcome([_reading(side, share) for side in sides], sides)


def _contender(server: Server, name: str, requests: Iterator[bytes]) -> Contender:
    def run() -> float:
        return A_ROUND / send_all(server.port, islice(requests, A_ROUND), connections=1, window=1)

    return Contender(name=name, unit="topics/s", run=run, pid=lambda: server.pid)


def _reading(side: Side, share: float) -> Reading:
    note = f"without a core for {share:.0%} of its processor time" if share > CROWDED else ""
    return Reading(key=side.name, value=cpu_us(side), note=note, crowded=share > CROWDED)


ROW = Row(
    id="w31",
    title="create a topic by its first append of one record, or by `PUT`, one connection: server CPU per topic",
    peer="none",
    asks=(
        Ask(key=BY_APPEND, unit="µs", bar=at_most(100), goal=at_most(60)),
        Ask(key=BY_PUT, unit="µs", bar=at_most(120), goal=at_most(60)),
    ),
    measure=measure,
    needs=(),
    time_limit_s=600,
)
