"""Long answers: heartbeats, a bound on what they hold, and an orderly end. Base of SSE, WebSockets and scans.

Nothing is queued here but what the transport holds. Once a connection holds all it may, `send` returns False and `full`
is set: the sender stops, and continues from its own position when `resume` is called. A slow client therefore costs its
lag and no memory. A connection that stays full for too long is closed.

A subclass overrides `begin`, `resume` and `ended`, and calls `send`, `fail` and `finish`. Everything with effects
belongs in `begin`, not in the handler: a HEAD request makes a stream that never opens.
"""

import asyncio
from typing import Any

import msgspec

from topics.errors import Code, TopicsError
from topics.model.watch import DEFAULT_HEARTBEAT_MS
from topics.server.access.caller import Slot
from topics.server.http.browser_origin import EVENT_STREAM as NAMED
from topics.server.http.browser_origin import PAGE_MEDIA, PART_MEDIA, names_any
from topics.server.http.messages import Request, Response, Sink, Stream, weighted
from topics.server.loop.runtime import Runtime

HIGH_WATER_BYTES = 64 << 10  # of one connection; one frame may exceed it


class LiveConnection(Stream):
    """`open` is true between `begin` and the first step of the end. Subclasses override the hooks below."""

    __slots__ = (
        "_heartbeat_s", "_heartbeat_timer", "_sink", "_slow_timer", "_time", "full", "full_since", "head",
        "last_sent_s", "open", "runtime", "slot",
    )  # fmt: skip

    high_water_bytes = HIGH_WATER_BYTES
    kind = "event stream"  # in logs

    def __init__(self, runtime: Runtime, head: Response, *, slot: Slot, heartbeat_ms: int) -> None:
        super().__init__(head)
        self.runtime = runtime
        self._time = runtime.loop.time
        self.open = False
        self.full = False  # the connection holds all it may: send nothing
        self.full_since = 0.0
        self.slot = slot
        slot.revoke = self.revoke
        self._heartbeat_s = heartbeat_ms / 1000  # 0 for a stream without heartbeats
        self.last_sent_s = 0.0
        self._sink: Sink | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._slow_timer: asyncio.TimerHandle | None = None

    # --- hooks of subclasses

    def begin(self) -> None: ...  # the connection is open
    def resume(self, full_ms: float) -> None: ...  # the client has read, after the connection was full for `full_ms`
    def ended(self) -> None: ...  # called once for every connection that began, never for one that did not
    def beat(self) -> None: ...  # nothing was sent for one interval

    def fail(self, code: int, message: str) -> None:
        """Send an error with the meaning of an HTTP status code, then close."""
        self.finish()

    def revoke(self, reason: str) -> None:
        """End the stream: its caller has lost its rights."""
        self.fail(Code.UNAUTHORIZED.status, reason)

    def send(self, data: bytes) -> bool:
        """Send bytes, in order even while the connection is full. Return whether more may follow."""
        sink = self._sink
        if sink is None or not self.open:
            return False
        self.last_sent_s = self._time()
        if sink.write(data):
            return True
        self.fill()
        return False

    def fill(self) -> None:
        """Note that the connection holds all it may."""
        if not self.full:
            self.full = True
            self.full_since = self.last_sent_s
            timeout_ms = self.runtime.settings.slow_consumer_timeout_ms
            self._slow_timer = self.runtime.call_later(timeout_ms, self._too_slow)

    def finish(self) -> None:
        if self.open:
            self.open = False
            self._stop_timers()
            assert self._sink is not None
            self._sink.close()

    def opened(self, sink: Sink) -> None:
        self._sink = sink
        self.open = True
        self.runtime.open_ended.add(self)
        self.last_sent_s = self.runtime.loop.time()
        if self._heartbeat_s:
            self._heartbeat_timer = self.runtime.loop.call_later(self._heartbeat_s, self._check_heartbeat)
        if self.slot.caller.ended:  # between the request and its answer
            self.revoke(self.slot.caller.ended)
        else:
            self.begin()

    def drained(self) -> None:
        if self.full and self.open:
            self.full = False
            if self._slow_timer is not None:
                self._slow_timer.cancel()
                self._slow_timer = None
            self.resume((self.runtime.loop.time() - self.full_since) * 1000)

    def closed(self) -> None:
        self.slot.release()
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

    def _check_heartbeat(self) -> None:
        """Send a heartbeat if one is due. The timer is set again only here, so that sending costs nothing."""
        now = self.runtime.loop.time()
        if not self.full and now - self.last_sent_s >= self._heartbeat_s - 0.001:
            self.beat()
        if self.open:
            wait_s = self._heartbeat_s if self.full else max(self.last_sent_s + self._heartbeat_s - now, 0.001)
            self._heartbeat_timer = self.runtime.loop.call_later(wait_s, self._check_heartbeat)

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


RETRY_MS = 2000
EVENT_STREAM = b"text/event-stream; charset=utf-8"
HEADERS = ((b"cache-control", b"no-store"), (b"connection", b"keep-alive"), (b"x-accel-buffering", b"no"))

_encode = msgspec.json.encode


def event_frame(event: bytes, data: bytes, *, id: bytes | None = None) -> bytes:
    """Return one event. `data` must be one line: JSON as the server renders it never has a raw line break."""
    if id is None:
        return b"event: %b\ndata: %b\n\n" % (event, data)
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (id, event, data)


def error_frame(code: int, message: str, **more: Any) -> bytes:
    """Return an `error` event with an HTTP status code. It has no id, because it is no progress."""
    return event_frame(b"error", _encode({"code": code, "error": message, **more}))


def heartbeat(now_ms: int) -> bytes:
    return b": hb %d\n\n" % now_ms


def check_accept(request: Request) -> None:
    """Raise 406 unless the client accepts an event stream. A missing or empty `Accept` accepts anything.

    Programs send `*/*`. Browsers send it beside the media types of pages and their parts, for an address or an image:
    those requests do not want an event stream.
    """
    accept = (request.headers.get(b"accept") or b"*/*").lower()
    streams = (b"text/event-stream", b"text/*", b"*/*")
    takes = any(media in streams and weight for media, weight in weighted(accept, malformed=1))
    if not takes or (names_any(accept, (*PAGE_MEDIA, *PART_MEDIA)) and not names_any(accept, (NAMED, b"text/*"))):
        raise TopicsError(Code.NOT_ACCEPTABLE, "this answer is an event stream: send accept: text/event-stream")


class EventStream(LiveConnection):
    __slots__ = ()

    def __init__(self, runtime: Runtime, *, slot: Slot, heartbeat_ms: int = DEFAULT_HEARTBEAT_MS) -> None:
        head = Response(200, b"", EVENT_STREAM, HEADERS)
        super().__init__(runtime, head, slot=slot, heartbeat_ms=heartbeat_ms)

    def opened(self, sink: Any) -> None:
        sink.write(b"retry: %d\n\n%b" % (RETRY_MS, heartbeat(self.runtime.clock.now_ms())))
        super().opened(sink)

    def beat(self) -> None:
        self.send(heartbeat(self.runtime.clock.now_ms()))

    def fail(self, code: int, message: str, **more: Any) -> None:
        if self.open:
            self.send(error_frame(code, message, **more))
            self.finish()
