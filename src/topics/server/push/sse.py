"""Server-sent events: frames, and the base class of everything that answers with `text/event-stream`.

What an `EventStream` does by itself:

    open          sends `retry: 2000` and a first heartbeat, then calls `begin`
    heartbeat     sends `: hb <epoch ms>` whenever nothing else was sent for `heartbeat_ms`
    backpressure  `send` returns False, and `full` is set, once the connection holds all it may, until `resume`
    slow client   a connection that stays full for `slow_consumer_timeout_ms` gets a last `error` frame and is closed
    end           the slot of the connection is released, and `ended` is called, exactly once whatever the reason

A subclass decides what to send: it overrides `begin`, `resume` and `ended`, and calls `send`, `fail` and `finish`:

    class Ticks(EventStream):
        def begin(self) -> None:
            self.send(event_frame(b"tick", b'{"n":1}', id=b"1"))

    def handler(services, call):
        check_accept(call.request)
        return Ticks(services.runtime, release=services.quotas.open_stream(call.caller))

Everything with effects belongs in `begin`, not in the handler: a HEAD request makes a stream that never opens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from topics.errors import Code, TopicsError
from topics.model.watch import DEFAULT_HEARTBEAT_MS
from topics.server.http.messages import Request, Response
from topics.server.http.request.browser_origin import EVENT_STREAM as NAMED
from topics.server.http.request.browser_origin import PAGE_MEDIA, PART_MEDIA, names_any
from topics.server.push.live_stream import LiveConnection

if TYPE_CHECKING:
    from topics.server.loop.runtime import Runtime

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
    """Return a comment line with the time."""
    return b": hb %d\n\n" % now_ms


def check_accept(request: Request) -> None:
    """Raise 406 unless the client accepts an event stream. A missing or empty `Accept` accepts anything.

    Programs send `*/*`. Browsers send it beside the media types of pages and their parts, for an address or an image:
    those requests do not want an event stream.
    """
    accept = (request.headers.get(b"accept") or b"*/*").lower()
    takes = any(_takes_events(part) for part in accept.split(b","))
    if not takes or (names_any(accept, (*PAGE_MEDIA, *PART_MEDIA)) and not names_any(accept, (NAMED, b"text/*"))):
        raise TopicsError(Code.NOT_ACCEPTABLE, "this answer is an event stream: send accept: text/event-stream")


def _takes_events(part: bytes) -> bool:
    media, *parameters = (piece.strip() for piece in part.split(b";"))
    if media not in (b"text/event-stream", b"text/*", b"*/*"):
        return False
    return not any(name in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000") for name in parameters)


class EventStream(LiveConnection):
    """One event stream; see the docstring of the module."""

    __slots__ = ()

    def __init__(
        self, runtime: Runtime, *, release: Callable[[], None], heartbeat_ms: int = DEFAULT_HEARTBEAT_MS
    ) -> None:
        head = Response(200, b"", EVENT_STREAM, HEADERS)
        super().__init__(runtime, head, release=release, heartbeat_ms=heartbeat_ms)

    def opened(self, sink: Any) -> None:
        sink.write(b"retry: %d\n\n%b" % (RETRY_MS, heartbeat(self.runtime.clock.now_ms())))
        super().opened(sink)

    def beat(self) -> None:
        self.send(heartbeat(self.runtime.clock.now_ms()))

    def fail(self, code: int, message: str, **more: Any) -> None:
        """Send a last `error` frame, then close."""
        if self.open:
            self.send(error_frame(code, message, **more))
            self.finish()
