"""A real server whose segment files are dropped from the page cache repeatedly: every kind of read is answered."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WAIT_S, ServerProcess
from tests.contract.api import Api, eventually
from tests.faults.evicting import Evicting, can_evict, evict
from tests.live.events import Events
from topics.client import Client
from topics.client.request import End
from topics.storage.segments.record_run import Run

RECORDS = 6_000
TAGS = 60
TEXT = "x" * 1_900  # so large that the tags of a slice lie in many different chunks
SETTINGS = {"segment_max_events": 1_000, "checkpoint_interval_ms": 100, "sync_interval_ms": 1}


class World:
    """A server started on a full data directory: no record is in its memory."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self._directory = directory
        self._fill()
        self.server = self._start()
        self.api = Api(self.server.url)

    def _start(self) -> ServerProcess:
        return ServerProcess(self._directory, SETTINGS | {"data_dir": self.data})

    def _fill(self) -> None:
        server = self._start()
        api = Api(server.url)
        for name in ("t", "doomed"):
            _write(api, name, [{"data": TEXT, "tag": f"c{n % TAGS}"} for n in range(RECORDS)])
        _write(api, "holes", [{"data": TEXT, "tag": "keep" if n % 100 == 0 else "drop"} for n in range(RECORDS)])
        api.delete("holes", match="drop")
        api.put("jobs", type="queue")
        _write(api, "jobs", [{"data": TEXT, "priority": n % 4} for n in range(2_000)])
        api.put("fatal", type="queue", max_deliveries=1, dead_letter="dead")
        _write(api, "fatal", [{"data": TEXT} for _ in range(600)])
        while claimed := api.call("POST", "/v0/topics/fatal/claim", {"node": "w", "max": 200}).json()["claimed"]:
            seqs = [job["$seq"] for job in claimed]
            api.call("POST", "/v0/topics/fatal/nack", {"node": "w", "seqs": seqs})
        eventually(lambda: api.state("dead")["count"], lambda count: count == 600)
        api.close()
        server.stop()

    def close(self) -> None:
        self.api.close()
        self.server.stop()  # which checks that it had nothing to complain about


def _write(api: Api, name: str, records: list[Any]) -> None:
    for first in range(0, len(records), 1_000):
        api.append(name, records[first : first + 1_000])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("cold")
    if not can_evict(directory):
        pytest.skip(
            "this file system keeps its pages: tests/engine/test_cold_reads.py has the same on a simulated disk"
        )
    world = World(directory)
    yield world
    world.close()


@pytest.fixture
def cold(world: World) -> Iterator[World]:
    with Evicting(world.data) as evicting:
        yield world
    assert evicting.rounds


def tagged(tag: int) -> list[int]:
    return [n + 1 for n in range(RECORDS) if n % TAGS == tag]


def test_diff_reads_everywhere(cold: World):
    def read(seed: int) -> None:
        api, rng = Api(cold.server.url), random.Random(seed)
        for _ in range(15):
            at, limit = rng.randrange(RECORDS - 400), rng.randrange(1, 400)
            page = api.diff("t", from_seq=at, limit=limit, max_batch_bytes=8 << 20)
            assert [row["$seq"] for row in page["records"]] == list(range(at + 1, at + limit + 1))
        api.close()

    with ThreadPoolExecutor(12) as readers:  # more than are loaded for at once
        list(readers.map(read, range(12)))


def test_filtered_diff_finds_all_records(cold: World):
    records = cold.api.read_all("t", filter=["tag", "Eq", "c36"], limit=1000)
    assert [row["$seq"] for row in records] == tagged(36)


@pytest.mark.parametrize("accept", ["application/x-ndjson", "application/vnd.apache.arrow.stream"])
def test_filtered_scan_completes(cold: World, accept: str):
    body = {"filter": ["tag", "Eq", "c36"]}
    answer = cold.api.http.post("/v0/topics/t/scan", json=body, headers={"accept": accept})
    if accept.endswith("ndjson"):
        *rows, end = map(json.loads, answer.text.splitlines())
        assert [row["$seq"] for row in rows] == tagged(36)
        assert end["end"]["next_from_seq"] == RECORDS
    else:
        arrow = pytest.importorskip("pyarrow")
        table = arrow.ipc.open_stream(answer.content).read_all()
        assert table.column("seq").to_pylist() == tagged(36)


def test_scan_after_deletes_completes(cold: World):
    *rows, end = map(json.loads, cold.api.http.post("/v0/topics/holes/scan", json={}).text.splitlines())
    assert [row["$seq"] for row in rows] == [n + 1 for n in range(0, RECORDS, 100)]
    assert end["end"]["next_from_seq"] == RECORDS


