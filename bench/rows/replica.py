"""w26: what a replica costs, how long `replicated` writes and a takeover take, how fast servers follow and restore."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from api import Api
from fill import send_all
from payload import appends
from peers import Server, object_store, running, start_topics
from plan import HERE, Plan
from row import Ask, Outcome, Reading, Row, Side, at_least, at_most
from rows.append import append_load
from rows.queue import queue_load
from turns import Contender, ratio, take_turns

TAKEOVER_MS = 2_000
READY_LIMIT_S = 60.0
TOPICS = 1_000
COPIES = tuple((row, where) for row in ("w1", "w2", "w8") for where in ("directory", "S3"))
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
    readings, sides = _beside_none(plan)
    few, many = _replicated(plan)
    readings += [Reading(key="64 writers", value=few.median), Reading(key="64 writers, p50", value=few.p50_ms)]
    readings += [Reading(key="512 writers", value=many.median), *_lost_machine(plan)]
    return Outcome(readings, [*sides, few, many])


def _beside_none(plan: Plan) -> tuple[list[Reading], list[Side]]:
    """Load servers with a replica in a directory and in S3, and one without, in turns."""
    readings, sides = list[Reading](), list[Side]()
    with ExitStack() as stack:
        folder, bucket = f"file://{plan.fresh_dir('bucket')}", stack.enter_context(object_store(plan.work_dir))
        servers = {
            "without": stack.enter_context(running(start_topics(plan, plan.fresh_dir("alone")))),
            "directory": stack.enter_context(running(start_topics(plan, plan.fresh_dir("one"), TOPICS_REPLICA=folder))),
            "S3": stack.enter_context(running(start_topics(plan, plan.fresh_dir("three"), **bucket))),
        }
        for row, load in (("w1", _single), ("w2", _batches), ("w8", _claims)):
            contenders = [load(plan, server, f"{row}, {where}") for where, server in servers.items()]
            alone, *replicas = take_turns(contenders, rounds=plan.scale.rounds)
            readings += [_per_cpu_s(side, alone) for side in replicas]
            sides += [alone, *replicas]
    return readings, sides


def _per_cpu_s(side: Side, alone: Side) -> Reading:
    found = ratio(side.name, side, alone)
    return replace(found, value=found.per_cpu_s)


def _single(plan: Plan, server: Server, name: str) -> Contender:
    return _appends(plan, server, name, batch=1, connections=32)


def _batches(plan: Plan, server: Server, name: str) -> Contender:
    return _appends(plan, server, name, batch=100, connections=16)


def _appends(plan: Plan, server: Server, name: str, *, batch: int, connections: int) -> Contender:
    Api(server.port).create("t", durability="disk")
    return Contender(
        name=name, unit="records/s", times=batch, pid=lambda: server.pid,
        run=lambda: append_load(server.port, seconds=plan.scale.round_s, connections=connections, batch=batch),
    )  # fmt: skip


def _claims(plan: Plan, server: Server, name: str) -> Contender:
    return replace(queue_load(server), name=name)


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
    """Hold up a standby, kill a writer with many records and topics, wait for the standby, and restore."""
    replica, records = f"file://{plan.fresh_dir('pair-bucket')}", plan.scale.records
    settings = {"TOPICS_REPLICA": replica, "TOPICS_TAKEOVER_AFTER_MS": str(TAKEOVER_MS)}
    with ExitStack() as stack:
        writer = stack.enter_context(running(start_topics(plan, plan.fresh_dir("one"), **settings)))
        for number in range(min(TOPICS, plan.scale.topics)):
            Api(writer.port).create(f"t{number}", durability="disk")
        half = records // 2
        send_all(writer.port, appends("t0", half, per_request=100), connections=8)
        standby = stack.enter_context(
            running(start_topics(plan, plan.fresh_dir("two"), TOPICS_STANDBY="true", **settings))
        )
        _wait_for(lambda: Api(standby.port).count("t0") == half)
        standby.process.send_signal(signal.SIGSTOP)
        send_all(writer.port, appends("t0", records - half, per_request=100), connections=8)
        standby.process.send_signal(signal.SIGCONT)
        began = time.perf_counter()
        _wait_for(lambda: Api(standby.port).count("t0") == records)
        follows = (records - half) / (time.perf_counter() - began)
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
        Reading(key="follows", value=follows, note=f"{records - half:,} records behind"),
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
    title="replica: w1, w2, w8 with one, per cpu-second; `replicated` appends, uploads of 30 ms; takeover; restore",
    peer="the same server without a replica",
    asks=(
        *(Ask(key=f"{row}, {where}", bar=at_least(0.95), goal=at_least(0.98)) for row, where in COPIES),
        Ask(key="64 writers", unit="records/s", bar=at_least(1_500), cpu_bound=False),
        Ask(key="64 writers, p50", unit="ms", bar=at_most(50), cpu_bound=False),
        Ask(key="512 writers", unit="records/s", bar=at_least(10_000), cpu_bound=False),
        Ask(key="follows", unit="records/s", bar=at_least(50_000), cpu_bound=False),
        Ask(key="takeover", unit="s", bar=at_most(2), cpu_bound=False),
        Ask(key="restore", unit="MB/s", bar=at_least(200), cpu_bound=False),
    ),
    measure=measure,
    time_limit_s=400,
)
