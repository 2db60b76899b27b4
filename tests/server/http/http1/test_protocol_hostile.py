"""Malformed and hostile input: every case ends in an answer or a close, never in a 5xx or a traceback."""

import gzip
import io
import random
import socket
import zlib

import pytest

from tests.server.harness import request
from topics.server.http.messages import Request, Response
from topics.server.http.request.head import HeadCache, RequestHead

HEAD = b"POST /echo HTTP/1.1\r\nHost: test\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
NEXT = b"GET /smuggled HTTP/1.1\r\nHost: test\r\n\r\n"

MALFORMED = {
    "two lengths that agree": HEAD + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
    "two lengths that differ": HEAD + b"Content-Length: 1\r\nContent-Length: 40\r\n\r\na",
    "a list of lengths": HEAD + b"Content-Length: 1, 1\r\n\r\na",
    "a length before chunked": HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length after chunked": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "a signed length": HEAD + b"Content-Length: +1\r\n\r\na",
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\na",
    "a hexadecimal length": HEAD + b"Content-Length: 0x1\r\n\r\na",
    "a length past 64 bits": HEAD + b"Content-Length: 99999999999999999999\r\n\r\na",
    "an empty length": HEAD + b"Content-Length:\r\n\r\na",
    "an unknown transfer coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a coding before chunked": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding after chunked": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "two transfer codings": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a tab inside a coding": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "a blank before the colon": HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded line": HEAD + b"X: a\r\n b\r\n\r\n",
    "a folded coding": HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a NUL in a value": HEAD + b"X: a\0b\r\n\r\n",
    "a control character in a value": HEAD + b"X: a\x01b\r\n\r\n",
    "a NUL in a name": HEAD + b"X\0Y: a\r\n\r\n",
    "a bare LF": b"GET / HTTP/1.1\nHost: test\n\n",
    "a bare LF between fields": b"GET / HTTP/1.1\r\nHost: test\nX: y\r\n\r\n",
    "a bare CR": b"GET / HTTP/1.1\r\nHost: test\rX: y\r\n\r\n",
    "a field without a name": HEAD + b": v\r\n\r\n",
    "a field without a colon": HEAD + b"foo\r\n\r\n",
    "a chunk size that is no number": CHUNKED + b"xyz\r\nabc\r\n0\r\n\r\n",
    "a negative chunk size": CHUNKED + b"-1\r\nabc\r\n0\r\n\r\n",
    "a chunk size past 64 bits": CHUNKED + b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "a blank after a chunk size": CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n",
    "a chunk longer than its size": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "chunks parted by LF": CHUNKED + b"3\nabc\n0\n\n",
    "a length as a trailer": CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n",
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "two tokens": b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    "a Host with a blank": b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: test\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: test\r\n\r\n",
    "half an HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "an unknown method": b"FETCH / HTTP/1.1\r\nHost: test\r\n\r\n",
    "CONNECT": b"CONNECT test:80 HTTP/1.1\r\nHost: test\r\n\r\n",
    "a target with a fragment": b"GET /a#b HTTP/1.1\r\nHost: test\r\n\r\n",
    "a target that is no path": b"GET a HTTP/1.1\r\nHost: test\r\n\r\n",
    "a target outside ASCII": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: test\r\n\r\n",
    "a target with a blank": b"GET /a b HTTP/1.1\r\nHost: test\r\n\r\n",
}


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_http_is_answered_with_400_and_ends_the_input(server, app, sent):
    with server.connect() as client:
        client.send(sent + NEXT)
        answer = client.answer()
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert answer.headers["connection"] == "close"
        assert client.rest() == b""
    assert app.handled == 0


def test_malformed_http_behind_a_good_request_is_answered_after_it(server, app):
    with server.connect() as client:
        client.send(request("/later") + b"nonsense\r\n\r\n")
        assert app.events.get(timeout=5)[0] == "waiting"
        server.call(lambda: app.waiting[0].resolve(Response(200, b"{}")))
        assert [client.answer().status, client.answer().status] == [200, 400]
        assert client.rest() == b""


