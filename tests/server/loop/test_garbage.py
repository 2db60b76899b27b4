"""Garbage collection: pauses stay short however many objects live long."""

import gc
from collections.abc import Iterator

import pytest

from tests.simulated.clock import SimClock
from topics.server.run import FULL, MAX_PAUSE_NS, THRESHOLDS, Garbage


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    yield
    gc.enable()


def collect(garbage: Garbage, clock: SimClock, *, took_ns: int, generation: int = FULL) -> None:
    garbage.watch("start", {"generation": generation})
    clock.advance(ms=took_ns // 1_000_000)
    garbage.watch("stop", {"generation": generation})


def test_survivors_of_a_long_full_collection_are_frozen():
    clock, frozen = SimClock(), []
    garbage = Garbage(clock.monotonic_ns, lambda ns: None, freeze=lambda: frozen.append(clock.now_ms()))
    collect(garbage, clock, took_ns=MAX_PAUSE_NS)
    collect(garbage, clock, took_ns=10 * MAX_PAUSE_NS, generation=1)
    assert frozen == []
    collect(garbage, clock, took_ns=MAX_PAUSE_NS + 1_000_000)
    assert len(frozen) == 1


def test_length_of_every_collection_is_noted():
    clock, noted = SimClock(), []
    garbage = Garbage(clock.monotonic_ns, noted.append, freeze=lambda: None)
    for generation in range(3):
        collect(garbage, clock, took_ns=(generation + 1) * 1_000_000, generation=generation)
    assert noted == [1_000_000, 2_000_000, 3_000_000]


def test_frozen_objects_are_not_looked_at_again():
    before = gc.get_threshold()
    garbage = Garbage(SimClock().monotonic_ns, lambda ns: None)
    kept = [[at] for at in range(10_000)]
    assert not gc.isenabled()
    garbage.begin()
    try:
        assert gc.isenabled()
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() >= len(kept)
        assert len(gc.get_objects()) < len(kept)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(garbage.watch)
        gc.unfreeze()
