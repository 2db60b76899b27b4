"""A real server with routers that is killed under load: each copy is there once, with the seq it had."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.conftest import Counts
from tests.faults.test_sigkill import Writer, call, judge, read_all, running
from tests.sampling import SEED, amount

SOURCES = {"sure": "fsync", "quick": "disk"}
COPIES = 8  # of each source
RING = ["fra", "ams", "lon"]
PICKED = "w1"  # the writer whose records a filter picks


class Reader:
    """Reads all topics and remembers each record with its seq, over all starts of the server."""

    def __init__(self, topics: list[str]) -> None:
        self.seen: dict[str, dict[int, str]] = {topic: {} for topic in topics}

    def run(self, port: int, stop: threading.Event) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            while not stop.is_set():
                for topic, seen in self.seen.items():
                    body = {"from_seq": max(seen, default=0), "limit": 1000}
                    status, page = call(connection, f"/v0/topics/{topic}/diff", body)
                    if status == 200:
                        seen.update((row["$seq"], row["data"]) for row in page["records"])
                stop.wait(0.02)
        except (OSError, http.client.HTTPException):
            pass  # the server is dead
        finally:
            connection.close()


def destinations(source: str) -> list[str]:
    return [f"{source}-{number}" for number in range(COPIES)]


def chained(source: str) -> str:
    return f"{source}-0-again"


def picked(source: str) -> str:
    return f"{source}-picked"


def all_topics() -> list[str]:
    of_sources = [topic for name in SOURCES for topic in (*destinations(name), chained(name), picked(name))]
    return [*SOURCES, *of_sources, *RING]


def build(port: int) -> None:
    """Create for each source a fan-out, a chain after it and a filter, and three topics that mirror each other."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def put(path: str, **body: object) -> None:
        status, answer = call(connection, path, body, method="PUT")
        assert status in (200, 201), answer

    def route(source: str, dest: str, **fields: object) -> None:
        put(f"/v0/routers/{source}-to-{dest}", source=source, dest=dest, **fields)

    for source, durability in SOURCES.items():
        for topic in (source, *destinations(source)):
            put(f"/v0/topics/{topic}", durability=durability)
        for dest in destinations(source):
            route(source, dest)
        route(f"{source}-0", chained(source), guarantee="exactly_once")
        route(source, picked(source), filter=PICKED)
    for at, name in enumerate(RING):
        put(f"/v0/topics/{name}", durability="fsync")
        route(name, RING[(at + 1) % len(RING)], allow_cycle=True)
    connection.close()


def wait_until_forwarded(port: int) -> int:
    """Wait until no router lags. Return the number of copies made."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        connection.request("GET", "/v0/routers?page_size=1000")
        routers = json.loads(connection.getresponse().read())["routers"]
        if not any(router["lag"] for router in routers):
            connection.close()
            return sum(router["forwarded_total"] for router in routers)
        time.sleep(0.02)
    raise AssertionError("the routers do not catch up")


def judge_copies(writers: list[Writer], reader: Reader, port: int) -> None:
    found = {}
    for topic in all_topics():
        rows, gaps, head = found[topic] = read_all(port, topic)
        assert gaps == [], f"{topic}: {gaps}"
        assert sorted(rows) == list(range(1, head + 1))
        moved = {seq: (data, rows.get(seq)) for seq, data in reader.seen[topic].items() if rows.get(seq) != data}
        assert not moved, f"{topic}: changed after the kill: {dict(list(moved.items())[:3])}"
    for source in SOURCES:
        judge(writers, source, port)
        records = list(found[source][0].values())
        for dest in (*destinations(source), chained(source)):
            assert list(found[dest][0].values()) == records, f"{dest} differs from {source}"
        mine = [payload for payload in records if payload.startswith(PICKED + ":")]
        assert list(found[picked(source)][0].values()) == mine
    everything = sorted(found[RING[0]][0].values())
    assert len(everything) == len(set(everything)), "a record is stored twice"
    for name in RING:
        assert sorted(found[name][0].values()) == everything, f"{name} lacks some"
        by_payload = {payload: seq for seq, payload in found[name][0].items()}
        for writer in writers:
            for payload, seq in writer.acked.get(name, {}).items():
                assert by_payload.get(payload) == seq, f"{name}: {payload} was acknowledged as {seq}"


def check_and_kill(directory: Path, writers: list[Writer], reader: Reader, rng: Random) -> None:
    """Start a server, check its topics, read and write, and kill it at a random moment."""
    stop = threading.Event()
    with running(directory) as server:
        wait_until_forwarded(server.port)
        judge_copies(writers, reader, server.port)
        runs = [writer.run for writer in writers] + [reader.run]
        threads = [threading.Thread(target=run, args=(server.port, stop)) for run in runs]
        for thread in threads:
            thread.start()
        time.sleep(rng.uniform(0.1, 0.5))
    stop.set()
    for thread in threads:
        thread.join()


def kill_repeatedly(directory: Path, kills: int, counts: Counts) -> None:
    rng = Random(SEED)
    writers = [Writer(f"w{number}", [*SOURCES, *RING]) for number in range(3)]
    reader = Reader(all_topics())
    with running(directory) as first:
        build(first.port)
    for _ in range(kills):
        check_and_kill(directory, writers, reader, rng)
    with running(directory) as last:
        copies = wait_until_forwarded(last.port)
        judge_copies(writers, reader, last.port)
        last.stop()
    answers = sum((writer.answers for writer in writers), Counter[int]())
    seen = sum(map(len, reader.seen.values()))
    assert answers[200] > kills, "too few requests were answered"
    assert seen > kills, "too few records were read"
    counts(f"(seed {SEED})", kills=kills, acknowledged=answers[200], copies=copies, read_early=seen)


def test_kills_move_no_copy(tmp_path: Path, counts: Counts) -> None:
    kill_repeatedly(tmp_path, 4, counts)


@pytest.mark.torture
def test_many_kills_move_no_copy(tmp_path: Path, counts: Counts) -> None:
    kill_repeatedly(tmp_path, amount(15, 60), counts)
