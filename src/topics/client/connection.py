"""Requests over `http.client`, blocking: for the command line, which starts often, and for Spark, which sends much.

httpx takes three times as long to import and to send a request; docs/decisions/httpx.md has the measurements.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from topics.client import errors
from topics.client.call import Backoff, Request
from topics.client.errors import TopicsError, Unreachable
from topics.errors import Code

CONNECT_TIMEOUT_S = 10.0
NO_ANSWER = (OSError, HTTPException)


class Retries(NamedTuple):
    """How often and for how long a request is repeated that can succeed later."""

    most: float = 5
    for_s: float = math.inf
    reconnect: bool = True  # repeat a safe request whose answer never came, too


class Connection:
    """One server and one connection that is kept open. Not thread-safe: each thread needs its own."""

    def __init__(
        self, url: str, *, token: str | None = None, timeout_s: float = 60.0, retries: Retries | None = None
    ) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the http(s) URL of a server")
        self.url = url
        self._new = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")  # before every path, for a server behind a proxy
        self._token = token
        self._timeout_s = timeout_s
        self._retries = retries or Retries()
        self._kept: HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def send(self, request: Request, retries: Retries | None = None) -> bytes:
        """Send a request and return the body of its answer. Repeat it if that can help and is safe."""
        backoff = Backoff()
        while True:
            try:
                return self.send_once(request)[0]
            except TopicsError as error:
                self.wait_after(error, backoff, retries or self._retries, safe=request.safe)

    def wait_after(self, error: TopicsError, backoff: Backoff, retries: Retries, *, safe: bool = True) -> None:
        """Sleep before the next attempt. Raise the error if another attempt cannot help or could do harm."""
        wait_s = backoff.next_s(error)
        if isinstance(error, Unreachable):
            may_repeat = retries.reconnect and safe
        else:
            may_repeat = error.retryable and error.code is not Code.TOPIC_FULL
        if not may_repeat or backoff.attempts > retries.most or backoff.passed_s + wait_s > retries.for_s:
            raise error
        time.sleep(wait_s)

    def send_once(self, request: Request) -> tuple[bytes, HTTPResponse]:
        """Send a request once. Return the body of its answer, and the head."""
        if self._kept is not None and not request.safe and _is_closed(self._kept):
            self.close()
        kept = self._kept is not None
        while True:
            try:
                if self._kept is None:
                    self._kept = self._connect()
                response = self._exchange(self._kept, request, self._timeout_s)
                body = response.read()
            except NO_ANSWER as error:
                self.close()
                if not kept or not request.safe:
                    raise self.unreachable(error) from error
                kept = False  # the server closed a connection that was idle: try once on a new one
                continue
            if not 200 <= response.status < 300:
                raise self._refusal(request, response, body)
            return body, response

    @contextmanager
    def opened(self, request: Request, *, timeout_s: float | None = None) -> Iterator[HTTPResponse]:
        """Open a long answer on a connection of its own: other requests may be sent before it ends."""
        connection = None
        try:
            connection = self._connect()
            response = self._exchange(connection, request, timeout_s or self._timeout_s)
            if response.status != 200:
                raise self._refusal(request, response, response.read())
            yield response
        except NO_ANSWER as error:
            raise self.unreachable(error) from error
        finally:
            if connection is not None:
                connection.close()

    def unreachable(self, cause: Exception | str) -> Unreachable:
        """Return the error of a request without a complete answer."""
        why = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        return Unreachable(f"no answer from {self.url}: {why}")

    def _connect(self) -> HTTPConnection:
        connection = self._new(self._host, self._port, timeout=min(CONNECT_TIMEOUT_S, self._timeout_s))
        connection.connect()
        return connection

    def _exchange(self, connection: HTTPConnection, request: Request, timeout_s: float) -> HTTPResponse:
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s + request.wait_ms / 1000)
        connection.request(request.method, self._prefix + request.path, request.body, request.headers(self._token))
        return connection.getresponse()

    def _refusal(self, request: Request, response: HTTPResponse, body: bytes) -> TopicsError:
        error = errors.from_answer(response.status, response.getheader("retry-after"), body)
        if error.code in (Code.UNAUTHORIZED, Code.FORBIDDEN):
            error.message = errors.refusal(error, request.path, self.url, has_key=self._token is not None)
            error.args = (error.message,)
        return error


def _is_closed(connection: HTTPConnection) -> bool:
    """Return whether the server has closed an idle connection: without a request there is nothing else to receive.

    An unsafe request must not be sent on such a connection: after a failure it is unknown whether it was received.
    """
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
