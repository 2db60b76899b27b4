"""Compare two builds of the server in turns.

    python bench/pair.py "BEFORE COMMAND" "AFTER COMMAND" [--only w1,w8] [--rounds 7]

Each figure is the work per second of the server's processor time, and the ratio is the median over the rounds, each
of which runs both builds one after the other. The last row is the time to be ready after SIGKILL.
"""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count, islice
from pathlib import Path
from statistics import median

import resp
from api import Api
from fanout import Flood, Writer, append_request, watch
from fill import send_all
from inflight import keep_in_flight, open_websocket
from load import Load, wrk
from payload import appends, batch, post
from peers import Server, cpu_s, running, start_topics
from plan import DEFAULT, Plan, choose_cores
from rows import creation
from rows.actors import ACTORS_A_GROUP, CONNECTIONS, REQUESTS_AN_ACTOR, actors
from rows.append import append_load
from rows.nats import WEBSOCKET_ACK, websocket_publishes
from rows.read import diff_load
from workers import Topics, work_off

RECORDS, JOBS, TOPICS, WATCHERS, ACTOR_GROUPS = 200_000, 20_000, 10_000, 1_000, 8
SECONDS = 2.0
Round = Callable[[], float]  # runs one round and returns how much work was done
Prepare = Callable[[], Round]  # what comes before a round and is not measured


def _load(run: Callable[[], Load], times: int = 1) -> Prepare:
    return lambda: lambda: run().per_s * SECONDS * times


def _append(server: Server, connections: int, size: int) -> Prepare:
    topic = f"batch{size}"
    Api(server.port).create(topic, durability="disk")
    return _load(
        lambda: append_load(server.port, seconds=SECONDS, topic=topic, connections=connections, batch=size), size
    )


def _diff(server: Server) -> Prepare:
    Api(server.port).create("many", durability="disk")
    send_all(server.port, appends("many", RECORDS, per_request=1_000))
    return _load(lambda: diff_load(server.port, seconds=SECONDS, head=RECORDS, topic="many"))


def _head(server: Server) -> Prepare:
    Api(server.port).create("few", durability="disk")
    send_all(server.port, appends("few", 10_000, per_request=1_000))
    path = "/v0/topics/few/diff"
    return _load(lambda: wrk(server.port, "head.lua", path, connections=32, seconds=SECONDS, args=("10000",)))


def _flood(server: Server) -> Prepare:
    Api(server.port).create("t", durability="disk")

    def prepare() -> Round:
        flood = Flood(
            lambda: watch(server.port, "t", WATCHERS),
            lambda: Writer(resp.connect(server.port), append_request("t"), b"HTTP/1.1 200", depth=16),
            SECONDS,
        )
        flood.open()

        def run() -> float:
            flood.run()
            return flood.delivered

        return run

    return prepare


def _publish(server: Server) -> Prepare:
    Api(server.port).create("p", durability="disk")
    messages = websocket_publishes("p")

    def prepare() -> Round:
        link = open_websocket(server.port)

        def run() -> float:
            with link:
                return keep_in_flight([(link, islice(messages, JOBS))], WEBSOCKET_ACK, depth=500)

        return run

    return prepare


def _claims(server: Server, workers: int = 50, size: int = 8) -> Prepare:
    def prepare() -> Round:
        Api(server.port).create("jobs", type="queue", durability="disk")
        send_all(server.port, appends("jobs", JOBS, per_request=1_000))

        def run() -> float:
            work_off(server.port, [Topics("jobs", size)] * workers, jobs=JOBS)
            return JOBS

        return run

    return prepare


def _topics(server: Server) -> Prepare:
    send_all(server.port, (post(f"/v0/topics/t{number}", batch(1)) for number in range(TOPICS)))
    args = (str(TOPICS),)
    return _load(lambda: wrk(server.port, "topics.lua", "/v0/topics/t0", connections=32, seconds=SECONDS, args=args))


