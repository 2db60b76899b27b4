"""Rewrites: the space of removed records returns, and nothing else changes, whenever the server is killed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.simulated.disk import Crashed, SimDisk
from tests.simulated.harness import DeferredWorker, SimServer
from topics.engine.offline.verify import verify
from topics.engine.state.topics import SegmentLimits
from topics.model.records import TagMatch
from topics.storage import backup, repair

EIGHT = SegmentLimits(max_events=8)


def seeded(disk: SimDisk, **options: Any) -> SimServer:
    """Return a server with two segments of eight records, of which six have the tag `del`, and some more."""
    server = SimServer.start(disk, segments=EIGHT, rewrite_percent=50, **options)
    for n in range(20):
        kept = n % 4 == 1
        server.append("t", f'"{n:060}"', tag=f"keep-{n}" if kept else "del", key=f"k{n}", durability="fsync")
    server.checkpoint()
    return server


def delete_most(server: SimServer) -> None:
    server.delete("t", match=TagMatch("Eq", "del"))


def segment_bytes(disk: SimDisk) -> int:
    return sum(len(disk.contents(path)) for path in disk.files() if path.endswith(".seg"))


def test_space_of_deleted_records_returns():
    server = seeded(SimDisk(seed=1))
    before = segment_bytes(server.disk)
    delete_most(server)
    expected = server.view()
    server.checkpoint()  # finds the segments, and writes them again
    assert server.store.rewriter.has_replaced
    server.checkpoint()  # removes the old files
    assert segment_bytes(server.disk) < before * 2 // 3
    assert (server.store.rewriter.segments_total, server.store.rewriter.waiting_bytes) == (2, 0)
    assert server.view() == expected
    after = server.stop()
    assert after.view() == expected
    after.close()
    assert verify(after.disk, "/data").clean


def test_rewritten_segment_is_deleted_from_and_rewritten_again():
    server = seeded(SimDisk(seed=1))
    delete_most(server)
    server.checkpoint()
    server.delete("t", match=TagMatch("Eq", "keep-1"))
    server.checkpoint()
    server.delete("t", match=TagMatch("Eq", "keep-13"))
    expected = server.view()
    after = server.crash("tear")
    assert after.view() == expected
    after.checkpoint()
    after.checkpoint()
    assert after.view() == expected
    assert after.stop().view() == expected


@pytest.mark.parametrize("change", ["delete", "evict", "drop", "checkpoint", "append"])
def test_change_while_a_segment_is_rewritten(change: str):
    worker = DeferredWorker()
    server = seeded(SimDisk(seed=1), store_worker=worker)
    worker.run_all()
    delete_most(server)
    server.checkpoint()
    while not server.store.rewriter.waiting_bytes or len(worker) > 1:
        worker.run()
    worker.work()  # the file is written, and nobody knows
    if change == "delete":
        server.delete("t", match=TagMatch("Glob", "keep-"))
        server.append("t", '"more"')
    elif change == "evict":
        server.put("t", cap_records=2)
    elif change == "drop":
        server.drop("t")
    elif change == "checkpoint":
        server.delete("t", match=TagMatch("Eq", "keep-5"))
        server.store.checkpoint()
    else:
        server.append("t", *(f'"{n}"' for n in range(9)))
    expected = server.view()
    worker.run_all()
    assert server.view() == expected
    server.checkpoint()
    worker.run_all()
    server.checkpoint()
    worker.run_all()
    assert server.view() == expected
    after = server.crash("tear")
    assert after.view() == expected
    named = {one.path for topic in after.engine.topics.values() for one in topic.segments[:-1]}
    assert {path for path in after.disk.files() if path.endswith(".seg")} == named


@pytest.mark.parametrize(
    ("mode", "cold_dir"),
    [
        ("tear", None),
        ("lose", "/cold"),
        *[
            pytest.param(mode, folder, marks=pytest.mark.torture)
            for mode in ("keep", "lose", "reorder", "zero")
            for folder in (None, "/cold")
        ],
    ],
)
def test_kill_at_every_file_call_changes_no_answer(mode: Any, cold_dir: str | None):
    cold: dict[str, Any] = {} if cold_dir is None else {"cold_dir": cold_dir, "hot_segments": 1}

    def work(server: SimServer) -> None:
        server.checkpoint()
        server.append("t", '"end"')
        server.checkpoint()

    def prepared() -> SimServer:
        disk = SimDisk(seed=4)
        disk.mkdir("/cold")
        disk.sync_dir("/")
        server = seeded(disk, **cold)
        delete_most(server)
        return server

    server = prepared()
    begun = len(server.disk.calls)
    before = server.data("t")
    work(server)
    for at in range(begun, len(server.disk.calls)):
        cut = prepared()
        cut.disk.crash_at(at, when="during")
        with suppress(Crashed):
            work(cut)
        after = cut.crash(mode)
        assert after.data("t") in (before, [*before, '"end"']), at
        after.close()
        assert verify(after.disk, "/data", cold_dir=cold_dir).clean, at


def test_backup_follows_a_rewrite_and_repairs_it():
    server = seeded(SimDisk(seed=1))
    disk = server.disk
    backup.copy(disk, "/data", "/old")
    backup.copy(disk, "/data", "/copy")
    delete_most(server)
    expected = server.data("t")
    server.checkpoint()
    server.checkpoint()
    assert backup.copy(disk, "/data", "/copy").problems == []
    assert verify(disk, "/copy").clean
    server.close()
    path = next(path for path in disk.files() if path.startswith("/data/") and "-1.seg" in path)
    for source in ("/copy", "/old"):  # the second has the records in the segment as it was before
        good = disk.contents(path)
        disk.flip(path, 8 * 20)
        assert repair.repair(disk, "/data", repair.Backup(disk, source)).missing == []
        assert disk.contents(path) == good
    assert server.next(disk).data("t") == expected
