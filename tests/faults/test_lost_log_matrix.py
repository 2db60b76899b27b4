"""Log files that are cut short, empty or missing after every short workload, and after random histories.

The server rests before the damage, so that its account of the log (`ledger/`) is complete. Then a start reports what is
lost as `corrupt`, shows no record that no client wrote, and gives no seq out twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Counts
from tests.faults.ledger import Client, Ledger
from tests.faults.test_crash_matrix import check_works
from tests.faults.test_histories import Pair, Turn, examples, histories, seeds
from tests.faults.test_lost_log import cut, rest, wal_files
from tests.faults.workloads import STEPS, play, setup, some
from tests.sampling import SEED, amount
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.storage.log import walfile


def cut_in_half(disk: SimDisk, path: str) -> None:
    cut(disk, path, walfile.written_end(disk.contents(path)) // 2)


def cut_at_frame(disk: SimDisk, path: str) -> None:
    """Cut the file behind its first frame: what is left of it is whole."""
    cut(disk, path, frame_ends(disk, path)[0])


def empty(disk: SimDisk, path: str) -> None:
    cut(disk, path, 0)


def delete(disk: SimDisk, path: str) -> None:
    disk.unlink(path)


def zero(disk: SimDisk, path: str) -> None:
    disk.open(path, write=True).pwrite(bytes(len(disk.contents(path))), 0)


def replace(disk: SimDisk, path: str) -> None:
    """Give the file the bytes of the log file before it, or after it."""
    paths = wal_files(disk)
    at = paths.index(path)
    if len(paths) > 1:
        data = disk.contents(paths[at - 1 if at else 1])
        cut(disk, path, 0)
        disk.open(path, write=True).pwrite(data, 0)


DAMAGES: list[Callable[[SimDisk, str], None]] = [cut_in_half, cut_at_frame, empty, delete, zero, replace]


def frame_ends(disk: SimDisk, path: str) -> list[int]:
    return [item.end for item in walfile.scan(disk.contents(path)) if isinstance(item, walfile.FoundFrame)]


def written_files(disk: SimDisk) -> list[str]:
    return [path for path in wal_files(disk) if frame_ends(disk, path)]


def damaged_disks(disk: SimDisk) -> Iterable[tuple[str, SimDisk]]:
    """Each kind of damage to each log file that has entries, and a directory without any log file."""
    for path in written_files(disk):
        for damage in DAMAGES:
            twin = disk.clone()
            damage(twin, path)
            yield f"{damage.__name__} {path}", twin
    twin = disk.clone()
    for path in wal_files(twin):
        twin.unlink(path)
    yield "delete all", twin


def survive(server: SimServer, ledger: Ledger, disk: SimDisk, *, thorough: bool) -> None:
    after = server.next(disk)
    ledger.check_damaged(after)
    found = after.view()
    again = after.crash("keep")
    assert again.view() == found, "a second start finds something else"
    assert again.recovered is not None
    assert again.recovered.damage == [], "a second start reports the damage again"
    if thorough:
        check_works(again)


def sweep(workloads: Iterable[tuple[str, ...]], *, thorough_every: int) -> int:
    """Damage the log after each workload. Return the number of damaged directories."""
    starts = 0
    for workload in workloads:
        client = Client.on(SimDisk(seed=SEED))
        client.server.open()
        setup(client)
        play(client, workload)
        rest(client.server)
        for what, disk in damaged_disks(client.server.disk.crash("keep")):
            starts += 1
            try:
                survive(client.server, client.ledger, disk, thorough=starts % thorough_every == 0)
            except BaseException as error:
                error.add_note(f"seed {SEED}, workload {workload}, {what}")
                raise
    return starts


def test_lost_log_after_one_operation_is_reported(counts: Counts) -> None:
    starts = sweep([(name,) for name in STEPS], thorough_every=7)
    counts(f"after single operations (seed {SEED})", damaged_logs=starts)


def test_lost_log_after_some_workloads_is_reported(counts: Counts) -> None:
    starts = sweep(some(6, 20, SEED), thorough_every=5)
    counts(f"after longer workloads (seed {SEED})", damaged_logs=starts)


FOUND = [  # workloads after which a loss was not reported
    # An ephemeral topic whose change to `fsync` was in the missing part: its earlier records were lost in silence.
    ("begin_checkpoint", "append_disk", "rise"),
    # A topic that was created again twice, in a file after the missing part: it did not come back.
    ("append_memory", "begin_checkpoint", "recreate", "recreate"),
]


def test_lost_log_after_workloads_that_once_failed_is_reported() -> None:
    assert sweep(FOUND, thorough_every=1) > 10


@pytest.mark.torture
@pytest.mark.parametrize("block", range(amount(4, 40)))
def test_lost_log_after_many_workloads_is_reported(block: int, counts: Counts) -> None:
    """Workloads of eight operations: most logs then have several files."""
    starts = sweep(some(8, 40, SEED * 100 + block), thorough_every=7)
    counts(f"after longer workloads, block {block} (seed {SEED})", workloads=40, damaged_logs=starts)


# --- random histories


def damage_after(history: list[Turn], durability: str, seed: int) -> None:
    """Play a history, damage the log, and compare what comes back with the model."""
    pair = Pair(durability, seed)
    for turn in history:
        if durability != "fsync" and turn.end in ("lose", "tear"):
            turn.end = "keep"
        pair.play(turn)
    rest(pair.server)
    rng = Random(seed)
    disks = list(damaged_disks(pair.server.disk.crash("keep")))
    what, disk = rng.choice(disks)
    after = SimServer.start(disk, clock=pair.clock)
    try:
        compare(pair, after)
    except BaseException as error:
        error.add_note(what)
        raise


def compare(pair: Pair, after: SimServer) -> None:
    """Each record of the model is there, or in a range that readers hear of; the next seq was never given out."""
    assert after.recovered is not None
    for name in pair.oracle.topics:
        model = pair.oracle.topic(name)  # expires what has become too old
        topic = after.engine.topics.get(name)
        assert topic is not None, f"{name} is missing"
        rows = after.by_seq(name)
        lost = {seq: why for low, high, why in topic.losses.runs for seq in range(low, min(high, 9_000) + 1)}
        assert topic.head >= model.head, f"{name}: a seq is free again"
        for fact in model.live:
            if fact.seq in rows:
                assert rows[fact.seq] == fact.data.decode(), f"{name}: {fact.seq} has changed"
            else:
                assert after.recovered.damage, "records are missing and the start reports nothing"
                assert fact.seq in lost, f"{name}: {fact.seq} is missing without a report"
        written = {fact.seq: fact.data.decode() for fact in model.facts}
        assert all(written.get(seq) == data for seq, data in rows.items()), f"{name}: an unknown record"
        if not after.recovered.damage:
            assert sorted(rows) == [fact.seq for fact in model.live]
    for name, topic in list(after.engine.topics.items()):
        expected = topic.head + 1
        assert name not in pair.oracle.topics or expected > pair.oracle.topic(name).head


@examples(60)
@given(histories, st.sampled_from(["fsync", "disk", "memory"]), seeds)
def test_lost_log_after_a_history_is_reported(history: list[Turn], durability: str, seed: int) -> None:
    damage_after(history, durability, seed)


@pytest.mark.torture
@pytest.mark.parametrize("block", range(4))
def test_lost_log_after_many_histories_is_reported(block: int, counts: Counts) -> None:
    number = amount(150, 1_000)
    classes = st.sampled_from(["fsync", "disk", "memory"])
    hypothesis.seed(SEED * 100 + block)(examples(number)(given(histories, classes, seeds)(damage_after)))()
    counts(f"with a lost log in block {block} (seed {SEED})", histories=number)
