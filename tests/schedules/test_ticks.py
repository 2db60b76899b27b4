"""Ticks of schedules: what they append, what they skip and catch up, and what becomes of those that fail."""

from __future__ import annotations

import errno
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tests.schedules.driving import DAY, HOUR, MINUTE, put, restarted, run_until, ticks, turn, wanted
from tests.simulated.clock import SimClock
from tests.simulated.disk import FOREVER, SimDisk
from tests.simulated.harness import SimServer
from topics.engine.queue.verbs import Want
from topics.engine.schedules import times
from topics.engine.schedules.verbs import CAUGHT_UP, LATE_MS
from topics.errors import Code, TopicsError, invalid
from topics.model.router import RouterRequest
from topics.model.schedule import SchedulePreviewRequest

NOON = int(datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp() * 1000)


def started(**config: Any) -> SimServer:
    server = SimServer.start(SimDisk(seed=3), clock=SimClock(NOON))
    server.put("jobs", **{"durability": "fsync", **config})
    return server


def refusal(server: SimServer, name: str = "s", **options: Any) -> Any:
    with pytest.raises(TopicsError) as refused:
        put(server, name, **options)
    return refused.value.detail


def test_each_tick_appends_the_record_with_its_time() -> None:
    server = started()
    put(server, cron="*/5 * * * *", data='{"a": 1}', record={"tag": "t", "meta": msgspec.Raw(b'{"b": 2}')})
    run_until(server, NOON + 11 * MINUTE)
    rows = [msgspec.json.decode(row) for row in server.walk("jobs")[0]]
    assert [row["data"] for row in rows] == [{"a": 1}, {"a": 1}]
    assert rows[1]["meta"] == {"b": 2, "$schedule": "s", "$schedule_at": NOON + 10 * MINUTE}
    one = server.engine.schedules.get("s")
    assert (one.last_ms, one.last_seq) == (NOON + 10 * MINUTE, 2)
    assert server.engine.schedules.next_at(one) == NOON + 15 * MINUTE


def test_schedule_ticks_between_its_start_and_its_end() -> None:
    server = started()
    put(server, every_ms=1000, starts_at=NOON + 5_000, ends_at=NOON + 7_500)
    run_until(server, NOON + 20_000)
    assert ticks(server) == [NOON + 5_000, NOON + 6_000, NOON + 7_000]
    assert server.engine.schedules.delay_ms is None


def test_jitter_delays_each_tick_by_the_same_time_after_a_restart() -> None:
    def arrivals(server: SimServer, *, restart: bool) -> list[int]:
        put(server, every_ms=10_000, jitter_ms=10_000)
        run_until(server, NOON + 55_000)
        if restart:
            server = restarted(server)
        run_until(server, NOON + 200_000)
        assert ticks(server) == [NOON + at for at in range(10_000, 190_001, 10_000)][: len(ticks(server))]
        return [msgspec.json.decode(row)["$ts"] - NOON for row in server.walk("jobs")[0]]

    found = arrivals(started(), restart=False)
    assert found == arrivals(started(), restart=True)
    delays = {at % 10_000 for at in found}
    assert len(delays) > 10


@pytest.mark.parametrize("restart", [False, True])
def test_schedule_is_paused_and_resumed_without_its_other_settings(restart: bool) -> None:
    server = started()
    put(server, every_ms=MINUTE, catch_up="all", jitter_ms=5)
    before = server.engine.schedules.get("s").config
    run_until(server, NOON + 90_000)
    server.done(server.engine.schedules.pause("s", paused=True))
    assert server.done(server.engine.schedules.pause("s", paused=True)).config.paused
    if restart:
        server = restarted(server, mode="lose")
    run_until(server, NOON + 5 * MINUTE)
    assert server.done(server.engine.schedules.pause("s", paused=False)).config == before
    run_until(server, NOON + 6 * MINUTE + 10)
    assert ticks(server) == [NOON + MINUTE, NOON + 6 * MINUTE]
    with pytest.raises(TopicsError) as refused:
        server.engine.schedules.pause("none", paused=True)
    assert refused.value.code is Code.SCHEDULE_NOT_FOUND


