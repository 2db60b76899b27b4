"""Data directories for tests of the operator commands: written by real servers, then copied and damaged."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests import forks
from tests.conftest import WAIT_S, ServerProcess

SMALL = {
    "segment_max_events": 40,
    "wal_file_bytes": "64k",
    "checkpoint_wal_bytes": "256k",
    "checkpoint_interval_ms": 100,
    "sync_interval_ms": 20,
}


def client(server: ServerProcess) -> httpx.Client:
    return httpx.Client(base_url=server.url, trust_env=False, timeout=WAIT_S)


@contextmanager
def serving(directory: Path, data: Path, *, then: str = "stop", **settings: object) -> Iterator[ServerProcess]:
    """Run a server on `data`. Stop and check it at the end, or kill it; a failure also kills it."""
    server = ServerProcess(directory, SMALL | {"data_dir": data} | settings)
    try:
        yield server
        server.stop() if then == "stop" else server.kill()
    finally:
        if server.process.poll() is None:
            server.kill()


def append(http: httpx.Client, topic: str, count: int, *, tag: str | None = None, first: int = 0) -> list[int]:
    records = [
        {"data": {"n": first + n, "pad": "é" * 30}, "tag": tag or f"t{n % 5}", "node": "a"} for n in range(count)
    ]
    answer = http.post(f"/v0/topics/{topic}", json={"records": records})
    assert answer.is_success, answer.text
    seqs: list[int] = answer.json()["seqs"]
    return seqs


def everything(server: ServerProcess) -> dict[str, list[dict[str, Any]]]:
    """Return every record of every topic, as readers get it."""
    with client(server) as http:
        names = [topic["topic"] for topic in http.get("/v0/topics").json()["topics"]]
        return {name: records(http, name) for name in names}


def records(http: httpx.Client, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    at = 0
    while True:
        page = http.post(
            f"/v0/topics/{topic}/diff", json={"from_seq": at, "include_tags": True, "limit": 1000, "batch_bytes": 10**7}
        ).json()
        found += page["records"]
        at = page["next_from_seq"]
        if page["caught_up"]:
            return found


def fill(http: httpx.Client) -> None:
    """Create topics with sealed segments, a tail, evicted records, and deletes in the middle and at the front."""
    http.put("/v0/topics/safe", json={"durability": "fsync"})
    http.put("/v0/topics/capped", json={"cap_records": 30})
    http.put("/v0/topics/gone", json={})
    http.put("/v0/topics/brief", json={"durability": "ephemeral"})
    for topic in ("log", "safe", "capped", "gone", "brief"):
        for turn in range(10):
            append(http, topic, 17, first=17 * turn)
    http.post("/v0/topics/log/delete", json={"match": ["tag", "Eq", "t2"]})
    http.post("/v0/topics/safe/delete", json={"before_seq": 60})
    http.delete("/v0/topics/gone")


class World:
    """Three states of one server: stopped, stopped again later, and killed with a log to replay."""

    def __init__(self, root: Path) -> None:
        self.root = root
        data = root / "data"
        with serving(root / "one", data) as server, client(server) as http:
            fill(http)
            self.early_records = everything(server)
        self.early = self._keep(data, "early")
        with serving(root / "two", data) as server, client(server) as http:
            for turn in range(6):
                append(http, "log", 20, first=1000 + 20 * turn)
                append(http, "safe", 20, first=1000 + 20 * turn)
            http.post("/v0/topics/log/delete", json={"match": ["tag", "Eq", "t4"]})
            self.late_records = everything(server)
        self.late = self._keep(data, "late")
        slow = {"checkpoint_interval_ms": 60_000}
        with serving(root / "three", data, then="kill", **slow) as server, client(server) as http:
            for turn in range(5):
                append(http, "log", 9, first=2000 + 9 * turn)
            http.post("/v0/topics/safe/delete", json={"match": ["tag", "Eq", "t1"]})
            self.killed_records = everything(server)
        self.killed = self._keep(data, "killed")

    def _keep(self, data: Path, name: str) -> Path:
        kept = self.root / name
        shutil.copytree(data, kept)
        return kept


def topics(*args: object) -> subprocess.CompletedProcess[str]:
    command = ["topics", *map(str, args)]
    status, out, err = forks.run(command, {**os.environ}, b"", 60)
    return subprocess.CompletedProcess(command, status, out.decode(), err.decode())


def started_on(directory: Path, data: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the records of a server that starts on `data`."""
    server = ServerProcess(directory, SMALL | {"data_dir": data})
    try:
        return everything(server)
    finally:
        server.process.terminate()
        server.process.wait(WAIT_S)


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and the modification time of every file."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
