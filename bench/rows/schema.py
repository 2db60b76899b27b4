"""schema: w1 and w2 to a topic with a JSON Schema that each record matches, against the same appends without one."""

from __future__ import annotations

from api import Api
from load import Load
from peers import running, start_topics
from plan import Plan
from row import Ask, Outcome, Row
from rows.append import append_load
from turns import Contender, ratio, take_turns

SCHEMA = {
    "type": "object",
    "properties": {
        "sku": {"type": "string", "maxLength": 64},
        "qty": {"type": "integer", "minimum": 1},
        "total": {"type": "integer", "minimum": 0},
    },
    "required": ["sku", "qty", "total"],
}
WORK = (("w1", 32, 1), ("w2", 16, 100))  # the row, its connections, and its records per request


def measure(plan: Plan) -> Outcome:
    readings, sides = [], []
    with running(start_topics(plan, plan.fresh_dir("schema"))) as server:
        api = Api(server.port)
        api.create("plain", durability="disk")
        api.create("typed", durability="disk", schema=SCHEMA)

        def contender(name: str, topic: str, connections: int, batch: int) -> Contender:
            def run() -> Load:
                seconds = plan.scale.round_s
                return append_load(server.port, seconds=seconds, topic=topic, connections=connections, batch=batch)

            return Contender(name=name, unit="records/s", run=run, pid=lambda: server.pid)

        for key, connections, batch in WORK:
            pair = [
                contender(f"{key}, a schema", "typed", connections, batch),
                contender(f"{key}, none", "plain", connections, batch),
            ]
            typed, plain = take_turns(pair, rounds=plan.scale.rounds)
            readings.append(ratio(key, typed, plain))
            sides += [typed, plain]
        status, _ = api.raw("POST", "/v0/topics/typed", {"records": [{"data": {}}]})
        assert status == 400, f"a record that does not match was answered with {status}"
    return Outcome(readings, sides)


ROW = Row(
    id="schema",
    title="w1 and w2 to a topic with a schema of three fields",
    peer="the same without a schema",
    asks=(Ask(key="w1"), Ask(key="w2")),
    measure=measure,
    time_limit_s=120,
)
