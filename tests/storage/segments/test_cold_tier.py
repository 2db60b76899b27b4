"""Older segments in another folder, over a real server: where the files are, and that readers never notice."""

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.conftest import SMALL_PARTS, StartServer
from topics.server.app import EXIT_HALTED

RECORDS = 200
WAIT_S = 20


def write(client: httpx.Client, topic: str, n: int) -> None:
    for first in range(0, n, 10):
        records = [{"data": {"n": first + at}, "tag": f"t{(first + at) % 7}"} for at in range(10)]
        assert client.post(f"/v0/topics/{topic}", json={"records": records}).is_success


def read_all(client: httpx.Client, topic: str) -> list[int]:
    seen, from_seq = [], 0
    while True:
        answer = client.post(f"/v0/topics/{topic}/diff", json={"from_seq": from_seq, "limit": 30}).json()
        assert answer["tombstone"] is None
        seen += [record["data"]["n"] for record in answer["records"]]
        from_seq = answer["next_from_seq"]
        if answer["caught_up"]:
            return seen


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("**/*.seg"))


def size_bytes(paths: list[Path]) -> int:
    """Of those that are still there: the server moves them while we look."""
    total = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def wait_until(client: httpx.Client, condition: Callable[[], object]) -> None:
    """Writes a little now and then, because a checkpoint is only taken when there is something new to keep."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the segments did not move"
        client.post("/v0/topics/other", json={"records": [{"data": 0}]})
        time.sleep(0.02)


def test_older_segments_move_to_the_cold_folder_and_are_read_from_there(
    start_server: StartServer, tmp_path: Path
) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    settings = SMALL_PARTS | {"data_dir": data, "cold_dir": cold, "hot_retain_segments": 2}
    server = start_server(**settings)
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        write(client, "t", RECORDS)
        wait_until(client, lambda: segments(data / "segments"))
        topic_dir = next((data / "segments").iterdir()).name
        wait_until(client, lambda: len(segments(data / "segments" / topic_dir)) <= 3 and len(segments(cold)) >= 5)
        assert read_all(client, "t") == list(range(RECORDS))
        gone = client.post("/v0/topics/t/delete", json={"match": "t3"}).json()["deleted"]
        expected = [n for n in range(RECORDS) if n % 7 != 3]
        assert gone == RECORDS - len(expected)
        assert read_all(client, "t") == expected
    server.kill()

    again = start_server(**settings)
    with httpx.Client(base_url=again.url, timeout=30, trust_env=False) as client:
        assert read_all(client, "t") == expected
        state = client.get("/v0/topics/t").json()
        assert state["count"] == len(expected)
        client.delete("/v0/topics/t")
        wait_until(client, lambda: not segments(cold / topic_dir))


def test_segments_that_move_at_a_start_survive_a_kill_before_the_next_checkpoint(
    start_server: StartServer, tmp_path: Path
) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    rarely = {"checkpoint_interval_ms": 3_600_000, "checkpoint_wal_bytes": 1 << 30}
    settings = SMALL_PARTS | rarely | {"data_dir": data, "cold_dir": cold, "hot_retain_segments": 1}
    server = start_server(**settings)
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        client.put("/v0/topics/t", json={"durability": "fsync"}).raise_for_status()
        write(client, "t", RECORDS)
    server.kill()
    for _ in range(2):  # the first start writes a snapshot, and moves what the snapshot names
        server = start_server(**settings)
        with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
            assert read_all(client, "t") == list(range(RECORDS))
        assert segments(cold)
        server.kill()
    found = subprocess.run(
        [sys.executable, "-m", "topics", "verify", data, "--cold-dir", cold],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout


def test_bytes_bound_what_stays_in_the_data_directory(start_server: StartServer, tmp_path: Path) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    server = start_server(**SMALL_PARTS, data_dir=data, cold_dir=cold, hot_retain_bytes=2000)
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        write(client, "t", RECORDS)
        wait_until(client, lambda: segments(data / "segments"))
        topic_dir = next((data / "segments").iterdir()).name
        hot = data / "segments" / topic_dir
        wait_until(client, lambda: segments(cold) and size_bytes(segments(hot)) <= 4000)
        assert read_all(client, "t") == list(range(RECORDS))


def test_a_cold_folder_that_is_not_there_is_no_loss(start_server: StartServer, tmp_path: Path) -> None:
    data, cold, away = tmp_path / "data", tmp_path / "cold", tmp_path / "away"
    settings = SMALL_PARTS | {"data_dir": data, "cold_dir": cold, "hot_retain_segments": 1}
    server = start_server(**settings)
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        write(client, "t", RECORDS)
        wait_until(client, lambda: len(segments(cold)) >= 5)
    server.stop()
    verify = [sys.executable, "-m", "topics", "verify", data]
    unnamed = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False)
    assert "the log is not checked" in unnamed.stdout, "a folder that was not named is no damage"
    assert unnamed.returncode == 0, unnamed.stdout
    cold.rename(away)
    cold.mkdir()
    refused = subprocess.run(
        [sys.executable, "-m", "topics", "serve", "--port", "0", "--data-dir", data, "--cold-dir", cold],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    assert "is its disk mounted?" in refused.stderr
    cold.rmdir()
    away.rename(cold)
    again = start_server(**settings)
    with httpx.Client(base_url=again.url, timeout=30, trust_env=False) as client:
        assert read_all(client, "t") == list(range(RECORDS))


def test_a_missing_snapshot_is_not_taken_for_an_empty_directory(start_server: StartServer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start_server(**SMALL_PARTS, data_dir=data)
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        write(client, "t", RECORDS)
        wait_until(client, lambda: len(segments(data)) >= 5)
    server.stop()
    kept = segments(data)
    for path in (data / "snapshots").glob("*.snap"):
        path.unlink()
    command = [sys.executable, "-m", "topics"]
    refused = subprocess.run(
        [*command, "serve", "--port", "0", "--data-dir", data], capture_output=True, text=True, timeout=60, check=False
    )
    assert refused.returncode == 1
    assert "the snapshot is missing" in refused.stderr
    assert segments(data) == kept
    assert subprocess.run([*command, "verify", data], capture_output=True, timeout=60, check=False).returncode == 1


def test_server_ends_when_its_data_directory_is_gone(start_server: StartServer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start_server(**SMALL_PARTS, data_dir=data)
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        write(client, "t", 10)
        data.rename(tmp_path / "gone")  # at once: the server may be creating a file in it
        shutil.rmtree(tmp_path / "gone", ignore_errors=True)
        assert server.process.wait(WAIT_S) == EXIT_HALTED
    assert "the data directory was removed or renamed" in server.log()
    server.killed = True
