"""Requests and answers as the application sees them, whatever transport carries them.

The answer is one of four: a `Response`, a response that comes later (`Deferred`), a response without end (`Stream`), or
another protocol on the same connection (`Upgrade`). Everything happens on the thread of one event loop.
"""

import os
import re
import time
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import msgspec

from topics.errors import Code, TopicsError

JSON = b"application/json"

Header = tuple[bytes, bytes]
Body = bytes | list[bytes | memoryview]


def body_bytes(body: Body) -> int:
    return len(body) if isinstance(body, bytes) else sum(map(len, body))


def weighted(field: bytes, *, malformed: float) -> list[tuple[bytes, float]]:
    """Return the members of an `Accept` or `Accept-Encoding` field, each with its weight (`q`)."""
    found = []
    for member in field.lower().split(b","):
        name, *parameters = (part.strip() for part in member.split(b";"))
        pairs = [parameter.partition(b"=") for parameter in parameters]
        try:
            found.append((name, next((float(value) for key, _, value in pairs if key.strip() == b"q"), 1.0)))
        except ValueError:
            found.append((name, malformed))
    return found


class Memo(msgspec.Struct, eq=False, gc=False):
    """What the application has found for one head with a credential, on one connection that repeats it."""

    found: Any = None


REQUEST_ID = b"x-request-id"
_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")


class Timings(dict[int, list[int]]):
    """How long the requests of one route took, by status: the sum in ns, then a count for each bit length of the time.

    Requests add to the lists directly: an answer may cost 0.1 µs here, and no more.
    """

    def __init__(self, method: str, path: str) -> None:
        super().__init__()
        self.route = method, path

    def __missing__(self, status: int) -> list[int]:
        counts = self[status] = [0] * 65
        return counts


TIMED: dict[tuple[str, str], Timings] = {}  # by method and path of the route
NO_ROUTE = TIMED.setdefault(
    ("", "(none)"), Timings("", "(none)")
)  # of requests that are refused before their route is known


class Request(msgspec.Struct, gc=False):
    """One request. Requests with equal heads share one `headers`: it must not be changed."""

    method: str
    path: bytes  # as sent: before '?', percent-encoded
    query: bytes  # as sent: after '?', b"" if none
    headers: dict[bytes, bytes]  # lowercase names; repeated fields joined with b", "
    body: bytes  # after chunked and gzip decoding; b"" in `admit`, before the body is read
    peer: str  # "127.0.0.1:51234"
    started_ns: int  # perf_counter_ns when the head was complete
    context: Any = None  # set by the application: what `admit` found (route, key), for `handle`
    waited_ns: int = 0  # of the time since `started_ns`: the part in which the client let the server wait
    memo: Memo | None = None
    timings: Timings = NO_ROUTE

    @property
    def key(self) -> str | None:
        """The key or token in the header of this request, if any."""
        return self.headers.get(b"authorization", b"").partition(b" ")[2].strip().decode("latin-1") or None


class Response(msgspec.Struct, gc=False):
    """One answer. The parts of a list body are written in order, not joined; they must not change before that."""

    status: int
    body: Body = b""
    content_type: bytes = JSON
    headers: tuple[Header, ...] = ()  # framing fields (content-length, connection, date) belong to the transport
    sent: Callable[[], None] | None = None  # called once: the system has taken the answer, or no client will

    def with_fields(self, *fields: Header) -> "Response":
        """Return a copy with more header fields. The application may keep the answer and return it again."""
        return Response(self.status, self.body, self.content_type, (*self.headers, *fields), self.sent)


class Deferred(msgspec.Struct, eq=False):
    """An answer that comes later.

    The application calls `resolve` once. The transport calls `then`, and `cancel` when no client waits any more.
    The first of `resolve` and `cancel` counts, and the other does nothing.
    """

    keeps_request: ClassVar[bool] = True  # whether the request body is needed until the answer is there

    on_cancel: Callable[[], object] | None = None
    _callback: Callable[[Response], None] | None = None
    _response: Response | None = None
    cancelled: bool = False
    _over: Callable[[Response | None], None] | None = None
    on_hurry: Callable[[], object] | None = None  # answers at once with what there is

    def resolve(self, response: Response) -> None:
        if self.cancelled:
            return
        assert self._response is None, "a Deferred is resolved once"
        self._response = response
        self.on_cancel = self.on_hurry = None  # the hooks often refer to this object: break the cycle
        over = self._over
        if over is not None:
            self._over = None
            over(response)
        callback = self._callback
        if callback is not None:
            self._callback = None
            callback(response)

    def then(self, callback: Callable[[Response], None]) -> None:
        """Call `callback` with the answer: at once if it is there already. It replaces the one of an earlier call."""
        if self._response is not None:
            callback(self._response)
        elif not self.cancelled:
            self._callback = callback

    def mapped(self, change: Callable[[Response], Response]) -> "Deferred":
        """Return the same answer as `change` returns it. It takes the place of this one."""
        later = Deferred(on_cancel=self.cancel, on_hurry=self.hurry)
        self.then(lambda response: later.resolve(change(response)))
        return later

    def hurry(self) -> None:
        """Ask for an answer at once: the client has shut its side and may have left for good."""
        hook, self.on_hurry = self.on_hurry, None
        if hook is not None and not self.cancelled and self._response is None:
            hook()

    def when_over(self, hook: Callable[[Response | None], None]) -> None:
        """Call `hook` once: with the answer when it is there, or with None when it is cancelled."""
        assert self._over is None, "a Deferred has one hook for its end"
        if self.cancelled or self._response is not None:
            hook(self._response)
        else:
            self._over = hook

    def cancel(self) -> None:
        """Drop the answer: no client waits for it any more."""
        if self.cancelled or self._response is not None:
            return
        self.cancelled = True
        self._callback = self.on_hurry = None
        over, self._over = self._over, None
        if over is not None:
            over(None)
        hook, self.on_cancel = self.on_cancel, None
        if hook is not None:
            hook()


