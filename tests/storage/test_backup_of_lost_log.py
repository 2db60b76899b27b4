"""Backups of a source whose log, ledger or snapshot is damaged: refused, or the copy reports the same loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.data.data_world import topics
from tests.conftest import StartServer
from tests.contract.api import Api
from tests.faults.test_lost_ledger import LEDGER_DAMAGES, cut_at_frame, written_files
from tests.faults.test_lost_log import rest
from tests.faults.test_lost_log_matrix import damaged_disks
from tests.simulated.disk import SimDisk
from tests.simulated.harness import ROOT, SimServer
from topics.engine.offline.verify import verify
from topics.errors import Corrupt
from topics.storage import backup, backup_files
from topics.storage.backup_files import CopyError
from topics.storage.fs import Fs, read_whole
from topics.storage.log import walfile


def source(*, records: int = 100) -> SimServer:
    """Return a server with several log files after a snapshot. Topic `late` was created after it."""
    server = SimServer.start(SimDisk(seed=7))
    server.append("f", "1", durability="fsync")
    server.checkpoint()
    for number in range(2, records + 1):
        server.append("f", str(number))
        if number == records // 2:
            server.append("late", '"x"', durability="fsync")
    rest(server)
    return server


def losses(server: SimServer) -> dict[str, tuple[dict[int, str], set[int]]]:
    """Return the records of each topic, and the seqs up to the last record that are lost."""
    found = {}
    for name, topic in server.engine.topics.items():
        runs = [run for run in topic.losses.runs if run[2] == "corrupt"]
        found[name] = server.by_seq(name), {seq for low, high, _ in runs for seq in range(low, high + 1)}
    return found


def restored(disk: SimDisk) -> SimServer:
    """Back up, restore, and start a server on the result."""
    backup.copy(disk, ROOT, "/copy")
    backup.restore(disk, "/copy", "/restored", now_ms=1_000, set_aside=None)
    disk.rename(ROOT, "/damaged")
    disk.rename("/restored", ROOT)
    return SimServer.start(disk)


def test_copy_of_a_damaged_log_reports_the_same_loss_as_its_source() -> None:
    server = source()
    for what, disk in damaged_disks(server.disk.crash("keep")):
        twin = disk.clone()
        done = backup.copy(disk.clone(), ROOT, "/copy")
        after = restored(disk)
        expected = losses(SimServer.start(twin))
        assert done.problems, what
        assert losses(after) == expected, what
        assert after.recovered is not None
        assert after.recovered.damage, what
        seen = expected["f"]
        assert set(range(1, 101)) <= set(seen[0]) | seen[1], what


def test_copy_reports_the_loss_of_its_source_to_verify() -> None:
    server = source()
    disk = server.disk.crash("keep")
    disk.unlink(written_files(disk)[1])
    expected = verify(disk, ROOT)
    backup.copy(disk, ROOT, "/copy")
    report = verify(disk, "/copy")
    seqs = [(finding.topic, finding.first_seq, finding.last_seq) for finding in expected.damage if finding.first_seq]
    assert seqs
    assert seqs == [(one.topic, one.first_seq, one.last_seq) for one in report.damage if one.first_seq]


def test_log_file_that_is_back_in_the_source_repairs_the_copy() -> None:
    disk = source().disk.crash("keep")
    path = written_files(disk)[1]
    data = disk.contents(path)
    disk.unlink(path)
    assert backup.copy(disk, ROOT, "/copy").problems
    disk.open(path, write=True, create=True).pwrite(data, 0)
    assert backup.copy(disk, ROOT, "/copy").problems == []
    report = verify(disk, "/copy")
    assert report.clean, report.damage
    assert sum(topic.live for topic in report.topics) == 101


@pytest.mark.parametrize("damage", LEDGER_DAMAGES)
def test_copy_of_a_source_without_ledger_has_none_either(damage: Callable[[SimDisk], None]) -> None:
    server = source()
    disk = server.disk.crash("keep")
    backup.copy(disk, ROOT, "/copy")
    [path] = [path for path in disk.files() if path.startswith("/copy/ledger/")]
    good = disk.contents(path)
    damage(disk)
    disk.open(path, write=True, create=True).pwrite(good, 0)
    assert verify(disk, "/copy").clean
    for target in ("/copy", "/other"):
        assert any("the ledger is missing" in text for text in backup.copy(disk, ROOT, target).problems)
        assert any("the ledger is missing" in finding.what for finding in verify(disk, target).damage)


def remove_ledger_of_source(disk: SimDisk) -> None:
    for path in disk.files():
        if path.startswith(f"{ROOT}/ledger/"):
            disk.unlink(path)


@pytest.mark.parametrize("loss", [SimDisk.unlink, cut_at_frame])
def test_source_whose_loss_is_unknown_is_refused(loss: Callable[[SimDisk, str], None]) -> None:
    disk = source().disk.crash("keep")
    path = written_files(disk)[1]
    backup.copy(disk, ROOT, "/copy")
    before = {path: disk.contents(path) for path in disk.files() if path.startswith("/copy")}
    remove_ledger_of_source(disk)
    loss(disk, path)
    for target in ("/other", "/copy"):
        with pytest.raises(CopyError, match="no ledger says what it held; put the file back"):
            backup.copy(disk, ROOT, target)
    assert {path: disk.contents(path) for path in disk.files() if path.startswith("/copy")} == before


def test_source_without_its_snapshot_is_refused() -> None:
    server = source()
    server.close()
    disk = server.disk.crash("keep")
    for path in disk.files():
        if path.endswith(".snap"):
            disk.unlink(path)
    with pytest.raises(Corrupt):
        server.next(disk.clone())
    with pytest.raises(CopyError, match=f"the snapshot is missing; run `topics verify {ROOT}`"):
        backup.copy(disk, ROOT, "/copy")


def test_missing_log_file_does_not_replace_records_of_the_target() -> None:
    disk = source().disk.crash("keep")
    path = written_files(disk)[1]
    backup.copy(disk, ROOT, "/copy")
    before = {path: disk.contents(path) for path in disk.files() if path.startswith("/copy")}
    disk.unlink(path)
    with pytest.raises(CopyError, match="/copy is unchanged"):
        backup.copy(disk, ROOT, "/copy")
    assert {path: disk.contents(path) for path in disk.files() if path.startswith("/copy")} == before


def test_copy_of_a_server_without_topics_can_be_restored() -> None:
    server = SimServer.start(SimDisk(seed=7))
    disk = server.disk.crash("keep")
    after = restored(disk)
    assert after.recovered is not None
    assert after.recovered.damage == []


def test_copy_while_the_log_grows_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger claims more with each file that is read."""
    server = source()

    def grow_and_read(fs: Fs, path: str) -> bytes:
        server.append("f", '"more"')
        data = read_whole(fs, path)
        rest(server)
        return data

    monkeypatch.setattr(backup_files, "read_whole", grow_and_read)
    done = backup.copy(server.disk, ROOT, "/copy")
    assert done.problems == []
    report = verify(server.disk, "/copy")
    assert report.clean, report.damage
    assert next(topic.live for topic in report.topics if topic.topic == "f") >= 100


def test_commands_report_a_missing_log_file_after_the_restore(start_server: StartServer, tmp_path: Path) -> None:
    data, copy, new = tmp_path / "data", tmp_path / "copy", tmp_path / "new"
    server = start_server(data_dir=data)
    api = Api(server.url)
    api.put("t", durability="fsync")
    for number in range(100):
        api.write("t", number)
    api.close()
    server.kill()
    max(data.glob("wal/*.wal"), key=lambda file: walfile.written_end(file.read_bytes())).unlink()
    done = topics("backup", data, copy)
    assert done.returncode == 1
    assert "the log file is missing" in done.stdout
    assert topics("verify", copy).returncode == 1
    assert topics("restore", copy, new).returncode == 1
    again = start_server(data_dir=new)
    api = Api(again.url)
    answer = api.diff("t", from_seq=0)
    assert (answer["tombstone"]["reason"], answer["tombstone"]["gap_from"]) == ("corrupt", 1)
    assert answer["tombstone"]["gap_to"] >= 100
    api.close()
    again.kill()  # `stop` would fail: the log reports the damage
