"""`GET /v0/topics/:topic/work`: jobs pushed to one worker, never more at a time than it asked for.

A job that the worker acks, nacks or loses makes room for another. When the connection ends, all jobs that were pushed
on it and are still leased return to the queue at once. Jobs that were claimed for it and never pushed return as if they
had not been delivered. Jobs that the same worker claimed otherwise stay with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.engine.queue.verbs import Claimed, Want
from topics.engine.state.jobs.job import Holder
from topics.engine.state.topic import Topic
from topics.engine.write.commit import Ticket
from topics.errors import Code, TopicsError
from topics.server.push.jobs.waiters import JobWaiters, QueueWaiters
from topics.server.push.sse import EventStream, error_frame, event_frame

if TYPE_CHECKING:
    from topics.server.limits.budget import MemoryBudget
    from topics.server.loop.runtime import Runtime


def _ignore() -> None:
    """Stand in for the callback of a holder whose stream is not open: the two must not keep each other alive."""


class WorkStream(EventStream):
    """One connection. In a pass it takes as many jobs as it has room for."""

    def __init__(
        self,
        runtime: Runtime,
        job_waiters: JobWaiters,
        budget: MemoryBudget,
        topic: Topic,
        *,
        node: str,
        max: int,
        lease_ms: int | None,
        release: Callable[[], None],
    ) -> None:
        super().__init__(runtime, release=release)
        self._job_waiters = job_waiters
        self._budget = budget
        self._topic = topic
        self._node = node
        self._max = max
        self._lease_ms = lease_ms
        self._holder = Holder(_ignore)
        self._unsent: list[Claimed] = []  # their leases are on their way to the log
        self._waiters: QueueWaiters | None = None
        self._reported = ""  # code of the error that the client was last sent

    # --- the connection

    def begin(self) -> None:
        if self._topic.gone:
            self.queue_deleted()
        else:
            self._holder.changed = self._changed
            self._waiters = self._job_waiters.join(self._topic, self)

    def resume(self, full_ms: float) -> None:
        self._changed()

    def ended(self) -> None:
        waiters, self._waiters = self._waiters, None
        if waiters is not None:
            waiters.leave(self)
        for claimed in self._unsent:
            self.runtime.engine.queues.undo_claim(self._topic, claimed.jobs)
        self.runtime.engine.queues.release(self._topic, self._holder)
        self._holder.changed = _ignore

    # --- for the waiters of the queue

    def want(self) -> Want | None:
        room = self._max - len(self._holder.held)
        if room <= 0 or self.full or not self.open or self._budget.full:
            return None
        lease_ms = self._topic.config.lease_ms if self._lease_ms is None else self._lease_ms
        return Want(node=self._node, max=room, lease_ms=lease_ms, holder=self._holder)

    def assign(self, claimed: Claimed, ticket: Ticket | None) -> bool:
        if ticket is None:
            self._push(claimed)
        elif claimed.rows:
            self._unsent.append(claimed)
            ticket.on_done(lambda done: self._written(claimed, done))
        return True

    def _written(self, claimed: Claimed, ticket: Ticket) -> None:
        """Push jobs whose leases are in the log. A stream that is closed keeps them for `ended`."""
        if self.open:
            self._unsent.remove(claimed)
            if ticket.error is None:
                self._push(claimed)
            else:
                self._report(ticket.error)

    def refuse(self, error: TopicsError) -> bool:
        self._report(error)
        return True

    def queue_deleted(self) -> None:
        self._waiters = None
        self.fail(Code.NOT_A_QUEUE.status, f'"{self._topic.name}" is not a queue any more', topic=self._topic.name)

    # --- frames

    def _push(self, claimed: Claimed) -> None:
        if not claimed.rows or not self.open:
            return
        self._reported = ""
        start = b'{"topic":"%b",' % self._topic.wire_name
        frames = [
            event_frame(b"job", start + row[1:], id=b"%d" % job.seq)
            for job, row in zip(claimed.jobs, claimed.rows, strict=True)
        ]
        self.send(b"".join(frames))

    def _report(self, error: TopicsError) -> None:
        """Send an error frame, once per error code in a row. The stream stays open."""
        if self._reported != error.code.wire:
            self._reported = error.code.wire
            more = {} if error.retry_after_ms is None else {"retry_after_ms": error.retry_after_ms}
            self.send(error_frame(error.code.status, error.message, **more))

    def _changed(self) -> None:
        if self._waiters is not None:
            self._waiters.wake()
