"""w19: named consumers that commit once a second, as a share of one core.

Ten programs follow a thousand topics each, under ten names. Once a second each acknowledges all of them, in one
request. For comparison, the same number of `diff` requests that find nothing: the price of a request alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median

from api import Api
from fill import send_all
from payload import batch, post
from peers import cpu_s, running, start_topics
from plan import Plan
from row import Ask, Outcome, Reading, Row, Side, at_most

PROGRAMS, TOPICS = 10, 1000
SECONDS = 5  # of commits in one round


def commits(program: int, seq: int) -> bytes:
    rows = [{"topic": f"t{at}", "consumer": f"c{program}", "seq": seq} for at in range(TOPICS)]
    return post("/v0/consumers", json.dumps({"commits": rows}).encode())


def measure(plan: Plan) -> Outcome:
    with running(start_topics(plan, plan.fresh_dir("topics"))) as server:
        send_all(server.port, (post(f"/v0/topics/t{at}", batch(100)) for at in range(TOPICS)))
        names = [f'{{"consumer":"c{program}","limit":1}}'.encode() for program in range(PROGRAMS)]
        send_all(server.port, (post(f"/v0/topics/t{at}/diff", name) for at in range(TOPICS) for name in names))

        def used_s(requests: Iterator[bytes]) -> float:
            before_s = cpu_s(server.pid)
            send_all(server.port, requests, connections=1, window=1)
            return (cpu_s(server.pid) - before_s) / SECONDS

        committing, asking = [], []
        for turn in range(plan.scale.rounds):
            seqs = range(1 + turn * SECONDS, 1 + (turn + 1) * SECONDS)
            committing.append(used_s(commits(program, seq) for seq in seqs for program in range(PROGRAMS)))
            polls = (post(f"/v0/topics/t{at}/diff", b'{"from_seq":100}') for at in range(TOPICS))
            asking.append(used_s(polls) * PROGRAMS * SECONDS)
        found = Api(server.port).call("GET", "/v0/topics/t0/consumers/c0")
        assert found["seq"] == plan.scale.rounds * SECONDS, found
    share, per_diff = median(committing), median(asking)
    note = f"10,000 `diff` requests use {per_diff:.1%}"
    sides = [
        Side(name="commits", unit="% of a core", rounds=tuple(one * 100 for one in committing), median=share * 100)
    ]
    return Outcome([Reading(key="share", value=share * 100, note=note)], sides)


ROW = Row(
    id="w19",
    title="10,000 consumers on 1,000 topics commit once a second, 1,000 per request",
    peer="none",
    asks=(Ask(key="share", unit="% of a core", bar=at_most(10), goal=at_most(5)),),
    measure=measure,
    needs=(),
)
