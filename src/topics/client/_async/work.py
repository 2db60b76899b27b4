"""Workers of queues: functions that are called for each job, and jobs one by one for a plain loop.

Both keep the leases of the jobs that they hold, and ack or give back each job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET

from topics.client import tracing
from topics.client._async import tools
from topics.client._async.queues import AsyncJob, AsyncQueueCalls, ClaimedJob
from topics.client._async.transport import BRIEFLY, AsyncTransport
from topics.client.call import EVENT_STREAM, Backoff, Request, of_caller, topic_path
from topics.client.errors import TopicsError, Unreachable
from topics.client.items import decode_records
from topics.client.streams import EventParser, raise_if_final

Handler = Callable[[AsyncJob], Any]

CLAIM_WAIT_MS = 2_000  # a claim waits no longer than this, so that a worker that was stopped ends soon
SILENCE_S = 35.0  # more than two heartbeats of a stream

log = logging.getLogger("topics.client.worker")
_decode_job = msgspec.json.Decoder(ClaimedJob)


@dataclass(eq=False)
class AsyncLeases:
    """The jobs that one worker holds. Their leases are extended while it is `kept`.

    A worker that was stopped ends within seconds, even if the server is away: its calls are repeated briefly.
    """

    client: AsyncQueueCalls
    topic: str
    node: str
    lease_ms: int
    delay_ms: Callable[[int], int] | None
    pushes: AsyncPushes | None = None
    stopping: tools.Event = field(default_factory=tools.Event)
    _held: dict[str, AsyncJob] = field(default_factory=dict)  # by lease
    _ended: tools.Event = field(default_factory=tools.Event)
    _backoff: Backoff = field(default_factory=Backoff)

    async def next(self, most: int) -> list[AsyncJob]:
        """Claim jobs, or wait for pushed ones, and hold them. Return none if there were none for a while.

        After a failure that can pass, wait until the next attempt or until `stopping`, and return none.
        """
        try:
            if self.pushes is not None:
                jobs = await self.pushes.next()
            else:
                jobs = await self.client.claim(
                    self.topic, node=self.node, max=most, lease_ms=self.lease_ms, wait_ms=CLAIM_WAIT_MS, retries=0
                )
        except TopicsError as error:
            if not error.retryable:
                raise
            await tools.wait_for(self.stopping, self._backoff.next_s(error))
            return []
        self._backoff.reset()
        self._held.update({job.lease_id: job for job in jobs})
        return jobs

    def remove(self, job: AsyncJob) -> None:
        self._held.pop(job.lease_id, None)

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
        while not await tools.wait_for(self._ended, self.lease_ms / 3000):
            held = [job for job in list(self._held.values()) if job.is_open]
            if not held:
                continue
            try:
                answer = await self.client.extend(
                    self.topic, [job.seq for job in held], node=self.node, lease_ms=self.lease_ms,
                    lease_ids=[job.lease_id for job in held], retries=BRIEFLY,
                )  # fmt: skip
            except TopicsError as error:
                log.warning("leases of %s could not be extended: %s", self.topic, error)
                continue
            for job in held:
                if job.seq in answer.skipped and job.is_open:
                    self.remove(job)
                    job.is_cancelled = answer.cancelled is not UNSET and job.seq in answer.cancelled
                    ended = "it was cancelled" if job.is_cancelled else "its lease has ended, another worker may get it"
                    log.warning("job %d of %s: %s", job.seq, job.topic, ended)

    async def complete(self, job: AsyncJob) -> None:
        """Ack a job. A failure is logged: the job comes again when its lease ends."""
        try:
            if not await job.ack(retries=BRIEFLY):
                log.warning("job %d of %s: its lease had ended, or an earlier ack got through", job.seq, job.topic)
        except TopicsError as error:
            log.warning("job %d of %s is done, but its ack failed: %s", job.seq, job.topic, error)

    async def give_back(self, job: AsyncJob, error: BaseException | None = None) -> None:
        """Nack a job that `error` made fail, or whose loop was left. A failure is logged."""
        delay_ms = None if self.delay_ms is None else self.delay_ms(job.deliveries)
        reason = None if error is not None else "the loop over the jobs was left"
        try:
            await job.nack(delay_ms, retry=True, reason=reason, error=error, retries=BRIEFLY)
        except TopicsError as failure:
            log.warning("job %d of %s goes back when its lease ends: %s", job.seq, job.topic, failure)

    async def jobs(self, handle_signals: bool | None) -> AsyncIterator[AsyncJob]:
        """Yield jobs one at a time, until a signal or `stopping`.

        Ack a job when the loop asks for the next one, and give it back if the loop was left. A body that has called
        `ack` or `nack` itself is not corrected.
        """
        restore_signals = tools.on_stop_signals(self.stopping.set, handle_signals)
        current: AsyncJob | None = None
        try:
            async with self.kept():
                try:
                    while not self.stopping.is_set():
                        for job in await self.next(1):
                            current = job
                            with tracing.job(self.topic, job.seq, job.meta, is_current=False):
                                yield job
                            current = None
                            if job.is_open:
                                await self.complete(job)
                            self.remove(job)
                finally:
                    if current is not None and current.is_open:
                        await self.give_back(current)
                    if self.pushes is not None:
                        await self.pushes.aclose()
        finally:
            restore_signals()


# --- a function that is called for each job


@dataclass(eq=False)
class AsyncWorker:
    """Calls a function for each job of a queue, several at a time. `AsyncTopics.worker` makes one."""

    leases: AsyncLeases
    handler: Handler
    concurrency: int
    timeout_s: float | None
    on_start: Callable[[AsyncJob], object] | None
    on_done: Callable[[AsyncJob, float], object] | None
    on_error: Callable[[AsyncJob, BaseException], object] | None
    _running: set[str] = field(default_factory=set)  # the leases of jobs whose handlers run
    _room: tools.Event = field(default_factory=tools.Event)

    def __call__(self, job: AsyncJob) -> Any:
        """Call the function directly, as a test would."""
        return self.handler(job)

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
        self.leases.stopping.set()

    async def _work(self) -> None:
        group = tools.Group()
        async with self.leases.kept():
            try:
                while not self.leases.stopping.is_set():
                    free = self.concurrency - len(self._running)
                    if not free:
                        self._room.clear()
                        await tools.wait_for(self._room, 1.0)
                        continue
                    for job in await self.leases.next(free):
                        self._running.add(job.lease_id)
                        group.spawn(self._run_job, job)
            finally:
                await group.join()

    async def _run_job(self, job: AsyncJob) -> None:
        began = time.monotonic()
        try:
            self._notify(self.on_start, job)
            with tracing.job(job.topic, job.seq, job.meta):
                await tools.call_within(self.timeout_s, self.handler, job)
        except Exception as failure:
            error = of_caller(failure)
            if self.on_error is None:
                log.error("job %d of %s failed (delivery %d)", job.seq, job.topic, job.deliveries, exc_info=error)
            self._notify(self.on_error, job, error)
            if job.is_open:
                await self.leases.give_back(job, error)
        else:
            if job.is_open:
                await self.leases.complete(job)
            self._notify(self.on_done, job, time.monotonic() - began)
        finally:
            self.leases.remove(job)
            self._running.discard(job.lease_id)
            self._room.set()

    def _notify(self, hook: Callable[..., object] | None, *arguments: object) -> None:
        """Call a hook of the caller's. Its failure is logged: it says nothing about the job."""
        if hook is not None:
            try:
                hook(*arguments)
            except Exception:
                log.exception("a hook of the worker of %s failed", self.leases.topic)


# --- jobs that the server pushes


class AsyncPushes:
    """Jobs that the server pushes over a stream, one at a time: a job that waited unread would lose its lease."""

    def __init__(self, client: AsyncQueueCalls, http: AsyncTransport, topic: str, *, node: str, lease_ms: int) -> None:
        self._client, self._http, self._topic, self._node = client, http, topic, node
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
            jobs = []
            for event in self._parser.feed(chunk):
                if event.name == "job":
                    found = decode_records(_decode_job, event.data)
                    jobs.append(AsyncJob(self._client, self._topic, self._node, found))
                elif event.name == "error":
                    raise_if_final(event.data)
            return jobs
        except TopicsError:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        self._chunks = None
        await self._open.aclose()
