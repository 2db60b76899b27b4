"""The times of ticks: cron expressions in time zones whose clocks change, and fixed intervals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest

from tests.schedules.naive_cron import CASES, naive, zones_with_changes
from topics.engine.schedules import times
from topics.engine.schedules.times import check, last_ticks, ticks
from topics.errors import TopicsError
from topics.model.schedule import Timing

JANUARY, NEXT_JANUARY = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
# Changes of an hour in both halves of the earth, of half an hour, and at midnight.
CHANGES = {
    "Europe/Berlin": (datetime(2026, 3, 28), datetime(2026, 10, 24)),
    "America/New_York": (datetime(2026, 3, 7), datetime(2026, 10, 31)),
    "Australia/Lord_Howe": (datetime(2026, 4, 4), datetime(2026, 10, 3)),
    "America/Havana": (datetime(2026, 3, 7), datetime(2026, 10, 31)),
    "Asia/Beirut": (datetime(2026, 3, 28), datetime(2026, 10, 24)),
}


def between(timing: Timing, low: datetime, high: datetime) -> list[int]:
    upto = int(high.timestamp() * 1000)
    return list(takewhile(lambda at: at <= upto, ticks(timing, 0, int(low.timestamp() * 1000))))


def local(cron: str, zone: str, after: datetime, n: int) -> list[str]:
    found = islice(ticks(Timing(cron=cron, timezone=zone), 0, int(after.timestamp() * 1000)), n)
    return [datetime.fromtimestamp(at / 1000, ZoneInfo(zone)).strftime("%d %H:%M%z") for at in found]


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize("cron", CASES)
def test_ticks_around_changes_of_the_clock_match_brute_force(cron: str, zone: str) -> None:
    for day in CHANGES[zone]:
        low = day.replace(tzinfo=UTC)
        high = low + timedelta(days=3)
        assert between(Timing(cron=cron, timezone=zone), low, high) == naive(cron, zone, low, high)


@pytest.mark.torture
def test_ticks_of_a_year_in_all_time_zones_match_brute_force() -> None:
    zones = zones_with_changes(2026)
    assert len(zones) > 20
    for zone in zones:
        for cron in CASES:
            found = between(Timing(cron=cron, timezone=zone), JANUARY, NEXT_JANUARY)
            assert found == naive(cron, zone, JANUARY, NEXT_JANUARY), (zone, cron)


def test_next_tick_is_the_same_from_any_moment_before() -> None:
    zone, low = "America/New_York", datetime(2026, 10, 31, 12, tzinfo=UTC)
    for cron in CASES:
        found = between(Timing(cron=cron, timezone=zone), low, low + timedelta(days=2))
        for minutes in range(0, 2 * 1440, 7):
            after = int((low + timedelta(minutes=minutes, milliseconds=1)).timestamp() * 1000)
            later = [at for at in found if at > after]
            if later:
                assert next(ticks(Timing(cron=cron, timezone=zone), 0, after)) == later[0], (cron, minutes)


def test_fixed_time_that_the_clock_skips_ticks_at_the_change() -> None:
    found = local("30 2 * * *", "Europe/Berlin", datetime(2026, 3, 28, tzinfo=UTC), 3)
    assert found == ["28 02:30+0100", "29 03:00+0200", "30 02:30+0200"]


def test_fixed_time_that_the_clock_repeats_ticks_once() -> None:
    found = local("30 2 * * *", "Europe/Berlin", datetime(2026, 10, 24, tzinfo=UTC), 3)
    assert found == ["24 02:30+0200", "25 02:30+0200", "26 02:30+0100"]


def test_hourly_tick_follows_the_real_time() -> None:
    found = local("0 * * * *", "Europe/Berlin", datetime(2026, 10, 24, 23, 30, tzinfo=UTC), 3)
    assert found == ["25 02:00+0200", "25 02:00+0100", "25 03:00+0100"]


def test_interval_counts_from_its_start() -> None:
    assert list(islice(ticks(Timing(every_ms=1000), 5_500, 5_500), 2)) == [6_500, 7_500]
    assert list(islice(ticks(Timing(every_ms=1000, starts_at=9_000), 5_500, 5_500), 2)) == [9_000, 10_000]
    assert list(islice(ticks(Timing(every_ms=1000, starts_at=9_000), 5_500, 10_300), 1)) == [11_000]
    assert list(ticks(Timing(every_ms=1000, ends_at=7_500), 5_500, 5_500)) == [6_500, 7_500]


@pytest.mark.parametrize("timing", [Timing(cron="*/7 * * * *"), Timing(every_ms=420_000), Timing(cron="0 0 1 1 *")])
def test_last_ticks_are_those_of_a_walk_from_the_beginning(timing: Timing) -> None:
    low, high = int(JANUARY.timestamp() * 1000), int(NEXT_JANUARY.timestamp() * 1000)
    whole = list(takewhile(lambda at: at <= high, ticks(timing, low, low)))
    found = last_ticks(timing, low, low, high, 5)
    assert found == whole[-len(found) :]
    assert min(5, len(whole)) <= len(found) < 40


@pytest.mark.parametrize(
    ("timing", "field"),
    [
        (Timing(), "cron"),
        (Timing(cron="* * * * *", every_ms=1000), "cron"),
        (Timing(cron="* * * *"), "cron"),
        (Timing(cron="* * * * * *"), "cron"),
        (Timing(cron="61 * * * *"), "cron"),
        (Timing(cron="@sometimes"), "cron"),
        (Timing(cron="0 0 31 2 *"), "cron"),
        (Timing(cron="0" * 300 + " * * * *"), "cron"),
        (Timing(cron="@daily", timezone="Mars/Olympus"), "timezone"),
        (Timing(cron="@daily", timezone="../etc/passwd"), "timezone"),
        (Timing(cron="@daily", timezone="America"), "timezone"),
        (Timing(every_ms=1000, timezone="Europe/Berlin"), "timezone"),
        (Timing(every_ms=1000, ends_at=5), "ends_at"),
    ],
)
def test_invalid_timing_is_refused_with_its_field(timing: Timing, field: str) -> None:
    with pytest.raises(TopicsError) as refused:
        check(timing, 1_000_000)
    assert refused.value.detail == {"field": field}


def test_jitter_longer_than_an_interval_is_refused() -> None:
    check(Timing(cron="* * * * *"), 0, jitter_ms=60_000)
    with pytest.raises(TopicsError, match="jitter_ms"):
        check(Timing(cron="* * * * *"), 0, jitter_ms=60_001)


def test_server_without_time_zone_data_knows_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr(times, "ZoneInfo", missing)
    check(Timing(cron="@daily"), 0)
    with pytest.raises(TopicsError, match="tzdata"):
        check(Timing(cron="@daily", timezone="Europe/Berlin"), 0)
