"""The threads of the log and of the store, with every speed relative to the event loop and to each other.

Work for a thread is held back and done at a random later moment; file calls fail at random, and the server may end
because of that; then the machine crashes. The ledger must agree with the restarted server.

`make torture` plays 2,720 schedules, `TORTURE=all make torture` 13,000.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from tests.conftest import Counts
from tests.faults.ledger import Client, has_failed_sync
from tests.sampling import SEED, amount
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.harness import DeferredWorker, SimServer, request
from topics.engine.write.commit import Halted, Ticket
from topics.model.topic import ConfigPatch

# Two files of the log may be unsynced at once. If only the later one is on the disk, there is a gap between them, as
# with reordered sectors.
MODES = {"keep": "keep", "lose": "lose", "tear": "reorder"}
TOPICS = {"f": "fsync", "g": "fsync", "d": "disk", "m": "memory"}


class Race:
    """One random schedule."""

    def __init__(self, seed: int, *, faults: bool, classes: bool, large: bool, reverts: bool = False) -> None:
        self.rng = Random(seed)
        self.faults = faults
        self.classes = classes  # whether topics change their durability class
        self.large = large  # whether appends are written on another thread
        self.seed = seed
        self.lives = True  # since the start: "none" is a mode to judge it by
        self.reverts = reverts  # whether a failed sync takes back what was not synced: like a power loss
        self.start(SimDisk(seed=seed, failed_sync_reverts=reverts))
        self.client = Client(self.server)
        for name, durability in TOPICS.items():
            self.client.put(name, durability=durability)
            self.sync.run_all()
            self.server.turn()

    def start(self, disk: SimDisk, **same: Any) -> None:
        self.sync, self.store, self.write = DeferredWorker(), DeferredWorker(), DeferredWorker()
        self.server = SimServer.start(
            disk,
            sync_worker=self.sync,
            store_worker=self.store,
            write_worker=self.write,
            gather_turns=self.seed % 3,
            **same,
        )

    def run(self, steps: int) -> None:
        """Take the steps. If the server ends, judge it, start it again, and take the rest there."""
        for _ in range(steps):
            self.unless_halted(self.step)

    def unless_halted(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Halted:
            assert self.faults
            for mode in MODES:
                self.check_crash(mode)
            self.server.disk.heal()
            self.lives = False
            self.start(self.server.disk.crash("keep"), clock=SimClock(self.server.clock.now_ms() + 1000))
            self.client.server = self.server
            self.client.ledger.go_on(self.server)

    def step(self) -> None:
        rng, client, server = self.rng, self.client, self.server
        name = rng.choice(list(TOPICS))
        if self.large and rng.random() < 0.3:
            self.step_large(name)
            server.engine.flush()
            return
        roll = rng.random()
        if roll < 0.40:
            large = rng.choice([0, 0, 0, 1_500])
            n, tag, flush = rng.choice([1, 2, 5]), rng.choice([None, "t"]), rng.random() < 0.5
            client.append(name, n, size=large, tag=tag, flush=flush, durability=TOPICS[name])
        elif roll < 0.54:
            self.sync.run(rng.choice([1, 1, 2]))
        elif roll < 0.57:
            self.sync.work()
        elif roll < 0.60:
            server.turn()
        elif roll < 0.72:
            self.store.run()
        elif roll < 0.80:
            server.tick()
        elif roll < 0.85:
            client.checkpoint()
        elif roll < 0.90 and server.engine.find(name) is not None:
            client.delete(name, tag="t")
        elif roll < 0.92 and server.engine.find(name) is not None:
            client.drop(name)
        elif roll < 0.94:
            client.put(name, cap_records=rng.choice([3, 50]), durability=TOPICS[name])
        elif self.classes and roll < 0.97:
            client.put(name, durability=rng.choice(["ephemeral", TOPICS[name]]))
        elif self.faults:
            self.break_something()
        server.engine.flush()

    def step_large(self, name: str) -> None:
        rng = self.rng
        roll = rng.random()
        if roll < 0.5:
            n, size, flush = rng.choice([2, 9]), rng.choice([0, 0, 900]), rng.random() < 0.7
            self.client.append(name, n, size=size, flush=flush, in_steps=True, durability=TOPICS[name])
        elif roll < 0.8:
            self.write.run(2)
        elif roll < 0.9:
            self.write.work()
        elif self.faults:
            self.server.disk.fail(at=len(self.server.disk.calls), op="pwritev", short=rng.random() < 0.5)

    def break_something(self) -> None:
        """Let a call that writes fail, or end all failures. An `open` fails only for a file that is being created."""
        disk = self.server.disk
        if self.rng.random() < 0.5:
            disk.heal()
            return
        op = self.rng.choice(["pwrite", "datasync", "sync", "allocate", "rename", "sync_dir", "open", "unlink"])
        error = self.rng.choice([errno.EIO, errno.ENOSPC])
        path = "*.tmp" if op == "open" else None
        times, short = self.rng.choice([1, 3]), self.rng.random() < 0.5
        disk.fail(at=len(disk.calls), op=op, path=path, error=error, times=times, short=short)

    def finish(self) -> None:
        self.server.disk.heal()
        for _ in range(2):  # a sync may have failed that is not reported yet
            self.unless_halted(self.settle)

    def settle(self) -> None:
        self.server.engine.flush()
        for _ in range(4):
            self.server.turn()
            self.server.turn()
            self.write.run_all()
            self.server.engine.flush()
            self.sync.run_all()
            self.store.run_all()
            self.server.tick()
        self.write.run_all()
        self.sync.run_all()

    def check_crash(self, mode: str) -> None:
        failed_sync = has_failed_sync(self.server.disk)
        judged_as = "reorder" if failed_sync and self.reverts else MODES[mode]
        after = self.server.next(self.server.disk.clone().crash(mode))  # type: ignore[arg-type]
        self.client.ledger.check(after, judged_as, failed_sync=failed_sync)


def try_schedules(
    seeds: Sequence[int],
    *,
    faults: bool,
    steps: int,
    classes: bool = False,
    large: bool = False,
    reverts: bool = False,
) -> int:
    for seed in seeds:
        try:
            race = Race(seed, faults=faults, classes=classes, large=large, reverts=reverts)
            race.run(steps)
            for mode in MODES:
                race.check_crash(mode)
            race.finish()
            assert race.server.wal.read_only is None
            if race.lives:
                race.client.ledger.check(race.server, "none")
            for mode in MODES:
                race.check_crash(mode)
        except BaseException as error:
            error.add_note(f"schedule {seed}, faults={faults}, {steps} steps, classes={classes}, large={large}")
            raise
    return len(seeds)


def test_slow_threads_break_no_promise() -> None:
    try_schedules(range(SEED * 1000, SEED * 1000 + 25), faults=False, steps=60)


def test_slow_threads_and_failing_calls_break_no_promise() -> None:
    try_schedules(range(SEED * 1000, SEED * 1000 + 30), faults=True, steps=60)


def test_failed_syncs_that_revert_the_files_break_no_promise() -> None:
    try_schedules(range(SEED * 1000, SEED * 1000 + 30), faults=True, steps=60, classes=True, reverts=True)


def test_schedules_that_once_failed_break_no_promise() -> None:
    """In 10014 the name of a ledger was not made durable after its first attempt had failed."""
    try_schedules([10_014], faults=True, steps=120)


@pytest.mark.parametrize("faults", [False, True])
def test_class_changes_between_slow_threads_break_no_promise(faults: bool) -> None:
    try_schedules(range(SEED * 1000, SEED * 1000 + 20), faults=faults, steps=60, classes=True)


@pytest.mark.parametrize("faults", [False, True])
def test_large_writes_between_slow_threads_break_no_promise(faults: bool) -> None:
    try_schedules(range(SEED * 1000, SEED * 1000 + 20), faults=faults, steps=80, classes=True, large=True)


def slow(seed: int = SEED, *, gather_turns: int = 0) -> tuple[SimServer, DeferredWorker]:
    """Return a server with a topic of each class, and the worker that holds its syncs back."""
    sync = DeferredWorker()
    server = SimServer.start(SimDisk(seed=seed), sync_worker=sync, gather_turns=gather_turns)
    for name, durability in TOPICS.items():
        server.engine.put_topic(name, ConfigPatch(durability=durability))
        server.engine.flush()
        sync.run_all()
        server.turn()
        server.turn()
    return server, sync


def fails(
    server: SimServer, op: str, act: Callable[[], object], *, error: int = errno.EIO, short: bool = False
) -> None:
    """Let the next call of this kind fail. The server must end."""
    server.disk.fail(at=len(server.disk.calls), op=op, error=error, short=short)
    with pytest.raises(Halted):
        act()
    server.disk.heal()


def append(server: SimServer, name: str, data: str) -> Ticket:
    ticket = server.engine.append(name, request(data))
    server.engine.flush()
    return ticket


def test_failed_write_answers_no_request_that_waits() -> None:
    server, _ = slow()
    drop = server.engine.drop_topic("f")
    server.engine.flush()
    fails(server, "pwrite", lambda: append(server, "d", "1"), error=errno.ENOSPC)
    assert not drop.done
    assert server.crash("keep").data("d") == []


def test_sync_after_a_failed_one_acknowledges_nothing() -> None:
    server, sync = slow()
    server.append("d", "1")
    server.tick()
    write = append(server, "f", "2")
    assert len(sync) == 2, "one sync for each write"
    fails(server, "datasync", sync.run_all)
    with pytest.raises(Halted):
        sync.run_all()
    assert not write.done, "the disk may have dropped the bytes at the first sync, and reports that only once"
    after = server.crash("keep")
    assert (after.data("d"), after.data("f")) == (["1"], ["2"])
    assert after.append("d", "3").first > 1


@pytest.mark.parametrize("seed", range(12))
def test_part_of_a_failed_write_is_no_damage(seed: int) -> None:
    server, _ = slow(seed)
    server.append("d", "1")
    writes = [server.engine.append("d", request(str(number), tag=f"t{number}")) for number in range(6)]
    fails(server, "pwrite", server.engine.flush, error=errno.ENOSPC, short=True)
    assert not any(write.done for write in writes)
    after = server.crash("keep")
    assert after.recovered is not None
    assert after.recovered.damage == []
    assert after.data("d") == ["1", *map(str, range(6))][: len(after.data("d"))]


def test_write_made_durable_by_another_sync_survives_its_own_failing() -> None:
    server, sync = slow(gather_turns=2)
    first = append(server, "f", "1")
    second = append(server, "f", "2")
    sync.run()
    assert first.value().first == 1
    assert not second.done, "the write waits for others to share its sync"
    server.tick()
    sync.run()
    third = append(server, "f", "3")
    fails(server, "datasync", server.engine.commits.sync)
    assert not second.done
    assert not third.done
    assert server.next(server.disk.clone().crash("lose")).data("f") == ["1", "2"]
    assert server.crash("keep").append("f", "4").first == 4


def test_power_loss_after_failed_sync_leaves_no_gap_in_the_log() -> None:
    server, sync = slow()
    server.append("m", "1")
    server.wal.rotate()
    server.append("m", "2")
    server.tick()  # hands a sync of both files to the thread
    server.engine.put_topic("d", ConfigPatch(cap_records=9))
    fails(server, "datasync", server.engine.commits.sync)  # the loop's own sync is faster and fails
    with pytest.raises(Halted):
        sync.run_all()
    after = server.crash("lose")
    assert after.recovered is not None
    assert after.recovered.damage == []
    assert {reason for _, _, reason in after.engine.topics["m"].losses.runs} == {"restart"}


def test_failed_sync_that_was_not_reported_yet_acknowledges_nothing() -> None:
    server, sync = slow()
    server.append("d", "1")
    server.tick()
    server.disk.fail(at=len(server.disk.calls), op="datasync", error=errno.EIO)
    sync.work()
    write = append(server, "f", "2")
    with pytest.raises(Halted):
        server.engine.commits.sync()
    assert not write.done, "the disk reported the failure to the other thread, and reports it once"


@pytest.mark.torture
@pytest.mark.parametrize("block", range(20))
def test_many_schedules_break_no_promise(block: int, counts: Counts) -> None:
    schedules = range(10_000 * block, 10_000 * block + amount(100, 500))
    try_schedules(schedules, faults=bool(block % 2), steps=120)
    counts(f"in block {block}", schedules=len(schedules))


@pytest.mark.torture
@pytest.mark.parametrize("block", range(8))
def test_many_schedules_with_class_changes_break_no_promise(block: int, counts: Counts) -> None:
    schedules = range(10_000 * block, 10_000 * block + amount(60, 250))
    try_schedules(schedules, faults=bool(block % 2), steps=120, classes=True)
    counts(f"with class changes in block {block}", schedules=len(schedules))


@pytest.mark.torture
@pytest.mark.parametrize("block", range(4))
def test_many_schedules_with_large_writes_break_no_promise(block: int, counts: Counts) -> None:
    schedules = range(10_000 * block, 10_000 * block + amount(60, 250))
    try_schedules(schedules, faults=bool(block % 2), steps=120, classes=block > 1, large=True)
    counts(f"with large writes in block {block}", schedules=len(schedules))
