"""Schedules on a simulated server: put them, let time pass, and read which ticks appended a record."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from msgspec import Raw

from tests.simulated.harness import SimServer
from topics.model.records import NewRecord
from topics.model.schedule import Schedule, ScheduleRequest

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def wanted(topic: str = "jobs", *, data: str = "1", **options: Any) -> ScheduleRequest:
    record = NewRecord(Raw(data.encode()), **options.pop("record", {}))
    if "cron" not in options:
        options.setdefault("every_ms", 10_000)
    return ScheduleRequest(topic=topic, record=record, **options)


def put(server: SimServer, name: str = "s", topic: str = "jobs", **options: Any) -> Schedule:
    one, _ = server.done(server.engine.schedules.put(name, wanted(topic, **options)))
    return one


def turn(server: SimServer) -> None:
    """Run the ticks that are due now, and end the loop turn."""
    server.engine.schedules.run()
    server.engine.flush()


def run_until(server: SimServer, ms: int) -> None:
    """Let time pass as the timer of a server does, up to `ms`."""
    schedules, clock = server.engine.schedules, server.clock
    while (delay := schedules.delay_ms) is not None and clock.now_ms() + delay <= ms:
        clock.advance(ms=delay)
        turn(server)
    clock.advance(ms=max(ms - clock.now_ms(), 0))


def restarted(server: SimServer, *, mode: Any = "keep", down_ms: int = 0) -> SimServer:
    """Kill the server, and start it again after a while."""
    after = server.crash(mode)
    after.clock.advance(ms=down_ms)
    after.engine.schedules.attach()
    return after


def ticks(server: SimServer, topic: str = "jobs") -> list[int]:
    """Return the time of the tick of each record, in the order of the log."""
    return [msgspec.json.decode(row)["meta"]["$schedule_at"] for row in server.walk(topic)[0]]


def live_through(server: SimServer, upto_ms: int, seed: int) -> tuple[SimServer, int]:
    """Run up to `upto_ms`, with kills, stops and jumps of the clock. Return the last server and the latest time."""
    chance, latest = random.Random(seed), server.clock.now_ms()
    while server.clock.now_ms() < upto_ms:
        run_until(server, min(server.clock.now_ms() + chance.randrange(1, 3 * DAY), upto_ms))
        latest = max(latest, server.clock.now_ms())
        event = chance.randrange(6)
        if event == 0:
            server.engine.schedules.run()  # staged, and not in the log
            server = restarted(server, down_ms=chance.randrange(2 * HOUR))
        elif event == 1:
            server = restarted(server, mode="lose", down_ms=chance.randrange(2 * HOUR))
        elif event == 2:
            server = server.stop()
            server.engine.schedules.attach()
        elif event == 3:
            server.clock.set(ms=server.clock.now_ms() + chance.randrange(2 * HOUR))
        elif event == 4:
            server.clock.set(ms=server.clock.now_ms() - chance.randrange(2 * HOUR))
        else:
            server.checkpoint()
    run_until(server, max(upto_ms, server.clock.now_ms()))
    return server, max(latest, server.clock.now_ms())