class Sink(Protocol):
    """The end of a connection that a `Stream` or an `Upgrade` writes to."""

    held: bool  # the last argument of `hold`

    def write(self, data: bytes) -> bool:
        """Write bytes. Return False if the client must read first, or has left: write no more until `drained`."""

    def close(self) -> None: ...  # once everything written has left
    def give_up(self) -> None: ...  # abort soon after `close` if the client still reads nothing: it was slow for long
    def hold(self, held: bool, /) -> None: ...  # stop reading from the client, or read again; for an `Upgrade`


class Stream:
    """An answer without end. `closed` is called exactly once, `opened` at most once and before it."""

    high_water_bytes: int | None = None  # high-water mark of unread bytes; None: the transport's own

    def __init__(self, head: Response) -> None:
        self.head = head

    def opened(self, sink: Sink) -> None: ...  # the head is written
    def drained(self) -> None: ...  # the client has read what was above the high-water mark
    def closed(self) -> None: ...  # nothing can be written any more


class Upgrade(Stream):
    """The answer 101, after which the connection carries another protocol in both directions."""

    def received(self, data: bytes) -> None: ...


Answer = Response | Deferred | Stream


class App(Protocol):
    """An application. `admit` gets every request; `handle` or `abandon` follows for each that it does not refuse."""

    def admit(self, request: Request, content_length: int | None) -> Response | None:
        """Return an answer to refuse a request before its body is read. A `content_length` of None is not known yet."""

    def handle(self, request: Request) -> Answer: ...
    def abandon(self, request: Request) -> None: ...  # frees what `admit` reserved: the request will not be handled

    def answer(self, request: Request) -> Answer:
        """Admit and handle a complete request. An application may have a faster way."""
        refused = self.admit(request, len(request.body))
        return self.handle(request) if refused is None else refused


def request_id_of(request: Request) -> str:
    """Return the id that the client gave the request, or a new one."""
    given = request.headers.get(REQUEST_ID, b"")
    return given.decode() if _ID.fullmatch(given) else os.urandom(8).hex()


def changed(answer: Answer, change: Callable[[Response], Response]) -> Answer:
    """Return an answer whose response, or head, is what `change` returns for it."""
    if isinstance(answer, Response):
        return change(answer)
    if isinstance(answer, Deferred):
        return answer.mapped(change)
    answer.head = change(answer.head)
    return answer


def with_request_id(request: Request, response: Response) -> Response:
    """Return the response with the id that the client gave the request. An error has it already."""
    if any(name == REQUEST_ID for name, _ in response.headers):
        return response
    return response.with_fields((REQUEST_ID, request_id_of(request).encode()))


def error_response(error: TopicsError, request: Request | None = None) -> Response:
    """Return the error answer of the contract, with `Allow` or `WWW-Authenticate` where HTTP requires it."""
    request_id = os.urandom(8).hex() if request is None else request_id_of(request)
    headers: tuple[Header, ...] = ((REQUEST_ID, request_id.encode()),)
    if error.code is Code.METHOD_NOT_ALLOWED and error.detail is not None:
        headers += ((b"allow", ", ".join(error.detail["allow"]).encode()),)
    elif error.code is Code.UNAUTHORIZED:
        headers += ((b"www-authenticate", b"Bearer"),)
    took_ms = (time.perf_counter_ns() - request.started_ns) / 1e6 if request is not None and request.started_ns else 0.0
    # A message may quote bytes of the client that are no Unicode text. The answer must be JSON all the same.
    message = error.message.encode("utf-8", "replace").decode()
    described: dict[str, Any] = {"code": error.code.wire, "message": message}
    if error.retry_after_ms is not None:
        # The header counts whole seconds. They are rounded up, because an early retry is refused again.
        headers = (*headers, (b"retry-after", b"%d" % max(1, -(-error.retry_after_ms // 1000))))
        described["detail"] = {"retry_after_ms": error.retry_after_ms} | (error.detail or {})
    elif error.detail is not None:
        described["detail"] = error.detail
    performance = {"server_total_ms": round(took_ms, 3)}
    body = msgspec.json.encode({"error": described, "request_id": request_id, "performance": performance}) + b"\n"
    return Response(error.code.status, body, JSON, headers)
