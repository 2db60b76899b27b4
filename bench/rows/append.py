"""w1, w2, w3: appending, against XADD with the same promise about the disk.

A rate of appends that keep less than they promise is not comparable, so after the rounds the server is killed and
started again: unless every record is still there (and, for `fsync`, a sync was timed) the row has no figure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from api import Api
from load import Load, RedisBenchmark, wrk
from payload import DATA, TAG
from peers import Server, running, start_redis, start_topics
from plan import Plan, installed
from row import Ask, Outcome, Reading, Row, at_least
from turns import Contender, ratio, take_turns

IDLE_S = 0.2
XADD = ("XADD", "s", "*", "data", DATA.decode(), "tag", TAG.decode())


@dataclass(frozen=True, kw_only=True)
class Work:
    """The parameters that differ between the three rows."""

    durability: str
    appendfsync: str
    connections: int
    batch: int = 1


def measure(plan: Plan, work: Work) -> Outcome:
    with ExitStack() as stack:
        data_dir = plan.fresh_dir("topics")
        ours = stack.enter_context(running(start_topics(plan, data_dir)))
        Api(ours.port).create("t", durability=work.durability)
        contenders = [
            Contender(
                name=f"topics {work.durability}",
                unit="records/s",
                run=lambda: append_load(
                    ours.port, seconds=plan.scale.round_s, connections=work.connections, batch=work.batch
                ),
                pid=lambda: ours.pid,
                times=work.batch,
            )
        ]
        if installed("redis-server", "redis-benchmark"):
            redis = stack.enter_context(
                running(start_redis(plan, plan.fresh_dir("redis"), appendfsync=work.appendfsync))
            )
            contenders.append(_xadd(plan, redis, work))
        sides = take_turns(contenders, rounds=plan.scale.rounds)
        broken = _broken_promise(plan, ours, data_dir, work.durability)
    if broken:
        return Outcome([Reading(key="XADD", value=None, note=broken)], sides)
    return Outcome([ratio("XADD", sides[0], sides[1] if len(sides) > 1 else None)], sides)


def _broken_promise(plan: Plan, server: Server, data_dir: Path, durability: str) -> str:
    """End the server and return which promise about these appends was broken; an empty string if none was."""
    api = Api(server.port)
    answer = api.call("POST", "/v0/topics/t", {"records": [{"data": 1}]})
    if durability == "fsync" and not answer["performance"].get("fsync_ms"):
        return "an `fsync` append was answered without a sync"
    time.sleep(IDLE_S)  # requests that wrk abandoned at the end of its round are in by now
    promised = api.count("t")
    server.kill()
    with running(start_topics(plan, data_dir)) as again:
        status, body = Api(again.port).raw("GET", "/v0/topics/t")
    kept = int(json.loads(body)["count"]) if status == 200 else 0
    return "" if kept == promised else f"only {kept:,} of {promised:,} records were there after SIGKILL"


def append_load(
    port: int, *, seconds: float, topic: str = "t", connections: int = 32, batch: int = 1, key: str = ""
) -> Load:
    """Run one round of appends by wrk. Other rows that compare with "w1" call this as well."""
    args = (str(batch),)
    return wrk(port, "append.lua", f"/v0/topics/{topic}", connections=connections, seconds=seconds, args=args, key=key)


def _xadd(plan: Plan, redis: Server, work: Work) -> Contender:
    seconds = plan.scale.round_s
    load = RedisBenchmark(redis.port, *XADD, clients=work.connections, pipeline=work.batch, seconds=seconds)
    name = f"XADD, appendfsync {work.appendfsync}"
    return Contender(name=name, unit="records/s", run=load.run, pid=lambda: redis.pid)


def _measure(work: Work) -> Callable[[Plan], Outcome]:
    return lambda plan: measure(plan, work)


ROWS = (
    Row(
        id="w1",
        title="append 1 record a request, 32 connections, `disk`",
        peer="XADD, 32 clients, appendfsync everysec",
        asks=(Ask(key="XADD", bar=at_least(0.5), goal=at_least(0.7)),),
        measure=_measure(Work(durability="disk", appendfsync="everysec", connections=32)),
    ),
    Row(
        id="w2",
        title="append 100 records a request, 16 connections, `disk`",
        peer="XADD pipelined by 100, 16 clients",
        asks=(Ask(key="XADD", bar=at_least(1.5), goal=at_least(4)),),
        measure=_measure(Work(durability="disk", appendfsync="everysec", connections=16, batch=100)),
    ),
    Row(
        id="w3",
        title="append 1 record a request, 32 connections, `fsync`",
        peer="XADD, 32 clients, appendfsync always",
        asks=(Ask(key="XADD", bar=at_least(0.4), goal=at_least(1), cpu_bound=False),),
        measure=_measure(Work(durability="fsync", appendfsync="always", connections=32)),
    ),
)
