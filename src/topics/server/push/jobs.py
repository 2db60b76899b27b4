"""Jobs pushed to workers: the clients that wait for jobs of a queue, and the work stream.

A queue has a `QueueWaiters` only while a client waits for it: a long poll, a work stream, or a claim of a queue that
gathers them. It is called when a job may be available, and sets a timer for the next time at which a lease or a delay
ends. Then one pass of the engine serves all waiting clients, each with an even share. Claims of the same turn
are served in a pass before them, in order of arrival.

A work stream never holds more jobs at a time than its worker asked for. When the connection ends, all jobs that were
pushed on it and are still leased return to the queue at once. Jobs that were claimed for it and never pushed return as
if they had not been delivered. Jobs that the same worker claimed otherwise stay with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from topics import logs
from topics.engine.queue import verbs
from topics.engine.queue.verbs import Claimed, Want
from topics.engine.state.jobs.job import Holder
from topics.engine.state.topic import Topic, leases_of
from topics.engine.write.commit import Ticket
from topics.errors import Code, TopicsError
from topics.server.access.caller import Slot
from topics.server.loop.runtime import NOT_LOADING, Runtime, unreadable
from topics.server.loop.throttle import Throttle
from topics.server.push.dispatcher import PushServices
from topics.server.push.live_stream import EventStream, error_frame, event_frame

log = logs.Log("queue")

RETRY_MS = 1000  # after a pass that could not be written to the log
CHANGE_MS = 20  # while a change of the queue waits for the replica


class Claimer(Protocol):
    fresh: bool  # whether it came in this turn and is served in order of arrival; the others share evenly

    def want(self) -> Want | None: ...  # what it can take now
    def queue_deleted(self) -> None: ...

    # Both return whether the client waits for more.
    def assign(self, claimed: Claimed, ticket: Ticket | None) -> bool: ...
    def refuse(self, error: TopicsError) -> bool: ...


class JobWaiters:
    def __init__(self, runtime: Runtime, throttle: Throttle) -> None:
        self._runtime = runtime
        self._throttle = throttle
        self._queues: dict[Topic, QueueWaiters] = {}

    def join(self, topic: Topic, claimer: Claimer) -> QueueWaiters:
        waiters = self._queues.get(topic)
        if waiters is None:
            waiters = QueueWaiters(self._runtime, self._throttle, topic, on_empty=lambda: self._queues.pop(topic, None))
            self._queues[topic] = waiters
        waiters.waiting[claimer] = None
        waiters.schedule() if claimer.fresh else waiters.wake()
        return waiters

    def wake(self) -> None:
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
        self._has_jobs = False  # whether those that wait longer than this turn may be served, too
        self._handle: asyncio.Handle | None = None  # of the next pass, if it is scheduled
        self._timer: asyncio.TimerHandle | None = None  # for the next end of a lease or a delay
        self._loading = NOT_LOADING
        self._unlisten: Callable[[], None] | None = None  # once clients wait for more than the first pass

    def wake(self) -> None:
        """Serve the clients that wait, soon: there may be jobs for them."""
        self._has_jobs = True
        self.schedule()

    def schedule(self) -> None:
        if self._handle is None and not self._loading.waiting:
            jitter_ms = self._topic.config.claim_jitter_ms
            if jitter_ms:
                self._handle = self._runtime.call_later(jitter_ms, self._pass)
            else:
                self._handle = self._runtime.loop.call_soon(self._pass)

    def leave(self, claimer: Claimer) -> None:
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
        self._on_empty()
        if self._unlisten is not None:
            self._unlisten()
            if self._topic.queue is not None:
                self._topic.queue.freed = lambda: None

    def _pass(self) -> None:
        self._handle = None
        self._loading = self._runtime.attempt(self._serve, self._cannot_read)

    def _cannot_read(self, failure: BaseException) -> None:
        self._refuse(list(self.waiting), unreadable(failure))

    def _serve(self) -> None:
        """Assign available jobs to the claims of this turn in order, or else an even share to each client.

        Raise `Cold` before anything has happened.
        """
        if self._topic.changing:
            self._runtime.engine.commits.sync()
            if self._topic.changing:  # the change waits for the replica
                self._wake_in(CHANGE_MS)
                return
        if self._topic.gone:
            self._topic_changed(self._topic)
            return
        verbs.expire(self._topic, self._runtime.clock.now_ms())  # expired leases make room with their workers
        fresh = [claimer for claimer in self.waiting if claimer.fresh]
        refused = bool(fresh) and not self._ask(fresh, in_order=True)
        if not refused and (self._has_jobs or not fresh):
            self._has_jobs = False
            refused = not self._ask([claimer for claimer in self.waiting if not claimer.fresh], in_order=False)
        if refused or self._closed:
            return
        if self._has_jobs or any(claimer.fresh for claimer in self.waiting):
            self.schedule()
        self._after_pass()

    def _ask(self, claimers: list[Claimer], *, in_order: bool) -> bool:
        """Serve clients in one pass. Return False if they are refused."""
        asking = [(one, want) for one in claimers if (want := one.want()) is not None]
        if not asking:
            return True
        try:
            if self._throttle.pressed:
                self._throttle.check(self._topic.name)
            claims, ticket = self._runtime.engine.queues.claim(
                self._topic, [want for _, want in asking], in_order=in_order
            )
        except TopicsError as error:
            self._refuse([claimer for claimer, _ in asking], error)
            return False
        if ticket is not None:
            ticket.on_done(self._written)
        for (claimer, _), claimed in zip(asking, claims, strict=True):
            if not claimer.assign(claimed, ticket):
                self.waiting.pop(claimer, None)
        # The answers of a pass have a limit together: the others get jobs from the next one.
        cut = any(claimed.rows for claimed in claims) and verbs.has_open(leases_of(self._topic))
        self._has_jobs = self._has_jobs or (cut and any(not one.fresh and one in self.waiting for one, _ in asking))
        return True

    def _after_pass(self) -> None:
        if not self.waiting:
            self._close()
            return
        self._listen()
        next_ms = leases_of(self._topic).next_ms()
        if next_ms is not None:
            self._wake_in(max(next_ms - self._runtime.clock.now_ms(), 0))

    def _listen(self) -> None:
        """Wake up when jobs become available. Claims that share one pass and leave never come here."""
        if self._unlisten is None:
            self._unlisten = self._runtime.engine.listen(self._topic, self._topic_changed)
            leases_of(self._topic).freed = self.wake

    def _wake_in(self, delay_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._runtime.call_later(delay_ms, self.wake)

    def _refuse(self, claimers: list[Claimer], error: TopicsError) -> None:
        for claimer in claimers:
            if not claimer.refuse(error):
                self.waiting.pop(claimer, None)
        if self.waiting:
            self._listen()
            self._wake_in(error.retry_after_ms or RETRY_MS)
        else:
            self._close()

    def _written(self, ticket: Ticket) -> None:
        """Delay the next pass if the claims could not be written: they were undone, and the queue called `wake`."""
        if ticket.error is not None and self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._wake_in(RETRY_MS)


def _ignore() -> None:
    """Do nothing: the callback of a holder whose stream is not open. The two must not keep each other alive."""


class WorkStream(EventStream):
    """One connection. In a pass it takes as many jobs as it has room for."""

    fresh = False

    def __init__(
        self,
        services: PushServices,
        job_waiters: JobWaiters,
        topic: Topic,
        *,
        node: str,
        max: int,
        lease_ms: int | None,
        slot: Slot,
    ) -> None:
        super().__init__(services.runtime, slot=slot)
        self._job_waiters = job_waiters
        self._budget = services.budget
        self._topic = topic
        self._node = node
        self._max = max
        self._lease_ms = lease_ms
        self._holder = Holder(_ignore)
        self._unsent: list[Claimed] = []  # their leases are on their way to the log
        self._waiters: QueueWaiters | None = None
        self._reported = ""  # code of the error that the client was last sent

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
            self.runtime.engine.queues.undo_claim(claimed)
        self.runtime.engine.queues.release(self._topic, self._holder)
        self._holder.changed = _ignore

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

    def _push(self, claimed: Claimed) -> None:
        if not claimed.rows or not self.open:
            return
        self._reported = ""
        start = b'{"topic":"%b",' % self._topic.name.encode()
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
