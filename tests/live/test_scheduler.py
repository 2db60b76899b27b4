"""The pressure steps and the order of service, from given times and lags."""

import pytest

from topics.engine.state.topic import Topic, Totals
from topics.errors import TopicsError
from topics.model.topic import TopicConfig
from topics.server.loop.throttle import SAMPLES, Pressure, PressureStep, age_boost, base_priority, effective_priority

REFUSE_MS = 200


def topic(**config):
    return Topic("t", topic_id=1, epoch=1, config=TopicConfig(**config), totals=Totals())


def pressed(*lags_ms):
    pressure = Pressure(REFUSE_MS)
    for lag_ms in lags_ms:
        pressure.sample(lag_ms)
    return pressure


@pytest.mark.parametrize(
    ("idle_ms", "expected"), [(0, 500), (30_000, 250), (60_000, 125), (299_999, 0), (300_000, 0), (-5, 500)]
)
def test_interest_halves_every_thirty_seconds(idle_ms, expected):
    watched = topic()
    watched.last_read_ts = 1_000_000
    assert base_priority(watched, 1_000_000 + idle_ms) == expected


def test_manual_priority_is_used_as_given():
    manual = topic(priority=-7)
    manual.last_read_ts = 0
    assert base_priority(manual, 0) == -7
    assert base_priority(topic(auto_priority=False), 0) == 0


def test_waiting_raises_priority_by_100_per_second_up_to_1000():
    assert [age_boost(ms) for ms in (-1, 0, 10, 1_000, 9_990, 60_000)] == [0, 0, 1, 100, 999, 1000]
    waiting = topic(priority=-300)
    waiting.waits_since_ms = 5_000
    assert effective_priority(waiting, 7_000) == -100
    assert effective_priority(waiting, 8_000) == 0


def test_single_late_sample_is_no_pressure():
    assert pressed(0, 0, 5_000, 0, 0).step is PressureStep.CALM


@pytest.mark.parametrize(
    ("lag_ms", "step"),
    [
        (0, PressureStep.CALM),
        (9, PressureStep.CALM),
        (10, PressureStep.COALESCE),
        (30, PressureStep.STRETCH),
        (80, PressureStep.PAUSE),
        (200, PressureStep.REFUSE),
    ],
)
def test_lasting_lag_raises_the_step(lag_ms, step):
    pressure = pressed(*[lag_ms] * (SAMPLES - 1))
    assert pressure.step is PressureStep.CALM
    assert pressure.sample(lag_ms) is (step is not PressureStep.CALM)
    assert pressure.step is step


def test_step_ends_below_half_of_its_threshold():
    pressure = pressed(*[80] * SAMPLES)
    for _ in range(10):
        pressure.sample(41)
    assert pressure.step is PressureStep.PAUSE
    for _ in range(SAMPLES):
        pressure.sample(20)
    assert pressure.step is PressureStep.STRETCH
    for _ in range(SAMPLES):
        pressure.sample(0)
    assert pressure.step is PressureStep.CALM


def test_server_without_refusals_stays_calm():
    pressure = Pressure(0)
    for _ in range(10):
        assert not pressure.sample(10_000)
    assert pressure.step is PressureStep.CALM


def test_only_topics_below_zero_are_paused_and_not_for_ever():
    low, normal = topic(priority=-1000), topic(priority=0)
    low.waits_since_ms = normal.waits_since_ms = 0
    pressure = pressed(*[100] * SAMPLES)
    assert (pressure.pauses(low, 9_000), pressure.pauses(low, 10_000), pressure.pauses(normal, 0)) == (
        True,
        False,
        False,
    )
    assert not pressed(*[50] * SAMPLES).pauses(low, 0)


def test_topics_of_high_priority_are_refused_last():
    wanted, unwanted = topic(priority=500), topic(priority=499)
    pressure = pressed(*[250] * SAMPLES)
    pressure.check(wanted, 0)
    for refused in (unwanted, None):
        with pytest.raises(TopicsError) as error:
            pressure.check(refused, 0)
        assert error.value.retry_after_ms >= 500
    with pytest.raises(TopicsError):
        pressed(*[400] * SAMPLES).check(wanted, 0)
    pressed(*[199] * SAMPLES).check(unwanted, 0)


def test_lower_priority_gets_a_longer_retry_time():
    pressure = pressed(*[400] * SAMPLES)
    assert pressure.retry_after_ms(500) < pressure.retry_after_ms(0) < pressure.retry_after_ms(-1000) <= 5_000
