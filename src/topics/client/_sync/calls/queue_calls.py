# Generated from _async/calls/queue_calls.py by tools/unasync.py. Do not edit.
"""Calls for queues: claim, list and redrive jobs. `lease_calls` has the calls for jobs that a worker holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from topics.client._sync.calls.job import ClaimedJob, Job
from topics.client._sync.calls.lease_calls import LeaseCalls
from topics.client._sync.transport import fields_of, topic_path
from topics.client.items import Match
from topics.model import queue


class _Claimed(Struct):
    claimed: list[ClaimedJob]


class QueueCalls(LeaseCalls):
    """One call per operation of a queue. `worker` and `jobs` of `Topics` are made of them."""

    def claim(
        self,
        topic: str,
        *,
        node: str,
        max: int = 1,
        lease_ms: int | None = None,
        wait_ms: int = 0,
        retries: int | None = None,
    ) -> list[Job]:
        """Lease up to `max` jobs to the worker `node`. With `wait_ms`, wait for a job.

        `retries` is the number of attempts after the first one, instead of that of the client.

        for job in topics.claim("emails", node="worker-1", max=10):
            job.ack()
        """
        body = {"node": node, "max": max, "wait_ms": wait_ms, **fields_of(lease_ms=lease_ms)}
        answer = self._http.call(
            "POST", topic_path(topic, "/claim"), _Claimed, body=body, safe=False, wait_ms=wait_ms, retries=retries
        )
        return [Job(self, topic, node, job) for job in answer.claimed]

    def list_jobs(self, topic: str, *, state: queue.JobState | None = None) -> Iterator[queue.ListedJob]:
        """Yield the jobs of a queue with their states, in the order of the log.

        for job in topics.list_jobs("emails", state="in_flight"):
            print(job.seq, job.node, job.deliveries)
        """
        for page in self._http.pages(topic_path(topic, "/jobs"), queue.JobList, state=state):
            for job in page.jobs:
                yield job

    def redrive(
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

        done = topics.redrive("emails", match="customer-7")
        print(done.redriven, done.caught_up)
        """
        body = {
            "from_seq": from_seq, "limit": limit, "dry_run": dry_run,
            **fields_of(match=match, seqs=seqs, dead_letter=dead_letter),
        }  # fmt: skip
        return self._http.call("POST", topic_path(topic, "/redrive"), queue.RedriveAnswer, body=body, safe=dry_run)
