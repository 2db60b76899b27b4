"""Requests and answers as the application sees them. No transport is named here, so that any transport can carry them.

A transport builds a `Request`, shows it to `App.admit` while the body is still outside, and to `App.handle` once the
body is there. What comes back is one of four things: an answer (`Response`), an answer that comes later (`Deferred`),
an answer without end (`Stream`), or the connection itself (`Upgrade`). Everything happens on one event loop's thread.
"""

import time
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import msgspec

from topics.errors import TopicsError

JSON = b"application/json"

Header = tuple[bytes, bytes]
Body = bytes | list[bytes | memoryview]


def body_bytes(body: Body) -> int:
    return len(body) if isinstance(body, bytes) else sum(map(len, body))


class Request(msgspec.Struct, gc=False):
    """One request. Transports share `headers` between requests whose heads are alike: nobody may change it."""

    method: str
    path: bytes  # as sent: before '?', percent-encoded
    query: bytes  # as sent: after '?', b"" if none
    headers: dict[bytes, bytes]  # lowercase names; repeated fields joined with b", "
    body: bytes  # after chunked and gzip decoding; b"" while `admit` looks at a body that is still to come
    peer: str  # "127.0.0.1:51234"
    started_ns: int  # perf_counter_ns when the head was complete
    context: Any = (
        None  # the application's own: what `admit` found out (route, key) and `handle` need not look up again
    )


class Response(msgspec.Struct, gc=False):
    """One answer. A list body is written in order without being joined; its memoryviews must not change until then."""

    status: int
    body: Body = b""
    content_type: bytes = JSON
    headers: tuple[Header, ...] = ()  # framing fields (content-length, connection, date) belong to the transport
    sent: Callable[[], None] | None = None  # called once when the system has taken the answer, or nobody will


class Deferred(msgspec.Struct, eq=False):
    """An answer that comes later.

    The application calls `resolve` once; the transport attaches `then` and calls `cancel` when nobody waits any more.
    Whichever of the two comes first wins, and the other does nothing.
    """

    keeps_request: ClassVar[bool] = True  # whether the body of the request is needed until the answer is there

    on_cancel: Callable[[], None] | None = None
    _callback: Callable[[Response], None] | None = None
    _response: Response | None = None
    cancelled: bool = False
    _over: Callable[[Response | None], None] | None = None
    on_hurry: Callable[[], None] | None = None  # of an answer that waits for something: answers with what there is

    def resolve(self, response: Response) -> None:
        if self.cancelled:
            return
        assert self._response is None, "a Deferred is resolved once"
        self._response = response
        self.on_cancel = self.on_hurry = None  # who answers holds the answer: they must not keep each other alive
        if self._over is not None:
            self._end(response)
        callback = self._callback
        if callback is not None:
            self._callback = None
            callback(response)

    def then(self, callback: Callable[[Response], None]) -> None:
        """Call back with the answer: at once if it is there already."""
        assert self._callback is None, "a Deferred has one listener"
        if self._response is not None:
            callback(self._response)
        elif not self.cancelled:
            self._callback = callback

    def then_instead(self, callback: Callable[[Response], None]) -> None:
        """Call back with an answer that is not there yet; whoever was to be called before is not."""
        if not self.cancelled:
            self._callback = callback

    def hurry(self) -> None:
        """The client has shut its side and may be gone for good: whoever waits on its behalf should wait no longer."""
        hook, self.on_hurry = self.on_hurry, None
        if hook is not None and not self.cancelled and self._response is None:
            hook()

    def when_over(self, hook: Callable[[Response | None], None]) -> None:
        """Call `hook` once: with the answer when it is there, or with None when nobody waits for it any more."""
        assert self._over is None, "a Deferred has one hook for its end"
        if self.cancelled or self._response is not None:
            hook(self._response)
        else:
            self._over = hook

    def _end(self, response: Response | None) -> None:
        hook = self._over
        if hook is not None:
            self._over = None
            hook(response)

    def cancel(self) -> None:
        if self.cancelled or self._response is not None:
            return
        self.cancelled = True
        self._callback = self.on_hurry = None
        self._end(None)
        hook, self.on_cancel = self.on_cancel, None
        if hook is not None:
            hook()


class Sink(Protocol):
    """What a transport gives to a `Stream` or an `Upgrade` to write to."""

    held: bool  # what `hold` was last told

    def write(self, data: bytes) -> bool:
        """Queue bytes. False: above the high-water mark (or closed), write no more until `drained`."""

    def close(self) -> None:
        """End the connection once everything written has left."""

    def give_up(self) -> None:
        """Abort the connection soon after `close` if the client takes nothing more: it was slow for long enough."""

    def buffered(self) -> int:
        """Bytes written that the operating system has not taken yet."""

    def hold(self, held: bool, /) -> None:
        """Whether to leave the client's bytes where they are; for an `Upgrade` that has enough to do."""


class Stream:
    """An answer without end. `closed` is called exactly once whatever the reason, `opened` at most once before it."""

    high_water_bytes: int | None = None  # a bound of its own on what waits for the client; None for the transport's

    def __init__(self, head: Response) -> None:
        self.head = head

    def opened(self, sink: Sink) -> None:
        """The head is on its way; from now on the sink takes the body."""

    def drained(self) -> None:
        """The sink was above its high-water mark and takes more now."""

    def closed(self) -> None:
        """Nothing can be written any more."""


class Upgrade(Stream):
    """101: after the head the connection carries another protocol, in both directions."""

    def received(self, data: bytes) -> None:
        """Bytes from the client."""


Answer = Response | Deferred | Stream


class App(Protocol):
    """What a transport serves. `admit` sees every request; `handle` or `abandon` follows unless it refuses."""

    def admit(self, request: Request, content_length: int | None) -> Response | None:
        """After the head, before the body (None: its length is not known yet): a Response refuses it."""

    def handle(self, request: Request) -> Answer:
        """Answer a whole request."""

    def abandon(self, request: Request) -> None:
        """An admitted request will never be handled: its body did not come to its end, or its client is gone."""


def answer_of(app: App) -> Callable[[Request], Answer]:
    """The application's own short way, or its long one in a single call."""
    shorter: Callable[[Request], Answer] | None = getattr(app, "answer", None)
    if shorter is not None:
        return shorter
    admit, handle = app.admit, app.handle

    def answer(request: Request) -> Answer:
        refused = admit(request, len(request.body))
        return handle(request) if refused is None else refused

    return answer


def error_response(error: TopicsError, *, started_ns: int = 0, headers: tuple[Header, ...] = ()) -> Response:
    """The canonical error answer. `started_ns` is the request's, 0 where there was none to speak of."""
    took_ms = (time.perf_counter_ns() - started_ns) / 1e6 if started_ns else 0.0
    # A message may quote a client's bytes that are no Unicode text; it must still be told as JSON.
    message = error.message.encode("utf-8", "replace").decode()
    described: dict[str, Any] = {"code": error.code.wire, "message": message}
    if error.retry_after_ms is not None:
        # The header counts whole seconds; rounded up, because a retry that comes too early is refused again.
        headers = (*headers, (b"retry-after", b"%d" % max(1, -(-error.retry_after_ms // 1000))))
        described["detail"] = {"retry_after_ms": error.retry_after_ms} | (error.detail or {})
    elif error.detail is not None:
        described["detail"] = error.detail
    body = msgspec.json.encode({"error": described, "performance": {"server_total_ms": round(took_ms, 3)}})
    return Response(error.code.status, body, JSON, headers)
