"""Repair fetches the damaged ranges from a backup or a replica, and says what it could not find."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.simulated.clock import SimClock
from tests.simulated.disk import Crashed, SimDisk
from tests.simulated.harness import SimServer
from topics.client import Topics
from topics.engine.offline.verify import verify
from topics.model.records import TagMatch
from topics.storage import backup, repair
from topics.storage.fs import Fs
from topics.storage.segments import codec
from topics.testing import server


def written(disk: SimDisk, *, tail: str = "7", **options: Any) -> SimServer:
    """Return a stopped server with two sealed segments, a tail and a log, and its backup."""
    sim = SimServer.start(disk, **options)
    sim.append("t", '"1"', '"2"', '"3"', tag="a", durability="fsync")
    sim.append("t", '"4"', '"5"', tag="b")
    sim.append("t", '"6"', tag="e")
    sim.append("t", f'"{tail}"', tag="c")
    sim.checkpoint()
    sim.append("t", '"8"', tag="d")
    sim.append("t", '"9"', tag="d")
    sim.wal.close()
    sim.store.dir.close()
    backup.copy(disk, "/data", "/copy")
    return sim


def segment_of(disk: SimDisk, first: int = 1) -> tuple[str, codec.Footer]:
    path = f"/data/segments/1/{first:020d}.seg"
    data = disk.contents(path)
    return path, codec.decode_footer(data[-codec.FOOTER_BYTES :], path=path, file_bytes=len(data))


def repaired(disk: SimDisk) -> repair.Repaired:
    return repair.repair(disk, "/data", repair.Backup(disk, "/copy"))


@pytest.mark.parametrize("part", ["magic", "data", "sums", "index", "flag", "footer", "tail", "snapshot", "log"])
def test_flipped_byte_is_fetched_from_the_backup(part: str):
    disk = SimDisk(seed=2)
    written(disk)
    path, footer = segment_of(disk)
    at = {
        "magic": 0, "data": 20, "sums": footer.sums_at, "index": footer.sums_at + 9, "flag": footer.flags_at + 1,
        "footer": footer.file_bytes - 60,
    }.get(part)  # fmt: skip
    if at is None:
        suffix, at = {"tail": (".tails", 20), "snapshot": (".snap", 40), "log": (".wal", 130)}[part]
        found = [one for one in disk.files() if one.startswith("/data/") and one.endswith(suffix)]
        path = next(one for one in found if any(disk.contents(one)[120:]))
    before = disk.contents(path)
    disk.flip(path, 8 * at)
    disk.flip(path, 8 * at + 3)
    done = repaired(disk)
    assert (done.missing, len(done.ranges)) == ([], 1)
    assert path in done.ranges[0]
    assert disk.contents(path) == before
    assert verify(disk, "/data").clean


def test_missing_segment_comes_back():
    disk = SimDisk(seed=2)
    written(disk)
    disk.unlink(segment_of(disk)[0])
    assert repaired(disk).missing == []
    assert verify(disk, "/data").clean


def test_missing_segment_does_not_bring_deleted_records_back():
    disk = SimDisk(seed=2)
    written(disk)
    sim = SimServer.start(disk)
    sim.delete("t", match=TagMatch("Eq", "e"))
    sim.checkpoint()  # after it, only the file has the mark
    sim.close()
    disk.unlink(segment_of(disk, 4)[0])
    [missing] = repaired(disk).missing
    assert missing.endswith("with records that were deleted since; topic t, seqs 4 to 6")


def test_older_or_damaged_source_changes_nothing():
    disk = SimDisk(seed=2)
    written(disk)
    path, _ = segment_of(disk)
    for one in (path, path.replace("/data", "/copy")):
        disk.flip(one, 8 * 20)
    before = disk.contents(path)
    done = repaired(disk)
    assert [text.partition(": ")[2] for text in done.missing] == [
        "a chunk of data does not match its checksum; topic t, seqs 1 to 3"
    ]
    assert disk.contents(path) == before


def test_missing_tails_come_back():
    disk = SimDisk(seed=2)
    written(disk)
    disk.unlink(next(one for one in disk.files() if one.startswith("/data/") and one.endswith(".tails")))
    assert repaired(disk).missing == []
    assert verify(disk, "/data").clean


@pytest.mark.parametrize("suffix", [".tails", ".wal"])
@pytest.mark.parametrize("at", [20, -1])
def test_records_of_another_directory_are_not_taken(suffix: str, at: int):
    disk, other = SimDisk(seed=2), SimDisk(seed=3)
    written(disk)
    written(other, tail="X", clock=SimClock(2_000_000_000_000))
    found = [one for one in disk.files() if one.startswith("/data/") and one.endswith(suffix)]
    path = next(one for one in found if any(disk.contents(one)[120:]))
    disk.flip(path, 8 * (len(disk.contents(path).rstrip(b"\0")) - 30 if at < 0 else at + 110 * (suffix == ".wal")))
    before = disk.contents(path)
    assert disk.contents(path) != other.contents(path.replace("/data", "/copy"))
    done = repair.repair(disk, "/data", repair.Backup(other, "/copy"))
    assert (done.ranges, len(done.missing)) == ([], 1)
    assert disk.contents(path) == before


def test_repair_that_is_cut_short_is_repeated():
    disk = SimDisk(seed=2)
    written(disk)
    path, _ = segment_of(disk)
    good = disk.contents(path)
    disk.flip(path, 8 * 20)
    begun = len(disk.calls)
    repaired(disk.clone())
    twin = disk.clone()
    repaired(twin)
    calls = len(twin.calls)
    for at in range(begun, calls):
        cut = disk.clone()
        cut.crash_at(at, when="during")
        with suppress(Crashed):
            repaired(cut)
        after = cut.crash("tear")
        repaired(after)
        assert after.contents(path) == good, at


def test_damage_is_fetched_from_a_replica_by_range(tmp_path: Path):
    pytest.importorskip("obstore")
    from topics.storage.replica.bucket import open_bucket
    from topics.storage.replica.history import History

    url = f"file://{tmp_path}/bucket"
    with server(data_dir=tmp_path / "data", replica=url, segment_max_events=16) as address, Topics(address) as client:
        client.append_many("t", [{"data": n} for n in range(40)])
        client.append("t", "last")
    path = next((tmp_path / "data").glob("segments/*/*.seg"))
    good = path.read_bytes()
    path.write_bytes(good[:30] + b"x" + good[31:])
    history = History.open(open_bucket(url))
    assert history is not None
    done = repair.repair(Fs(), str(tmp_path / "data"), repair.Replica(history))
    assert (done.missing, len(done.ranges)) == ([], 1)
    assert path.read_bytes() == good
