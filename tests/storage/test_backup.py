"""Backups carry a ledger, report damage of their source, and keep what an earlier backup has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulated.disk import MUTATING, Crashed, SimDisk
from tests.simulated.harness import SimServer
from tests.simulated.inode import CrashMode
from topics.engine.offline.verify import verify
from topics.storage import backup
from topics.storage.backup_files import CopyError
from topics.storage.datadir import DataDir
from topics.storage.segments import codec


def written(disk: SimDisk) -> SimServer:
    server = SimServer.start(disk)
    server.append("f", "1", durability="fsync")
    server.checkpoint()
    server.append("f", "2", "3")
    server.append("f", "4")
    return server


def test_log_file_cut_short_in_a_backup_is_noticed():
    disk = SimDisk(seed=1)
    written(disk).wal.close()
    backup.copy(disk, "/data", "/copy")
    copy = DataDir(disk, "/copy")
    assert len(copy.ledger_numbers()) == 1
    assert verify(disk, "/copy").clean

    path = copy.wal_path(copy.wal_numbers()[-1])
    file = disk.open(path, write=True)
    file.truncate(file.size() - 100)
    report = verify(disk, "/copy")

    assert not report.clean
    assert any(finding.topic == "f" and finding.first_seq in (3, 4) for finding in report.damage), report.damage


def test_log_file_missing_in_a_backup_is_noticed():
    disk = SimDisk(seed=1)
    written(disk).wal.close()
    backup.copy(disk, "/data", "/copy")
    copy = DataDir(disk, "/copy")
    disk.unlink(copy.wal_path(copy.wal_numbers()[-1]))
    report = verify(disk, "/copy")
    assert any((finding.topic, finding.first_seq) == ("f", 2) for finding in report.damage), report.damage


def test_missing_ledger_is_reported_by_the_start_and_by_verify():
    disk = SimDisk(seed=1)
    server = written(disk)
    server.checkpoint()
    server.wal.close()
    for name in disk.listdir("/data/ledger"):
        disk.unlink(f"/data/ledger/{name}")
    left = disk.crash("keep")
    report = verify(left, "/data")
    assert ["the ledger is missing" in finding.what for finding in report.damage] == [True]

    after = server.next(left)

    assert after.recovered is not None
    assert ["the ledger is missing" in text for text in after.recovered.damage] == [True]
    assert after.data("f") == ["1", "2", "3", "4"]
    again = after.crash("lose")
    assert again.recovered is not None
    assert again.recovered.damage == []


# A damaged source costs an earlier backup nothing


KILLS: list[CrashMode] = ["keep", "lose", "tear"]
RECORDS = 5000  # more than a tail holds, so a checkpoint seals them


def backed_up_in_the_log() -> tuple[SimDisk, SimServer]:
    """Return a server with a backup that has its records in a log file, and that has sealed them since."""
    disk = SimDisk(seed=1)
    server = SimServer.start(disk)
    server.put("f", durability="fsync")
    server.append("f", *map(str, range(RECORDS)))
    backup.copy(disk, "/data", "/copy")
    server.checkpoint()
    return disk, server


def segment_of(disk: SimDisk, root: str) -> str:
    [path] = [path for path in disk.files() if path.startswith(f"{root}/segments/")]
    return path


def zero(disk: SimDisk, path: str, at: int = 1000, size: int = 5000) -> None:
    disk.open(path, write=True).pwrite(bytes(size), at)


def live_in(disk: SimDisk, root: str) -> int:
    report = verify(disk, root)
    assert report.clean, report.damage
    return sum(topic.live for topic in report.topics)


def remove(disk: SimDisk, path: str) -> None:
    disk.unlink(path)


def cut(disk: SimDisk, path: str) -> None:
    disk.open(path, write=True).truncate(5000)


@pytest.mark.parametrize("damage", [zero, remove, cut])
def test_damaged_segment_does_not_replace_records_of_the_target(damage: Callable[[SimDisk, str], None]):
    disk, server = backed_up_in_the_log()
    server.wal.close()
    damage(disk, segment_of(disk, "/data"))

    with pytest.raises(CopyError, match="/copy is unchanged: it has records that"):
        backup.copy(disk, "/data", "/copy")

    assert live_in(disk, "/copy") == RECORDS
    backup.copy(disk, "/data", "/other")
    assert not verify(disk, "/other").clean
    again = backup.copy(disk, "/data", "/other")  # a target that has the same damage loses nothing
    assert again.problems


def test_source_that_was_repaired_is_copied_again():
    disk, server = backed_up_in_the_log()
    server.wal.close()
    path = segment_of(disk, "/data")
    good = disk.contents(path)
    zero(disk, path)
    with pytest.raises(CopyError):
        backup.copy(disk, "/data", "/copy")
    disk.open(path, write=True).pwrite(good, 0)
    assert backup.copy(disk, "/data", "/copy").problems == []
    assert live_in(disk, "/copy") == RECORDS


@pytest.mark.parametrize("damage", [zero, remove, cut])
def test_damage_of_a_segment_that_the_target_has_is_reported(damage: Callable[[SimDisk, str], None]):
    disk, server = backed_up_in_the_log()
    backup.copy(disk, "/data", "/copy")
    server.wal.close()
    path = segment_of(disk, "/data")
    damage(disk, path)
    done = backup.copy(disk, "/data", "/copy")
    assert done.problems
    assert all(text.startswith(path) for text in done.problems)
    assert live_in(disk, "/copy") == RECORDS


def test_damaged_flags_mark_no_record_of_the_target():
    disk, server = backed_up_in_the_log()
    backup.copy(disk, "/data", "/copy")
    server.wal.close()
    path = segment_of(disk, "/data")
    footer_and_flags = codec.FOOTER_BYTES + RECORDS
    zero(disk, path, len(disk.contents(path)) - footer_and_flags, 100)
    assert backup.copy(disk, "/data", "/copy").problems
    assert live_in(disk, "/copy") == RECORDS


def test_damaged_tail_does_not_replace_records_of_the_target():
    disk = SimDisk(seed=1)
    server = SimServer.start(disk)
    server.append("f", "1", "2", durability="fsync")
    backup.copy(disk, "/data", "/copy")
    server.checkpoint()
    server.wal.close()
    damaged = disk.clone()
    [path] = [path for path in disk.files() if path.endswith(".tails") and path.startswith("/data")]
    zero(damaged, path, 20, 40)
    with pytest.raises(CopyError, match="/copy is unchanged"):
        backup.copy(damaged, "/data", "/copy")
    assert live_in(damaged, "/copy") == 2
    # A target that has the same tails keeps its own.
    backup.copy(disk, "/data", "/copy")
    zero(disk, path, 20, 40)
    assert backup.copy(disk, "/data", "/copy").problems
    assert live_in(disk, "/copy") == 2


def test_records_that_the_source_lost_to_damage_stay_in_the_target():
    disk, server = backed_up_in_the_log()
    server.wal.close()
    left = disk.crash("keep")
    zero(left, segment_of(left, "/data"))
    after = server.next(left)
    rows, gaps = after.walk("f")  # readers find the damage
    assert len(rows) < RECORDS
    assert [reason for _, _, reason in gaps] == ["corrupt"]
    after.checkpoint()
    after.wal.close()
    with pytest.raises(CopyError, match="/copy is unchanged"):
        backup.copy(left, "/data", "/copy")
    assert live_in(left, "/copy") == RECORDS


def test_damaged_log_is_not_called_another_history():
    disk = SimDisk(seed=1)
    server = SimServer.start(disk)
    server.append("f", "1", durability="fsync")
    server.append("f", "2")
    backup.copy(disk, "/data", "/copy")
    server.wal.close()
    path = next(path for path in disk.files() if path.startswith("/data/wal/"))
    zero(disk, path, 200, 60)
    with pytest.raises(CopyError, match="/copy is unchanged"):
        backup.copy(disk, "/data", "/copy")
    assert live_in(disk, "/copy") == 2


# A refused copy changes nothing, and a kill at any call loses nothing


def files_of(disk: SimDisk, root: str) -> dict[str, bytes]:
    return {path: disk.contents(path) for path in disk.files() if path.startswith(f"{root}/") and "LOCK" not in path}


def lost_in_one_tail() -> tuple[SimDisk, SimServer]:
    """Return a source that lost the tail of topic a after a backup. Topic b has its tail in the same file."""
    disk = SimDisk(seed=1)
    server = SimServer.start(disk)
    for name in ("a", "b"):
        server.append(name, "1", "2", durability="fsync")
    server.close()
    backup.copy(disk, "/data", "/copy")
    [path] = [path for path in disk.files() if path.startswith("/data") and path.endswith(".tails")]
    at = disk.contents(path).find(b'"$seq":1')
    zero(disk, path, at, 10)
    after = server.next(disk)
    assert [reason for _, _, reason in after.walk("a")[1]] == ["corrupt"]
    after.append("a", "3")
    after.close()
    return disk, after


def test_refused_copy_changes_no_file_of_the_target():
    disk, _ = lost_in_one_tail()
    before = files_of(disk, "/copy")
    with pytest.raises(CopyError, match="/copy is unchanged"):
        backup.copy(disk, "/data", "/copy")
    assert files_of(disk, "/copy") == before
    assert live_in(disk, "/copy") == 4


def test_refused_copy_leaves_no_new_file_in_the_target():
    disk = SimDisk(seed=1)
    server = SimServer.start(disk)
    server.append("f", "1", durability="fsync")
    backup.copy(disk, "/data", "/copy")
    server.append("g", *map(str, range(RECORDS)), durability="fsync")  # becomes a segment that the target lacks
    server.checkpoint()
    server.wal.close()
    [path] = [path for path in disk.files() if path.startswith("/data") and path.endswith(".tails")]
    zero(disk, path, 20, 40)
    before, folders = files_of(disk, "/copy"), disk.listdir("/copy/segments")
    with pytest.raises(CopyError, match="/copy is unchanged"):
        backup.copy(disk, "/data", "/copy")
    assert files_of(disk, "/copy") == before
    assert disk.listdir("/copy/segments") == folders


def test_tails_that_the_target_has_are_repaired_from_the_source():
    disk = SimDisk(seed=1)
    server = SimServer.start(disk)
    server.append("a", "1", "2", durability="fsync")
    server.close()
    backup.copy(disk, "/data", "/copy")
    [path] = [path for path in disk.files() if path.startswith("/copy") and path.endswith(".tails")]
    zero(disk, path, 20, 40)
    assert not verify(disk, "/copy").clean
    backup.copy(disk, "/data", "/copy")
    assert live_in(disk, "/copy") == 2


def test_copy_that_is_killed_at_any_call_leaves_a_whole_target():
    disk = SimDisk(seed=1)
    server = SimServer.start(disk)
    for name in ("a", "b"):
        server.append(name, "1", "2", durability="fsync")
    backup.copy(disk, "/data", "/copy")
    server.append("a", "3")
    server.checkpoint()
    server.append("b", *map(str, range(RECORDS)))
    server.checkpoint()
    server.append("a", "4")
    server.wal.close()
    dry = disk.clone()
    began = len(dry.calls)
    backup.copy(dry, "/data", "/copy")
    calls = [call for call in dry.calls[began:] if call.op in MUTATING]
    assert live_in(dry, "/copy") == RECORDS + 6
    for call in calls:
        twin = disk.clone()
        twin.crash_at(call.number)
        with pytest.raises(Crashed):
            backup.copy(twin, "/data", "/copy")
        for mode in KILLS:
            assert live_in(twin.crash(mode), "/copy") >= 4, (call, mode)


@pytest.mark.parametrize("times", [1, 2])
def test_file_that_is_missing_once_is_looked_for_again(monkeypatch: pytest.MonkeyPatch, times: int):
    """The server removes the files of an older snapshot after it has written the newer one."""
    disk = SimDisk(seed=1)
    written(disk).wal.close()
    path = DataDir(disk, "/data").wal_path(DataDir(disk, "/data").wal_numbers()[-1])
    opened, left = disk.open, [times]

    def open_later(name: str, **how: bool) -> object:
        if name == path and left[0]:
            left[0] -= 1
            raise FileNotFoundError(2, "No such file or directory", name)
        return opened(name, **how)

    monkeypatch.setattr(disk, "open", open_later)
    if times == 1:
        assert backup.copy(disk, "/data", "/copy", pause=lambda: None).tries == 2
        assert verify(disk, "/copy").clean
    else:
        with pytest.raises(CopyError, match="is missing"):
            backup.copy(disk, "/data", "/copy", pause=lambda: None)
