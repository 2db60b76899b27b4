"""w11: a source with 100 routers against the same source without routers: append rate and size of the log.

The acks are timed one at a time, so that the figure is a latency and not the share of the processor that copies take:
one connection writes, the copies are made between its writes, and the medians are compared. Copies must have arrived at
the end, or the row has no figure.
"""

from __future__ import annotations

import time

from api import Api
from load import Load
from peers import Server, running, start_topics
from plan import Plan
from row import Ask, Outcome, Reading, Row, Side, at_most
from rows.append import append_load
from turns import Contender, take_turns

FAN_OUT = 100
CATCH_UP_S = 60.0
MEASURED = "topics_wal_bytes_written_total"


def measure(plan: Plan) -> Outcome:
    with running(start_topics(plan, plan.fresh_dir("routers"))) as server:
        api = Api(server.port)
        api.create("plain", durability="disk")
        api.create("fanned", durability="disk")
        for number in range(FAN_OUT):
            api.call("PUT", f"/v0/routers/r{number}", {"source": "fanned", "dest": f"d{number}"})
        plain_bytes = _bytes_of(api, "plain")
        fanned_bytes = _bytes_of(api, "fanned")
        sides = take_turns(
            [_contender(plan, server, "plain"), _contender(plan, server, "fanned")], rounds=plan.scale.rounds
        )
        missing = _caught_up(api)
    if missing:
        return Outcome(
            [Reading(key="ack latency", value=None, note=missing), Reading(key="WAL bytes", value=None)], sides
        )
    return Outcome([_latency(*sides), Reading(key="WAL bytes", value=fanned_bytes / plain_bytes)], sides)


def _contender(plan: Plan, server: Server, topic: str) -> Contender:
    def run() -> Load:
        return append_load(server.port, seconds=plan.scale.round_s, topic=topic, connections=1)

    name = "no router" if topic == "plain" else f"{FAN_OUT} routers"
    return Contender(
        name=name, unit="records/s", run=run, pid=lambda: server.pid, before=lambda: _caught_up(Api(server.port))
    )


def _latency(plain: Side, fanned: Side) -> Reading:
    assert plain.p50_ms
    assert fanned.p50_ms
    note = (
        f"p50 {fanned.p50_ms:.3f} ms against {plain.p50_ms:.3f} ms, p99 {fanned.p99_ms:.3f} against {plain.p99_ms:.3f}"
    )
    return Reading(key="ack latency", value=fanned.p50_ms / plain.p50_ms, note=note)


def _bytes_of(api: Api, topic: str, writes: int = 200) -> int:
    """Return the growth of the log by the first writes to a topic, copies included."""
    before = _wal_bytes(api)
    for _ in range(writes):
        api.call("POST", f"/v0/topics/{topic}", {"records": [{"data": {"sku": "AEROPRESS-GO"}, "tag": "order-7731"}]})
    _caught_up(api)
    return _wal_bytes(api) - before


def _wal_bytes(api: Api) -> int:
    _, body = api.raw("GET", "/v0/metrics")
    return int(next(line.split()[-1] for line in body.decode().splitlines() if line.startswith(MEASURED + " ")))


def _caught_up(api: Api) -> str:
    """Return an empty string if every router has forwarded everything, else what is missing."""
    deadline = time.monotonic() + CATCH_UP_S
    while True:
        lags = [row["lag"] for row in api.call("GET", "/v0/routers?page_size=1000")["routers"]]
        if not any(lags):
            return ""
        if time.monotonic() > deadline:
            return f"{sum(lags):,} copies were missing after {CATCH_UP_S:.0f} s"
        time.sleep(0.05)


ROW = Row(
    id="w11",
    title=f"router fan-out 1 → {FAN_OUT}: the source's acks, and the bytes in the log",
    peer="itself without routers",
    asks=(
        Ask(key="ack latency", bar=at_most(1.2), goal=at_most(1.0), cpu_bound=False),
        Ask(key="WAL bytes", bar=at_most(1.0), goal=at_most(1.0), cpu_bound=False),
    ),
    measure=measure,
    time_limit_s=300,
)