def test_pause_of_a_schedule_whose_topic_is_gone_ends_its_failures() -> None:
    server = started()
    put(server, every_ms=MINUTE)
    server.done(server.engine.drop_topic("jobs"))
    run_until(server, NOON + 2 * MINUTE)
    assert server.engine.schedules.standing("s").failures
    server.done(server.engine.schedules.pause("s", paused=True))
    failures = server.engine.schedules.standing("s").failures
    run_until(server, NOON + 20 * MINUTE)
    assert server.engine.schedules.standing("s").failures == failures


def test_paused_schedule_has_no_ticks_and_does_not_catch_up() -> None:
    server = started()
    put(server, catch_up="all")
    run_until(server, NOON + 10_000)
    put(server, catch_up="all", paused=True)
    server = restarted(server)
    run_until(server, NOON + 45_000)
    assert server.engine.schedules.next_at(server.engine.schedules.get("s")) is None
    put(server, catch_up="all")
    run_until(server, NOON + 60_000)
    assert ticks(server) == [NOON + 10_000, NOON + 50_000, NOON + 60_000]


def test_change_of_the_record_keeps_the_rhythm() -> None:
    server = started()
    put(server)
    run_until(server, NOON + 13_000)
    put(server, data="2")
    run_until(server, NOON + 20_000)
    assert ticks(server) == [NOON + 10_000, NOON + 20_000]
    assert server.data("jobs") == ["1", "2"]
    put(server, data="2", every_ms=5_000)
    run_until(server, NOON + 26_000)
    assert ticks(server)[2:] == [NOON + 25_000]


def test_same_put_again_changes_nothing() -> None:
    server = started()
    first = put(server)
    server.clock.advance(ms=3_000)
    calls = len(server.disk.calls)
    assert server.done(server.engine.schedules.put("s", wanted())) == (first, False)
    assert len(server.disk.calls) == calls


def test_schedule_skips_while_its_last_job_is_not_finished() -> None:
    server = started(type="queue")
    put(server, overlap="skip")
    run_until(server, NOON + 35_000)
    assert ticks(server) == [NOON + 10_000]
    assert server.engine.schedules.standing("s").skipped == 2
    topic = server.engine.topic("jobs")
    server.engine.queues.claim(topic, [Want(node="w", max=1, lease_ms=30_000)])
    server.done(server.engine.queues.ack(topic, "w", [1], None))
    server = restarted(server)
    run_until(server, NOON + 40_000)
    assert ticks(server) == [NOON + 40_000]


def test_skipped_ticks_are_not_caught_up_after_a_restart() -> None:
    server = started(type="queue")
    put(server, overlap="skip", catch_up="all")
    run_until(server, NOON + 35_000)
    server.delete("jobs", before_seq=2)
    server = restarted(server)
    turn(server)
    assert ticks(server) == []


def test_job_of_an_earlier_queue_of_that_name_is_finished() -> None:
    server = started(type="queue")
    put(server, overlap="skip")
    run_until(server, NOON + 10_000)
    server.drop("jobs")
    server.put("jobs", type="queue")
    server.append("jobs", "0")
    run_until(server, NOON + 20_000)
    assert len(server.data("jobs")) == 2


@pytest.mark.parametrize(
    ("catch_up", "caught"),
    [("none", []), ("last", [3 * HOUR]), ("all", [HOUR, 2 * HOUR, 3 * HOUR])],
)
def test_catch_up_decides_what_runs_after_downtime(catch_up: str, caught: list[int]) -> None:
    server = started()
    put(server, cron="@hourly", catch_up=catch_up)
    server = restarted(server, down_ms=3 * HOUR + 30 * MINUTE)
    turn(server)
    run_until(server, NOON + 3 * HOUR + 40 * MINUTE)
    assert ticks(server) == [NOON + at for at in caught]
    run_until(server, NOON + 4 * HOUR)
    assert ticks(server)[-1] == NOON + 4 * HOUR


def test_tick_that_a_short_restart_delays_is_not_missed() -> None:
    server = started()
    put(server, cron="@hourly")
    server = restarted(server, down_ms=HOUR + LATE_MS - 2)
    turn(server)
    assert ticks(server) == [NOON + HOUR]


