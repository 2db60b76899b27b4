"""Clients that wait for jobs: long polls, work streams, and all claims of a queue that gathers them.

A queue has a `QueueWaiters` only while a client waits for it. It is called when a job may be available (the queue grew,
a job was returned, a worker has room), and sets a timer for the next time at which a lease or a delay ends. Then one
pass of the engine serves all waiting clients, each with an even share. Nothing is polled, and no job has a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from topics import logs
from topics.engine.queue import verbs
from topics.engine.queue.verbs import Claimed, Want
from topics.engine.state.topic import Topic, leases_of
from topics.engine.write.commit import Ticket
from topics.errors import Code, TopicsError
from topics.server.loop.cold_loads import NOT_LOADING

if TYPE_CHECKING:
    from topics.server.loop.runtime import Runtime
    from topics.server.loop.throttle import Throttle

log = logs.Log("queue")

RETRY_MS = 1000  # after a pass that could not be written to the log


class Claimer(Protocol):
    """A client that waits for jobs."""

    def want(self) -> Want | None:
        """Return what it can take now; None for nothing."""

    def assign(self, claimed: Claimed, ticket: Ticket | None) -> bool:
        """Take its share, which may be empty. Return whether it waits for more."""

    def refuse(self, error: TopicsError) -> bool:
        """Handle that no jobs can be assigned for now. Return whether it waits for more."""

    def queue_deleted(self) -> None:
        """Handle that the queue was deleted."""


class JobWaiters:
    """The waiting clients of all queues."""

    def __init__(self, runtime: Runtime, throttle: Throttle) -> None:
        self._runtime = runtime
        self._throttle = throttle
        self._queues: dict[Topic, QueueWaiters] = {}

    def join(self, topic: Topic, claimer: Claimer) -> QueueWaiters:
        """Let `claimer` wait for jobs of the queue, and schedule a pass."""
        waiters = self._queues.get(topic)
        if waiters is None:
            waiters = QueueWaiters(self._runtime, self._throttle, topic, on_empty=lambda: self._queues.pop(topic, None))
            self._queues[topic] = waiters
        waiters.waiting[claimer] = None
        waiters.wake()
        return waiters

    def wake(self) -> None:
        """Schedule a pass over every queue that clients wait for."""
        for waiters in self._queues.values():
            waiters.wake()


class QueueWaiters:
    """The waiting clients of one queue, from the first that joins until the last has left."""

    def __init__(self, runtime: Runtime, throttle: Throttle, topic: Topic, *, on_empty: Callable[[], object]) -> None:
        self.waiting: dict[Claimer, None] = {}  # in order of arrival
        self._runtime = runtime
        self._throttle = throttle
        self._topic = topic
        self._on_empty = on_empty
        self._closed = False
        self._handle: asyncio.Handle | None = None  # of the next pass, if it is scheduled
        self._timer: asyncio.TimerHandle | None = None  # for the next end of a lease or a delay
        self._loading = NOT_LOADING
        self._unlisten = runtime.engine.listen(topic, self._topic_changed)
        leases_of(topic).freed = self.wake

    def wake(self) -> None:
        """Schedule a pass: at the end of this turn, or of the window in which the queue gathers claims."""
        if self._handle is None and not self._loading.waiting:
            jitter_ms = self._topic.config.claim_jitter_ms
            if jitter_ms:
                self._handle = self._runtime.call_later(jitter_ms, self._pass)
            else:
                self._handle = self._runtime.loop.call_soon(self._pass)

    def leave(self, claimer: Claimer) -> None:
        """Remove a client that waits no longer."""
        self.waiting.pop(claimer, None)
        if not self.waiting:
            self._close()

    def _topic_changed(self, topic: Topic) -> None:
        if topic.gone:
            waiting, self.waiting = list(self.waiting), {}
            self._close()
            for claimer in waiting:
                claimer.queue_deleted()
        else:
            self.wake()

    def _close(self) -> None:
        """Stop listening: no client waits. Clients that join later get a new instance, so this must act only once."""
        if self._closed:
            return
        self._closed = True
        for handle in (self._handle, self._timer):
            if handle is not None:
                handle.cancel()
        self._loading.cancel()
        self._unlisten()
        self._on_empty()
        if self._topic.queue is not None:
            self._topic.queue.freed = None

    def _pass(self) -> None:
        self._handle = None
        self._loading = self._runtime.attempt(self._serve, self._cannot_read)

    def _cannot_read(self, failure: BaseException) -> None:
        log.failure("cannot_read", failure, topic=self._topic.name)
        self._refuse(list(self.waiting), TopicsError(Code.INTERNAL, "jobs cannot be read from the disk"))

    def _serve(self) -> None:
        """Assign available jobs, an even share to each client. Raise `Cold` before anything has happened."""
        if self._topic.changing:
            self._runtime.engine.commits.sync()
        if self._topic.gone or not self.waiting:
            return  # `_topic_changed` handles a deleted queue
        verbs.expire(self._topic, self._runtime.clock.now_ms())  # expired leases make room with their workers
        asking = [(claimer, want) for claimer in self.waiting if (want := claimer.want()) is not None]
        if not asking:
            self._after_pass()
            return
        try:
            if self._throttle.pressed:
                self._throttle.check(self._topic.name)
            claims, ticket = self._runtime.engine.queues.claim(self._topic, [want for _, want in asking])
        except TopicsError as error:
            self._refuse([claimer for claimer, _ in asking], error)
        else:
            if ticket is not None:
                ticket.on_done(self._written)
            for (claimer, _), claimed in zip(asking, claims, strict=True):
                if not claimer.assign(claimed, ticket):
                    self.waiting.pop(claimer, None)
            self._after_pass()

    def _after_pass(self) -> None:
        if not self.waiting:
            self._close()
            return
        next_ms = leases_of(self._topic).next_ms()
        if next_ms is not None:
            self._wake_in(max(next_ms - self._runtime.clock.now_ms(), 0))

    def _wake_in(self, delay_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._runtime.call_later(delay_ms, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.wake()

    def _refuse(self, claimers: list[Claimer], error: TopicsError) -> None:
        for claimer in claimers:
            if not claimer.refuse(error):
                self.waiting.pop(claimer, None)
        if self.waiting:
            self._wake_in(error.retry_after_ms or RETRY_MS)
        else:
            self._close()

    def _written(self, ticket: Ticket) -> None:
        """Delay the next pass if the claims could not be written: they were undone, and the queue called `wake`."""
        if ticket.error is not None and self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._wake_in(RETRY_MS)
