"""Requests over httpx: one attempt, retries where they can help and cannot harm, and long answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
import msgspec

from topics.client import errors, tracing
from topics.client._async import tools
from topics.client.call import JSON, Addresses, Backoff, Request
from topics.client.contexts import Prefixes
from topics.client.errors import OutcomeUnknown, TimedOut, TopicsError, Unreachable
from topics.client.items import decode_records, encode
from topics.errors import Code

Answer = TypeVar("Answer")

UNLIMITED = 1 << 30  # retries
BRIEFLY = -1  # retries: the number of the client, or `FIRST_RETRIES` if it has none
FIRST_RETRIES = 5  # until the first answer: a wrong address fails within about three seconds

_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


class AsyncTransport:
    """One server, or one of several that share a replica, and its connections."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        timeout_s: float,
        retries: int | None,
        retry_for_s: float,
        gzip: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.addresses = Addresses(url)
        self.token = token
        self.timeout_s = timeout_s
        self.retries = retries
        self.retry_for_s = retry_for_s
        self._answered = False  # whether the server has answered yet
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("token: a key consists of printable ASCII characters; is there a line break at its end?")
        self._http = httpx.AsyncClient(
            headers={"accept-encoding": "gzip" if gzip else "identity"},
            transport=transport,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,
            verify="https:" in url,  # loading the certificates takes a tenth of a second
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def call(
        self,
        method: str,
        path: str,
        answer: type[Answer],
        *,
        body: object = None,
        safe: bool = True,
        keyed: bool = False,
        wait_ms: int = 0,
        retries: int | None = None,
    ) -> Answer:
        """Send a request and decode its answer. `safe` says that a repetition does no more than the first one.

        A request that the server refused for now is sent again. One whose answer never came is sent again if that is
        safe. `retries` replaces the number of the client. A `keyed` request is safe for as long as the server remembers
        its idempotency key: after that, raise `OutcomeUnknown` if an answer was lost.
        """
        decoder = _decoders.get(answer) or _decoders.setdefault(answer, msgspec.json.Decoder(answer))
        backoff = Backoff()
        answer_lost = False
        content = body if body is None or isinstance(body, bytes) else encode(body)
        request = Request(method, path, content, JSON, safe, wait_ms)
        while True:
            backoff.tried.add(self.addresses.url)
            try:
                found: Answer = decode_records(decoder, await self.send(request))
                return found
            except TopicsError as error:
                lost = errors.may_have_happened(error)
                if lost and not safe:
                    raise
                answer_lost = answer_lost or lost
                if not backoff.goes_on(self.addresses, error):
                    await self.wait_after(error, backoff, retries, answer_lost if keyed else None)

    async def wait_after(
        self, error: TopicsError, backoff: Backoff, retries: int | None = None, answer_lost: bool | None = None
    ) -> None:
        """Sleep before the next attempt. Raise the error if another one cannot help.

        A request is repeated as often as the call says, then as the client says. If neither says so, a client that has
        had an answer repeats it for `retry_for_s`. `answer_lost` is None for a request without an idempotency key.
        """
        most = FIRST_RETRIES if self.retries is None else self.retries
        if retries is not None and retries != BRIEFLY:
            most = retries
        elif retries is None and self.retries is None and self._answered:
            most = UNLIMITED
        if not error.retryable or backoff.attempts >= most:
            raise error
        wait_s = backoff.next_s(error)
        limited = answer_lost is not None or (self.retries is None and retries is None)
        if limited and backoff.passed_s + wait_s > self.retry_for_s:
            if answer_lost:
                raise OutcomeUnknown(f"no confirmation for {self.retry_for_s:g} s: {error}") from error
            raise error
        await tools.sleep(wait_s)

    async def send(self, request: Request) -> bytes:
        """Send a request once, and return the body of its answer."""
        timeout = self._timeout(self.timeout_s + request.wait_ms / 1000)
        url, headers = self.addresses.url, request.headers(self.token) | tracing.headers()
        try:
            response = await self._http.request(
                request.method, url + request.path, content=request.body, headers=headers, timeout=timeout
            )
        except httpx.HTTPError as error:
            raise self._no_answer(url, error) from error
        if response.is_success:
            self._answered = True
            return response.content
        raise self._refusal(url, response, response.content)

    @asynccontextmanager
    async def stream(self, request: Request, *, silence_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a long answer, such as an event stream. Reading raises `TimedOut` after a silence of `silence_s`."""
        timeout = self._timeout(silence_s)
        url, headers = (
            self.addresses.url,
            {**request.headers(self.token), **tracing.headers(), "accept-encoding": "identity"},
        )
        try:
            async with self._http.stream(
                request.method, url + request.path, content=request.body, headers=headers, timeout=timeout
            ) as response:
                if not response.is_success:
                    raise self._refusal(url, response, await response.aread())
                self._answered = True
                yield self._chunks(url, response)
        except httpx.HTTPError as error:
            raise self._no_answer(url, error) from error

    async def _chunks(self, url: str, response: httpx.Response) -> AsyncIterator[bytes]:
        try:
            async for chunk in response.aiter_raw():
                yield chunk
        except httpx.HTTPError as error:
            raise self._no_answer(url, error) from error

    def _timeout(self, answer_s: float) -> httpx.Timeout:
        return httpx.Timeout(answer_s, connect=self.addresses.connect_timeout_s)

    def _refusal(self, url: str, response: httpx.Response, body: bytes) -> TopicsError:
        error = errors.from_answer(response.status_code, response.headers.get("retry-after"), body)
        if isinstance(error.code, Code):  # a proxy in front of a wrong address answers with other codes
            self._answered = True
        self.addresses.leave(url, error)
        return error

    def _no_answer(self, url: str, cause: httpx.HTTPError) -> Unreachable:
        why = str(cause) or type(cause).__name__
        sent = not isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout)
        if isinstance(cause, httpx.TimeoutException):
            error: Unreachable = TimedOut(f"no answer from {url} in time: {why}", sent=sent)
        else:
            error = Unreachable(f"no answer from {url}: {why}", sent=sent)
        self.addresses.leave(url, error)
        return error


# --- several servers behind one client, each with the names that begin with its prefixes


class AsyncPrefixTransport(AsyncTransport):
    """Several servers, of which each request goes to one."""

    def __init__(self, by_prefix: Mapping[str, AsyncTransport]) -> None:
        self.servers = Prefixes(by_prefix)
        self._any = next(iter(by_prefix.values()))
        self.retries = self._any.retries

    async def wait_after(
        self, error: TopicsError, backoff: Backoff, retries: int | None = None, answer_lost: bool | None = None
    ) -> None:
        await self._any.wait_after(error, backoff, retries, answer_lost)

    async def aclose(self) -> None:
        for one in self.servers.by_prefix.values():
            await one.aclose()

    async def call(self, method: str, path: str, answer: type[Answer], *, body: object = None, **how: Any) -> Answer:
        return await self.servers.of_request(path, body).call(method, path, answer, body=body, **how)

    async def send(self, request: Request) -> bytes:
        return await self.servers.of_request(request.path, request.body).send(request)

    def stream(self, request: Request, *, silence_s: float) -> Any:
        return self.servers.of_request(request.path, request.body).stream(request, silence_s=silence_s)