def test_known_head_does_not_bypass_the_parser(server):
    """Each variant differs from a cached head in a way that changes its meaning."""
    known = request("/echo", method="POST", body=b"12")
    variants = [
        known.replace(b"Host: test", b"Host: test\r\nTransfer-Encoding: chunked"),
        known.replace(b"\r\nHost", b"\nHost"),
        known.replace(b"POST", b"POST\0"),
        known.replace(b"POST /echo", b"POST /ec\r\nho"),
        known.replace(b"/echo", b"/echo#x"),
        known.replace(b"HTTP/1.1", b"HTTP/1.3"),
    ]
    for variant in variants:
        with server.connect() as client:
            for _ in range(2):
                assert client.post("/echo", b"12").body == b"12"
            client.send(variant)
            assert client.answer().status == 400
    with server.connect() as client:
        client.send(known[:-1])  # the body is not whole, so there is no answer yet
        client.send(known[-1:] + known)
        assert [client.answer().body, client.answer().body] == [b"12", b"12"]
        assert [client.get("/describe").status for _ in range(2)] == [200, 200]
        client.send(request("/describe")[:-4])  # the head may still go on, so there is no answer yet
        with server.connect() as other:  # when it is answered, the server has read the piece
            assert other.get("/hello").status == 200
        client.send(b"\r\nX-More: yes\r\n\r\n")
        assert b"x-more" in client.answer().body
        client.send(known[: known.index(b"\r\n\r\n")])
        client.send(b"\r\n\r\n12")
        assert client.answer().body == b"12"


def test_head_is_cached_only_if_parser_and_search_agree():
    data = request("/echo", "X: y", method="POST", body=b"12")
    headers = {b"host": b"test", b"x": b"y", b"content-length": b"2"}

    def knows(fields, **about):
        cache = HeadCache()
        cache.learn(data, RequestHead(Request("POST", b"/echo", b"", headers, b"12", "", 0), **about), fields=fields)
        return cache.compose(data.partition(b"\r\n\r\n")[0]) is not None

    assert knows(3, content_length=2)
    assert not knows(2, content_length=2)
    assert not knows(4, content_length=2)
    assert not knows(3, content_length=1)
    for special in ("old", "chunked", "packed", "upgrade"):
        assert not knows(3, content_length=2, **{special: True})
    assert not knows(3, content_length=2, keep_alive=False)


