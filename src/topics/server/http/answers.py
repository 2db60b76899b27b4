"""Heads, compression and errors of answers, for both protocols. The server refreshes the date once a second."""

import functools
import http
import zlib
from collections.abc import Callable
from email.utils import formatdate

from topics import logs
from topics.errors import Code, TopicsError, storage_unavailable
from topics.server.http.messages import JSON, REQUEST_ID, Body, Request, Response, error_response

STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BODILESS = frozenset((204, 304))

CONNECTION_CLOSE = b"connection: close\r\n"
KEEP_ALIVE = b"connection: keep-alive\r\n"
UPGRADE = b"connection: upgrade\r\n"
VARY = b"vary: accept-encoding\r\n"
GZIPPED = b"content-encoding: gzip\r\n"
NOSNIFF = b"x-content-type-options: nosniff\r\n"
NO_STORE = b"cache-control: no-store\r\n"

# Fields that the transport sets. Those of an application are dropped, because they could contradict them.
TRANSPORT_FIELDS = frozenset((b"connection", b"content-length", b"transfer-encoding", b"date", b"keep-alive"))


class AnswerHeads:
    """Makes heads of answers. `prefixes` holds all before the digits of the length, by status and content type.

    `usual` holds whole heads of JSON answers with status 200, by the size of a body that is too small for gzip.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.prefixes: dict[tuple[int, bytes], bytes] = {}
        self.usual: dict[int, bytes] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the clock, and drop the heads that hold the old date."""
        self.date = formatdate(self._clock(), usegmt=True).encode()
        self._date = b"date: %b\r\n" % self.date
        self.prefixes.clear()
        self.usual.clear()

    def prefix(self, status: int, content_type: bytes) -> bytes:
        """Return a head up to `content-length: `. The caller adds the number, further lines and the empty line."""
        # Browsers must not run an answer, and caches not store a JSON one: the application sets that for other types.
        safety = NOSNIFF + NO_STORE if content_type == JSON else NOSNIFF
        line = _status_line(status)
        prefix = b"%b%bcontent-type: %b\r\n%bcontent-length: " % (line, self._date, content_type, safety)
        self.prefixes[status, content_type] = prefix
        return prefix

    def whole(self, response: Response, length: int, extra: bytes) -> bytes:
        """Return a whole head. `extra` is further lines, each with its CRLF. Raise ValueError for a bad field."""
        status = response.status
        if status in BODILESS:
            return self.without_length(response, extra)
        key = (status, response.content_type)
        prefix = self.prefixes.get(key) or self.prefix(*key)
        if response.headers:
            extra = _fields(response) + extra
        return b"%b%d\r\n%b\r\n" % (prefix, length, extra)

    def endless(self, response: Response) -> bytes:
        """Return the head of a body that ends with the connection. Raise ValueError for a bad field."""
        # Closing ends the body either way. A proxy passes an answer on sooner if the head does not announce the close.
        after = KEEP_ALIVE if (b"connection", b"keep-alive") in response.headers else CONNECTION_CLOSE
        return self.without_length(response, b"content-type: %b\r\n%b" % (response.content_type, after))

    def without_length(self, response: Response, extra: bytes) -> bytes:
        """Return the head of an answer that has no body, or of an upgrade. Raise ValueError for a bad field."""
        return b"%b%b%b%b\r\n" % (_status_line(response.status), self._date, _fields(response), extra)


def _status_line(status: int) -> bytes:
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def _fields(response: Response) -> bytes:
    lines = [b"%b: %b\r\n" % field for field in response.headers if field[0].lower() not in TRANSPORT_FIELDS]
    for line in lines:
        if line.find(b"\r") != len(line) - 2 or line.count(b"\n") != 1:
            raise ValueError("a header field is one line")
    return b"".join(lines)


MIN_GZIP_BYTES = 1024  # below it the header and the work of the client cost more than is saved
INLINE_BYTES = 16 * 1024  # about 0.2 ms of the event loop; longer bodies go to a thread (zlib releases the interpreter)

_GZIP_WINDOW = 31  # zlib's code for a 32 KiB window in a gzip wrapper
_LEVEL = 1  # JSON shrinks to a fifth at level 1 already; level 6 takes three times as long for a tenth less


def may_compress(response: Response) -> bool:
    """Return whether gzip may be applied to an answer: its type shrinks, and it is not encoded already."""
    if response.status in BODILESS or not compressible(response.content_type):
        return False
    return not response.headers or all(name.lower() != b"content-encoding" for name, _ in response.headers)


@functools.lru_cache(maxsize=64)
def compressible(content_type: bytes) -> bool:
    return content_type.startswith(b"text/") or any(
        word in content_type for word in (b"json", b"javascript", b"xml", b"wasm")
    )


def gzip(body: Body) -> bytes:
    return zlib.compress(body if isinstance(body, bytes) else b"".join(body), _LEVEL, _GZIP_WINDOW)


log = logs.Log("http")


def failure(request: Request, error: BaseException) -> Response:
    """Return the answer to a request whose handling raised `error`: 500 and a log line unless it is a `TopicsError`.

    An OSError is a file that cannot be read now: 503.
    """
    if isinstance(error, TopicsError):
        return error_response(error, request)
    if isinstance(error, OSError):
        known = storage_unavailable(error)
    else:
        known = TopicsError(Code.INTERNAL, "the server made a mistake; its log says where")
    answer = error_response(known, request)
    log.failure("request_failed", error, method=request.method, request_id=dict(answer.headers)[REQUEST_ID].decode())
    return answer
