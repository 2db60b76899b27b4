"""Bytes to requests: llhttp's callbacks, bounded. No I/O, no clock of its own; tests can feed it bytes.

llhttp knows no limits: it hands out every piece as it comes. They are set here: on a head by its bytes and fields, on a
body by its bytes as they come, and on what lies between a chunked body's pieces (chunk extensions, and trailer fields,
which are dropped) by its bytes too.
"""

from typing import Protocol

import httptools

from topics.errors import Code, TopicsError, invalid
from topics.server.http.browser_origin import Pages
from topics.server.http.request_head import SINGLE, Head, check

BETWEEN, IN_HEAD, IN_BODY = range(3)


class Taker(Protocol):
    """Who gets what the reader reads."""

    def take_head(self, head: Head) -> bool:
        """A checked head. False: the body, if any, is not wanted and is to be read past."""

    def take_request(self, head: Head, body: bytes) -> None:
        """The request's body is whole. Not called where the body was not wanted."""

    def take_error(self, error: TopicsError) -> None:
        """What came is no request: nothing after it can be understood, and the reader reads no more."""


class Bounds(Protocol):
    @property
    def max_header_bytes(self) -> int: ...
    @property
    def max_headers(self) -> int: ...
    @property
    def max_body_bytes(self) -> int: ...
    @property
    def pages(self) -> Pages | None: ...


