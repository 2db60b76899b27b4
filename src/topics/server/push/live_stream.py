"""Long-lived connections: kept alive, bounded, and let go in an orderly way. Event streams and WebSockets build on it.

Nothing is queued here but what the transport holds. Once that is all a connection may hold, `send` says False and
`full` is set: the one who sends stops, and reads on from its own cursor when `resume` is called. So a slow client costs
its lag and no memory; one that stays full for too long is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.errors import Code
from topics.server.http.messages import Response, Sink, Stream

if TYPE_CHECKING:
    from topics.server.app import TopicsApp

HIGH_WATER_BYTES = 64 << 10  # of one connection; one frame may go beyond it


class LiveConnection(Stream):
    """`open` is true between `begin` and the first step of the end. Subclasses override the hooks below."""

    __slots__ = (
        "_heartbeat_s", "_last_sent", "_pulse", "_release", "_sink", "_slow", "app", "full", "full_since", "head",
        "open",
    )  # fmt: skip

    high_water_bytes = HIGH_WATER_BYTES

    def __init__(self, app: TopicsApp, head: Response, *, release: Callable[[], None], heartbeat_ms: int) -> None:
        super().__init__(head)
        self.app = app
        self.open = False
        self.full = False  # the connection holds all it may: send nothing
        self.full_since = 0.0
        self._release = release
        self._heartbeat_s = heartbeat_ms / 1000
        self._last_sent = 0.0
        self._sink: Sink | None = None
        self._pulse: asyncio.TimerHandle | None = None
        self._slow: asyncio.TimerHandle | None = None

    # --- for subclasses

    def begin(self) -> None:
        """The connection is open: send what there is."""

    def resume(self, full_ms: float) -> None:
        """The client took what it had been sent, after the connection was full for so long: send more."""

    def ended(self) -> None:
        """Nothing can be sent any more. Called once for every connection that began, never for one that did not."""

    def beat(self) -> None:
        """Nothing was sent for a heartbeat: send a sign of life."""

    def fail(self, code: int, message: str) -> None:
        """The last words, under a code that means what it means in HTTP, and the end."""
        self.finish()

    def send(self, data: bytes) -> bool:
        """Whether more may follow. What is given while the connection is full still goes out, in order."""
        sink = self._sink
        if sink is None or not self.open:
            return False
        self._last_sent = self.app.loop.time()
        if sink.write(data):
            return True
        self._filled()
        return False

    def finish(self) -> None:
        """Ends the connection once everything sent has left."""
        if self.open:
            self.open = False
            self._stop()
            assert self._sink is not None
            self._sink.close()

    # --- for the transport and the server

    def opened(self, sink: Sink) -> None:
        self._sink = sink
        self.open = True
        self.app.polls.add(self)
        self._last_sent = self.app.loop.time()
        self._pulse = self.app.loop.call_later(self._heartbeat_s, self._pulsed)
        self.begin()

    def drained(self) -> None:
        if self.full and self.open:
            self.full = False
            if self._slow is not None:
                self._slow.cancel()
                self._slow = None
            self.resume((self.app.loop.time() - self.full_since) * 1000)

    def closed(self) -> None:
        self._release()
        if self._sink is None:
            return
        self.open = False
        self._stop()
        self._sink = None
        self.app.polls.discard(self)
        self.ended()

    def end(self) -> None:
        """The server is going: the client is told, so that it knows this for no fault of its own."""
        if self.open:
            self.fail(Code.SHUTTING_DOWN.status, "the server is stopping; connect again")

    # --- inside

    def _pulsed(self) -> None:
        """One timer a connection, set anew only when it fires: what is sent in between costs nothing."""
        now = self.app.loop.time()
        if not self.full and now - self._last_sent >= self._heartbeat_s - 0.001:
            self.beat()
        if self.open:
            wait_s = self._heartbeat_s if self.full else max(self._last_sent + self._heartbeat_s - now, 0.001)
            self._pulse = self.app.loop.call_later(wait_s, self._pulsed)

    def _filled(self) -> None:
        if not self.full:
            self.full = True
            self.full_since = self.app.loop.time()
            self._slow = self.app.call_later(self.app.settings.slow_consumer_timeout_ms, self._too_slow)

    def _too_slow(self) -> None:
        assert self._sink is not None
        self._sink.give_up()  # a client that never reads must not keep its slot for another write timeout
        self.fail(Code.REQUEST_TIMEOUT.status, "the client does not keep up; connect again to go on")

    def _stop(self) -> None:
        for timer in (self._pulse, self._slow):
            if timer is not None:
                timer.cancel()
        self._pulse = self._slow = None
