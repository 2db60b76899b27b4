"""Workers of queues: functions that are called for each job, and jobs one by one for a plain loop.

Both keep the leases of the jobs that they hold, and ack or give back each job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import msgspec

from topics.client import tracing
from topics.client._async import tools
from topics.client._async.queues import AsyncJob, AsyncQueueCalls, ClaimedJob
from topics.client._async.transport import BRIEFLY, AsyncTransport
from topics.client.call import EVENT_STREAM, Backoff, Request, topic_path
from topics.client.errors import TopicsError, Unreachable
from topics.client.items import decode_records
from topics.client.streams import EventParser, raise_if_final

Handler = Callable[[AsyncJob], Any]

FIRST_DELAY_MS, LONGEST_DELAY_MS = 1_000, 300_000
CLAIM_WAIT_MS = 2_000  # a claim waits no longer than this, so that a worker that was stopped ends soon
SILENCE_S = 35.0  # more than two heartbeats of a stream

log = logging.getLogger("topics.client.worker")
_decode_job = msgspec.json.Decoder(ClaimedJob)


def default_delay_ms(deliveries: int) -> int:
    """Return how long a job that failed waits: one second, then twice as long each time, up to five minutes."""
    return min(FIRST_DELAY_MS << min(deliveries - 1, 20), LONGEST_DELAY_MS)


class AsyncLeases:
    """The jobs that one worker holds. Their leases are extended while it is `kept`.

    A worker that was stopped ends within seconds, even if the server is away: its calls are repeated briefly.
    """

    def __init__(
        self,
        client: AsyncQueueCalls,
        topic: str,
        *,
        node: str,
        lease_ms: int,
        delay_ms: Callable[[int], int] | None = None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._node = node
        self._lease_ms = lease_ms
        self._delay_ms = delay_ms or default_delay_ms
        self._held: dict[str, AsyncJob] = {}  # by lease
        self._ended = tools.Event()
        self._backoff = Backoff()

    def add(self, job: AsyncJob) -> None:
        self._held[job.lease_id] = job

    def remove(self, job: AsyncJob) -> None:
        self._held.pop(job.lease_id, None)

    async def next(self, stopping: tools.Event, most: int, pushes: AsyncPushes | None = None) -> list[AsyncJob]:
        """Claim jobs, or wait for pushed ones. Return none if there were none for a while.

        After a failure that can pass, wait until the next attempt or until `stopping`, and return none.
        """
        try:
            if pushes is not None:
                jobs = await pushes.next()
            else:
                jobs = await self._client.claim(
                    self._topic, node=self._node, max=most, lease_ms=self._lease_ms, wait_ms=CLAIM_WAIT_MS, retries=0
                )
        except TopicsError as error:
            if not error.retryable:
                raise
            await tools.wait_for(stopping, self._backoff.next_s(error))
            return []
        self._backoff.reset()
        return jobs

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Extend the leases of all jobs that are held, until the block ends."""
        keeper = tools.Group()
        keeper.spawn(self._keep)
        try:
            yield
        finally:
            self._ended.set()
            await keeper.join()

    async def _keep(self) -> None:
        """Extend the leases three times as often as they end."""
        while not await tools.wait_for(self._ended, self._lease_ms / 3000):
            held = [job for job in list(self._held.values()) if job.is_open]
            if held:
                await self._extend(held)

    async def _extend(self, held: list[AsyncJob]) -> None:
        try:
            answer = await self._client.extend(
                self._topic, [job.seq for job in held], node=self._node, lease_ms=self._lease_ms,
                lease_ids=[job.lease_id for job in held], retries=BRIEFLY,
            )  # fmt: skip
        except TopicsError as error:
            log.warning("leases of %s could not be extended: %s", self._topic, error)
            return
        for job in held:
            if job.seq in answer.skipped and job.is_open:
                self.remove(job)
                log.warning("job %d of %s: its lease has ended, another worker may get it", job.seq, job.topic)

    async def complete(self, job: AsyncJob) -> None:
        """Ack a job. A failure is logged: the job comes again when its lease ends."""
        try:
            if not await job.ack(retries=BRIEFLY):
                log.warning("job %d of %s: its lease had ended, or an earlier ack got through", job.seq, job.topic)
        except TopicsError as error:
            log.warning("job %d of %s is done, but its ack failed: %s", job.seq, job.topic, error)

    async def give_back(self, job: AsyncJob) -> None:
        """Nack a job with a delay that grows with its deliveries. A failure is logged."""
        try:
            await job.nack(self._delay_ms(job.deliveries), retries=BRIEFLY)
        except TopicsError as failure:
            log.warning("job %d of %s goes back when its lease ends: %s", job.seq, job.topic, failure)


# --- a function that is called for each job


