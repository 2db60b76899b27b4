"""Where workers wait for jobs: long polls, streams, and everybody while a queue gathers its claims.

A desk exists only while somebody waits at it. It is told when there may be something to hand out (the queue grew, a job
came back, a worker has room) and knows the next moment at which time itself brings something; then one pass of the
engine serves all who wait, each with an even share. Nobody polls, and no job has a timer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from topics import logs
from topics.engine.queue import verbs
from topics.engine.queue.verbs import Claimed, Want
from topics.engine.state.leases import leases_of
from topics.engine.state.topic import Topic
from topics.engine.write.commit import Ticket
from topics.errors import Code, TopicsError
from topics.storage.segments.cold import Cold

if TYPE_CHECKING:
    from topics.server.app import TopicsApp

log = logs.Log("queue")

AGAIN_MS = 1000  # after a pass that could not be written down


class Claimer(Protocol):
    """One who waits."""

    def want(self) -> Want | None:
        """What it would take now; None for nothing."""

    def got(self, claimed: Claimed, ticket: Ticket | None) -> bool:
        """Its share, which may be empty. Whether it goes on waiting."""

    def refused(self, error: TopicsError) -> bool:
        """Nothing can be handed out for now. Whether it goes on waiting."""

    def gone(self) -> None:
        """The queue does not exist any more."""


class Desks:
    """The desks of all queues at which somebody waits."""

    def __init__(self, app: TopicsApp) -> None:
        self._app = app
        self._desks: dict[Topic, Desk] = {}

    def join(self, topic: Topic, claimer: Claimer) -> Desk:
        """Waits at the queue's desk; the next pass is due as if something had happened."""
        desk = self._desks.get(topic)
        if desk is None:
            desk = self._desks[topic] = Desk(self._app, topic, self)
        desk.waiting[claimer] = None
        desk.poke()
        return desk

    def poke(self) -> None:
        """Have every queue served at which somebody waits."""
        for desk in self._desks.values():
            desk.poke()

    def forget(self, topic: Topic) -> None:
        self._desks.pop(topic, None)


class Desk:
    """One queue's."""

    def __init__(self, app: TopicsApp, topic: Topic, desks: Desks) -> None:
        self.waiting: dict[Claimer, None] = {}  # in order of arrival
        self._app = app
        self._topic = topic
        self._desks = desks
        self._handle: asyncio.Handle | None = None  # the next pass, if one is due soon
        self._timer: asyncio.TimerHandle | None = None  # the moment at which time brings something
        self._loading = False
        self._stop_listening = app.engine.listen(topic, self._grew)
        leases_of(topic).freed = self.poke

    def poke(self) -> None:
        """There may be something to hand out: at the end of this turn, or of the window in which claims gather."""
        if self._handle is None and not self._loading:
            jitter_ms = self._topic.config.claim_jitter_ms
            if jitter_ms:
                self._handle = self._app.call_later(jitter_ms, self._pass)
            else:
                self._handle = self._app.loop.call_soon(self._pass)

    def leave(self, claimer: Claimer) -> None:
        self.waiting.pop(claimer, None)
        if not self.waiting:
            self._close()

    # --- inside

    def _grew(self, topic: Topic) -> None:
        if topic.gone:
            waiting, self.waiting = list(self.waiting), {}
            self._close()
            for claimer in waiting:
                claimer.gone()
        else:
            self.poke()

    def _close(self) -> None:
        for handle in (self._handle, self._timer):
            if handle is not None:
                handle.cancel()
        self._stop_listening()
        self._desks.forget(self._topic)
        if self._topic.queue is not None:
            self._topic.queue.freed = None

    def _pass(self) -> None:
        self._handle = None
        try:
            self._serve()
        except Cold as cold:
            self._loading = True
            self._app.loads.load(cold, self._loaded)

    def _loaded(self, failure: BaseException | None) -> None:
        self._loading = False
        if failure is not None:
            log.failure("cannot_read", failure, topic=self._topic.name)
            self._refuse(list(self.waiting), TopicsError(Code.INTERNAL, "jobs cannot be read from the disk"))
        elif self.waiting:
            try:
                self._serve()
            except Cold:
                self._loading = True
                raise

    def _serve(self) -> None:
        """Hands out what there is, to each who waits a share. Raises `Cold` before anything has happened."""
        if self._topic.changing:
            self._app.engine.commits.settle()
        if self._topic.gone:
            return  # its listeners are about to be told
        verbs.expire(self._topic, self._app.clock.now_ms())  # what ran out makes room with those who held it
        asking = [(claimer, want) for claimer in self.waiting if (want := claimer.want()) is not None]
        if not asking:
            self._after_pass()
            return
        try:
            if self._app.pressed:
                self._app.throttle.check(self._topic.name)
            claims, ticket = verbs.claim(self._app.engine, self._topic, [want for _, want in asking])
        except TopicsError as error:
            self._refuse([claimer for claimer, _ in asking], error)
        else:
            if ticket is not None:
                ticket.on_done(self._written)
            for (claimer, _), claimed in zip(asking, claims, strict=True):
                if not claimer.got(claimed, ticket):
                    self.waiting.pop(claimer, None)
            self._after_pass()

    def _after_pass(self) -> None:
        if not self.waiting:
            self._close()
            return
        next_ms = leases_of(self._topic).next_ms()
        if next_ms is not None:
            self._wake_in(max(next_ms - self._app.clock.now_ms(), 0))

    def _wake_in(self, delay_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._app.call_later(delay_ms, self._time)

    def _time(self) -> None:
        self._timer = None
        self.poke()

    def _refuse(self, claimers: list[Claimer], error: TopicsError) -> None:
        for claimer in claimers:
            if not claimer.refused(error):
                self.waiting.pop(claimer, None)
        if self.waiting:
            self._wake_in(error.retry_after_ms or AGAIN_MS)
        else:
            self._close()

    def _written(self, ticket: Ticket) -> None:
        """What could not be written was taken back, and the queue said so: not at once again."""
        if ticket.error is not None and self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._wake_in(AGAIN_MS)
