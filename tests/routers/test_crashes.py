"""Copies after a crash: the same records under the same seqs, whatever had happened and wherever it stopped.

Histories come from a seeded generator. Where the routers had caught up before the crash, the restart must look exactly
like the server before; where they had not, everything that was visible must be unchanged, and more may have come.
"""

from __future__ import annotations

import pytest

from tests.conftest import Counts
from tests.routers.random_history import World, check_unchanged, drain, forwarded, joined, looks, restarted
from tests.sampling import SEED, amount
from tests.simulated.harness import SimServer, TopicView
from topics.model.router import RouterRequest


def play(seed: int, steps: int, *, ring: bool = False, faults: bool = False) -> None:
    world = World(seed, ring=ring, faults=faults)
    for _ in range(steps):
        world.restart_if_halted(world.act)
        if world.rng.random() < 0.1:
            world.restart_if_halted(world.end_drops)
            check_unchanged(looks(world.server), restarted(world.server))
            world.mend()
            drain(world.server)
            before = looks(world.server)
            after = restarted(world.server)
            assert looks(after) == before
            assert forwarded(after) == forwarded(world.server)
            if world.rng.random() < 0.5:
                world.server, world.sync = after, None


@pytest.mark.parametrize("block", range(2))
def test_copies_come_back_with_the_same_seqs_after_any_history(block: int) -> None:
    for seed in range(block * 60, block * 60 + 12):
        try:
            play(SEED * 10_000 + seed, 40)
        except BaseException as error:
            error.add_note(f"seed {SEED * 10_000 + seed}")
            raise


@pytest.mark.parametrize("ring", [False, True])
def test_copies_come_back_with_the_same_seqs_after_calls_have_failed(ring: bool) -> None:
    for seed in range(10):
        try:
            play(SEED * 20_000 + seed, 60, ring=ring, faults=True)
        except BaseException as error:
            error.add_note(f"seed {SEED * 20_000 + seed}, faults")
            raise


def test_copies_on_cycles_keep_their_seqs_after_any_history() -> None:
    for seed in range(12):
        try:
            play(SEED * 10_000 + seed, 60, ring=True)
        except BaseException as error:
            error.add_note(f"seed {SEED * 10_000 + seed}, ring")
            raise


@pytest.mark.parametrize("seed", [7000233, 7000410, 7000488])
def test_a_history_that_once_came_back_different_comes_back_the_same(seed: int) -> None:
    """An edge whose second router overtook the first at a full destination; two cycles of topics with caps."""
    play(seed, 60)


@pytest.mark.torture
@pytest.mark.parametrize("block", range(12))
@pytest.mark.parametrize("ring", [False, True])
def test_copies_come_back_with_the_same_seqs_after_many_histories(ring: bool, block: int, counts: Counts) -> None:
    for seed in range(250 * block, 250 * block + amount(40, 250)):
        try:
            play(SEED * 1_000_000 + seed, 60, ring=ring, faults=bool(block % 2))
        except BaseException as error:
            error.add_note(f"seed {SEED * 1_000_000 + seed}")
            raise
    counts(f"in block {block} (seed {SEED})", histories=amount(40, 250))


# --- ephemeral topics


class Reader:
    """Remembers every record that was ever shown, by topic, epoch and seq."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], dict[bytes, bytes]] = {}

    def look(self, server: SimServer) -> dict[str, TopicView]:
        """All topics, after a check that no seq was given to two records."""
        found = looks(server)
        for name, view in found.items():
            seen = self.seen.setdefault((name, view.epoch), {})
            for row in view.records:
                assert seen.setdefault(row.split(b",", 1)[0], row) == row, f"{name}: a seq was given out twice"
        return found


def check_kept(before: dict[str, TopicView], after: dict[str, TopicView]) -> None:
    """A topic that is kept has what it had. What comes behind is the report of what was lost with ephemeral topics."""
    assert before.keys() == after.keys()
    for name, was in before.items():
        view = after[name]
        assert view.config == was.config
        assert view.head >= was.head
        if was.config.durability == "ephemeral":
            assert view.records == ()
            continue
        assert view.records == was.records, name
        known = [run for run in view.losses if run[1] <= was.head]
        cut = [(low, min(high, was.head), why) for low, high, why in view.losses if low <= was.head < high]
        assert list(joined(iter([*known, *cut]))) == list(was.losses), name
        assert {why for _, high, why in view.losses if high > was.head} <= {"source_trim"}, name


def play_ephemeral(seed: int, steps: int, *, ring: bool = False) -> None:
    """Killed in the middle, a topic shows nothing else than before; killed at rest, it has all that it had."""
    world = World(seed, ring=ring, classes=("disk", "fsync", "ephemeral", "ephemeral"))
    reader = Reader()
    for _ in range(steps):
        world.act()
        if world.rng.random() < 0.15:
            before = reader.look(world.server)
            killed = restarted(world.server)
            found = looks(killed)
            for name, view in found.items():
                assert view.head >= before[name].head
            drain(world.server)
            before = reader.look(world.server)
            after = restarted(world.server)
            check_kept(before, looks(after))
            assert looks(restarted(after)) == looks(after), "a second start finds something else"
            if world.rng.random() < 0.5:
                world.server = after
                reader.look(after)


def test_restart_of_an_ephemeral_destination_skips_few_seqs() -> None:
    """Copies raise the ceiling of a topic that no client has written to since the start."""
    server = SimServer.start()
    server.put("a")
    server.put("b", durability="ephemeral")
    server.done(server.engine.routers.put("r", RouterRequest(source="a", dest="b")))
    for _ in range(5):
        server.append("a", *["1"] * 1000)
        drain(server)
    assert server.engine.topics["b"].head == 5000
    assert 5000 < restarted(server).engine.topics["b"].head < 5000 * 16


@pytest.mark.parametrize("ring", [False, True])
def test_no_seq_comes_twice_where_routers_meet_ephemeral_topics(ring: bool) -> None:
    for seed in range(8):
        try:
            play_ephemeral(SEED * 10_000 + seed, 40, ring=ring)
        except BaseException as error:
            error.add_note(f"seed {SEED * 10_000 + seed}")
            raise


@pytest.mark.torture
@pytest.mark.parametrize("block", range(6))
@pytest.mark.parametrize("ring", [False, True])
def test_no_seq_comes_twice_in_many_histories_with_ephemeral_topics(ring: bool, block: int, counts: Counts) -> None:
    for seed in range(250 * block, 250 * block + amount(40, 250)):
        try:
            play_ephemeral(SEED * 1_000_000 + seed, 60, ring=ring)
        except BaseException as error:
            error.add_note(f"seed {SEED * 1_000_000 + seed}")
            raise
    counts(f"with ephemeral topics in block {block} (seed {SEED})", histories=amount(40, 250))
