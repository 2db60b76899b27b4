"""A write whose entries are cut off in the middle: all of them take effect at the next start, or none.

Each case makes one write of several log entries. The log is then cut at every frame of the write and inside the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.queues.harness import QUEUE, Workshop
from tests.routers.random_history import drain
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer, TopicView
from topics.model.router import RouterRequest
from topics.storage.log import frame, walfile

Write = Callable[[SimServer], object]
HOLDING = 50  # records in a full source


def put_router(server: SimServer, name: str, source: str, dest: str, **options: object) -> None:
    request = RouterRequest(source=source, dest=dest, from_seq=0, **options)  # type: ignore[arg-type]
    server.done(server.engine.routers.put(name, request))


def full_source(server: SimServer, *dests: str) -> Write:
    """A full source whose routers wait for full destinations: the next append evicts records they did not forward."""
    server.put("source", cap_records=HOLDING, durability="disk")
    for dest in dests:
        server.put(dest, cap_records=10, discard="reject", durability="disk")
        put_router(server, f"to-{dest}", "source", dest)
    server.append("source", *["1"] * HOLDING)
    drain(server)
    return lambda server: server.append("source", *["2"] * 12)


def one_router(server: SimServer) -> Write:
    return full_source(server, "dest")


def two_routers(server: SimServer) -> Write:
    return full_source(server, "dest", "other")


def routed_destination(server: SimServer) -> Write:
    write = full_source(server, "dest")
    put_router(server, "further", "dest", "third")
    drain(server)
    return write


def two_filters_into_one(server: SimServer) -> Write:
    write = full_source(server, "dest")
    put_router(server, "again", "source", "dest", filter=["tag", "Glob", "*"])
    return write


def creating(server: SimServer) -> Write:
    return lambda server: server.append("new", "1", "2", durability="disk", cap_records=7)


def creating_above_the_first_ceiling(server: SimServer) -> Write:
    return lambda server: server.append("new", *["1"] * 5000, durability="disk")


def creating_dead_letters(server: SimServer) -> Write:
    shop = Workshop(server, max_deliveries=1, durability="disk", leases_durable=True, dead_letter="dead")
    server.append(QUEUE, '"job"')
    shop.claim("w", lease_ms=10)

    def bury(server: SimServer) -> None:
        server.clock.advance(ms=11)
        shop.claim("w")

    return bury


def creating_a_router(server: SimServer) -> Write:
    server.append("x", "1")
    return lambda server: put_router(server, "r", "x", "y")


def deleting_from_a_source(server: SimServer) -> Write:
    put_router(server, "r", "x", "y")
    server.append("x", "1", "2", "3", durability="disk")
    drain(server)
    return lambda server: server.delete("x", before_seq=3)


CASES = [
    one_router, two_routers, routed_destination, two_filters_into_one, creating, creating_above_the_first_ceiling,
    creating_dead_letters, creating_a_router, deleting_from_a_source,
]  # fmt: skip


@pytest.mark.parametrize("prepare", CASES)
def test_torn_write_takes_effect_as_a_whole_or_not_at_all(prepare: Callable[[SimServer], Write]) -> None:
    server = SimServer.start(wal_file_bytes=1 << 20)
    write = prepare(server)
    path, start = server._dir.wal_path(server.wal.number), server.wal.tail
    write(server)
    assert server._dir.wal_path(server.wal.number) == path
    ends = [start, *_ends(server.disk.contents(path), start)]
    assert len(ends) > 2, "the write has one entry: nothing can tear it"
    before, after = _start(server, path, ends[0]), _start(server, path, ends[-1])
    assert before != after
    for at in sorted({cut for end in ends[1:] for cut in (end - 1, end)} - {ends[-1]}):
        assert _start(server, path, at) == before, f"cut at {at} of {start} to {ends[-1]}"


def _ends(data: bytes, start: int) -> Iterator[int]:
    view, at = memoryview(data), start
    while (found := frame.decode(view, at)) is not None:
        at = found[1]
        yield at


def _start(server: SimServer, path: str, size: int) -> tuple[dict[str, TopicView], dict[str, tuple[int, str]]]:
    """Return what a start finds if the log ends at `size`: topics, and the cursor and destination of each router."""
    disk: SimDisk = server.disk.clone()
    file = disk.open(path, write=True)
    whole = file.size()
    file.truncate(size)
    file.allocate(whole)
    file.sync()
    file.close()
    after = server.next(disk)
    assert after.recovered is not None
    assert not after.recovered.damage
    routers = {name: (one.cursor, one.edge.dest.name) for name, one in after.engine.routers.table.by_name.items()}
    return after.view(), routers


def test_torn_write_is_reported_from_its_first_entry_on() -> None:
    begun, last = frame.encode(1 | frame.MORE, 1, 0, 0, b"a"), frame.encode(4, 1, 1, 1, b"b")
    header = walfile.encode_header(walfile.Header(1))
    for cut in range(1, len(last)):
        data = header + frame.encode(1, 9, 0, 0, b"") + begun + last[:cut]
        [whole, torn] = walfile.scan(data + bytes(64))
        assert isinstance(whole, walfile.FoundFrame)
        assert isinstance(torn, walfile.Damage)
        assert (torn.torn, torn.write_at, len(torn.begun)) == (True, whole.end, 1)
        assert walfile.whole_end(data + bytes(64)) == whole.end


def test_refused_end_of_a_write_refuses_its_beginning() -> None:
    begun, last = frame.encode(1 | frame.MORE, 1, 0, 0, b"a"), bytearray(frame.encode(4, 1, 1, 1, b"b"))
    last[-1] = frame.REFUSED
    data = walfile.encode_header(walfile.Header(1)) + begun + last + frame.encode(1, 9, 0, 0, b"")
    assert [item.frame.head.topic_id for item in walfile.scan(data) if isinstance(item, walfile.FoundFrame)] == [9]


def test_entries_before_damage_in_the_middle_of_the_log_are_kept() -> None:
    begun, last = frame.encode(1 | frame.MORE, 1, 0, 0, b"a"), bytearray(frame.encode(4, 1, 1, 1, b"b"))
    last[frame.BODY_AT] ^= 1
    data = walfile.encode_header(walfile.Header(1)) + begun + last + frame.encode(1, 9, 0, 0, b"")
    kinds = [type(item).__name__ for item in walfile.scan(data)]
    assert kinds == ["FoundFrame", "Damage", "FoundFrame"]
