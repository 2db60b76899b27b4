"""The leases of the jobs that one worker holds: extended while the jobs run, and ended by an ack or a nack."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.client._async import tools
from topics.client._async.calls.job import AsyncJob
from topics.client._async.transport import BRIEFLY
from topics.client.errors import TopicsError

if TYPE_CHECKING:
    from topics.client._async.calls.queue_calls import AsyncQueueCalls

FIRST_DELAY_MS, LONGEST_DELAY_MS = 1_000, 300_000

log = logging.getLogger("topics.client.worker")


def default_delay_ms(deliveries: int) -> int:
    """Return how long a job that failed waits: one second, then twice as long each time, up to five minutes."""
    return min(FIRST_DELAY_MS << min(deliveries - 1, 20), LONGEST_DELAY_MS)


class AsyncLeases:
    """The jobs that one worker holds. `keep` extends their leases until `end`.

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

    def add(self, job: AsyncJob) -> None:
        self._held[job.lease_id] = job

    def remove(self, job: AsyncJob) -> None:
        self._held.pop(job.lease_id, None)

    def end(self) -> None:
        self._ended.set()

    async def keep(self) -> None:
        """Extend the leases of all jobs that are held, three times as often as they end."""
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
