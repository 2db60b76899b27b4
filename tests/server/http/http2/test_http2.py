"""HTTP/2 with prior knowledge: requests and streams over one connection, flow control, deadlines, and its end."""

import asyncio
import contextlib
import gc
import gzip
import json
import os
import subprocess
import sys
import time
from typing import Any

import h2.events
import pytest

from tests.server.conftest import Serve
from tests.server.harness import FakeApp, Harness, request
from tests.server.http2_client import GOAWAY, PREFACE, SETTINGS, Http2Client, frame
from topics.server.http.http2.connection import Http2Connection
from topics.server.http.http2.session import Http2Session
from topics.server.http.http2.stream import MAX_STREAMS, TOKENS, Frames, Http2Stream
from topics.server.http.messages import Response
from topics.server.limits.budget import ANSWERS, BODIES, STREAMS

DATA, HEADERS, RST_STREAM, SETTINGS_KIND, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM = 1
NO_ERROR, PROTOCOL_ERROR, FRAME_SIZE_ERROR, CANCEL, ENHANCE_YOUR_CALM = 0, 1, 6, 8, 11
STREAM = [("accept", "text/event-stream")]


def eventually(read: Any, wanted: Any) -> None:
    until = time.monotonic() + 10
    while read() != wanted:
        assert time.monotonic() < until, f"{read()} is not {wanted}"
        time.sleep(0.005)


def test_requests_share_a_connection(server: Harness):
    with Http2Client(server.port) as client:
        numbers = [client.send(f"/describe?n={n}", fields=[("x-n", str(n))]) for n in range(20)]
        found = [json.loads(client.answer(number).body) for number in numbers]
        assert [one["query"] for one in found] == [f"n={n}" for n in range(20)]
        assert [one["headers"]["x-n"] for one in found] == [str(n) for n in range(20)]
        assert found[0]["headers"]["host"] == "127.0.0.1"
    eventually(lambda: len(server.http.connections), 0)
    assert server.http.requests_total == 20


def test_answer_that_comes_later_holds_up_no_other(server: Harness, app: FakeApp):
    with Http2Client(server.port) as client:
        later = client.send("/later?a")
        assert app.events.get(timeout=10) == ("waiting", b"a")
        assert client.ask("/hello").status == 200
        assert not client.answers[later].ended
        server.call(lambda: app.waiting[0].resolve(Response(200, b'"done"')))
        assert client.answer(later).body == b'"done"'


@pytest.mark.parametrize("size", [0, 1, 16_384, 70_000, 3_000_000])
def test_bodies_of_any_size_go_both_ways(server: Harness, size: int):
    body = os.urandom(size)
    with Http2Client(server.port) as client:
        found = client.ask("/echo", method="POST", body=body)
        assert (found.status, found.body) == (200, body)
        assert found.headers["content-length"] == str(size)


def test_body_in_parts_and_bodiless_answers(server: Harness):
    with Http2Client(server.port) as client:
        assert client.ask("/parts").body.startswith(b'{"records":[1,1,')
        assert (client.ask("/empty").status, client.ask("/empty").body) == (204, b"")
        head = client.ask("/hello", method="HEAD")
        assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "17")


def test_gzip_both_ways(server: Harness):
    text = json.dumps(["word"] * 50_000).encode()
    with Http2Client(server.port) as client:
        packed = [("content-encoding", "gzip")]
        assert client.ask("/count", method="POST", body=gzip.compress(text), fields=packed).body == b"%d" % len(text)
        assert client.ask("/count", method="POST", body=b"no gzip", fields=packed).status == 400
        for words in (500, 50_000):
            found = client.ask(f"/json?{words}", fields=[("accept-encoding", "gzip")])
            assert found.headers["content-encoding"] == "gzip"
            assert gzip.decompress(found.body) == json.dumps(["word"] * words).encode()


def test_refusals_and_failures_are_answers(server: Harness, app: FakeApp):
    with Http2Client(server.port) as client:
        assert client.ask("/refuse", method="POST", body=b"x" * 100_000).status == 401
        assert client.ask("/boom").status == 500
        assert client.ask("/admit-boom").status == 500
        assert client.ask("/bad-field").status == 500
        assert client.ask("/a b").status == 400
        assert client.ask("/upgrade").status == 400
        assert client.ask("/hello").status == 200
    assert app.abandoned == 0


@pytest.mark.parametrize(
    ("limits", "how", "status"),
    [
        ({"max_body_bytes": 1000}, {"method": "POST", "body": b"x" * 1001}, 413),
        ({"max_headers": 5}, {"fields": [(f"x-{n}", "") for n in range(6)]}, 431),
        ({"max_header_bytes": 1000}, {"fields": [("x-long", "x" * 1001)]}, 431),
    ],
)
def test_limits_of_a_request_hold(serve: Serve, limits: dict[str, int], how: dict[str, Any], status: int):
    server = serve(**limits)
    with Http2Client(server.port) as client:
        assert client.ask("/echo", **how).status == status
    with Http2Client(server.port) as client:
        assert client.ask("/hello").status == 200


