"""w6, w7: one writer and many watchers of one topic, at a steady rate and at full speed."""

from __future__ import annotations

from contextlib import ExitStack
from socket import socket
from statistics import median

import resp
from api import Api
from fanout import (
    Flood,
    Received,
    Writer,
    append_request,
    open_relayed,
    open_streams,
    paced,
    publish_request,
    subscribe,
    topics_writer,
    watch,
)
from peers import Server, resident_bytes, running, start_redis, start_relay, start_topics
from plan import Plan, installed
from row import Ask, Outcome, Reading, Row, Side, at_least, at_most
from turns import Contender, ratio, take_turns

FEW, MANY = 100, 1_000
PER_S = 100
PIPELINE = 16
TOPIC = "t"


def topics_server(plan: Plan) -> Server:
    server = start_topics(plan, plan.fresh_dir("topics"))
    Api(server.port).create(TOPIC, durability="disk")
    return server


def _floor(plan: Plan) -> Server:
    return start_relay(plan, plan.fresh_dir("floor") / "file")


def measure_latency(plan: Plan) -> Outcome:
    sides, readings = [], []
    with running(topics_server(plan)) as ours, running(_floor(plan)) as floor:
        for watchers in (FEW, MANY):
            served, bare = [], []
            for _ in range(plan.scale.rounds):
                served.append(_paced(plan, ours, open_streams(ours.port, TOPIC, watchers)))
                bare.append(_paced(plan, floor, open_relayed(floor.port, watchers)))
            name = f"{watchers} watchers"
            sides += [latency_side(name, served), latency_side(f"{name}, floor", bare)]
            readings += [
                Reading(key=f"p99, {side.name}", value=side.p99_ms, note=f"p50 {side.p50_ms:.2f} ms")
                for side in sides[-2:]
            ]
        readings.append(_idle_memory(ours))
    return Outcome(readings, sides)


def _paced(plan: Plan, server: Server, links: list[socket]) -> Received:
    return paced(topics_writer(server.port, TOPIC), links, per_s=PER_S, seconds=plan.scale.round_s)


def latency_side(name: str, rounds: list[Received]) -> Side:
    p99 = [percentile(received, 99) for received in rounds]
    p50 = median(percentile(received, 50) for received in rounds)
    return Side(name=name, unit="ms p99", rounds=tuple(p99), median=median(p99), p50_ms=p50, p99_ms=median(p99))


def percentile(received: Received, percent: int) -> float:
    ordered = sorted(received.latencies_ms)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


def _idle_memory(ours: Server) -> Reading:
    """Return the growth of the private memory of the process by a thousand idle watchers with their sessions."""
    watch(ours.port, TOPIC, MANY).close()  # whatever the first of them cost for good is paid
    before = resident_bytes(ours.pid)[1]
    waiting = watch(ours.port, TOPIC, MANY)
    grown = resident_bytes(ours.pid)[1] - before
    waiting.close()
    return Reading(key="idle watcher", value=grown / MANY / 1024)


def measure_flood(plan: Plan) -> Outcome:
    with ExitStack() as stack:
        ours = stack.enter_context(running(topics_server(plan)))
        contenders = [streams_load(plan, ours)]
        if installed("redis-server"):
            redis = stack.enter_context(running(start_redis(plan, plan.fresh_dir("redis"), appendfsync=None)))
            channel = Flood(
                lambda: subscribe(redis.port, MANY),
                lambda: Writer(resp.connect(redis.port), publish_request(), b"\r\n", depth=PIPELINE),
                plan.scale.round_s,
            )
            contenders.append(flood_load("Redis pub/sub", channel, redis))
        sides = take_turns(contenders, rounds=plan.scale.rounds)
    return Outcome([ratio("pub/sub", sides[0], sides[1] if len(sides) > 1 else None)], sides)


def streams_load(plan: Plan, server: Server) -> Contender:
    flood = Flood(
        lambda: watch(server.port, TOPIC, MANY),
        lambda: Writer(resp.connect(server.port), append_request(TOPIC), b"HTTP/1.1 200", depth=PIPELINE),
        plan.scale.round_s,
    )
    return flood_load("topics, event streams", flood, server)


def flood_load(name: str, flood: Flood, server: Server) -> Contender:
    return Contender(name=name, unit="deliveries/s", run=flood.run, before=flood.open, pid=lambda: server.pid)


ROWS = (
    Row(
        id="w6",
        title="one writer, 100 and 1000 SSE watchers of one topic, 100 appends a second: write to delivery",
        peer="a bare loop that sends each write to all (relay.py)",
        asks=(
            Ask(key=f"p99, {FEW} watchers", unit="ms", bar=at_most(5)),
            Ask(key=f"p99, {FEW} watchers, floor", unit="ms"),
            Ask(key=f"p99, {MANY} watchers", unit="ms", bar=at_most(6), goal=at_most(4)),
            Ask(key=f"p99, {MANY} watchers, floor", unit="ms"),
            Ask(key="idle watcher", unit="KiB"),
        ),
        measure=measure_latency,
        needs=(),
        time_limit_s=600,
    ),
    Row(
        id="w7",
        title="the same fan-out as fast as it goes: records delivered a second to 1000 watchers",
        peer="Redis pub/sub, 1000 subscribers, publisher pipelined by 16",
        asks=(Ask(key="pub/sub", bar=at_least(1), goal=at_least(2)),),
        measure=measure_flood,
        needs=(),
    ),
)