def test_trailer_fields_never_become_header_fields(server):
    with server.connect() as client:
        client.send(b"POST /describe HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(b"0\r\nAuthorization: Bearer stolen\r\n\r\n")
        assert b"stolen" not in client.answer().body


def test_random_bytes_never_get_a_5xx(server):
    chance = random.Random(7)
    seeds = [*MALFORMED.values(), NEXT, request("/echo", method="POST", body=b"hello")]
    for _ in range(150):
        data = bytearray(chance.choice(seeds) + chance.choice(seeds))
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with server.connect() as client:
            client.send(bytes(data))
            client.sock.shutdown(socket.SHUT_WR)
            assert b"HTTP/1.1 5" not in client.rest()
    with server.connect() as client:
        assert client.get("/hello").status == 200


# --- limits ---


def test_announced_oversized_body_is_refused_before_it_is_sent(serve, app):
    server = serve(max_body_bytes=1000)
    for expect in ((), ("Expect: 100-continue",)):
        with server.connect() as client:
            client.send(request("/echo", *expect, "Content-Length: 1001", method="POST"))
            answer = client.answer()
            assert (answer.status, answer.code) == (413, "payload_too_large")
            assert client.rest() == b""
    assert app.handled == 0


def test_refusal_reaches_a_client_that_goes_on_sending(serve):
    server = serve(max_body_bytes=1000)
    with server.connect() as client:
        client.send(request("/echo", "Content-Length: 40000000", method="POST"))
        for _ in range(40):
            client.send(bytes(1_000_000))
        assert client.answer().status == 413


def test_chunked_body_is_counted_as_it_comes(serve):
    server = serve(max_body_bytes=1000)
    with server.connect() as client:
        client.send(CHUNKED + b"1f4\r\n" + b"x" * 500 + b"\r\n1f4\r\n" + b"x" * 500 + b"\r\n0\r\n\r\n")
        assert len(client.answer().body) == 1000
        client.send(CHUNKED + b"1f4\r\n" + b"x" * 500 + b"\r\n1f5\r\n" + b"x" * 501 + b"\r\n")
        assert client.answer().status == 413
        assert client.rest() == b""


@pytest.mark.parametrize(
    "field",
    [b"X: " + b"y" * 3000, b"\r\n".join(b"X%d: y" % i for i in range(30)), b"Y" * 3000 + b": z"],
    ids=["a long value", "many fields", "a long name"],
)
def test_head_past_its_limits_is_answered_with_431(serve, field):
    server = serve(max_header_bytes=2000, max_headers=20)
    with server.connect() as client:
        client.send(HEAD + field + b"\r\n\r\n")
        answer = client.answer()
        assert (answer.status, answer.code) == (431, "headers_too_large")
        assert client.rest() == b""


@pytest.mark.parametrize(
    "endless",
    [b"GET /", HEAD + b"X: ", HEAD, CHUNKED + b"1;", CHUNKED + b"0\r\nX: ", CHUNKED + b"0\r\n"],
    ids=["target", "value", "fields", "chunk extension", "trailer value", "trailers"],
)
def test_head_or_trailer_without_end_is_cut_off(serve, endless):
    server = serve(max_header_bytes=2000)
    # A piece of input (16 KiB) may pass before it is counted, so there is more than that of each.
    more = b"Abc: d\r\n" * 60 if endless.endswith(b"\r\n") and endless != CHUNKED else b"y" * 500
    with server.connect() as client:
        client.send(endless)
        try:
            for _ in range(1000):
                client.send(more)
            assert client.answer().status == 431
        except (BrokenPipeError, ConnectionResetError):
            pass


def test_gzip_bomb_ends_as_413(serve, app):
    server = serve(max_body_bytes=4_000_000)
    bomb = gzip.compress(bytes(50_000_000), 9)
    assert len(bomb) < 100_000
    with server.connect() as client:
        answer = client.post("/count", bomb, "Content-Encoding: gzip")
        assert (answer.status, answer.code) == (413, "payload_too_large")
        assert client.get("/hello").status == 200


def test_gzip_body_is_unpacked_whether_short_long_or_in_members(server):
    noise = random.Random(1).randbytes(1_000_000)
    with server.connect() as client:
        for body in (b"", b"short", b"ab" * 200_000, noise):
            packed = gzip.compress(body)
            assert client.post("/echo", packed, "Content-Encoding: gzip").body == body
        named = io.BytesIO()
        with gzip.GzipFile("n" * 40_000, "wb", fileobj=named) as file:
            file.write(b"a long name")
        assert client.post("/echo", named.getvalue(), "Content-Encoding: gzip").body == b"a long name"
        parts = gzip.compress(b"one ") + gzip.compress(b"two")
        assert client.post("/echo", parts, "Content-Encoding: gzip").body == b"one two"
        client.send(
            b"".join(
                request("/count", "Content-Encoding: gzip", method="POST", body=gzip.compress(noise))
                + request("/hello")
                for _ in range(2)
            )
        )
        assert [client.answer().body for _ in range(4)] == [b"1000000", b'{"hello":"world"}'] * 2


@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress(b"hello")[:-3],
        gzip.compress(bytes(1_000_000))[:-20],
        gzip.compress(b"hello") + b"tail",
        b"not gzip at all",
        zlib.compress(b"hello"),
        gzip.compress(b"") * 5000,
    ],
    ids=["cut", "cut long", "tail", "plain", "zlib", "five thousand members"],
)
def test_damaged_gzip_body_is_answered_with_400(server, packed):
    with server.connect() as client:
        answer = client.post("/count", packed, "Content-Encoding: gzip")
        assert (answer.status, answer.code) == (400, "invalid_request")


def test_another_content_encoding_is_answered_with_415(server):
    with server.connect() as client:
        answer = client.post("/echo", b"x", "Content-Encoding: br")
        assert (answer.status, answer.code) == (415, "unsupported_media_type")


# --- failures of the application


@pytest.mark.parametrize("path", ["/boom", "/admit-boom", "/bad-field"])
def test_exception_is_a_500_that_tells_nothing(server, caplog, path):
    with server.connect() as client:
        for _ in range(2):
            answer = client.post(path, b"hunter2")
            assert (answer.status, answer.code) == (500, "internal")
            assert b"hunter2" not in answer.body
            if "connection" in answer.headers:
                break
        else:
            assert client.get("/hello").status == 200
    assert caplog.records[0].name == "topics.http"
    assert "hunter2" not in caplog.records[0].getMessage()


def test_exception_in_an_upgraded_connection_ends_it(server, app, caplog):
    with server.connect() as client:
        client.send(request("/upgrade", "Connection: Upgrade", "Upgrade: echo"))
        assert client.answer().status == 101
        client.send(b"boom")
        with pytest.raises((EOFError, ConnectionResetError)):
            client.exactly(1)
    assert app.events.get(timeout=5)[0] == "closed"
    assert caplog.records[0].name == "topics.http"
