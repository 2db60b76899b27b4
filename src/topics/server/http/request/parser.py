"""Bytes to requests with llhttp, within limits. Pure: tests feed it bytes.

llhttp has no limits and reports every piece as it comes. The reader limits a head by its bytes and fields, a body by
its bytes, and what lies between the pieces of a chunked body (chunk extensions and trailer fields, which are dropped)
by its bytes.
"""

from io import BytesIO
from typing import Protocol

import httptools

from topics.errors import Code, TopicsError, invalid
from topics.server.http.http_limits import HttpLimits
from topics.server.http.request.head import SINGLE, RequestHead, check, check_fields

BETWEEN, IN_HEAD, IN_BODY = range(3)


class RequestListener(Protocol):
    def take_head(self, head: RequestHead) -> bool: ...  # whether the body is wanted; otherwise it is skipped
    def take_request(self, head: RequestHead, body: bytes) -> None: ...
    def take_error(self, error: TopicsError) -> None: ...  # the reader has stopped


class RequestReader:
    __slots__ = (
        "_body", "_broken", "_head_bytes", "_headers", "_limits", "_listener", "_parser", "_peer",
        "_quiet_bytes", "_repeated", "_replay", "_url", "body_bytes", "fields", "head", "phase", "pieces", "wanted",
    )  # fmt: skip

    def __init__(self, listener: RequestListener, limits: HttpLimits, peer: str) -> None:
        self._listener = listener
        self._limits = limits
        self._peer = peer
        self._parser = httptools.HttpRequestParser(self)
        self._broken = False
        self._replay = False
        self.phase = BETWEEN
        self.pieces = 0  # of bodies, since the connection was opened: each costs a call, however small
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self.fields = 0  # header fields of the head
        self._head_bytes = 0
        self._repeated = False
        self.head: RequestHead | None = None
        self.wanted = True
        self._body: bytes | BytesIO = b""
        self.body_bytes = 0
        self._quiet_bytes = 0

    @property
    def body_left_bytes(self) -> int:
        """Bytes of the body that are still to come, if its length was announced."""
        if self.phase != IN_BODY or self.head is None:
            return 0
        return max(0, self.head.content_length - self.body_bytes)

    @property
    def held_bytes(self) -> int:
        return (
            0
            if self.phase == BETWEEN
            else (self.body_bytes if self._body else 0) + max(self._head_bytes, self._quiet_bytes)
        )

    def feed(self, data: bytes | memoryview) -> int:
        """Parse `data` and return how many bytes were used.

        Fewer than all are used if the client asks for an upgrade. The rest belongs to the new protocol; if the upgrade
        is not granted, feed it again.
        """
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
        # llhttp reports nothing while a head, a chunk extension or a trailer goes on without end.
        if self.phase != BETWEEN and self._quiet_bytes > self._limits.max_header_bytes:
            self._fail(TopicsError(Code.HEADERS_TOO_LARGE, "the request's head or trailer is too large"))
        return len(data)

    def stop(self) -> None:
        self._broken = True
        self._body = b""
        self._head_bytes = self._quiet_bytes = 0

    def rest(self) -> None:
        self._url, self._headers, self.head = b"", {}, None

    def release(self) -> None:
        """Free the parser when the connection has ended: reader and parser refer to each other."""
        self._broken = True
        del self._parser

    def _fail(self, error: TopicsError) -> None:
        if not self._broken:
            self._broken = True
            self._listener.take_error(error)

    def _read_on_without_upgrade(self) -> None:
        """Parse the same head again without its offer of an upgrade (h2c), because the parser would skip the body.

        RFC 9110 section 7.8 lets a server ignore the offer.
        """
        method = self._parser.get_method()
        fields = [b"%b: %b\r\n" % field for field in self._headers.items() if field[0] != b"upgrade"]
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (method, self._url, b"".join(fields))
        self._replay = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(head)

    # --- callbacks of the parser. None may raise, so each returns at once when the reader has stopped.

    def on_message_begin(self) -> None:
        if not self._broken:
            self._reset()
            self.phase = IN_HEAD

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase != IN_HEAD:
            return  # a trailer field: it is dropped
        self.fields += 1
        if self.fields > self._limits.max_headers:
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
        size_bytes, parser = self._head_bytes + len(self._url), self._parser
        try:
            check_fields(self._headers, self._limits, self.fields, size_bytes, repeated=self._repeated)
            head = check(
                method=parser.get_method().decode(),
                version=parser.get_http_version(),
                url=self._url,
                headers=self._headers,
                peer=self._peer,
                keep_alive=parser.should_keep_alive(),
            )
        except TopicsError as error:
            self._fail(error)
            return
        if self._parser.should_upgrade():
            if head.request.method == "CONNECT":
                self._fail(invalid("CONNECT is not supported: this server is not a proxy"))
                return
            if head.chunked or head.content_length:
                self._replay = True
                return
            head.upgrade = True
        self.head = head
        self._quiet_bytes = 0
        self.phase = IN_BODY
        if head.content_length > self._limits.max_body_bytes:
            self.wanted = False
            self._fail(self._limits.body_too_large())
            return
        self.wanted = self._listener.take_head(head)

    def on_body(self, piece: bytes) -> None:
        if self._broken:
            return
        self._quiet_bytes = 0
        self.pieces += 1
        self.body_bytes += len(piece)
        if self.body_bytes > self._limits.max_body_bytes:
            self._body = b""
            self._fail(self._limits.body_too_large())
        elif self.wanted:
            if not self._body:
                self._body = piece
                return
            if isinstance(self._body, bytes):
                # One buffer, not a list of pieces: a client that sends single bytes would cost 40 bytes for each.
                # `getvalue` does not copy it, as `bytes` would copy a `bytearray`: 64 MiB take 35 ms.
                first, self._body = self._body, BytesIO()
                self._body.write(first)
            self._body.write(piece)

    def on_message_complete(self) -> None:
        head = self.head
        if self._broken or head is None:
            return
        self.phase = BETWEEN
        self._quiet_bytes = 0
        body, self._body = self._body, b""
        if self.wanted:
            self._listener.take_request(head, body if isinstance(body, bytes) else body.getvalue())
