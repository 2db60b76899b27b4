"""Log files that are cut short, missing or replaced: reported, and no seq is given out twice."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.data.data_world import topics
from tests.conftest import StartServer
from tests.contract.api import Api
from tests.simulated.disk import SimDisk
from tests.simulated.harness import ROOT, SimServer, request
from topics.engine.offline.verify import verify
from topics.errors import Corrupt
from topics.storage.fs import Fs
from topics.storage.log import walfile

DURABILITIES = ["fsync", "disk", "memory"]


def wal_files(disk: SimDisk) -> list[str]:
    return [path for path in disk.files() if path.endswith(".wal")]


def filled(durability: str = "fsync", records: int = 100, *, wal_file_bytes: int = 1 << 16) -> SimServer:
    server = SimServer.start(SimDisk(seed=7), wal_file_bytes=wal_file_bytes)
    for number in range(1, records + 1):
        server.append("t", str(number), durability=durability)
    rest(server)
    return server


def rest(server: SimServer) -> None:
    """Let time pass until the ledger has the end of the log."""
    for _ in range(2):
        server.clock.advance(ms=2_000)
        server.tick()


def cut(disk: SimDisk, path: str, size: int) -> None:
    disk.open(path, write=True).truncate(size)


def half(disk: SimDisk) -> None:
    path = last_written(disk)
    cut(disk, path, walfile.written_end(disk.contents(path)) // 2)


def last_written(disk: SimDisk) -> str:
    return [path for path in wal_files(disk) if walfile.written_end(disk.contents(path)) > walfile.HEADER_BYTES][-1]


def empty(disk: SimDisk) -> None:
    cut(disk, last_written(disk), 0)


def delete(disk: SimDisk) -> None:
    disk.unlink(last_written(disk))


def delete_all(disk: SimDisk) -> None:
    for path in wal_files(disk):
        disk.unlink(path)


def zero_tail(disk: SimDisk) -> None:
    """Replace the file by an older copy: it has the full size, and its second half is empty."""
    path = last_written(disk)
    data = disk.contents(path)
    end = walfile.written_end(data)
    frames = [item.end for item in walfile.scan(data) if isinstance(item, walfile.FoundFrame)]
    keep = max(at for at in frames if at < end // 2)
    disk.open(path, write=True).pwrite(bytes(end - keep), keep)


def zero_all(disk: SimDisk) -> None:
    path = last_written(disk)
    disk.open(path, write=True).pwrite(bytes(len(disk.contents(path))), 0)


def zero_frames(disk: SimDisk) -> None:
    """Leave nothing but the header."""
    path = last_written(disk)
    disk.open(path, write=True).pwrite(bytes(len(disk.contents(path)) - walfile.HEADER_BYTES), walfile.HEADER_BYTES)


def replace_by_another(disk: SimDisk) -> None:
    """Put the bytes of the log file before it into the last one."""
    path = last_written(disk)
    other = disk.contents(path)[walfile.HEADER_BYTES :]
    number = int(path.rpartition("/")[2].removesuffix(".wal"))
    disk.open(path, write=True).pwrite(walfile.encode_header(walfile.Header(number - 1)) + other, 0)


DAMAGES = [half, empty, delete, delete_all, zero_tail, zero_all, zero_frames, replace_by_another]


def check_lost(server: SimServer, disk: SimDisk, head: int) -> SimServer:
    """Check that `verify`, the start and readers report the loss, no seq is reused, and the next start reports none."""
    report = verify(disk.clone(), ROOT)
    assert not report.clean
    assert any(finding.topic == "t" and finding.last_seq >= head for finding in report.damage)
    after = server.next(disk)
    assert after.recovered is not None
    assert after.recovered.damage
    rows, gaps = after.walk("t")
    first, last, reason = gaps[-1]
    assert reason == "corrupt"
    assert (first, last) == (len(rows) + 1, after.engine.topic("t").head)
    assert last >= head
    assert after.append("t", '"new"').first > head
    found = after.view()
    again = after.crash("keep")
    assert again.view() == found
    assert again.recovered is not None
    assert again.recovered.damage == []
    return again


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_log_without_its_end_is_reported_and_reuses_no_seq(durability: str, damage: Callable[[SimDisk], None]) -> None:
    server = filled(durability)
    disk = server.disk.crash("keep")
    damage(disk)
    after = check_lost(server, disk, 100)
    assert len(after.walk("t")[0]) < 60


@pytest.mark.parametrize("damage", DAMAGES)
def test_lost_log_after_a_snapshot_loses_later_records_only(damage: Callable[[SimDisk], None]) -> None:
    server = filled()
    server.checkpoint()
    for number in range(101, 201):
        server.append("t", str(number))
    rest(server)
    disk = server.disk.crash("keep")
    damage(disk)
    after = check_lost(server, disk, 200)
    assert after.data("t")[:100] == [str(number) for number in range(1, 101)]


@pytest.mark.parametrize("damage", [zero_all, replace_by_another])
def test_lost_contents_are_reported_before_the_ledger_has_the_end_of_the_log(damage: Callable[[SimDisk], None]) -> None:
    server = SimServer.start(SimDisk(seed=7))
    for number in range(1, 31):
        server.append("t", str(number), durability="fsync")
    disk = server.disk.crash("keep")
    damage(disk)
    check_lost(server, disk, 30)


def test_foreign_log_file_is_named_and_not_replayed() -> None:
    server = filled(records=200, wal_file_bytes=4096)
    disk = server.disk.crash("keep")
    files = [path for path in wal_files(disk) if walfile.written_end(disk.contents(path)) > walfile.HEADER_BYTES]
    disk.open(files[-1], write=True).pwrite(disk.contents(files[1]), 0)
    what = f"the file has the bytes of log file {int(files[1].rpartition('/')[2].removesuffix('.wal'))}"
    report = verify(disk.clone(), ROOT)
    assert any((finding.file, finding.what) == (files[-1], what) for finding in report.damage), report.damage
    after = check_lost(server, disk, 200)
    assert after.data("t")[:150] == [str(number) for number in range(1, 151)]


@pytest.mark.parametrize("zeros", [True, False])
def test_records_in_an_unreadable_stretch_are_lost_even_if_no_later_one_follows(zeros: bool) -> None:
    """The stretch held several frames. Entries of another topic follow it, so the log does not end there."""
    server = SimServer.start(SimDisk(seed=7))
    for number in range(1, 11):
        server.append("t", str(number), durability="fsync")
    for number in range(10):
        server.append("u", str(number), durability="fsync")
    rest(server)
    disk = server.disk.crash("keep")
    path = last_written(disk)
    frames = [item for item in walfile.scan(disk.contents(path)) if isinstance(item, walfile.FoundFrame)]
    t = server.engine.topic("t").topic_id
    of_t = [item for item in frames if item.frame.head.topic_id == t and item.frame.head.first]
    low, high = of_t[5].at + 5, of_t[-1].end + 5
    disk.open(path, write=True).pwrite(bytes(high - low) if zeros else b"\xa5" * (high - low), low)
    assert any(finding.topic == "t" and (finding.last_seq or 0) >= 10 for finding in verify(disk, ROOT).damage)
    after = server.next(disk)
    assert after.data("t") == ["1", "2", "3", "4", "5"]
    assert after.walk("t")[1][-1][2] == "corrupt"
    assert after.append("t", '"new"').first > 10
    assert after.data("u")[-1] == "9"


def test_snapshot_with_the_bytes_of_another_one_is_refused() -> None:
    server = filled()
    server.checkpoint()
    [old] = [path for path in server.disk.files() if path.endswith(".snap")]
    contents = server.disk.contents(old)
    server.append("t", "101")
    server.checkpoint()
    disk = server.disk.crash("keep")
    [new] = [path for path in disk.files() if path.endswith(".snap")]
    assert new != old
    file = disk.open(new, write=True)
    file.truncate(0)
    file.pwrite(contents, 0)
    with pytest.raises(Corrupt, match="no snapshot can be read"):
        server.next(disk)


@pytest.mark.parametrize("at", [0, 1, -2, -1])
def test_missing_log_file_at_any_place_is_reported(at: int) -> None:
    server = filled(records=200, wal_file_bytes=4096)
    server.append("t", '"last"')
    disk = server.disk.crash("keep")
    files = [path for path in wal_files(disk) if walfile.written_end(disk.contents(path)) > walfile.HEADER_BYTES]
    assert len(files) > 4
    held = [
        item.frame.head.first
        for item in walfile.scan(disk.contents(files[at]))
        if isinstance(item, walfile.FoundFrame) and item.frame.head.first
    ]
    disk.unlink(files[at])
    report = verify(disk.clone(), ROOT)
    assert any(finding.file == files[at] for finding in report.damage)
    after = server.next(disk)
    rows = after.by_seq("t")
    lost = {seq for low, high, why in after.engine.topic("t").losses.runs if why == "corrupt"
            for seq in range(low, min(high, 500) + 1)}  # fmt: skip
    assert set(range(1, 202)) == set(rows) | {seq for seq in lost if seq <= 201}
    assert not set(rows) & set(held)
    assert after.append("t", '"new"').first > 201
    if at != -1:
        assert rows[201] == '"last"'
        assert after.engine.topic("t").head == 202, "a later file shows where the topic ends"


def test_topics_known_only_to_the_lost_part_return_empty() -> None:
    server = filled()
    server.put("other", durability="fsync", cap_records=7)
    server.append("other", "1", "2")
    server.append("gone", "1")
    server.drop("gone")
    server.put("t", cap_records=50, durability="fsync")
    server.tick()
    disk = server.disk.crash("keep")
    delete_all(disk)
    after = server.next(disk)
    assert sorted(after.engine.topics) == ["other", "t"]
    other = after.engine.topic("other")
    assert (other.epoch, other.config.cap_records) == (server.engine.topic("other").epoch, 7)
    assert after.walk("other")[1][0][2] == "corrupt"
    assert after.engine.topic("t").config.cap_records == 50
    assert after.append("brand-new", "1").topic.topic_id > other.topic_id


def test_topics_changed_before_a_kill_are_known_if_the_log_is_lost() -> None:
    """The kill comes before the ledger has the changes, and the replay of the records is deferred."""
    server = SimServer.start(SimDisk(seed=7))
    server.append("dropped", "1", durability="memory")
    server.checkpoint()
    server.engine.append("new", request("1", durability="memory"))
    server.engine.drop_topic("dropped")
    server.engine.flush()
    again = server.crash("keep")
    assert sorted(again.engine.state.by_name) == ["new"]
    rest(again)
    disk = again.disk.crash("keep")
    delete_all(disk)
    after = again.next(disk)
    assert sorted(after.engine.topics) == ["new"]
    assert after.walk("new")[1][0][2] == "corrupt"
    assert after.append("new", "2").first > 1


def test_file_cut_in_its_unused_end_loses_nothing_if_another_follows() -> None:
    server = filled(records=200, wal_file_bytes=4096)
    disk = server.disk.crash("keep")
    first = wal_files(disk)[0]
    cut(disk, first, walfile.written_end(disk.contents(first)))
    after = server.next(disk)
    assert after.recovered is not None
    assert "nothing is lost" in after.recovered.damage[0]
    assert len(after.data("t")) == 200


def test_start_after_orderly_stop_needs_no_log_file() -> None:
    server = filled()
    server.close()
    delete_all(server.disk)
    after = server.next(server.disk)
    assert after.recovered is not None
    assert after.recovered.damage == []
    assert after.append("t", "101").first == 101


def test_start_without_snapshot_and_log_reports_the_missing_snapshot() -> None:
    server = filled()
    server.checkpoint()
    disk = server.disk.crash("keep")
    for path in disk.files():
        if "/wal/" in path or "/snapshots/" in path:
            disk.unlink(path)
    with pytest.raises(Corrupt, match="the snapshot is missing"):
        server.next(disk)


def test_log_works_while_its_ledger_cannot_be_written() -> None:
    server = filled(records=3)
    server.disk.fail(at=len(server.disk.calls), path="*.ledger", times=1 << 62)
    server.put("u", durability="fsync")
    assert server.append("t", "4").first == 4
    server.disk.heal()
    server.append("t", "5")
    disk = server.disk.crash("keep")
    delete_all(disk)
    assert "u" in server.next(disk).engine.topics, "the ledger was written later"


def test_lost_ledger_loses_no_record() -> None:
    server = filled()
    disk = server.disk.crash("keep")
    for path in disk.files():
        if path.endswith(".ledger"):
            disk.unlink(path)
    after = server.next(disk)
    assert len(after.data("t")) == 100


@pytest.mark.parametrize("damage", ["half", "empty", "delete", "zero"])
def test_server_with_damaged_log_starts_and_reports_the_gap(
    start_server: StartServer, tmp_path: Path, damage: str
) -> None:
    data = tmp_path / "data"
    server = start_server(data_dir=data)
    api = Api(server.url)
    api.put("t", durability="fsync")
    for number in range(100):
        api.write("t", number)
    api.close()
    server.kill()
    path = max(data.glob("wal/*.wal"), key=lambda file: walfile.written_end(file.read_bytes()))
    if damage == "delete":
        path.unlink()
    elif damage == "zero":
        path.write_bytes(bytes(path.stat().st_size))
    else:
        os.truncate(path, 0 if damage == "empty" else walfile.written_end(path.read_bytes()) // 2)
    assert not verify(Fs(), str(data)).clean

    again = start_server(data_dir=data)
    api = Api(again.url)
    answer = api.diff("t", from_seq=99)
    assert answer["tombstone"]["reason"] == "corrupt"
    assert answer["head_seq"] >= 100
    assert api.write("t", "new")["first_seq"] > 100
    assert "log_incomplete" in again.log()
    api.close()
    again.kill()  # `stop` would fail: the log reports the damage


def test_log_file_that_is_no_regular_file_stops_the_start_with_its_name(tmp_path: Path, start_server: StartServer):
    data = tmp_path / "data"
    server = start_server(data_dir=data)
    api = Api(server.url)
    api.write("t", 1)
    api.close()
    server.kill()
    path = min(data.glob("wal/*.wal"))
    path.unlink()
    path.symlink_to("/dev/null")
    done = topics("serve", "--data-dir", data, "--port", "0")
    assert done.returncode == 1
    assert f"this is a device, not a regular file: {path}" in done.stderr
