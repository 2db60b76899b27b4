"""Older segments in another folder, over a real server: where the files are, and that readers never notice."""

import time
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.conftest import SMALL_PARTS, StartServer

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


def wait_until(client: httpx.Client, settled: Callable[[], object]) -> None:
    """Writes a little now and then, because a checkpoint is only taken when there is something new to keep."""
    deadline = time.monotonic() + WAIT_S
    while not settled():
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


def test_bytes_bound_what_stays_in_the_data_directory(start_server: StartServer, tmp_path: Path) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    server = start_server(**SMALL_PARTS, data_dir=data, cold_dir=cold, hot_retain_bytes=2000)
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        write(client, "t", RECORDS)
        topic_dir = next((data / "segments").iterdir()).name
        hot = data / "segments" / topic_dir
        wait_until(client, lambda: segments(cold) and sum(path.stat().st_size for path in segments(hot)) <= 4000)
        assert read_all(client, "t") == list(range(RECORDS))
