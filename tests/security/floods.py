"""Everything one client can do to keep a server busy: floods over a connection, and single requests that cost a lot.

A flood takes a port and returns once the server is through with it, or has refused to go on.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tests.security.fairness import CONTINUATION, PING, PONG, TEXT, WAIT_S, frame, upgraded

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
    "http metrics": pipelined("GET /v0/metrics", 2_000),
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

ALL = {"nothing": nothing} | SOCKET_FLOODS | HTTP_FLOODS
