"""Well-formed use of a connection: keep-alive, order, bodies, streams, upgrade."""

import json
import socket

import pytest

from tests.server.harness import FakeApp, FakeStream, Harness, request
from topics.server.http.http_limits import HttpLimits
from topics.server.http.messages import Response

CHUNKED = (
    b"POST /echo?a=1 HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nX-Trailer: t\r\n\r\n"
)


def test_connection_carries_one_request_after_another(server):
    with server.connect() as client:
        for _ in range(3):
            answer = client.get("/hello")
            assert (answer.status, answer.body) == (200, b'{"hello":"world"}')
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["date"].endswith(" GMT")
    assert server.http.requests_total == 3


def test_fast_path_and_slow_path_build_the_same_request(server):
    with server.connect() as client:
        seen = [client.post("/describe?x=%20y", b"body", "X-Two: a", "x-two: b", "X-Pad:  p ").body for _ in range(2)]
    assert server.http.heads.known
    first, second = (json.loads(body) for body in seen)
    assert first == second
    assert first["query"] == "x=%20y"
    assert first["headers"] == {"host": "test", "x-two": "a, b", "x-pad": "p", "content-length": "4"}
    assert first["body"] == 4


@pytest.mark.parametrize("at", range(1, len(CHUNKED)))
def test_request_cut_in_two_anywhere_is_read_the_same(split_client, at):
    split_client.send(CHUNKED[:at])
    split_client.send(CHUNKED[at:])
    assert split_client.answer().body == b"hello world"


def test_request_sent_byte_by_byte_is_read_the_same(server):
    with server.connect() as client:
        for at in range(len(CHUNKED)):
            client.send(CHUNKED[at : at + 1])
        assert client.answer().body == b"hello world"


@pytest.fixture(scope="module")
def split_client():
    harness = Harness(FakeApp(), HttpLimits())
    with harness.connect() as client:
        yield client
    harness.stop()


def test_pipelined_requests_are_answered_in_order_whether_at_once_or_later(server, app):
    with server.connect() as client:
        paths = ["/hello", "/later?1", "/soon?a", "/hello", "/later?2", "/json?2000", "/soon?b"]
        client.send(b"".join(request(path, "Accept-Encoding: gzip") for path in paths))
        assert app.events.get(timeout=5) == ("waiting", b"1")
        assert app.events.get(timeout=5) == ("waiting", b"2")
        server.call(lambda: app.waiting[1].resolve(Response(200, b"second")))
        server.call(lambda: app.waiting[0].resolve(Response(200, b"first")))
        bodies = [client.answer().body for _ in paths]
    bodies[5] = b"packed"
    assert bodies == [b'{"hello":"world"}', b"first", b"soon a", b'{"hello":"world"}', b"second", b"packed", b"soon b"]


def test_thousand_pipelined_requests_are_all_answered(serve):
    server = serve(max_pipelined=4)
    with server.connect() as client:
        client.send(b"".join(request(f"/{'soon' if i % 3 else 'count'}?{i}") for i in range(1000)))
        bodies = [client.answer().body for _ in range(1000)]
    assert bodies == [b"soon %d" % i if i % 3 else b"0" for i in range(1000)]


def test_pipelined_requests_in_progress_are_limited(serve, app):
    server = serve(max_pipelined=4)
    with server.connect() as client:
        client.send(b"".join(request(f"/later?{i}") for i in range(50)) + request("/hello"))
        for i in range(50):
            assert app.events.get(timeout=5) == ("waiting", b"%d" % i)
            assert server.call(lambda: len(app.waiting)) <= i + 4
            server.call(lambda i=i: app.waiting[i].resolve(Response(200, b"%d" % i)))
        assert [client.answer().body for _ in range(50)] == [b"%d" % i for i in range(50)]
        assert client.answer().body == b'{"hello":"world"}'


def test_head_is_get_without_the_body(server):
    with server.connect() as client:
        got, asked = client.get("/hello"), client.get("/hello", method="HEAD")
        assert asked.status == got.status == 200
        assert asked.headers["content-length"] == got.headers["content-length"] == "17"
        assert client.get("/hello").body == got.body  # no part of a body is left between the two answers


