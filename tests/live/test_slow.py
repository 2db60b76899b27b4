"""Clients that read slowly or not at all: they delay only themselves."""

import json
import socket
import time
from pathlib import Path

import pytest
from websockets.sync.client import connect

from tests.contract.api import Background
from tests.live.conftest import Live
from tests.live.events import Events, wait_for

BLOCK = "x" * 50_000
MIB = 1 << 20
SMALL_BYTES = 32 << 10


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def fill(live, topic: str, size_mib: int) -> int:
    """Write so many MiB. Return the head."""
    for _ in range(size_mib):
        written = live.api.write(topic, *[BLOCK] * 21, disable_backpressure=True)
    return written["head_seq"]


def read_all(events: Events, wanted: int) -> list[int]:
    seqs: list[int] = []
    while not seqs or seqs[-1] < wanted:
        frame = events.next()
        if frame.event == "record":
            seqs += frame.seqs
    return seqs


def test_stalled_client_is_closed_and_resumes_without_loss(start_live):
    live = start_live(slow_consumer_timeout_ms=700, buffer_grace_ms=100)
    live.api.put("a")
    session = live.session("a")
    events = live.open(session, receive_bytes=SMALL_BYTES)
    events.expect("caught-up")
    head = fill(live, "a", 12)
    wait_for(lambda: live.metric("topics_sse_connections") == 1)
    time.sleep(0.9)  # the stall is what the test is about
    frames = events.rest()
    assert (frames[-1].event, frames[-1].data["code"]) == ("error", 408)
    seqs = [seq for frame in frames if frame.event == "record" for seq in frame.seqs]
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) < head
    assert live.metric("topics_slow_readers_total") == 1
    again = live.open(session, last_id=events.last_id)
    assert seqs + read_all(again, head) == list(range(1, head + 1))


def test_stalled_event_stream_does_not_delay_a_stop(start_live):
    live = start_live(drain_timeout_ms=60_000)
    live.api.put("a")
    live.open(live.session("a"), receive_bytes=SMALL_BYTES).expect("caught-up")
    fill(live, "a", 12)
    live.server.stop()
    assert "drain_timed_out" not in live.server.log()


def test_stalled_socket_does_not_delay_a_stop(start_live):
    live = start_live(drain_timeout_ms=60_000)
    live.api.put("a")
    with connect(f"{live.url.replace('http', 'ws')}/v0/ws", max_queue=1, close_timeout=0) as client:
        client.send(json.dumps({"op": "subscribe", "topic": "a", "from_seq": 0}))
        client.recv()
        fill(live, "a", 12)
        live.server.stop()
    assert "drain_timed_out" not in live.server.log()


def test_gap_of_a_stalled_stream_is_reported_as_too_old(start_live):
    live = start_live(buffer_grace_ms=100)
    live.api.put("a", cap_records=20)
    events = live.open(live.session("a", limit=5), receive_bytes=SMALL_BYTES)
    events.expect("caught-up")
    head = fill(live, "a", 16)
    time.sleep(0.3)  # longer than the grace
    seqs: list[int] = []
    gaps = []
    while not seqs or seqs[-1] < head:
        frame = events.next()
        if frame.event == "record":
            seqs += frame.seqs
        elif frame.event == "tombstone":
            gaps.append(frame.data)
            assert frame.data["gap_from"] == (seqs[-1] if seqs else 0) + 1
            seqs += range(frame.data["gap_from"], frame.data["gap_to"] + 1)
    assert seqs == list(range(1, head + 1))
    assert "from_seq_too_old" in {gap["reason"] for gap in gaps}
    assert {gap.get("cause", gap["reason"]) for gap in gaps} == {"cap"}
    events.expect("caught-up")


@pytest.mark.torture
def test_gap_of_a_stalled_websocket_is_reported_as_cap(start_live):
    live = start_live(buffer_grace_ms=100)
    live.api.put("a", cap_records=20)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
        sock.connect(("127.0.0.1", live.server.port))
        url = f"ws://127.0.0.1:{live.server.port}/v0/ws"
        with connect(url, sock=sock, max_queue=1, max_size=None, compression=None) as ws:
            ws.send(json.dumps({"op": "subscribe", "topic": "a", "limit": 5}))
            assert json.loads(ws.recv())["op"] == "subscribed"
            head = fill(live, "a", 16)
            time.sleep(0.3)  # longer than the grace
            at, reasons = 0, set()
            while at < head:
                frame = json.loads(ws.recv(timeout=10))
                if frame["op"] == "tombstone":
                    reasons.add(frame["reason"])
                at = frame.get("gap_to", frame.get("to_seq", at))
    assert reasons == {"cap"}


