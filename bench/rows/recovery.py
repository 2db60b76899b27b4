"""w9: time from the start of the process after SIGKILL until every record is served.

Each round starts from a copy of the same killed data directory: a server that tidies up after its recovery would
otherwise find less to do in the next round.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import resp
from api import Api
from fill import send_all
from payload import appends
from peers import Server, running, start_redis, start_topics
from plan import Plan, installed
from row import Ask, Outcome, Reading, Row, at_most
from turns import Contender, ratio, take_turns


def measure(plan: Plan) -> Outcome:
    records = plan.scale.records
    batched = _killed_topics(plan, "batched", per_request=100)
    single = _killed_topics(plan, "single", per_request=1)
    checkpointed = _after_checkpoint(plan, batched)
    contenders = [
        _restart(plan, "topics, 100 a request", batched, records),
        _restart(plan, "topics, 1 a request", single, records),
        _restart(plan, "topics, after a checkpoint", checkpointed, records),
    ]
    if installed("redis-server"):
        contenders.append(_redis_restart(plan, _killed_redis(plan), records))
    sides = take_turns(contenders, rounds=plan.scale.rounds)
    redis = sides[3] if len(sides) > 3 else None
    readings = [ratio(key, side, redis) for key, side in zip(("a", "b", "c"), sides, strict=False)]
    readings.append(Reading(key="c, seconds", value=sides[2].median))
    return Outcome(readings, sides)


def _killed_topics(plan: Plan, name: str, *, per_request: int) -> Path:
    """Create a data directory as SIGKILL leaves it."""
    path = plan.fresh_dir(name)
    with running(start_topics(plan, path)) as server:
        Api(server.port).create("t", durability="disk")
        requests = appends("t", plan.scale.records, per_request=per_request)
        send_all(server.port, requests, connections=32, window=16 if per_request == 1 else 2)
    return path


def _after_checkpoint(plan: Plan, killed: Path) -> Path:
    """Create the same records with a clean stop, which writes a checkpoint, and then a start that SIGKILL ends."""
    path = _copy(killed, plan.work_dir / "checkpointed")
    with running(start_topics(plan, path)) as server:
        server.stop()
    with running(start_topics(plan, path)):
        pass
    return path


def _killed_redis(plan: Plan) -> Path:
    path = plan.fresh_dir("redis")
    with running(start_redis(plan, path, appendfsync="everysec")) as server:
        resp.fill(server.port, resp.xadds(b"s", plan.scale.records, explicit_ids=False))
    return path


def _copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def _restart(plan: Plan, name: str, killed: Path, records: int) -> Contender:
    def run() -> float:
        with running(start_topics(plan, _copy(killed, plan.work_dir / "again"))) as server:
            _check_all_served(server, records)
            return server.ready_s

    return Contender(name=name, unit="s", run=run)


def _check_all_served(server: Server, records: int) -> None:
    """Raise unless all records are served: the count is right, and both ends of the topic can be read."""
    api = Api(server.port)
    count = api.count("t")
    assert count == records, f"{count} of {records} records after the restart"
    first = api.diff("t", from_seq=0, limit=1)["records"][0]["$seq"]
    last = api.diff("t", from_seq=records - 1, limit=1)["records"][0]["$seq"]
    assert (first, last) == (1, records), f"the topic runs from {first} to {last} after the restart"


def _redis_restart(plan: Plan, killed: Path, records: int) -> Contender:
    def run() -> float:
        target = _copy(killed, plan.work_dir / "redis-again")
        with running(start_redis(plan, target, appendfsync="everysec")) as server:
            length = int(resp.ask(server.port, b"XLEN", b"s"))
            assert length == records, f"{length} of {records} entries after Redis restarted"
            return server.ready_s

    return Contender(name="Redis loading its AOF", unit="s", run=run)


ROW = Row(
    id="w9",
    title="1 M records, SIGKILL, time until ready with every record served: (a) written 100 a request, "
    "(b) 1 a request, (c) after a checkpoint",
    peer="Redis loading its AOF of the same stream",
    asks=(
        Ask(key="a", bar=at_most(0.5)),
        Ask(key="b", bar=at_most(0.5)),
        Ask(key="c", bar=at_most(0.5)),
        Ask(key="c, seconds", unit="s", goal=at_most(0.5)),
    ),
    measure=measure,
    needs=(),
    time_limit_s=240,
)