def _actors(server: Server) -> Prepare:
    rounds = count()

    def run() -> float:
        requests = actors(next(rounds) * ACTOR_GROUPS * ACTORS_A_GROUP, ACTOR_GROUPS)
        send_all(server.port, requests, connections=CONNECTIONS, window=1)
        return ACTOR_GROUPS * ACTORS_A_GROUP * REQUESTS_AN_ACTOR

    return lambda: run


def _creates(server: Server, requests: Iterator[bytes]) -> Prepare:
    def run() -> float:
        send_all(server.port, islice(requests, creation.A_ROUND), connections=1, window=1)
        return creation.A_ROUND

    return lambda: run


ROWS: dict[str, Callable[[Server], Prepare]] = {
    "w1": lambda server: _append(server, 32, 1),
    "w2": lambda server: _append(server, 16, 100),
    "w4": _diff,
    "w5": _head,
    "w7": _flood,
    "w8": _claims,
    "w12": _topics,
    "w23": _actors,
    "w24-2": lambda server: _append(server, 32, 2),
    "w24-5": lambda server: _append(server, 32, 5),
    "w24-10": lambda server: _append(server, 32, 10),
    "w28": _publish,
    "w31-append": lambda server: _creates(server, creation.by_append()),
    "w31-put": lambda server: _creates(server, creation.by_put()),
    "w29": lambda server: _claims(server, 1, 1_000),
}


@contextmanager
def _both(plans: list[Plan]) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        # Each round of w7 leaves its sessions behind, and each of w23 and w31 its topics.
        settings = {"TOPICS_MAX_WATCH_SESSIONS": "1000000", "TOPICS_MAX_TOPICS": "0"}
        yield [stack.enter_context(running(start_topics(plan, plan.fresh_dir("data"), **settings))) for plan in plans]


def compare(row: str, plans: list[Plan], rounds: int) -> None:
    with _both(plans) as servers:
        rounds_of = [ROWS[row](server) for server in servers]
        done: list[list[float]] = [[], []]
        for number in range(rounds + 1):
            for side in (0, 1) if number % 2 else (1, 0):
                run = rounds_of[side]()
                before = cpu_s(servers[side].pid)
                work = run()
                if number:  # the first round warms up
                    done[side].append(work / (cpu_s(servers[side].pid) - before))
    _show(row, done, "per cpu-s")


def restart(plans: list[Plan], rounds: int) -> None:
    """Compare the time from SIGKILL to ready with 1 M records, written 100 a request."""
    with _both(plans) as servers:
        for server in servers:
            Api(server.port).create("t", durability="disk")
            send_all(server.port, appends("t", 1_000_000, per_request=100))
        done: list[list[float]] = [[], []]
        for _ in range(rounds):
            for side, plan in enumerate(plans):
                servers[side].kill()
                servers[side] = start_topics(plan, plan.work_dir / "data")
                done[side].append(1 / servers[side].ready_s)
        for server in servers:
            server.kill()
    _show("w9", done, "starts per second")


def _show(row: str, done: list[list[float]], unit: str) -> None:
    ratios = sorted(after / before for before, after in zip(*done, strict=True))
    middle = f"{median(ratios):.3f} ({ratios[len(ratios) // 4]:.3f} to {ratios[-1 - len(ratios) // 4]:.3f})"
    print(f"{row:4} {median(done[0]):14,.2f} {median(done[1]):14,.2f} {unit:18} ratio {middle}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--only", default=",".join([*ROWS, "w9"]))
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    server_core, load_core = choose_cores()
    if load_core is not None:
        os.sched_setaffinity(0, {load_core})
    with tempfile.TemporaryDirectory() as root:
        plans = []
        for name, command in (("before", args.before), ("after", args.after)):
            plan = Plan(
                scale=DEFAULT,
                work_dir=Path(root, name),
                server_command=tuple(shlex.split(command)),
                server_core=server_core,
                load_core=load_core,
            )
            plan.work_dir.mkdir()
            plans.append(plan)
        for row in args.only.split(","):
            restart(plans, args.rounds) if row == "w9" else compare(row, plans, args.rounds)


if __name__ == "__main__":
    main()