def test_stalled_clients_cost_bounded_memory_and_no_latency(start_live):
    """Each has its own view, so that no frame is shared; one healthy watcher runs beside them."""
    live = start_live(segment_max_bytes=MIB)  # the topic frees its memory in pieces of this size
    live.api.put("a", cap_bytes=4 * MIB)
    live.api.put("b")
    tail = {"a": {"tail": True}}
    stalled = [live.open(live.session(tail, limit=n + 1), receive_bytes=SMALL_BYTES) for n in range(30)]
    for events in stalled:
        events.expect("caught-up")
    fill(live, "a", 20)
    before = resident_bytes(live.server.process.pid)
    waits_ms = waits_beside(live, lambda writer: fill(writer, "a", 40))
    grown = resident_bytes(live.server.process.pid) - before
    print(f"30 stalled clients, 40 MiB more: {grown / MIB:.1f} MiB; others waited {sorted(waits_ms)[20]:.1f} ms")
    assert grown < 20 * MIB
    assert sorted(waits_ms)[len(waits_ms) // 2] < 100


def waits_beside(live, work) -> list[float]:
    """Return the latencies of 40 records to a healthy watcher of another topic while `work` runs."""
    writer = Live(live.server)
    healthy = live.watch("b")
    working = Background(lambda: work(writer))
    waits_ms = []
    for n in range(40):
        live.api.write("b", n, disable_backpressure=True)
        record = healthy.until("record")[-1]
        waits_ms.append(time.time() * 1000 - record.data["records"][0]["$ts"])
    working.result()
    writer.close()
    return waits_ms


def test_slow_websocket_is_closed_with_a_reason(start_live):
    live = start_live(slow_consumer_timeout_ms=500)
    live.api.put("a")
    address = ("127.0.0.1", live.server.port)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
        sock.connect(address)
        sock.sendall(
            b"GET /v0/ws HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        command = json.dumps({"op": "subscribe", "topic": "a"}).encode()
        sock.sendall(b"\x81" + bytes((0x80 | len(command),)) + b"\0\0\0\0" + command)
        wait_for(lambda: live.metric("topics_sse_connections") == 1)
        fill(live, "a", 12)
        time.sleep(0.7)
        received = b""
        sock.settimeout(10)
        while piece := sock.recv(1 << 20):
            received = received[-2000:] + piece
    assert b'"code":"request_timeout"' in received
    assert received[-2000:].find(b"\x88") >= 0  # the close frame
    wait_for(lambda: live.metric("topics_sse_connections") == 0)


@pytest.mark.parametrize("kind", ["stream", "work", "socket", "scan"])
def test_client_that_never_reads_frees_its_slot_soon(start_live, kind):
    live = start_live(slow_consumer_timeout_ms=300, max_sse_connections=2)
    live.api.put("a", **({"type": "queue"} if kind == "work" else {}))
    if kind == "scan":
        fill(live, "a", 12)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
        sock.connect(("127.0.0.1", live.server.port))
        sock.sendall(opening(live, kind))
        wait_for(lambda: live.metric("topics_sse_connections") == 1)
        if kind != "scan":
            fill(live, "a", 12)
        wait_for(lambda: live.metric("topics_sse_connections") == 0)
        wait_for(lambda: live.metric("topics_http_connections") == 1)  # the connection of this request


def opening(live, kind: str) -> bytes:
    """Return a request that opens an endless answer of topic `a`."""
    if kind == "socket":
        command = json.dumps({"op": "subscribe", "topic": "a"}).encode()
        return (
            b"GET /v0/ws HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            b"\x81" + bytes((0x80 | len(command),)) + b"\0\0\0\0" + command
        )
    path = {"scan": "/v0/topics/a/scan", "work": "/v0/topics/a/work?node=n&max=1000"}.get(kind)
    method = b"POST" if kind == "scan" else b"GET"
    return b"%b %b HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % (method, (path or live.session("a")["stream_url"]).encode())


def test_idle_watcher_costs_little_memory(start_live):
    live = start_live()
    live.api.put("a")
    waiting = [live.watch("a") for _ in range(50)]
    before = resident_bytes(live.server.process.pid)
    waiting += [live.watch("a") for _ in range(400)]
    for events in waiting:
        events.expect("caught-up")
    grown = resident_bytes(live.server.process.pid) - before
    print(f"an idle watcher costs {grown / 400 / 1024:.1f} KiB")
    assert grown / 400 < 16 * 1024
    live.api.write("a", 1)
    for events in waiting:
        assert events.next().seqs == [1]
