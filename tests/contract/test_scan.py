"""Bulk reads over HTTP: three formats, a clear end, and no delay for other clients."""

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import ServerProcess, StartServer
from tests.contract.api import Api
from topics.client import Client
from topics.storage.segments import record_run as runs

NDJSON = "application/x-ndjson"
SEGMENTS = "application/vnd.topics.segments"
ARROW = "application/vnd.apache.arrow.stream"


def scan(api: Api, topic: str, *, accept: str | None = NDJSON, **fields: Any) -> Any:
    headers = {"content-type": "application/json"} | ({} if accept is None else {"accept": accept})
    return api.http.post(f"/v0/topics/{topic}/scan", content=json.dumps(fields), headers=headers)


def lines(api: Api, topic: str, **fields: Any) -> list[Any]:
    answer = scan(api, topic, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == NDJSON
    return [json.loads(line) for line in answer.content.splitlines()]


def pieces(body: bytes) -> list[Any]:
    """Return the decoded JSON lines and the lines of runs."""
    found, at = [], 0
    while at < len(body):
        size, kind = struct.unpack_from("<II", body, at)
        piece = body[at + 8 : at + 8 + size]
        assert len(piece) == size
        if kind == 1:
            run = runs.decode(piece, source="test")
            found += [json.loads(line) for line in runs.lines(run, runs.Projection(tags=True)).splitlines()]
        else:
            assert kind == 2
            found.append(json.loads(piece))
        at += 8 + size
    return found


def test_json_lines_are_the_records_of_diff_and_an_end(api: Api, topic: str):
    epoch = api.put(topic)["epoch"]
    api.append(topic, [{"data": {"n": n}, "tag": f"t{n % 3}", "node": "a", "meta": {"m": n}} for n in range(50)])
    *records, end = lines(api, topic)
    assert records == api.read_all(topic)
    assert end == {"end": {"next_from_seq": 50, "head_seq": 50, "earliest_seq": 1, "epoch": epoch}}


@pytest.mark.parametrize(
    "fields",
    [
        {"include_tags": True}, {"include_meta": False}, {"include_tags": True, "include_meta": False}, {"node": "a"},
        {"node": ["a", "b"]}, {"filter": "t1"}, {"filter": ["tag", "Glob", "t*"]}, {"from_seq": 17}, {"from_seq": 39},
    ],
)  # fmt: skip
def test_scan_fields_have_the_meaning_of_diff(api: Api, topic: str, fields: dict[str, Any]):
    for n in range(10):
        api.append(topic, [{"data": n, "tag": f"t{n % 3}", "meta": {"m": n}}, {"data": "plain"}], node="ab"[n % 2])
        api.append(topic, [{"data": "without"}, {"data": "tagged", "tag": "other"}])
    api.delete(topic, match=["tag", "Eq", "t2"])
    *records, _ = lines(api, topic, **fields)
    assert records == api.read_all(topic, **fields)


def test_upto_seq_is_the_last_seq_read(api: Api, topic: str):
    api.write(topic, *range(30))
    *records, end = lines(api, topic, from_seq=5, upto_seq=12)
    assert [record["$seq"] for record in records] == list(range(6, 13))
    assert end["end"]["next_from_seq"] == 12
    assert end["end"]["head_seq"] == 30


def test_tombstone_is_at_the_position_of_the_loss(api: Api, topic: str):
    api.put(topic, cap_records=10)
    api.write(topic, *range(25))
    gap, *records, _ = lines(api, topic)
    tombstone = api.diff(topic)["tombstone"]
    assert gap["tombstone"] == tombstone | {"epoch": api.state(topic)["epoch"]}
    assert [record["$seq"] for record in records] == list(range(16, 26))


def test_another_epoch_is_reported_as_recreated(api: Api, topic: str):
    api.write(topic, 1, 2)
    gap, *_ = lines(api, topic, from_seq=1, epoch=1)
    assert gap["tombstone"]["reason"] == "recreated"


def test_segments_hold_the_same_records(api: Api, topic: str):
    api.append(topic, [{"data": n, "tag": f'"{n}"', "node": "Kö\\ln", "meta": {"m": "x"}} for n in range(40)])
    api.delete(topic, match='"7"')
    answer = scan(api, topic, accept=SEGMENTS)
    assert answer.headers["content-type"] == SEGMENTS
    *records, end = pieces(answer.content)
    assert records == api.read_all(topic, include_tags=True)
    assert end["end"]["next_from_seq"] == 40
    *bare, _ = pieces(scan(api, topic, accept=SEGMENTS, include_meta=False).content)
    assert bare == api.read_all(topic, include_tags=True, include_meta=False)


def test_arrow_holds_the_same_records(api: Api, topic: str):
    pa = pytest.importorskip("pyarrow")
    api.put(topic, cap_records=20)
    api.append(topic, [{"data": {"n": n}, "tag": "é", "node": 'a"b'} for n in range(15)])
    api.append(topic, [{"data": "x", "meta": {"k": [1]}}] * 10)
    reader = pa.ipc.open_stream(scan(api, topic, accept=ARROW).content)
    rows, notes = [], {}
    while True:
        try:
            batch, said = reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            break
        rows += batch.to_pylist()
        notes |= said or {}
    gap, *records = rows
    assert (gap["kind"], gap["seq"], gap["gap_to"], gap["reason"]) == ("gap", 1, 5, "cap")
    expected = [
        (row["$seq"], row["$ts"], row.get("$node"), row.get("$tag"), row.get("meta"), row["data"])
        for row in api.read_all(topic, include_tags=True)
    ]
    assert expected == [
        (
            row["seq"], round(row["ts"].timestamp() * 1000), row["node"], row["tag"],
            None if row["meta"] is None else json.loads(row["meta"]), json.loads(row["data"]),
        )
        for row in records
    ]  # fmt: skip
    assert json.loads(notes[b"end"])["next_from_seq"] == 25


@pytest.mark.parametrize(
    "accept", [None, "*/*", "application/*", "text/html, */*;q=0.1", "Application/X-NDJSON", "application/json"]
)
def test_json_lines_are_the_default_format(api: Api, topic: str, accept: str | None):
    api.write(topic, 1)
    assert scan(api, topic, accept=accept).headers["content-type"] == NDJSON


def test_accept_preference_selects_the_format(api: Api, topic: str):
    api.write(topic, 1)
    answer = scan(api, topic, accept=f"{NDJSON};q=0.5, {SEGMENTS}")
    assert answer.headers["content-type"] == SEGMENTS


def test_unknown_format_is_refused(api: Api, topic: str):
    api.write(topic, 1)
    answer = api.call("POST", f"/v0/topics/{topic}/scan", {}, headers={"accept": "text/csv"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (406, "not_acceptable")
    assert SEGMENTS in answer.json()["error"]["message"]
    assert "cannot be answered as text/csv" in answer.json()["error"]["message"]


def test_scan_of_missing_topic_and_invalid_field_fail(api: Api, topic: str):
    assert api.call("POST", f"/v0/topics/{topic}/scan", {}).status_code == 404
    api.put(topic)
    for fields, field in [({"upto_seq": -1}, "upto_seq"), ({"from_seq": "1"}, "from_seq"), ({"filter": 1}, "filter")]:
        answer = api.call("POST", f"/v0/topics/{topic}/scan", fields)
        assert answer.status_code == 400
        assert answer.json()["error"]["detail"]["field"] == field


def test_empty_topic_has_an_end(api: Api, topic: str):
    epoch = api.put(topic)["epoch"]
    assert lines(api, topic) == [{"end": {"next_from_seq": 0, "head_seq": 0, "earliest_seq": 1, "epoch": epoch}}]


# --- flow control


def filled(server: ServerProcess, topic: str, *, megabytes: int) -> Client:
    client = Client(server.url)
    record = {"data": "x" * 1000}
    for _ in range(megabytes):
        client.append(topic, [record] * 1000)
    return client


def test_client_that_does_not_read_uses_little_memory(start_server: StartServer):
    server = start_server()
    with filled(server, "big", megabytes=40) as client, socket.create_connection(("127.0.0.1", server.port)) as idle:
        before = resident_bytes(server)
        idle.sendall(b"POST /v0/topics/big/scan HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\n\r\n")
        assert idle.recv(1)
        for n in range(20):
            client.append("other", [{"data": n}])
        assert [record.value for record in client.diff("other").records] == list(range(20))
        assert resident_bytes(server) - before < 16 << 20


def resident_bytes(server: ServerProcess) -> int:
    with open(f"/proc/{server.process.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_other_clients_are_answered_during_a_scan(start_server: StartServer):
    server = start_server()
    with filled(server, "big", megabytes=60) as client, Client(server.url) as other:
        scanning = client.scan("big")
        next(scanning)
        done = threading.Event()

        def drain() -> None:
            for _ in scanning:
                pass
            done.set()

        thread = threading.Thread(target=drain)
        thread.start()
        answered = 0
        while not done.is_set():
            other.append("small", [{"data": 1}])
            answered += 1
        thread.join()
        assert answered > 5


def test_drain_ends_a_scan_without_its_end_line(start_server: StartServer):
    server = start_server()
    filled(server, "big", megabytes=30).close()
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/v0/topics/big/scan")
    answer = connection.getresponse()
    answer.read(1000)
    server.terminate()
    assert wait_until(lambda: not is_ready(server))
    last = answer.read().splitlines()[-1]
    assert not last.startswith(b'{"end"')
    assert not last.startswith(b'{"error"') or json.loads(last)["error"]["code"] == "shutting_down"
    connection.close()


def test_scan_of_a_slow_client_is_closed(start_server: StartServer):
    server = start_server(slow_consumer_timeout_ms=200)
    filled(server, "big", megabytes=30).close()
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/v0/topics/big/scan")
    answer = connection.getresponse()
    assert wait_until(lambda: open_streams(server) == 1)
    assert wait_until(lambda: open_streams(server) == 0)
    assert not answer.read().splitlines()[-1].startswith(b'{"end"')
    connection.close()
    assert metric(server, "topics_slow_readers_total") == 1


def is_ready(server: ServerProcess) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    try:
        connection.request("GET", "/v0/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def open_streams(server: ServerProcess) -> int:
    return metric(server, "topics_sse_connections")


def metric(server: ServerProcess, name: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/v0/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def wait_until(look: Callable[[], bool], *, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
