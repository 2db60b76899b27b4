"""A reader that asks a destination after the answer of a write to its source finds the copies, on a real socket.

`server/loop/test_forwarding.py` has the bounds, turn by turn; `test_crash_points.py` crashes in these turns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WAIT_S, ServerProcess
from tests.contract.api import Api, data, eventually, succeeded

TRIES = 100


class Client:
    """A connection of its own, with less between the answer of one request and the next one than `Api` has."""

    def __init__(self, server: ServerProcess) -> None:
        self._connection = HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        self._connection.request(method, path, json.dumps(body or {}), {"content-type": "application/json"})
        answer = self._connection.getresponse()
        found = json.loads(answer.read())
        assert answer.status < 300, found
        return found

    def write(self, topic: str, *values: Any, **fields: Any) -> Any:
        records = [{"data": value} | fields for value in values]
        return self.call("POST", f"/v0/topics/{topic}", {"records": records})

    def read(self, topic: str, from_seq: int = 0) -> list[Any]:
        return data(self.call("POST", f"/v0/topics/{topic}/diff", {"from_seq": from_seq}))

    def close(self) -> None:
        self._connection.close()


class Scene:
    """A server, a client that writes, and one that reads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._start()

    def _start(self) -> None:
        self.server = ServerProcess(self._directory, {"data_dir": self._directory / "data", "max_copies": 600})
        self.api, self.writer, self.reader = Api(self.server.url), Client(self.server), Client(self.server)

    def route(self, source: str, dest: str, name: str = "", **fields: Any) -> None:
        path = f"/v0/routers/{name or source + '-' + dest}"
        succeeded(self.api.call("PUT", path, {"source": source, "dest": dest} | fields))

    def kill_and_restart(self) -> None:
        self.server.kill()
        self.close()
        self._start()

    def close(self) -> None:
        for client in (self.api, self.writer, self.reader):
            client.close()
        self.server.stop()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("source", "dest"), [("disk", "disk"), ("disk", "fsync"), ("fsync", "disk"), ("memory", "ephemeral")]
)
def test_copies_are_there_after_the_answer(scene: Scene, source: str, dest: str) -> None:
    scene.api.put("a", durability=source)
    scene.api.put("b", durability=dest)
    scene.route("a", "b")
    scene.writer.write("a", 0)
    eventually(lambda: scene.reader.read("b"), lambda found: found == [0])
    for number in range(1, TRIES):
        scene.writer.write("a", number)
        assert scene.reader.read("b", number) == [number]


def test_copies_of_a_line_with_a_filter_and_a_cap_are_there_after_the_answer(scene: Scene) -> None:
    scene.api.put("d", cap_records=3)
    for source, dest in ("ab", "bc", "cd"):
        scene.route(source, dest, filter=["data", "Ge", 10] if dest == "c" else None)
    for number in range(TRIES):
        scene.writer.write("a", number)
        kept = range(10, number + 1)
        found = scene.reader.read("d"), scene.reader.read("b", number), scene.reader.read("c")
        assert found == (list(kept[-3:]), [number], list(kept))


def test_waiting_claim_of_a_destination_gets_the_copy(scene: Scene) -> None:
    scene.api.put("jobs", type="queue")
    scene.route("a", "jobs")
    claim = {"node": "w", "lease_ms": 60_000, "wait_ms": WAIT_S * 1000}
    with ThreadPoolExecutor(1) as pool:
        for number in range(20):
            waiting = pool.submit(scene.reader.call, "POST", "/v0/topics/jobs/claim", claim)
            scene.writer.write("a", number)
            counts = scene.writer.call("GET", "/v0/topics/jobs")
            assert counts["head_seq"] == number + 1
            assert data({"records": waiting.result(WAIT_S)["claimed"]}) == [number]


def test_router_that_is_deleted_beside_a_write_copies_all_or_nothing_of_it(scene: Scene) -> None:
    with ThreadPoolExecutor(1) as pool:
        for number in range(20):
            scene.route("a", "b")
            before = scene.reader.read("b")
            dropped = pool.submit(scene.reader.call, "DELETE", "/v0/routers/a-b")
            scene.writer.write("a", [number, 1], [number, 2])
            dropped.result(WAIT_S)
            after = scene.reader.read("b")
            assert after in (before, [*before, [number, 1], [number, 2]])
    found = scene.reader.read("b")
    scene.kill_and_restart()
    assert scene.reader.read("b") == found


def test_kill_after_the_answer_neither_loses_nor_repeats_a_copy(scene: Scene) -> None:
    scene.route("a", "b")
    scene.route("b", "c", guarantee="exactly_once")
    numbers: list[int] = []
    for _ in range(3):
        for _ in range(10):
            numbers.append(len(numbers))
            scene.writer.write("a", numbers[-1])
        assert scene.reader.read("c") == numbers
        scene.kill_and_restart()
        assert [scene.reader.read(name) for name in "abc"] == [numbers] * 3


def test_loop_of_routers_copies_each_record_once_to_each_topic(scene: Scene) -> None:
    for source, dest in ("ab", "bc", "ca"):
        scene.route(source, dest, allow_cycle=True)
    for number in range(20):
        scene.writer.write("abc"[number % 3], number)
    for name in "abc":
        found = eventually(lambda name=name: scene.reader.read(name), lambda found: len(found) >= 20)  # type: ignore[misc]
        assert sorted(found) == list(range(20))


def test_first_of_hundreds_of_copies_are_there_after_the_answer(scene: Scene) -> None:
    levels = 8
    for level in range(levels):
        for twin in "xy":
            scene.route(f"l{level}", f"l{level + 1}", f"{level}{twin}")
    body = {"source": f"l{levels}", "dest": "more"}
    assert scene.api.refused(429, "throttled", "PUT", "/v0/routers/more", body)["detail"]["limit"] == "max_copies"
    scene.writer.write("l0", 1)
    assert scene.reader.read("l1") == [1, 1], "as many as a turn makes"

    def head(level: int) -> int:
        found: int = scene.reader.call("GET", f"/v0/topics/l{level}")["head_seq"]
        return found

    eventually(lambda: head(levels), lambda found: found == 2**levels)
    assert [head(level) for level in range(levels)] == [2**level for level in range(levels)]
