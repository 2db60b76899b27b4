"""The server opens data directories that older versions wrote, and returns what those versions returned.

`directories/` has one archive per state of the format, written by `tools/format_fixture.py`. A new one is added when
the format grows; none is ever changed.
"""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ServerProcess
from topics.cli.main import main
from topics.engine.offline.directory import Directory
from topics.storage.datadir import FORMAT_VERSION
from topics.storage.fs import Fs

ARCHIVES = sorted((Path(__file__).parent / "directories").glob("*.tar.gz"))
STATES = ("stopped", "killed")
JOBS = ("ready", "in_flight", "delayed")
CASES = [(archive, state) for archive in ARCHIVES for state in STATES]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0].name.removesuffix('.tar.gz')}-{case[1]}")
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """Return a directory of an older version, and what that version answered."""
    archive, state = request.param
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "old", filter="data")
    return tmp_path / "old" / state, json.loads((tmp_path / "old" / "expected.json").read_text())[state]


def test_archives_reach_back_to_the_first_version_of_the_format() -> None:
    names = [path.name.removesuffix(".tar.gz") for path in ARCHIVES]
    assert names == [
        "1-a-first",
        "1-b-before-ledger",
        "1-c-before-consumers",
        "1-d-consumers",
        "1-e-consumers-by-topic",
        "2-a-whole-writes",
        "2-b-schedules",
    ]


def test_verify_finds_an_old_directory_clean(case: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    directory, _ = case
    before = _files(directory)
    assert main(["verify", str(directory), "--json"]) == 0, capsys.readouterr().out
    assert _files(directory) == before


def _files(directory: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file() and path.name != "LOCK"
    }


def test_backup_of_an_old_directory_is_clean(case: tuple[Path, Any], tmp_path: Path) -> None:
    directory, _ = case
    assert main(["backup", str(directory), str(tmp_path / "backup")]) == 0
    assert main(["verify", str(tmp_path / "backup")]) == 0


def test_server_returns_everything_that_the_old_version_returned(case: tuple[Path, Any], tmp_path: Path) -> None:
    directory, expected = case
    server = ServerProcess(tmp_path / "server", {"data_dir": directory})
    try:
        with httpx.Client(base_url=server.url) as http:
            _compare(http, expected, is_killed=directory.name == "killed")
            _write_on(http, expected)
        assert (directory / "FORMAT").read_text() == f"topics-data {FORMAT_VERSION}\n"
    finally:
        server.stop()


def _compare(http: httpx.Client, expected: Any, *, is_killed: bool) -> None:
    names = [row["topic"] for row in http.get("/v0/topics").raise_for_status().json()["topics"]]
    assert names == sorted(expected["topics"])
    moved = _moved(http, expected)
    for name, old in expected["topics"].items():
        state = http.get(f"/v0/topics/{name}").raise_for_status().json()
        body = {"from_seq": 0, "limit": 1000, "include_tags": True}
        page = http.post(f"/v0/topics/{name}/diff", json=body).raise_for_status().json()
        left, came = moved.get(name, 0), sum(n for other, n in moved.items() if _dead_letter(expected, other) == name)
        kept = [row for row in old["records"] if row in page["records"]]
        assert len(kept) == len(old["records"]) - left, name
        assert page["records"][: len(kept)] == kept, name
        assert len(page["records"]) <= len(kept) + came, name  # those that came may be behind a gap
        assert page["tombstone"] == old["tombstone"], name
        assert state["count"] == old["count"] - left + came, name
        if state["head_seq"] != old["head_seq"] + came:
            assert is_killed, name
            _check_skip(http, name, old["head_seq"], state["head_seq"] - came)
        assert state["config"].items() >= old["config"].items(), name
        assert old["epoch"] in (None, state["epoch"]), name
        if old["queue"] is not None:
            # The leases of an old archive may have expired: their jobs are ready, or wait for their next try.
            jobs, before = (sum(queue[part] for part in JOBS) for queue in (state["queue"], old["queue"]))
            assert jobs == before - left, name
    routers = http.get("/v0/routers").json()["routers"]
    assert [{key: row[key] for key in ("router", "source", "dest")} for row in routers] == expected["routers"]
    schedules = http.get("/v0/schedules").json()["schedules"]
    assert schedules == expected.get("schedules", [])
    consumers = http.get("/v0/consumers").json()["consumers"]
    keys = ("topic", "consumer", "seq", "meta")
    assert [{key: row[key] for key in keys} for row in consumers] == expected["consumers"]


def _dead_letter(expected: Any, name: str) -> str | None:
    found: str | None = expected["topics"][name]["config"].get("dead_letter")
    return found


def _moved(http: httpx.Client, expected: Any) -> dict[str, int]:
    """Return how many jobs of each queue are dead letters by now, because their last lease has ended since."""
    moved = {}
    for name, old in expected["topics"].items():
        dead = _dead_letter(expected, name)
        if dead is None or old["config"]["max_deliveries"] != 1:
            continue
        queue = http.get(f"/v0/topics/{name}").raise_for_status().json()["queue"]
        if ended := old["queue"]["in_flight"] - queue["in_flight"]:
            at = http.get(f"/v0/topics/{dead}").raise_for_status().json()["head_seq"]
            while http.get(f"/v0/topics/{name}").raise_for_status().json()["count"] > old["count"] - ended:
                body = {"from_seq": at, "wait_ms": 10_000}
                assert http.post(f"/v0/topics/{dead}/diff", json=body, timeout=20).raise_for_status().json()["records"]
            moved[name] = ended
    return moved


def _check_skip(http: httpx.Client, name: str, old_head: int, head: int) -> None:
    """Check that a topic has skipped seqs as after a loss of power: a killed archive comes from another boot."""
    page = http.post(f"/v0/topics/{name}/diff", json={"from_seq": old_head}).raise_for_status().json()
    gap = page["tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"]) == (old_head + 1, head, "restart"), name


def test_leases_of_an_old_directory_are_recovered(case: tuple[Path, Any]) -> None:
    directory, expected = case
    with Directory(Fs(), str(directory), now_ms=0) as found:
        for name, old in expected["topics"].items():
            if old["queue"] is not None:
                queue = found.topics[name].queue
                assert queue is not None
                assert (queue.ready, queue.in_flight) == (old["queue"]["ready"], old["queue"]["in_flight"]), name


def _write_on(http: httpx.Client, expected: Any) -> None:
    """Append to every topic: the seqs go on where the old version ended, or above what it may have given out."""
    for name in expected["topics"]:
        head = http.get(f"/v0/topics/{name}").raise_for_status().json()["head_seq"]
        written = http.post(f"/v0/topics/{name}", json={"records": [{"data": 1}]}).raise_for_status().json()
        if name != "copy":  # the router may copy first
            assert written["first_seq"] == head + 1, name


def test_directory_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVES[-1]) as file:
        file.extractall(tmp_path, filter="data")
    directory = tmp_path / "stopped"
    (directory / "FORMAT").write_text("topics-data 3\n")
    (directory / "VERSION").write_text("9.8.7\n")
    before = _files(directory)
    command = [sys.executable, "-m", "topics", "serve", "--port", "0", "--data-dir", str(directory)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0
    assert "was written by topics 9.8.7" in refused.stderr
    assert "it has format 3, and formats 1 to 2 are known; start the version that wrote it" in refused.stderr
    assert _files(directory) == before
