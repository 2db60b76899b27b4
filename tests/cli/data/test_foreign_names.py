"""Names of a data directory that are no regular files: directories, devices, named pipes and broken links."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.data.data_world import World, append, client, everything, serving, topics
from tests.cli.data.directories import check, segment_files

KINDS: dict[str, Callable[[Path], object]] = {
    "a directory": Path.mkdir,
    "a named pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a loop of symbolic links": lambda path: path.symlink_to(path),
    "a link to a missing file": lambda path: path.symlink_to(path.with_name("missing")),
}
MOVE = "move it away, and put the file back from a backup"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def killed(world: World, tmp_path: Path) -> Path:
    """Return a copy of the directory of a killed server: it has log files and a ledger."""
    return shutil.copytree(world.killed, tmp_path / "killed")


def replace(path: Path, kind: str) -> Path:
    path.unlink()
    KINDS[kind](path)
    return path


def last(directory: Path, pattern: str) -> Path:
    return max(directory.glob(pattern))


def test_verify_reports_each_one_and_checks_the_other_files(late: Path, kind: str):
    tails = replace(last(late, "snapshots/*.tails"), kind)
    segment = replace(segment_files(late)[0], kind)
    what = f"this is {kind}, not a regular file"
    found = check(late)
    assert {finding.file for finding in found.damage} == {str(tails), str(segment)}
    assert all(finding.what == what and finding.first_seq is not None for finding in found.damage)
    assert {topic.topic for topic in found.topics} == {"brief", "capped", "log", "safe"}


def test_verify_reports_a_log_file_and_checks_the_segments(killed: Path, kind: str):
    log, segment = replace(last(killed, "wal/*.wal"), kind), replace(segment_files(killed)[0], kind)
    found = check(killed)
    assert {finding.file for finding in found.damage} == {str(segment), str(log)}
    [about] = [finding for finding in found.damage if finding.file == str(log)]
    assert about.what == f"this is {kind}, not a regular file; a server does not start on it"
    assert about.next == MOVE


def test_verify_reports_a_snapshot(late: Path, kind: str):
    path = replace(last(late, "snapshots/*.snap"), kind)
    assert {finding.file: finding.next for finding in check(late).damage} == {str(path): MOVE}


def test_verify_reports_a_ledger_and_a_format_file(killed: Path):
    ledger = replace(last(killed, "ledger/*"), "a directory")
    format_file = replace(killed / "FORMAT", "a directory")
    assert {finding.file: finding.next for finding in check(killed).damage} == {
        str(ledger): MOVE,
        str(format_file): MOVE,
    }


def test_backup_names_it_and_copies_the_other_segments(late: Path, tmp_path: Path, kind: str):
    segment = replace(segment_files(late)[0], kind)
    done = topics("backup", late, tmp_path / "backup")
    assert done.returncode == 1
    assert f"damaged: {segment} at byte 0: this is {kind}, not a regular file; topic " in done.stdout
    assert len(segment_files(tmp_path / "backup")) == len(segment_files(late)) - 1


def test_backup_that_cannot_read_the_log_says_what_to_do(killed: Path, tmp_path: Path, kind: str):
    log = replace(last(killed, "wal/*.wal"), kind)
    done = topics("backup", killed, tmp_path / "backup")
    assert done.returncode == 1
    assert done.stderr == f"topics: {log}: this is {kind}, not a regular file\nnext: {MOVE}\n"


def test_server_reports_the_records_of_such_a_segment_as_lost(late: Path, tmp_path: Path, kind: str):
    segment = replace(segment_files(late)[0], kind)
    segment.with_name("foreign").mkdir()
    with serving(tmp_path / "server", late, then="kill") as server, client(server) as http:
        assert everything(server)["log"]
        tombstones = [
            http.post(f"/v0/topics/{name}/diff", json={"from_seq": 0}).json()["tombstone"] for name in ("log", "safe")
        ]
        append(http, "log", 400)
        http.put("/v0/topics/log", json={"durability": "fsync"})
        log = server.log()
    assert "corrupt" in [gap["reason"] for gap in tombstones if gap is not None]
    assert "cleaning_failed" not in log


def test_server_that_cannot_read_its_log_says_what_to_do(killed: Path, kind: str):
    log = replace(last(killed, "wal/*.wal"), kind)
    done = topics("serve", "--data-dir", killed, "--port", "0", "--log-format", "json")
    assert done.returncode == 1
    assert f'"reason":"this is {kind}, not a regular file: {log}","hint":"{MOVE}"' in done.stderr


def test_lock_file_that_is_a_directory_gets_a_next_step(late: Path):
    path = replace(late / "LOCK", "a directory")
    done = topics("serve", "--data-dir", late, "--port", "0")
    assert done.returncode == 1
    assert f"Is a directory ({path}); {MOVE}, or choose another TOPICS_DATA_DIR" in done.stderr


def test_lock_file_that_is_a_named_pipe_does_not_stop_a_check(late: Path):
    replace(late / "LOCK", "a named pipe")
    assert check(late).clean
