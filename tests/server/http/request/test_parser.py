"""`RequestReader` without a socket: bytes in, requests and errors out."""

import pytest

from tests.server.harness import request
from tests.server.http.http1.test_protocol_hostile import MALFORMED
from topics.errors import TopicsError
from topics.server.http.http_limits import HttpLimits
from topics.server.http.request.head import RequestHead
from topics.server.http.request.parser import BETWEEN, IN_BODY, IN_HEAD, RequestReader

CHUNKED_HEAD = b"POST /echo?a=1 HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED = CHUNKED_HEAD + b"5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nX-Trailer: t\r\n\r\n"
SIZED = request("/echo", "X-Two: a", "x-two: b", "X-Pad:  p ", method="POST", body=b"hello world")
NEXT = b"GET /smuggled HTTP/1.1\r\nHost: test\r\n\r\n"
H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")


class RequestListener:
    """Records what a reader finds."""

    def __init__(self, *, wants: bool = True) -> None:
        self.wants = wants
        self.heads: list[RequestHead] = []
        self.requests: list[tuple[str, bytes, bytes, dict[bytes, bytes], bytes]] = []
        self.errors: list[str] = []

    def take_head(self, head: RequestHead) -> bool:
        self.heads.append(head)
        return self.wants

    def take_request(self, head: RequestHead, body: bytes) -> None:
        asked = head.request
        self.requests.append((asked.method, asked.path, asked.query, asked.headers, body))

    def take_error(self, error: TopicsError) -> None:
        self.errors.append(error.code.wire)


def read(*pieces: bytes, wants: bool = True, **limits: int) -> RequestListener:
    """Return what a new reader finds in the pieces. Each is fed to its end."""
    listener = RequestListener(wants=wants)
    reader = RequestReader(listener, HttpLimits(**limits), "peer")
    for piece in pieces:
        feed(reader, piece)
    return listener


def feed(reader: RequestReader, data: bytes) -> None:
    while data:
        used = reader.feed(data)
        assert 0 < used <= len(data)
        data = data[used:]


# --- framing


@pytest.mark.parametrize("data", [SIZED, CHUNKED, request("/get?x=%20y")], ids=["sized", "chunked", "no body"])
def test_request_is_the_same_wherever_it_is_split(data):
    expected = read(data).requests
    assert len(expected) == 1
    for at in range(1, len(data)):
        listener = read(data[:at], data[at:])
        assert (listener.requests, listener.errors, len(listener.heads)) == (expected, [], 1), at


def test_pipelined_requests_are_the_same_wherever_they_are_split():
    data = SIZED + CHUNKED + request("/get") + CHUNKED
    expected = read(data).requests
    assert [body for *_, body in expected] == [b"hello world", b"hello world", b"", b"hello world"]
    for at in range(1, len(data)):
        assert read(data[:at], data[at:]).requests == expected, at


def test_requests_are_the_same_byte_by_byte():
    data = SIZED + CHUNKED + SIZED
    assert read(*(data[at : at + 1] for at in range(len(data)))).requests == read(data).requests


def test_repeated_fields_are_joined_and_values_stripped():
    [(method, path, query, headers, body)] = read(SIZED).requests
    assert (method, path, query, body) == ("POST", b"/echo", b"", b"hello world")
    assert headers[b"x-two"] == b"a, b"
    assert headers[b"x-pad"] == b"p"


def test_trailer_fields_and_chunk_extensions_are_dropped():
    [(*_, headers, body)] = read(CHUNKED).requests
    assert b"x-trailer" not in headers
    assert body == b"hello world"


def test_head_carries_what_framing_needs():
    old = read(b"GET / HTTP/1.0\r\n\r\n").heads[0]
    assert (old.old, old.keep_alive) == (True, False)
    closing = read(request("/", "Connection: close")).heads[0]
    assert (closing.old, closing.keep_alive) == (False, False)
    head_only = read(request("/", "Accept-Encoding: gzip", method="HEAD")).heads[0]
    assert (head_only.head_only, head_only.request.method, head_only.gzip) == (True, "GET", True)
    waiting = read(request("/", "Expect: 100-continue", "Content-Length: 4", method="POST")).heads[0]
    assert (waiting.expects, waiting.content_length, waiting.chunked) == (True, 4, False)
    chunked = read(CHUNKED_HEAD).heads[0]
    assert (chunked.chunked, chunked.content_length) == (True, 0)
    packed = read(request("/", "Content-Encoding: gzip", method="POST", body=b"x")).heads[0]
    assert packed.packed


def test_phase_and_held_bytes_follow_the_input():
    reader = RequestReader(RequestListener(), HttpLimits(), "peer")
    assert (reader.phase, reader.held_bytes, reader.body_left_bytes) == (BETWEEN, 0, 0)
    feed(reader, SIZED[:40])
    assert reader.phase == IN_HEAD
    assert reader.held_bytes > 0
    feed(reader, SIZED[40:-3])
    assert (reader.phase, reader.body_left_bytes) == (IN_BODY, 3)
    assert reader.held_bytes > len(b"hello wo")
    feed(reader, SIZED[-3:])
    assert (reader.phase, reader.held_bytes, reader.body_left_bytes) == (BETWEEN, 0, 0)


