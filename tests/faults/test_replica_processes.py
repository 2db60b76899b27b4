"""Real servers with a replica in a directory or an S3 API: killed, their data directory deleted, continued, fenced."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.conftest import ServerProcess
from topics.storage.replica.bucket import open_bucket
from topics.storage.replica.history import History

START = {"segment_max_events": 16, "checkpoint_interval_ms": 300, "replica_interval_ms": 200}


def call(server: ServerProcess, method: str, path: str, body: object = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, f"/v0/{path}", text, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


def append(server: ServerProcess, topic: str, *data: object, **other: object) -> int:
    status, answer = call(server, "POST", f"topics/{topic}", {"records": [{"data": one} for one in data], **other})
    assert status in (200, 201), answer
    first: int = answer["first_seq"] if "first_seq" in answer else answer["seqs"][0]
    return first


def read(server: ServerProcess, topic: str) -> tuple[dict[int, Any], list[tuple[int, int, str]]]:
    """Return all records by seq, and all tombstones."""
    records: dict[int, Any] = {}
    gaps = []
    at = 0
    while True:
        status, answer = call(server, "POST", f"topics/{topic}/diff", {"from_seq": at, "limit": 1000})
        assert status == 200, answer
        if (lost := answer.get("tombstone")) is not None:
            gaps.append((lost["gap_from"], lost["gap_to"], lost["reason"]))
        records |= {record["$seq"]: record["data"] for record in answer["records"]}
        if answer["next_from_seq"] <= at or answer["next_from_seq"] >= answer["head_seq"]:
            return records, gaps
        at = answer["next_from_seq"]


def topics(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["topics", *map(str, words)]
    status, out, err = forks.run(command, os.environ | variables, b"", 60)
    return subprocess.CompletedProcess(command, status, out.decode(), err.decode())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    servers: list[ServerProcess] = []
    yield servers
    for server in servers:
        if server.process.poll() is None:
            server.kill()


def begin(running: list[ServerProcess], tmp_path: Path, name: str = "a", **settings: object) -> ServerProcess:
    known = {"data_dir": tmp_path / name, "replica": f"file://{tmp_path}/replica", **START, **settings}
    server = ServerProcess(tmp_path / f"{name}-server", known)
    running.append(server)
    return server


def test_killed_server_without_its_directory_goes_on(running: list[ServerProcess], tmp_path: Path):
    server = begin(running, tmp_path)
    call(server, "PUT", "topics/sure", {"durability": "replicated"})
    call(server, "PUT", "topics/jobs", {"type": "queue", "durability": "replicated"})
    for number in range(50):
        append(server, "sure", number)
        append(server, "plain", number)
    append(server, "jobs", "a", "b")
    append(server, "sure", "last", idempotency_key="k")
    server.kill()
    shutil.rmtree(tmp_path / "a")

    after = begin(running, tmp_path)

    records, gaps = read(after, "sure")
    assert list(records.values()) == [*range(50), "last"]
    assert gaps == []
    assert append(after, "sure", "last", idempotency_key="k") == 51
    assert append(after, "sure", "new") == 52
    records, gaps = read(after, "plain")
    assert list(records) == list(range(1, len(records) + 1))
    assert all(reason == "failover" and low == len(records) + 1 for low, _, reason in gaps)
    assert append(after, "plain", "new") == gaps[0][1] + 1
    status, claimed = call(after, "POST", "topics/jobs/claim", {"node": "w", "max": 5})
    assert status == 200
    assert [job["data"] for job in claimed["claimed"]] == ["a", "b"], claimed


def test_replicated_writes_under_load_survive_every_kill(running: list[ServerProcess], tmp_path: Path):
    acked: dict[int, str] = {}
    for round_ in range(3):
        server = begin(running, tmp_path)
        call(server, "PUT", "topics/sure", {"durability": "replicated"})
        stop = threading.Event()

        def write(name: str, server: ServerProcess = server, stop: threading.Event = stop) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    acked[append(server, "sure", f"{name}{number}")] = f"{name}{number}"
                except (OSError, http.client.HTTPException, AssertionError):
                    return

        writers = [threading.Thread(target=write, args=(f"r{round_}w{at}-",)) for at in range(4)]
        for writer in writers:
            writer.start()
        deadline, wanted = time.monotonic() + 15, len(acked) + 60
        while len(acked) < wanted and time.monotonic() < deadline:
            time.sleep(0.01)
        server.kill()
        stop.set()
        for writer in writers:
            writer.join()
        shutil.rmtree(tmp_path / "a")
    after = begin(running, tmp_path)
    records, gaps = read(after, "sure")
    assert len(acked) >= 180
    assert {seq: records.get(seq) for seq in acked} == acked
    assert gaps == []


def test_second_server_fences_the_first(running: list[ServerProcess], tmp_path: Path):
    first = begin(running, tmp_path)
    call(first, "PUT", "topics/sure", {"durability": "replicated"})
    append(first, "sure", 1)

    second = begin(running, tmp_path, "b")

    status, answer = call(first, "POST", "topics/sure", {"records": [{"data": 2}]})
    assert (status, answer["error"]["code"]) == (503, "fenced")
    assert answer["error"]["detail"]["outcome"] == "refused"
    status, answer = call(first, "POST", "topics/plain", {"records": [{"data": 2}]})
    assert (status, answer["error"]["code"]) == (503, "fenced")
    status, answer = call(first, "GET", "ready")
    assert (status, answer["error"]["code"]) == (503, "fenced")
    assert append(second, "sure", 2) == 2
    doctor = topics("doctor", "--url", first.url, TOPICS_REPLICA=f"file://{tmp_path}/replica")
    assert "has taken it over" in doctor.stdout
    assert "TOPICS_DATA_DIR" not in doctor.stdout, "`serve` gets the directory as an option"
    first.kill()
    done = topics(
        "serve", "--port", "0", TOPICS_DATA_DIR=str(tmp_path / "a"), TOPICS_REPLICA=f"file://{tmp_path}/replica"
    )
    assert done.returncode == 1
    assert "start with an empty directory to follow it" in done.stderr


def test_idle_server_finds_out_that_another_one_has_taken_over(running: list[ServerProcess], tmp_path: Path):
    first = begin(running, tmp_path, takeover_after_ms=400)
    begin(running, tmp_path, "b")
    deadline = time.monotonic() + 20
    while (answer := call(first, "GET", "ready"))[0] == 200 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert answer[1]["error"]["code"] == "fenced"


def test_orderly_stop_and_a_start_elsewhere_lose_nothing(running: list[ServerProcess], tmp_path: Path):
    server = begin(running, tmp_path, replica_interval_ms=60_000)
    for number in range(20):
        append(server, "plain", number)
    server.stop()

    after = begin(running, tmp_path, "b")

    assert read(after, "plain") == ({number + 1: number for number in range(20)}, [])
    assert append(after, "plain", "next") == 21
    after.stop()


def test_moment_is_restored_beside_the_running_server(running: list[ServerProcess], tmp_path: Path):
    server, url = begin(running, tmp_path), f"file://{tmp_path}/replica"
    call(server, "PUT", "topics/sure", {"durability": "replicated"})
    append(server, "sure", "keep me")
    listed = [json.loads(line) for line in topics("replica", "ls", url).stdout.splitlines()]
    at = listed[-1]["object"]
    assert {row["kind"] for row in listed} == {"term", "checkpoint", "bytes"}
    call(server, "DELETE", "topics/sure")
    append(server, "other", 1)

    done = topics("restore", url, tmp_path / "then", "--at-object", at)
    assert done.returncode == 0, done.stderr
    assert "it begins a new history" in done.stdout
    assert topics("verify", tmp_path / "then").returncode == 0
    found = ServerProcess(tmp_path / "then-server", {"data_dir": tmp_path / "then"})
    running.append(found)
    assert list(read(found, "sure")[0].values()) == ["keep me"]
    status, answer = call(found, "POST", "topics/sure", {"records": [{"data": 1}]})
    assert (status, answer["error"]["code"]) == (503, "replica_unavailable"), "it has no replica"

    assert topics("restore", url, tmp_path / "then").returncode == 2, "the directory is not empty"
    held = topics("restore", url, tmp_path / "a", "--force")
    assert (held.returncode, "is held by" in held.stderr) == (2, True), held.stderr
    assert topics("restore", url, tmp_path / "recent", "--ago", "0").returncode == 0
    assert topics("restore", tmp_path / "then", tmp_path / "no", "--ago", "1m").returncode == 2, "no replica"
    assert topics("restore", url, tmp_path / "no", "--at", "2001-01-01T00:00Z").returncode == 2
    assert topics("restore", url, tmp_path / "no", "--at", "yesterday").returncode == 2
    verified = topics("replica", "verify", url)
    assert (verified.returncode, verified.stdout.splitlines()[-1]) == (0, "clean"), verified.stdout
    status_lines = topics("replica", "status", url).stdout
    assert "restorable from" in status_lines
    shown = json.loads(topics("replica", "status", url, "--json").stdout)
    assert (shown["term"], shown["failures"]) == (1, [])
    assert 0 <= shown["lag_ms"] < 20_000
    assert "removed 0 objects" in topics("replica", "prune", url).stdout
    end = topics("restore", url, tmp_path / "end", "--json")
    assert json.loads(end.stdout)["term"] == 1
    later = topics("restore", url, tmp_path / "no", "--at-object", 1_000_000)
    assert (later.returncode, "choose one up to" in later.stderr) == (2, True), later.stderr
    server.stop()
    assert "the writer does not serve" in topics("replica", "status", url).stdout
    last = max((tmp_path / "replica" / "log").iterdir())
    last.write_text("hello")
    failed = topics("restore", url, tmp_path / "no")
    assert f"with --at-object {int(last.name) - 1}\n" in failed.stderr
    assert topics("restore", url, tmp_path / "before", "--at-object", int(last.name) - 1).returncode == 0


def test_start_without_the_bucket_says_what_to_do(tmp_path: Path):
    variables = {
        "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "TOPICS_DATA_DIR": str(tmp_path / "a"),
        "TOPICS_REPLICA": "s3://bucket/prefix", "TOPICS_REPLICA_TIMEOUT_MS": "500",
    }  # fmt: skip
    done = topics("serve", "--port", "0", **variables)
    assert done.returncode == 1
    assert "check that the bucket can be reached from here" in done.stderr
    assert not (tmp_path / "a").exists(), "nothing was written"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 API on this machine, with one bucket. Return its URL."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ALLOW_HTTP": "true",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    connection = http.client.HTTPConnection(host, port)
    connection.request("PUT", "/bucket")
    assert connection.getresponse().status == 200
    connection.close()
    yield f"s3://bucket/{port}/prefix"  # moto keeps its buckets for the whole process
    server.stop()


def test_replica_in_an_s3_bucket(s3: str, running: list[ServerProcess], tmp_path: Path):
    server = begin(running, tmp_path, replica=s3)
    call(server, "PUT", "topics/sure", {"durability": "replicated"})
    for number in range(40):
        append(server, "sure", number)
    history = History.open(open_bucket(s3))
    assert history is not None
    first, deadline = history.end().base, time.monotonic() + 15
    while history.end().base == first and time.monotonic() < deadline:  # a checkpoint with sealed segments
        append(server, "sure", "more")
        history.refresh()
    assert history.end().base > first
    server.kill()
    shutil.rmtree(tmp_path / "a")

    after = begin(running, tmp_path, replica=s3)

    records, gaps = read(after, "sure")
    assert list(records.values())[:40] == list(range(40))
    assert gaps == []
    assert topics("replica", "verify", s3).stdout.splitlines()[-1] == "clean"
