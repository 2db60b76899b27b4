"""The thread that writes checkpoints and segments rests often, so that the event loop gets its core."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.model.router import RouterRequest
from topics.storage import data_layout
from topics.storage.segments.codec import CHUNK_BYTES
from topics.storage.worker import InlineWorker

TOPICS = 50


class CountingWorker(InlineWorker):
    """Counts the rests, by the number of calls to the disk that came before."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.rests: list[int] = []

    def rest(self) -> None:
        self.rests.append(len(self._disk.calls))


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(seed=1)


@pytest.fixture
def worker(disk: SimDisk) -> CountingWorker:
    return CountingWorker(disk)


def test_a_checkpoint_rests_for_each_topic_and_each_router(disk: SimDisk, worker: CountingWorker):
    server = SimServer.start(disk, store_worker=worker)
    for at in range(TOPICS):
        server.append(f"t{at}", str(at), durability="fsync")
    first, rests = checkpoint_rests(server, worker), checkpoint_rests(server, worker)
    for at in range(1, TOPICS):
        server.done(server.engine.routers.put(f"r{at}", RouterRequest(source="t0", dest=f"t{at}")))

    assert rests >= TOPICS  # to look for full segments
    assert first >= rests + TOPICS  # to write tails
    assert checkpoint_rests(server, worker) >= rests + TOPICS - 1


def checkpoint_rests(server: SimServer, worker: CountingWorker) -> int:
    before = len(worker.rests)
    assert server.checkpoint()
    return len(worker.rests) - before


@pytest.mark.parametrize("make", [lambda size: [bytes(size)], lambda size: [bytes(1000)] * (size // 1000)])
def test_a_large_file_is_written_in_pieces_with_a_rest_after_each(
    disk: SimDisk, worker: CountingWorker, make: Callable[[int], list[bytes]]
):
    server = SimServer.start(disk, store_worker=worker)
    parts = make(5 * data_layout.WRITE_BYTES)
    worker.rests.clear()

    server.store.dir.write_file("/data/snapshots/x", parts, worker)

    writes = [call.number for call in disk.calls if call.op == "pwritev" and call.path.startswith("/data/snapshots/x")]
    assert len(writes) == 5
    assert {number + 1 for number in writes} <= set(worker.rests)
    assert disk.contents("/data/snapshots/x") == b"".join(parts)


def test_the_checksums_of_a_segment_are_computed_with_rests(disk: SimDisk, worker: CountingWorker):
    server = SimServer.start(disk, store_worker=worker)
    server.append("t", "x", durability="fsync")
    rests = checkpoint_rests(server, worker)
    server.append("t", "x" * 15 * CHUNK_BYTES)

    assert checkpoint_rests(server, worker) >= rests + 15
