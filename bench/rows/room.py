"""w15, w16: a room, in which each participant publishes 50 messages a second and receives those of all others.

The participants are one compiled program on one thread (`room.c`). Its own load and how late it sends are in the notes:
a generator that is busy all the time would measure itself.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from api import Api
from peers import Server, cpu_s, running, start_topics
from plan import HERE, Plan
from row import Ask, Outcome, Reading, Row, Side, at_most

PEOPLE = (10, 30, 100)
JUDGED = 30
PER_S = 50
TOPIC = "room"
GRACE_S = 60


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of a room: the figures of the generator, and the server's processor time."""

    deliveries: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    ack_p50_ms: float
    ack_p99_ms: float
    late_p99_ms: float
    busy: float  # share of a core that the generator used
    server_us: float = 0.0  # processor time of the server per delivery
    server_busy: float = 0.0


def compile_generator(plan: Plan) -> Path:
    """Compile the participants. The working directory is new in every run."""
    program = plan.work_dir / "room"
    if not program.exists():
        subprocess.run(["cc", "-O2", "-o", str(program), str(HERE / "room.c")], check=True, capture_output=True)
    return program


def run_room(program: Path, server: Server, kind: str, people: int, seconds: float) -> Round:
    """Run one round. The opening of the connections is no part of it."""
    command = [str(program), kind, str(server.port), str(people), str(PER_S), str(seconds), TOPIC]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as room:
        assert room.stdout is not None
        room.stdout.readline()  # all participants are connected, or it has failed
        before_s = cpu_s(server.pid)
        figures, trouble = room.communicate("\n", timeout=seconds * 10 + GRACE_S)
        used_s = cpu_s(server.pid) - before_s
    if room.returncode:
        raise RuntimeError(trouble.strip() or "the participants ended early")
    found = json.loads(figures.splitlines()[-1])
    return Round(server_us=used_s * 1e6 / found["deliveries"], server_busy=used_s / seconds, **found)


def _measure(plan: Plan, kind: str) -> Outcome:
    program, outcome = compile_generator(plan), Outcome()
    with running(start_topics(plan, plan.fresh_dir("topics"))) as ours:
        Api(ours.port).create(TOPIC, durability="disk")
        for people in PEOPLE:
            rounds = [run_room(program, ours, kind, people, plan.scale.round_s) for _ in range(plan.scale.rounds)]
            _add(outcome, rounds, people)
    return outcome


def _add(outcome: Outcome, rounds: list[Round], people: int) -> None:
    name = f"{people} participants"
    middle = {field: median(getattr(one, field) for one in rounds) for field in Round.__dataclass_fields__}
    outcome.sides.append(
        Side(
            name=name,
            unit="ms p99",
            rounds=tuple(one.p99_ms for one in rounds),
            median=middle["p99_ms"],
            busy=middle["server_busy"],
            p50_ms=middle["p50_ms"],
            p99_ms=middle["p99_ms"],
        )
    )
    generator = f"generator {middle['busy']:.0%} busy, late by {middle['late_p99_ms']:.2f} ms at p99"
    ack = f"ack p50 {middle['ack_p50_ms']:.2f}, p99 {middle['ack_p99_ms']:.2f} ms"
    outcome.readings += [
        Reading(key=f"p50, {name}", value=middle["p50_ms"], note=ack),
        Reading(key=f"p99, {name}", value=middle["p99_ms"], note=generator),
        Reading(key=f"p99.9, {name}", value=middle["p999_ms"]),
        Reading(key=f"server CPU per delivery, {name}", value=middle["server_us"]),
    ]


def measure_sockets(plan: Plan) -> Outcome:
    return _measure(plan, "ws")


def measure_streams(plan: Plan) -> Outcome:
    return _measure(plan, "sse")


def _asks(p50: tuple[float, float], p99: tuple[float, float]) -> tuple[Ask, ...]:
    """Return the questions. The bars, and the goals beside them, hold for the room of 30."""
    asks: list[Ask] = []
    for people in PEOPLE:
        name, judged = f"{people} participants", people == JUDGED
        asks += [
            Ask(key=f"p50, {name}", unit="ms", **_bounds(p50, judged=judged)),
            Ask(key=f"p99, {name}", unit="ms", **_bounds(p99, judged=judged)),
            Ask(key=f"p99.9, {name}", unit="ms"),
            Ask(key=f"server CPU per delivery, {name}", unit="µs", **_bounds((8, 5), judged=judged)),
        ]
    return tuple(asks)


def _bounds(bounds: tuple[float, float], *, judged: bool) -> dict[str, Any]:
    return {"bar": at_most(bounds[0]), "goal": at_most(bounds[1])} if judged else {}


ROWS = (
    Row(
        id="w15",
        title="room over WebSockets: each publishes 50 messages a second and receives those of all others",
        peer="none",
        asks=_asks((3, 2), (15, 10)),
        measure=measure_sockets,
        needs=("cc",),
    ),
    Row(
        id="w16",
        title="the same room, with HTTP to write and event streams to receive",
        peer="none",
        asks=_asks((3.5, 2.5), (18, 12)),
        measure=measure_streams,
        needs=("cc",),
    ),
)
