# Generated from _async/worker.py by tools/unasync.py. Do not edit.
"""A worker of a queue: claims jobs, keeps their leases, and acks or gives back each of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from topics.client import tracing
from topics.client._sync import tools
from topics.client._sync.job import Job
from topics.client.errors import TopicsError
from topics.client.retry import Backoff

if TYPE_CHECKING:
    from topics.client._sync.client import Topics

Handler = Callable[[Job], Any]

CLAIM_WAIT_MS = 2_000  # a claim waits no longer than this, so that a worker that was stopped ends soon
FIRST_DELAY_MS, LONGEST_DELAY_MS = 1_000, 300_000

log = logging.getLogger("topics.client.worker")


def default_delay_ms(deliveries: int) -> int:
    """Return how long a job that failed waits: one second, then twice as long each time, up to five minutes."""
    return min(FIRST_DELAY_MS << min(deliveries - 1, 20), LONGEST_DELAY_MS)


class Worker:
    """Calls a function for each job of a queue, several at a time. `Topics.worker` makes one."""

    def __init__(
        self,
        client: Topics,
        topic: str,
        handler: Handler,
        *,
        concurrency: int,
        node: str | None,
        lease_ms: int,
        timeout_s: float | None,
        retry_delay_ms: Callable[[int], int] | None,
        on_start: Callable[[Job], object] | None,
        on_done: Callable[[Job, float], object] | None,
        on_error: Callable[[Job, BaseException], object] | None,
    ) -> None:
        self.topic = topic
        self.node = node or f"py-{uuid4().hex[:12]}"
        self._client = client
        self._handler = handler
        self._concurrency = concurrency
        self._lease_ms = lease_ms
        self._timeout_s = timeout_s
        self._delay_ms = retry_delay_ms or default_delay_ms
        self._on_start = on_start
        self._on_done = on_done
        self._on_error = on_error
        self._held: dict[str, Job] = {}  # by lease
        self._stopping = tools.Event()
        self._ended = tools.Event()
        self._room = tools.Event()

    def __call__(self, job: Job) -> Any:
        """Call the function directly, as a test would."""
        return self._handler(job)

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or `stop`; then finish the jobs that are held, and return."""
        Worker.run_all([self])

    @staticmethod
    def run_all(workers: Sequence[Worker]) -> None:
        """Run workers side by side until SIGTERM, SIGINT or `stop`."""

        def stop() -> None:
            for worker in workers:
                worker.stop()

        remove = tools.on_stop_signals(stop)
        group = tools.Group()
        try:
            for worker in workers:
                group.spawn(worker._work)
            group.join()
        finally:
            stop()
            remove()

    def stop(self) -> None:
        """Claim no more jobs; `run` returns when those that are held are finished."""
        self._stopping.set()
        self._room.set()

    def _work(self) -> None:
        self._ended.clear()
        jobs, keeper = tools.Group(), tools.Group()
        keeper.spawn(self._keep_leases)
        try:
            self._claim_jobs(jobs)
        finally:
            try:
                jobs.join()
            finally:
                self._ended.set()
                keeper.join()

    def _claim_jobs(self, group: tools.Group) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            free = self._concurrency - len(self._held)
            if not free:
                self._room.clear()
                tools.wait_for(self._room, 1.0)
                continue
            try:
                claimed = self._client.claim(
                    self.topic, node=self.node, max=free, lease_ms=self._lease_ms, wait_ms=CLAIM_WAIT_MS
                )
            except TopicsError as error:
                if not error.retryable:
                    raise
                tools.wait_for(self._stopping, backoff.next_s(error))
                continue
            backoff.reset()
            for job in claimed:
                self._held[job.lease_id] = job
                group.spawn(self._run_job, job)

    def _run_job(self, job: Job) -> None:
        began = time.monotonic()
        try:
            if self._on_start is not None:
                self._on_start(job)
            with tracing.working(self.topic, job.seq, job.meta):
                tools.call_within(self._timeout_s, self._handler, job)
        except Exception as error:
            self._give_back(job, error)
        else:
            self._complete(job, time.monotonic() - began)
        finally:
            self._held.pop(job.lease_id, None)
            self._room.set()

    def _complete(self, job: Job, seconds: float) -> None:
        try:
            if not job.ack():
                log.warning("job %d of %s: its lease had ended, or an earlier ack got through", job.seq, job.topic)
        except TopicsError as error:
            log.warning("job %d of %s is done, but its ack failed: %s", job.seq, job.topic, error)
        if self._on_done is not None:
            self._on_done(job, seconds)

    def _give_back(self, job: Job, error: Exception) -> None:
        if self._on_error is not None:
            self._on_error(job, error)
        else:
            log.error("job %d of %s failed (delivery %d)", job.seq, job.topic, job.deliveries, exc_info=error)
        try:
            job.nack(self._delay_ms(job.deliveries))
        except TopicsError as failure:
            log.warning("job %d of %s goes back when its lease ends: %s", job.seq, job.topic, failure)

    def _keep_leases(self) -> None:
        """Extend the leases of all jobs that are held, three times as often as they end."""
        while not tools.wait_for(self._ended, self._lease_ms / 3000):
            held = list(self._held.values())
            if not held:
                continue
            try:
                self._client.extend(
                    self.topic, [job.seq for job in held], node=self.node, lease_ms=self._lease_ms,
                    lease_ids=[job.lease_id for job in held],
                )  # fmt: skip
            except TopicsError as error:
                log.warning("leases of %s could not be extended: %s", self.topic, error)
