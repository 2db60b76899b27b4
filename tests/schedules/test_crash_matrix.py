"""Put, tick and delete with a crash at every file call, in every mode in which a disk can lose unsynced bytes.

A schedule catches all ticks up. So whatever the crash cost, a server that goes on has each tick exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.faults.filming import FilmedDisk, Moment
from tests.sampling import SEED
from tests.schedules.driving import restarted, run_until, ticks, turn, wanted
from tests.simulated.clock import SimClock
from tests.simulated.harness import SimServer
from tests.simulated.inode import CrashMode
from topics.model.schedule import ScheduleRequest

MODES: tuple[CrashMode, ...] = ("keep", "lose", "tear", "reorder", "zero")
BEGIN, EVERY = 1_800_000_000_000, 10_000


class Known:
    """The answers that a client has: the last change that was answered, and those that may have happened."""

    def __init__(
        self, acked: ScheduleRequest | None = None, pending: list[ScheduleRequest | None] | None = None
    ) -> None:
        self.acked, self.pending = acked, pending or []

    def copy(self) -> Known:
        return Known(self.acked, [*self.pending])


class Client:
    def __init__(self, server: SimServer, known: Known) -> None:
        self.server, self.known = server, known

    def put(self, **options: object) -> None:
        self._change(wanted("jobs", catch_up="all", every_ms=EVERY, starts_at=BEGIN, **options))

    def drop(self) -> None:
        self._change(None)

    def _change(self, change: ScheduleRequest | None) -> None:
        schedules = self.server.engine.schedules
        self.known.pending.append(change)
        self.server.done(schedules.drop("s") if change is None else schedules.put("s", change))
        self.known.acked, self.known.pending = change, []

    def tick(self, times: int = 1) -> None:
        self.server.clock.advance(ms=times * EVERY)
        for _ in range(2 * times):
            turn(self.server)

    def tick_in_two_turns(self) -> None:
        """Let a change come while the tick is staged."""
        self.server.clock.advance(ms=EVERY)
        self.server.engine.schedules.run()
        self.put(data="3")


WORKLOADS: dict[str, Callable[[Client], None]] = {
    "put": lambda client: client.put(data="2"),
    "tick": lambda client: client.tick(),
    "catch_up": lambda client: client.tick(3),
    "tick_and_change": lambda client: client.tick_in_two_turns(),
    "delete": lambda client: client.drop(),
    "tick_and_delete": lambda client: (client.tick(), client.drop()),  # type: ignore[func-returns-value]
    "checkpoint": lambda client: (client.tick(), client.server.checkpoint(), client.tick()),  # type: ignore[func-returns-value]
    "run": lambda client: (client.server.done(client.server.engine.schedules.run_now("s")), client.tick()),  # type: ignore[func-returns-value]
}  # fmt: skip


def film(name: str, durability: str) -> list[Moment[Known]]:
    disk: FilmedDisk[Known] = FilmedDisk(seed=SEED)
    server = SimServer.start(disk, clock=SimClock(BEGIN - 1))
    server.put("jobs", durability=durability, idempotency_window_ms=0)
    client = Client(server, Known())
    client.put()
    client.tick()
    disk.film(client.known, server.clock)
    WORKLOADS[name](client)
    disk.moments.append(Moment("after the end", disk.clone(), server.clock.now_ms(), client.known.copy()))
    return disk.moments


def survive(moment: Moment[Known], mode: CrashMode, durability: str, *, runs: bool) -> None:
    after = restarted(SimServer(moment.disk, clock=SimClock(moment.ms)), mode=mode)
    one = after.engine.state.schedules.by_name.get("s")
    allowed = [
        None if change is None else change.record.data for change in (moment.ledger.acked, *moment.ledger.pending)
    ]
    found = None if one is None else after.engine.schedules.get("s").config.record
    assert [change for change in allowed if found == (None if change is None else b'{"data":%b}' % bytes(change))]
    server, upto = after, moment.ms + 5 * EVERY
    for _ in range(2):  # a second restart shows the same
        run_until(server, upto)
        expected = list(range(BEGIN, (moment.ms if one is None else upto) + 1, EVERY))
        times = ticks(server)
        if runs:
            times = sorted({at for at in times if not (at - BEGIN) % EVERY})
        if durability != "fsync" and mode in ("reorder", "zero"):
            # The disk may keep a later tick than one that it lost: that is lost with its record, and reported.
            assert times == sorted(set(times) & set(expected)), "a tick is there twice"
            assert len(times) == len(expected) or one is None or server.walk("jobs")[1], "a loss is not reported"
        elif one is None:
            assert times == expected[: len(times)], "a tick is missing, or there twice"
        else:
            assert times == expected
        server = restarted(server, mode="keep")


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_each_tick_is_there_once_after_a_crash_at_any_call(name: str, durability: str) -> None:
    chance = Random(f"{SEED} {name} {durability}")
    for moment in film(name, durability):
        for mode in {"keep", chance.choice(MODES)}:
            survive(moment, mode, durability, runs=name == "run")  # type: ignore[arg-type]


@pytest.mark.torture
@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_each_tick_is_there_once_after_any_crash_at_any_call(name: str, durability: str) -> None:
    for moment in film(name, durability):
        for mode in MODES:
            survive(moment, mode, durability, runs=name == "run")
