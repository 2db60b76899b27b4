"""w10: resident memory per record beyond its payload (its data and its tag)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import resp
from api import Api
from fill import send_all
from payload import PAYLOAD_BYTES, appends, tagged_appends
from peers import memory_at_rest, running, start_redis, start_topics
from plan import Plan, installed
from row import Ask, Outcome, Reading, Row, Side, at_most


def measure(plan: Plan) -> Outcome:
    total = plan.scale.records
    kept = _grown(plan, plan.fresh_dir("topics"), appends("t", total, per_request=100))
    memory_only = _grown(plan, None, appends("t", total, per_request=100))
    distinct = tagged_appends("t", total, per_request=100, distinct=True)
    tagged = _grown(plan, plan.fresh_dir("topics"), distinct)
    sides = [
        _side("topics, with a data directory", kept[0]),
        _side("topics, with a data directory, not file-backed", kept[1]),
        _side("topics, memory only", memory_only[0]),
        _side("topics, a tag of its own for every record", tagged[0]),
    ]
    if installed("redis-server"):
        sides.append(_side("Redis MEMORY USAGE", _redis_bytes(plan, distinct_tags=False)))
        sides.append(_side("Redis MEMORY USAGE, a tag of its own", _redis_bytes(plan, distinct_tags=True)))
    readings = [
        Reading(key="data directory", value=kept[0], note=_against(sides, kept[0])),
        Reading(key="memory only", value=memory_only[0]),
        Reading(key="distinct tags", value=tagged[0]),
    ]
    return Outcome(readings, sides)


def _grown(plan: Plan, data_dir: Path | None, requests: Iterator[bytes]) -> tuple[float, float]:
    """Return the bytes per record beyond its payload: all resident memory, and the part that no file backs.

    The baseline is taken after some traffic on another topic, so that code and buffers which any traffic brings in
    are not counted as the cost of records.
    """
    with running(start_topics(plan, data_dir)) as server:
        api = Api(server.port)
        api.create("t", durability="disk")
        send_all(server.port, appends("warm", 2_000, per_request=100))
        before = memory_at_rest(server.pid)
        send_all(server.port, requests)
        after = memory_at_rest(server.pid)
        records = api.count("t")
    assert records == plan.scale.records, f"{records} records after the load"
    return _overhead(after[0] - before[0], records), _overhead(after[1] - before[1], records)


def _overhead(size_bytes: int, records: int) -> float:
    return size_bytes / records - PAYLOAD_BYTES


def _redis_bytes(plan: Plan, *, distinct_tags: bool) -> float:
    with running(start_redis(plan, plan.fresh_dir("redis"), appendfsync=None)) as server:
        entries = resp.xadds(b"s", plan.scale.records, explicit_ids=False, distinct_tags=distinct_tags)
        resp.fill(server.port, entries)
        used = int(resp.ask(server.port, b"MEMORY", b"USAGE", b"s", b"SAMPLES", b"0"))
    return _overhead(used, plan.scale.records)


def _side(name: str, overhead_bytes: float) -> Side:
    return Side(name=name, unit="bytes/record", rounds=(overhead_bytes,), median=overhead_bytes)


def _against(sides: list[Side], ours: float) -> str:
    redis = next((side.median for side in sides if side.name == "Redis MEMORY USAGE"), None)
    return "" if redis is None else f"Redis: {redis:.0f} bytes, ours {ours - redis:+.0f}"


ROW = Row(
    id="w10",
    title="resident memory a record beyond its payload, 1 M records",
    peer="Redis MEMORY USAGE of the stream",
    asks=(
        Ask(key="data directory", unit="bytes", bar=at_most(60), goal=at_most(40)),
        Ask(key="memory only", unit="bytes", bar=at_most(60), goal=at_most(40)),
        Ask(key="distinct tags", unit="bytes"),
    ),
    measure=measure,
    needs=(),
)
