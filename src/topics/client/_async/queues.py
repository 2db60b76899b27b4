"""Calls for queues, and `AsyncJob`, which a claim returns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

from msgspec import Raw, Struct, field

from topics.client._async.management import AsyncCalls
from topics.client.call import failure_of, given, topic_path
from topics.client.errors import TopicsError
from topics.client.items import Match, Record
from topics.model import queue

T = TypeVar("T")


class ClaimedJob(Record):
    lease_id: str = ""
    deadline: int = 0
    deliveries: int = 1
    reasons: list[queue.Reason] = field(default_factory=list)


class AsyncJob:
    """A job of a queue, leased to this worker until `deadline` (ms since 1970).

    job.data            what was written
    job.deliveries      how often it was delivered, this time included
    job.reasons         why earlier deliveries failed, the last one last
    await job.ack()     complete it; `worker` and `jobs` do so when the function or the body of the loop ends
    """

    def __init__(self, client: AsyncQueueCalls, topic: str, node: str, job: ClaimedJob) -> None:
        self._client = client
        self._job = job
        self.topic = topic
        self.node = node  # the worker
        self.sender = job.node  # the node that wrote the job
        self.seq, self.ts, self.tag, self.key = job.seq, job.ts, job.tag, job.key
        self.lease_id, self.deadline = job.lease_id, job.deadline
        self.deliveries, self.reasons = job.deliveries, job.reasons  # this delivery counts
        self.is_open = True  # until `ack` or `nack` was answered
        self.is_cancelled = False  # whether it was deleted: a worker notices when it extends the lease

    @property
    def data(self) -> Any:
        """The data, decoded."""
        return self._job.data

    @property
    def json(self) -> Raw:
        """The data as it was written."""
        return self._job.json

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata, decoded; empty if there is none."""
        return self._job.meta

    def decode(self, type: type[T]) -> T:
        """Decode the data as a dataclass, a Struct or a TypedDict. Raises `msgspec.ValidationError`.

        email = job.decode(Email)
        """
        return self._job.decode(type)

    async def ack(self, *, retries: int | None = None) -> bool:
        """Complete the job. Return False if the lease had ended: another worker may have got the job.

        `retries` is the number of attempts after the first one, instead of that of the client.

        await job.ack()
        """
        answer = await self._client.ack(
            self.topic, [self.seq], node=self.node, lease_ids=[self.lease_id], retries=retries
        )
        self.is_open = False
        return answer.acked == 1

    async def nack(
        self,
        delay_ms: int | None = None,
        *,
        retry: bool = False,
        reason: str | None = None,
        error: BaseException | None = None,
        retries: int | None = None,
    ) -> bool:
        """Give the job back, to be delivered again after `delay_ms`. Return False if the lease had ended.

        `AsyncTopics.nack` describes the arguments.

        await job.nack(delay_ms=60_000, reason="the mail server is busy")
        """
        answer = await self._client.nack(
            self.topic, [self.seq], node=self.node, delay_ms=delay_ms, retry=retry, reason=reason,
            error=error, lease_ids=[self.lease_id], retries=retries,
        )  # fmt: skip
        self.is_open = False
        return answer.nacked == 1

    async def extend(self, lease_ms: int) -> bool:
        """Hold the job for `lease_ms` from now. Return False if the lease had ended.

        await job.extend(60_000)
        """
        return await self._extend(lease_ms=lease_ms)

    async def progress(self, share: float, text: str | None = None) -> bool:
        """Report how far the job is, from 0 to 1, for the console and `list_jobs`. Return False if the lease had ended.

        The lease stays as it is, and a restart of the server forgets the progress. Each call is one request: a job does
        not fail because a busy server, or none, answers it.

        await job.progress(0.4, "400 of 1,000 pages")
        """
        try:
            return await self._extend(progress=queue.Progress(share, text), retries=0)
        except TopicsError as error:
            if not error.retryable:
                raise
            return True

    async def _extend(
        self, *, lease_ms: int | None = None, progress: queue.Progress | None = None, retries: int | None = None
    ) -> bool:
        answer = await self._client.extend(
            self.topic, [self.seq], node=self.node, lease_ms=lease_ms, progress=progress, lease_ids=[self.lease_id],
            retries=retries,
        )  # fmt: skip
        if answer.extended:
            self.deadline = answer.deadlines[str(self.seq)]
        self.is_cancelled = self.is_cancelled or bool(answer.cancelled)
        return answer.extended == 1

    def __repr__(self) -> str:
        return f"<job {self.seq} of {self.topic}, delivery {self.deliveries}>"


class _Claimed(Struct):
    claimed: list[ClaimedJob]


