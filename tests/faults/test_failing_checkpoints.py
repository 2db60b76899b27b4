"""Checkpoints that fail: the server waits between attempts, keeps the space that is left, reports it, and recovers."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ServerProcess
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.engine.state.topics import SegmentLimits

MACHINE = [str(Path(__file__).with_name("odd_machine.py"))]
WAL_BYTES = 1 << 20
SETTINGS: dict[str, object] = {
    "wal_file_bytes": WAL_BYTES,
    "checkpoint_wal_bytes": 1 << 20,
    "checkpoint_interval_ms": 100,
    "sync_interval_ms": 5,
}


def filled() -> SimServer:
    """Return a server whose checkpoint needs more space than its disk has left, but not more than a log file."""
    server = SimServer.start(SimDisk(seed=5), wal_file_bytes=16 << 10, segments=SegmentLimits())
    for at in range(30):
        server.append("t", f'"{at}{"x" * 2000}"', durability="fsync")
    server.disk.capacity_bytes = server.disk.used_bytes() + (40 << 10)
    return server


def wait_for(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while not (seen := found()):
        assert time.monotonic() < deadline, "nothing happened for 30 s"
        time.sleep(0.01)
    return seen


def events(server: ServerProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log().splitlines()]


def failures(server: ServerProcess) -> list[str]:
    return [event["reason"] for event in events(server) if event["event"] == "checkpoint_failed"]


def gauge(server: ServerProcess, name: str) -> float:
    lines = httpx.get(f"{server.url}/v0/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def warned(server: ServerProcess) -> list[str]:
    answer = httpx.get(f"{server.url}/v0/ready")
    assert answer.status_code == 200
    return list(answer.json().get("warnings", []))


# --- simulated


def test_log_is_not_rotated_before_there_is_room_for_the_checkpoint():
    server = filled()
    used, rotations = server.disk.used_bytes(), server.wal.stats.rotations_total
    for _ in range(20):
        server.checkpoint()
        server.clock.advance(ms=60_000)
    assert server.store.retries.reason == "No space left on device"
    assert server.wal.stats.rotations_total == rotations
    assert server.disk.used_bytes() == used
    server.append("t", '"still taken"')

    server.disk.capacity_bytes += 200 << 10
    assert server.checkpoint()
    assert server.store.retries.reason is None
    assert (
        len([path for path in server.disk.files() if path.endswith(".wal")]) <= 2
    )  # the present file, and a spare one
    assert len(server.crash("lose").data("t")) == 31


def test_attempts_wait_longer_after_each_failure_and_are_logged_once(caplog: pytest.LogCaptureFixture):
    server = filled()
    waits = []
    for _ in range(8):
        server.checkpoint()
        before = server.clock.monotonic_ns()
        while not server.store.retries.may_begin:
            server.clock.advance(ms=500)
        waits.append((server.clock.monotonic_ns() - before) // 1_000_000)
    assert waits == [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]
    assert [record.message for record in caplog.records].count("checkpoint_failed") == 1
    server.disk.capacity_bytes = None
    server.checkpoint()
    assert server.store.retries.may_begin
    server.disk.fail(op="pwritev", path="*.tmp", error=errno.EIO)
    server.append("t", "1")
    server.checkpoint()
    assert [record.message for record in caplog.records].count("checkpoint_failed") == 2


def test_attempt_that_used_up_a_log_file_is_repeated_after_much_longer():
    server = SimServer.start(SimDisk(seed=5))
    server.append("t", "1", durability="fsync")
    server.disk.fail(op="pwritev", path="*.snap.tmp", error=errno.EIO)
    server.checkpoint()
    server.clock.advance(ms=19_999)
    assert not server.store.retries.may_begin
    server.clock.advance(ms=1)
    assert server.store.retries.may_begin


def test_failed_attempts_leave_no_tails_behind():
    server = SimServer.start(SimDisk(seed=5))
    server.append("t", "1", durability="fsync")
    server.disk.fail(op="pwritev", path="*.snap.tmp", error=errno.ENOSPC, times=3)
    before = [path for path in server.disk.files() if path.endswith(".tails")]
    for _ in range(3):
        server.checkpoint()
    assert [path for path in server.disk.files() if path.endswith(".tails")] == before
    assert server.checkpoint()
    assert server.crash("lose").data("t") == ["1"]


def test_tails_stay_while_a_snapshot_may_need_them():
    server = SimServer.start(SimDisk(seed=5))
    server.append("t", "1", durability="fsync")
    syncs = [call.number for call in _calls_of_a_checkpoint(server) if call.op == "sync_dir"]
    for at in range(len(syncs)):
        again = SimServer.start(SimDisk(seed=5))
        again.append("t", "1", durability="fsync")
        again.disk.fail(op="sync_dir", at=syncs[at])
        again.checkpoint()
        assert again.crash("keep").data("t") == ["1"]


def _calls_of_a_checkpoint(server: SimServer) -> list[Any]:
    begin = len(server.disk.calls)
    server.checkpoint()
    return server.disk.calls[begin:]


# --- a real server


def test_server_reports_failing_checkpoints_and_recovers_by_itself(tmp_path: Path):
    flag = tmp_path / "full"
    server = ServerProcess(
        tmp_path, {"data_dir": tmp_path / "data", **SETTINGS}, program=MACHINE, variables={"FULL": str(flag)}
    )
    try:
        assert (gauge(server, "topics_checkpoint_failing"), warned(server)) == (0, [])
        flag.touch()
        httpx.post(f"{server.url}/v0/topics/t", json={"records": [{"data": 1}]}).raise_for_status()
        [warning] = wait_for(lambda: warned(server))
        assert "No space left on device" in warning
        assert gauge(server, "topics_checkpoint_failing") == 1
        syncs, rotations = gauge(server, "topics_wal_fsyncs_total"), gauge(server, "topics_wal_rotations_total")
        for _ in range(15):  # each write has the timer run once more at least
            httpx.post(f"{server.url}/v0/topics/t", json={"records": [{"data": 1}]}).raise_for_status()
            wait_for(lambda: gauge(server, "topics_wal_queue_depth") == 0)
        assert gauge(server, "topics_wal_fsyncs_total") >= syncs + 15
        assert gauge(server, "topics_wal_rotations_total") <= rotations + 4  # each attempt rotates at most once
        assert gauge(server, "topics_checkpoint_failures_total") < 15
        assert len(failures(server)) == 1
        flag.unlink()
        wait_for(lambda: not warned(server))
        assert gauge(server, "topics_checkpoint_failing") == 0
        wait_for(lambda: "checkpoint_recovered" in server.log())
    finally:
        server.terminate()
        assert server.process.wait(30) == 0


def test_stop_without_its_last_snapshot_is_a_failure(tmp_path: Path):
    flag, settings = tmp_path / "full", {"data_dir": tmp_path / "data"}
    server = ServerProcess(tmp_path, settings, program=MACHINE, variables={"FULL": str(flag)})
    httpx.post(f"{server.url}/v0/topics/t", json={"records": [{"data": 1}]}).raise_for_status()
    flag.touch()
    server.terminate()
    assert server.process.wait(30) == 1
    [failed] = [event for event in events(server) if event["event"] == "cannot_stop"]
    assert "No space left on device" in failed["reason"]
    after = ServerProcess(tmp_path / "after", settings)
    found = httpx.post(f"{after.url}/v0/topics/t/diff", json={}).json()
    after.stop()
    assert [record["data"] for record in found["records"]] == [1]


# --- a real full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB. Only root can mount one."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    path = tmp_path / "disk"
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)], capture_output=True)
    if made.returncode:
        pytest.skip(f"cannot mount a tmpfs: {made.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


@pytest.mark.torture
def test_full_disk_keeps_its_space_and_the_server_recovers(tmp_path: Path, small_disk: Path):
    settings = SETTINGS | {"data_dir": small_disk / "data", "wal_file_bytes": 4 << 20, "checkpoint_wal_bytes": 8 << 20}
    server = ServerProcess(tmp_path, settings)
    try:
        filler = small_disk / "filler"
        filler.write_bytes(bytes(28 << 20))
        row = {"data": "x" * 65_000}
        while not warned(server):
            httpx.post(f"{server.url}/v0/topics/t", json={"records": [row] * 8}).raise_for_status()
        rotations, free = gauge(server, "topics_wal_rotations_total"), free_bytes(small_disk)
        ends = time.monotonic() + 3  # longer than the first two waits: several attempts are made meanwhile
        while time.monotonic() < ends:
            assert free_bytes(small_disk) >= free - (5 << 20), "at most one log file is prepared"
            time.sleep(0.05)
        assert gauge(server, "topics_wal_rotations_total") <= rotations + 1
        assert len(failures(server)) == 1
        filler.unlink()
        wait_for(lambda: not warned(server))
        wait_for(lambda: free_bytes(small_disk) > free + (20 << 20))
    finally:
        server.terminate()
        assert server.process.wait(30) == 0
