# Generated from _async/work/job_loop.py by tools/unasync.py. Do not edit.
"""Jobs one by one, for a plain loop: claimed or pushed, with leases that are extended while its body runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

import msgspec

from topics.client import tracing
from topics.client._sync import tools
from topics.client._sync.calls.job import ClaimedJob, Job
from topics.client._sync.transport import Transport, topic_path, with_query
from topics.client._sync.work.leases import Leases
from topics.client.errors import TopicsError, Unreachable
from topics.client.items import decode_records
from topics.client.retry import Backoff
from topics.client.sse import EventParser
from topics.client.stream_errors import raise_if_final

if TYPE_CHECKING:
    from topics.client._sync.calls.queue_calls import QueueCalls

CLAIM_WAIT_MS = 2_000  # a claim waits no longer than this, so that a loop that was stopped ends soon
SILENCE_S = 35.0  # more than two heartbeats of a stream

_decode_job = msgspec.json.Decoder(ClaimedJob)


class JobSource(Protocol):
    """Where a loop gets its jobs from."""

    def next(self) -> list[Job]:
        """Return jobs that were leased, or none if there were none for a while. Raises `TopicsError`."""

    def close(self) -> None: ...


class Claims:
    """Claims one job at a time."""

    def __init__(self, client: QueueCalls, topic: str, *, node: str, lease_ms: int) -> None:
        self._client = client
        self._topic = topic
        self._node = node
        self._lease_ms = lease_ms

    def next(self) -> list[Job]:
        return self._client.claim(
            self._topic, node=self._node, lease_ms=self._lease_ms, wait_ms=CLAIM_WAIT_MS, retries=0
        )

    def close(self) -> None:
        pass


class Pushes:
    """Jobs that the server pushes over a stream, one at a time: a job that waited unread would lose its lease."""

    def __init__(self, client: QueueCalls, http: Transport, topic: str, *, node: str, lease_ms: int) -> None:
        self._client = client
        self._http = http
        self._topic = topic
        self._node = node
        self._path = with_query(topic_path(topic, "/work"), node=node, max=1, lease_ms=lease_ms)
        self._open = ExitStack()
        self._chunks: Iterator[bytes] | None = None
        self._parser = EventParser()

    def next(self) -> list[Job]:
        try:
            if self._chunks is None:
                self._parser = EventParser()
                self._chunks = self._open.enter_context(self._http.stream(self._path, silence_s=SILENCE_S))
            chunk = next(self._chunks, None)
            if chunk is None:
                raise Unreachable("the stream has ended", code="stream_ended")
            return self._jobs_in(chunk)
        except TopicsError:
            self.close()
            raise

    def _jobs_in(self, chunk: bytes) -> list[Job]:
        jobs = []
        for event in self._parser.feed(chunk):
            if event.name == "job":
                found = decode_records(_decode_job, event.data)
                jobs.append(Job(self._client, self._topic, self._node, found))
            elif event.name == "error":
                raise_if_final(event.data)
        return jobs

    def close(self) -> None:
        self._chunks = None
        self._open.close()


class JobLoop:
    """One loop over the jobs of a queue. `Topics.jobs` and `Topics.pushed_jobs` make one."""

    def __init__(
        self,
        client: QueueCalls,
        topic: str,
        *,
        node: str,
        lease_ms: int,
        retry_delay_ms: Callable[[int], int] | None,
        handle_signals: bool | None,
    ) -> None:
        self._topic = topic
        self._leases = Leases(client, topic, node=node, lease_ms=lease_ms, delay_ms=retry_delay_ms)
        self._handle_signals = handle_signals
        self._stopping = tools.Event()
        self._current: Job | None = None

    def stop(self) -> None:
        """End the loop when its body has finished the job that it has."""
        self._stopping.set()

    def run(self, source: JobSource) -> Iterator[Job]:
        """Yield jobs. Ack a job when the loop asks for the next one, and give it back if the loop was left.

        A body that has called `ack` or `nack` itself is not corrected.
        """
        backoff = Backoff()
        with self._running(source):
            while not self._stopping.is_set():
                try:
                    jobs = source.next()
                except TopicsError as error:
                    if not error.retryable:
                        raise
                    tools.wait_for(self._stopping, backoff.next_s(error))
                    continue
                backoff.reset()
                for job in jobs:
                    self._leases.add(job)
                    self._current = job
                    with tracing.job_loop(self._topic, job.seq, job.meta):
                        yield job
                    self._current = None
                    if job.is_open:
                        self._leases.complete(job)
                    self._leases.remove(job)

    @contextmanager
    def _running(self, source: JobSource) -> Iterator[None]:
        """Keep the lease while the body of the loop runs. Give back the job that it did not finish."""
        restore_signals = tools.on_stop_signals(self.stop, self._handle_signals)
        keeper = tools.Group()
        keeper.spawn(self._leases.keep)
        try:
            yield
        finally:
            try:
                if self._current is not None and self._current.is_open:
                    self._leases.give_back(self._current)
                source.close()
                self._leases.end()
                keeper.join()
            finally:
                restore_signals()
