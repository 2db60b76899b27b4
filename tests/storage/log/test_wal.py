"""The log's own bookkeeping, with a worker that is stepped by hand."""

import errno
from collections import deque
from collections.abc import Callable

import pytest

from tests.simulated.clock import SimClock
from tests.simulated.disk import FOREVER, SimDisk
from topics.storage.datadir import DataDir
from topics.storage.log import frame, walfile
from topics.storage.log.background import WARM_BYTES, LogRefused
from topics.storage.log.wal import LogState, Wal
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


def open_wal(
    *, file_bytes: int = 65_536, writer: Queue | None = None, fails: str | None = None
) -> tuple[Wal, Queue, SimDisk]:
    disk = SimDisk(seed=1)
    datadir = DataDir(disk, "/data")
    datadir.open()
    queue = Queue()
    wal = Wal(datadir, file_bytes=file_bytes, worker=queue, clock=SimClock(), writer=writer)
    if fails is not None:
        disk.fail(op=fails, path="/data/wal*", times=2)
    wal.begin(1, resume=(0, 0))
    return wal, queue, disk


def test_syncs_that_overlap_count_only_what_each_has_covered() -> None:
    wal, queue, _ = open_wal()
    wal.write([b"a" * 50] * 5)
    wal.sync(lambda: None)
    wal.write([b"b" * 50] * 3)
    wal.sync(lambda: None)
    wal.write([b"c" * 50, b"d" * 50])
    depths = [wal.stats.queue_depth]
    for _ in range(2):
        queue.step()
        depths.append(wal.stats.queue_depth)
    assert depths == [10, 5, 2]


@pytest.mark.parametrize("op", ["pwrite", "datasync"])
@pytest.mark.parametrize("by", ["owner", "worker"])
def test_failed_write_or_sync_ends_the_log(op: str, by: str) -> None:
    wal, queue, disk = open_wal()
    wal.write([frame.encode(4, 1, 1, 1, b"a")])
    disk.fail(op=op, path="*.wal", error=errno.ENOSPC)
    called: list[bool] = []

    def use() -> None:
        if op == "pwrite":
            wal.write([frame.encode(4, 1, 2, 1, b"b")])
        elif by == "owner":
            wal.sync_now()
        else:
            wal.sync(lambda: called.append(True))
            queue.run()

    with pytest.raises(OSError, match="No space"):
        use()
    assert not called
    assert wal.read_only is None, "a log that failed is not read-only: it gives no answer"
    assert any(path.endswith("SYNC_FAILED") for path in disk.files()) == (op == "datasync")


def test_sync_after_a_failed_one_fails_too() -> None:
    wal, queue, disk = open_wal()
    wal.write([frame.encode(4, 1, 1, 1, b"a")])
    wal.sync(lambda: None)
    disk.fail(op="datasync", path="*.wal")
    work, _ = queue.jobs.popleft()
    with pytest.raises(OSError, match="Input/output"):
        work()  # on the thread; the owner does not know it yet
    with pytest.raises(OSError, match="an earlier sync"):
        wal.sync_now()


def test_directory_that_disappears_ends_the_log() -> None:
    wal, _, disk = open_wal()
    wal.tick()
    disk.unlink("/data/LOCK")
    with pytest.raises(OSError, match="removed or renamed"):
        wal.tick()


def test_a_full_file_is_let_go_only_after_the_syncs_that_know_it() -> None:
    wal, queue, _ = open_wal(file_bytes=4096)
    outcomes: list[object] = []
    wal.write([b"a" * 3000])
    wal.sync(lambda: outcomes.append(None))
    wal.write([b"b" * 3000])  # goes into the next file
    wal.sync(lambda: outcomes.append(None))
    wal.sync(lambda: outcomes.append(None))
    queue.run()
    assert outcomes == [None, None, None]
    assert wal.read_only is None


