"""Server-sent events: frames, and a stream that keeps itself alive and never holds more than it may.

`EventStream` is the base of everything that answers with `text/event-stream`. What it does by itself:

    open        `retry: 2000` and a first heartbeat, then `begin`
    heartbeat   `: hb <epoch ms>` whenever nothing else went out for `heartbeat_ms`
    backpressure  `send` says False (and `full` is set) once the connection holds its share: send no more until `resume`
    slow client a connection that stays full for `slow_consumer_timeout_ms` gets a last `error` frame and is closed
    end         the connection's slot is given back, and `ended` is called, exactly once whatever the reason

A subclass says what to send: it overrides `begin`, `resume` and `ended`, and calls `send`, `fail` and `finish`:

    class Ticks(EventStream):
        def begin(self) -> None:
            self.send(frame(b"tick", b'{"n":1}', id=b"1"))

    def handler(app, call):
        check_accept(call.request)
        return Ticks(app, release=app.open_stream(call.caller))

Everything that has effects belongs in `begin`, not in the handler: a HEAD request makes a stream that never opens.
Nothing is ever queued here but what the transport holds: a subclass that was told to stop reads on from its own cursor
later, so that a slow client costs its lag and no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from topics.errors import Code, TopicsError
from topics.model.watch import DEFAULT_HEARTBEAT_MS
from topics.server.http import Request, Response, Sink, Stream

if TYPE_CHECKING:
    from topics.server.app import TopicsApp

RETRY_MS = 2000
HIGH_WATER_BYTES = 64 << 10  # of one connection; one frame may go beyond it

EVENT_STREAM = b"text/event-stream; charset=utf-8"
HEADERS = ((b"cache-control", b"no-store"), (b"connection", b"keep-alive"), (b"x-accel-buffering", b"no"))

_encode = msgspec.json.encode


def frame(event: bytes, data: bytes, *, id: bytes | None = None) -> bytes:
    """One event. `data` is one line: JSON as the server renders it never holds a raw line break."""
    if id is None:
        return b"event: %b\ndata: %b\n\n" % (event, data)
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (id, event, data)


def error_frame(code: int, message: str, **more: Any) -> bytes:
    """A problem of the whole stream, under a code that means what it means in HTTP. It has no id: it is no progress."""
    return frame(b"error", _encode({"code": code, "error": message, **more}))


def heartbeat(now_ms: int) -> bytes:
    return b": hb %d\n\n" % now_ms


def check_accept(request: Request) -> None:
    """406 unless the client takes an event stream; one that says nothing takes anything."""
    accept = request.headers.get(b"accept")
    if accept is not None and not any(_takes_events(part) for part in accept.lower().split(b",")):
        raise TopicsError(Code.NOT_ACCEPTABLE, "this answer is an event stream: send accept: text/event-stream")


def _takes_events(part: bytes) -> bool:
    media, *parameters = (piece.strip() for piece in part.split(b";"))
    if media not in (b"text/event-stream", b"text/*", b"*/*"):
        return False
    return not any(name in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000") for name in parameters)


class EventStream(Stream):
    """See the module's text. `open` is true between `begin` and the first step of the end."""

    __slots__ = (
        "_heartbeat_s", "_last_sent", "_pulse", "_release", "_sink", "_slow", "app", "full", "full_since", "head",
        "open",
    )  # fmt: skip

    high_water_bytes = HIGH_WATER_BYTES

    def __init__(self, app: TopicsApp, *, release: Callable[[], None], heartbeat_ms: int = DEFAULT_HEARTBEAT_MS) -> None:
        super().__init__(Response(200, b"", EVENT_STREAM, HEADERS))
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
        """The stream is open: send what there is."""

    def resume(self, full_ms: float) -> None:
        """The client took what it had been sent, after the connection was full for so long: send more."""

    def ended(self) -> None:
        """Nothing can be sent any more. Called once for every stream that began, never for one that did not."""

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

    def fail(self, code: int, message: str, **more: Any) -> None:
        """A last `error` frame, then the end."""
        if self.open:
            self.send(error_frame(code, message, **more))
            self.finish()

    def finish(self) -> None:
        """Ends the stream once everything sent has left."""
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
        self.send(b"retry: %d\n\n%b" % (RETRY_MS, heartbeat(self.app.clock.now_ms())))
        self._pulse = self.app.loop.call_later(self._heartbeat_s, self._beat)
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
        self.fail(Code.SHUTTING_DOWN.status, "the server is stopping; connect again")

    # --- inside

    def _beat(self) -> None:
        """A heartbeat if nothing was sent for long enough; one timer a stream, set anew only when it fires."""
        now = self.app.loop.time()
        if now - self._last_sent >= self._heartbeat_s - 0.001 and not self.full:
            self.send(heartbeat(self.app.clock.now_ms()))
        due = max(self._last_sent + self._heartbeat_s - now, 0.001) if not self.full else self._heartbeat_s
        self._pulse = self.app.loop.call_later(due, self._beat)

    def _filled(self) -> None:
        if not self.full:
            self.full = True
            self.full_since = self.app.loop.time()
            self._slow = self.app.call_later(self.app.settings.slow_consumer_timeout_ms, self._too_slow)

    def _too_slow(self) -> None:
        self.fail(Code.REQUEST_TIMEOUT.status, "the client does not keep up; connect again to go on")

    def _stop(self) -> None:
        for timer in (self._pulse, self._slow):
            if timer is not None:
                timer.cancel()
        self._pulse = self._slow = None
