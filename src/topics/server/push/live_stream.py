"""Long-lived connections: heartbeats, a bound on what they hold, and an orderly end. Base of SSE and WebSockets.

Nothing is queued here but what the transport holds. Once a connection holds all it may, `send` returns False and `full`
is set: the sender stops, and continues from its own position when `resume` is called. A slow client therefore costs its
lag and no memory. A connection that stays full for too long is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.errors import Code
from topics.server.http.messages import Response, Sink, Stream

if TYPE_CHECKING:
    from topics.server.loop.runtime import Runtime

HIGH_WATER_BYTES = 64 << 10  # of one connection; one frame may exceed it


class LiveConnection(Stream):
    """`open` is true between `begin` and the first step of the end. Subclasses override the hooks below."""

    __slots__ = (
        "_heartbeat_s", "_heartbeat_timer", "_last_sent", "_release", "_sink", "_slow_timer", "_time", "full",
        "full_since", "head", "open", "runtime",
    )  # fmt: skip

    high_water_bytes = HIGH_WATER_BYTES
    kind = "event stream"  # in logs

    def __init__(self, runtime: Runtime, head: Response, *, release: Callable[[], None], heartbeat_ms: int) -> None:
        super().__init__(head)
        self.runtime = runtime
        self._time = runtime.loop.time
        self.open = False
        self.full = False  # the connection holds all it may: send nothing
        self.full_since = 0.0
        self._release = release
        self._heartbeat_s = heartbeat_ms / 1000
        self._last_sent = 0.0
        self._sink: Sink | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._slow_timer: asyncio.TimerHandle | None = None

    # --- hooks of subclasses

    def begin(self) -> None:
        """Send what there is: the connection is open."""

    def resume(self, full_ms: float) -> None:
        """Send more: the client has read what it was sent, after the connection was full for `full_ms`."""

    def ended(self) -> None:
        """Release everything. Called once for every connection that began, never for one that did not."""

    def beat(self) -> None:
        """Send a heartbeat: nothing was sent for one interval."""

    def fail(self, code: int, message: str) -> None:
        """Send an error with the meaning of an HTTP status code, then close."""
        self.finish()

    def send(self, data: bytes) -> bool:
        """Send bytes, in order even while the connection is full. Return whether more may follow."""
        sink = self._sink
        if sink is None or not self.open:
            return False
        self._last_sent = self._time()
        if sink.write(data):
            return True
        self._filled()
        return False

    def finish(self) -> None:
        """Close the connection once everything sent has left."""
        if self.open:
            self.open = False
            self._stop_timers()
            assert self._sink is not None
            self._sink.close()

    # --- for the transport and the server

    def opened(self, sink: Sink) -> None:
        self._sink = sink
        self.open = True
        self.runtime.open_ended.add(self)
        self._last_sent = self.runtime.loop.time()
        self._heartbeat_timer = self.runtime.loop.call_later(self._heartbeat_s, self._check_heartbeat)
        self.begin()

    def drained(self) -> None:
        if self.full and self.open:
            self.full = False
            if self._slow_timer is not None:
                self._slow_timer.cancel()
                self._slow_timer = None
            self.resume((self.runtime.loop.time() - self.full_since) * 1000)

    def closed(self) -> None:
        self._release()
        if self._sink is None:
            return
        self.open = False
        self._stop_timers()
        self._sink = None
        self.runtime.open_ended.discard(self)
        self.ended()

    def end(self) -> None:
        """Close the connection with an error that says that the server stops."""
        if self.open:
            if self._sink is not None:
                self._sink.give_up()  # a client that does not read must not delay the stop
            self.fail(Code.SHUTTING_DOWN.status, "the server is stopping; connect again")

    # --- timers

    def _check_heartbeat(self) -> None:
        """Send a heartbeat if one is due. The timer is set again only here, so that sending costs nothing."""
        now = self.runtime.loop.time()
        if not self.full and now - self._last_sent >= self._heartbeat_s - 0.001:
            self.beat()
        if self.open:
            wait_s = self._heartbeat_s if self.full else max(self._last_sent + self._heartbeat_s - now, 0.001)
            self._heartbeat_timer = self.runtime.loop.call_later(wait_s, self._check_heartbeat)

    def _filled(self) -> None:
        if not self.full:
            self.full = True
            self.full_since = self.runtime.loop.time()
            timeout_ms = self.runtime.settings.slow_consumer_timeout_ms
            self._slow_timer = self.runtime.call_later(timeout_ms, self._too_slow)

    def _too_slow(self) -> None:
        assert self._sink is not None
        self.runtime.note_slow_reader(self.kind)
        self._sink.give_up()  # a client that never reads must not keep its slot for another write timeout
        self.fail(Code.REQUEST_TIMEOUT.status, "the client does not keep up; connect again to go on")

    def _stop_timers(self) -> None:
        for timer in (self._heartbeat_timer, self._slow_timer):
            if timer is not None:
                timer.cancel()
        self._heartbeat_timer = self._slow_timer = None
