"""Jobs one by one, for a plain loop: claimed or pushed, with leases that are extended while its body runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import msgspec

from topics.client import tracing
from topics.client._async import tools
from topics.client._async.calls.job import AsyncJob, ClaimedJob
from topics.client._async.transport import AsyncTransport, topic_path, with_query
from topics.client._async.work.leases import AsyncLeases
from topics.client.errors import TopicsError, Unreachable
from topics.client.items import decode_records
from topics.client.retry import Backoff
from topics.client.sse import EventParser
from topics.client.stream_errors import raise_if_final

if TYPE_CHECKING:
    from topics.client._async.calls.queue_calls import AsyncQueueCalls

CLAIM_WAIT_MS = 2_000  # a claim waits no longer than this, so that a loop that was stopped ends soon
SILENCE_S = 35.0  # more than two heartbeats of a stream

_decode_job = msgspec.json.Decoder(ClaimedJob)


class AsyncJobSource(Protocol):
    """Where a loop gets its jobs from."""

    async def next(self) -> list[AsyncJob]:
        """Return jobs that were leased, or none if there were none for a while. Raises `TopicsError`."""

    async def aclose(self) -> None: ...


class AsyncClaims:
    """Claims one job at a time."""

    def __init__(self, client: AsyncQueueCalls, topic: str, *, node: str, lease_ms: int) -> None:
        self._client = client
        self._topic = topic
        self._node = node
        self._lease_ms = lease_ms

    async def next(self) -> list[AsyncJob]:
        return await self._client.claim(
            self._topic, node=self._node, lease_ms=self._lease_ms, wait_ms=CLAIM_WAIT_MS, retries=0
        )

    async def aclose(self) -> None:
        pass


class AsyncPushes:
    """Jobs that the server pushes over a stream, one at a time: a job that waited unread would lose its lease."""

    def __init__(self, client: AsyncQueueCalls, http: AsyncTransport, topic: str, *, node: str, lease_ms: int) -> None:
        self._client = client
        self._http = http
        self._topic = topic
        self._node = node
        self._path = with_query(topic_path(topic, "/work"), node=node, max=1, lease_ms=lease_ms)
        self._open = AsyncExitStack()
        self._chunks: AsyncIterator[bytes] | None = None
        self._parser = EventParser()

    async def next(self) -> list[AsyncJob]:
        try:
            if self._chunks is None:
                self._parser = EventParser()
                self._chunks = await self._open.enter_async_context(self._http.stream(self._path, silence_s=SILENCE_S))
            chunk = await anext(self._chunks, None)
            if chunk is None:
                raise Unreachable("the stream has ended", code="stream_ended")
            return self._jobs_in(chunk)
        except TopicsError:
            await self.aclose()
            raise

    def _jobs_in(self, chunk: bytes) -> list[AsyncJob]:
        jobs = []
        for event in self._parser.feed(chunk):
            if event.name == "job":
                found = decode_records(_decode_job, event.data)
                jobs.append(AsyncJob(self._client, self._topic, self._node, found))
            elif event.name == "error":
                raise_if_final(event.data)
        return jobs

    async def aclose(self) -> None:
        self._chunks = None
        await self._open.aclose()


class AsyncJobLoop:
    """One loop over the jobs of a queue. `AsyncTopics.jobs` and `AsyncTopics.pushed_jobs` make one."""

    def __init__(
        self,
        client: AsyncQueueCalls,
        topic: str,
        *,
        node: str,
        lease_ms: int,
        retry_delay_ms: Callable[[int], int] | None,
        handle_signals: bool | None,
    ) -> None:
        self._topic = topic
        self._leases = AsyncLeases(client, topic, node=node, lease_ms=lease_ms, delay_ms=retry_delay_ms)
        self._handle_signals = handle_signals
        self._stopping = tools.Event()
        self._current: AsyncJob | None = None

    def stop(self) -> None:
        """End the loop when its body has finished the job that it has."""
        self._stopping.set()

    async def run(self, source: AsyncJobSource) -> AsyncIterator[AsyncJob]:
        """Yield jobs. Ack a job when the loop asks for the next one, and give it back if the loop was left.

        A body that has called `ack` or `nack` itself is not corrected.
        """
        backoff = Backoff()
        async with self._running(source):
            while not self._stopping.is_set():
                try:
                    jobs = await source.next()
                except TopicsError as error:
                    if not error.retryable:
                        raise
                    await tools.wait_for(self._stopping, backoff.next_s(error))
                    continue
                backoff.reset()
                for job in jobs:
                    self._leases.add(job)
                    self._current = job
                    with tracing.job_loop(self._topic, job.seq, job.meta):
                        yield job
                    self._current = None
                    if job.is_open:
                        await self._leases.complete(job)
                    self._leases.remove(job)

    @asynccontextmanager
    async def _running(self, source: AsyncJobSource) -> AsyncIterator[None]:
        """Keep the lease while the body of the loop runs. Give back the job that it did not finish."""
        restore_signals = tools.on_stop_signals(self.stop, self._handle_signals)
        keeper = tools.Group()
        keeper.spawn(self._leases.keep)
        try:
            yield
        finally:
            try:
                if self._current is not None and self._current.is_open:
                    await self._leases.give_back(self._current)
                await source.aclose()
                self._leases.end()
                await keeper.join()
            finally:
                restore_signals()