def test_announced_body_that_is_too_long_is_refused_before_it_comes(serve: Serve):
    server = serve(max_body_bytes=1000)
    with Http2Client(server.port) as client:
        assert client.answer(client.open("/echo", ("content-length", "1001"))).status == 413


def test_rest_of_a_refused_body_is_dropped_for_a_while(serve: Serve):
    server = serve(max_body_bytes=1000, linger_timeout_ms=60_000)
    with Http2Client(server.port) as client:
        number = client.open("/echo", ("content-length", "20000"))
        assert client.answer(number).status == 413
        client.h2.send_data(number, b"x" * 10_000)
        client.h2.send_data(number, b"x" * 10_000, end_stream=True)
        client.flush()
        assert client.ask("/hello").status == 200
        assert client.answers[number].reset is None


def test_client_that_goes_on_with_a_refused_body_is_told_to_stop(serve: Serve):
    server = serve(max_body_bytes=1000, linger_timeout_ms=300)
    with Http2Client(server.port) as client:
        number = client.open("/echo", ("content-length", "50000"))
        assert client.answer(number).status == 413
        while client.answers[number].reset is None:
            client.receive()
        assert client.answers[number].reset == NO_ERROR
        assert client.ask("/hello").status == 200


def test_expectation_is_met_before_the_body(server: Harness):
    with Http2Client(server.port) as client:
        client.open("/echo", ("expect", "100-continue"))
        seen: list[Any] = []
        while not any(isinstance(event, h2.events.InformationalResponseReceived) for event in seen):
            seen += client.receive()


# --- streams


def test_streams_and_requests_share_a_connection(server: Harness, app: FakeApp):
    with Http2Client(server.port) as client:
        streams = [client.send("/stream", fields=STREAM) for _ in range(3)]
        opened = [app.events.get(timeout=10)[1] for _ in streams]
        assert client.ask("/hello").status == 200
        server.call(lambda: [one.sink.write(b"data: %d\n\n" % at) for at, one in enumerate(opened)])
        for at, number in enumerate(streams):
            while b"data: %d" % at not in client.answers[number].body:
                client.receive()
        assert client.answers[streams[0]].headers["content-type"] == "text/event-stream"
        server.call(opened[0].sink.close)
        assert client.answer(streams[0]).ended
        client.h2.reset_stream(streams[1], CANCEL)
        client.flush()
        assert {app.events.get(timeout=10) for _ in range(2)} == {("closed", opened[0]), ("closed", opened[1])}
    assert app.events.get(timeout=10) == ("closed", opened[2])


def test_stream_that_is_not_read_holds_up_no_other(serve: Serve, app: FakeApp):
    server = serve(high_water_bytes=100_000)
    with Http2Client(server.port, acknowledges=False) as client:
        client.h2.increment_flow_control_window(10_000_000)  # of the connection, not of its streams
        slow = client.send("/large?1000000")
        number = client.send("/stream", fields=STREAM)
        stream = app.events.get(timeout=10)[1]
        taken = 0
        while server.call(lambda: stream.sink.write(b"x" * 10_000)):
            taken += 1
        assert taken >= 10
        for _ in range(5):
            assert client.ask("/hello").status == 200
        assert not client.answers[slow].ended
        assert len(client.answers[slow].body) == 65_535
        for one in (slow, number):
            client.h2.increment_flow_control_window(10_000_000, one)
        client.flush()
        assert len(client.answer(slow).body) == 1_000_000
        assert app.events.get(timeout=10) == ("drained", stream)
        while len(client.answers[number].body) < (taken + 1) * 10_000:
            client.receive()


def test_bytes_that_wait_are_charged_to_the_budget(server: Harness, app: FakeApp):
    budget = server.http.budget

    def held() -> dict[str, int]:
        return server.call(lambda: {name: budget.accounts()[name] for name in (BODIES, ANSWERS, STREAMS)})

    with Http2Client(server.port, acknowledges=False) as client:
        client.send("/large?500000")
        client.send("/stream", fields=STREAM)
        stream = app.events.get(timeout=10)[1]
        server.call(lambda: stream.sink.write(b"x" * 300_000))
        client.h2.send_data(client.open("/echo"), b"x" * 10_000)
        client.flush()
        eventually(lambda: held()[BODIES] > 10_000, True)
        assert held()[ANSWERS] > 400_000
        assert held()[STREAMS] > 200_000
    eventually(lambda: set(held().values()), {0})


