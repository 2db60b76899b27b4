"""An HTTP client that sends an exact number of requests, pipelined; wrk can only run for a given time."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator
from itertools import islice

import httptools


class _Link:
    """One keep-alive connection with up to `window` requests in flight."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.parser = httptools.HttpResponseParser(self)
        self.answered = 0

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        if status >= 300:
            raise RuntimeError(f"a request of the loader was answered {status}")
        self.answered += 1

    def receive(self) -> int:
        """The number of answers received."""
        before = self.answered
        data = self.socket.recv(1 << 18)
        if not data:
            raise RuntimeError("the server closed a connection of the loader")
        self.parser.feed_data(data)
        return self.answered - before


def send_all(port: int, requests: Iterator[bytes], *, connections: int = 8, window: int = 4) -> float:
    """Send every request, check that every answer is a success, and return the elapsed seconds."""
    links = [_Link(port) for _ in range(connections)]
    waiting = selectors.DefaultSelector()
    started, on_their_way = time.perf_counter(), 0
    for link in links:
        waiting.register(link.socket, selectors.EVENT_READ, link)
        on_their_way += _send(link, requests, window)
    while on_their_way:
        ready = waiting.select(60)
        if not ready:
            raise RuntimeError("no answer for a minute")
        for key, _ in ready:
            arrived = key.data.receive()
            on_their_way += _send(key.data, requests, arrived) - arrived
    elapsed = time.perf_counter() - started
    for link in links:
        link.socket.close()
    return elapsed


def _send(link: _Link, requests: Iterator[bytes], count: int) -> int:
    chunk = list(islice(requests, count))
    if chunk:
        link.socket.sendall(b"".join(chunk))
    return len(chunk)
