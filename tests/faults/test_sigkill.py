"""A real server that is killed repeatedly under load: all acknowledged records are there once and in order."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.conftest import Counts, ServerProcess
from tests.sampling import SEED, amount

TOPICS = {"sure": "fsync", "quick": "disk", "light": "memory"}
WRITERS = 4
Tally = Counter[str]
SETTINGS = {
    # Small, so that within half a second the log rotates, segments are sealed, and checkpoints come and go.
    "wal_file_bytes": 1 << 20,
    "checkpoint_wal_bytes": 1 << 20,
    "checkpoint_interval_ms": 150,
    "segment_max_events": 256,
}


@dataclass
class Writer:
    """A client that numbers its records and sends a request only after the answer to the one before."""

    name: str
    topics: list[str]
    acked: dict[str, dict[str, int]] = field(default_factory=dict)  # topic → payload → seq
    open: dict[str, set[str]] = field(default_factory=dict)  # sent without an answer
    answers: Counter[int] = field(default_factory=Counter)
    _number: int = 0

    def run(self, port: int, stop: threading.Event) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        rng = Random(f"{SEED} {self.name} {self._number}")
        try:
            while not stop.is_set():
                self._write(connection, rng.choice(self.topics), rng.choice([1, 1, 3, 20]))
        except (OSError, http.client.HTTPException):
            pass  # the server is dead
        finally:
            connection.close()

    def _write(self, connection: http.client.HTTPConnection, topic: str, n: int) -> None:
        payloads = [f"{self.name}:{self._number + at:06d}" for at in range(n)]
        self._number += n
        unknown = self.open.setdefault(topic, set())
        unknown.update(payloads)
        body = {"records": [{"data": payload, "tag": self.name} for payload in payloads]}
        status, answer = call(connection, f"/v0/topics/{topic}", body)
        self.answers[status] += 1
        if status == 200:
            unknown.difference_update(payloads)
            first = answer["first_seq"]
            self.acked.setdefault(topic, {}).update((payload, first + at) for at, payload in enumerate(payloads))
        elif status == 503:
            unknown.difference_update(payloads)  # not ready yet: a refusal


def call(
    connection: http.client.HTTPConnection, path: str, body: dict[str, Any], method: str = "POST"
) -> tuple[int, Any]:
    connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def read_all(port: int, topic: str) -> tuple[dict[int, str], list[dict[str, Any]], int]:
    """Every record by seq, every tombstone, and the head, by following the cursor."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    found: dict[int, str] = {}
    gaps = []
    at = 0
    while True:
        status, page = call(connection, f"/v0/topics/{topic}/diff", {"from_seq": at, "limit": 1000})
        assert status == 200, page
        if page.get("tombstone"):
            gaps.append(page["tombstone"])
        for row in page["records"]:
            assert row["$seq"] > max(found, default=0), "out of order"
            found[row["$seq"]] = row["data"]
        assert page["next_from_seq"] > at or page["caught_up"], f"{topic}: no progress at {at}"
        at = page["next_from_seq"]
        if at >= page["head_seq"]:
            connection.close()
            return found, gaps, page["head_seq"]


def wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/v0/ready")
        status = connection.getresponse().status
        connection.close()
        if status == 200:
            return
        time.sleep(0.01)
    raise AssertionError("the server does not become ready")


@contextmanager
def running(directory: Path) -> Iterator[ServerProcess]:
    """Run a server and kill it at the end."""
    server = ServerProcess(directory, {"data_dir": directory / "data", **SETTINGS})
    try:
        yield server
    finally:
        server.kill()


def make_topics(port: int) -> None:
    wait_until_ready(port)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for topic, durability in TOPICS.items():
        status, answer = call(connection, f"/v0/topics/{topic}", {"durability": durability}, method="PUT")
        assert status in (200, 201), answer
    connection.close()


def write_and_kill(directory: Path, writers: list[Writer], rng: Random) -> int:
    """Start a server, write, and kill it at a random moment. Return the number of answered requests."""
    before = sum(writer.answers[200] for writer in writers)
    stop = threading.Event()
    with running(directory) as server:
        threads = [threading.Thread(target=writer.run, args=(server.port, stop)) for writer in writers]
        for thread in threads:
            thread.start()
        time.sleep(rng.uniform(0.0, 0.35))
    stop.set()
    for thread in threads:
        thread.join()
    return sum(writer.answers[200] for writer in writers) - before


def judge(writers: list[Writer], topic: str, port: int) -> int:
    found, gaps, head = read_all(port, topic)
    assert gaps == [], f"{topic}: a gap is reported though nothing was lost: {gaps}"
    assert sorted(found) == list(range(1, head + 1)), "every seq has its record"
    by_payload = {payload: seq for seq, payload in found.items()}
    assert len(by_payload) == len(found), "a record is stored twice"
    for writer in writers:
        for payload, seq in writer.acked.get(topic, {}).items():
            assert by_payload.get(payload) == seq, f"{topic}: {payload} was acknowledged as {seq}"
        mine = [payload for payload in found.values() if payload.startswith(writer.name + ":")]
        assert mine == sorted(mine), "a writer's records are out of order"
        unsent = set(mine) - set(writer.acked.get(topic, {})) - writer.open.get(topic, set())
        assert not unsent, f"{topic}: refused or never sent: {sorted(unsent)[:3]}"
    return len(found)


def kill_repeatedly(directory: Path, kills: int, seed: int) -> Tally:
    rng = Random(seed)
    writers = [Writer(f"w{number}", list(TOPICS)) for number in range(WRITERS)]
    with running(directory) as first:
        make_topics(first.port)
    answered = sum(write_and_kill(directory, writers, rng) for _ in range(kills))
    with running(directory) as last:
        wait_until_ready(last.port)
        kept = {topic: judge(writers, topic, last.port) for topic in TOPICS}
        last.stop()
    statuses = sum((writer.answers for writer in writers), Counter[int]())
    assert set(statuses) <= {200, 503}, statuses
    assert answered > kills, "too few requests were answered"
    return Counter(kills=kills, acknowledged=answered, **kept)


def kill(directory: Path, kills: int, counts: Counts, *, seed: int = SEED) -> None:
    """Kill two servers side by side: one usually writes while the other starts."""
    tracks = 2
    with ThreadPoolExecutor(tracks) as pool:
        tallies = pool.map(
            lambda track: kill_repeatedly(directory / str(track), kills // tracks, seed + track), range(tracks)
        )
        tally = sum(tallies, Counter[str]())
    counts(f"(seed {seed})", **tally)


def test_kills_lose_no_acknowledged_record(tmp_path: Path, counts: Counts) -> None:
    kill(tmp_path, 10, counts)


@pytest.mark.torture
@pytest.mark.parametrize("part", range(amount(1, 10)))
def test_many_kills_lose_no_acknowledged_record(tmp_path: Path, counts: Counts, part: int) -> None:
    """Play few kills in the sample: `make kills` plays a thousand, with all features at once."""
    kill(tmp_path, amount(40, 100), counts, seed=SEED + 100 * (part + 1))
