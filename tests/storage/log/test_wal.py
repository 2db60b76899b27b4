"""The log's own bookkeeping, with a worker that is stepped by hand."""

from collections import deque
from collections.abc import Callable

import pytest

from topics.storage.datadir import DataDir
from topics.storage.log import frame
from topics.storage.log.wal import LogFailed, Wal
from topics.testing.clock import SimClock
from topics.testing.disk import SimDisk

Done = Callable[[Exception | None], None]


class Queue:
    """Work that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Callable[[], None], Done]] = deque()

    def submit(self, work: Callable[[], None], done: Done) -> None:
        self.jobs.append((work, done))

    def step(self) -> None:
        work, done = self.jobs.popleft()
        try:
            work()
        except Exception as error:
            done(error)
        else:
            done(None)

    def run(self) -> None:
        while self.jobs:
            self.step()


def open_wal(*, file_bytes: int = 65_536) -> tuple[Wal, Queue, SimDisk]:
    disk = SimDisk(seed=1)
    datadir = DataDir(disk, "/data")
    datadir.open()
    queue = Queue()
    wal = Wal(datadir, file_bytes=file_bytes, worker=queue, clock=SimClock())
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
