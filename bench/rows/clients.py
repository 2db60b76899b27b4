"""w20: the async Python client against bare httpx and a bare socket, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from api import Api
from fill import send_all
from payload import appends
from peers import Server, running, start_topics
from plan import HERE, Plan
from row import Ask, Outcome, Reading, Row, Side, at_least

HOWS = ("client", "httpx", "socket")
NAMES = {
    ("write", "client"): "AsyncTopics.writer",
    ("read", "client"): "AsyncTopics.follow",
    ("write", "httpx"): "httpx, POST of 1000",
    ("read", "httpx"): "httpx, diff of 1000",
    ("write", "socket"): "http.client, POST of 1000",
    ("read", "socket"): "http.client, diff of 1000",
}
TIMEOUT_S = 120


def measure(plan: Plan) -> Outcome:
    records = max(plan.scale.records // 5, 10_000)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {case: [] for case in NAMES}
    with running(start_topics(plan, plan.fresh_dir("topics"))) as ours:
        api = Api(ours.port)
        api.create("written", durability="disk")
        api.create("read", durability="disk")
        send_all(ours.port, appends("read", records, per_request=1_000))
        for _ in range(plan.scale.rounds):
            for case in found:
                found[case].append(_round(ours, *case, records))
        written = api.count("written")
        assert written == len(HOWS) * plan.scale.rounds * records, f"{written} records were written"
    readings = []
    for what, name in (("write", "writer"), ("read", "follow")):
        client, httpx, socket = (median(per_cpu for _, per_cpu in found[what, how]) for how in HOWS)
        readings += [
            Reading(key=f"{name}, records", value=client / 1000),
            Reading(key=f"{name}, httpx", value=client / httpx),
            Reading(key=f"{name}, socket", value=client / socket),
        ]
    return Outcome(readings, [_side(NAMES[case], rounds) for case, rounds in found.items()])


def _round(server: Server, what: str, how: str, records: int) -> tuple[float, float]:
    command = [sys.executable, str(HERE / "client_load.py"), what, how, str(server.port), str(records)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{what} by {how} failed: {done.stderr[-400:]}")
    per_s, per_cpu_s = done.stdout.split()
    return float(per_s), float(per_cpu_s)


def _side(name: str, rounds: list[tuple[float, float]]) -> Side:
    """Return the results of one client. The processor time is its own, not that of the server."""
    per_s = tuple(rate for rate, _ in rounds)
    return Side(
        name=name,
        unit="records/s",
        rounds=per_s,
        median=median(per_s),
        per_cpu_s=median(per_cpu for _, per_cpu in rounds),
    )


ROW = Row(
    id="w20",
    title="the async Python client: `writer` and `follow`, records per second of the client's processor time",
    peer="bare httpx and a bare socket, 1000 records a request",
    asks=(
        Ask(key="writer, records", unit="k per cpu-second", goal=at_least(300)),
        Ask(key="writer, httpx", goal=at_least(1)),
        Ask(key="writer, socket"),
        Ask(key="follow, records", unit="k per cpu-second", goal=at_least(500)),
        Ask(key="follow, httpx", goal=at_least(1)),
        Ask(key="follow, socket"),
    ),
    measure=measure,
    needs=(),
    time_limit_s=300,
)
