"""Rows of a queue that 50 workers process, 8 jobs at a time.

w8   against a Redis consumer group
w27  with keys, with limits and with reasons, each against the same queue without
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

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
KEYS = 10_000
CLAIMED = 1_000  # at a time, to give each job a reason


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


def measure_features(plan: Plan) -> Outcome:
    many = {"per_s": 1_000_000, "burst": 1_000_000}
    with running(start_topics(plan, plan.fresh_dir("topics"))) as ours:
        contenders = [
            _variant(ours, "plain"),
            _variant(ours, "keys", keys=KEYS),
            _variant(ours, "limits", max_in_flight=JOBS, rate=many),
            _variant(ours, "reasons", failed=True),
        ]
        plain, *others = take_turns(contenders, rounds=plan.scale.rounds)
    return Outcome([ratio(one.name, one, plain) for one in others], [plain, *others])


def _variant(server: Server, name: str, *, keys: int = 0, failed: bool = False, **config: Any) -> Contender:
    def fill() -> None:
        api = Api(server.port)
        api.create(name, type="queue", durability="disk", **config)
        send_all(server.port, appends(name, JOBS, per_request=1_000, keys=keys))
        rounds = range(JOBS // CLAIMED if failed else 0)
        held = [api.call("POST", f"/v0/topics/{name}/claim", {"node": "w", "max": CLAIMED})["claimed"] for _ in rounds]
        for jobs in held:
            failure = {"node": "w", "seqs": [job["$seq"] for job in jobs], "reason": "the mail server does not answer"}
            api.call("POST", f"/v0/topics/{name}/nack", failure)

    return Contender(
        name=name,
        unit="jobs/s",
        run=lambda: work_off(server.port, Topics(name, BATCH), workers=WORKERS, jobs=JOBS),
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

FEATURES = Row(
    id="w27",
    title="queue: w8 with 10,000 keys, with limits, and with jobs that have failed",
    peer="the same without",
    asks=tuple(Ask(key=key, bar=at_least(0.8)) for key in ("keys", "limits", "reasons")),
    measure=measure_features,
    needs=(),
)
ROWS = ROW, FEATURES
