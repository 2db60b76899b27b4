"""Rows of a queue that 50 workers process, 8 jobs at a time.

w8   against a Redis consumer group
w8k  with keys, w8l with limits, w8r with reasons: each against the same queue without
w8b  one job at a time, beside a million jobs that wait for their key
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import resp
from api import Api
from fill import send_all
from payload import appends
from peers import Server, cpu_s, running, start_redis, start_topics
from plan import Plan, installed
from row import Ask, Outcome, Reading, Row, at_least, at_most
from turns import Contender, ratio, take_turns
from workers import RedisStream, Topics, work_off

WORKERS = 50
BATCH = 8
JOBS = 20_000
KEYS = 10_000
BLOCKED = 1_000_000
CLAIMED = 1_000  # at a time, to give each job a reason; and one by one beside those that are blocked
MANY = {"per_s": 1_000_000, "burst": 1_000_000}  # a limit that delays no job


def measure(plan: Plan) -> Outcome:
    with ExitStack() as stack:
        ours = stack.enter_context(running(start_topics(plan, plan.fresh_dir("topics"))))
        contenders = [queue_load(ours)]
        if installed("redis-server"):
            redis = stack.enter_context(running(start_redis(plan, plan.fresh_dir("redis"), appendfsync="everysec")))
            contenders.append(_redis(redis))
        sides = take_turns(contenders, rounds=plan.scale.rounds)
    return Outcome([ratio("XREADGROUP", sides[0], sides[1] if len(sides) > 1 else None)], sides)


def queue_load(server: Server, *, workers: int = WORKERS, batch: int = BATCH) -> Contender:
    def fill() -> None:
        Api(server.port).create("jobs", type="queue", durability="disk")
        send_all(server.port, appends("jobs", JOBS, per_request=1_000))

    return Contender(
        name="topics disk",
        unit="jobs/s",
        run=lambda: work_off(server.port, [Topics("jobs", batch)] * workers, jobs=JOBS),
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
        run=lambda: work_off(server.port, [RedisStream(b"s", b"g", BATCH)] * WORKERS, jobs=JOBS),
        before=fill,
        pid=lambda: server.pid,
    )


def _measure_variant(key: str, plan: Plan, *, keys: int = 0, failed: bool = False, **config: Any) -> Outcome:
    """Compare a queue with a plain one on the same server, by processor time."""
    with running(start_topics(plan, plan.fresh_dir("topics"))) as ours:
        contenders = [_variant(ours, "plain"), _variant(ours, key, keys=keys, failed=failed, **config)]
        sides = take_turns(contenders, rounds=plan.scale.rounds)
    found = ratio(key, sides[1], sides[0])
    return Outcome([replace(found, value=found.per_cpu_s)], sides)


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
        run=lambda: work_off(server.port, [Topics(name, BATCH)] * WORKERS, jobs=JOBS),
        before=fill,
        pid=lambda: server.pid,
    )


def measure_blocked(plan: Plan) -> Outcome:
    """Measure the processor time of the server for one claim and ack beside many blocked jobs."""
    with running(start_topics(plan, plan.fresh_dir("topics"))) as server:
        api = Api(server.port)
        api.create("blocked", type="queue", durability="disk")
        send_all(server.port, appends("blocked", BLOCKED, per_request=1_000, keys=1))
        own = [_claim_cost_ms(server) for _ in range(plan.scale.rounds)]
        held = api.call("POST", "/v0/topics/blocked/claim", {"node": "other", "max": 9})["claimed"]
        if len(held) != 1:
            raise RuntimeError(f"{len(held)} jobs of one key were claimed")
        send_all(server.port, appends("blocked", 10 * CLAIMED, per_request=1_000, keys=KEYS))
        others = [_claim_cost_ms(server) for _ in range(plan.scale.rounds)]
    names = [ask.key for ask in BLOCKED_ROW.asks]
    return Outcome([Reading(key=key, value=median(costs)) for key, costs in zip(names, (own, others), strict=True)])


def _claim_cost_ms(server: Server) -> float:
    """Return the processor time of one claim and ack, the mean of `CLAIMED`."""
    link, dialect = socket.create_connection(("127.0.0.1", server.port), timeout=60), Topics("blocked", 1)
    before = cpu_s(server.pid)

    def ask(request: bytes) -> bytes:
        answer = b""
        link.sendall(request)
        while dialect.claimed(answer) is None:
            answer += link.recv(1 << 16)
        return answer

    with link:
        for _ in range(CLAIMED):
            jobs = dialect.claimed(ask(dialect.claim()))
            if not jobs or not dialect.acked(ask(dialect.ack(jobs))):
                raise RuntimeError("there is no job to claim")
    return (cpu_s(server.pid) - before) / CLAIMED * 1000


ROW = Row(
    id="w8",
    title="queue: 50 workers, claim 8, ack 8, 20,000 jobs",
    peer="XREADGROUP COUNT 8 + XACK + XDEL, 50 clients",
    asks=(Ask(key="XREADGROUP", bar=at_least(0.8), goal=at_least(1.2)),),
    measure=measure,
    needs=(),
)


def _row(row_id: str, key: str, title: str, **options: Any) -> Row:
    return Row(
        id=row_id,
        title=f"queue: w8 {title}",
        peer="w8 without, per second of the server's processor time",
        asks=(Ask(key=key, bar=at_least(0.8)),),
        measure=partial(_measure_variant, key, **options),
        needs=(),
        time_limit_s=600,
    )


BLOCKED_ROW = Row(
    id="w8b",
    title="queue: claim and ack of one job, with 1,000,000 jobs of one key behind it",
    peer="",
    asks=(
        Ask(key="claim and ack of that key", unit="ms", bar=at_most(1)),
        Ask(key="claim and ack of other keys", unit="ms", bar=at_most(1)),
    ),
    measure=measure_blocked,
    needs=(),
    time_limit_s=600,
)
ROWS = (
    ROW,
    _row("w8k", "keys", "with 10,000 keys", keys=KEYS),
    _row("w8l", "limits", "with max_in_flight and rate", max_in_flight=JOBS, rate=MANY),
    _row("w8r", "reasons", "with jobs that have failed once, for a reason", failed=True),
    BLOCKED_ROW,
)
