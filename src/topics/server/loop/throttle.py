"""The elastic throttle: measures how late the event loop runs, and makes the server yield before it overloads.

`Throttle.pressed` is the only flag that hot paths test. While it is false, only the sampling timer runs here.
"""

import asyncio
import time
from collections.abc import Callable

from topics import logs
from topics.engine.delays import PRESSED_COMMIT_MS
from topics.engine.pressure import SAMPLE_MS, Pressure, PressureStep
from topics.engine.write.commit import Ticket
from topics.engine.write.large_render import LargeBlob
from topics.model.records import WriteRequest
from topics.server.http.messages import Answer, Request, Response
from topics.server.loop.answer import when_done
from topics.server.loop.runtime import Runtime

log = logs.Log("throttle")

NO_WAIT = b'"throttle_wait_ms":0.0'
Encode = Callable[["Ticket", Request], Response]


class Throttle:
    """Holds the step of the pressure ladder, and applies each change of it."""

    def __init__(self, runtime: Runtime, *, refuse_ms: int) -> None:
        self.pressed = False  # whether the server runs late
        self.pressure = Pressure(refuse_ms)
        self.listeners: list[Callable[[], None]] = []  # called with every sample under pressure, and when it ends
        self._runtime = runtime
        self._due_ns = 0
        self._asked_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._schedule = runtime.engine.commits.schedule

    def begin(self) -> None:
        self._due_ns = self._runtime.clock.monotonic_ns() + SAMPLE_MS * 1_000_000
        self._timer = self._runtime.call_later(SAMPLE_MS, self._sample)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check(self, name: str) -> None:
        engine = self._runtime.engine
        self.pressure.check(engine.topics.get(name), engine.clock.now_ms())

    def append(
        self, name: str, write: WriteRequest, request: Request, encode: Encode, blob: LargeBlob | None
    ) -> Answer:
        """Append while the server is under pressure. Raise if the topic has too low a priority for that."""
        if not write.disable_backpressure:
            self.check(name)
        ticket = self._runtime.engine.append(name, write, blob)
        staged_ns = time.perf_counter_ns()

        def finish(ticket: Ticket, request: Request) -> Response:
            waited_ns = max(time.perf_counter_ns() - staged_ns - ticket.wal_ns - ticket.sync_ns, 0)
            response = encode(ticket, request)
            assert isinstance(response.body, bytes)
            # `encode` renders a wait of 0, as for every write without pressure. Replace it with the real one.
            start, found, end = response.body.rpartition(NO_WAIT)
            response.body = b"".join((start, found[:-3], b"%.3f" % (waited_ns / 1e6), end))
            return response

        return when_done(ticket, request, finish)

    def _sample(self) -> None:
        """Measure one whole turn, too: a timer that fires in step with the turns is never late."""
        self._asked_ns = self._runtime.clock.monotonic_ns()
        self._runtime.loop.call_soon(self._measured)

    def _measured(self) -> None:
        turn_ns = self._runtime.clock.monotonic_ns() - self._asked_ns
        self.take(max(turn_ns, self._asked_ns - self._due_ns, 0) / 1e6)
        if self._timer is not None:
            self.begin()

    def take(self, lag_ms: float) -> None:
        was = self.pressed
        if self.pressure.sample(lag_ms):
            step, window_ms = self.pressure.step, PRESSED_COMMIT_MS[self.pressure.step]
            self.pressed = step is not PressureStep.CALM
            commits, loop = self._runtime.engine.commits, self._runtime.loop
            if window_ms:
                commits.schedule = lambda flush: loop.call_later(window_ms / 1000, flush)
            else:
                commits.schedule = self._schedule
            log.info("pressure", step=step.name.lower(), lag_ms=round(self.pressure.lag_ms, 1))
        if was or self.pressed:
            for listener in self.listeners:
                listener()
