"""Requests and ticks of one schedule at the same time: in one turn, or while an entry waits for its sync."""

from __future__ import annotations

import pytest

from tests.schedules.driving import restarted, run_until, ticks, turn, wanted
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.harness import DeferredWorker, SimServer
from topics.errors import Code, TopicsError
from topics.model.topic import ConfigPatch

NOW = 1_800_000_000_000


def started() -> tuple[SimServer, DeferredWorker]:
    """Return a server whose syncs end when the test says so, with a schedule every ten seconds."""
    syncs = DeferredWorker()
    server = SimServer.start(SimDisk(seed=3), clock=SimClock(NOW), sync_worker=syncs)
    ticket = server.engine.put_topic("jobs", ConfigPatch(durability="fsync", type="queue"))
    server.engine.commits.sync()
    assert ticket.done
    server.engine.schedules.put("s", wanted(catch_up="all"))
    server.engine.commits.sync()
    return server, syncs


def pending(server: SimServer) -> None:
    """Let a tick be written, and wait for its sync."""
    server.clock.advance(ms=10_000)
    turn(server)
    assert ticks(server) == []


def test_delete_while_a_tick_waits_for_its_sync() -> None:
    server, _ = started()
    pending(server)
    ticket = server.engine.schedules.drop("s")
    assert ticks(server) == [NOW + 10_000], "the tick came first"
    server.engine.commits.sync()
    assert ticket.value() is True
    server.clock.advance(ms=60_000)
    turn(server)
    after = restarted(server)
    turn(after)
    assert ticks(after) == [NOW + 10_000]
    assert after.engine.state.schedules.by_name == {}


def test_changed_cron_while_a_tick_waits_for_its_sync() -> None:
    server, _ = started()
    pending(server)
    ticket = server.engine.schedules.put("s", wanted(every_ms=7_000))
    server.engine.commits.sync()
    assert ticket.value()[1] is False
    for _ in range(2):
        server.clock.advance(ms=7_000)
        turn(server)
        server.engine.commits.sync()
    expected = [NOW + 10_000, NOW + 17_000, NOW + 24_000]
    assert ticks(server) == expected
    assert ticks(restarted(server)) == expected


def test_due_tick_comes_before_a_change_of_the_same_turn() -> None:
    server, _ = started()
    server.clock.advance(ms=10_000)
    server.engine.schedules.put("s", wanted(cron="@yearly"))
    server.engine.commits.sync()
    assert ticks(server) == [NOW + 10_000]


def test_tick_does_not_overtake_a_change_that_is_pending() -> None:
    server, syncs = started()
    server.clock.advance(ms=9_000)
    server.engine.schedules.put("s", wanted(cron="@yearly"))
    server.engine.flush()
    server.clock.advance(ms=5_000)
    turn(server)
    syncs.run_all()
    server.engine.commits.sync()
    assert ticks(server) == []


def test_two_puts_of_one_turn() -> None:
    server, _ = started()
    first = server.engine.schedules.put("new", wanted(every_ms=1_000))
    second = server.engine.schedules.put("new", wanted(every_ms=2_000))
    server.engine.commits.sync()
    assert (first.value()[1], second.value()[1]) == (True, False)
    run_until(server, NOW + 4_000)
    server.engine.commits.sync()
    assert ticks(server) == [NOW + 2_000]
    assert restarted(server).engine.schedules.get("new").config.every_ms == 2_000


def test_run_at_the_same_time_as_a_tick() -> None:
    server, syncs = started()
    pending(server)
    run = server.engine.schedules.run_now("s")
    server.engine.flush()
    syncs.run_all()
    server.engine.commits.sync()
    assert run.value().first == 2
    assert ticks(server) == [NOW + 10_000, NOW + 10_000]
    after = restarted(server)
    turn(after)
    assert ticks(after) == [NOW + 10_000, NOW + 10_000]
    assert after.engine.schedules.get("s").position == NOW + 10_000


def test_topic_deleted_while_a_tick_waits_for_its_sync() -> None:
    server, _ = started()
    pending(server)
    server.engine.drop_topic("jobs")
    server.engine.commits.sync()
    server.clock.advance(ms=10_000)
    turn(server)
    assert server.engine.schedules.standing("s").failures == 1
    after = restarted(server)
    assert after.engine.schedules.get("s").position == NOW + 10_000


def test_checkpoint_while_a_tick_waits_for_its_sync() -> None:
    server, _ = started()
    pending(server)
    server.store.checkpoint()
    after = restarted(server, mode="lose")
    turn(after)
    assert ticks(after) == [NOW + 10_000]


def test_tick_of_a_change_that_the_log_refuses() -> None:
    server, _ = started()
    server.fill_log()
    ticket = server.engine.schedules.put("s", wanted(cron="@yearly"))
    server.engine.flush()
    assert ticket.error is not None
    assert ticket.error.code is Code.READ_ONLY
    server.disk.heal()
    server.tick()
    run_until(server, NOW + 10_000)
    server.engine.commits.sync()
    assert ticks(server) == [NOW + 10_000]


def test_new_schedule_that_the_log_refuses_does_not_exist() -> None:
    server, _ = started()
    server.fill_log()
    server.engine.schedules.put("new", wanted())
    server.engine.flush()
    with pytest.raises(TopicsError):
        server.engine.schedules.get("new")
    server.disk.heal()
    server.tick()
    ticket = server.engine.schedules.put("new", wanted())
    server.engine.commits.sync()
    assert ticket.value()[1] is True
