"""The threads of the log and of the store, with every speed relative to the event loop and to each other.

Work for a thread is held back and done at a random later moment; file calls fail at random; then the machine crashes.
The ledger must agree with the restarted server.

`make torture` plays 2,720 schedules, `TORTURE=all make torture` 13,000.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from random import Random

import pytest

from tests.conftest import Counts
from tests.faults.ledger import Client
from tests.sampling import SEED, amount
from tests.simulated.disk import SimDisk
from tests.simulated.harness import DeferredWorker, SimServer, request
from topics.engine.write.commit import Ticket
from topics.errors import Code
from topics.model.topic import ConfigPatch

# Two files of the log may be unsynced at once. If only the later one is on the disk, there is a gap between them, as
# with reordered sectors.
MODES = {"keep": "keep", "lose": "lose", "tear": "reorder"}
TOPICS = {"f": "fsync", "g": "fsync", "d": "disk", "m": "memory"}


class Race:
    """One random schedule."""

    def __init__(self, seed: int, *, faults: bool, classes: bool, large: bool) -> None:
        self.rng = Random(seed)
        self.faults = faults
        self.classes = classes  # whether topics change their durability class
        self.large = large  # whether appends are written on another thread
        self.sync, self.store, self.write = DeferredWorker(), DeferredWorker(), DeferredWorker()
        self.server = SimServer.start(
            SimDisk(seed=seed),
            sync_worker=self.sync,
            store_worker=self.store,
            write_worker=self.write,
            gather_turns=seed % 3,
        )
        self.client = Client(self.server)

    def run(self, steps: int) -> None:
        for name, durability in TOPICS.items():
            self.client.put(name, durability=durability)
            self.sync.run_all()
            self.server.turn()
        for _ in range(steps):
            self.step()

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

    def check_crash(self, mode: str, *, healed: bool = False) -> None:
        after = self.server.next(self.server.disk.clone().crash(mode))  # type: ignore[arg-type]
        self.client.ledger.check(after, MODES[mode], healed=healed, fenced=self.server.wal.fenced)


def try_schedules(seeds: Sequence[int], *, faults: bool, steps: int, classes: bool = False, large: bool = False) -> int:
    for seed in seeds:
        try:
            race = Race(seed, faults=faults, classes=classes, large=large)
            race.run(steps)
            for mode in MODES:
                race.check_crash(mode)
            race.finish()
            assert not race.server.wal.broken
            assert race.server.wal.read_only is None
            race.client.ledger.check(race.server, "none", healed=True)
            for mode in MODES:
                race.check_crash(mode, healed=True)
        except BaseException as error:
            error.add_note(f"schedule {seed}, faults={faults}, {steps} steps, classes={classes}, large={large}")
            raise
    return len(seeds)


def test_slow_threads_break_no_promise() -> None:
    try_schedules(range(SEED * 1000, SEED * 1000 + 25), faults=False, steps=60)


def test_slow_threads_and_failing_calls_break_no_promise() -> None:
    try_schedules(range(SEED * 1000, SEED * 1000 + 30), faults=True, steps=60)


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


def outcome(ticket: Ticket) -> str:
    assert ticket.error is not None
    assert ticket.error.code is Code.READ_ONLY
    assert ticket.error.detail is not None
    return str(ticket.error.detail["outcome"])


def heal(server: SimServer, sync: DeferredWorker) -> None:
    for _ in range(2):
        sync.run_all()
        server.tick()
    sync.run_all()
    assert not server.wal.broken


def test_refused_drop_stays_refused_though_a_running_sync_made_it_durable() -> None:
    server, sync = slow()
    drop = server.engine.drop_topic("f")
    server.engine.flush()
    server.disk.fail(at=len(server.disk.calls), op="pwrite", error=errno.ENOSPC)
    server.engine.append("d", request("1"))
    server.engine.flush()
    assert server.engine.find("f") is not None, "the drop waits for a log that has failed"
    assert drop.error is not None
    heal(server, sync)
    assert "f" in server.crash("keep").engine.topics


def test_sync_after_a_failed_one_acknowledges_nothing() -> None:
    server, sync = slow()
    server.append("d", "1")
    server.tick()
    write = server.engine.append("f", request("2"))
    server.engine.flush()
    assert len(sync) == 2, "one sync for each write"
    server.disk.fail(at=len(server.disk.calls), op="datasync", error=errno.EIO)
    sync.run_all()
    assert write.error is not None, "the disk may have dropped the bytes at the first sync, and reports that only once"
    heal(server, sync)
    after = server.crash("lose")
    assert (after.data("d"), after.data("f")) == (["1"], [])


def test_write_refused_after_failed_sync_does_not_return_after_kill() -> None:
    server, sync = slow()
    server.append("d", "1")
    refused = server.engine.append("f", request("2"))
    created = server.engine.put_topic("new", ConfigPatch())
    server.engine.flush()
    server.append("d", "3")
    server.disk.fail(at=len(server.disk.calls), op="datasync", error=errno.EIO)
    sync.run()
    staged = server.engine.append("f", request("4"))
    server.engine.flush()
    assert (outcome(refused), outcome(created), outcome(staged)) == ("unknown", "unknown", "refused")

    after = server.next(server.disk.clone().crash("keep"))

    assert after.recovered is not None
    assert after.recovered.damage == after.recovered.cut == []
    assert "new" not in after.engine.topics
    assert (after.data("d"), after.by_seq("f")) == (["1", "3"], {})


@pytest.mark.parametrize("seed", range(12))
def test_part_of_a_failed_write_does_not_return_after_kill(seed: int) -> None:
    server, _ = slow(seed)
    server.append("d", "1")
    writes = [server.engine.append("d", request(str(number), tag=f"t{number}")) for number in range(6)]
    server.disk.fail(at=len(server.disk.calls), op="pwrite", error=errno.ENOSPC, short=True)
    server.engine.flush()
    assert {outcome(write) for write in writes} == {"unknown"}
    after = server.crash("keep")
    assert after.recovered is not None
    assert (after.recovered.damage, after.data("d")) == ([], ["1"])


def test_refused_write_that_cannot_be_erased_is_erased_later() -> None:
    server, sync = slow()
    refused = server.engine.append("f", request("1"))
    server.engine.flush()
    server.disk.fail(at=len(server.disk.calls), op="datasync", error=errno.EIO)
    server.disk.fail(at=len(server.disk.calls), op="pwrite", error=errno.EIO)
    sync.run()
    assert outcome(refused) == "unknown"
    assert not server.wal.fenced
    server.tick()
    assert server.wal.broken, "the new file does not exist yet"
    assert server.wal.fenced
    assert server.crash("keep").data("f") == []


def test_healing_log_repeats_no_write_that_is_refused_meanwhile() -> None:
    server, sync = slow(gather_turns=2)
    first = server.engine.append("f", request("1"))
    server.turn()
    second = server.engine.append("f", request("2"))
    server.turn()  # written; waits for the sync after the one under way
    server.disk.fail(at=len(server.disk.calls), op="pwrite", error=errno.ENOSPC)
    server.engine.append("d", request("3"))
    server.engine.flush()  # breaks the log
    sync.run()
    assert first.value().first == 1
    server.tick()  # would heal, but the outcome of the second write is not decided yet
    for _ in range(3):
        server.turn()
    assert outcome(second) == "unknown"
    heal(server, sync)
    third = server.engine.append("f", request("4"))
    server.engine.commits.sync()
    assert third.value().first == 2
    assert server.crash("keep").data("f") == ["1", "4"]


def test_write_made_durable_by_another_sync_survives_its_own_failing() -> None:
    server, sync = slow(gather_turns=2)
    first = server.engine.append("f", request("1"))
    server.engine.flush()
    second = server.engine.append("f", request("2"))
    server.engine.flush()
    sync.run()
    assert first.value().first == 1
    assert not second.done, "the write waits for others to share its sync"
    server.tick()
    sync.run()
    server.disk.fail(at=len(server.disk.calls), op="datasync", error=errno.EIO)
    third = server.engine.append("f", request("3"))
    server.engine.commits.sync()
    assert second.value().first == 2
    assert outcome(third) == "unknown"
    heal(server, sync)
    fourth = server.engine.append("f", request("4"))
    server.engine.commits.sync()
    assert fourth.value().first == 3
    assert server.crash("lose").data("f") == ["1", "2", "4"]


def test_power_loss_after_failed_sync_leaves_no_gap_in_the_log() -> None:
    server, sync = slow()
    server.append("m", "1")
    server.wal.rotate()
    server.append("m", "2")
    server.tick()  # hands a sync of both files to the thread
    server.disk.fail(at=len(server.disk.calls), op="datasync", error=errno.EIO)
    server.engine.put_topic("d", ConfigPatch(cap_records=9))
    server.engine.commits.sync()  # the loop's own sync is faster and fails
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
    write = server.engine.append("f", request("2"))
    server.engine.commits.sync()
    assert write.error is not None, "the disk reported the failure to the other thread, and reports it once"
    sync.run_all()
    heal(server, sync)
    assert server.crash("lose").data("f") == []


def test_no_op_change_is_refused_while_a_refused_one_may_return() -> None:
    server, sync = slow()
    server.disk.fail(at=len(server.disk.calls), op="datasync", error=errno.EIO)
    refused = server.engine.put_topic("d", ConfigPatch(cap_records=50))
    server.engine.flush()
    sync.run_all()
    assert refused.error is not None
    same = server.engine.put_topic("d", ConfigPatch(cap_records=0))
    server.engine.flush()
    assert same.error is not None, "a kill could still bring the refused change back"
    heal(server, sync)
    again = server.engine.put_topic("d", ConfigPatch(cap_records=0))
    assert again.value().topic.config.cap_records == 0
    assert server.crash("keep").engine.topics["d"].config.cap_records == 0


def test_log_file_that_ends_with_refused_writes_is_not_cut_short() -> None:
    server, sync = slow()
    refused = server.engine.append("f", request("1"))
    server.engine.flush()
    server.wal.rotate()
    server.wal.sync(lambda failure: None)  # writes into the ledger how far the file before was written
    server.disk.fail(at=len(server.disk.calls), op="pwrite", error=errno.ENOSPC)
    server.engine.append("d", request("2"))
    server.engine.flush()
    server.engine.commits.sync()
    assert outcome(refused) == "unknown"
    sync.run_all()
    after = server.crash("keep")
    assert after.recovered is not None
    assert (after.recovered.damage, after.data("f")) == ([], [])


@pytest.mark.parametrize("seed", range(8))
def test_power_loss_while_refused_writes_are_erased_damages_nothing(seed: int) -> None:
    server = SimServer.start(SimDisk(seed=seed))
    server.append("f", "1", durability="fsync", cap_records=9)  # a cap keeps every write in a frame of its own
    server.append("d", "1")
    server.disk.fail(at=len(server.disk.calls), op="datasync", error=errno.EIO)
    for name in ("f", "d", "f", "f"):  # one sync for all; the write in the middle waits for none and stays
        server.engine.append(name, request("2"))
    server.engine.flush()
    after = server.crash("tear")
    assert after.recovered is not None
    assert after.recovered.damage == []
    assert after.data("f") == ["1"] + ["2"] * (len(after.data("f")) - 1)


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
