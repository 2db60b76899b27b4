"""w14: appending, reading and claiming must cost the same whatever the size of the topic."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count as counter

from api import Api
from fill import send_all
from load import Load
from payload import appends, post
from peers import Server, running, start_topics
from plan import Plan
from row import Ask, Outcome, Reading, Row, Side, at_most
from rows.append import append_load
from rows.read import diff_load
from turns import Contender, take_turns

FLAT = at_most(1.3)
ROUND_S = 1.0  # short: appends make the topic grow while they are measured
REFILL_BELOW = 500_000  # smaller topics are made anew every round: a round of appends would outgrow them
CLAIM_MAX = 8
CLAIMS = 1_000  # 8,000 jobs: a queue of 10,000 is not emptied

Prepare = Callable[[int], str]


def measure(plan: Plan) -> Outcome:
    with running(start_topics(plan, plan.fresh_dir("topics"))) as server:
        prepare = _preparer(server, {})
        sides = take_turns([_append(server, prepare, size) for size in plan.scale.growth], rounds=plan.scale.rounds)
        readings = _growth("append", sides)
        reads = take_turns([_read(server, prepare, size) for size in plan.scale.growth], rounds=plan.scale.rounds)
        readings += _growth("diff", reads)
        claim_readings, claims = _claims(plan, server)
    return Outcome(readings + claim_readings, [*sides, *reads, *claims])


def _preparer(server: Server, config: dict[str, str]) -> Prepare:
    """Gives the name of a topic of a size: kept from round to round where it is large, fresh where it is small."""
    numbers = counter(1)
    kept: dict[int, str] = {}

    def prepare(size: int) -> str:
        if size in kept:
            return kept[size]
        kind = config.get("type", "log")
        name = f"{kind}-{size}-{next(numbers)}"
        Api(server.port).create(name, durability="disk", **config)
        send_all(server.port, appends(name, size, per_request=1_000))
        if size >= REFILL_BELOW:
            kept[size] = name
        return name

    return prepare


def _append(server: Server, prepare: Prepare, size: int) -> Contender:
    def run() -> Load:
        return append_load(server.port, seconds=ROUND_S, topic=prepare(size))

    return Contender(name=f"append at {size:,}", unit="records/s", run=run)


def _read(server: Server, prepare: Prepare, size: int) -> Contender:
    def run() -> Load:
        return diff_load(server.port, seconds=ROUND_S, topic=prepare(size), head=size)

    return Contender(name=f"diff at {size:,}", unit="reads/s", run=run)


def _claims(plan: Plan, server: Server) -> tuple[list[Reading], list[Side]]:
    if not _has_queues(server):
        return [Reading(key="claim", value=None, note="the server has no claim yet")], []
    prepare = _preparer(server, {"type": "queue"})
    contenders = [_claim(server, prepare, size) for size in plan.scale.growth]
    sides = take_turns(contenders, rounds=plan.scale.rounds)
    return _growth("claim", sides), sides


def _has_queues(server: Server) -> bool:
    api = Api(server.port)
    status, _ = api.raw("PUT", "/v0/topics/probe", {"type": "queue"})
    if status >= 300:
        return False
    api.raw("POST", "/v0/topics/probe", {"records": [{"data": 1}]})
    status, _ = api.raw("POST", "/v0/topics/probe/claim", {"node": "bench", "max": 1})
    return status not in (404, 405, 501)


def _claim(server: Server, prepare: Prepare, size: int) -> Contender:
    body = b'{"node":"bench","max":%d,"lease_ms":600000}' % CLAIM_MAX

    def run() -> float:
        """A count of claims, not a time: as fast as claims go, a small queue would be empty within the round."""
        request = post(f"/v0/topics/{prepare(size)}/claim", body)
        return CLAIMS / send_all(server.port, iter([request] * CLAIMS), connections=8, window=4)

    return Contender(name=f"claim at {size:,}", unit="claims/s", run=run)


def _growth(verb: str, sides: list[Side]) -> list[Reading]:
    """How many times slower the slowest size is than the smallest one."""
    slowest = min(sides[1:], key=lambda side: side.median)
    note = f"slowest: {slowest.name}"
    return [Reading(key=verb, value=sides[0].median / slowest.median, note=note)]


ROW = Row(
    id="w14",
    title="growth: w1, w4 and claim on topics of 10 k, 100 k, 1 M (10 M with --full) records",
    peer="itself at 10 k",
    asks=(
        Ask(key="append", bar=FLAT, goal=at_most(1.1)),
        Ask(key="diff", bar=FLAT, goal=at_most(1.1)),
        Ask(key="claim", bar=FLAT, goal=at_most(1.1)),
    ),
    measure=measure,
    time_limit_s=300,
)
