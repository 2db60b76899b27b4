"""w23: one topic per actor, created by its first append, written, read about and cut: its requests against those of w1.

A client keeps 32 requests in flight. The requests of an actor are far enough apart that each finds the effect of the
one before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from api import Api
from fill import send_all
from payload import batch, post
from peers import running, start_topics
from plan import Plan
from row import Ask, Outcome, Row, at_least
from rows.append import append_load
from turns import Contender, ratio, take_turns

CONNECTIONS = 32
ACTORS_A_GROUP = 4 * CONNECTIONS  # the requests of a group follow each other step by step
APPENDS, RECORDS = 5, 5
REQUESTS_AN_ACTOR = APPENDS + 2
GROUPS_A_ROUND = 24  # about 20,000 requests
APPEND = batch(RECORDS)
DELETE = b'{"before_seq":%d}' % (APPENDS * RECORDS - RECORDS)


def actors(first: int, groups: int) -> Iterator[bytes]:
    """Yield the requests of new actors, whose numbers begin with `first`."""
    for start in range(first, first + groups * ACTORS_A_GROUP, ACTORS_A_GROUP):
        paths = [f"/v0/topics/actor-{number}" for number in range(start, start + ACTORS_A_GROUP)]
        for _ in range(APPENDS):
            yield from (post(path, APPEND) for path in paths)
        yield from (f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode() for path in paths)
        yield from (post(f"{path}/delete", DELETE) for path in paths)


def measure(plan: Plan) -> Outcome:
    with running(start_topics(plan, plan.fresh_dir("topics"), TOPICS_MAX_TOPICS="0")) as server:
        Api(server.port).create("t", durability="disk")
        rounds = count()

        def run() -> float:
            first = next(rounds) * GROUPS_A_ROUND * ACTORS_A_GROUP
            requests = actors(first, GROUPS_A_ROUND)
            elapsed = send_all(server.port, requests, connections=CONNECTIONS, window=1)
            return GROUPS_A_ROUND * ACTORS_A_GROUP * REQUESTS_AN_ACTOR / elapsed

        sides = take_turns(
            [
                Contender(name="actors", unit="requests/s", run=run, pid=lambda: server.pid),
                Contender(
                    name="1 topic",
                    unit="requests/s",
                    run=lambda: append_load(server.port, seconds=plan.scale.round_s, topic="t"),
                    pid=lambda: server.pid,
                ),
            ],
            rounds=plan.scale.rounds,
        )
    return Outcome([ratio("w1", sides[0], sides[1])], sides)


ROW = Row(
    id="w23",
    title=f"actors: new topics, {APPENDS} appends of {RECORDS} records each, `GET`, `delete`; 32 connections",
    peer="w1: appends of one record to one topic",
    asks=(Ask(key="w1", bar=at_least(0.6), goal=at_least(0.9)),),
    measure=measure,
)
