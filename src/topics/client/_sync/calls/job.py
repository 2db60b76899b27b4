# Generated from _async/calls/job.py by tools/unasync.py. Do not edit.
"""A job of a queue, leased to this worker."""

from __future__ import annotations

from typing import Any, TypeVar

from topics.client._sync.calls.lease_calls import LeaseCalls
from topics.client.items import Record

T = TypeVar("T")


class ClaimedJob(Record):
    """A job as the server sends it."""

    lease_id: str = ""
    deadline: int = 0
    deliveries: int = 1


class Job:
    """A job of a queue, leased to this worker until `deadline` (ms since 1970).

    job.data            what was written
    job.deliveries      how often it was delivered, this time included
    job.ack()     complete it; `worker` and `jobs` do so when the function or the body of the loop ends
    """

    __slots__ = ("_client", "_job", "deadline", "is_open", "node", "topic")

    def __init__(self, client: LeaseCalls, topic: str, node: str, job: ClaimedJob) -> None:
        self._client = client
        self._job = job
        self.is_open = True  # until `ack` or `nack` was answered
        self.topic = topic
        self.node = node
        self.deadline = job.deadline

    @property
    def seq(self) -> int:
        return self._job.seq

    @property
    def ts(self) -> int:
        return self._job.ts

    @property
    def tag(self) -> str | None:
        return self._job.tag

    @property
    def data(self) -> Any:
        """The data, decoded."""
        return self._job.data

    def decode(self, type: type[T]) -> T:
        """Decode the data as a dataclass, a Struct or a TypedDict. Raises `msgspec.ValidationError`.

        email = job.decode(Email)
        """
        return self._job.decode(type)

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata, decoded; empty if there is none."""
        return self._job.meta

    @property
    def sender(self) -> str | None:
        """The node that wrote the job."""
        return self._job.node

    @property
    def lease_id(self) -> str:
        return self._job.lease_id

    @property
    def deliveries(self) -> int:
        """How often the job was delivered, this time included."""
        return self._job.deliveries

    def ack(self, *, retries: int | None = None) -> bool:
        """Complete the job. Return False if the lease had ended: another worker may have got the job.

        `retries` is the number of attempts after the first one, instead of that of the client.

        job.ack()
        """
        answer = self._client.ack(self.topic, [self.seq], node=self.node, lease_ids=[self.lease_id], retries=retries)
        self.is_open = False
        return answer.acked == 1

    def nack(self, delay_ms: int = 0, *, retries: int | None = None) -> bool:
        """Give the job back, to be delivered again after `delay_ms`. Return False if the lease had ended.

        job.nack(delay_ms=60_000)
        """
        answer = self._client.nack(
            self.topic, [self.seq], node=self.node, delay_ms=delay_ms, lease_ids=[self.lease_id], retries=retries
        )
        self.is_open = False
        return answer.nacked == 1

    def extend(self, lease_ms: int) -> bool:
        """Hold the job for `lease_ms` from now. Return False if the lease had ended.

        job.extend(60_000)
        """
        answer = self._client.extend(
            self.topic, [self.seq], node=self.node, lease_ms=lease_ms, lease_ids=[self.lease_id]
        )
        if answer.extended:
            self.deadline = answer.deadlines[str(self.seq)]
        return answer.extended == 1

    def __repr__(self) -> str:
        return f"<job {self.seq} of {self.topic}, delivery {self.deliveries}>"
