"""Real servers: standbys follow a writer, and take over when it is killed, stopped, cut off, or told to end."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.conftest import ServerProcess
from tests.faults.test_replica_processes import append, call, read, s3, topics
from topics.client import Topics
from topics.storage.replica import objects
from topics.storage.replica.bucket import open_bucket
from topics.storage.replica.history import History

FAST = {
    "segment_max_events": 16, "checkpoint_interval_ms": 300, "replica_interval_ms": 50, "takeover_after_ms": 900,
    "sync_interval_ms": 10,
}  # fmt: skip


@pytest.fixture
def running() -> Iterator[list[ServerProcess]]:
    servers: list[ServerProcess] = []
    yield servers
    for server in servers:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGCONT)
            server.kill()


def begin(running: list[ServerProcess], tmp_path: Path, name: str, **settings: object) -> ServerProcess:
    known = {"data_dir": tmp_path / name, "replica": f"file://{tmp_path}/replica", **FAST, **settings}
    server = ServerProcess(tmp_path / f"{name}-server", known)
    running.append(server)
    return server


def wait_for(reached: Callable[[], Any], timeout_s: float = 20) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := reached()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


def head(server: ServerProcess, topic: str) -> int:
    status, answer = call(server, "GET", f"topics/{topic}")
    return int(answer["head_seq"]) if status == 200 else 0


def takes_writes(server: ServerProcess) -> bool:
    try:
        return call(server, "POST", "topics/probe", {"records": [{"data": 1}]})[0] in (200, 201)
    except OSError:
        return False


def test_standby_serves_reads_and_takes_over_from_a_killed_writer(running: list[ServerProcess], tmp_path: Path):
    writer = begin(running, tmp_path, "a")
    call(writer, "PUT", "topics/sure", {"durability": "replicated"})
    append(writer, "sure", "first")
    append(writer, "plain", 1)
    standby = begin(running, tmp_path, "b", standby=True)
    for number in range(50):
        append(writer, "sure", number, idempotency_key=f"k{number}")
    wait_for(lambda: head(standby, "sure") == 51)
    assert read(standby, "sure") == read(writer, "sure")
    status, answer = call(standby, "POST", "topics/sure", {"records": [{"data": 1}]})
    assert (status, answer["error"]["code"]) == (421, "not_writer")
    assert answer["error"]["detail"] == {"writer": writer.url}
    writer.kill()
    wait_for(lambda: takes_writes(standby))
    assert append(standby, "sure", 0, idempotency_key="k0") == 2, "the key is known"
    assert append(standby, "sure", "next") == 52
    records, gaps = read(standby, "sure")
    assert (len(records), gaps) == (52, [])
    assert all(reason == "failover" for _, _, reason in read(standby, "plain")[1])


def test_schema_holds_after_a_takeover(running: list[ServerProcess], tmp_path: Path):
    writer = begin(running, tmp_path, "a")
    schema = {"type": "object", "properties": {"qty": {"type": "integer"}}}
    narrow = {**schema, "required": ["qty"]}
    call(writer, "PUT", "topics/sure", {"durability": "replicated", "schema": schema})
    append(writer, "sure", {"qty": 1}, idempotency_key="k")
    standby = begin(running, tmp_path, "b", standby=True)
    call(writer, "PUT", "topics/sure", {"schema": narrow, "compatibility": "forward"})
    wait_for(lambda: call(standby, "GET", "topics/sure/schema")[1].get("version") == 2)
    writer.kill()
    wait_for(lambda: takes_writes(standby))
    for data in ({}, {"qty": "one"}):
        status, answer = call(standby, "POST", "topics/sure", {"records": [{"data": {"qty": 2}}, {"data": data}]})
        assert (status, answer["error"]["code"], answer["error"]["detail"]["record"]) == (400, "schema_violation", 1)
    assert append(standby, "sure", {"qty": 1}, idempotency_key="k") == 1, "the key is known"
    assert append(standby, "sure", {"qty": 2}) == 2
    assert read(standby, "sure")[1] == []
    status, answer = call(standby, "PUT", "topics/sure", {"schema": schema})
    assert (status, answer["error"]["detail"]["version"]) == (409, 2), "the versions are known"
    assert call(standby, "GET", "topics/sure/schema?version=1")[1]["schema"] == schema


def test_stopped_writer_acknowledges_no_replicated_write_after_a_takeover(running: list[ServerProcess], tmp_path: Path):
    writer = begin(running, tmp_path, "a")
    call(writer, "PUT", "topics/sure", {"durability": "replicated"})
    standby = begin(running, tmp_path, "b", standby=True)
    append(writer, "sure", 1)
    wait_for(lambda: head(standby, "sure") == 1)
    writer.process.send_signal(signal.SIGSTOP)
    late: list[tuple[int, Any]] = []

    def send() -> None:
        late.append(call(writer, "POST", "topics/sure", {"records": [{"data": "late"}]}))

    sender = threading.Thread(target=send)
    sender.start()
    wait_for(lambda: takes_writes(standby))
    assert append(standby, "sure", 2) == 2
    writer.process.send_signal(signal.SIGCONT)
    sender.join()
    [(status, answer)] = late
    assert status == 503
    assert answer["error"]["code"] in ("fenced", "replica_unavailable"), "it may not know its successor yet"
    assert list(read(standby, "sure")[0].values()) == [1, 2]
    assert wait_for(lambda: call(writer, "GET", "ready")[0] == 503)


def test_readers_of_a_fenced_writer_go_on_at_the_new_one(running: list[ServerProcess], tmp_path: Path):
    writer = begin(running, tmp_path, "a")
    call(writer, "PUT", "topics/sure", {"durability": "replicated"})
    standby = begin(running, tmp_path, "b", standby=True)
    append(writer, "sure", 1)
    wait_for(lambda: head(standby, "sure") == 1)
    followed: list[Any] = []
    watched: list[Any] = []

    def take(items: Iterator[Any], into: list[Any]) -> None:
        for item in items:
            into.append(item.data)
            if len(into) == 2:
                return

    with Topics(f"{writer.url},{standby.url}") as client:
        readers = [(client.follow("sure", wait_ms=60_000), followed), (client.watch(["sure"]), watched)]
        threads = [threading.Thread(target=take, args=reader, daemon=True) for reader in readers]
        for thread in threads:
            thread.start()
        wait_for(lambda: followed == watched == [1])
        writer.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: takes_writes(standby))
        append(standby, "sure", 2)
        writer.process.send_signal(signal.SIGCONT)
        for thread in threads:
            thread.join(60)
        assert followed == watched == [1, 2]
        for path in ("ready", "topics/sure", "topics"):
            status, answer = call(writer, "GET", path)
            assert (status, answer["error"]["code"]) == (503, "fenced"), path
        assert call_metrics(writer)["topics_replica_fenced"] == 1


def test_promoted_standby_goes_on_without_a_gap(running: list[ServerProcess], tmp_path: Path):
    writer = begin(running, tmp_path, "a", replica_interval_ms=200)
    call(writer, "PUT", "topics/jobs", {"type": "queue"})
    append(writer, "jobs", "a")
    standby = begin(running, tmp_path, "b", standby=True, no_takeover=True)
    for number in range(30):
        append(writer, "plain", number)
    url = f"file://{tmp_path}/replica"
    wait_for(lambda: "read replica" in topics("replica", "status", url).stdout)
    done = topics("replica", "promote", url)
    assert done.returncode == 0, done.stderr
    assert standby.url in done.stdout
    assert writer.process.wait(20) == 0, "the writer has stopped in order"
    wait_for(lambda: takes_writes(standby))
    assert read(standby, "plain") == ({number + 1: number for number in range(30)}, [])
    assert append(standby, "plain", "next") == 31
    assert call(standby, "POST", "topics/jobs/claim", {"node": "w"})[1]["claimed"][0]["data"] == "a"
    assert json.loads(topics("replica", "status", url, "--json").stdout)["term"] == 2
    again = begin(running, tmp_path, "a", standby=True, no_takeover=True)
    wait_for(lambda: head(again, "plain") == 31)


def test_promote_without_a_writer(running: list[ServerProcess], tmp_path: Path):
    writer, url = begin(running, tmp_path, "a"), f"file://{tmp_path}/replica"
    append(writer, "plain", 1)
    gone = objects.Announced(name="gone", address="http://c", takes_over=True, object=1, lag_ms=0, at_ms=1)
    open_bucket(url).put("standbys/gone", msgspec.json.encode(gone))
    assert "no such server follows" in topics("replica", "promote", url).stderr
    settings = {"api_keys": "root", "takeover_after_ms": 60_000, "advertised_url": "http://b:4000"}
    standby = begin(running, tmp_path, "b", standby=True, no_takeover=True, **settings)
    wait_for(lambda: "read replica" in topics("replica", "status", url).stdout)
    writer.kill()
    done = topics("replica", "promote", url, "--now")
    assert done.returncode == 0, done.stderr
    with Topics(standby.url, token="root") as client:
        client.append("plain", 2)
        [note] = client.diff("$audit").records
        assert (note.tag, note.data["who"], note.data["url"]) == ("promotion", "server", "http://b:4000")


def sse(server: ServerProcess, topic: str, from_seq: int) -> Iterator[int]:
    """Watch a topic. Yield the seqs of its records until the stream ends."""
    status, made = call(server, "POST", "watch", {"topics": {topic: {"from_seq": from_seq}}})
    assert status == 200, made
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(
        "GET", made["stream_url"] if "stream_url" in made else made["url"], headers={"accept": "text/event-stream"}
    )
    answer = connection.getresponse()
    for line in answer:
        if line.startswith(b"data:"):
            frame = json.loads(line[5:])
            for record in frame.get("records", []):
                yield record["$seq"]
    connection.close()


def test_cursor_that_a_standby_has_not_come_to_waits(running: list[ServerProcess], tmp_path: Path):
    writer = begin(running, tmp_path, "a")
    append(writer, "plain", 1)
    standby = begin(running, tmp_path, "b", standby=True)
    wait_for(lambda: head(standby, "plain") == 1)
    _, state = call(standby, "GET", "topics/plain")
    for known in ({}, {"epoch": state["epoch"]}):
        status, answer = call(standby, "POST", "topics/plain/diff", {"from_seq": 3, **known})
        assert (status, answer["records"], answer["tombstone"], answer["next_from_seq"]) == (200, [], None, 3)
        assert (answer["caught_up"], answer["lag"]) == (True, 0)
    _, other = call(standby, "POST", "topics/plain/diff", {"from_seq": 3, "epoch": 1})
    assert other["tombstone"]["reason"] == "recreated"
    answers: list[Any] = []
    waits = {"from_seq": 3, "wait_ms": 20_000}
    waiting = threading.Thread(target=lambda: answers.append(call(standby, "POST", "topics/plain/diff", waits)))
    waiting.start()
    for number in range(2, 5):
        append(writer, "plain", number)
    waiting.join()
    [(_, answer)] = answers
    assert [record["data"] for record in answer["records"]] == [4]
    _, answer = call(writer, "POST", "topics/plain/diff", {"from_seq": 9})
    assert answer["tombstone"]["reason"] == "recreated", "at the writer, such a cursor is one of an earlier epoch"


def test_watch_goes_on_at_the_standby(running: list[ServerProcess], tmp_path: Path):
    writer = begin(running, tmp_path, "a")
    call(writer, "PUT", "topics/sure", {"durability": "replicated"})
    standby = begin(running, tmp_path, "b", standby=True)
    seen: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        servers = [writer, standby]
        while not stop.is_set():
            try:
                for seq in sse(servers[0], "sure", seen[-1] if seen else 0):
                    seen.append(seq)
            except (OSError, http.client.HTTPException, AssertionError, ValueError):
                servers.reverse()
                time.sleep(0.02)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    for number in range(20):
        append(writer, "sure", number)
    wait_for(lambda: len(seen) >= 20)
    writer.kill()
    wait_for(lambda: takes_writes(standby))
    for number in range(20):
        append(standby, "sure", number)
    wait_for(lambda: len(seen) >= 40)
    stop.set()
    assert seen == list(range(1, 41))


def test_answers_of_a_standby_say_how_far_it_is_behind(running: list[ServerProcess], tmp_path: Path):
    writer = begin(running, tmp_path, "a")
    misleading = {"performance": {"server_total_ms": 1}}
    for _ in range(3):
        append(writer, "plain", misleading, "x" * 20_000)  # an answer in several parts
    call(writer, "PUT", "topics/plain/consumers/c", {"meta": misleading})
    standby = begin(running, tmp_path, "b", standby=True)
    wait_for(lambda: head(standby, "plain") == 6)
    read = {"from_seq": 0, "limit": 100}
    reads = [("GET", "topics", None), ("GET", "topics/plain", None), ("GET", "topics/plain/consumers/c", None)]
    reads += [("GET", "whoami", None), ("POST", "topics/plain/diff", read)]
    reads += [("POST", "topics/plain/diff", {"from_seq": 6, "wait_ms": 50})]
    for method, path, body in reads:
        (_, here), (_, there) = call(standby, method, path, body), call(writer, method, path, body)
        assert 0 <= here["performance"].pop("replica_lag_ms", -1) < 20_000, (path, here)
        assert "replica_lag_ms" not in there["performance"]
        assert here["performance"].keys() == there["performance"].keys()
    assert call_metrics(standby)["performance"]["replica_lag_ms"] >= 0
    _, page = call(standby, "POST", "topics/plain/diff", read)
    assert [record["data"] for record in page["records"]] == [misleading, "x" * 20_000] * 3
    assert call(standby, "GET", "topics/plain/consumers/c")[1]["meta"] == misleading


def test_websocket_watches_a_standby_and_names_the_writer(running: list[ServerProcess], tmp_path: Path):
    writer = begin(running, tmp_path, "a")
    call(writer, "PUT", "topics/sure", {"durability": "replicated"})
    standby = begin(running, tmp_path, "b", standby=True)
    with connect(f"ws{standby.url.removeprefix('http')}/v0/ws") as socket:
        socket.send('{"op":"subscribe","topic":"sure"}')
        append(writer, "sure", 1, 2)
        found = (json.loads(message) for message in socket)
        records = (one["data"] for message in found if message["op"] == "record" for one in message["records"])
        assert [next(records) for _ in range(2)] == [1, 2]
        socket.send('{"op":"publish","topic":"sure","records":[{"data":3}]}')
        refused = next(message for message in found if message["op"] == "error")
        assert (refused["code"], refused["detail"]) == ("not_writer", {"writer": writer.url})
        writer.kill()
        with suppress(ConnectionClosed):
            assert list(found)[-1]["op"] == "error", "a takeover ends streams"


def test_top_shows_the_followers_of_a_writer_and_the_lag_of_a_standby(running: list[ServerProcess], tmp_path: Path):
    writer = begin(running, tmp_path, "a")
    readers = [begin(running, tmp_path, name, standby=True, no_takeover=True) for name in "bcd"]
    names = {reader.url.partition("://")[2].replace(":", "-") for reader in readers}
    (tmp_path / "replica" / "standbys" / "foreign").write_text("no announcement")
    wait_for(lambda: call_metrics(writer)["topics_replica_followers"] == 3)
    found = json.loads(topics("top", "--count", "1", "--every", "100ms", "--url", writer.url).stdout)
    assert (found["followers"].keys(), found["standby"]) == (names, False)
    assert all(0 <= lag_ms < 20_000 for lag_ms in found["followers"].values())
    found = json.loads(topics("top", "--count", "1", "--every", "100ms", "--url", readers[0].url).stdout)
    assert (found["followers"], found["standby"]) == ({}, True)
    followers = call(writer, "GET", "samples")[1]["followers"]
    assert {row["name"] for row in followers} == names
    assert {row["address"] for row in followers} == {reader.url for reader in readers}
    assert not any(row["takes_over"] for row in followers)


def test_one_of_two_standbys_begins_an_empty_replica(running: list[ServerProcess], tmp_path: Path):
    for name in "ab":
        known = {"data_dir": tmp_path / name, "replica": f"file://{tmp_path}/replica", **FAST, "standby": True}
        running.append(ServerProcess(tmp_path / f"{name}-server", known, wait_ready=False))
    for server in running:
        server.wait_ready()
    assert sorted(takes_writes(server) for server in running) == [False, True]


def test_read_replica_does_not_begin_an_empty_replica(running: list[ServerProcess], tmp_path: Path):
    known = {"data_dir": tmp_path / "c", "replica": f"file://{tmp_path}/replica", **FAST, "takeover_after_ms": 100}
    reader = ServerProcess(tmp_path / "c-server", {**known, "standby": True, "no_takeover": True}, wait_ready=False)
    running.append(reader)
    wait_for(lambda: "waiting_for_writer" in reader.log())
    time.sleep(1.5)  # longer than a standby waits
    assert call(reader, "GET", "ready")[0] == 503
    assert not (tmp_path / "replica" / "log").exists()


def test_second_standby_follows_the_new_writer(running: list[ServerProcess], tmp_path: Path):
    writer = begin(running, tmp_path, "a")
    call(writer, "PUT", "topics/sure", {"durability": "replicated"})
    append(writer, "sure", 1)
    standby = begin(running, tmp_path, "b", standby=True)
    reader = begin(running, tmp_path, "c", standby=True, no_takeover=True)
    writer.kill()
    wait_for(lambda: takes_writes(standby))
    assert append(standby, "sure", 2) == 2
    wait_for(lambda: head(reader, "sure") == 2)
    status, answer = call(reader, "POST", "topics/sure", {"records": [{"data": 1}]})
    assert (status, answer["error"]["detail"]) == (421, {"writer": standby.url})
    standby.stop()
    again = begin(running, tmp_path, "b", standby=True)
    assert takes_writes(again), "the directory of the last writer goes on as that"


def test_writer_with_a_standby_refuses_writes_without_the_bucket(running: list[ServerProcess], tmp_path: Path):
    writer = begin(running, tmp_path, "a")
    append(writer, "plain", 1)
    begin(running, tmp_path, "b", standby=True, takeover_after_ms=60_000)
    wait_for(lambda: call_metrics(writer)["topics_replica_followers"] == 1)
    folder = tmp_path / "replica" / "log"
    folder.rename(tmp_path / "away")
    folder.write_text("no folder")
    refused = wait_for(lambda: refusal(writer))
    assert refused["code"] == "replica_unavailable"
    assert "a standby may have taken over" in refused["message"]
    folder.unlink()
    (tmp_path / "away").rename(folder)
    wait_for(lambda: takes_writes(writer))


def refusal(server: ServerProcess) -> Any:
    status, answer = call(server, "POST", "topics/plain", {"records": [{"data": 1}]})
    return None if status in (200, 201) else answer["error"]


def call_metrics(server: ServerProcess) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", "/v0/metrics", headers={"accept": "application/json"})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


@pytest.mark.torture
def test_replica_with_a_hundred_thousand_objects_starts_a_writer_and_a_standby(
    running: list[ServerProcess], tmp_path: Path
):
    first = begin(running, tmp_path, "a")
    append(first, "plain", 1, 2, 3)
    first.stop()
    history = History.open(open_bucket(f"file://{tmp_path}/replica"))
    assert history is not None
    found = history.read(history.last_number)
    files, base = found.checkpoint, found.head.number
    for number in range(base + 1, base + 100_001):  # what six days without a write leave
        alive = msgspec.structs.replace(found.head, kind="alive", number=number, base=base)
        body = b""
        if number % 1_000 == 0:
            alive, base = msgspec.structs.replace(alive, kind="checkpoint"), number
            body = objects.encode_checkpoint(msgspec.structs.replace(files, since=number, clean=False))
            (tmp_path / "replica" / objects.LATEST).write_text(str(number))
        (tmp_path / "replica" / objects.log_name(number)).write_bytes(objects.encode(alive, body))
    writer = begin(running, tmp_path, "b")
    assert append(writer, "plain", 4) >= 4
    for name in ("c", "d"):  # the first may begin before the hint of the writer's checkpoint
        standby = begin(running, tmp_path, name, standby=True)
        assert wait_for(lambda standby=standby: head(standby, "plain") == head(writer, "plain"))
    assert list(read(standby, "plain")[0].values()) == [1, 2, 3, 4]
    recent = History.open(open_bucket(f"file://{tmp_path}/replica"))
    assert recent is not None
    assert len(recent.log) < 1_000, "a start lists the end of the sequence only"


def test_standby_follows_an_s3_bucket(s3: str, running: list[ServerProcess], tmp_path: Path):
    writer = begin(running, tmp_path, "a", replica=s3)
    call(writer, "PUT", "topics/sure", {"durability": "replicated"})
    standby = begin(running, tmp_path, "b", standby=True, replica=s3)
    append(writer, "sure", 1, 2)
    wait_for(lambda: head(standby, "sure") == 2)
    writer.kill()
    wait_for(lambda: takes_writes(standby))
    assert append(standby, "sure", 3) == 3


__all__ = ["s3"]
