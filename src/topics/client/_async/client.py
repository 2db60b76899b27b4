"""`AsyncTopics`: everything a server offers, as methods."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from copy import copy
from functools import partial
from types import TracebackType
from typing import Self
from uuid import uuid4

import httpx

from topics.client._async.following import AsyncFollowCalls
from topics.client._async.management import AsyncManagementCalls
from topics.client._async.queues import AsyncJob, AsyncQueueCalls
from topics.client._async.server import AsyncServerCalls
from topics.client._async.transport import AsyncPrefixTransport, AsyncTransport
from topics.client._async.work import AsyncLeases, AsyncPushes, AsyncWorker, Handler
from topics.client._async.writer import AsyncWriter
from topics.client.contexts import default_target


class AsyncTopics(AsyncManagementCalls, AsyncServerCalls, AsyncFollowCalls, AsyncQueueCalls):
    """A server. Every failure is a `TopicsError`, with a class per error code.

    async with AsyncTopics("http://127.0.0.1:4000") as topics:
        await topics.append("orders", {"sku": "V60"}, tag="order-7")
        async for item in topics.follow("orders"):
            print(item)

    `url` has the address of the server, and those of its standbys after commas. The client stays with the first one
    that answers. A write moves it to the writer, and after a takeover to the new one. `token` is the API key, and
    `timeout_s` the limit for one answer. Without an address, it is that of the command line, with its key:
    `TOPICS_URL`, the current context, or http://127.0.0.1:4000.

    `url` can also be a map of prefixes to addresses, `{"eu.": "http://a:4000", "": "http://b:4000"}`: each request goes
    to the server of the longest prefix of its name. One watch, and one router with its topics, is on one server.

    A request that can succeed later is repeated for `retry_for_s`, long enough for a restart of the server. A client
    that never got an answer gives up after five repetitions, in about three seconds: its address may be wrong.
    `retries` sets the number of repetitions instead. A write is never repeated for longer than `retry_for_s`, which
    must be less than `idempotency_window_ms` of its topic (120 seconds by default): a later attempt could write twice.

    With `gzip`, answers are compressed, which helps over a slow network only. `transport` replaces the connections, for
    example in tests.
    """

    def __init__(
        self,
        url: str | Mapping[str, str] | None = None,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        retries: int | None = None,
        retry_for_s: float = 100.0,
        gzip: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if url is None:
            url, key = default_target(os.environ)
            token = token or key
        connect = partial(
            AsyncTransport, token=token, timeout_s=timeout_s, retries=retries, retry_for_s=retry_for_s, gzip=gzip,
            transport=transport,
        )  # fmt: skip
        self._http = (
            connect(url)
            if isinstance(url, str)
            else AsyncPrefixTransport({prefix: connect(one) for prefix, one in url.items()})
        )
        self._workers: list[AsyncWorker] = []
        self._held: list[AsyncLeases] = []  # of the workers, and of loops over jobs

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections.

        await topics.aclose()       # a `with` block does so by itself
        """
        await self._http.aclose()

    def server(self, prefix: str) -> Self:
        """Return a client for one server of a map, which shares its connections. It need not be closed.

        await topics.server("eu.").routers()        # what concerns one server
        """
        if not isinstance(self._http, AsyncPrefixTransport):
            raise ValueError("this client has one server; pass a map of prefixes to have several")
        if prefix not in self._http.servers.by_prefix:
            raise ValueError(f"the map has no prefix {prefix!r}")
        one = copy(self)
        one._http = self._http.servers.by_prefix[prefix]
        return one

    # --- writing

    def writer(
        self,
        topic: str,
        *,
        max_records: int = 5000,
        max_bytes: int = 1 << 20,
        linger_ms: int = 5,
        max_pending_bytes: int = 64 << 20,
        node: str | None = None,
    ) -> AsyncWriter:
        """Return a writer that batches records, retries without doubling them, and bounds its memory.

        async with topics.writer("clicks") as writer:
            for click in clicks:
                await writer.append(click)      # waits while too much is pending
        """
        return AsyncWriter(
            self._http, topic, max_records=max_records, max_bytes=max_bytes, linger_ms=linger_ms,
            max_pending_bytes=max_pending_bytes, node=node,
        )  # fmt: skip

    # --- working

    def jobs(
        self,
        topic: str,
        *,
        node: str | None = None,
        lease_ms: int = 30_000,
        retry_delay_ms: Callable[[int], int] | None = None,
        handle_signals: bool | None = None,
    ) -> AsyncIterator[AsyncJob]:
        """Yield jobs one by one until a signal, as `run` says, or `stop`.

        async for job in topics.jobs("emails"):
            await send(job.data)

        The lease is extended while the body of the loop runs. A job is acked when the loop asks for the next one. It is
        given back, as the retry policy of the queue says, when the body raises or leaves the loop. A body can also call
        `job.ack()` or `job.nack()` itself. The loop resumes after broken connections.
        """
        return self._leases(topic, node, lease_ms, retry_delay_ms).jobs(handle_signals)

    def pushed_jobs(
        self,
        topic: str,
        *,
        node: str | None = None,
        lease_ms: int = 30_000,
        retry_delay_ms: Callable[[int], int] | None = None,
        handle_signals: bool | None = None,
    ) -> AsyncIterator[AsyncJob]:
        """Yield jobs as `jobs` does, but let the server push them over a stream.

        When the connection ends, the server gives the job to another worker at once.

        async for job in topics.pushed_jobs("emails"):
            await send(job.data)
        """
        leases = self._leases(topic, node, lease_ms, retry_delay_ms)
        leases.pushes = AsyncPushes(self, self._http, topic, node=leases.node, lease_ms=lease_ms)
        return leases.jobs(handle_signals)

    def _leases(
        self, topic: str, node: str | None, lease_ms: int, retry_delay_ms: Callable[[int], int] | None
    ) -> AsyncLeases:
        worker = node or f"py-{uuid4().hex[:12]}"
        self._held.append(AsyncLeases(self, topic, worker, lease_ms, retry_delay_ms))
        return self._held[-1]

    def worker(
        self,
        topic: str,
        *,
        concurrency: int = 1,
        node: str | None = None,
        lease_ms: int = 30_000,
        timeout_s: float | None = None,
        retry_delay_ms: Callable[[int], int] | None = None,
        on_start: Callable[[AsyncJob], object] | None = None,
        on_done: Callable[[AsyncJob, float], object] | None = None,
        on_error: Callable[[AsyncJob, BaseException], object] | None = None,
    ) -> Callable[[Handler], AsyncWorker]:
        """Make a function the worker of a queue, which `run` calls.

            @topics.worker("emails", concurrency=8)
            async def send(job):
                await smtp.send(job.data["to"])

            await topics.run()

        The lease is extended while the function runs. A job is acked when the function returns, and given back with
        the reason when it raises or takes longer than `timeout_s`. The retry policy of the queue says when it comes
        again: by default after a second, then twice as long with each delivery, up to five minutes. `retry_delay_ms`
        returns another delay for a number of deliveries.
        `on_start(job)`, `on_done(job, seconds)` and `on_error(job, error)` are for logs and metrics.
        """

        def register(handler: Handler) -> AsyncWorker:
            leases = self._leases(topic, node, lease_ms, retry_delay_ms)
            made = AsyncWorker(leases, handler, concurrency, timeout_s, on_start, on_done, on_error)
            self._workers.append(made)
            return made

        return register

    async def run(self, *, handle_signals: bool | None = None) -> None:
        """Run all workers of this client until SIGTERM, SIGINT or `stop`; then finish the jobs that are held.

        A signal that the program handles itself is left to the program, as in a web application: call `stop` when it
        ends. With `handle_signals=True`, such a signal ends the workers too, before the handler of the program is
        called. With False, no signal ends them. The handlers are restored at the end.

        await topics.run()
        """
        await AsyncWorker.run_all(self._workers, handle_signals)

    def stop(self) -> None:
        """End the workers and the loops over jobs of this client when they have finished the jobs that they hold.

        topics.stop()
        """
        for leases in self._held:
            leases.stopping.set()