def test_bulk_read_of_the_client_returns_all_records(cold: World):
    with Client(cold.server.url) as client:
        *found, end = client.scan("t")
    runs = [run for run in found if isinstance(run, Run)]
    assert sum(run.present for run in runs) == RECORDS
    assert isinstance(end, End)


@pytest.mark.parametrize("options", [{}, {"filter": ["tag", "Glob", "c1*"]}])
def test_watch_over_sse_catches_up(cold: World, options: dict[str, Any]):
    expected = [n + 1 for n in range(RECORDS) if not options or f"c{n % TAGS}".startswith("c1")]
    wanted = {"topics": {"t": {"from_seq": 0} | options}, "limit": 500}
    session = cold.api.call("POST", "/v0/watch", wanted).json()
    with Events(cold.server.url, session["stream_url"]) as events:
        frames = events.until("caught-up")
    assert [seq for frame in frames[:-1] for seq in frame.seqs] == expected


def test_watch_over_websocket_catches_up(cold: World):
    from tests.live.test_websocket import Socket

    socket = Socket(cold.server.url)
    socket.send("subscribe", topic="t", from_seq=0, limit=500)
    found: list[int] = []
    while (frame := socket.next())["op"] != "caught_up":
        found += [row["$seq"] for row in frame.get("records", ())]
    socket.close()
    assert found == list(range(1, RECORDS + 1))


def test_workers_get_each_job_once(cold: World):
    handed: list[int] = []
    while claimed := cold.api.call("POST", "/v0/topics/jobs/claim", {"node": "w", "max": 300}).json()["claimed"]:
        seqs = [job["$seq"] for job in claimed]
        acked = cold.api.call("POST", "/v0/topics/jobs/ack", {"node": "w", "seqs": seqs}).json()
        assert (acked["acked"], acked["skipped"]) == (len(seqs), [])
        handed += seqs
    assert sorted(handed) == list(range(1, 2_001))


@pytest.mark.parametrize("fields", [{}, {"filter": ["tag", "Eq", "c7"]}, {"guarantee": "exactly_once"}])
def test_router_forwards_from_the_beginning(cold: World, fields: dict[str, Any]):
    name = f"copy{len(fields)}{'once' if 'guarantee' in fields else ''}"
    wanted = {"source": "t", "dest": name, "from_seq": 0} | fields
    assert cold.api.call("PUT", f"/v0/routers/{name}", wanted).is_success
    eventually(lambda: cold.api.get(f"/v0/routers/{name}")["lag"], lambda lag: lag == 0, within_s=120)
    assert cold.api.state(name)["count"] == (len(tagged(7)) if "filter" in fields else RECORDS)


def test_delete_by_tag_deletes_exactly_its_records(cold: World):
    would = cold.api.delete("doomed", match=["tag", "Eq", "c5"], dry_run=True)
    assert would["deleted"] == len(tagged(5))
    assert cold.api.delete("doomed", match=["tag", "Eq", "c5"])["deleted"] == len(tagged(5))
    assert cold.api.delete("doomed", match=["tag", "Eq", "c5"])["deleted"] == 0
    assert cold.api.delete("doomed", before_seq=1_501)["deleted"] == 1_500 - len(
        [seq for seq in tagged(5) if seq < 1_501]
    )


def test_redrive_moves_all_dead_letters_back(cold: World):
    named = cold.api.call("POST", "/v0/topics/fatal/redrive", {"seqs": [5, 300, 599]}).json()
    assert named["seqs"] == [5, 300, 599]
    moved, at = 3, 0
    while True:
        part = cold.api.call("POST", "/v0/topics/fatal/redrive", {"from_seq": at, "limit": 500}).json()
        moved, at = moved + part["redriven"], part["next_from_seq"]
        if part["caught_up"]:
            break
    assert (moved, cold.api.state("dead")["count"]) == (600, 0)


def test_verify_of_an_evicted_directory_is_clean(world: World, tmp_path: Path):
    backup = tmp_path / "backup"
    command = [sys.executable, "-m", "topics"]
    world.server.stop()
    try:
        with Evicting(world.data):
            done = subprocess.run([*command, "verify", world.data], capture_output=True, text=True, timeout=WAIT_S * 6)
            assert "clean" in done.stdout, done.stdout + done.stderr
            done = subprocess.run([*command, "backup", world.data, backup], capture_output=True, timeout=WAIT_S * 6)
            assert done.returncode == 0
    finally:
        evict(world.data)
        world.server = world._start()
        world.api.close()
        world.api = Api(world.server.url)
