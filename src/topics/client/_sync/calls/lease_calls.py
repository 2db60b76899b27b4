# Generated from _async/calls/lease_calls.py by tools/unasync.py. Do not edit.
"""Calls for jobs that a worker holds: ack them, give them back, and hold them longer."""

from __future__ import annotations

from collections.abc import Sequence

from topics.client._sync.transport import Calls, fields_of, topic_path
from topics.model import queue


class LeaseCalls(Calls):
    """Ack, nack and extend jobs of a queue."""

    def ack(
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

        done = topics.ack("emails", [7, 8], node="worker-1")
        """
        body = {"node": node, "seqs": seqs, **fields_of(lease_ids=lease_ids)}
        return self._http.call("POST", topic_path(topic, "/ack"), queue.AckAnswer, body=body, retries=retries)

    def nack(
        self,
        topic: str,
        seqs: Sequence[int],
        *,
        node: str,
        delay_ms: int = 0,
        lease_ids: Sequence[str] | None = None,
        retries: int | None = None,
    ) -> queue.NackAnswer:
        """Give jobs back, to be delivered again after `delay_ms`.

        topics.nack("emails", [7], node="worker-1", delay_ms=60_000)
        """
        body = {"node": node, "seqs": seqs, "delay_ms": delay_ms, **fields_of(lease_ids=lease_ids)}
        return self._http.call("POST", topic_path(topic, "/nack"), queue.NackAnswer, body=body, retries=retries)

    def extend(
        self,
        topic: str,
        seqs: Sequence[int],
        *,
        node: str,
        lease_ms: int,
        lease_ids: Sequence[str] | None = None,
        retries: int | None = None,
    ) -> queue.ExtendAnswer:
        """Hold jobs for `lease_ms` from now.

        topics.extend("emails", [7], node="worker-1", lease_ms=30_000)
        """
        body = {"node": node, "seqs": seqs, "lease_ms": lease_ms, **fields_of(lease_ids=lease_ids)}
        return self._http.call("POST", topic_path(topic, "/extend"), queue.ExtendAnswer, body=body, retries=retries)
