"""A worker of a queue: claims jobs, keeps their leases, and acks or gives back each of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from topics.client import tracing
from topics.client._async import tools
from topics.client._async.calls.job import AsyncJob
from topics.client._async.work.leases import AsyncLeases
from topics.client.errors import TopicsError
from topics.client.retry import Backoff

if TYPE_CHECKING:
    from topics.client._async.calls.queue_calls import AsyncQueueCalls

Handler = Callable[[AsyncJob], Any]

CLAIM_WAIT_MS = 2_000  # a claim waits no longer than this, so that a worker that was stopped ends soon

log = logging.getLogger("topics.client.worker")


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
        self._client = client
        self._handler = handler
        self._concurrency = concurrency
        self._lease_ms = lease_ms
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
        jobs, keeper = tools.Group(), tools.Group()
        keeper.spawn(self._leases.keep)
        try:
            await self._claim_jobs(jobs)
        finally:
            try:
                await jobs.join()
            finally:
                self._leases.end()
                await keeper.join()

    async def _claim_jobs(self, group: tools.Group) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            free = self._concurrency - len(self._running)
            if not free:
                self._room.clear()
                await tools.wait_for(self._room, 1.0)
                continue
            try:
                claimed = await self._client.claim(
                    self.topic, node=self.node, max=free, lease_ms=self._lease_ms, wait_ms=CLAIM_WAIT_MS, retries=0
                )
            except TopicsError as error:
                if not error.retryable:
                    raise
                await tools.wait_for(self._stopping, backoff.next_s(error))
                continue
            backoff.reset()
            for job in claimed:
                self._leases.add(job)
                self._running.add(job.lease_id)
                group.spawn(self._run_job, job)

    async def _run_job(self, job: AsyncJob) -> None:
        began = time.monotonic()
        try:
            self._notify(self._on_start, job)
            with tracing.working(self.topic, job.seq, job.meta):
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
