"""Server-sent events: frames, and the base of everything that answers with `text/event-stream`.

What an `EventStream` does by itself:

    open          `retry: 2000` and a first heartbeat, then `begin`
    heartbeat     `: hb <epoch ms>` whenever nothing else went out for `heartbeat_ms`
    backpressure  `send` says False, and `full` is set, once the connection holds its share: send no more until `resume`
    slow client   a connection that stays full for `slow_consumer_timeout_ms` gets a last `error` frame and is closed
    end           the connection's slot is given back, and `ended` is called, exactly once whatever the reason

A subclass says what to send: it overrides `begin`, `resume` and `ended`, and calls `send`, `fail` and `finish`:

    class Ticks(EventStream):
        def begin(self) -> None:
            self.send(frame(b"tick", b'{"n":1}', id=b"1"))

    def handler(app, call):
        check_accept(call.request)
        return Ticks(app, release=app.open_stream(call.caller))

Everything that has effects belongs in `begin`, not in the handler: a HEAD request makes a stream that never opens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from topics.errors import Code, TopicsError
from topics.model.watch import DEFAULT_HEARTBEAT_MS
from topics.server.http.browser_origin import EVENT_STREAM as NAMED
from topics.server.http.browser_origin import PAGE_MEDIA, PART_MEDIA, names_any
from topics.server.http.messages import Request, Response
from topics.server.push.live_stream import LiveConnection

if TYPE_CHECKING:
    from topics.server.app import TopicsApp

RETRY_MS = 2000
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
    """Raise 406 unless the client takes an event stream. Without `Accept`, or with an empty one, it takes anything.

    `*/*` is what programs send that take anything. Beside the media types of pages and their parts it is what a browser
    sends for an address or an image: no event stream is wanted there.
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
    """See the module's text."""

    __slots__ = ()

    def __init__(
        self, app: TopicsApp, *, release: Callable[[], None], heartbeat_ms: int = DEFAULT_HEARTBEAT_MS
    ) -> None:
        head = Response(200, b"", EVENT_STREAM, HEADERS)
        super().__init__(app, head, release=release, heartbeat_ms=heartbeat_ms)

    def opened(self, sink: Any) -> None:
        sink.write(b"retry: %d\n\n%b" % (RETRY_MS, heartbeat(self.app.clock.now_ms())))
        super().opened(sink)

    def beat(self) -> None:
        self.send(heartbeat(self.app.clock.now_ms()))

    def fail(self, code: int, message: str, **more: Any) -> None:
        """A last `error` frame, then the end."""
        if self.open:
            self.send(error_frame(code, message, **more))
            self.finish()
