"""Answer heads as bytes (RFC 9112 section 4). Pure but for the date, which its owner refreshes once a second."""

import http
from collections.abc import Callable
from email.utils import formatdate

from topics.server.http.messages import JSON, Response

STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BODILESS = frozenset((204, 304))

CLOSE = b"connection: close\r\n"
KEEP_ALIVE = b"connection: keep-alive\r\n"
UPGRADE = b"connection: upgrade\r\n"
VARY = b"vary: accept-encoding\r\n"
GZIPPED = b"content-encoding: gzip\r\n"
NOSNIFF = b"x-content-type-options: nosniff\r\n"
NO_STORE = b"cache-control: no-store\r\n"

# A field that says how the answer is carried, not what it says; an application's own would contradict ours.
_TRANSPORT_FIELDS = frozenset((b"connection", b"content-length", b"transfer-encoding", b"date", b"keep-alive"))


class AnswerHeads:
    """Heads of answers. `prefixes` holds everything before the length's digits, by status and content type."""

    __slots__ = ("_clock", "_date", "prefixes", "usual")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.prefixes: dict[tuple[int, bytes], bytes] = {}
        self.usual: dict[int, bytes] = {}  # whole heads of JSON answers with status 200, by the size of the body
        self.refresh()

    def refresh(self) -> None:
        """Take the time anew; every head made before is stale."""
        self._date = b"date: %b\r\n" % formatdate(self._clock(), usegmt=True).encode()
        self.prefixes.clear()
        self.usual.clear()

    def usual_head(self, size: int) -> bytes:
        prefix = self.prefixes.get((200, JSON)) or self.prefix(200, JSON)
        self.usual[size] = head = b"%b%d\r\n\r\n" % (prefix, size)
        return head

    def prefix(self, status: int, content_type: bytes) -> bytes:
        """Up to and with `content-length: `. The caller adds the number, further lines and the empty one."""
        prefix = b"%b%bcontent-type: %b\r\n%bcontent-length: " % (
            _status_line(status), self._date, content_type, _safety(content_type),
        )  # fmt: skip
        self.prefixes[status, content_type] = prefix
        return prefix

    def whole(self, response: Response, length: int, extra: bytes) -> bytes:
        """A head with every field there is to it. `extra` is ready lines, each with its CRLF."""
        status = response.status
        if status in BODILESS:
            return b"%b%b%b%b\r\n" % (_status_line(status), self._date, _fields(response), extra)
        key = (status, response.content_type)
        prefix = self.prefixes.get(key) or self.prefix(*key)
        if response.headers:
            extra = _fields(response) + extra
        return b"%b%d\r\n%b\r\n" % (prefix, length, extra)

    def endless(self, response: Response) -> bytes:
        """The head of a body that ends with the connection."""
        line = _status_line(response.status)
        # Closing ends the body either way; a proxy passes an answer on sooner if it is not told that it will end.
        after = KEEP_ALIVE if (b"connection", b"keep-alive") in response.headers else CLOSE
        return b"%b%bcontent-type: %b\r\n%b%b\r\n" % (line, self._date, response.content_type, _fields(response), after)

    def switching(self, response: Response) -> bytes:
        return b"%b%b%b%b\r\n" % (_status_line(response.status), self._date, _fields(response), UPGRADE)


def _safety(content_type: bytes) -> bytes:
    """No browser may take an answer for a page or a script, and nobody on the way may keep one that says who has what.

    An application that says itself how long an answer of another type may be kept is not contradicted.
    """
    return NOSNIFF + NO_STORE if content_type == JSON else NOSNIFF


def _status_line(status: int) -> bytes:
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def _fields(response: Response) -> bytes:
    lines = [b"%b: %b\r\n" % field for field in response.headers if field[0].lower() not in _TRANSPORT_FIELDS]
    for line in lines:
        if line.find(b"\r") != len(line) - 2 or line.count(b"\n") != 1:
            raise ValueError("a header field is one line")
    return b"".join(lines)
