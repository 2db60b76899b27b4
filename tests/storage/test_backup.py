"""Backups carry a ledger, and a ledger that is missing is reported."""

from __future__ import annotations

from topics.engine.offline.verify import verify
from topics.storage import backup
from topics.storage.datadir import DataDir
from topics.testing.disk import SimDisk
from topics.testing.harness import SimServer


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