@pytest.mark.parametrize("op", ["open", "allocate", "pwrite", "sync", "rename", "sync_dir", "size"])
def test_log_whose_first_file_cannot_be_created_tries_again(op: str) -> None:
    wal, queue, disk = open_wal(fails=op)
    assert (wal.has_file, wal.read_only) == (False, "Input/output error")
    with pytest.raises(LogRefused):
        wal.write([frame.encode(4, 1, 1, 1, b"a")])
    wal.tick()
    wal.tick()
    queue.run()
    assert (wal.has_file, wal.read_only, wal.number) == (False, "Input/output error", 1)
    wal.tick()
    queue.run()
    assert (wal.has_file, wal.read_only, wal.number) == (True, None, 1)
    wal.write([frame.encode(4, 1, 1, 1, b"a")])
    wal.sync_now()
    assert entries(disk.crash("lose")) == [1]


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
    wal.write_large([large_frame(2, b"b" * 100), frame.encode(4, 1, 3, 1, b"c")], lambda: outcomes.append(None))
    assert (entries(disk), outcomes) == ([1], [])
    writer.run()
    assert (entries(disk), outcomes) == ([1, 2, 3], [None])
    wal.write([frame.encode(4, 1, 4, 1, b"d")])
    assert entries(disk) == [1, 2, 3, 4]


def test_the_owner_can_finish_a_large_write_before_its_thread() -> None:
    writer, outcomes = Queue(), []
    wal, _, disk = open_wal(writer=writer)
    wal.write_large([large_frame(1, b"b" * 100)], lambda: outcomes.append(None))
    wal.finish_large()
    assert (entries(disk), outcomes) == ([1], [None])
    wal.write([frame.encode(4, 1, 2, 1, b"c")])
    writer.run()
    assert (entries(disk), outcomes) == ([1, 2], [None])


def test_a_large_write_that_fails_ends_the_log() -> None:
    writer, outcomes = Queue(), []
    wal, _, disk = open_wal(writer=writer)
    wal.write([frame.encode(4, 1, 1, 1, b"a")])
    disk.fail(op="pwritev", times=1, short=True)
    wal.write_large([large_frame(2, b"b" * 100)], lambda: outcomes.append(True))
    with pytest.raises(OSError, match="Input/output"):
        writer.run()
    assert (entries(disk), outcomes) == ([1], [])


def test_a_large_write_that_does_not_fit_goes_into_the_next_file() -> None:
    wal, _, disk = open_wal(file_bytes=4096)
    wal.write([frame.encode(4, 1, 1, 1, b"a")])
    wal.write_large([large_frame(2, b"b" * 8000)], lambda: None)
    assert (entries(disk), wal.number) == ([2], 2)


def test_a_large_write_finds_a_file_that_is_large_enough() -> None:
    writer = Queue()
    wal, queue, disk = open_wal(file_bytes=4096, writer=writer)
    wal.warm(8000)
    queue.run()
    writer.run()
    allocated = len([call for call in disk.calls if call.op == "allocate"])
    wal.write_large([large_frame(2, b"b" * 8000)], lambda: None)
    writer.run()
    assert (entries(disk), wal.number) == ([2], 2)
    assert len([call for call in disk.calls if call.op == "allocate"]) == allocated
    assert disk.contents(newest_of(disk))[9000:] == bytes(8000 + WARM_BYTES - 9000)


def test_the_file_after_a_large_write_is_as_large() -> None:
    wal, queue, disk = open_wal(file_bytes=4096)
    wal.warm(8000)
    queue.run()
    wal.write_large([large_frame(1, b"b" * 8000)], lambda: None)
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
    with pytest.raises(LogRefused):
        wal.write([frame.encode(4, 1, 2, 1, b"b" * 3000)])
    wal.tick()
    queue.run()
    assert wal.read_only == "No space left on device"
    fault.times = 0
    wal.tick()
    assert (wal.read_only, wal.number) == (None, 2)


def test_log_that_is_fenced_while_its_first_file_is_created_takes_no_frames() -> None:
    wal, queue, _ = open_wal(fails="open")
    wal.tick()
    queue.run()  # fails again
    wal.tick()
    wal.fence("another server writes")
    queue.run()
    assert (wal.state, wal.has_file, wal.read_only) == (LogState.FENCED, False, "another server writes")
    with pytest.raises(LogRefused):
        wal.write([frame.encode(4, 1, 1, 1, b"a")])


def test_log_refuses_a_change_of_state_that_is_not_in_its_table() -> None:
    wal, _, _ = open_wal()
    assert wal.state is LogState.OPEN
    wal.end()
    with pytest.raises(RuntimeError, match="a log that is STOPPED cannot become OPEN"):
        wal._go(LogState.OPEN)
