"""The elastic throttle: samples how late the event loop runs and lets the server give way before it breaks.

`app.pressed` is the one flag that hot paths test. While it is false nothing here is called but the sampler's timer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from topics import logs
from topics.engine.pressure import SAMPLE_MS, Pressure, Step
from topics.model.records import WriteRequest
from topics.server.http.messages import Answer, Request, Response
from topics.server.loop.answer import when_done

if TYPE_CHECKING:
    from topics.engine.write.commit import Ticket
    from topics.server.app import TopicsApp

log = logs.Log("throttle")

NO_WAIT = b'"throttle_wait_ms":0.0'
Encode = Callable[["Ticket", Request], Response]


class Throttle:
    """Holds the ladder's step, and puts it into effect when it changes."""

    def __init__(self, app: TopicsApp, *, refuse_ms: int) -> None:
        self.pressure = Pressure(refuse_ms)
        self._app = app
        self._due_ns = 0
        self._asked_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._schedule = app.engine.commits.schedule

    def begin(self) -> None:
        self._due_ns = self._app.clock.monotonic_ns() + SAMPLE_MS * 1_000_000
        self._timer = self._app.call_later(SAMPLE_MS, self._sample)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check(self, name: str) -> None:
        """`throttled` if a request to this topic must wait."""
        engine = self._app.engine
        self.pressure.check(engine.topics.get(name), engine.clock.now_ms())

    def _sample(self) -> None:
        """How late a timer runs says little where it is set in step with the turns: a whole turn is measured, too."""
        self._asked_ns = self._app.clock.monotonic_ns()
        self._app.loop.call_soon(self._measured)

    def _measured(self) -> None:
        turn_ns = self._app.clock.monotonic_ns() - self._asked_ns
        self.take(max(turn_ns, self._asked_ns - self._due_ns, 0) / 1e6)
        if self._timer is not None:
            self.begin()

    def take(self, lag_ms: float) -> None:
        """One measurement of how late the loop runs."""
        if self.pressure.sample(lag_ms):
            self._changed()
        if self._app.pressed:
            self._app.hub.poke()

    def _changed(self) -> None:
        step = self.pressure.step
        app = self._app
        was, app.pressed = app.pressed, step is not Step.CALM
        window_ms = self.pressure.commit_window_ms
        commits, loop = app.engine.commits, app.loop
        if window_ms:
            commits.schedule = lambda flush: loop.call_later(window_ms / 1000, flush)
        else:
            commits.schedule = self._schedule
        log.info("pressure", step=step.name.lower(), lag_ms=round(self.pressure.lag_ms, 1))
        if was and not app.pressed:
            app.hub.poke()


def append(app: TopicsApp, name: str, write: WriteRequest, request: Request, encode: Encode) -> Answer:
    """A write while the server is pressed: refused, or let in to wait for company and told how long it waited."""
    if not write.disable_backpressure:
        app.throttle.check(name)
    ticket = app.engine.append(name, write)
    staged_ns = time.perf_counter_ns()

    def finish(ticket: Ticket, request: Request) -> Response:
        waited_ns = max(time.perf_counter_ns() - staged_ns - ticket.wal_ns - ticket.sync_ns, 0)
        response = encode(ticket, request)
        assert isinstance(response.body, bytes)
        # The usual answer is rendered without a look at the throttle, and says that nothing waited for it.
        start, found, end = response.body.rpartition(NO_WAIT)
        response.body = b"".join((start, found[:-3], b"%.3f" % (waited_ns / 1e6), end))
        return response

    return when_done(ticket, request, finish)