# --- deadlines


def test_body_that_does_not_come_is_answered(serve: Serve, app: FakeApp):
    server = serve(body_timeout_ms=50)
    with Http2Client(server.port) as client:
        assert client.answer(client.open("/echo")).status == 408
        assert client.ask("/hello").status == 200
    eventually(lambda: app.abandoned, 1)


def test_answer_that_is_not_read_is_reset(serve: Serve):
    server = serve(write_timeout_ms=50)
    with Http2Client(server.port, acknowledges=False) as client:
        assert client.answer(client.send("/large?1000000")).reset == CANCEL
        assert client.ask("/empty").status == 204


def test_idle_connection_is_closed_with_goaway(serve: Serve):
    server = serve(idle_timeout_ms=500)
    with Http2Client(server.port) as client:
        assert client.ask("/hello").status == 200
        assert client.until_closed() == NO_ERROR


@pytest.mark.parametrize("begun", [frame(HEADERS, 0, 1, b"\x82"), frame(0, 0, 1, b"x" * 100)[:50], b"\0\0"])
def test_frame_that_does_not_come_to_its_end_closes_the_connection(serve: Serve, begun: bytes):
    server = serve(header_timeout_ms=500)
    with Http2Client(server.port) as client:
        assert client.ask("/hello").status == 200
        client.sock.sendall(begun)
        assert client.until_closed() == PROTOCOL_ERROR


# --- the end


def test_drain_says_goaway_and_finishes_what_has_begun(server: Harness, app: FakeApp):
    with Http2Client(server.port) as client, Http2Client(server.port) as idle:
        assert idle.ask("/hello").status == 200
        number = client.send("/later?a")
        assert app.events.get(timeout=10) == ("waiting", b"a")
        stream = client.send("/stream", fields=STREAM)
        app.events.get(timeout=10)
        draining = asyncio.run_coroutine_threadsafe(server.http.drain(5000), server._loop)
        assert idle.until_closed() == NO_ERROR
        frames, found = client.raw_frames(), []
        while not found or found[-1][0] != GOAWAY:
            found.append(next(frames))
        assert found[-1][3][:4] == stream.to_bytes(4, "big")
        server.call(lambda: app.waiting[0].resolve(Response(200, b'"late"')))
        found += frames
    assert (DATA, END_STREAM, number, b'"late"') in found
    assert any(one[2] == stream and one[1] & END_STREAM for one in found)
    assert draining.result(10) == 0


def test_client_that_leaves_cancels_what_it_waits_for(server: Harness, app: FakeApp):
    with Http2Client(server.port) as client:
        client.send("/later?a")
        assert app.events.get(timeout=10) == ("waiting", b"a")
    assert app.events.get(timeout=10) == ("cancelled", b"a")
    with Http2Client(server.port) as client:
        number = client.send("/later?b")
        assert app.events.get(timeout=10) == ("waiting", b"b")
        client.h2.reset_stream(number, CANCEL)
        client.flush()
        assert app.events.get(timeout=10) == ("cancelled", b"b")
        assert client.ask("/hello").status == 200


def test_client_that_leaves_in_the_middle_of_a_body_is_forgotten_by_the_budget(server: Harness):
    with Http2Client(server.port) as client:
        number = client.open("/count")
        for _ in range(3):
            client.h2.send_data(number, b"x" * 16_000)
        client.flush()
        eventually(lambda: len(server.http.budget._receivers), 1)
    eventually(lambda: len(server.http.connections), 0)
    assert len(server.http.budget._receivers) == 0


def test_connection_leaves_nothing_for_the_garbage_collector(server: Harness, app: FakeApp):
    gc.collect()
    gc.freeze()  # so that `get_objects` lists only what comes now
    gc.disable()
    try:
        for _ in range(3):
            with Http2Client(server.port) as client:
                assert client.ask("/echo", method="POST", body=b"x" * 100_000).status == 200
                client.send("/later?a")
                client.send("/stream", fields=STREAM)
                assert {app.events.get(timeout=10)[0] for _ in range(2)} == {"waiting", "opened"}
                client.open("/echo")
            assert {app.events.get(timeout=10)[0] for _ in range(2)} == {"cancelled", "closed"}
        app.waiting.clear()
        eventually(lambda: len(server.http.connections), 0)
        kinds = (Http2Connection, Http2Session, Http2Stream, Frames)
        eventually(lambda: [type(one).__name__ for one in gc.get_objects() if isinstance(one, kinds)], [])
    finally:
        gc.enable()
        gc.unfreeze()


# --- the preface


