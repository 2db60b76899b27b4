"""The log's own bookkeeping, with a worker that is stepped by hand."""

import errno
from collections import deque
from collections.abc import Callable

import pytest

from tests.simulated.clock import SimClock
from tests.simulated.disk import FOREVER, SimDisk
from topics.storage.datadir import DataDir
from topics.storage.log import frame, walfile
from topics.storage.log.background import WARM_BYTES, LogFailed
from topics.storage.log.wal import Wal
from topics.storage.worker import InlineWorker

Done = Callable[[Exception | None], None]


class Queue:
    """Work that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Callable[[], None], Done]] = deque()

    def submit(self, work: Callable[[], None], done: Done) -> None:
        self.jobs.append((work, done))

    def rest(self) -> None:
        pass

    def step(self) -> None:
        InlineWorker().submit(*self.jobs.popleft())

    def run(self) -> None:
        while self.jobs:
            self.step()


def open_wal(*, file_bytes: int = 65_536, writer: Queue | None = None) -> tuple[Wal, Queue, SimDisk]:
    disk = SimDisk(seed=1)
    datadir = DataDir(disk, "/data")
    datadir.open()
    queue = Queue()
    wal = Wal(datadir, file_bytes=file_bytes, worker=queue, clock=SimClock(), writer=writer)
    wal.begin(1, resume=(0, 0))
    return wal, queue, disk


def test_syncs_that_overlap_forget_only_what_each_has_covered() -> None:
    wal, queue, disk = open_wal()
    wal.write([b"a" * 50] * 5)
    wal.sync(lambda failure: None)
    wal.write([b"b" * 50] * 3)
    wal.sync(lambda failure: None)
    unsynced = [b"c" * 50, b"d" * 50]
    wal.write(unsynced)
    queue.step()
    queue.step()

    disk.fail(op="pwrite", times=1)
    refused = False
    try:
        wal.write([frame.encode(1, 1, 0, 0, b"e")])
    except Exception:
        refused = True
    assert refused
    queue.run()
    wal.tick()  # heals: begins a new file that repeats what no sync had covered
    queue.run()
    assert wal.read_only is None
    newest = disk.contents(sorted(path for path in disk.files() if path.endswith(".wal"))[-1])
    assert b"".join(unsynced) in newest
    assert b"b" * 50 not in newest


def test_a_full_file_is_let_go_only_after_the_syncs_that_know_it() -> None:
    wal, queue, _ = open_wal(file_bytes=4096)
    outcomes: list[object] = []
    wal.write([b"a" * 3000])
    wal.sync(outcomes.append)
    wal.write([b"b" * 3000])  # goes into the next file
    wal.sync(outcomes.append)
    wal.sync(outcomes.append)
    queue.run()
    assert outcomes == [None, None, None]
    assert wal.read_only is None


def test_log_heals_though_the_size_of_its_new_file_cannot_be_read_at_first() -> None:
    wal, queue, disk = open_wal()
    wal.write([frame.encode(4, 1, 1, 1, b"a")])
    disk.fail(op="pwrite", times=1)
    with pytest.raises(LogFailed):
        wal.write([frame.encode(4, 1, 2, 1, b"b")])
    assert wal.broken

    disk.fail(op="size", times=1)
    wal.tick()
    queue.run()
    assert wal.broken
    wal.tick()
    queue.run()

    assert not wal.broken
    wal.write([frame.encode(4, 1, 2, 1, b"c")])


def tick_twice(wal: Wal, queue: Queue) -> None:
    assert isinstance(wal._clock, SimClock)
    wal._clock.advance(ms=1000)
    for _ in range(2):
        wal.tick()
        queue.run()


def test_log_is_idle_once_everything_is_synced_and_noted() -> None:
    wal, queue, _ = open_wal()
    woken: list[bool] = []
    wal.woke = lambda: woken.append(wal.idle)
    assert not wal.idle, "the ledger has no position yet"
    tick_twice(wal, queue)
    assert wal.idle

    wal.write([b"a" * 50])
    wal.write([b"b" * 50])

    assert woken == [True], "the second write found frames that wait for a sync"
    assert not wal.idle
    tick_twice(wal, queue)
    assert not wal.idle, "the ledger gets the new position a second later"
    tick_twice(wal, queue)
    assert wal.idle


def test_next_file_is_created_on_the_worker_before_a_rotation() -> None:
    wal, queue, disk = open_wal()
    assert not wal.prepare()
    assert not wal.prepare()
    assert len(queue.jobs) == 1
    queue.run()
    assert wal.prepare()
    calls = len(disk.calls)

    wal.rotate()

    assert wal.number == 2
    assert not [call for call in disk.calls[calls:] if call.op in ("allocate", "sync", "rename")]


def test_file_that_cannot_be_prepared_is_reported_by_the_rotation() -> None:
    wal, queue, disk = open_wal()
    disk.fail(at=len(disk.calls), op="allocate", error=errno.ENOSPC, times=2)
    assert not wal.prepare()
    queue.run()
    assert wal.prepare()
    with pytest.raises(OSError, match="space"):
        wal.rotate()
    assert not wal.prepare()
    queue.run()
    assert wal.prepare()
    wal.rotate()
    assert wal.number > 1


def large_frame(first: int, body: bytes) -> frame.LargeFrame:
    return frame.LargeFrame(4, 1, first, 1, memoryview(body))


def entries(disk: SimDisk) -> list[int]:
    """Return the first seqs of the entries that a start would replay from the newest file."""
    newest = disk.contents(newest_of(disk))
    return [found.frame.head.first for found in walfile.scan(newest) if isinstance(found, walfile.FoundFrame)]


def test_a_large_write_is_in_the_log_when_its_thread_has_ended() -> None:
    writer, outcomes = Queue(), []
    wal, _, disk = open_wal(writer=writer)
    wal.write([frame.encode(4, 1, 1, 1, b"a")])
    wal.warm(100)
    wal.write_large([large_frame(2, b"b" * 100), frame.encode(4, 1, 3, 1, b"c")], outcomes.append)
    assert (entries(disk), outcomes) == ([1], [])
    writer.run()
    assert (entries(disk), outcomes) == ([1, 2, 3], [None])
    wal.write([frame.encode(4, 1, 4, 1, b"d")])
    assert entries(disk) == [1, 2, 3, 4]


def test_the_owner_can_finish_a_large_write_before_its_thread() -> None:
    writer, outcomes = Queue(), []
    wal, _, disk = open_wal(writer=writer)
    wal.write_large([large_frame(1, b"b" * 100)], outcomes.append)
    wal.finish_large()
    assert (entries(disk), outcomes) == ([1], [None])
    wal.write([frame.encode(4, 1, 2, 1, b"c")])
    writer.run()
    assert (entries(disk), outcomes) == ([1, 2], [None])


def test_a_large_write_that_fails_leaves_nothing_to_replay() -> None:
    writer, outcomes = Queue(), []
    wal, queue, disk = open_wal(writer=writer)
    wal.write([frame.encode(4, 1, 1, 1, b"a")])
    disk.fail(op="pwritev", times=1, short=True)
    wal.write_large([large_frame(2, b"b" * 100)], outcomes.append)
    writer.run()
    assert isinstance(outcomes[0], LogFailed)
    assert (entries(disk), wal.broken) == ([1], True)
    wal.tick()
    queue.run()
    wal.write([frame.encode(4, 1, 2, 1, b"c")])
    assert entries(disk) == [1, 2]


def test_a_log_that_breaks_during_a_large_write_refuses_it_and_heals_after_it() -> None:
    writer, outcomes = Queue(), []
    wal, queue, disk = open_wal(writer=writer)
    wal.write([frame.encode(4, 1, 1, 1, b"a")])
    wal.write_large([large_frame(2, b"b" * 100)], outcomes.append)
    disk.fail(op="datasync", times=1)
    wal.sync(lambda failure: None)
    queue.run()
    assert wal.broken
    wal.tick()
    queue.run()
    assert wal.broken, "the log has healed before the write had ended"
    writer.run()
    assert isinstance(outcomes[0], LogFailed)
    assert entries(disk) == [1]
    wal.tick()
    queue.run()
    assert not wal.broken
    assert entries(disk) == [1]


def test_a_new_file_repeats_large_frames_that_no_sync_has_covered() -> None:
    wal, queue, disk = open_wal()
    wal.write_large([large_frame(1, b"b" * 100)], lambda failure: None)
    disk.fail(op="pwrite", times=1)
    with pytest.raises(LogFailed):
        wal.write([frame.encode(4, 1, 2, 1, b"c")])
    wal.tick()
    queue.run()
    assert (entries(disk), wal.number) == ([1], 3)


def test_a_large_write_that_does_not_fit_goes_into_the_next_file() -> None:
    wal, _, disk = open_wal(file_bytes=4096)
    wal.write([frame.encode(4, 1, 1, 1, b"a")])
    wal.write_large([large_frame(2, b"b" * 8000)], lambda failure: None)
    assert (entries(disk), wal.number) == ([2], 2)


def test_a_large_write_finds_a_file_that_is_large_enough() -> None:
    writer = Queue()
    wal, queue, disk = open_wal(file_bytes=4096, writer=writer)
    wal.warm(8000)
    queue.run()
    writer.run()
    allocated = len([call for call in disk.calls if call.op == "allocate"])
    wal.write_large([large_frame(2, b"b" * 8000)], lambda failure: None)
    writer.run()
    assert (entries(disk), wal.number) == ([2], 2)
    assert len([call for call in disk.calls if call.op == "allocate"]) == allocated
    assert disk.contents(newest_of(disk))[9000:] == bytes(8000 + WARM_BYTES - 9000)


def test_the_file_after_a_large_write_is_as_large() -> None:
    wal, queue, disk = open_wal(file_bytes=4096)
    wal.warm(8000)
    queue.run()
    wal.write_large([large_frame(1, b"b" * 8000)], lambda failure: None)
    wal.tick()
    queue.run()
    assert len(disk.contents(newest_of(disk))) == 8000 + WARM_BYTES
    wal.write([frame.encode(4, 1, 2, 1, b"c" * 3000)])
    wal.tick()
    queue.run()
    assert (wal.number, len(disk.contents(newest_of(disk)))) == (3, 4096)


def test_a_file_that_is_prepared_already_is_enlarged_and_synced() -> None:
    wal, queue, disk = open_wal(file_bytes=4096)
    wal.prepare()
    queue.run()
    wal.warm(8000)
    assert not wal.prepare(), "the file is being enlarged"
    queue.run()
    path = newest_of(disk)
    assert len(disk.contents(path)) == 8000 + WARM_BYTES
    assert len(disk.clone().crash("lose").contents(path)) == 8000 + WARM_BYTES
    wal.rotate()
    assert wal.number == 2


def test_a_file_that_cannot_be_enlarged_is_replaced() -> None:
    wal, queue, disk = open_wal(file_bytes=4096)
    wal.prepare()
    queue.run()
    disk.fail(op="sync", times=1)
    wal.warm(8000)
    queue.run()
    wal.rotate()
    wal.write([frame.encode(4, 1, 1, 1, b"a")])
    assert (wal.number, len(disk.contents(newest_of(disk))), entries(disk)) == (2, 4096, [1])


def test_a_file_is_used_as_it_is_if_there_is_no_space_to_enlarge_it() -> None:
    wal, queue, disk = open_wal(file_bytes=4096)
    wal.prepare()
    queue.run()
    disk.fail(op="allocate", error=errno.ENOSPC, times=FOREVER)  # nor could another file be created
    wal.warm(8000)
    queue.run()
    wal.rotate()
    wal.write([frame.encode(4, 1, 1, 1, b"a")])
    assert (wal.number, len(disk.contents(newest_of(disk))), entries(disk)) == (2, 4096, [1])


def newest_of(disk: SimDisk) -> str:
    return sorted(path for path in disk.files() if path.endswith(".wal"))[-1]


def test_a_log_that_could_not_begin_its_next_file_tries_again() -> None:
    wal, queue, disk = open_wal(file_bytes=4096)
    wal.write([frame.encode(4, 1, 1, 1, b"a" * 3000)])
    wal.prepare()
    queue.run()
    fault = disk.fail(op="pwrite", times=1 << 30, error=errno.ENOSPC)
    with pytest.raises(LogFailed):
        wal.write([frame.encode(4, 1, 2, 1, b"b" * 3000)])
    wal.tick()
    queue.run()
    assert wal.read_only == "No space left on device"
    fault.times = 0
    wal.tick()
    assert (wal.read_only, wal.number) == (None, 2)
