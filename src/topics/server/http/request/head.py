"""Request heads: the checks that RFC 9112 leaves to a server, and a cache of checked heads. Pure.

A client sends the same few request lines and, but for `content-length`, the same header fields again and again. A head
that was seen before costs one dictionary lookup instead of a parser run with a Python call for each field. Header
blocks are also cached apart from request lines, so that a known client's first request for a new path is found too. The
meaning of neither depends on the other if the version is 1.1 and the method has no rules of its own; only such heads
are cached. Credentials are never in this cache: a connection remembers its own, until its client is quiet.
"""

import re
import time
from urllib.parse import unquote_to_bytes

import msgspec

from topics.errors import Code, TopicsError, invalid
from topics.server.http.http_limits import HttpLimits
from topics.server.http.messages import REQUEST_ID, Memo, Request, weighted


def accepts_gzip(accept_encoding: bytes | None) -> bool:
    """Return whether an Accept-Encoding value allows gzip: by name, or by `*`, with a weight above 0.

    A malformed weight counts as 0: the client may have excluded the coding.
    """
    wildcard = 0.0
    for coding, weight in weighted(accept_encoding or b"", malformed=0):
        if coding in (b"gzip", b"x-gzip"):
            return weight > 0
        if coding == b"*":
            wildcard = weight
    return wildcard > 0


Block = tuple[dict[bytes, bytes], int, bool]  # headers, content-length, whether the answer may be gzipped
# Method, path, query, and its block; a memo if the head has a credential.
Known = tuple[str, bytes, bytes, dict[bytes, bytes], int, bool, Memo | None]

# Bounds of the cache: 8 MiB of heads, 4 MiB of header blocks. A full part is emptied.
MAX_HEADS, MAX_HEAD_BYTES = 16_384, 512
MAX_BLOCKS, MAX_BLOCK_BYTES = 2048, 2048

# RFC 9112 section 3.2: a request that repeats one of these fields has two meanings.
SINGLE = frozenset((b"host", b"content-length", b"transfer-encoding", b"content-encoding", b"authorization"))
# RFC 3986 section 3.2: the characters of an authority without user information.
_HOST = re.compile(rb"[A-Za-z0-9\-._~%!$&'()*+;=:\[\]]*")
_LINE = re.compile(rb"(GET|POST|PUT|DELETE|PATCH) (/[!$-~]*) HTTP/1\.1")
# The two spellings that clients use. Heads with another spelling go through the parser each time.
_CREDENTIALS = (b"\r\nauthorization: ", b"\r\nAuthorization: ")
_VISIBLE = bytes(range(0x20, 0x7F))
_ABSOLUTE = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)


class RequestHead(msgspec.Struct, eq=False):
    """A checked request head, with what it means for framing."""

    request: Request
    keep_alive: bool = True
    gzip: bool = False  # the answer may be gzipped
    head_only: bool = False  # HEAD: the answer goes out without its body
    old: bool = False  # HTTP/1.0
    chunked: bool = False
    content_length: int = 0
    packed: bool = False  # the body is gzipped
    expects: bool = False  # the client waits for 100 Continue before it sends the body
    upgrade: bool = False  # the client asks for another protocol


def check_fields(
    headers: dict[bytes, bytes], limits: HttpLimits, fields: int, size_bytes: int, *, repeated: bool
) -> None:
    """Raise `TopicsError` for too many, too large or `repeated` fields, and for a browser that may not send them."""
    if fields > limits.max_headers or size_bytes > limits.max_header_bytes:
        raise TopicsError(Code.HEADERS_TOO_LARGE, "the request has too many or too large header fields")
    if repeated:
        raise invalid("a header field that may occur only once is repeated")
    if limits.pages is not None:
        # Checked here and not in the application: a head that was seen before has passed already.
        limits.pages.check(headers)


def check(
    *, method: str, version: str, url: bytes, headers: dict[bytes, bytes], peer: str, keep_alive: bool
) -> RequestHead:
    """Return the head. Raise `TopicsError` for what the parser accepts and this server does not.

    The parser itself (llhttp, strict) refuses repeated lengths, a length beside chunked, folded lines, bare CR or LF,
    control characters and blanks before a colon.
    """
    old = version == "1.0"
    if not old and version != "1.1":
        raise invalid(f"HTTP version {version} is not supported; use HTTP/1.1")
    host = headers.get(b"host")
    if host is None and not old:
        raise invalid("the Host header is missing")
    if host is not None and _HOST.fullmatch(host) is None:
        raise invalid("the Host header is malformed")
    path, query = split_target(url)
    head_only = method == "HEAD"
    # The application handles a HEAD as a GET. The transport leaves out the body of the answer.
    request = Request("GET" if head_only else method, path, query, headers, b"", peer, time.perf_counter_ns())
    gzip = accepts_gzip(headers.get(b"accept-encoding"))
    head = RequestHead(request, keep_alive=keep_alive, gzip=gzip, head_only=head_only, old=old)
    # Where the body ends (RFC 9112 section 6). What other hops may read differently is refused.
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if head.old or coding.lower() != b"chunked" or b"content-length" in headers:
            raise invalid("Transfer-Encoding can only be chunked, in HTTP/1.1 and without Content-Length")
        head.chunked = True
    head.content_length = int(headers.get(b"content-length", b"0"))
    head.expects = not head.old and headers.get(b"expect", b"").lower() == b"100-continue"
    packing = headers.get(b"content-encoding", b"").lower() or b"identity"
    if packing not in (b"identity", b"gzip", b"x-gzip"):
        raise TopicsError(Code.UNSUPPORTED_MEDIA_TYPE, "Content-Encoding can only be gzip")
    head.packed = packing != b"identity"
    return head


