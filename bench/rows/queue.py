"""w8: 50 workers process a queue, 8 jobs at a time, against a Redis consumer group."""

from __future__ import annotations

from contextlib import ExitStack

import resp
from api import Api
from fill import send_all
from payload import appends
from peers import Server, running, start_redis, start_topics
from plan import Plan, installed
from row import Ask, Outcome, Row, at_least
from turns import Contender, ratio, take_turns
from workers import RedisStream, Topics, work_off

WORKERS = 50
BATCH = 8
JOBS = 20_000


def measure(plan: Plan) -> Outcome:
    with ExitStack() as stack:
        ours = stack.enter_context(running(start_topics(plan, plan.fresh_dir("topics"))))
        contenders = [_topics(ours)]
        if installed("redis-server"):
            redis = stack.enter_context(running(start_redis(plan, plan.fresh_dir("redis"), appendfsync="everysec")))
            contenders.append(_redis(redis))
        sides = take_turns(contenders, rounds=plan.scale.rounds)
    return Outcome([ratio("XREADGROUP", sides[0], sides[1] if len(sides) > 1 else None)], sides)


def _topics(server: Server) -> Contender:
    def fill() -> None:
        Api(server.port).create("jobs", type="queue", durability="disk")
        send_all(server.port, appends("jobs", JOBS, per_request=1_000))

    return Contender(
        name="topics disk",
        unit="jobs/s",
        run=lambda: work_off(server.port, Topics("jobs", BATCH), workers=WORKERS, jobs=JOBS),
        before=fill,
        pid=lambda: server.pid,
    )


def _redis(server: Server) -> Contender:
    def fill() -> None:
        resp.ask(server.port, b"DEL", b"s")
        resp.fill(server.port, resp.xadds(b"s", JOBS, explicit_ids=False))
        resp.ask(server.port, b"XGROUP", b"CREATE", b"s", b"g", b"0")

    return Contender(
        name="XREADGROUP, XACK, XDEL, appendfsync everysec",
        unit="jobs/s",
        run=lambda: work_off(server.port, RedisStream(b"s", b"g", BATCH), workers=WORKERS, jobs=JOBS),
        before=fill,
        pid=lambda: server.pid,
    )


ROW = Row(
    id="w8",
    title="queue: 50 workers, claim 8, ack 8, 20,000 jobs",
    peer="XREADGROUP COUNT 8 + XACK + XDEL, 50 clients",
    asks=(Ask(key="XREADGROUP", bar=at_least(0.5), goal=at_least(1)),),
    measure=measure,
    needs=(),
)
