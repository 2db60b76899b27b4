"""w4, w5: reads of a large batch anywhere in a topic, and of one record at its head."""

from __future__ import annotations

from contextlib import ExitStack

import resp
from api import Api
from fill import send_all
from load import Load, RedisBenchmark, wrk
from payload import appends
from peers import Server, running, start_floor, start_redis, start_topics
from plan import Plan, installed
from row import Ask, Outcome, Row, at_least
from turns import Contender, ratio, take_turns

LIMIT = 1_000
READERS = 8


def diff_load(port: int, *, seconds: float, head: int, topic: str = "t", node: str = "", key: str = "") -> Load:
    """Run one round of reads of 1000 records by wrk. Other rows that compare with "w4" call this as well."""
    args = (str(head), str(LIMIT), node) if node else (str(head), str(LIMIT))
    path = f"/v0/topics/{topic}/diff"
    return wrk(port, "diff.lua", path, connections=READERS, seconds=seconds, args=args, key=key)


def filled_server(plan: Plan, records: int) -> Server:
    """Start a topics server with a topic `t` of this many records."""
    server = start_topics(plan, plan.fresh_dir("topics"))
    Api(server.port).create("t", durability="disk")
    send_all(server.port, appends("t", records, per_request=1_000))
    return server


def measure_ranges(plan: Plan) -> Outcome:
    records, seconds = plan.scale.records, plan.scale.round_s
    with ExitStack() as stack:
        ours = stack.enter_context(running(filled_server(plan, records)))
        got = len(Api(ours.port).diff("t", from_seq=records // 2, limit=LIMIT)["records"])
        assert got == LIMIT, f"a read answered {got} records"
        body_bytes = Api(ours.port).diff_size("t", from_seq=records // 2, limit=LIMIT)
        floor = stack.enter_context(running(start_floor(plan, body_bytes)))
        contenders = [
            Contender(
                name="topics diff",
                unit="reads/s",
                run=lambda: diff_load(ours.port, seconds=seconds, head=records),
                pid=lambda: ours.pid,
            ),
            Contender(
                name=f"floor, {body_bytes:,} bytes",
                unit="reads/s",
                run=lambda: diff_load(floor.port, seconds=seconds, head=records),
                pid=lambda: floor.pid,
            ),
        ]
        if installed("redis-server", "redis-benchmark"):
            redis = stack.enter_context(running(start_redis(plan, plan.fresh_dir("redis"), appendfsync=None)))
            resp.fill(redis.port, resp.xadds(b"s", records, explicit_ids=True))
            contenders += _xranges(plan, redis)
        sides = take_turns(contenders, rounds=plan.scale.rounds)
    parsed, unparsed = (sides[2], sides[3]) if len(sides) > 2 else (None, None)
    readings = [
        ratio("XRANGE", sides[0], parsed),
        ratio("XRANGE, answers not parsed", sides[0], unparsed),
        ratio("floor", sides[0], sides[1]),
    ]
    return Outcome(readings, sides)


def _xranges(plan: Plan, redis: Server) -> list[Contender]:
    records, seconds = plan.scale.records, plan.scale.round_s
    words = ("XRANGE", "s", "__rand_int__", "+", "COUNT", str(LIMIT))
    load = RedisBenchmark(redis.port, *words, clients=READERS, seconds=seconds, random_below=records)
    return [
        Contender(name="XRANGE by redis-benchmark", unit="reads/s", run=load.run, pid=lambda: redis.pid),
        Contender(
            name="XRANGE, answers not parsed",
            unit="reads/s",
            run=lambda: resp.read_ranges(redis.port, last_id=records, clients=READERS, seconds=seconds),
            pid=lambda: redis.pid,
        ),
    ]


def measure_head(plan: Plan) -> Outcome:
    records, seconds = 10_000, plan.scale.round_s
    args = (str(records),)
    with ExitStack() as stack:
        ours = stack.enter_context(running(filled_server(plan, records)))
        body_bytes = Api(ours.port).diff_size("t", from_seq=records - 1, limit=1)
        floor = stack.enter_context(running(start_floor(plan, body_bytes)))

        def load(port: int) -> Load:
            return wrk(port, "head.lua", "/v0/topics/t/diff", connections=32, seconds=seconds, args=args)

        sides = take_turns(
            [
                Contender(name="topics diff", unit="reads/s", run=lambda: load(ours.port), pid=lambda: ours.pid),
                Contender(
                    name=f"floor, {body_bytes:,} bytes",
                    unit="reads/s",
                    run=lambda: load(floor.port),
                    pid=lambda: floor.pid,
                ),
            ],
            rounds=plan.scale.rounds,
        )
    return Outcome([ratio("floor", sides[0], sides[1])], sides)


ROWS = (
    Row(
        id="w4",
        title="`diff` limit 1000 over a topic of 1 M records, 8 connections, cursors spread over it",
        peer="XRANGE COUNT 1000 likewise; the floor with a body of that size",
        asks=(
            Ask(key="XRANGE", bar=at_least(16), goal=at_least(25)),
            Ask(key="XRANGE, answers not parsed"),
            Ask(key="floor", goal=at_least(0.8)),
        ),
        measure=measure_ranges,
    ),
    Row(
        id="w5",
        title="`diff` at the head, limit 1, 32 connections",
        peer="floor",
        asks=(Ask(key="floor", bar=at_least(0.6), goal=at_least(0.8)),),
        measure=measure_head,
    ),
)