def test_head_of_a_stream_is_its_head_alone(server, app):
    with server.connect() as client:
        client.send(request("/stream", method="HEAD"))
        assert b"text/event-stream" in client.rest()
    assert app.events.get(timeout=5)[0] == "closed"
    assert app.events.empty()


def test_answer_in_parts_is_written_in_order(server):
    with server.connect() as client:
        for _ in range(2):
            assert len(json.loads(client.get("/parts").body)["records"]) == 40_000


def test_answer_without_content_has_no_length(server):
    with server.connect() as client:
        answer = client.get("/empty")
        assert answer.status == 204
        assert "content-length" not in answer.headers
        assert client.get("/hello").status == 200


def test_http_1_0_closes_unless_asked_to_stay(server):
    with server.connect() as client:
        client.send(b"GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert client.answer().headers["connection"] == "keep-alive"
        client.send(b"GET /hello HTTP/1.0\r\n\r\n")
        assert client.answer().headers["connection"] == "close"
        assert client.rest() == b""


def test_client_that_asks_to_close_is_closed_after_its_answer(server):
    with server.connect() as client:
        assert client.get("/hello", "Connection: close").headers["connection"] == "close"
        assert client.rest() == b""


def test_target_with_scheme_and_host_is_understood(server):
    with server.connect() as client:
        client.send(b"GET http://test/describe?q HTTP/1.1\r\nHost: test\r\n\r\n")
        assert json.loads(client.answer().body)["query"] == "q"


def test_client_that_expects_100_continue_gets_it(server):
    with server.connect() as client:
        client.send(b"POST /echo HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert client.answer().status == 100
        client.send(b"body")
        assert client.answer().body == b"body"


def test_100_continue_waits_for_the_answers_before_it(server, app):
    with server.connect() as client:
        client.send(request("/later"))
        client.send(b"POST /echo HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert app.events.get(timeout=5)[0] == "waiting"
        server.call(lambda: app.waiting[0].resolve(Response(200, b"first")))
        assert client.answer().body == b"first"
        assert client.answer().status == 100
        client.send(b"body")
        assert client.answer().body == b"body"


def test_refused_request_with_short_body_keeps_the_connection(server):
    with server.connect() as client:
        assert client.post("/refuse", b"x" * 1000).status == 401
        assert client.get("/hello").status == 200


def test_refused_request_that_waits_for_100_continue_is_closed(server, app):
    with server.connect() as client:
        client.send(b"POST /refuse HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        answer = client.answer()
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        assert client.rest() == b""
    assert app.handled == 0


def test_client_that_shuts_its_side_still_gets_every_answer(server, app):
    with server.connect() as client:
        client.send(request("/hello") + request("/later") + request("/hello"))
        client.sock.shutdown(socket.SHUT_WR)
        assert client.answer().status == 200
        assert app.events.get(timeout=5)[0] == "waiting"
        server.call(lambda: app.waiting[0].resolve(Response(200, b"late")))
        assert client.answer().body == b"late"
        assert client.answer().status == 200
        assert client.rest() == b""


def test_late_answer_to_known_head_stays_in_order(server, app):
    with server.connect() as client:
        for turn in range(3):
            client.send(request("/later"))
            assert app.events.get(timeout=5)[0] == "waiting"
            if turn:
                client.send(request("/hello"))
                client.send(request("/count"))
                server.wait_until(lambda turn=turn: server.http.requests_total >= 3 * turn + 1)
            server.call(lambda turn=turn: app.waiting[turn].resolve(Response(200, b"late")))
            assert client.answer().body == b"late"
            if turn:
                assert [client.answer().body, client.answer().body] == [b'{"hello":"world"}', b"0"]


def test_late_answer_to_known_head_reaches_half_closed_client(server, app):
    with server.connect() as client:
        for turn in range(2):
            client.send(request("/later"))
            assert app.events.get(timeout=5)[0] == "waiting"
            if turn:
                client.sock.shutdown(socket.SHUT_WR)
                with server.connect() as other:  # when it is answered, the server has seen the end of the other
                    assert other.get("/hello").status == 200
            server.call(lambda turn=turn: app.waiting[turn].resolve(Response(200, b"late")))
            assert client.answer().body == b"late"
        assert client.rest() == b""


def test_client_that_leaves_cancels_its_deferred_answer(server, app):
    with server.connect() as client:
        client.send(request("/later?7"))
        assert app.events.get(timeout=5) == ("waiting", b"7")
        # With a linger time of 0 the kernel sends a reset: the client has left, and did not just shut its side.
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert app.events.get(timeout=5) == ("cancelled", b"7")
    server.call(lambda: app.waiting[0].resolve(Response(200, b"too late")))


def test_stream_is_open_until_its_client_leaves(server, app):
    with server.connect() as client:
        client.send(request("/stream"))
        head = client.until(b"\r\n\r\n")
        assert b"content-length" not in head
        assert b"connection: close" in head
        assert client.until(b"\n\n") == b"event: hello\n\n"
        _, stream = app.events.get(timeout=5)
        assert server.call(lambda: stream.sink.write(b"event: more\n\n")) is True
        assert client.until(b"\n\n") == b"event: more\n\n"
    assert app.events.get(timeout=5) == ("closed", stream)
    assert server.call(lambda: stream.sink.write(b"late")) is False
    assert app.events.empty()


def test_stream_that_ends_itself_is_closed_once(server, app):
    with server.connect() as client:
        client.send(request("/stream"))
        _, stream = app.events.get(timeout=5)
        server.call(lambda: (stream.sink.write(b"bye"), stream.sink.close(), stream.sink.close()))
        assert client.rest().endswith(b"event: hello\n\nbye")
    assert app.events.get(timeout=5) == ("closed", stream)
    assert app.events.empty()


def test_stream_waits_for_earlier_answers_and_drops_later_requests(server, app):
    with server.connect() as client:
        client.send(request("/later") + request("/stream") + request("/boom"))
        assert app.events.get(timeout=5)[0] == "waiting"
        server.call(lambda: app.waiting[0].resolve(Response(200, b"first")))
        assert client.answer().body == b"first"
        assert client.until(b"\n\n").endswith(b"event: hello\n\n")
    kinds = [app.events.get(timeout=5)[0] for _ in range(2)]
    assert kinds == ["opened", "closed"]
    assert app.handled == 2


def test_upgraded_connection_carries_both_directions(server, app):
    with server.connect() as client:
        client.send(request("/upgrade", "Connection: Upgrade", "Upgrade: echo") + b"early ")
        assert client.answer().status == 101
        assert client.exactly(6) == b"EARLY "
        client.send(b"more")
        assert client.exactly(4) == b"MORE"
    assert app.events.get(timeout=5)[0] == "closed"


def test_upgrade_that_is_not_granted_leaves_plain_http(server):
    with server.connect() as client:
        client.send(request("/hello", "Connection: Upgrade", "Upgrade: echo") + request("/describe"))
        assert client.answer().body == b'{"hello":"world"}'
        assert client.answer().status == 200


def test_upgrade_offer_on_a_request_with_a_body_is_ignored(server):
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    with server.connect() as client:
        for _ in range(2):
            assert client.post("/echo", b"body", *offer).body == b"body"
        assert client.get("/hello").status == 200


def test_stream_pauses_while_its_client_does_not_read(serve, app):
    server = serve(high_water_bytes=64 * 1024)
    with server.connect(receive_buffer=4096) as client:
        client.send(request("/stream"))
        _, stream = app.events.get(timeout=5)
        frame = b"x" * 32_768
        written = server.call(lambda: _write_until_full(stream, frame))
        assert server.call(stream.sink._connection.unsent_bytes) > 64 * 1024
        client.until(b"hello\n\n")
        client.exactly(written * len(frame))
        assert app.events.get(timeout=5) == ("drained", stream)


def _write_until_full(stream: FakeStream, frame: bytes) -> int:
    assert stream.sink is not None
    written = 1
    while stream.sink.write(frame):
        written += 1
    return written
