"""Short workloads with a crash at every file call, in every mode in which a disk can lose unsynced bytes.

`make test` plays all single operations with some kinds of crash, and a few pairs and triples. `make torture` plays all
kinds of crash, and a seeded sample of pairs and triples; `TORTURE=all make torture` plays all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import pytest

from tests.conftest import Counts
from tests.faults.filming import FilmedDisk, Moment
from tests.faults.ledger import Client, Ledger
from tests.faults.workloads import STEPS, play, setup, some, while_pending, workloads
from tests.sampling import SEED, parts
from tests.simulated.clock import SimClock
from tests.simulated.harness import SimServer, TopicView
from tests.simulated.inode import CrashMode

MODES: tuple[CrashMode, ...] = ("keep", "lose", "tear", "reorder", "zero")


def film(names: tuple[str, ...], *, fresh: bool = False, cold: bool = False) -> list[Moment[Ledger]]:
    """Return every moment of a workload. The last one is after its end."""
    disk: FilmedDisk[Ledger] = FilmedDisk(seed=SEED, cold=cold)
    client = Client.on(disk)
    server = client.server
    if fresh:
        disk.film(client.ledger, server.clock)
        server.open()
    else:
        server.open()
        setup(client)
        disk.film(client.ledger, server.clock)
    play(client, names)
    disk.moments.append(Moment("after the end", disk.clone(), server.clock.now_ms(), client.ledger.copy()))
    return disk.moments


def survive(moment: Moment[Ledger], mode: CrashMode, *, thorough: bool) -> None:
    """Crash, then check that the restart keeps every promise, a second start shows the same, and the server works."""
    start = SimServer(moment.disk, clock=SimClock(moment.ms))
    after = start.crash(mode)
    listed = after.listing()  # before any other request asks for a topic
    moment.ledger.check(after, mode)
    found = after.view()
    assert listed == {name: _listed(view) for name, view in found.items()}, "the list shows something else"
    again = after.crash("keep")
    assert again.view() == found, "a second start finds something else"
    if thorough:
        lost = after.crash("lose")
        if mode != "keep":
            assert lost.view() == found, "records that a start showed are missing after the next power loss"
        moment.ledger.check(lost, "reorder" if mode in ("reorder", "zero") else "lose")
        check_works(again)


def _listed(view: TopicView) -> tuple[int, int, int, int]:
    return view.head, view.earliest, view.live, view.size_bytes


def check_works(server: SimServer) -> None:
    """Check that a restarted server accepts writes, a checkpoint and an orderly stop, and loses nothing."""
    for name, topic in list(server.engine.topics.items()):
        expected = topic.next_seq
        if topic.holds:  # makes room
            server.done(server.engine.report_archived(name, seq=topic.head, epoch=topic.epoch))
        assert server.append(name, '"new"').first == expected
        assert server.by_seq(name)[expected] == '"new"'
    server.put("another", durability="fsync")
    found = kept(server)
    heads = {name: topic.head for name, topic in server.engine.topics.items()}
    killed = server.crash("keep")
    assert kept(killed) == found
    assert all(killed.engine.topics[name].head >= head for name, head in heads.items()), "a seq can be given out again"
    going = server.next(server.disk.crash("keep"))
    going.checkpoint()
    assert kept(going) == found
    stopped = going.stop()
    assert kept(stopped) == found
    assert stopped.recovered is not None
    assert stopped.recovered.damage == []


def kept(server: SimServer) -> dict[str, TopicView]:
    """Return the topics that must survive the process."""
    return {name: view for name, view in server.view().items() if view.config.durability != "ephemeral"}


def sweep(names: Iterable[tuple[str, ...]], modes: Callable[[int], Iterable[CrashMode]], *, thorough_every: int,
          fresh: bool = False) -> int:  # fmt: skip
    """Return the number of crash points. Every second workload has a page cache that is always empty."""
    points = 0
    for number, workload in enumerate(names):
        cold = number % 2 == 1
        for at, moment in enumerate(film(workload, fresh=fresh, cold=cold)):
            for mode in modes(at):
                points += 1
                try:
                    survive(moment, mode, thorough=points % thorough_every == 0)
                except BaseException as error:
                    error.add_note(
                        f"seed {SEED}, workload {workload}, fresh={fresh}, cold={cold}, {moment.what}, then {mode}"
                    )
                    raise
    return points


@pytest.mark.parametrize(("modes", "thorough_every"), [(1, 9), pytest.param(5, 3, marks=pytest.mark.torture)])
def test_every_single_operation_survives_every_crash(modes: int, thorough_every: int, counts: Counts) -> None:
    """Crash at every call. The short form tries one of the five kinds of crash at each, another at the next."""
    points = sweep(workloads(1), lambda at: [MODES[(at + n) % 5] for n in range(modes)], thorough_every=thorough_every)
    counts(f"in single operations (seed {SEED})", crash_points=points)


def test_first_operation_of_a_new_directory_survives_every_crash(counts: Counts) -> None:
    made = [name for name in STEPS if name.startswith(("create", "append_creates"))]
    points = sweep(
        [(name,) for name in made], lambda at: [MODES[at % 5], MODES[(at + 2) % 5]], thorough_every=7, fresh=True
    )
    counts(f"in a new directory (seed {SEED})", crash_points=points)


def test_some_pairs_of_operations_survive_every_crash(counts: Counts) -> None:
    points = sweep(some(2, 15, SEED), lambda at: [MODES[at % 5]], thorough_every=11)
    counts(f"in pairs (seed {SEED})", crash_points=points)


def test_some_triples_of_operations_survive_every_crash(counts: Counts) -> None:
    points = sweep(some(3, 8, SEED), lambda at: [MODES[(at + 3) % 5]], thorough_every=11)
    counts(f"in triples (seed {SEED})", crash_points=points)


@pytest.mark.parametrize("count", [4, pytest.param(60, marks=pytest.mark.torture)])
def test_operations_while_syncs_are_pending_survive_every_crash(count: int, counts: Counts) -> None:
    points = sweep(while_pending(count, SEED), lambda at: [MODES[at % 5]], thorough_every=7)
    counts(f"while syncs are pending (seed {SEED})", crash_points=points)


BETWEEN = [name for name in STEPS if "checkpoint" not in name]


@pytest.mark.parametrize(("single", "double"), [(3, 1), pytest.param(len(BETWEEN), 20, marks=pytest.mark.torture)])
def test_operations_between_two_slices_of_a_checkpoint_survive_every_crash(
    single: int, double: int, counts: Counts
) -> None:
    """Two topics are captured before the operation, the others after it or because of it."""
    cut = [("begin_checkpoint", name, "end_checkpoint") for name in Random(SEED).sample(BETWEEN, single)]
    twice = Random(SEED).sample([(one, other) for one in BETWEEN for other in BETWEEN], double)
    cut += [("begin_checkpoint", *names, "end_checkpoint", "append_disk") for names in twice]
    points = sweep(cut, lambda at: [MODES[at % 5]], thorough_every=5)
    counts(f"in checkpoints in slices (seed {SEED})", crash_points=points)


PAIRS = parts(STEPS, 2, rounds=4)  # 192 of 2,401
TRIPLES = parts(STEPS, 3, rounds=6)  # 288 of 117,649


@pytest.mark.torture
@pytest.mark.parametrize("part", PAIRS)
def test_pairs_of_operations_survive_every_crash(part: str, counts: Counts) -> None:
    points = sweep(PAIRS[part], lambda at: MODES, thorough_every=5)
    counts(f"in pairs, {part} (seed {SEED})", pairs=len(PAIRS[part]), crash_points=points)


@pytest.mark.torture
@pytest.mark.parametrize("part", TRIPLES)
def test_triples_of_operations_survive_every_crash(part: str, counts: Counts) -> None:
    points = sweep(TRIPLES[part], lambda at: MODES, thorough_every=11)
    counts(f"in triples, {part} (seed {SEED})", triples=len(TRIPLES[part]), crash_points=points)
