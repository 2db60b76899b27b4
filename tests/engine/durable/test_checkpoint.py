"""What a snapshot holds of a segment that goes on growing: what was there when it was taken, whenever it is written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.simulated.disk import SimDisk
from tests.simulated.harness import DeferredWorker, SimServer
from topics.engine.state.snapshot_parts import Frozen, freeze
from topics.engine.state.topic import Topic
from topics.model.topic import ConfigPatch
from topics.storage.segments.columns import extend
from topics.storage.segments.segment import MemorySegment


def grow(segment: MemorySegment, n: int, *, tag: str | None = None, node: str | None = None, meta: int = 0) -> None:
    for _ in range(n):
        row, at = b'{"$seq":%d},' % (segment.first + segment.count), segment.count
        extend(
            segment.columns,
            ts=at,
            sizes=[len(row)],
            tags=[f"{tag}-{at}"] if tag else None,
            nodes=[node] if node else None,
            metas=[meta] if meta else None,
        )
        if tag:
            segment.columns.extras = {**segment.columns.extras, at: b"e%d" % at}
        segment.grew(row, 1, at)


def written(frozen: Frozen) -> MemorySegment:
    return MemorySegment.from_bytes(b"".join(frozen.encode(1, 1)), path="x", opened_ms=0)


def content(segment: MemorySegment) -> list[object]:
    columns = segment.columns
    rows = [(columns.ts[at], columns.tag_at(at), columns.node_at(at)) for at in range(segment.count)]
    metas = [0 if columns.metas is None else columns.metas[at] for at in range(segment.count)]
    marks = None if segment.marks is None else bytes(segment.marks)
    return [rows, metas, dict(columns.extras), bytes(segment.rendered), marks, segment.live, segment.live_bytes]


@pytest.mark.parametrize("begun_with", [{}, {"tag": "old"}, {"tag": "old", "node": "a"}, {"meta": 3}])
def test_what_comes_after_the_snapshot_is_not_in_it(begun_with: dict):
    segment = MemorySegment(5)
    grow(segment, 10, **begun_with)
    segment.mark([2, 7], 1)
    before, frozen = content(segment), freeze(segment, growing=True)
    at_once = written(frozen)
    grow(segment, 10, tag="new", node="b", meta=4)
    segment.mark([3, 15], 1)
    assert content(at_once) == content(written(frozen)) == before
    assert segment.count == 20


def test_it_may_be_written_while_the_segment_grows():
    segment = MemorySegment(1)
    grow(segment, 5, tag="t")
    with ThreadPoolExecutor(1) as worker:
        under_way = []
        for _ in range(200):
            before, frozen = content(segment), freeze(segment, growing=True)
            under_way.append((before, worker.submit(written, frozen)))
            grow(segment, 3, tag="t", node="n", meta=2)
        for before, done in under_way:
            assert content(done.result()) == before


def test_a_delete_survives_in_a_segment_that_was_sealed_twice():
    """By itself and by a checkpoint: a reader of the first file must open the second one."""
    worker = DeferredWorker()
    server = SimServer.start(SimDisk(seed=1), store_worker=worker)
    server.append("t", "1", "2", "3", durability="fsync")
    worker.run_all()
    server.append("t", "4", "5", durability="fsync")
    assert server.store.checkpoint()
    worker.run(1)
    before = server.data("t")
    worker.run_all()
    ticket = server.engine.delete_seqs("t", [2], dry_run=False)
    server.engine.flush()
    assert (ticket.value().deleted, len(before)) == (1, 5)
    for more in ("6", "7"):
        server.append("t", more, durability="fsync")
        assert server.store.checkpoint()
        worker.run_all()
    kept = server.data("t")
    after = server.crash("tear")
    assert after.data("t") == kept
    assert len(kept) == after.engine.topics["t"].count == 6


@pytest.mark.parametrize("jobs", [0, 1, 2], ids=["before the cleaning", "before the write", "before its report"])
@pytest.mark.parametrize("fails", [False, True])
def test_segment_of_a_topic_that_is_deleted_while_it_is_sealed(
    jobs: int, fails: bool, caplog: pytest.LogCaptureFixture
):
    worker = DeferredWorker()
    server = SimServer.start(SimDisk(), store_worker=worker)
    server.append("t", *"1234")
    server.append("t", "5")
    worker.run_all()
    server.delete("t", before_seq=5)
    server.checkpoint()
    worker.run()  # the checkpoint is written, and the folder of the topic is about to be cleaned up
    server.append("t", *"678")
    server.append("t", "9")
    if fails:
        server.disk.fail(at=len(server.disk.calls), op="pwritev", error=5)
    for _ in range(jobs):
        worker.work()
    server.drop("t")
    worker.run_all()
    server.disk.heal()
    server.checkpoint()
    worker.run_all()
    assert server.disk.listdir("/data/segments") == []
    assert not [record for record in caplog.records if "seal_failed" in record.message]
    server.append("t", *"123")
    assert server.crash("keep").data("t") == ["1", "2", "3"]


def test_segment_of_a_topic_that_cannot_be_sealed_is_reported(caplog: pytest.LogCaptureFixture):
    server = SimServer.start(SimDisk())
    server.append("t", *"123")
    server.disk.fail(at=len(server.disk.calls), op="pwritev", error=5)
    server.append("t", "4")
    assert [record for record in caplog.records if "seal_failed" in record.message]
    assert server.data("t") == ["1", "2", "3", "4"]


@pytest.mark.parametrize("jobs", range(5))
def test_checkpoint_that_ends_a_change_of_class_begins_no_second_one(jobs: int):
    sync, store = DeferredWorker(), DeferredWorker()
    server = SimServer.start(SimDisk(seed=7), sync_worker=sync, store_worker=store)
    server.engine.put_topic("e", ConfigPatch(durability="ephemeral"))
    server.engine.flush()
    sync.run_all()
    change = server.engine.put_topic("e", ConfigPatch(durability="fsync"))
    server.engine.flush()
    number = server.wal.number
    assert server.store.checkpoint()  # syncs the change, which needs a snapshot: this one
    store.run(jobs)
    after = server.next(server.disk.clone().crash("keep"))
    assert after.recovered is not None
    assert after.recovered.damage == []
    store.run_all()
    assert change.done
    assert server.wal.number == number + 1


def test_the_thread_of_the_store_changes_no_topic():
    """It may write files only: what it found out is noted on the thread that owns the state."""
    worker = DeferredWorker()
    server = SimServer.start(SimDisk(seed=1), store_worker=worker)
    for name in ("a", "b"):
        server.append(name, *"12345", durability="fsync")
    server.delete("a", before_seq=2)
    assert server.store.checkpoint()
    server.append("a", "6")
    jobs = 0
    while len(worker):
        before = fields(server)
        worker.work()
        assert fields(server) == before
        worker.report()
        jobs += 1
    assert jobs == 3  # a seal, the snapshot, and the removal of old files
    assert all(topic.saved_tail is not None for topic in server.engine.topics.values())


def fields(server: SimServer) -> dict[str, list[object]]:
    """Return what each topic refers to, and the segments in its list."""
    return {
        name: [getattr(topic, slot) for slot in Topic.__slots__] + [id(segment) for segment in topic.segments]
        for name, topic in server.engine.topics.items()
    }


def test_marks_of_a_snapshot_that_was_not_written_are_in_no_segment():
    """Otherwise the next start counts a record as live that its segment has as deleted."""
    server = SimServer.start(SimDisk(seed=1))
    server.append("t", *"123", durability="fsync")
    server.append("t", "4")  # seals the first three records
    for seq in (2, 3):
        server.done(server.engine.delete_seqs("t", [seq]))
        if seq == 3:
            failing = server.disk.fail(op="rename", path="*.snap*")
        server.checkpoint()
    assert failing.times == 0
    after = server.crash("keep")
    assert after.data("t") == ["1", "4"]
    assert after.engine.topics["t"].count == 2
