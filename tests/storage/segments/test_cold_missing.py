"""Cold segments that cannot be read: a missing file is a loss, a folder that is not mounted is an error for a while."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import SMALL_PARTS, ServerProcess, StartServer
from tests.contract.api import eventually
from tests.storage.segments.test_cold_tier import RECORDS, segments, wait_until, write


class ColdServer:
    """A server that was stopped with most segments of its topics in a cold folder."""

    def __init__(self, start: StartServer, tmp_path: Path) -> None:
        self.data, self.cold, self.away = tmp_path / "data", tmp_path / "cold", tmp_path / "away"
        rarely = {"checkpoint_interval_ms": 3_600_000}
        self._settings = SMALL_PARTS | {"data_dir": self.data, "cold_dir": self.cold, "hot_retain_segments": 1}
        self._start = start
        server = start(**self._settings)
        with self.client(server) as http:
            for name, config in (("t", {}), ("ttl", {"ttl_ms": 3_600_000}), ("capped", {"cap_records": RECORDS})):
                http.put(f"/v0/topics/{name}", json=config).raise_for_status()
                write(http, name, RECORDS)
            http.put("/v0/topics/t/consumers/c", json={}).raise_for_status()
            http.post("/v0/topics/t/delete", json={"match": ["tag", "Eq", "t3"]}).raise_for_status()
            wait_until(http, lambda: len({path.parent for path in segments(self.cold)}) >= 3)
            wait_until(http, lambda: all(len(self.segments(at)) >= 5 for at in (1, 2, 3)))
        server.stop()
        self._settings |= rarely

    @staticmethod
    def client(server: ServerProcess) -> httpx.Client:
        return httpx.Client(base_url=server.url, timeout=30, trust_env=False)

    def segments(self, topic_id: int) -> list[Path]:
        return segments(self.cold / str(topic_id))

    def start(self) -> ServerProcess:
        return self._start(**self._settings)

    def unmount(self) -> None:
        """Leave an empty folder, as an unmounted disk does."""
        self.cold.rename(self.away)
        self.cold.mkdir()

    def mount(self) -> None:
        self.cold.rmdir()
        self.away.rename(self.cold)

    def verify(self) -> Any:
        command = [sys.executable, "-m", "topics", "verify", self.data, "--cold-dir", self.cold, "--json"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def cold(start_server: StartServer, tmp_path: Path) -> ColdServer:
    return ColdServer(start_server, tmp_path)


def diff(http: httpx.Client, topic: str, **query: object) -> httpx.Response:
    return http.post(f"/v0/topics/{topic}/diff", json={"from_seq": 0, "limit": 1000} | query)


def test_missing_cold_segment_is_reported_as_a_gap(cold: ColdServer) -> None:
    lost = cold.segments(1)[2]
    first = int(lost.stem)
    last = int(cold.segments(1)[3].stem) - 1
    lost.unlink()
    found = cold.verify()
    assert found.returncode == 1, found
    [finding] = json.loads(found.stdout)["damage"]
    assert (finding["file"], finding["first_seq"], finding["last_seq"]) == (str(lost), first, last)
    assert "a server started on it serves the rest" in finding["next"]

    server = cold.start()
    with cold.client(server) as http:
        assert http.get("/v0/metrics").status_code == 200
        answer = diff(http, "t", from_seq=first - 1).raise_for_status().json()
        assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (first, last)
        assert answer["tombstone"]["reason"] == "corrupt"
        assert http.get("/v0/topics/t").json()["earliest_seq"] == 1
        assert http.get("/v0/topics/t/consumers/c").status_code == 200
        assert http.post("/v0/topics/t/scan", json={}).status_code == 200
        assert http.post("/v0/topics/t/delete", json={"match": ["tag", "Eq", "t1"]}).status_code == 200
        assert http.get("/v0/metrics").status_code == 200
    server.kill()  # `stop` would fail: the log reports the damage


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v0/topics/t/scan", {}),
        ("POST", "/v0/topics/t/delete", {"match": ["tag", "Eq", "t1"]}),
        ("POST", "/v0/topics/t/delete", {"match": ["tag", "Eq", "t1"], "dry_run": True}),
        ("GET", "/v0/topics/t/consumers/c", None),
        ("GET", "/v0/topics/t", None),
        ("POST", "/v0/routers/new/preview", {"source": "t", "filter": ["tag", "Eq", "t1"]}),
    ],
)
def test_first_request_to_meet_a_missing_cold_segment_is_answered(
    cold: ColdServer, method: str, path: str, body: Any
) -> None:
    cold.segments(1)[0].unlink()
    server = cold.start()
    with cold.client(server) as http:
        answer = http.request(method, path, json=body)
        assert answer.status_code == 200, answer.text
    server.kill()


def test_router_passes_over_a_missing_cold_segment(cold: ColdServer) -> None:
    lost = cold.segments(1)[2]
    lost.unlink()
    server = cold.start()
    with cold.client(server) as http:
        http.put("/v0/routers/r", json={"source": "t", "dest": "copy", "from_seq": 0}).raise_for_status()
        eventually(lambda: http.get("/v0/routers/r").json()["lag"], lambda lag: lag == 0)
        assert http.get("/v0/routers/r").json()["last_error"] is None
        assert http.get("/v0/topics/copy").json()["count"] > 100
    server.kill()


def test_unmounted_cold_folder_is_a_retryable_error_that_names_it(cold: ColdServer) -> None:
    server = cold.start()
    cold.unmount()
    with cold.client(server) as http:
        scraped = http.get("/v0/metrics")
        assert scraped.status_code == 200
        for topic in ("t", "capped"):
            answer = diff(http, topic)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable"), answer.text
            assert str(cold.cold) in answer.json()["error"]["detail"]["file"]
            assert int(answer.headers["retry-after"]) >= 1
            assert http.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}]}).status_code == 200
        scan = http.post("/v0/topics/t/scan", json={})
        assert "storage_unavailable" in scan.text
        http.put("/v0/routers/r", json={"source": "t", "dest": "copy", "from_seq": 0}).raise_for_status()
        error = eventually(lambda: http.get("/v0/routers/r").json()["last_error"], bool)
        assert error.startswith("storage_unavailable: ")
        assert str(cold.cold) in error
        assert http.get("/v0/metrics").status_code == 200

        cold.mount()
        assert http.post("/v0/topics/capped", json={"records": [{"data": 2}]}).status_code == 200
        assert len(diff(http, "capped").json()["records"]) == RECORDS, "evictions were put off until now"
        assert diff(http, "t").json()["tombstone"] is None
        eventually(lambda: http.get("/v0/routers/r").json()["lag"], lambda lag: lag == 0)
        assert http.get("/v0/routers/r").json()["last_error"] is None
    server.kill()


def test_verify_asks_for_a_cold_folder_that_is_not_mounted(cold: ColdServer) -> None:
    cold.unmount()
    found = cold.verify()
    assert found.returncode == 2, found
    assert f"{cold.cold}" in found.stderr
    assert "is its disk mounted?" in found.stderr
    cold.mount()
    assert cold.verify().returncode == 0
