"""off: the cost of each feature that is on, against plain w1 and w4. A feature that is off must cost nothing.

`plain again` is plain once more: how far it is from 1 says how much of the other figures is noise.
"""

from __future__ import annotations

from contextlib import ExitStack

from api import Api
from fill import send_all
from load import Load
from payload import DROP_TAG, appends, tagged_appends
from peers import Server, running, start_topics
from plan import Plan
from row import Ask, Outcome, Reading, Row, Side, at_least
from rows.append import append_load
from rows.read import diff_load
from turns import Contender, ratio, take_turns

KEY = "bench-key"
HOUR_MS = 3_600_000


def measure(plan: Plan) -> Outcome:
    with ExitStack() as stack:
        plain = stack.enter_context(running(start_topics(plan, plan.fresh_dir("plain"))))
        guarded = stack.enter_context(running(start_topics(plan, plan.fresh_dir("guarded"), TOPICS_API_KEYS=KEY)))
        _fill(plan, plain)
        auth_is_on = _fill_guarded(plan, guarded)
        reads = take_turns(_reads(plan, plain, guarded), rounds=plan.scale.rounds)
        writes = take_turns(_writes(plan, plain, guarded), rounds=plan.scale.rounds)
    readings = [_cost(side, group[0], auth_is_on) for group in (writes, reads) for side in group[1:]]
    return Outcome(readings, [*writes, *reads])


def _cost(side: Side, plain: Side, auth_is_on: bool) -> Reading:
    if side.name.endswith("auth on") and not auth_is_on:
        return Reading(key=side.name, value=None, note="the server let a request without a key in")
    return ratio(side.name, side, plain, note=f"costs {1 - side.median / plain.median:.0%}")


def _fill(plan: Plan, server: Server) -> None:
    api, records = Api(server.port), plan.scale.records
    api.create("plain", durability="disk")
    api.create("ttl", durability="disk", ttl_ms=HOUR_MS)
    api.create("holes", durability="disk")
    for topic in ("plain", "ttl"):
        send_all(server.port, appends(topic, records, per_request=1_000))
    send_all(server.port, tagged_appends("holes", records, per_request=1_000, distinct=False))
    gone = api.call("POST", "/v0/topics/holes/delete", {"match": ["tag", "Eq", DROP_TAG.decode()]})["deleted"]
    assert gone == records // 100, f"{gone} records deleted, {records // 100} expected"
    first = api.diff("holes", from_seq=0, limit=1)["records"][0]["$seq"]
    assert first == 2, f"seq 1 was deleted, and a read begins at {first}"


def _fill_guarded(plan: Plan, server: Server) -> bool:
    """Return whether the server really requires the key."""
    Api(server.port, KEY).create("plain", durability="disk")
    header = b"\r\nauthorization: Bearer " + KEY.encode() + b"\r\nhost: "
    requests = appends("plain", plan.scale.records, per_request=1_000)
    send_all(server.port, (request.replace(b"\r\nhost: ", header, 1) for request in requests))
    status, _ = Api(server.port).raw("GET", "/v0/topics/plain")
    return status == 401


def _writes(plan: Plan, plain: Server, guarded: Server) -> list[Contender]:
    def contender(name: str, server: Server, topic: str, key: str = "") -> Contender:
        def run() -> Load:
            return append_load(server.port, seconds=plan.scale.round_s, topic=topic, key=key)

        return Contender(name=f"append, {name}", unit="records/s", run=run, pid=lambda: server.pid)

    return [
        contender("plain", plain, "plain"),
        contender("plain again", plain, "plain"),
        contender("auth on", guarded, "plain", KEY),
        contender("TTL on", plain, "ttl"),
        contender("1% deleted", plain, "holes"),
    ]


def _reads(plan: Plan, plain: Server, guarded: Server) -> list[Contender]:
    def contender(name: str, server: Server, topic: str, node: str = "", key: str = "") -> Contender:
        def run() -> Load:
            scale = plan.scale
            return diff_load(server.port, seconds=scale.round_s, head=scale.records, topic=topic, node=node, key=key)

        return Contender(name=f"diff, {name}", unit="reads/s", run=run, pid=lambda: server.pid)

    return [
        contender("plain", plain, "plain"),
        contender("plain again", plain, "plain"),
        contender("auth on", guarded, "plain", key=KEY),
        contender("TTL on", plain, "ttl"),
        contender("node filter that matches nothing", plain, "plain", node="nobody"),
        contender("1% deleted", plain, "holes"),
    ]


ROW = Row(
    id="off",
    title="what a feature costs when it is on: w1 and w4 with auth, TTL, a node filter, 1% of the records deleted",
    peer="itself, plain",
    asks=(
        Ask(key="append, plain again"),
        Ask(key="append, auth on", bar=at_least(0.95), goal=at_least(0.98)),
        Ask(key="append, TTL on"),
        Ask(key="append, 1% deleted"),
        Ask(key="diff, plain again"),
        Ask(key="diff, auth on"),
        Ask(key="diff, TTL on"),
        Ask(key="diff, node filter that matches nothing"),
        Ask(key="diff, 1% deleted", bar=at_least(0.8), goal=at_least(0.95)),
    ),
    measure=measure,
    time_limit_s=240,
)
