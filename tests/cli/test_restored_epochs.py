"""A restored topic has a new epoch: readers of the old one get a tombstone, without false reports of loss."""

import os
from pathlib import Path

import httpx

from tests import forks
from tests.conftest import StartServer


def topics(*words: str | Path) -> None:
    status, _, err = forks.run(["topics", *map(str, words)], {**os.environ}, b"", 60)
    assert status == 0, err


def test_restored_topic_starts_a_new_epoch_with_all_records(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(data_dir=tmp_path / "data")
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        for name, durability in (("orders", "fsync"), ("feed", "disk")):
            client.put(f"/v0/topics/{name}", json={"durability": durability})
            client.post(f"/v0/topics/{name}", json={"records": [{"data": n} for n in range(5)]})
            old = client.get(f"/v0/topics/{name}").json()["epoch"]
            client.post(f"/v0/topics/{name}/archived", json={"seq": 3, "epoch": old})
        topics("backup", tmp_path / "data", tmp_path / "backup")
        client.post("/v0/topics/orders", json={"records": [{"data": "after the backup"}] * 3})
        old = client.get("/v0/topics/orders").json()["epoch"]
    server.kill()
    topics("restore", tmp_path / "backup", tmp_path / "restored")

    again = start_server(data_dir=tmp_path / "restored")
    with httpx.Client(base_url=again.url, timeout=30, trust_env=False) as client:
        client.post("/v0/topics/orders", json={"records": [{"data": "new"}] * 6})
        # The old reader was at seq 8, which the new history has passed: only the epoch shows the difference.
        answer = client.post("/v0/topics/orders/diff", json={"from_seq": 8, "epoch": old}).json()
        assert answer["tombstone"]["reason"] == "recreated"
        assert [record["data"] for record in answer["records"]] == [0, 1, 2, 3, 4] + ["new"] * 6
        feed = client.post("/v0/topics/feed/diff", json={"from_seq": 0}).json()
        assert (feed["tombstone"], feed["head_seq"], len(feed["records"])) == (None, 5, 5)
        epoch = client.get("/v0/topics/orders").json()["epoch"]
        assert answer["epoch"] == epoch != old
        assert client.get("/v0/topics/feed").json().get("archived_seq", 0) == 0, (
            "the archive has no records of this epoch"
        )
    again.kill()

    third = start_server(data_dir=tmp_path / "restored")
    with httpx.Client(base_url=third.url, timeout=30, trust_env=False) as client:
        assert client.get("/v0/topics/orders").json()["epoch"] == epoch, "a restore changes the epoch, a start does not"