class AsyncWorker:
    """Calls a function for each job of a queue, several at a time. `AsyncTopics.worker` makes one."""

    def __init__(
        self,
        client: AsyncQueueCalls,
        topic: str,
        handler: Handler,
        *,
        concurrency: int,
        node: str | None,
        lease_ms: int,
        timeout_s: float | None,
        retry_delay_ms: Callable[[int], int] | None,
        on_start: Callable[[AsyncJob], object] | None,
        on_done: Callable[[AsyncJob, float], object] | None,
        on_error: Callable[[AsyncJob, BaseException], object] | None,
    ) -> None:
        self.topic = topic
        self.node = node or f"py-{uuid4().hex[:12]}"
        self._handler = handler
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._on_start = on_start
        self._on_done = on_done
        self._on_error = on_error
        self._leases = AsyncLeases(client, topic, node=self.node, lease_ms=lease_ms, delay_ms=retry_delay_ms)
        self._running: set[str] = set()  # the leases of jobs whose handlers run
        self._stopping = tools.Event()
        self._room = tools.Event()

    def __call__(self, job: AsyncJob) -> Any:
        """Call the function directly, as a test would."""
        return self._handler(job)

    async def run(self, *, handle_signals: bool | None = None) -> None:
        """Work as `AsyncTopics.run` does, with this worker only."""
        await AsyncWorker.run_all([self], handle_signals)

    @staticmethod
    async def run_all(workers: Sequence[AsyncWorker], handle_signals: bool | None) -> None:
        """Run workers side by side until they are stopped; then finish the jobs that are held, and return."""

        def stop() -> None:
            for worker in workers:
                worker.stop()

        restore_signals = tools.on_stop_signals(stop, handle_signals)
        group = tools.Group()
        try:
            for worker in workers:
                group.spawn(worker._work)
            await group.join()
        finally:
            stop()
            restore_signals()

    def stop(self) -> None:
        """Claim no more jobs; `run` returns when those that are held are finished."""
        self._stopping.set()
        self._room.set()

    async def _work(self) -> None:
        jobs = tools.Group()
        async with self._leases.kept():
            try:
                await self._claim_jobs(jobs)
            finally:
                await jobs.join()

    async def _claim_jobs(self, group: tools.Group) -> None:
        while not self._stopping.is_set():
            free = self._concurrency - len(self._running)
            if not free:
                self._room.clear()
                await tools.wait_for(self._room, 1.0)
                continue
            for job in await self._leases.next(self._stopping, free):
                self._leases.add(job)
                self._running.add(job.lease_id)
                group.spawn(self._run_job, job)

    async def _run_job(self, job: AsyncJob) -> None:
        began = time.monotonic()
        try:
            self._notify(self._on_start, job)
            with tracing.job(self.topic, job.seq, job.meta):
                await tools.call_within(self._timeout_s, self._handler, job)
        except Exception as error:
            if self._on_error is None:
                log.error("job %d of %s failed (delivery %d)", job.seq, job.topic, job.deliveries, exc_info=error)
            self._notify(self._on_error, job, error)
            if job.is_open:
                await self._leases.give_back(job)
        else:
            if job.is_open:
                await self._leases.complete(job)
            self._notify(self._on_done, job, time.monotonic() - began)
        finally:
            self._leases.remove(job)
            self._running.discard(job.lease_id)
            self._room.set()

    def _notify(self, hook: Callable[..., object] | None, *arguments: object) -> None:
        """Call a hook of the caller's. Its failure is logged: it says nothing about the job."""
        if hook is not None:
            try:
                hook(*arguments)
            except Exception:
                log.exception("a hook of the worker of %s failed", self.topic)


# --- jobs one by one


class AsyncPushes:
    """Jobs that the server pushes over a stream, one at a time: a job that waited unread would lose its lease."""

    def __init__(self, client: AsyncQueueCalls, http: AsyncTransport, topic: str, *, node: str, lease_ms: int) -> None:
        self._client = client
        self._http = http
        self._topic = topic
        self._node = node
        path = topic_path(topic, "work", node=node, max=1, lease_ms=lease_ms)
        self._request = Request("GET", path, accept=EVENT_STREAM)
        self._open = AsyncExitStack()
        self._chunks: AsyncIterator[bytes] | None = None
        self._parser = EventParser()

    async def next(self) -> list[AsyncJob]:
        try:
            if self._chunks is None:
                self._parser = EventParser()
                self._chunks = await self._open.enter_async_context(
                    self._http.stream(self._request, silence_s=SILENCE_S)
                )
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

    def stop(self) -> None:
        """End the loop when its body has finished the job that it has."""
        self._stopping.set()

    async def run(self, pushes: AsyncPushes | None = None) -> AsyncIterator[AsyncJob]:
        """Yield jobs, claimed one at a time or pushed.

        Ack a job when the loop asks for the next one, and give it back if the loop was left. A body that has called
        `ack` or `nack` itself is not corrected.
        """
        restore_signals = tools.on_stop_signals(self.stop, self._handle_signals)
        current: AsyncJob | None = None
        try:
            async with self._leases.kept():
                try:
                    while not self._stopping.is_set():
                        for job in await self._leases.next(self._stopping, 1, pushes):
                            self._leases.add(job)
                            current = job
                            with tracing.job(self._topic, job.seq, job.meta, is_current=False):
                                yield job
                            current = None
                            if job.is_open:
                                await self._leases.complete(job)
                            self._leases.remove(job)
                finally:
                    if current is not None and current.is_open:
                        await self._leases.give_back(current)
                    if pushes is not None:
                        await pushes.aclose()
        finally:
            restore_signals()
