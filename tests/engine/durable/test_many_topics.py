"""A server with many topics: what a start and a checkpoint cost for each of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulated.disk import SimDisk
from tests.simulated.draining import drain
from tests.simulated.harness import SimServer
from topics.model.router import RouterRequest


class WatchedDisk(SimDisk):
    """Notes which files were opened."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.opened: list[str] = []

    def open(self, path: str, *, write: bool = False, create: bool = False) -> Any:
        self.opened.append(path)
        return super().open(path, write=write, create=create)


def test_start_opens_the_tails_file_once_for_all_topics():
    disk = WatchedDisk(seed=1)
    server = SimServer.start(disk)
    for at in range(20):
        server.append(f"t{at}", str(at), durability="fsync")
    server.close()
    disk.opened.clear()

    again = server.next(disk)

    assert len([path for path in disk.opened if path.endswith(".tails")]) == 1
    assert [again.data(f"t{at}") for at in range(20)] == [[str(at)] for at in range(20)]


def test_checkpoint_writes_only_the_tails_of_topics_that_changed():
    disk = WatchedDisk(seed=1)
    server = SimServer.start(disk)
    for at in range(20):
        server.append(f"t{at}", str(at), durability="fsync")
    server.close()
    first = tails(disk)
    again = server.next(disk)
    assert again.checkpoint()
    assert tails(disk) == first

    again.append("t3", "7")
    assert again.checkpoint()

    assert next(size for path, size in tails(disk).items() if path not in first) < min(first.values()) / 5
    after = again.crash("lose")
    assert [after.data(f"t{at}") for at in range(20)] == [[str(at), *["7"] * (at == 3)] for at in range(20)]


def tails(disk: SimDisk) -> dict[str, int]:
    paths = [f"/data/snapshots/{name}" for name in disk.listdir("/data/snapshots") if name.endswith(".tails")]
    return {path: disk.size(path) for path in paths}


def test_topics_are_captured_before_their_first_change_after_the_rotation():
    server = SimServer.start(SimDisk(seed=1))
    for name in ("a", "b", "c"):
        server.append(name, "1", durability="fsync")
    server.begin_checkpoint(topics=1)  # captures "a"
    server.append("a", "2")
    server.append("c", "2")
    server.put("c", cap_records=1)
    server.put("c", cap_records=0)
    server.append("c", "3")
    server.append("d", "1", durability="fsync")
    server.steps.release()
    found = server.view()
    assert {name: view.head for name, view in found.items()} == {"a": 2, "b": 1, "c": 3, "d": 1}
    assert server.store.snapshot_number == server.wal.number, "the checkpoint failed"

    assert server.crash("lose").view() == found


def test_what_is_written_between_slices_counts_for_the_next_checkpoint():
    server = SimServer.start(SimDisk(seed=1))
    server.append("a", "1", durability="fsync")
    server.begin_checkpoint(topics=0)
    before = server.wal.stats.bytes_written_total
    server.append("a", "2")
    server.steps.release()

    assert server.store.bytes_at_checkpoint == before < server.wal.stats.bytes_written_total


def test_topic_dropped_between_slices_stays_dropped():
    server = SimServer.start(SimDisk(seed=1))
    for name in ("a", "b"):
        server.append(name, "1", durability="fsync")
    server.begin_checkpoint(topics=1)
    server.drop("a")
    server.drop("b")
    server.steps.release()
    assert server.store.snapshot_number == server.wal.number, "the checkpoint failed"

    assert server.crash("lose").view() == {}


def test_records_copied_by_a_new_router_between_slices_come_once():
    server = SimServer.start(SimDisk(seed=1))
    for name in ("a", "b", "c"):
        server.append(name, "1", durability="fsync")
    server.begin_checkpoint(topics=1)
    request = RouterRequest(source="b", dest="c", from_seq=0)
    server.done(server.engine.routers.put("r", request))
    drain(server.engine)
    server.steps.release()
    found = server.view()
    assert server.data("c") == ["1", "1"]

    assert server.crash("lose").view() == found


@pytest.mark.parametrize("captured", range(5))
def test_copies_made_between_slices_come_once(captured: int):
    """Whatever is captured before a router runs: its source, its destination, both, or neither."""
    server = SimServer.start(SimDisk(seed=1))
    for name, limits in (("a", {}), ("b", {"cap_records": 3}), ("c", {}), ("d", {"ttl_ms": 1000})):
        server.put(name, durability="fsync", **limits)
    for name, source, dest in (("r1", "c", "b"), ("r2", "b", "a"), ("r3", "d", "c")):
        server.append(source, "0")
        server.done(server.engine.routers.put(name, RouterRequest(source=source, dest=dest, from_seq=0)))
    server.append("d", "1", "2")
    server.begin_checkpoint(topics=captured)
    drain(server.engine)
    server.append("d", "3")
    server.clock.advance(ms=600)
    server.append("d", "4")
    server.clock.advance(ms=600)
    drain(server.engine)
    server.steps.release()
    assert server.store.snapshot_number == server.wal.number, "the checkpoint failed"
    found, cursors = server.view(), {name: one.cursor for name, one in server.engine.routers.table.by_name.items()}
    assert found["b"].head == 7, "not all was copied"

    after = server.crash("lose")

    assert after.view() == found
    assert {name: one.cursor for name, one in after.engine.routers.table.by_name.items()} == cursors


def test_records_that_expire_after_they_were_copied_between_slices_stay_copied():
    server = SimServer.start(SimDisk(seed=1))
    server.put("a", durability="fsync")
    server.put("b", durability="fsync", ttl_ms=1000)
    server.append("b", "1", "2")
    server.done(server.engine.routers.put("r", RouterRequest(source="b", dest="a", from_seq=0)))
    server.begin_checkpoint(topics=0)
    drain(server.engine)
    server.clock.advance(ms=1200)
    server.engine.expire_and_get("b", touch=False)
    server.steps.release()
    assert server.store.snapshot_number == server.wal.number, "the checkpoint failed"

    assert server.crash("lose").data("a") == server.data("a") == ["1", "2"]


def test_checkpoint_captures_routed_topics_in_steps_like_others():
    server = SimServer.start(SimDisk(seed=1))
    for at in range(5):
        server.append(f"s{at}", "1", durability="fsync")
        server.done(server.engine.routers.put(f"r{at}", RouterRequest(source=f"s{at}", dest=f"d{at}")))

    server.begin_checkpoint(topics=2)

    captured = [topic.name for topic in server.engine.topics.values() if topic.captured_in == server.wal.number]
    server.steps.release()
    assert len(captured) == 2
