"""Every file call of a workload fails, once or until the disk is repaired: no request is half done.

The server goes on, or it ends without an answer and the next start has all that was acknowledged.

`make test` fails every second call of all single operations, and those of a few pairs, `make torture` plays a seeded
sample of pairs, and `TORTURE=all make torture` all pairs.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterable

import pytest

from tests.conftest import Counts
from tests.faults.ledger import Client, has_failed_sync
from tests.faults.workloads import STEPS, play, setup, some, while_pending
from tests.sampling import SEED, parts
from tests.simulated.disk import FOREVER, SimDisk
from tests.simulated.harness import SimServer
from tests.simulated.inode import PAGE_BYTES, CrashMode
from topics.engine.write.commit import Halted, Ticket
from topics.errors import Code, TopicsError
from topics.storage.datadir import DataDirError

MODES: tuple[CrashMode, ...] = ("keep", "lose", "tear")
ERRORS = (errno.EIO, errno.ENOSPC)
READS = frozenset("pread try_pread listdir exists size free_bytes close unlock".split())


def calls_of(names: tuple[str, ...]) -> list[int]:
    """Return the numbers of the calls that a workload makes when none fails."""
    client = ready()
    before = len(client.server.disk.calls)
    play(client, names)
    calls = client.server.disk.calls[before:]
    return [call.number for call in calls if call.op != "boot_id"]  # returns "" if it fails


def ready() -> Client:
    client = Client.on(SimDisk(seed=SEED))
    client.server.open()
    setup(client)
    return client


def fails(
    names: tuple[str, ...], at: int, error: int, times: int, *, short: bool, crash: CrashMode | None = None
) -> bool:
    """Play a workload with one failing call, then crash. Return whether a write can notice the failure.

    A server that ends by itself is started again, and the clients go on there.
    """
    client = ready()
    server, disk, ledger = client.server, client.server.disk, client.ledger
    disk.fail(at=at, error=error, times=times, short=short)
    halted = False
    try:
        play(client, names)
    except Halted:
        halted = True
    if disk.calls[at].op in READS and not halted:
        return False
    disk.heal()
    failed_sync = has_failed_sync(disk)
    if not halted:
        assert not failed_sync, "the server goes on after a failed sync"
        ledger.check(server, "none")
    mode = crash or MODES[at % 3]
    ledger.check(server.next(disk.clone().crash(mode)), mode, failed_sync=failed_sync)
    if halted:
        disk = disk.crash("keep")
        client.server = server = server.next(disk)
        ledger.check(server, "keep", failed_sync=failed_sync)
        ledger.go_on(server)
    server.tick()
    server.tick()
    assert server.wal.read_only is None, "the log refuses all writes from now on"
    client.append("f", 1, durability="fsync")
    client.append("d", 1)
    assert client.ledger.histories["d"][-1].writes[-1].status == "acked"
    if not halted:
        ledger.check(server, "none")
    mode = MODES[(at // 3) % 3]
    ledger.check(server.next(disk.clone().crash(mode)), mode)
    server.checkpoint()
    ledger.check(server.next(disk.clone().crash("lose")), "lose")
    ledger.check(server.stop(), "keep")
    return True


FAILURES = [(error, times) for error in ERRORS for times in (1, FOREVER)]


def sweep(names: Iterable[tuple[str, ...]], *, failures: int = len(FAILURES), every: int = 1) -> int:
    """Fail every call of the workloads, or every second one, in `failures` ways each.

    The next call fails in the ways that follow.
    """
    points = 0
    for which, workload in enumerate(names, SEED):
        for at in calls_of(workload)[which % every :: every]:
            for number in range(at, at + failures):
                error, times = FAILURES[number % len(FAILURES)]
                try:
                    points += fails(workload, at, error, times, short=bool(number % 3 % 2))
                except BaseException as failure:
                    failure.add_note(f"seed {SEED}, workload {workload}, call {at} fails with {error} {times} times")
                    raise
    return points


@pytest.mark.parametrize(("failures", "every"), [(1, 2), pytest.param(len(FAILURES), 1, marks=pytest.mark.torture)])
def test_every_operation_is_refused_or_done_when_a_call_fails(failures: int, every: int, counts: Counts) -> None:
    points = sweep(((name,) for name in STEPS), failures=failures, every=every)
    counts(f"in single operations (seed {SEED})", failing_calls=points)


def test_failed_write_to_a_new_log_file_is_no_damage():
    """The first frame of the new file was not synced, but the ledger said so: a power loss looked like damage."""
    workload = ("begin_checkpoint", "archive_held")
    assert sum(fails(workload, at, errno.EIO, 1, short=False) for at in calls_of(workload)) > 5


def test_some_pairs_of_operations_are_refused_or_done_when_a_call_fails(counts: Counts) -> None:
    points = sweep(some(2, 6, SEED), failures=1)
    counts(f"in pairs of operations (seed {SEED})", failing_calls=points)


@pytest.mark.parametrize("count", [2, pytest.param(40, marks=pytest.mark.torture)])
def test_operations_while_syncs_are_pending_are_refused_or_done(count: int, counts: Counts) -> None:
    points = sweep(while_pending(count, SEED + 1), failures=1)
    counts(f"while syncs are pending (seed {SEED})", failing_calls=points)


PAIRS = parts(STEPS, 2, rounds=5)  # 240 of 2,401


@pytest.mark.torture
@pytest.mark.parametrize("part", PAIRS)
def test_pairs_of_operations_are_refused_or_done_when_a_call_fails(part: str, counts: Counts) -> None:
    points = sweep(PAIRS[part])
    counts(f"in pairs of operations, {part} (seed {SEED})", pairs=len(PAIRS[part]), failing_calls=points)


def test_unfinished_rotation_before_a_torn_write_is_no_damage() -> None:
    names = ("checkpoint", "append_disk")
    client = ready()
    play(client, names)
    rotations = [
        call.number for call in client.server.disk.calls if call.op == "pwrite" and call.path.endswith("3.wal")
    ]
    assert fails(names, rotations[0], errno.EIO, FOREVER, short=True, crash="keep")


def test_shorter_note_after_one_that_failed_is_no_damage() -> None:
    """The next notes are written where the sync of others failed: the ledger kept the end of the longer ones."""
    names = ("slow_syncs", "recreate", "append_in_steps", "syncs", "clock_before_1970")
    client = ready()
    play(client, names)
    calls = client.server.disk.calls
    syncs = [call.number for call in calls if call.op == "datasync" and call.path.endswith("2.ledger")]
    assert syncs
    for at in syncs:
        assert fails(names, at, errno.EIO, 1, short=False, crash="keep")


@pytest.mark.parametrize("failures", [1, pytest.param(len(FAILURES), marks=pytest.mark.torture)])
def test_pairs_that_once_failed_are_refused_or_done(failures: int) -> None:
    """The log stayed read-only after its next file could not be begun, or trusted a size that was not synced."""
    pairs = [("append_large", "append_large_disk"), ("checkpoint", "append_in_steps_creates")]
    assert sweep(pairs, failures=failures) > 0


@pytest.mark.parametrize("error", ERRORS)
def test_start_that_fails_changes_nothing_for_the_next(error: int) -> None:
    client = ready()
    crashed = client.server.disk.crash("keep")
    calls = len(client.server.next(crashed.clone()).disk.calls)
    for times in (1, FOREVER):
        for at in range(calls):
            disk = crashed.clone()
            disk.fail(at=at, error=error, times=times)
            server = SimServer(disk, clock=client.server.clock)
            try:
                server.open()
            except (DataDirError, OSError):
                pass
            else:
                disk.heal()
                client.ledger.check(server, "keep")
            disk.heal()
            client.ledger.check(server.next(disk.crash("keep")), "keep")


def fill(server: SimServer) -> None:
    for number in range(100):
        server.append("f", f'"{number:0100d}"')


def test_full_disk_is_reported_and_writes_resume_with_space() -> None:
    client = ready()
    server, disk = client.server, client.server.disk
    disk.capacity_bytes = disk.used_bytes()
    with pytest.raises(TopicsError) as refused:
        fill(server)
    assert refused.value.code is Code.READ_ONLY
    assert refused.value.detail == {"reason": os.strerror(errno.ENOSPC), "outcome": "refused"}
    assert server.wal.read_only == os.strerror(errno.ENOSPC)
    served = server.data("f")
    with pytest.raises(TopicsError):
        server.append("d", '"' + "no" * 2000 + '"')
    assert server.data("f") == served, "reads still work"

    disk.capacity_bytes = None
    server.tick()
    assert server.wal.read_only is None
    landed = server.append("f", '"yes"')
    assert landed.first == server.engine.topic("f").head
    assert server.crash("lose").data("f") == [*served, '"yes"']


def test_server_on_a_full_disk_starts_read_only_and_goes_on_with_space() -> None:
    client = ready()
    disk = client.server.disk.crash("keep")
    disk.capacity_bytes = disk.used_bytes()
    server = client.server.next(disk)
    client.ledger.check(server, "keep")
    assert not server.wal.has_file
    assert server.wal.read_only == os.strerror(errno.ENOSPC)
    with pytest.raises(TopicsError) as refused:
        server.append("f", '"no"')
    assert refused.value.code is Code.READ_ONLY
    disk.capacity_bytes = None
    server.tick()
    server.append("f", '"yes"')
    assert server.crash("lose").data("f")[-1] == '"yes"'


class FailingLanding(deque[Ticket]):
    """The tickets that are about to take effect. One of them cannot be applied: memory is used up."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def popleft(self) -> Ticket:
        ticket = super().popleft()
        if ticket.apply is not None:
            if self._left == 0:
                ticket.apply = self._fail
            self._left -= 1
        return ticket

    def _fail(self, ticket: Ticket) -> None:
        raise MemoryError


