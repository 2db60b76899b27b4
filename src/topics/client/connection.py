"""Requests over `http.client`, blocking: for the command line, which starts often, and for Spark, which sends much.

httpx takes three times as long to import and to send a request; docs/decisions/httpx.md has the measurements.
"""

from __future__ import annotations

import math
import select
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from msgspec.json import Decoder

from topics.client import errors
from topics.client.call import JSON, Addresses, Backoff, Request, with_schemes
from topics.client.errors import TopicsError, Unreachable
from topics.client.items import decode_records, encode
from topics.errors import Code

TAKEOVER_S = 60.0  # how long a request to several addresses is repeated at least: a takeover takes about 20
NO_ANSWER = (OSError, HTTPException)
Answer = TypeVar("Answer")


class Retries(NamedTuple):
    """How often and for how long a request is repeated that can succeed later."""

    most: float = 5
    for_s: float = math.inf
    reconnect: bool = True  # repeat a safe request whose answer never came, too


class Connection:
    """One server, or one of several that share a replica, and one connection that is kept open.

    Not thread-safe: each thread needs its own.
    """

    tls: ssl.SSLContext | None = None  # None checks certificates as usual

    def __init__(
        self, url: str, *, token: str | None = None, timeout_s: float = 60.0, retries: Retries | None = None
    ) -> None:
        self.url = url
        self.addresses = Addresses(with_schemes(url))
        self._answered = False  # whether any server has answered yet
        self._token = token
        self._timeout_s = timeout_s
        self._retries = retries or Retries()
        self._kept: HTTPConnection | None = None
        self._kept_to = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    @property
    def _http(self) -> Any:
        """What the calls of the sync client send their requests with: they need `call` and `send`."""
        return self

    def call(
        self, method: str, path: str, answer: type[Answer], *, body: object = None, safe: bool = True, wait_ms: int = 0,
        retries: int | None = None,
    ) -> Answer:  # fmt: skip
        """Send a request and decode its answer. `safe` says that a repetition does no more than the first one."""
        content = None if body is None else encode(body)
        request = Request(method, path, content, JSON, safe, wait_ms)
        return decode_records(Decoder(answer), self.send(request, None if retries is None else Retries(retries)))

    def send(self, request: Request, retries: Retries | None = None) -> bytes:
        """Send a request and return the body of its answer. Repeat it if that can help and is safe."""
        backoff = Backoff()
        while True:
            backoff.tried.add(self.addresses.url)
            try:
                return self.send_once(request)[0]
            except TopicsError as error:
                if errors.may_have_happened(error) and not request.safe:
                    raise
                if not backoff.goes_on(self.addresses, error):
                    self.wait_after(error, backoff, retries or self._retries)

    def wait_after(self, error: TopicsError, backoff: Backoff, retries: Retries) -> None:
        """Sleep before the next attempt. Raise the error if another attempt cannot help."""
        wait_s = backoff.next_s(error)
        is_taken_over = error.has_others and self._answered  # perhaps: a standby may take over, or has done so
        may_repeat = error.retryable and error.code is not Code.TOPIC_FULL
        if isinstance(error, Unreachable):
            may_repeat = retries.reconnect or is_taken_over
        patient = is_taken_over and backoff.passed_s + wait_s <= TAKEOVER_S
        is_over = backoff.attempts > retries.most or backoff.passed_s + wait_s > retries.for_s
        if not may_repeat or (is_over and not patient):
            raise error
        time.sleep(wait_s)

    def send_once(self, request: Request) -> tuple[bytes, HTTPResponse]:
        """Send a request once. Return the body of its answer, and the head."""
        url = self.addresses.url
        if self._kept is not None and (self._kept_to != url or (not request.safe and _is_closed(self._kept))):
            self.close()
        kept = self._kept is not None
        while True:
            try:
                if self._kept is None:
                    self._kept, self._kept_to = self._connect(url), url
                response = self._exchange(self._kept, url, request, self._timeout_s)
                body = response.read()
            except NO_ANSWER as error:
                was_open = self._kept is not None
                self.close()
                if not kept or not request.safe:
                    raise self.unreachable(error, url, sent=was_open) from error
                kept = False  # the server closed a connection that was idle: try once on a new one
                continue
            if not 200 <= response.status < 300:
                raise self._refusal(url, request, response, body)
            self._answered = True
            return body, response

    @contextmanager
    def opened(self, request: Request, *, timeout_s: float | None = None) -> Iterator[HTTPResponse]:
        """Open a long answer on a connection of its own: other requests may be sent before it ends."""
        connection, response, url = self._open(request, timeout_s or self._timeout_s)
        try:
            yield response
        except NO_ANSWER as error:
            raise self.unreachable(error, url) from error
        finally:
            connection.close()

    def _open(self, request: Request, timeout_s: float) -> tuple[HTTPConnection, HTTPResponse, str]:
        """Return a new connection with an answer whose head has arrived, from the first address that gives one."""
        backoff = Backoff()
        while True:
            connection, url = None, self.addresses.url
            backoff.tried.add(url)
            try:
                try:
                    connection = self._connect(url)
                    response = self._exchange(connection, url, request, timeout_s)
                    if response.status == 200:
                        self._answered = True
                        return connection, response, url
                    raise self._refusal(url, request, response, response.read())
                except NO_ANSWER as cause:
                    raise self.unreachable(cause, url, sent=connection is not None) from cause
            except TopicsError as error:
                if connection is not None:
                    connection.close()
                if not backoff.goes_on(self.addresses, error):
                    raise

    def unreachable(self, cause: Exception | str, url: str | None = None, *, sent: bool = True) -> Unreachable:
        """Return the error of a request without a complete answer."""
        url = url or self.addresses.url
        why = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        error = Unreachable(f"no answer from {url}: {why}", sent=sent)
        self.addresses.leave(url, error)
        return error

    def _connect(self, url: str) -> HTTPConnection:
        parts = urlsplit(url)
        host, timeout_s = parts.hostname or "", min(self.addresses.connect_timeout_s, self._timeout_s)
        if parts.scheme == "https":
            connection: HTTPConnection = HTTPSConnection(host, parts.port, timeout=timeout_s, context=self.tls)
        else:
            connection = HTTPConnection(host, parts.port, timeout=timeout_s)
        connection.connect()
        return connection

    def _exchange(self, connection: HTTPConnection, url: str, request: Request, timeout_s: float) -> HTTPResponse:
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s + request.wait_ms / 1000)
        path = urlsplit(url).path + request.path  # a server behind a proxy may have a path of its own
        connection.request(request.method, path, request.body, request.headers(self._token))
        return connection.getresponse()

    def _refusal(self, url: str, request: Request, response: HTTPResponse, body: bytes) -> TopicsError:
        error = errors.from_answer(response.status, response.getheader("retry-after"), body)
        self._answered = self._answered or isinstance(error.code, Code)
        self.addresses.leave(url, error)
        if error.code in (Code.UNAUTHORIZED, Code.FORBIDDEN):
            error.message = errors.refusal(error, request.path, url, has_key=self._token is not None)
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