class RequestReader:
    """One connection's input."""

    __slots__ = (
        "_body",
        "_bounds",
        "_broken",
        "_fields",
        "_head_bytes",
        "_headers",
        "_parser",
        "_peer",
        "_quiet_bytes",
        "_repeated",
        "_replay",
        "_taker",
        "_url",
        "body_bytes",
        "head",
        "phase",
        "pieces",
        "wanted",
    )

    def __init__(self, taker: Taker, bounds: Bounds, peer: str) -> None:
        self._taker = taker
        self._bounds = bounds
        self._peer = peer
        self._parser = httptools.HttpRequestParser(self)
        self._broken = False
        self._replay = False
        self.phase = BETWEEN
        self.pieces = 0  # of bodies, ever: each costs a call, however small
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._fields = 0
        self._head_bytes = 0
        self._repeated = False
        self.head: Head | None = None
        self.wanted = True
        self._body: bytes | bytearray = b""
        self.body_bytes = 0
        self._quiet_bytes = 0

    @property
    def body_left_bytes(self) -> int:
        """How much of what comes next is body for certain."""
        if self.phase != IN_BODY or self.head is None:
            return 0
        return max(0, self.head.content_length - self.body_bytes)

    @property
    def held_bytes(self) -> int:
        """What has come of a request that is not whole yet."""
        return 0 if self.phase == BETWEEN else len(self._body) + max(self._head_bytes, self._quiet_bytes)

    @property
    def fields(self) -> int:
        """Header fields of the last head."""
        return self._fields

    def feed(self, data: bytes | memoryview) -> int:
        """Parse; how many bytes were used. Fewer than there are: the client asked for an upgrade, and the rest is
        either the other protocol's or, if it was not granted, to be fed again."""
        if self._broken:
            return len(data)
        self._quiet_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as paused:
            used: int = paused.args[0]
            if self._replay:
                self._read_on_without_upgrade()
            return used
        except httptools.HttpParserError as error:
            self._fail(invalid(f"malformed HTTP: {error}"))
            return len(data)
        # A head in the making, or a chunk extension or trailer without end: bounded though no callback tells of it.
        if self.phase != BETWEEN and self._quiet_bytes > self._bounds.max_header_bytes:
            self._fail(TopicsError(Code.HEADERS_TOO_LARGE, "the request's head or trailer is too large"))
        return len(data)

    def stop(self) -> None:
        """Nothing that comes is of interest any more."""
        self._broken = True
        self._body = b""
        self._head_bytes = self._quiet_bytes = 0

    def rest(self) -> None:
        """Let go of the last request, between two of them."""
        self._url, self._headers, self.head = b"", {}, None

    def release(self) -> None:
        """The connection is gone: reader and parser must not keep each other alive."""
        self._broken = True
        del self._parser

    def _fail(self, error: TopicsError) -> None:
        if not self._broken:
            self._broken = True
            self._taker.take_error(error)

    def _read_on_without_upgrade(self) -> None:
        """An offer that we do not take up (h2c) with a body behind it: the parser would skip that body.

        RFC 9110 section 7.8 lets a server ignore the offer. So the same head is read again without it.
        """
        method = self._parser.get_method()
        fields = [b"%b: %b\r\n" % field for field in self._headers.items() if field[0] != b"upgrade"]
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (method, self._url, b"".join(fields))
        self._replay = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(head)

    # --- the parser's callbacks; none may raise, so each ends at once when the input is given up ---

    def on_message_begin(self) -> None:
        if not self._broken:
            self._reset()
            self.phase = IN_HEAD

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase != IN_HEAD:
            return  # a trailer field: it came too late to mean anything
        self._fields += 1
        if self._fields > self._bounds.max_headers:
            return
        self._head_bytes += len(name) + len(value)
        name = name.lower()
        value = value.strip(b" \t")
        headers = self._headers
        if name in headers:
            self._repeated = self._repeated or name in SINGLE
            value = b"%b, %b" % (headers[name], value)
        headers[name] = value

    def on_headers_complete(self) -> None:
        if self._broken:
            return
        bounds = self._bounds
        if self._fields > bounds.max_headers or self._head_bytes + len(self._url) > bounds.max_header_bytes:
            self._fail(TopicsError(Code.HEADERS_TOO_LARGE, "the request has too many or too large header fields"))
            return
        try:
            head = self._checked()
        except TopicsError as error:
            self._fail(error)
            return
        if self._parser.should_upgrade():
            if head.request.method == "CONNECT":
                self._fail(invalid("this is no proxy"))
                return
            if head.chunked or head.content_length:
                self._replay = True
                return
            head.upgrade = True
        self.head = head
        self._quiet_bytes = 0
        self.phase = IN_BODY
        if head.content_length > bounds.max_body_bytes:
            self.wanted = False
            self._fail(self._too_large())
            return
        self.wanted = self._taker.take_head(head)

    def _checked(self) -> Head:
        if self._repeated:
            raise invalid("a header field that can only come once was repeated")
        pages = self._bounds.pages
        if pages is not None:
            # Here and not in the application: a head that was seen before has passed already, and costs nothing.
            pages.check(self._headers)
        parser = self._parser
        return check(
            method=parser.get_method().decode(),
            version=parser.get_http_version(),
            url=self._url,
            headers=self._headers,
            peer=self._peer,
            keep_alive=parser.should_keep_alive(),
        )

    def _too_large(self) -> TopicsError:
        return TopicsError(Code.PAYLOAD_TOO_LARGE, f"the body is larger than {self._bounds.max_body_bytes} bytes")

    def on_body(self, piece: bytes) -> None:
        if self._broken:
            return
        self._quiet_bytes = 0
        self.pieces += 1
        self.body_bytes += len(piece)
        if self.body_bytes > self._bounds.max_body_bytes:
            self._body = b""
            self._fail(self._too_large())
        elif self.wanted:
            if not self._body:
                self._body = piece
                return
            if isinstance(self._body, bytes):
                # One buffer, not a list of pieces: a client that sends a byte at a time would cost 40 for each.
                self._body = bytearray(self._body)
            self._body += piece

    def on_message_complete(self) -> None:
        head = self.head
        if self._broken or head is None:
            return
        self.phase = BETWEEN
        self._quiet_bytes = 0
        body, self._body = self._body, b""
        if self.wanted:
            self._taker.take_request(head, bytes(body))