def test_body_that_is_not_wanted_is_read_past():
    listener = read(SIZED + CHUNKED + SIZED, wants=False)
    assert (len(listener.heads), listener.requests, listener.errors) == (3, [], [])


# --- errors


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_input_is_one_error_and_the_end(data):
    for pieces in ([data + NEXT], [*(data[at : at + 1] for at in range(len(data))), NEXT]):
        listener = read(*pieces)
        assert (listener.errors, listener.requests) == (["invalid_request"], [])


def test_malformed_input_behind_a_request_leaves_the_request():
    listener = read(SIZED + b"nonsense\r\n\r\n" + SIZED)
    assert (len(listener.requests), listener.errors) == (1, ["invalid_request"])


def test_stopped_reader_finds_nothing_more():
    listener = RequestListener()
    reader = RequestReader(listener, HttpLimits(), "peer")
    feed(reader, SIZED[:-3])
    reader.stop()
    feed(reader, SIZED[-3:] + SIZED)
    assert (listener.requests, listener.errors, reader.held_bytes) == ([], [], 0)


# --- limits


@pytest.mark.parametrize("split", [False, True])
def test_announced_body_over_the_limit_is_refused_before_it_comes(split):
    data = request("/", "Content-Length: 1001", method="POST") + bytes(1001)
    listener = read(*([data] if not split else [data[:60], data[60:]]), max_body_bytes=1000)
    assert (listener.errors, listener.requests, listener.heads) == (["payload_too_large"], [], [])
    assert read(request("/", method="POST", body=bytes(1000)), max_body_bytes=1000).errors == []


def test_chunked_body_is_counted_as_it_comes():
    chunk = b"1f4\r\n" + bytes(500) + b"\r\n"
    assert read(CHUNKED_HEAD + chunk * 2 + b"0\r\n\r\n", max_body_bytes=1000).errors == []
    listener = read(CHUNKED_HEAD + chunk * 2 + b"1\r\nx\r\n", max_body_bytes=1000)
    assert (listener.errors, listener.requests) == (["payload_too_large"], [])


def test_body_that_is_not_wanted_has_the_same_limit():
    chunk = b"1f4\r\n" + bytes(500) + b"\r\n"
    assert read(CHUNKED_HEAD + chunk * 3, wants=False, max_body_bytes=1000).errors == ["payload_too_large"]


@pytest.mark.parametrize(
    "field",
    [b"X: " + b"y" * 3000, b"\r\n".join(b"X%d: y" % i for i in range(30)), b"Y" * 3000 + b": z"],
    ids=["long value", "many fields", "long name"],
)
def test_head_over_its_limits_is_refused_whole_or_in_pieces(field):
    data = b"GET / HTTP/1.1\r\nHost: test\r\n" + field + b"\r\n\r\n"
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))]):
        assert read(*pieces, max_header_bytes=2000, max_headers=20).errors == ["headers_too_large"]


def test_head_at_its_limits_is_read():
    fields = [f"X{i}: y" for i in range(19)]
    assert len(read(request("/", *fields), max_headers=20).requests) == 1
    assert read(request("/", *fields, "X: y"), max_headers=20).errors == ["headers_too_large"]


@pytest.mark.parametrize(
    "endless",
    [b"GET /", b"GET / HTTP/1.1\r\nHost: ", CHUNKED_HEAD + b"1;", CHUNKED_HEAD + b"0\r\nX: "],
    ids=["target", "value", "chunk extension", "trailer"],
)
def test_input_without_end_is_refused_at_the_limit(endless):
    listener = RequestListener()
    reader = RequestReader(listener, HttpLimits(max_header_bytes=2000), "peer")
    feed(reader, endless)
    fed = 0
    while not listener.errors:
        assert fed < 4000
        feed(reader, b"y" * 100)
        fed += 100
    assert listener.errors == ["headers_too_large"]


def test_each_chunk_extension_is_limited():
    extension = b"1;" + b"e" * 1500 + b"\r\nx\r\n"
    assert len(read(CHUNKED_HEAD, *[extension] * 5, b"0\r\n\r\n", max_header_bytes=2000).requests) == 1
    longer = b"1;" + b"e" * 2500
    assert read(CHUNKED_HEAD, longer, max_header_bytes=2000).errors == ["headers_too_large"]


# --- upgrades


def test_reader_stops_behind_the_head_of_an_upgrade():
    listener = RequestListener()
    reader = RequestReader(listener, HttpLimits(), "peer")
    head = request("/ws", "Connection: Upgrade", "Upgrade: echo")
    assert reader.feed(head + b"other protocol") == len(head)
    assert (listener.heads[0].upgrade, len(listener.requests)) == (True, 1)


def test_upgrade_that_is_not_granted_is_followed_by_plain_requests():
    head = request("/ws", "Connection: Upgrade", "Upgrade: echo")
    assert [path for _, path, *_ in read(head + request("/next")).requests] == [b"/ws", b"/next"]


def test_upgrade_offer_on_a_request_with_a_body_is_ignored():
    data = request("/echo", *H2C, method="POST", body=b"body")
    for at in range(1, len(data)):
        [(_, path, _, headers, body)] = read(data[:at], data[at:]).requests
        assert (path, body, b"upgrade" in headers) == (b"/echo", b"body", False), at
