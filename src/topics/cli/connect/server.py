"""One HTTP connection to a server, with the retries that a command needs."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import urlsplit

from topics.cli.connect.request import JSON, Request
from topics.cli.connect.target import Target, next_step_of
from topics.cli.output.failures import Unreachable
from topics.errors import BY_WIRE, Code, TopicsError

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 30.0
PATIENCE_S = 5.0  # how long a command repeats a request that the server asks to repeat
PAGE_ROWS = 1000
CHUNK_BYTES = 1 << 18
LONGEST_PAUSE_S = 2.0


class Server:
    """The server of a command. Not thread-safe: each thread needs its own."""

    def __init__(self, target: Target, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self.target = target
        self._timeout_s = timeout_s
        parts = urlsplit(target.url)
        self._secure = parts.scheme == "https"
        self._host, self._port, self._prefix = parts.hostname or "", parts.port, parts.path
        self._connection: http.client.HTTPConnection | None = None
        self._headers: dict[str, str] | None = None  # of the last answer, if they are wanted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def again(self) -> Server:
        """Return another connection to the same server, for another thread."""
        return Server(self.target)

    # --- requests

    def json(self, request: Request) -> Any:
        """Send a request and return its decoded answer. Raise `TopicsError` or `Unreachable`."""
        return json.loads(self.send(request))

    def send_with_headers(self, request: Request) -> tuple[bytes, dict[str, str]]:
        """Send a request once. Return its answer and the headers of it, with names in lower case."""
        headers = self._headers = {}
        try:
            return self._once(request), headers
        finally:
            self._headers = None

    def send(self, request: Request, *, patience_s: float = PATIENCE_S, reconnect: bool = False) -> bytes:
        """Send a request and return its answer.

        A request that the server asks to repeat is repeated for `patience_s`. With `reconnect`, so is a safe request
        without an answer, for example while the server restarts.
        """
        deadline, pause_s = time.monotonic() + patience_s, 0.05
        while True:
            try:
                return self._once(request)
            except Unreachable:
                if not (reconnect and request.safe) or time.monotonic() + pause_s > deadline:
                    raise
            except TopicsError as error:
                asked_s = pause_s if error.retry_after_ms is None else error.retry_after_ms / 1000
                pause_s = max(pause_s, min(asked_s, LONGEST_PAUSE_S))
                if not _can_retry(error) or time.monotonic() + pause_s > deadline:
                    raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def rows(self, request: Request, member: str) -> Iterator[Any]:
        """Yield the rows of a list, page by page."""
        path, cursor = request.path, None
        while True:
            sign = "&" if "?" in path else "?"
            page = f"{path}{sign}page_size={PAGE_ROWS}" + (f"&cursor={cursor}" if cursor else "")
            answer = self.json(Request(method="GET", path=page))
            yield from answer[member]
            cursor = answer.get("next_cursor")
            if cursor is None:
                return

    def stream(self, request: Request, *, timeout_s: float | None = None) -> Iterator[bytes]:
        """Yield the chunks of an answer as they arrive, on a connection of its own."""
        connection = self._connect()
        try:
            response = self._exchange(connection, request, timeout_s=timeout_s)
            if response.status != 200:
                raise _error_of(response, response.read())
            while chunk := response.read1(CHUNK_BYTES):
                yield chunk
        except (OSError, http.client.HTTPException) as error:
            raise self.unreachable(_reason(error)) from error
        finally:
            connection.close()

    def unreachable(self, cause: str) -> Unreachable:
        """Return the failure of a request without a complete answer."""
        return Unreachable(self.target.url, cause, next_step_of(self.target))

    # --- inside

    def _once(self, request: Request) -> bytes:
        kept = self._connection is not None
        while True:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                response = self._exchange(self._connection, request)
                body = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not kept or not request.safe:
                    raise self.unreachable(_reason(error)) from error
                kept = False  # the server closed a connection that was idle: try once on a new one
                continue
            if self._headers is not None:
                self._headers.update((name.lower(), value) for name, value in response.getheaders())
            if not 200 <= response.status < 300:
                raise _error_of(response, body)
            return body

    def _connect(self) -> http.client.HTTPConnection:
        make = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = make(self._host, self._port, timeout=min(CONNECT_TIMEOUT_S, self._timeout_s))
        try:
            connection.connect()
        except OSError as error:
            raise self.unreachable(_reason(error)) from error
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _exchange(
        self, connection: http.client.HTTPConnection, request: Request, *, timeout_s: float | None = None
    ) -> http.client.HTTPResponse:
        connection.sock.settimeout((timeout_s or self._timeout_s) + request.wait_ms / 1000)
        headers = {"accept": request.accept}
        body = request.encoded()
        if body is not None:
            headers["content-type"] = JSON
        if self.target.token is not None:
            headers["authorization"] = f"Bearer {self.target.token}"
        connection.request(request.method, self._prefix + request.path, body, headers)
        return connection.getresponse()


def _can_retry(error: TopicsError) -> bool:
    return error.code.retryable and error.code is not Code.TOPIC_FULL


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _error_of(response: http.client.HTTPResponse, body: bytes) -> TopicsError:
    """Return the error of an answer that is not 2xx. If a proxy answered, the status decides the code."""
    try:
        error = json.loads(body)["error"]
        code, message, detail = BY_WIRE.get(error["code"], Code.INTERNAL), error["message"], error.get("detail")
    except (ValueError, KeyError, TypeError):
        known = [code for code in Code if code.status == response.status]
        code, message, detail = (known or [Code.INTERNAL])[0], f"the server answered {response.status}", None
    retry_after_ms = (detail or {}).get("retry_after_ms")
    seconds = response.getheader("retry-after") or ""
    if retry_after_ms is None and seconds.isdigit():
        retry_after_ms = int(seconds) * 1000
    return TopicsError(code, message, detail=detail, retry_after_ms=retry_after_ms)
