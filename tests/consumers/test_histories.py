"""Random histories of capped topics with consumers, compared with the reference model: with sealed segments, with a log
that refuses, and with crashes at any file call.

The histories of `tests/engine` and `tests/faults` have consumers among all other verbs. Here most verbs are about them.
`make torture` plays 800 histories per test, and 4,000 with crashes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from msgspec import UNSET

from tests.engine import test_histories as engine
from tests.engine.harness import Sealer, record, write
from tests.faults import test_histories as faults
from tests.sampling import amount
from tests.simulated.disk import SimDisk
from topics.model.consumer import ConsumerRequest
from topics.model.topic import ArchiveConfig, ConfigPatch

NAMES = st.sampled_from(["a", "a", "b"])  # changes to consumers of both share an entry
CONSUMERS = st.sampled_from(["c1", "c2"])
LONG = pytest.param(amount(800, 5_000), marks=pytest.mark.torture)

caps: dict[str, st.SearchStrategy[Any]] = {
    "cap_records": st.sampled_from([1, 2, 4]),
    "cap_bytes": st.sampled_from([0, 0, 150]),
    "discard": st.sampled_from(["old", "old", "old", "reject"]),
    "archive": st.sampled_from([None, None, None, ArchiveConfig(hold=True)]),
}
appends = st.builds(
    engine.Append, NAMES, st.lists(st.just(record("1")), min_size=1, max_size=3).map(lambda batch: write(*batch))
)
stores = st.builds(
    engine.Store,
    NAMES,
    CONSUMERS,
    st.builds(
        ConsumerRequest,
        seq=st.sampled_from([UNSET, UNSET, 0, 1, 2, 4, 7]),
        if_seq=st.sampled_from([UNSET, UNSET, UNSET, None, 0]),
        expire_ms=st.sampled_from([UNSET, UNSET, UNSET, 40]),
        hold=st.sampled_from([True, True, True, False]),
        max_hold_bytes=st.sampled_from([130, 200, 400, 1 << 20]),
    ),
)
commits = st.builds(engine.Commit, NAMES, CONSUMERS, st.sampled_from([0, 1, 2, 3, 5, 8]))
others = st.one_of(
    st.builds(engine.Leave, NAMES, CONSUMERS),
    st.builds(engine.Put, NAMES, st.builds(ConfigPatch, **caps)),
    st.builds(engine.Delete, NAMES, st.integers(0, 12), st.none()),
    st.builds(engine.Archive, NAMES, st.integers(0, 8)),
    st.builds(engine.Drop, NAMES, st.just(False)),
)
turns = st.builds(
    engine.Turn,
    st.sampled_from([0, 0, 1, 41]),
    st.lists(st.one_of(appends, appends, stores, stores, commits, others), min_size=1, max_size=4),
    st.just([]),
    st.booleans(),
    st.booleans(),
    jump_ms=st.sampled_from([0, 0, -30, 50]),
)
patches = st.builds(ConfigPatch, **caps)
first = st.builds(lambda a, b: engine.Turn(0, [engine.Put("a", a), engine.Put("b", b)]), patches, patches)
histories = st.builds(lambda begin, rest: [begin, *rest], first, st.lists(turns, min_size=2, max_size=12))


@pytest.mark.parametrize("examples", [75, LONG])
def test_history_of_consumers_matches_the_model(examples: int):
    def play(history: list[engine.Turn], cold: bool) -> None:
        pair = engine.Pair(Sealer(SimDisk(cold=cold), columns_bytes=1 << 20 if cold else 400))
        for turn in history:
            pair.play(turn)

    engine.run(examples, play, history=histories, cold=st.booleans())


@pytest.mark.parametrize("examples", [40, LONG])
def test_turn_of_consumers_refused_by_the_log_has_no_effect(examples: int):
    def play(history: list[engine.Turn], refused: list[str | None]) -> None:
        pair = engine.Pair(logged=True)
        for turn, fault in zip(history, [None, *refused], strict=False):
            pair.play(replace(turn, fault=fault))

    refusals = st.lists(st.sampled_from([None, None, "write", "sync"]), min_size=12, max_size=12)
    engine.run(examples, play, history=histories, refused=refusals)


crash_verbs = st.one_of(
    st.tuples(st.just("append"), NAMES, st.integers(1, 3), st.none(), st.none(), st.just(0)),
    st.tuples(st.just("append"), NAMES, st.integers(1, 3), st.none(), st.none(), st.just(0)),
    st.tuples(
        st.just("store"),
        NAMES,
        CONSUMERS,
        st.fixed_dictionaries(
            {
                "behind": st.sampled_from([0, 1, 3, 9]),
                "hold": st.sampled_from([True, True, False]),
                "max_hold_bytes": st.sampled_from([130, 400, 1 << 20]),
            },
            optional={"if_seq": st.sampled_from([None, 0, 3]), "expire_ms": st.just(40)},
        ),
    ),
    st.tuples(st.just("commit"), NAMES, CONSUMERS, st.sampled_from([None, 0, 1, 3])),
    st.tuples(st.just("leave"), NAMES, CONSUMERS),
    st.tuples(st.just("put"), NAMES, st.fixed_dictionaries(caps)),
    st.tuples(st.just("drop"), NAMES),
)
crash_turns = faults.turns_of(crash_verbs, st.none() | st.integers(0, 30))
configs = st.fixed_dictionaries(caps)
crash_first = st.builds(
    lambda a, b: faults.Turn(0, 0, [("put", "a", a), ("put", "b", b)], "", False, "on", None, False, ""),
    configs,
    configs,
)
crash_histories = st.builds(
    lambda begin, rest: [begin, *rest], crash_first, st.lists(crash_turns, min_size=2, max_size=12)
)


@pytest.mark.parametrize("examples", [60, pytest.param(amount(4_000, 20_000), marks=pytest.mark.torture)])
def test_consumers_stand_at_acknowledged_positions_after_crashes(examples: int):
    def play(history: list[faults.Turn], durability: str, seed: int) -> None:
        faults.check(history, durability, seed)

    classes = st.sampled_from(["fsync", "fsync", "disk", "memory"])
    engine.run(examples, play, history=crash_histories, durability=classes, seed=st.integers(0, 1 << 16))
