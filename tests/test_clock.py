"""The clock of the machine: `now_ms` follows the wall clock without its jumps."""

import pytest

from topics import clock
from topics.clock import SystemClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START_MS = 1_794_715_514_000


class Machine:
    """A machine whose wall clock can be set. `live` lets time pass, and looks at the clock every 100 ms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, wall_ms: int = START_MS) -> None:
        self.wall_ms, self.tick_ms, self.slept_ms = wall_ms, 5_000, 0
        monkeypatch.setattr(clock.time, "time_ns", lambda: self.wall_ms * 1_000_000)
        monkeypatch.setattr(clock, "clock_gettime_ns", lambda _: (self.tick_ms + self.slept_ms) * 1_000_000)
        monkeypatch.setattr(clock, "monotonic_ns", lambda: self.tick_ms * 1_000_000)
        self.jumps: list[int] = []
        self.clock = SystemClock(on_jump=self.jumps.append)

    def live(self, ms: int) -> int:
        """Return how far the clock went."""
        before = last = self.clock.now_ms()
        for _ in range(0, ms, 100):
            self.wall_ms += 100
            self.tick_ms += 100
            now = self.clock.now_ms()
            assert now >= last, "the clock goes back"
            last = now
        return last - before

    @property
    def behind_ms(self) -> int:
        return self.wall_ms - self.clock.now_ms()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_clock_is_the_wall_clock(machine: Machine):
    assert machine.live(10_000) == 10_000
    assert machine.behind_ms == 0


def test_small_correction_is_followed_within_a_second(machine: Machine):
    machine.wall_ms += 900
    machine.live(2_000)
    assert machine.behind_ms == 0
    machine.wall_ms -= 400
    machine.live(2_000)
    assert machine.behind_ms == 0


@pytest.mark.parametrize("jump_ms", [2_000, HOUR_MS, 400 * DAY_MS])
def test_jump_forward_doubles_the_speed_and_no_more(machine: Machine, jump_ms: int):
    machine.wall_ms += jump_ms
    assert machine.clock.now_ms() == START_MS
    for _ in range(100):
        assert machine.live(1_000) <= 2_000
    assert machine.behind_ms == max(jump_ms - 99_000, 0)  # it was noticed after a second


def test_clock_agrees_again_after_as_long_as_it_jumped(machine: Machine):
    machine.wall_ms += HOUR_MS
    machine.live(HOUR_MS)
    assert machine.behind_ms <= 1_000
    machine.live(2_000)
    assert machine.behind_ms == 0


def test_jump_back_halves_the_speed_and_never_goes_back(machine: Machine):
    machine.wall_ms -= HOUR_MS
    for _ in range(100):
        assert 500 <= machine.live(1_000) <= 1_000
    machine.live(2 * HOUR_MS)
    assert machine.behind_ms == 0


def test_jump_there_and_back_leaves_almost_no_trace(machine: Machine):
    machine.wall_ms += 12 * HOUR_MS
    machine.live(3_000)
    machine.wall_ms -= 12 * HOUR_MS
    assert -3_000 <= machine.behind_ms <= 0
    machine.live(8_000)
    assert machine.behind_ms == 0


def test_clock_that_was_never_set_is_taken_over_at_once(monkeypatch: pytest.MonkeyPatch):
    machine = Machine(monkeypatch, wall_ms=0)
    machine.live(1_000)
    machine.wall_ms = START_MS
    machine.live(1_000)
    assert machine.behind_ms == 0


def test_clock_is_right_within_a_second_after_the_machine_slept(machine: Machine):
    machine.slept_ms += HOUR_MS
    machine.wall_ms += HOUR_MS
    machine.live(1_000)
    assert machine.behind_ms == 0
    assert machine.jumps == []


def test_wall_clock_is_looked_at_once_a_second_after_a_correction(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    machine.wall_ms += 5
    machine.live(2_000)  # noticed, and made up for
    looks: list[int] = []
    monkeypatch.setattr(clock.time, "time_ns", lambda: looks.append(1) or machine.wall_ms * 1_000_000)
    machine.live(10_000)
    assert len(looks) <= 10
    assert machine.behind_ms == 0


def test_clock_before_1970_counts_as_1970(monkeypatch: pytest.MonkeyPatch):
    machine = Machine(monkeypatch, wall_ms=-DAY_MS)
    assert machine.clock.now_ms() == 0
    assert machine.live(3_000) >= 0


def test_jump_is_reported_once(machine: Machine):
    for _ in range(2):
        machine.wall_ms += 10_000
        machine.live(30_000)
    assert machine.jumps == [10_000, 10_000]