def split_target(url: bytes) -> tuple[bytes, bytes]:
    """Return path and query of a request target in any form that RFC 9112 section 3.2 requires."""
    absolute = _ABSOLUTE.match(url)
    if absolute is not None:
        url = url[absolute.end() :]
        if not url.startswith(b"/"):
            url = b"/" + url
    if b"#" in url or not (url.startswith(b"/") or url == b"*"):
        raise invalid("the request target is malformed")
    path, _, query = url.partition(b"?")
    return path, query


def _part_credential(raw: bytes) -> tuple[bytes, bytes] | None:
    """A head without its `Authorization` line, and the value of that line, if it is one that a parser would take.

    What is left means what it meant beside the line: a second one like it would have been refused, and a line that
    begins with a blank, which would now continue another field, is refused in any head.
    """
    for name in _CREDENTIALS:
        at = raw.find(name)
        if at > 0:
            end = raw.find(b"\r\n", at + 2)
            if end < 0:
                end = len(raw)
            value = raw[at + len(name) : end]
            if value.translate(None, _VISIBLE) or value != value.strip(b" "):
                return None
            return raw[:at] + raw[end:], value
    return None


class HeadCache:
    """Heads seen before, by their bytes and without credentials."""

    def __init__(self) -> None:
        self.known: dict[bytes, Known] = {}
        self._blocks: dict[bytes, Block] = {}

    def compose(self, raw: bytes) -> Known | None:
        """Return a new head, made of a known block and a plain request line; None if it is not of that form."""
        first, _, fields = raw.partition(b"\r\n")
        block = self._blocks.get(fields)
        if block is None:
            return self._compose_with_credential(raw)
        match = _LINE.fullmatch(first)
        if match is None:
            return None
        path, _, query = match[2].partition(b"?")
        known = (match[1].decode(), path, query, *block, None)
        if len(raw) <= MAX_HEAD_BYTES and not (query and b"token" in unquote_to_bytes(query)):
            if len(self.known) >= MAX_HEADS:
                self.known.clear()
            self.known[raw] = known
        return known

    def _compose_with_credential(self, raw: bytes) -> Known | None:
        """Return the same for a head with an `Authorization` line."""
        parted = _part_credential(raw)
        if parted is None:
            return None
        bare, credential = parted
        known = self.known.get(bare)
        if known is None:
            if bare.partition(b"\r\n")[2] not in self._blocks:
                return None
            known = self.compose(bare)
            if known is None:
                return None
        method, path, query, headers, content_length, may_gzip, _ = known
        return method, path, query, headers | {b"authorization": credential}, content_length, may_gzip, Memo()

    def learn(self, data: bytes, head: RequestHead, *, fields: int) -> None:
        """Keep the header block of `data`, in which the parser found one request with `fields` header fields.

        A search for CRLF finds the block here. Its number of lines and the start of the body must be those that the
        parser found.
        """
        raw, blank, body = data.partition(b"\r\n\r\n")
        first, _, block = raw.partition(b"\r\n")
        plain = head.keep_alive and not (head.old or head.chunked or head.packed or head.upgrade)
        if not plain or not blank or not block or len(block) > MAX_BLOCK_BYTES:
            return
        if _LINE.fullmatch(first) is None or block.count(b"\n") != fields - 1 or len(body) != head.content_length:
            return
        headers = head.request.headers
        if REQUEST_ID in headers or b"traceparent" in headers:  # each request has another one
            return
        if b"authorization" in headers:
            parted = _part_credential(raw)
            if parted is None or parted[1] != headers[b"authorization"]:
                return
            block = parted[0].partition(b"\r\n")[2]
            headers = {name: value for name, value in headers.items() if name != b"authorization"}
        if len(self._blocks) >= MAX_BLOCKS:
            self._blocks.clear()
        self._blocks[block] = (headers, head.content_length, head.gzip)
