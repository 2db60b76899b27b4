"""A disk that stalls delays only requests that need its data."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api import Api, Background, eventually
from tests.live.events import Events
from tests.live.inside import Inside
from tests.live.test_websocket import Socket
from topics.server.push import rendering
from topics.storage.fs import File
from topics.storage.segments.cold import Cold, Need
from topics.storage.segments.sealed import SealedSegment

WAIT_S = 20
RECORDS = 400
SETTINGS = {"segment_max_events": 64, "checkpoint_interval_ms": 100, "sync_interval_ms": 1}


class SlowDisk:
    """No page of a segment file is ever in the cache, and reads wait until `gate` is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.asked = threading.Event()
        pread, try_pread = File.pread, File.try_pread

        def slow(file: File, size: int, at: int) -> bytes:
            if file.path.endswith(".seg"):
                self.asked.set()
                assert self.gate.wait(WAIT_S)
            return pread(file, size, at)

        def cold(file: File, size: int, at: int) -> Any:
            return None if file.path.endswith(".seg") else try_pread(file, size, at)

        monkeypatch.setattr(File, "pread", slow)
        monkeypatch.setattr(File, "try_pread", cold)
        monkeypatch.setattr(File, "lend", lambda file, size, at: None)


class World:
    def __init__(self, inside: Inside, disk: SlowDisk) -> None:
        self.inside = inside
        self.disk = disk
        self.api = Api(inside.url)
        self.slow = Api(inside.url)  # for requests that wait

    def close(self) -> None:
        self.disk.gate.set()
        self.slow.close()
        self.api.close()
        self.inside.stop()

    def drop_columns(self) -> None:
        """Drop cached columns, as other topics would, and the cached age of the first record."""
        topic, storage = self.inside.app.services.engine.topic("t"), self.inside.app.services.storage
        topic.front_ts = 0
        for segment in topic.segments:
            if isinstance(segment, SealedSegment):
                storage.store.caches.drop(segment)

    def while_it_waits(self, call: Callable[[], Any]) -> Any:
        """Return the result of `call`, which needs the disk. Other requests are answered before."""
        self.disk.asked.clear()
        started = Background(call)
        assert self.disk.asked.wait(WAIT_S)
        for number in range(5):
            assert self.api.call("GET", "/v0/health").is_success
            self.api.write("other", number)
            self.api.diff("other", from_seq=0)
        assert not started.done
        self.disk.gate.set()
        return started.result()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A server that was restarted on existing files, so that their data is not in its memory."""
    settings = SETTINGS | {"data_dir": tmp_path / "data"}
    first = Inside(**settings)
    api = Api(first.url)
    try:
        api.put("jobs", type="queue")
        for begin in range(0, RECORDS, 50):
            api.append("t", [{"data": n, "tag": f"c{n % 10}"} for n in range(begin, begin + 50)])
            api.append("jobs", [{"data": n} for n in range(begin, begin + 50)])
        eventually(lambda: len(list((tmp_path / "data" / "segments").rglob("*.seg"))), lambda files: files >= 6)
    finally:
        api.close()
        first.stop()
    inside = Inside(**settings)
    world = World(inside, SlowDisk(monkeypatch))
    yield world
    world.close()


def seqs(rows: list[Any]) -> list[int]:
    return [row["$seq"] for row in rows]


def test_cold_diff_delays_no_other_request(world: World):
    page = world.while_it_waits(lambda: world.slow.diff("t", limit=1000))
    assert seqs(page["records"]) == list(range(1, RECORDS + 1))


def test_cold_scan_delays_no_other_request(world: World):
    body = {"filter": ["tag", "Eq", "c3"]}
    answer = world.while_it_waits(lambda: world.slow.http.post("/v0/topics/t/scan", json=body))
    assert len(answer.text.splitlines()) == RECORDS // 10 + 1


def test_cold_delete_by_tag_delays_no_other_request(world: World):
    gone = world.while_it_waits(lambda: world.slow.delete("t", match=["tag", "Eq", "c3"]))
    assert gone["deleted"] == RECORDS // 10


@pytest.mark.parametrize("wait_ms", [0, 5_000])
def test_cold_claim_delays_no_other_request(world: World, wait_ms: int):
    wanted = {"node": "w", "max": 300, "wait_ms": wait_ms}
    claimed = world.while_it_waits(lambda: world.slow.call("POST", "/v0/topics/jobs/claim", wanted)).json()
    assert seqs(claimed["claimed"]) == list(range(1, 301))


def test_work_stream_gets_jobs_when_the_disk_answers(world: World):
    def work() -> list[int]:
        with Events(world.inside.url, "/v0/topics/jobs/work?node=w&max=100") as events:
            return [frame.data["$seq"] for frame in events.expect(*["job"] * 100)]

    assert world.while_it_waits(work) == list(range(1, 101))


@pytest.mark.parametrize("shared", [False, True])
def test_watcher_catches_up_when_the_disk_answers(world: World, monkeypatch: pytest.MonkeyPatch, shared: bool):
    """A view with a node shares the frames of views without one, which may be on the disk."""
    monkeypatch.setattr(rendering, "MAX_SHARED_SEQS", RECORDS if shared else 0)
    body = {"topics": {"t": {"from_seq": 0}}, "node": "n"}
    session = world.api.call("POST", "/v0/watch", body).json()

    def watch() -> list[int]:
        with Events(world.inside.url, session["stream_url"]) as events:
            return [seq for frame in events.until("caught-up")[:-1] for seq in frame.seqs]

    assert world.while_it_waits(watch) == list(range(1, RECORDS + 1))


def test_router_forwards_when_the_disk_answers(world: World):
    def route() -> int:
        wanted = {"source": "t", "dest": "copy", "from_seq": 0}
        assert world.slow.call("PUT", "/v0/routers/r", wanted).is_success
        count: int = eventually(lambda: world.slow.state("copy")["count"], lambda count: count == RECORDS)
        return count

    world.while_it_waits(route)


def test_cold_job_list_delays_no_other_request(world: World):
    jobs = world.while_it_waits(lambda: world.slow.get("/v0/topics/jobs/jobs", limit=100))
    assert seqs(jobs["jobs"]) == list(range(1, 101))


def test_nothing_is_read_for_a_client_that_left(world: World):
    """Its request waits behind others for the disk, and is cancelled when the client disconnects."""
    world.disk.asked.clear()
    stuck = [Background(lambda: world.slow.diff("t", limit=1000)) for _ in range(8)]
    assert world.disk.asked.wait(WAIT_S)
    loads = world.inside.app.services.runtime
    eventually(lambda: len(loads._running), lambda running: running == 8)
    leaver = socket.create_connection(("127.0.0.1", world.inside.port))
    body = b'{"from_seq":0,"limit":1000}'
    fields = [b"host: 127.0.0.1", b"content-type: application/json", b"content-length: %d" % len(body)]
    leaver.sendall(b"\r\n".join([b"POST /v0/topics/t/diff HTTP/1.1", *fields, b"", body]))
    eventually(lambda: len(loads._waiting), lambda waiting: waiting == 1)
    leaver.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    leaver.close()
    eventually(lambda: [loading.work for loading in loads._waiting], lambda work: work == [None])
    world.disk.gate.set()
    for request in stuck:
        assert len(request.result()["records"]) == RECORDS


def test_commands_after_a_cold_command_wait_for_it(world: World):
    """A subscription to a topic with expired records needs the disk; later commands wait for it."""
    world.disk.gate.set()
    world.api.put("t", ttl_ms=3_600_000)
    world.inside.call(world.drop_columns)
    world.disk.gate.clear()
    world.disk.asked.clear()
    ws = Socket(world.inside.url)
    ws.send("subscribe", topic="t", from_seq=RECORDS, request_id=1)
    ws.send("ping", request_id=2)
    assert world.disk.asked.wait(WAIT_S)
    world.disk.gate.set()
    answered: list[int] = []
    while len(answered) < 2:
        frame = ws.next()
        answered += [frame["request_id"]] if "request_id" in frame else []
    ws.close()
    assert answered == [1, 2]


@pytest.mark.parametrize("ends", ["woken", "timed out"])
def test_long_poll_that_needs_the_disk_is_answered(world: World, ends: str):
    """The records that woke it may be only on the disk by then."""
    app, trips = world.inside.app, []
    real = app.services.engine.read

    def read(name: str, query: Any) -> Any:
        if name == "poll" and trips and trips[-1] != "loaded":
            raise Cold([Need("x", 1, load=lambda: trips.append("loaded"), trim=lambda: None)])
        return real(name, query)

    world.api.write("poll", 1)
    world.inside.call(lambda: setattr(app.services.engine, "read", read))
    wait_ms = 30_000 if ends == "woken" else 300
    waiting = Background(lambda: world.slow.diff("poll", from_seq=1, wait_ms=wait_ms))
    eventually(lambda: len(app.services.runtime.open_ended), lambda polls: polls == 1)
    trips.append("woken")
    if ends == "woken":
        world.api.write("poll", 2)
    page = waiting.result()
    assert (trips, seqs(page["records"])) == (["woken", "loaded"], [2] if ends == "woken" else [])