def halts(names: tuple[str, ...], at: int) -> bool:
    """Play a workload whose entry number `at` cannot be applied. Return False if it has fewer entries.

    The server halts: it answers none of the requests from there on, and the next start has applied the log.
    """
    client = ready()
    client.server.engine.commits._landing = FailingLanding(at)
    try:
        play(client, names)
    except Halted:
        for mode in MODES:
            after = client.server.next(client.server.disk.clone().crash(mode))
            client.ledger.check(after, mode)
        with pytest.raises(Halted):
            client.append("f", 1)
        return True
    return False


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.torture)])
def test_entry_that_cannot_be_applied_halts_the_server_without_a_wrong_answer(every: int, counts: Counts) -> None:
    """Requests follow the one that fails, at once or while its sync is pending."""
    points = 0
    for number, name in enumerate(list(STEPS)[SEED % every :: every]):
        workload = ("slow_syncs",) * (number % 2) + (name, "append_fsync", "append_disk")
        at = 0
        try:
            while halts(workload, at):
                at += 1
        except BaseException as error:
            error.add_note(f"seed {SEED}, workload {workload}, entry {at}")
            raise
        points += at
    counts(f"in single operations (seed {SEED})", entries_not_applied=points)


PAGES_OF_A_CHECKPOINT = 4  # with so much free space, the checkpoint of `ready` succeeds


@pytest.mark.parametrize("pages", range(PAGES_OF_A_CHECKPOINT + 1))
@pytest.mark.parametrize("slow", [False, True])
def test_checkpoint_on_a_full_disk_breaks_no_promise(pages: int, slow: bool) -> None:
    """Requests go on between the attempts, with syncs that are quick or slow."""
    client = ready()
    server, disk, ledger = client.server, client.server.disk, client.ledger
    disk.capacity_bytes = disk.used_bytes() + pages * PAGE_BYTES
    for number in range(6):
        client.syncs.slow = slow
        client.append("f", 1, durability="fsync")
        client.checkpoint()
        client.delete("d", before_seq=number)
        client.syncs.release()
        server.tick()
    ledger.check(server, "none")
    for mode in MODES:
        ledger.check(server.next(disk.clone().crash(mode)), mode)
    disk.capacity_bytes = None
    server.tick()
    server.tick()
    assert server.checkpoint(), "no checkpoint begins, though there is space again"
    client.append("f", 1)
    assert ledger.histories["f"][-1].writes[-1].status == "acked"
    for mode in MODES:
        ledger.check(server.next(disk.clone().crash(mode)), mode)
