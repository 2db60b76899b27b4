"""Ledgers that are missing, empty or zeroed, alone and together with log files: reported, and nothing is deleted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.data.data_world import topics
from tests.conftest import StartServer
from tests.contract.api import Api
from tests.faults.test_lost_log import cut, filled, rest, wal_files
from tests.simulated.disk import MUTATING, Crashed, SimDisk
from tests.simulated.harness import ROOT, SimServer
from tests.simulated.inode import CrashMode
from topics.engine.offline.verify import verify
from topics.errors import Corrupt
from topics.storage.log import walfile

MODES: list[CrashMode] = ["keep", "lose", "tear"]


def ledgers(disk: SimDisk) -> list[str]:
    return [path for path in disk.files() if path.endswith(".ledger")]


def remove_ledger(disk: SimDisk) -> None:
    for path in ledgers(disk):
        disk.unlink(path)


def zero_ledger(disk: SimDisk) -> None:
    for path in ledgers(disk):
        disk.open(path, write=True).pwrite(bytes(len(disk.contents(path))), 0)


def empty_ledger(disk: SimDisk) -> None:
    for path in ledgers(disk):
        cut(disk, path, 0)


LEDGER_DAMAGES = [remove_ledger, zero_ledger, empty_ledger]


def before_checkpoint() -> SimServer:
    return filled(records=30)


def after_checkpoint() -> SimServer:
    server = filled(records=20)
    server.checkpoint()
    for number in range(21, 31):
        server.append("t", str(number))
    rest(server)
    return server


def after_orderly_stop() -> SimServer:
    server = filled(records=20)
    server.close()
    after = server.next(server.disk)
    for number in range(21, 31):
        after.append("t", str(number))
    rest(after)
    return after


HISTORIES = [before_checkpoint, after_checkpoint, after_orderly_stop]


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("damage", LEDGER_DAMAGES)
def test_lost_ledger_is_reported_and_readers_get_a_tombstone(
    damage: Callable[[SimDisk], None], history: Callable[[], SimServer]
) -> None:
    server = history()
    disk = server.disk.crash("keep")
    damage(disk)
    report = verify(disk.clone(), ROOT)
    assert any("the ledger is missing" in finding.what for finding in report.damage), report.damage
    after = server.next(disk)
    assert after.recovered is not None
    assert ["the ledger is missing" in text for text in after.recovered.damage] == [True]
    rows, gaps = after.walk("t")
    assert len(rows) == 30
    assert gaps == [(31, after.engine.topic("t").head, "corrupt")]
    again = after.crash("keep")
    assert again.recovered is not None
    assert again.recovered.damage == []


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("damage", LEDGER_DAMAGES)
def test_lost_ledger_and_log_are_reported_or_refused(
    damage: Callable[[SimDisk], None], history: Callable[[], SimServer]
) -> None:
    server = history()
    disk = server.disk.crash("keep")
    damage(disk)
    for path in wal_files(disk):
        disk.unlink(path)
    assert not verify(disk.clone(), ROOT).clean
    if history is before_checkpoint:  # no file has any topic
        before = files_of(disk)
        with pytest.raises(Corrupt, match="the log and its ledger are missing; restore"):
            server.next(disk)
        assert files_of(disk) == before
        return
    after = server.next(disk)
    rows, gaps = after.walk("t")
    assert len(rows) == 20
    assert gaps == [(21, after.engine.topic("t").head, "corrupt")]
    assert after.append("t", "31").first > 30


def files_of(disk: SimDisk) -> dict[str, bytes]:
    return {path: disk.contents(path) for path in disk.files() if not path.endswith(("LOCK", "VERSION"))}


def written_files(disk: SimDisk) -> list[str]:
    return [path for path in wal_files(disk) if walfile.written_end(disk.contents(path)) > walfile.HEADER_BYTES]


def cut_at_frame(disk: SimDisk, path: str) -> None:
    """Zero the file behind one of its frames: what is left of it is whole."""
    data = disk.contents(path)
    end = [item.end for item in walfile.scan(data) if isinstance(item, walfile.FoundFrame)][2]
    disk.open(path, write=True).pwrite(bytes(len(data) - end), end)


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("loss", [SimDisk.unlink, cut_at_frame])
@pytest.mark.parametrize("mode", ["keep", "lose"])
def test_gap_in_the_log_without_a_ledger_is_refused_and_deletes_nothing(
    loss: Callable[[SimDisk, str], None], at: int, mode: CrashMode
) -> None:
    server = filled(records=200, wal_file_bytes=4096)
    disk = server.disk.crash(mode)
    remove_ledger(disk)
    path = written_files(disk)[at]
    loss(disk, path)
    assert any(path in finding.what for finding in verify(disk.clone(), ROOT).damage)
    before = files_of(disk)
    with pytest.raises(Corrupt, match="put the file back, or restore") as refused:
        server.next(disk)
    assert refused.value.path == path
    assert files_of(disk) == before


def test_missing_last_log_file_without_a_ledger_is_reported() -> None:
    server = filled(records=200, wal_file_bytes=4096)
    disk = server.disk.crash("keep")
    zero_ledger(disk)
    disk.unlink(written_files(disk)[-1])
    assert not verify(disk.clone(), ROOT).clean
    after = server.next(disk)
    rows, gaps = after.walk("t")
    assert gaps == [(len(rows) + 1, after.engine.topic("t").head, "corrupt")]
    assert after.append("t", '"new"').first > 200


@pytest.mark.parametrize("history", HISTORIES)
def test_directory_without_snapshot_log_and_ledger_is_refused(history: Callable[[], SimServer]) -> None:
    server = history()
    disk = server.disk.crash("keep")
    for path in disk.files():
        if path.startswith((f"{ROOT}/wal", f"{ROOT}/ledger", f"{ROOT}/snapshots", f"{ROOT}/segments")):
            disk.unlink(path)
    assert not verify(disk.clone(), ROOT).clean
    with pytest.raises(Corrupt, match="restore the data directory from a backup"):
        server.next(disk)


@pytest.mark.parametrize("starts", [0, 1])
def test_start_killed_at_any_call_is_repeated_without_a_report(starts: int) -> None:
    disk = SimDisk(seed=7)
    for _ in range(starts):
        SimServer.start(disk).close()
    dry = disk.clone()
    began = len(dry.calls)
    SimServer.start(dry)
    for call in [call for call in dry.calls[began:] if call.op in MUTATING]:
        twin = disk.clone()
        twin.crash_at(call.number)
        with pytest.raises(Crashed):
            SimServer.start(twin)
        for mode in MODES:
            after = SimServer.start(twin.crash(mode))
            assert after.recovered is not None
            assert after.recovered.damage == [], (call, mode)


def test_ledger_has_the_topics_of_a_log_that_could_not_begin() -> None:
    disk = SimDisk(seed=7)
    SimServer.start(disk).close()
    disk.fail(op="allocate", path="*.wal.tmp", times=1)
    server = SimServer.start(disk)
    assert server.wal.broken
    rest(server)
    server.append("t", "1", durability="fsync")
    rest(server)
    left = server.disk.crash("keep")
    for path in wal_files(left):
        left.unlink(path)
    after = server.next(left)
    assert after.walk("t")[1][0][2] == "corrupt"


@pytest.mark.parametrize("damage", ["delete", "zero", "empty"])
def test_server_without_its_ledger_starts_and_reports_it(
    start_server: StartServer, tmp_path: Path, damage: str
) -> None:
    data = written_data(start_server, tmp_path)
    [path] = data.glob("ledger/*")
    if damage == "delete":
        path.unlink()
    else:
        os.truncate(path, 0)
        os.truncate(path, 0 if damage == "empty" else 300)
    again = start_server(data_dir=data)
    api = Api(again.url)
    answer = api.diff("t", from_seq=99)
    assert [record["data"] for record in answer["records"]] == [99]
    assert api.diff("t", from_seq=100)["tombstone"]["reason"] == "corrupt"
    assert "ledger_missing" in again.log()
    api.close()
    again.kill()  # `stop` would fail: the log reports the damage


def test_server_without_ledger_and_log_does_not_start(start_server: StartServer, tmp_path: Path) -> None:
    data = written_data(start_server, tmp_path)
    for path in (*data.glob("ledger/*"), *data.glob("wal/*")):
        path.unlink()
    done = topics("serve", "--data-dir", data, "--port", "0")
    assert done.returncode == 1
    assert "the log and its ledger are missing" in done.stderr


def written_data(start_server: StartServer, tmp_path: Path) -> Path:
    data = tmp_path / "data"
    server = start_server(data_dir=data)
    api = Api(server.url)
    api.put("t", durability="fsync")
    for number in range(100):
        api.write("t", number)
    api.close()
    server.kill()
    return data
