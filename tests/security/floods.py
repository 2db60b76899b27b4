"""Everything one client can do to keep a server busy: floods over a connection, and single requests that cost a lot.

A flood takes a port and returns once the server is through with it, or has refused to go on.
"""

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from tests.security.fairness import CONTINUATION, PING, PONG, TEXT, WAIT_S, exchange, frame, upgraded
from tests.server.http2_client import PREFACE, SETTINGS
from tests.server.http2_client import frame as http2_frame

MIB = 1 << 20
END = b'{"op":"ping","request_id":"the end"}'

Flood = Callable[[int], None]


# --- over a WebSocket


def over_socket(data: bytes) -> Flood:
    """Sends all of it, reads whatever comes back, and waits until everything was dealt with or the socket is closed."""

    def flood(port: int) -> None:
        with upgraded(port) as raw:
            reader = threading.Thread(target=_read_to_the_end, args=(raw,))
            reader.start()
            with suppress(OSError):
                raw.sendall(data)
                raw.sendall(frame(TEXT, END))
            reader.join()

    return flood


def _read_to_the_end(raw: socket.socket) -> None:
    last = b""
    with suppress(OSError):
        while (got := raw.recv(1 << 18)) and b'"the end"' not in last + got:
            last = got[-64:]


def repeated(unit: bytes, size_bytes: int) -> bytes:
    return unit * (size_bytes // len(unit))


def fragments(payload: bytes, size_bytes: int) -> bytes:
    """One message in fragments of `payload`, which never ends."""
    return frame(TEXT, payload, fin=False) + repeated(frame(CONTINUATION, payload, fin=False), size_bytes)


# --- over HTTP


def pipelined(request: str, count: int) -> Flood:
    """Sends the request so many times in one go, and reads all answers."""

    def flood(port: int) -> None:
        one = f"{request} HTTP/1.1\r\nhost: [::1]\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as raw:
            reader = threading.Thread(target=_read_to_the_end, args=(raw,))
            reader.start()
            raw.sendall(one * count)
            raw.sendall(b"GET /v0/topics/the%20end HTTP/1.1\r\nhost: [::1]\r\nconnection: close\r\n\r\n")
            reader.join()

    return flood


def nothing(port: int) -> None:
    """No flood: what the machine itself does to the bystander."""
    time.sleep(2)


HTTP_FLOODS: dict[str, Flood] = {
    "http health": pipelined("GET /v0/health", 50_000),
    "http states": pipelined("GET /v0/topics/bystander", 50_000),
    "http lists": pipelined("GET /v0/topics?page_size=1000", 400),
    "http metrics": pipelined("GET /v0/metrics", 100),
    "http openapi": pipelined("GET /v0/openapi.json", 2_000),
}

SOCKET_FLOODS: dict[str, Flood] = {
    "ws pings": over_socket(repeated(frame(PING), 2 * MIB)),
    "ws pongs": over_socket(repeated(frame(PONG), 2 * MIB)),
    "ws ping commands": over_socket(repeated(frame(TEXT, b'{"op":"ping"}'), 4 * MIB)),
    "ws empty texts": over_socket(repeated(frame(TEXT), 2 * MIB)),
    "ws one-byte fragments": over_socket(fragments(b" ", 2 * MIB)),
    "ws empty fragments": over_socket(fragments(b"", 2 * MIB)),
    "ws publishes": over_socket(repeated(frame(TEXT, b'{"op":"publish","topic":"f","records":[{"data":1}]}'), 4 * MIB)),
    "ws unsubscribes": over_socket(repeated(frame(TEXT, b'{"op":"unsubscribe","topic":"f"}'), 4 * MIB)),
}

# --- over HTTP/2


def over_http2(data: bytes) -> Flood:
    """Sends all of it after the preface, and reads until the server closes or has been silent for a second."""

    def flood(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as raw:
            reader = threading.Thread(target=_read_until_silent, args=(raw,))
            reader.start()
            with suppress(OSError):
                raw.sendall(PREFACE + SETTINGS + data)
            reader.join()

    return flood


def unread(data: bytes, *, seconds: float = 1) -> Flood:
    """Sends all of it after the preface, reads nothing for some seconds, and leaves."""

    def flood(port: int) -> None:
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.settimeout(seconds)
            raw.connect(("127.0.0.1", port))
            with suppress(OSError):
                raw.sendall(PREFACE + data)
            time.sleep(seconds)

    return flood


def _read_until_silent(raw: socket.socket) -> None:
    raw.settimeout(1)
    with suppress(OSError):
        while raw.recv(1 << 18):
            pass


GET, POST = b"\x82", b"\x83\x0f\x10\x10application/json"  # fields of RFC 7541


def streams(
    count: int, *after: tuple[int, int, bytes], flags: int = 5, path: bytes = b"/", method: bytes = GET
) -> bytes:
    """Requests on streams of their own, each with more frames of the stream behind it: kind, flags, payload."""
    head = method[:1] + b"\x86\x04" + bytes([len(path)]) + path + b"\x41\x09127.0.0.1" + method[1:]
    return b"".join(
        http2_frame(1, flags, number, head)
        + b"".join(http2_frame(kind, bits, number, more) for kind, bits, more in after)
        for number in range(1, 2 * count, 2)
    )


def window(initial_bytes: int) -> bytes:
    """Return settings that allow as many bytes on every stream."""
    return http2_frame(4, 0, 0, b"\0\x04" + initial_bytes.to_bytes(4, "big"))


MOST_STREAMS = 256  # that may be open at a time
LARGE = b"/v0/openapi.json"

HTTP2_FLOODS: dict[str, Flood] = {
    "h2 pings": over_http2(http2_frame(6, 0, 0, b"12345678") * 100_000),
    "h2 settings": over_http2(http2_frame(4) * 100_000),
    "h2 rapid resets": over_http2(streams(50_000, (3, 0, b"\0\0\0\x08"))),
    "h2 requests": over_http2(streams(20_000)),
    "h2 header block without end": over_http2(
        http2_frame(1, 0, 1, b"\x82") + http2_frame(9, 0, 1, b"\x82" * 100) * 10_000
    ),
    "h2 empty data": over_http2(streams(1, *[(0, 0, b"")] * 100_000, flags=4)),
    "h2 small data": over_http2(streams(1, *[(0, 0, b"x")] * 60_000, flags=4)),
    "h2 window updates": over_http2(http2_frame(8, 0, 0, b"\0\0\0\x01") * 100_000),
    "h2 answers that nobody reads": unread(window((1 << 31) - 1) + streams(MOST_STREAMS, path=LARGE)),
    "h2 answers without a window": unread(window(0) + streams(MOST_STREAMS, path=LARGE)),
    "h2 answers byte by byte": over_http2(
        window(0)
        + streams(16, path=LARGE)
        + b"".join(http2_frame(8, 0, n, b"\0\0\0\x01") for n in range(1, 33, 2)) * 500
    ),
}

# --- single requests


class Case(NamedTuple):
    """A request that costs a lot: what has to be there, what to measure, and which answer it gets."""

    flood: Flood
    prepare: Flood | None = None  # not measured


def asks(method: str, path: str, body: object = None, *, status: int = 200, times: int = 1) -> Flood:
    """The request so many times, one after the other; each must be answered with this status."""
    raw = None if body is None else json.dumps(body).encode()

    def flood(port: int) -> None:
        for _ in range(times):
            got, answer = exchange(port, method, path, raw)
            assert got == status, (got, answer)

    return flood


def packed(unit: bytes, size_bytes: int, *, before: bytes = b'{"records":[', after: bytes = b'{"data":1}]}') -> Flood:
    """A write with a gzip body that is small on the wire and as large as may be once it is unpacked."""

    def flood(port: int) -> None:
        body = gzip.compress(before + repeated(unit, size_bytes - len(before) - len(after)) + after, 1)
        got, answer = exchange(port, "POST", "/v0/topics/bomb", body, content_encoding="gzip")
        assert got in (200, 201, 400), (got, answer)

    return flood


def large_bodies(port: int) -> None:
    """Requests that are no writes, with as much to decode as a body can have."""
    for path, before, unit in (
        ("/v0/topics/bystander/diff", b'{"filter":[', b"[],"),
        ("/v0/topics/bystander/diff", b'{"node":[', b'"a",'),
        ("/v0/topics/bystander/delete", b'{"seqs":[', b"1,"),
        ("/v0/watch", b'{"topics":{', b'"a":{},'),
    ):
        for size_bytes in (MIB, 64 * MIB):
            body = before + repeated(unit, size_bytes - 64) + unit[:-1] + (b"}}" if before[-1:] == b"{" else b"]}")
            status, answer = exchange(port, "POST", path, body)
            assert status in (200, 400, 404, 413), (status, answer)


def patterns(count: int, *, word: str = "no") -> dict[str, object]:
    return {f"{word}{at:04}*": {} for at in range(count)}


def opens_stream(topics: dict[str, object]) -> Flood:
    """Makes a session and opens its stream, up to the first bytes."""

    def flood(port: int) -> None:
        _, session = exchange(port, "POST", "/v0/watch", json.dumps({"topics": topics}).encode())
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as raw:
            raw.sendall(
                f"GET {session['stream_url']} HTTP/1.1\r\nhost: [::1]\r\naccept: text/event-stream\r\n\r\n".encode()
            )
            got = b""
            while b": hb" not in got and b"retry:" not in got:
                got += raw.recv(65_536)
            time.sleep(0.2)

    return flood


def subscribes(topics: list[dict[str, object]]) -> Flood:
    commands = [json.dumps({"op": "subscribe", "topics": each}).encode() for each in topics]
    return over_socket(b"".join(frame(TEXT, command) for command in commands))


def with_records(topic: str, count: int) -> Flood:
    """Fills a topic with records whose tags fall in eight groups, if it has none yet."""

    def fill(port: int) -> None:
        status, _ = exchange(port, "GET", f"/v0/topics/{topic}")
        if status == 200:
            return
        for at in range(0, count, 10_000):
            records = ",".join(f'{{"data":1,"tag":"g{n % 8}:{n % 1000}"}}' for n in range(at, at + 10_000))
            body = f'{{"records":[{records}],"disable_backpressure":true}}'.encode()
            got, answer = exchange(port, "POST", f"/v0/topics/{topic}?return_seqs=false", body)
            assert got in (200, 201), answer

    return fill


# Beside 99,000 topics.
TOPIC_REQUESTS: dict[str, Case] = {
    "watch 256 patterns": Case(asks("POST", "/v0/watch", {"topics": patterns(256)})),
    "watch everything": Case(asks("POST", "/v0/watch", {"topics": {"*": {}}}, status=400)),
    "stream of 256 patterns": Case(opens_stream(patterns(256))),
    "subscribe 256 patterns": Case(subscribes([patterns(256)])),
    "subscribe again and again": Case(subscribes([patterns(256, word=f"no{at}") for at in range(4)])),
    "list page": Case(asks("GET", "/v0/topics", times=20)),
    "list of 1000": Case(asks("GET", "/v0/topics?page_size=1000", times=20)),
    "list, no such prefix": Case(asks("GET", "/v0/topics?prefix=zzz", times=20)),
    "metrics": Case(asks("GET", "/v0/metrics", times=10)),
    "diff with 100,000 nodes": Case(
        asks("POST", "/v0/topics/bystander/diff", {"node": [f"n{at}" for at in range(100_000)]}, status=400)
    ),
}

# Beside millions of records.
RECORD_REQUESTS: dict[str, Case] = {
    "preview all": Case(
        asks("POST", "/v0/routers/none/preview", {"source": "seen", "filter": ["tag", "Glob", "g*"]}),
        with_records("seen", 5_000_000),
    ),
    "preview some": Case(asks("POST", "/v0/routers/none/preview", {"source": "seen", "filter": ["tag", "Eq", "g3:3"]})),
    "delete, dry run": Case(
        asks("POST", "/v0/topics/gone/delete", {"match": ["tag", "Glob", "g*"], "dry_run": True}),
        with_records("gone", 4_000_000),
    ),
    "delete half": Case(asks("POST", "/v0/topics/gone/delete", {"match": ["tag", "Glob", "g1*"]})),
    "delete all": Case(asks("POST", "/v0/topics/gone/delete", {"match": ["tag", "Glob", "g*"]})),
    "gzip of half pairs": Case(packed(rb"\ud800", 64 * MIB, before=b'{"records":[{"data":"', after=b'"}]}')),
    "gzip of half pairs, many": Case(packed(rb'{"data":"\ud800\udbff"},', MIB // 4)),
    "gzip of half pairs in metas": Case(packed(b'{"data":1,"meta":{"a":"' + rb"\ud800:" * 2000 + b'"}},', 60 * MIB)),
    "gzip of records": Case(packed(b'{"data":' + b"1" * 6000 + b"},", 60 * MIB)),
    "gzip of too many records": Case(packed(b'{"data":1},', 64 * MIB)),
    "gzip of escapes, no JSON": Case(packed(rb"\n", 64 * MIB, before=b'{"records":[{"data":"', after=b'"}]')),
    "gzip of nested objects": Case(packed(b'{"data":[' + b"{}," * 2000 + b"1]},", 60 * MIB)),
    "large bodies of reads": Case(large_bodies),
}

FLOODS = {"nothing": nothing} | SOCKET_FLOODS | HTTP_FLOODS | HTTP2_FLOODS