@pytest.mark.parametrize("cut", [1, 3, 16, 23])
def test_preface_may_come_in_pieces(server: Harness, cut: int):
    with server.connect() as client:
        client.send(PREFACE[:cut])
        time.sleep(0.01)
        client.send(PREFACE[cut:] + SETTINGS)
        assert client.exactly(9)[3] == SETTINGS_KIND


def test_http1_that_begins_like_the_preface_is_http1(server: Harness):
    with server.connect() as client:
        client.send(b"P")
        time.sleep(0.01)
        client.send(request("/count", method="POST", body=b"abc")[1:])
        assert client.answer().body == b"3"
    with server.connect() as client:
        client.send(b"PRI * HTTP/1.1\r\nHost: test\r\n\r\n")
        assert client.answer().status in (400, 405)


def test_preface_after_a_request_is_refused(server: Harness):
    with server.connect() as client:
        assert client.get("/hello").status == 200
        client.send(PREFACE + SETTINGS)
        assert client.answer().status == 400


def test_server_that_speaks_http1_alone_imports_nothing_for_http2():
    code = (
        "import sys, topics.server.app, topics.server.run; print([m for m in sys.modules if m.split('.')[0] == 'h2'])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# --- floods


HEAD = b"\x82\x86\x84\x41\x01a"  # GET / of host a: indexed fields of RFC 7541

FLOODS = {
    "pings": frame(PING, 0, 0, b"12345678"),
    "settings": frame(SETTINGS_KIND),
    "resets of streams that were just opened": b"",
    "priorities": frame(2, 0, 1, b"\0\0\0\0\x01"),
    "window updates": frame(8, 0, 0, b"\0\0\0\x01"),
    "unknown frames": frame(0x99),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_flood_of_frames_ends_the_connection(server: Harness, kind: str):
    unit, count = FLOODS[kind], TOKENS * 3
    units = [unit] * count
    if not unit:
        # The requests have no end: a slow machine would answer some before their reset, and an answer earns a token.
        units = [frame(HEADERS, 4, n, HEAD) + frame(RST_STREAM, 0, n, b"\0\0\0\x08") for n in range(1, 2 * count, 2)]
    with Http2Client(server.port) as client:
        assert client.ask("/hello").status == 200
        with contextlib.suppress(ConnectionError):
            for at in range(0, count, 100):
                client.sock.sendall(b"".join(units[max(at, 1) : at + 100]))
        assert client.until_closed() in (ENHANCE_YOUR_CALM, None)  # None if the reset of the socket destroyed it
    with Http2Client(server.port) as client:
        assert client.ask("/hello").status == 200
    eventually(lambda: len(server.http.connections), 0)


def test_client_that_uses_the_server_may_send_many_frames(server: Harness):
    with Http2Client(server.port) as client:
        for _ in range(TOKENS):
            client.h2.ping(b"12345678")
            client.h2.ping(b"12345678")
            assert client.ask("/empty").status == 204


def test_header_block_without_end_is_cut_off(serve: Serve):
    server = serve(max_header_bytes=20_000)
    with Http2Client(server.port) as client:
        assert client.ask("/hello").status == 200
        client.sock.sendall(frame(HEADERS, 0, 3, HEAD) + frame(CONTINUATION, 0, 3, b"x" * 1000) * 30)
        assert client.until_closed() == ENHANCE_YOUR_CALM


def test_frame_that_is_too_long_is_refused_before_it_comes(server: Harness):
    with Http2Client(server.port) as client:
        assert client.ask("/hello").status == 200
        client.sock.sendall((1 << 20).to_bytes(3, "big") + b"\0\0\0\0\0\x03")
        assert client.until_closed() == FRAME_SIZE_ERROR


def test_more_streams_than_are_allowed_end_the_connection(server: Harness, app: FakeApp):
    with Http2Client(server.port) as client:
        assert client.ask("/hello").status == 200
        path = b"\x04\x06/later"
        head = b"\x82\x86" + path + b"\x41\x01a"
        client.sock.sendall(b"".join(frame(HEADERS, 5, n, head) for n in range(3, 3 + 2 * (MAX_STREAMS + 1), 2)))
        assert client.until_closed() is not None
    assert len(app.waiting) <= MAX_STREAMS
    eventually(lambda: sum(one.cancelled for one in app.waiting), len(app.waiting))


def test_client_that_sends_and_never_reads_is_not_read_from(serve: Serve):
    server = serve(write_timeout_ms=300, high_water_bytes=10_000)
    with Http2Client(server.port, acknowledges=False) as client:
        client.sock.settimeout(0.5)
        asked = b"".join(frame(HEADERS, 5, n, HEAD) for n in range(1, 20_000, 2))
        with pytest.raises((TimeoutError, ConnectionError)):
            client.sock.sendall(asked * 100)
    eventually(lambda: len(server.http.connections), 0)
