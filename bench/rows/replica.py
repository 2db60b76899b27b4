"""w26: what a replica costs, what `replicated` writes and a takeover take, and how fast a directory is restored."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from api import Api
from fill import send_all
from payload import appends
from peers import Server, running, start_topics
from plan import HERE, Plan
from row import Ask, Outcome, Reading, Row, Side, at_least, at_most
from rows.append import append_load
from turns import Contender, ratio, take_turns

TAKEOVER_MS = 2_000
READY_LIMIT_S = 60.0
TOPICS = 1_000
RESTORE = """
import time
import obstore, topics.storage.replica.start
from topics.cli.main import main
began = time.perf_counter()
try:
    main()
finally:
    print(time.perf_counter() - began)
"""


def measure(plan: Plan) -> Outcome:
    singles, batches = _beside_none(plan, batch=1), _beside_none(plan, batch=100)
    few, many = _replicated(plan)
    readings = [ratio("w1", *singles), ratio("w2", *batches)]
    readings += [Reading(key="64 writers", value=few.median), Reading(key="64 writers, p50", value=few.p50_ms)]
    readings += [Reading(key="512 writers", value=many.median), *_lost_machine(plan)]
    return Outcome(readings, [*singles, *batches, few, many])


def _beside_none(plan: Plan, *, batch: int) -> tuple[Side, Side]:
    """Append to a server with a replica in a directory, and to one without, in turns."""
    with ExitStack() as stack:
        replica = f"file://{plan.fresh_dir('bucket')}"
        ours = stack.enter_context(running(start_topics(plan, plan.fresh_dir("copied"), TOPICS_REPLICA=replica)))
        alone = stack.enter_context(running(start_topics(plan, plan.fresh_dir("alone"))))

        def contender(name: str, server: Server) -> Contender:
            Api(server.port).create("t", durability="disk")
            connections, seconds = 32 if batch == 1 else 16, plan.scale.round_s
            return Contender(
                name=f"{batch} a request, {name}", unit="records/s", times=batch, pid=lambda: server.pid,
                run=lambda: append_load(server.port, seconds=seconds, connections=connections, batch=batch),
            )  # fmt: skip

        both = [contender("with a replica", ours), contender("without", alone)]
        first, second = take_turns(both, rounds=plan.scale.rounds)
        return first, second


def _replicated(plan: Plan) -> list[Side]:
    """Append to a `replicated` topic of a server whose bucket takes 30 ms for each upload."""
    slow = replace(plan, server_command=(sys.executable, str(HERE / "slow_bucket.py"), "serve"))
    replica = f"file://{plan.fresh_dir('slow-bucket')}"
    with running(start_topics(slow, plan.fresh_dir("slow"), TOPICS_REPLICA=replica)) as server:
        Api(server.port).create("t", durability="replicated")

        def contender(writers: int) -> Contender:
            return Contender(
                name=f"replicated, {writers} writers", unit="records/s", pid=lambda: server.pid,
                run=lambda: append_load(server.port, seconds=plan.scale.round_s, connections=writers),
            )  # fmt: skip

        return take_turns([contender(64), contender(512)], rounds=plan.scale.rounds)


def _lost_machine(plan: Plan) -> list[Reading]:
    """Kill a writer with many records and topics, wait for its standby, and restore its directory."""
    replica, records = f"file://{plan.fresh_dir('pair-bucket')}", plan.scale.records
    settings = {"TOPICS_REPLICA": replica, "TOPICS_TAKEOVER_AFTER_MS": str(TAKEOVER_MS)}
    with ExitStack() as stack:
        writer = stack.enter_context(running(start_topics(plan, plan.fresh_dir("one"), **settings)))
        for number in range(min(TOPICS, plan.scale.topics)):
            Api(writer.port).create(f"t{number}", durability="disk")
        send_all(writer.port, appends("t0", records, per_request=100), connections=8)
        standby = stack.enter_context(
            running(start_topics(plan, plan.fresh_dir("two"), TOPICS_STANDBY="true", **settings))
        )
        _wait_for(lambda: Api(standby.port).count("t0") == records)
        time.sleep(2 * TAKEOVER_MS / 1000)  # a new standby waits twice as long before its first takeover
        writer.kill()
        began = time.perf_counter()
        _wait_for(lambda: Api(standby.port).raw("POST", "/v0/topics/t1", {"records": [{"data": 1}]})[0] == 200)
        ready_s = time.perf_counter() - began - TAKEOVER_MS / 1000
        standby.stop()
    target = plan.fresh_dir("restored") / "data"
    command = [sys.executable, "-c", RESTORE, "restore", replica, str(target)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    took_s = float(done.stdout.splitlines()[-1])
    restored = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    return [
        Reading(key="takeover", value=ready_s, note=f"{records:,} records, after the timeout of {TAKEOVER_MS} ms"),
        Reading(key="restore", value=restored / took_s / 1e6, note=f"{restored / 1e6:.0f} MB"),
    ]


def _wait_for(reached: Callable[[], bool]) -> None:
    deadline = time.perf_counter() + READY_LIMIT_S
    while time.perf_counter() < deadline:
        try:
            if reached():
                return
        except (OSError, RuntimeError):
            pass  # a standby that takes over refuses requests for a moment
        time.sleep(0.02)
    raise RuntimeError("it did not happen in time")


ROW = Row(
    id="w26",
    title="replica: w1 and w2 with one; `replicated` appends with uploads of 30 ms; a takeover; a restore",
    peer="the same server without a replica",
    asks=(
        Ask(key="w1", bar=at_least(0.95), goal=at_least(0.98)),
        Ask(key="w2", bar=at_least(0.95), goal=at_least(0.98)),
        Ask(key="64 writers", unit="records/s", bar=at_least(1_500), cpu_bound=False),
        Ask(key="64 writers, p50", unit="ms", bar=at_most(50), cpu_bound=False),
        Ask(key="512 writers", unit="records/s", bar=at_least(10_000), cpu_bound=False),
        Ask(key="takeover", unit="s", bar=at_most(2), cpu_bound=False),
        Ask(key="restore", unit="MB/s", bar=at_least(200), cpu_bound=False),
    ),
    measure=measure,
    time_limit_s=300,
)
