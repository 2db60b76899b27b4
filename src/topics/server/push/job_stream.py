"""`GET /v0/topics/:topic/work`: jobs pushed to one worker, never more at once than it said it can hold.

What the worker acks, nacks or loses makes room for more. When the connection ends, everything that was pushed on it and
is still held goes back to the queue at once; what the same worker claimed on other ways stays with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.engine.queue import verbs
from topics.engine.queue.verbs import Claimed, Want
from topics.engine.state.leases import Holder
from topics.engine.state.topic import Topic
from topics.engine.write.commit import Ticket
from topics.errors import Code, TopicsError
from topics.server.push.job_waiters import Desk
from topics.server.push.sse import EventStream, error_frame, frame

if TYPE_CHECKING:
    from topics.server.app import TopicsApp


def _nobody() -> None:
    """Who is told of a holder's jobs while its stream is not open: the two must not keep each other alive."""


class WorkStream(EventStream):
    """One connection. Its share of a pass is the room it has left."""

    def __init__(
        self, app: TopicsApp, topic: Topic, *, node: str, max: int, lease_ms: int | None, release: Callable[[], None]
    ) -> None:
        super().__init__(app, release=release)
        self._topic = topic
        self._node = node
        self._max = max
        self._lease_ms = lease_ms
        self._holder = Holder(_nobody)
        self._desk: Desk | None = None
        self._told = ""  # the problem that the client knows of

    # --- as a stream

    def begin(self) -> None:
        if self._topic.gone:
            self.gone()
        else:
            self._holder.changed = self._changed
            self._desk = self.app.desks.join(self._topic, self)

    def resume(self, full_ms: float) -> None:
        self._changed()

    def ended(self) -> None:
        desk, self._desk = self._desk, None
        if desk is not None:
            desk.leave(self)
        verbs.release(self.app.engine, self._topic, self._holder)
        self._holder.changed = _nobody

    # --- at the desk

    def want(self) -> Want | None:
        room = self._max - len(self._holder.held)
        if room <= 0 or self.full or not self.open or self.app.budget.full:
            return None
        lease_ms = self._topic.config.lease_ms if self._lease_ms is None else self._lease_ms
        return Want(node=self._node, max=room, lease_ms=lease_ms, holder=self._holder)

    def got(self, claimed: Claimed, ticket: Ticket | None) -> bool:
        if ticket is None:
            self._push(claimed)
        else:
            ticket.on_done(lambda done: self._push(claimed) if done.error is None else self._tell(done.error))
        return True

    def refused(self, error: TopicsError) -> bool:
        self._tell(error)
        return True

    def gone(self) -> None:
        self._desk = None
        self.fail(Code.NOT_A_QUEUE.status, f'"{self._topic.name}" is not a queue any more', topic=self._topic.name)

    # --- inside

    def _push(self, claimed: Claimed) -> None:
        if not claimed.rows or not self.open:
            return
        self._told = ""
        start = b'{"topic":"%b",' % self._topic.wire_name
        frames = [
            frame(b"job", start + row[1:], id=b"%d" % job.seq)
            for job, row in zip(claimed.jobs, claimed.rows, strict=True)
        ]
        self.send(b"".join(frames))

    def _tell(self, error: TopicsError) -> None:
        """Advice, once a problem: the stream stays open."""
        if self._told != error.code.wire:
            self._told = error.code.wire
            more = {} if error.retry_after_ms is None else {"retry_after_ms": error.retry_after_ms}
            self.send(error_frame(error.code.status, error.message, **more))

    def _changed(self) -> None:
        if self._desk is not None:
            self._desk.poke()
