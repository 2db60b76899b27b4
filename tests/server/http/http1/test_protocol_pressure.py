"""Slow clients, idle clients, many clients, clients that do not read, and the drain of the server."""

import contextlib
import json
import socket
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.server.harness import Client, request
from topics.server.http.messages import Response
from topics.server.http.request.head import accepts_gzip

PAGE_BYTES = 4096


def resident_bytes(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


# --- deadlines ---


def test_incomplete_head_is_answered_with_408(serve):
    server = serve(header_timeout_ms=80)
    with server.connect() as client:
        client.send(b"GET / HTTP/1.1\r\nHost: te")
        answer = client.answer()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert client.rest() == b""


def test_incomplete_body_is_answered_with_408(serve, app):
    server = serve(body_timeout_ms=80)
    with server.connect() as client:
        client.send(request("/echo", "Content-Length: 10", method="POST") + b"half")
        assert client.answer().status == 408
        assert client.rest() == b""
    assert app.handled == 0


def test_refused_body_that_does_not_come_is_not_answered_twice(serve):
    server = serve(body_timeout_ms=80)
    with server.connect() as client:
        client.send(request("/refuse", "Content-Length: 10", method="POST") + b"half")
        assert client.answer().status == 401
        try:
            assert client.rest() == b""
        except ConnectionResetError:
            pass


def test_idle_connection_is_closed_without_an_answer(serve):
    server = serve(idle_timeout_ms=80)
    with server.connect() as fresh, server.connect() as used:
        assert used.get("/hello").status == 200
        assert used.rest() == b""
        assert fresh.rest() == b""


def test_client_that_waits_for_a_late_answer_is_not_idle(serve, app):
    server = serve(idle_timeout_ms=60, header_timeout_ms=60, body_timeout_ms=60)
    with server.connect() as waiting, server.connect() as idle:
        waiting.send(request("/later"))
        assert app.events.get(timeout=5)[0] == "waiting"
        assert idle.rest() == b""  # the deadline has passed for both now
        server.call(lambda: app.waiting[0].resolve(Response(200, b"{}")))
        assert waiting.answer().status == 200


def test_client_that_takes_nothing_of_its_answer_is_cut_off(serve):
    server = serve(write_timeout_ms=100, high_water_bytes=10_000)
    with server.connect(receive_buffer=4096) as client:
        client.send(request("/large?20000000"))
        client.until(b"\r\n\r\n")
        server.wait_until(lambda: len(server.http.connections), 0)
        with pytest.raises((EOFError, ConnectionResetError)):
            client.exactly(20_000_000)


def test_flood_of_pipelined_requests_yields_to_other_connections(server, app):
    with server.connect() as client:
        client.send(request("/mark") + request("/hello") * 5000)
        # The share of this turn, and of the next one, which may come before the mark.
        assert app.events.get(timeout=5)[1] <= 2 * server.http.limits.max_pipelined
        assert [client.answer().status for _ in range(5001)] == [200] * 5001


def test_requests_that_take_long_share_a_turn_with_none_other(server, app):
    with server.connect() as client:
        client.send(request("/mark") + request("/slow") * 50)
        assert app.events.get(timeout=5)[1] <= 3
        assert [client.answer().status for _ in range(51)] == [200] * 51


# --- memory ---


def test_client_that_does_not_read_is_not_answered_into_memory(serve, app):
    server = serve(high_water_bytes=256 * 1024)
    with server.connect(receive_buffer=4096) as client:
        before = resident_bytes()
        # 10,000 answers of 100 kB would be 1 GB.
        client.send(request("/large?100000") * 10_000)
        handled = server.call(lambda: app.handled)
        while handled != (handled := server.call(lambda: app.handled)):
            pass
        assert 0 < handled < 200
        assert resident_bytes() - before < 50_000_000
        for _ in range(handled + 20):
            assert len(client.answer().body) == 100_000
        assert app.handled > handled


def test_known_heads_do_not_bypass_backpressure(serve, app):
    server = serve(high_water_bytes=256 * 1024)
    with server.connect(receive_buffer=4096) as client:
        assert client.get("/large?1000000").status == 200
        for _ in range(40):
            client.send(request("/large?1000000"))  # each in a segment of its own
            server.call(lambda: None)
        [connection] = server.http.connections
        assert server.call(connection.unsent_bytes) < 3_000_000
        assert app.handled < 20
        assert [client.answer().status for _ in range(40)] == [200] * 40


def test_answers_that_wait_behind_a_late_one_are_bounded(serve, app):
    server = serve(high_water_bytes=256 * 1024)
    with server.connect() as client:
        client.send(request("/later") + request("/large?100000") * 40)
        assert app.events.get(timeout=5)[0] == "waiting"
        assert server.call(lambda: app.handled) < 8
        server.call(lambda: app.waiting[0].resolve(Response(200, b"{}")))
        assert [client.answer().status for _ in range(41)] == [200] * 41


def test_body_in_tiny_chunks_takes_little_more_than_its_size(server):
    chunks = b"2\r\nab\r\n" * 100_000
    with server.connect() as client:
        client.send(b"POST /count HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n")
        before = resident_bytes()
        for _ in range(5):
            client.send(chunks)
        client.send(b"0\r\n\r\n")
        assert client.answer().body == b"1000000"
        assert resident_bytes() - before < 20_000_000


def test_thousand_idle_connections_cost_little(capsys):
    command = [sys.executable, "-m", "tests.server.harness"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with contextlib.ExitStack() as stack:
            for client in [stack.enter_context(Client(port)) for _ in range(20)]:
                assert client.get("/hello").status == 200  # everything that is allocated once is allocated now
            before = resident_bytes(process.pid)
            for client in [stack.enter_context(Client(port)) for _ in range(1000)]:
                assert client.get("/hello").status == 200
            each = (resident_bytes(process.pid) - before) / 1000
        process.communicate()
    with capsys.disabled():
        print(f"\n{each:.0f} bytes an idle connection")
    assert each < 10_000


# --- compression ---


def test_large_answer_is_gzipped_for_those_who_ask(server):
    with server.connect() as client:
        for words, gzipped in ((10, False), (500, True), (50_000, True)):
            answer = client.get(f"/json?{words}", "Accept-Encoding: br, gzip;q=0.5")
            assert (answer.headers.get("content-encoding") == "gzip") is gzipped
            assert ("vary" in answer.headers) is gzipped
            body = zlib.decompress(answer.body, 31) if gzipped else answer.body
            assert json.loads(body) == ["word"] * words
        plain = client.get("/json?500")
        assert "content-encoding" not in plain.headers
        assert plain.headers["vary"] == "accept-encoding"
        assert "vary" not in client.get("/echo").headers


@pytest.mark.parametrize(
    ("field", "allowed"),
    [
        (None, False),
        (b"", False),
        (b"gzip", True),
        (b"GZIP", True),
        (b"deflate, gzip", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.000", False),
        (b"gzip ; q=0.1", True),
        (b"*", True),
        (b"*;q=0", False),
        (b"gzip;q=0, *", False),
        (b"*;q=0, gzip", True),
        (b"identity", False),
        (b"gzip;q=many", False),
    ],
)
def test_weights_of_accept_encoding_are_respected(field, allowed):
    assert accepts_gzip(field) is allowed


# --- drain


def test_drain_closes_idle_connections_and_lets_the_others_finish(server, app):
    with server.connect() as idle, server.connect() as waiting, server.connect() as sending:
        assert idle.get("/hello").status == 200
        waiting.send(request("/later"))
        assert app.events.get(timeout=5)[0] == "waiting"
        sending.send(request("/echo", "Content-Length: 4", method="POST") + b"bo")
        server.wait_until(lambda: server.http.requests_total, 3)
        drained = server.start_drain()
        assert idle.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            server.connect()
        sending.send(b"dy")
        answer = sending.answer()
        assert (answer.body, answer.headers["connection"]) == (b"body", "close")
        server.call(lambda: app.waiting[0].resolve(Response(200, b"late")))
        answer = waiting.answer()
        assert (answer.body, answer.headers["connection"]) == (b"late", "close")
        assert waiting.rest() == sending.rest() == b""
        assert drained.result(5) == 0


def test_drain_ends_streams_and_upgraded_connections(server, app):
    with server.connect() as stream, server.connect() as upgraded:
        stream.send(request("/stream"))
        assert app.events.get(timeout=5)[0] == "opened"
        upgraded.send(request("/upgrade", "Connection: Upgrade", "Upgrade: echo"))
        assert upgraded.answer().status == 101
        assert server.drain() == 0
        assert stream.rest().endswith(b"event: hello\n\n")
        assert upgraded.rest() == b""
    assert {app.events.get(timeout=5)[0] for _ in range(2)} == {"closed"}


def test_drain_cuts_off_what_is_not_done_by_its_deadline(server, app):
    with server.connect() as client:
        client.send(request("/later?x"))
        assert app.events.get(timeout=5)[0] == "waiting"
        assert server.drain(50) == 1
        assert app.events.get(timeout=5) == ("cancelled", b"x")
        with pytest.raises((EOFError, ConnectionResetError)):
            client.answer()


def test_drained_server_answers_pipelined_requests_and_closes_after_the_last(server, app):
    with server.connect() as client:
        client.send(request("/later") + request("/hello"))
        assert app.events.get(timeout=5)[0] == "waiting"
        drained = server.start_drain()
        server.call(lambda: app.waiting[0].resolve(Response(200, b"{}")))
        first, second = client.answer(), client.answer()
        assert ("connection" in first.headers, second.headers["connection"]) == (False, "close")
        assert drained.result(5) == 0


@pytest.mark.parametrize(
    ("sent", "requests", "events"),
    [
        (b"", 0, []),
        (b"GET", 0, []),
        (request("/echo", "Content-Length: 9", method="POST") + b"half", 1, ["abandoned"]),
        (request("/large?5000000"), 1, []),
        (request("/stream"), 1, ["opened", "closed"]),
        (request("/later") * 3, 3, ["waiting"] * 3 + ["cancelled"] * 3),
    ],
    ids=["nothing", "part of a head", "part of a body", "a large answer", "a stream", "late answers"],
)
def test_reset_connection_leaves_nothing_behind(server, app, sent, requests, events):
    with server.connect() as client:
        client.send(sent)
        server.wait_until(lambda: (len(server.http.connections), server.http.requests_total), (1, requests))
        # With a linger time of 0 the kernel sends a reset: the client is gone, and did not just shut its side.
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    server.wait_until(lambda: len(server.http.connections), 0)
    seen = [app.events.get(timeout=5)[0] for event in events if event != "abandoned"]
    assert seen + ["abandoned"] * app.abandoned == events
    assert app.events.empty()
    assert server.call(lambda: server.http.budget.charged_bytes) == 0
