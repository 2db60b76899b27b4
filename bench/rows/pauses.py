"""w17: the longest time for which background work holds the event loop, with many topics, records and routers.

The server is filled, stopped and started again, so that the figures are those of a server that runs. Then wrk appends,
while a client asks for metrics and lists, and checkpoints follow each other. What the machine adds is printed: how long
the loop was ready to run and had no core, and how long the host of a virtual machine took the core away. Of several
rounds, the one counts in which the host took least: while it has the core, every hold goes on.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from api import Api
from fill import send_all
from payload import batch, post
from peers import Server, running, start_topics, waited_s
from plan import Plan
from row import Ask, Outcome, Reading, Row, Side, at_most
from rows.append import append_load

HOLD = re.compile(r'^topics_loop_hold_max_ms\{cause="(\w+)"\} ([\d.e+-]+)$', re.MULTILINE)
ASKED = ("/v0/metrics", "/v0/topics?page_size=1000", "/v0/routers?page_size=1000", "/v0/routers?source=t0")
CHECKPOINT_MS = "1000"
ROUTED_SHARE = 2  # one router for every two topics, so that all of them are linked
PAUSE_S = 0.1
STOLEN_FIELD = 8  # of a line of /proc/stat
CROWDED_S = 0.1  # taken by the host during a round: a hold may have been longer by this much


@dataclass(frozen=True, kw_only=True)
class _Round:
    """One start of the server, with the longest holds since then."""

    appends_per_s: float
    holds_ms: dict[str, float]
    waited_s: float  # the loop was ready to run and had no core
    stolen_s: float  # the host kept the core for others


def measure(plan: Plan) -> Outcome:
    topics, per_topic = plan.scale.topics, max(plan.scale.records // plan.scale.topics, 1)
    data_dir = plan.fresh_dir("pauses")
    with running(start_topics(plan, data_dir)) as server:
        _fill(server, topics, per_topic)
        server.stop()
    rounds = [_one_round(plan, data_dir) for _ in range(plan.scale.rounds)]
    calm = min(rounds, key=lambda each: each.stolen_s)
    ordered = sorted(calm.holds_ms.items(), key=lambda item: item[1], reverse=True)
    causes = ", ".join(f"{cause} {ms:.1f}" for cause, ms in ordered)
    every = ", ".join(f"{max(each.holds_ms.values()):.1f} ms with {each.stolen_s * 1000:.0f} taken" for each in rounds)
    note = f"{causes}; without a core for {calm.waited_s * 1000:.0f} ms; all rounds: {every} by the host"
    rates = tuple(each.appends_per_s for each in rounds)
    sides = [Side(name="appends meanwhile", unit="records/s", rounds=rates, median=median(rates))]
    return Outcome(
        [Reading(key="longest hold", value=ordered[0][1], note=note, crowded=calm.stolen_s > CROWDED_S)], sides
    )


def _one_round(plan: Plan, data_dir: Path) -> _Round:
    with running(start_topics(plan, data_dir, TOPICS_CHECKPOINT_INTERVAL_MS=CHECKPOINT_MS)) as server:
        api = Api(server.port)
        api.create("t", durability="disk")
        waited, stolen_s, done = waited_s(server.pid), _stolen_s(plan.server_core), threading.Event()
        asking = threading.Thread(target=_ask, args=(api, done))
        asking.start()
        load = append_load(server.port, seconds=plan.scale.round_s)
        done.set()
        asking.join()
        waited, stolen_s = waited_s(server.pid) - waited, _stolen_s(plan.server_core) - stolen_s
        found = HOLD.findall(api.raw("GET", "/v0/metrics")[1].decode())
        server.stop()
    holds_ms = {cause: float(text) for cause, text in found}
    return _Round(appends_per_s=load.per_s, holds_ms=holds_ms, waited_s=waited, stolen_s=stolen_s)


def _fill(server: Server, topics: int, per_topic: int) -> None:
    body = batch(per_topic)
    send_all(server.port, (post(f"/v0/topics/t{at}?return_seqs=false", body) for at in range(topics)))
    api = Api(server.port)
    for at in range(topics // ROUTED_SHARE):
        api.call("PUT", f"/v0/routers/r{at}", {"source": f"t{at}", "dest": f"t{topics - 1 - at}"})


def _ask(api: Api, done: threading.Event) -> None:
    """Ask for what takes long, until `done`."""
    while not done.wait(PAUSE_S):
        for path in ASKED:
            api.raw("GET", path)


def _stolen_s(core: int | None) -> float:
    """Return for how long the host of this virtual machine has kept a core for others while it had work."""
    name = "cpu" if core is None else f"cpu{core}"
    lines = Path("/proc/stat").read_text().splitlines()
    fields = next(line.split() for line in lines if line.split()[0] == name)
    return int(fields[STOLEN_FIELD]) / os.sysconf("SC_CLK_TCK")


ROW = Row(
    id="w17",
    title="longest hold of the event loop with 10,000 topics, 5,000 routers, lists, metrics and checkpoints",
    peer="none",
    asks=(Ask(key="longest hold", unit="ms", bar=at_most(6), goal=at_most(5), cpu_bound=False),),
    measure=measure,
    time_limit_s=600,
)
