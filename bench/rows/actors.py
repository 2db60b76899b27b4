"""w23: one topic per actor, created by its first append, written, read about and cut: requests per second of the
server's processor time, against those of w1 and against Redis with a stream per actor.

A client keeps 32 requests in flight. The requests of an actor are far enough apart that each finds the effect of the
one before it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count

import resp
from api import Api
from fill import send_all
from inflight import connect, keep_in_flight
from payload import DATA, TAG, batch, post
from peers import Server, running, start_redis, start_topics
from plan import Plan, installed
from row import Ask, Outcome, Reading, Row, Side, at_least
from rows.append import append_load
from turns import Contender, is_crowded, ratio, take_turns

CONNECTIONS = 32
ACTORS_A_GROUP = 4 * CONNECTIONS  # the requests of a group follow each other step by step
APPENDS, RECORDS = 5, 5
REQUESTS_AN_ACTOR = APPENDS + 2
GROUPS_A_ROUND = 24  # about 20,000 requests
APPEND = batch(RECORDS)
KEPT = RECORDS + 1
DELETE = b'{"before_seq":%d}' % (APPENDS * RECORDS - KEPT + 1)
REQUESTS_A_ROUND = GROUPS_A_ROUND * ACTORS_A_GROUP * REQUESTS_AN_ACTOR


def actors(first: int, groups: int) -> Iterator[bytes]:
    """Yield the requests of new actors, whose numbers begin with `first`."""
    for start in range(first, first + groups * ACTORS_A_GROUP, ACTORS_A_GROUP):
        paths = [f"/v0/topics/actor-{number}" for number in range(start, start + ACTORS_A_GROUP)]
        for _ in range(APPENDS):
            yield from (post(path, APPEND) for path in paths)
        yield from (f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode() for path in paths)
        yield from (post(f"{path}/delete", DELETE) for path in paths)


def streams(first: int, groups: int) -> Iterator[bytes]:
    """Yield the same for Redis. Each request ends with a PING, whose answer marks the end of its answers."""
    ping = resp.command(b"PING")
    for start in range(first, first + groups * ACTORS_A_GROUP, ACTORS_A_GROUP):
        names = [b"actor-%d" % number for number in range(start, start + ACTORS_A_GROUP)]
        for _ in range(APPENDS):
            for name in names:
                yield resp.command(b"XADD", name, b"*", b"data", DATA, b"tag", TAG) * RECORDS + ping
        yield from (resp.command(b"XREVRANGE", name, b"+", b"-", b"COUNT", b"1") + ping for name in names)
        yield from (resp.command(b"XTRIM", name, b"MAXLEN", b"%d" % KEPT) + ping for name in names)


def measure(plan: Plan) -> Outcome:
    with ExitStack() as stack:
        settings = {"TOPICS_MAX_TOPICS": "0"}
        server = stack.enter_context(running(start_topics(plan, plan.fresh_dir("topics"), **settings)))
        Api(server.port).create("t", durability="disk")
        contenders = [
            _topics(server),
            Contender(
                name="1 topic",
                unit="requests/s",
                run=lambda: append_load(server.port, seconds=plan.scale.round_s, topic="t"),
                pid=lambda: server.pid,
            ),
        ]
        if installed("redis-server"):
            redis = start_redis(plan, plan.fresh_dir("redis"), appendfsync="everysec")
            contenders.append(_redis(stack.enter_context(running(redis))))
        sides = take_turns(contenders, rounds=plan.scale.rounds)
    peers = dict(zip((ask.key for ask in ROW.asks), (sides[1], sides[2] if len(sides) > 2 else None), strict=True))
    return Outcome([_by_cpu(key, sides[0], peer) for key, peer in peers.items()], sides)


def _topics(server: Server) -> Contender:
    rounds = count()

    def run() -> float:
        requests = actors(next(rounds) * GROUPS_A_ROUND * ACTORS_A_GROUP, GROUPS_A_ROUND)
        return REQUESTS_A_ROUND / send_all(server.port, requests, connections=CONNECTIONS, window=1)

    return Contender(name="actors", unit="requests/s", run=run, pid=lambda: server.pid)


def _redis(server: Server) -> Contender:
    rounds = count()

    def run() -> float:
        requests = streams(next(rounds) * GROUPS_A_ROUND * ACTORS_A_GROUP, GROUPS_A_ROUND)
        with ExitStack() as stack:
            links = [stack.enter_context(connect(server.port)) for _ in range(CONNECTIONS)]
            started = time.perf_counter()
            answered = keep_in_flight([(link, requests) for link in links], resp.PONG, depth=1)
            return answered / (time.perf_counter() - started)

    return Contender(name="Redis Streams, appendfsync everysec", unit="requests/s", run=run, pid=lambda: server.pid)


def _by_cpu(key: str, ours: Side, peer: Side | None) -> Reading:
    """Return the ratio for equal processor time: a generator in Python is no match for one in C."""
    found = ratio(key, ours, peer)
    return replace(found, value=found.per_cpu_s, crowded=is_crowded(*filter(None, (ours, peer))))


ROW = Row(
    id="w23",
    title=f"actors: new topics, {APPENDS} appends of {RECORDS} records each, `GET`, `delete`; 32 connections: "
    "requests per second of server CPU",
    peer="w1: appends of one record to one topic; XADD pipelined by 5, XREVRANGE COUNT 1, XTRIM",
    asks=(Ask(key="w1", bar=at_least(0.6), goal=at_least(0.9)), Ask(key="Redis Streams")),
    measure=measure,
    time_limit_s=600,
)
