"""w14: appends, reads and claims must cost the same for every size of the topic.

Reads begin with a topic of 1,000 records, which is one answer. A round of appends would make it many times as large,
and a round of claims would empty it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from api import Api
from fill import send_all
from load import Load
from payload import appends, post
from peers import Server, running, start_floor, start_topics
from plan import Plan
from row import Ask, Outcome, Reading, Row, Side, at_most
from rows.append import append_load
from rows.read import LIMIT as DIFF_RECORDS
from rows.read import diff_load
from turns import Contender, slowdown, take_turns

FLAT = at_most(1.3)
SMALLEST_READ = 1_000
ROUND_S = 1.0  # short: appends make the topic grow while they are measured
MORE_ROUNDS = 3  # times the rounds of other rows, for that: the sizes are close to each other and the rounds short
REFILL_BELOW = 500_000  # smaller topics are recreated every round: a round of appends would outgrow them
CLAIM_MAX = 8
CLAIMS = 1_000  # 8,000 jobs: a queue of 10,000 is not emptied
RECORD_BYTES = 87  # of an answer, about


class Subject:
    """A topic of a given size: a large one is kept between rounds, a small one is recreated."""

    def __init__(self, server: Server, size: int, kind: str) -> None:
        self.server = server
        self.size = size
        self.kind = kind
        self.made = 0

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.size}-{self.made}"

    def prepare(self) -> None:
        if not self.made or self.size < REFILL_BELOW:
            self.made += 1
            Api(self.server.port).create(self.name, durability="disk", type=self.kind)
            send_all(self.server.port, appends(self.name, self.size, per_request=1_000))
        self.server.wait_until_idle()  # background writes of the fill must not count as part of the round

    def append(self) -> Load:
        return append_load(self.server.port, seconds=ROUND_S, topic=self.name)

    def diff(self) -> Load:
        return diff_load(self.server.port, seconds=ROUND_S, topic=self.name, head=self.size)

    def claim(self) -> float:
        """Return the rate of a fixed number of claims: in a timed round a small queue would run empty."""
        body = b'{"node":"bench","max":%d,"lease_ms":600000}' % CLAIM_MAX
        request = post(f"/v0/topics/{self.name}/claim", body)
        return CLAIMS / send_all(self.server.port, iter([request] * CLAIMS), connections=8, window=4)


def measure(plan: Plan) -> Outcome:
    rounds = plan.scale.rounds * MORE_ROUNDS
    with running(start_topics(plan, plan.fresh_dir("topics"))) as server:
        smallest, *logs = (Subject(server, size, "log") for size in (SMALLEST_READ, *plan.scale.growth))
        appended = take_turns([_contender("append", log, log.append, "records/s") for log in logs], rounds=rounds)
        logs = [smallest, *logs]
        read = take_turns([_contender("diff", log, log.diff, "reads/s") for log in logs], rounds=rounds)
        claimed = list[Side]()
        readings = [slowdown("append", appended[0], appended[1:]), slowdown("diff", read[0], read[1:])]
        if _has_queues(server):
            queues = [Subject(server, size, "queue") for size in plan.scale.growth]
            claimed = take_turns([_contender("claim", each, each.claim, "claims/s") for each in queues], rounds=rounds)
            readings.append(slowdown("claim", claimed[0], claimed[1:]))
        else:
            readings.append(Reading(key="claim", value=None, note="the server has no claim yet"))
    floors = _floors(plan, rounds)
    readings.append(slowdown("floor", floors[0], floors[1:]))
    return Outcome(readings, [*appended, *read, *claimed, *floors])


def _floors(plan: Plan, rounds: int) -> list[Side]:
    """Serve answers of the size of a `diff`, from as much memory, without an engine."""
    with ExitStack() as stack:
        contenders = []
        for size in (SMALLEST_READ, *plan.scale.growth):
            floor = start_floor(plan, DIFF_RECORDS * RECORD_BYTES, size * RECORD_BYTES)
            stack.enter_context(running(floor))
            run = partial(diff_load, floor.port, seconds=ROUND_S, head=size)
            name = f"floor at {size:,}"
            contenders.append(Contender(name=name, unit="reads/s", run=run, pid=partial(getattr, floor, "pid")))
        return take_turns(contenders, rounds=rounds)


def _contender(verb: str, subject: Subject, run: Callable[[], Load | float], unit: str) -> Contender:
    name = f"{verb} at {subject.size:,}"
    return Contender(name=name, unit=unit, run=run, before=subject.prepare, pid=lambda: subject.server.pid)


def _has_queues(server: Server) -> bool:
    api = Api(server.port)
    status, _ = api.raw("PUT", "/v0/topics/probe", {"type": "queue"})
    if status >= 300:
        return False
    api.raw("POST", "/v0/topics/probe", {"records": [{"data": 1}]})
    status, _ = api.raw("POST", "/v0/topics/probe/claim", {"node": "bench", "max": 1})
    return status not in (404, 405, 501)


ROW = Row(
    id="w14",
    title="growth: w1, w4 and claim on topics of 10 k, 100 k, 1 M (10 M with --full) records; w4 from 1 k on",
    peer="itself at 10 k; w4 at 1 k",
    asks=(
        Ask(key="append", bar=FLAT, goal=at_most(1.1)),
        Ask(key="diff", bar=at_most(1.2), goal=at_most(1.1)),
        Ask(key="claim", bar=FLAT, goal=at_most(1.1)),
        Ask(key="floor"),
    ),
    measure=measure,
    time_limit_s=300,
)