class AsyncQueueCalls(AsyncCalls):
    """One call per operation of a queue. `worker` and `jobs` of `AsyncTopics` are made of them."""

    async def claim(
        self,
        topic: str,
        *,
        node: str,
        max: int = 1,
        lease_ms: int | None = None,
        wait_ms: int = 0,
        retries: int | None = None,
    ) -> list[AsyncJob]:
        """Lease up to `max` jobs to the worker `node`. With `wait_ms`, wait for a job.

        `retries` is the number of attempts after the first one, instead of that of the client.

        for job in await topics.claim("emails", node="worker-1", max=10):
            await job.ack()
        """
        body = {"node": node, "max": max, "wait_ms": wait_ms, **given(lease_ms=lease_ms)}
        answer = await self._http.call(
            "POST", topic_path(topic, "claim"), _Claimed, body=body, safe=False, wait_ms=wait_ms, retries=retries
        )
        return [AsyncJob(self, topic, node, job) for job in answer.claimed]

    def list_jobs(self, topic: str, *, state: queue.JobState | None = None) -> AsyncIterator[queue.ListedJob]:
        """Yield the jobs of a queue with their states, in the order of the log.

        async for job in topics.list_jobs("emails", state="in_flight"):
            print(job.seq, job.node, job.deliveries)
        """
        return self._rows(topic_path(topic, "jobs"), queue.JobList, "jobs", state=state)

    async def redrive(
        self,
        topic: str,
        *,
        match: Match | None = None,
        seqs: Sequence[int] | None = None,
        from_seq: int = 0,
        limit: int = queue.REDRIVE_LIMIT,
        dry_run: bool = False,
        dead_letter: str | None = None,
    ) -> queue.RedriveAnswer:
        """Move dead letters of a queue back into it. With `dry_run`, count them only.

        done = await topics.redrive("emails", match="customer-7")
        print(done.redriven, done.caught_up)
        """
        body = {
            "from_seq": from_seq, "limit": limit, "dry_run": dry_run,
            **given(match=match, seqs=seqs, dead_letter=dead_letter),
        }  # fmt: skip
        return await self._http.call("POST", topic_path(topic, "redrive"), queue.RedriveAnswer, body=body, safe=dry_run)

    # --- jobs that a worker holds

    async def ack(
        self,
        topic: str,
        seqs: Sequence[int],
        *,
        node: str,
        lease_ids: Sequence[str] | None = None,
        retries: int | None = None,
    ) -> queue.AckAnswer:
        """Complete jobs. Seqs that `node` does not hold are listed in `skipped`.

        `retries` is the number of attempts after the first one, instead of that of the client.

        done = await topics.ack("emails", [7, 8], node="worker-1")
        """
        body = {"node": node, "seqs": seqs, **given(lease_ids=lease_ids)}
        return await self._http.call("POST", topic_path(topic, "ack"), queue.AckAnswer, body=body, retries=retries)

    async def nack(
        self,
        topic: str,
        seqs: Sequence[int],
        *,
        node: str,
        delay_ms: int | None = None,
        retry: bool = False,
        reason: str | None = None,
        error: BaseException | None = None,
        lease_ids: Sequence[str] | None = None,
        retries: int | None = None,
    ) -> queue.NackAnswer:
        """Give jobs back, to be delivered again after `delay_ms`.

        Without `delay_ms`, the retry policy of the queue decides. If it has none, the jobs are ready at once, or with
        `retry` after a delay that grows with their deliveries. `error` is the exception that made the jobs fail.

        await topics.nack("emails", [7], node="worker-1", delay_ms=60_000, reason="the mail server is busy")
        """
        why = {} if error is None else failure_of(error)
        body = {
            "node": node, "seqs": seqs, **why,
            **given(delay_ms=delay_ms, retry=retry or None, reason=reason, lease_ids=lease_ids),
        }  # fmt: skip
        return await self._http.call("POST", topic_path(topic, "nack"), queue.NackAnswer, body=body, retries=retries)

    async def extend(
        self,
        topic: str,
        seqs: Sequence[int],
        *,
        node: str,
        lease_ms: int | None = None,
        progress: queue.Progress | None = None,
        lease_ids: Sequence[str] | None = None,
        retries: int | None = None,
    ) -> queue.ExtendAnswer:
        """Hold jobs for `lease_ms` from now, or report the progress of their worker, or both.

        await topics.extend("emails", [7], node="worker-1", lease_ms=30_000)
        """
        body = {"node": node, "seqs": seqs, **given(lease_ms=lease_ms, progress=progress, lease_ids=lease_ids)}
        return await self._http.call(
            "POST", topic_path(topic, "extend"), queue.ExtendAnswer, body=body, retries=retries
        )