def test_catching_up_is_bounded_after_a_year() -> None:
    server = started()
    put(server, cron="* * * * *", catch_up="all")
    server = restarted(server, down_ms=365 * DAY)
    now = server.clock.now_ms()
    run_until(server, now)
    found = ticks(server)
    assert len(found) == CAUGHT_UP
    assert found == [now // MINUTE * MINUTE - at * MINUTE for at in reversed(range(CAUGHT_UP))]


def test_clock_that_goes_back_repeats_no_tick() -> None:
    server = started()
    put(server, cron="@hourly", catch_up="all")
    run_until(server, NOON + 3 * HOUR)
    server.clock.set(ms=NOON + HOUR - 1)
    run_until(server, NOON + 4 * HOUR)
    assert ticks(server) == [NOON + at * HOUR for at in (1, 2, 3, 4)]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_tick_and_position_survive_a_kill_together(durability: str) -> None:
    server = started(durability=durability, idempotency_window_ms=0)
    put(server, catch_up="all")
    run_until(server, NOON + 30_000)
    assert len(ticks(server)) == 3
    server = restarted(server)
    turn(server)
    run_until(server, NOON + 40_000)
    expected = [NOON + at for at in (10_000, 20_000, 30_000, 40_000)]
    assert ticks(server) == (expected[3:] if durability == "ephemeral" else expected)


def test_router_copies_ticks_the_same_after_a_kill() -> None:
    server = started(durability="disk")
    server.done(server.engine.routers.put("r", RouterRequest(source="jobs", dest="copy")))
    put(server, catch_up="all")
    for at in range(1, 4):
        run_until(server, NOON + at * 10_000)
        server.engine.staging.notify()
        server.engine.routers.forwarder.run(1 << 60)
    server.append("copy", "0")
    found = server.view()
    after = restarted(server)
    turn(after)
    assert after.view() == found
    assert ticks(after, "jobs") == [NOON + at * 10_000 for at in (1, 2, 3)]


# --- failures


def test_full_topic_fails_a_tick_until_there_is_room() -> None:
    server = started(cap_records=1, discard="reject")
    put(server, cron="@hourly", catch_up="last")
    server.put("else")
    put(server, "other", topic="else", every_ms=HOUR)
    run_until(server, NOON + 2 * HOUR + 1_500)
    standing = server.engine.schedules.standing("s")
    assert (standing.failures, standing.last_error[:10]) == (2, "topic_full")
    assert len(ticks(server, "else")) == 2
    server.delete("jobs", before_seq=2)
    run_until(server, NOON + 2 * HOUR + 4_000)
    assert ticks(server) == [NOON + 2 * HOUR]
    assert server.engine.schedules.standing("s").last_error is None


def test_failed_tick_is_given_up_when_it_is_late() -> None:
    server = started(cap_records=1, discard="reject")
    server.append("jobs", "0")
    put(server, cron="@hourly")
    run_until(server, NOON + HOUR + 2 * MINUTE)
    standing = server.engine.schedules.standing("s")
    assert standing.failures == 6  # after 1, 2, 4, 8, 16 and 32 seconds more
    assert standing.skipped == 1
    server.delete("jobs", before_seq=2)
    run_until(server, NOON + HOUR + 5 * MINUTE)
    assert ticks(server) == []


def test_tick_into_a_deleted_topic_fails_and_creates_nothing() -> None:
    server = started()
    put(server)
    server.drop("jobs")
    run_until(server, NOON + 10_000)
    assert server.engine.schedules.standing("s").last_error.startswith("topic_not_found")
    assert not server.engine.topics
    server.put("jobs")
    run_until(server, NOON + 20_000)
    assert server.data("jobs") != []


def test_full_disk_fails_a_tick_and_costs_none() -> None:
    server = started()
    put(server, cron="@hourly", catch_up="last")
    server.fill_log()
    run_until(server, NOON + HOUR + 10_000)
    assert server.engine.schedules.standing("s").failures >= 3
    assert ticks(server) == []
    server.disk.heal()
    server.tick()
    run_until(server, NOON + HOUR + MINUTE)
    assert ticks(server) == [NOON + HOUR]


def test_time_zone_that_the_next_machine_lacks_fails_that_schedule_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    server = started()
    put(server, cron="* * * * *", timezone="Europe/Berlin")
    put(server, "other", cron="* * * * *")

    def missing(name: str) -> Any:
        raise invalid("no time zones", field="timezone")

    monkeypatch.setattr(times, "zone_of", lambda name: times.UTC if name == "UTC" else missing(name))
    server = restarted(server)
    run_until(server, NOON + 5 * MINUTE)
    assert len(ticks(server)) == 5
    assert server.engine.schedules.standing("s").failures > 3
    assert server.engine.schedules.next_at(server.engine.schedules.get("s")) is None


def test_failing_write_of_the_log_does_not_move_the_schedule() -> None:
    server = started()
    put(server, catch_up="last")
    server.disk.fail(at=len(server.disk.calls), op="allocate", error=errno.ENOSPC, times=FOREVER)
    server.fill_log()
    before = server.engine.schedules.get("s").position
    run_until(server, NOON + 12_000)
    assert server.engine.schedules.get("s").position == before


# --- verbs


def test_invalid_schedules_are_refused() -> None:
    server = started()
    assert refusal(server, cron="@often") == {"field": "cron"}
    assert refusal(server, overlap="skip") == {"field": "overlap"}
    assert refusal(server, name="a b") == {"field": "schedule"}
    assert refusal(server, record={"meta": msgspec.Raw(b"[1]")})["field"] == "records[0].meta"
    assert refusal(server, record={"tag": "t" * 300})["field"] == "tag"
    assert refusal(server, record={"priority": 3})["field"] == "records"
    assert refusal(server, data=f'"{"x" * 20_000}"') == {"field": "record"}
    assert refusal(server, topic="nothing") == {"topic": "nothing"}
    with pytest.raises(TopicsError) as missing:
        server.engine.schedules.get("s")
    assert missing.value.code is Code.SCHEDULE_NOT_FOUND


def test_run_appends_now_and_leaves_the_ticks_alone() -> None:
    server = started(type="queue")
    put(server, overlap="skip")
    server.clock.advance(ms=4_000)
    assert server.done(server.engine.schedules.run_now("s")).first == 1
    run_until(server, NOON + 10_000)
    assert ticks(server) == [NOON + 4_000], "the job of the run is not finished"
    server.delete("jobs", before_seq=2)
    run_until(server, NOON + 20_000)
    assert ticks(server) == [NOON + 20_000]


def test_preview_stores_nothing() -> None:
    server = started()
    preview = server.engine.schedules.preview
    assert preview("s", SchedulePreviewRequest(every_ms=1000))[1] == [NOON + at * 1000 for at in range(1, 11)]
    with pytest.raises(TopicsError):
        preview("s", SchedulePreviewRequest())
    put(server, every_ms=2000)
    assert preview("s", SchedulePreviewRequest())[1][0] == NOON + 2000
    assert preview("s", SchedulePreviewRequest(after=NOON + DAY))[1][0] == NOON + DAY + 2000


def test_deleted_schedule_ticks_no_more() -> None:
    server = started()
    put(server)
    assert server.done(server.engine.schedules.drop("s")) is True
    assert server.done(server.engine.schedules.drop("s")) is False
    run_until(server, NOON + 30_000)
    assert ticks(server) == []
    assert restarted(server).engine.state.schedules == {}


def test_schedules_are_in_a_snapshot() -> None:
    server = started()
    put(server)
    run_until(server, NOON + 10_000)
    server.checkpoint()
    put(server, "later", cron="@daily", timezone="Asia/Tokyo")
    run_until(server, NOON + 20_000)
    after = server.stop()
    assert after.engine.state.schedules == server.engine.state.schedules
    assert list(after.engine.state.schedule_names) == ["later", "s"]


def test_outdated_entries_leave_the_heap() -> None:
    server = started()
    for at in range(300):
        put(server, cron="@yearly", data=str(at))
    assert len(server.engine.schedules._heap) < 100
