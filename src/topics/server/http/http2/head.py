"""Heads of HTTP/2 requests and answers (RFC 9113 section 8.3). Pure. `h2` has checked what the RFC requires."""

import re
from collections.abc import Iterable

from topics.errors import invalid
from topics.server.http.answers import BODILESS
from topics.server.http.http_limits import HttpLimits
from topics.server.http.messages import JSON, Header, Response
from topics.server.http.request.head import SINGLE, RequestHead, check, check_fields

_TARGET = re.compile(rb"[!-~]+")
_METHOD = re.compile(rb"[A-Z]{1,16}")
# Fields that the transport sets, or that HTTP/2 does not have.
_TRANSPORT_FIELDS = frozenset(
    (b"connection", b"content-length", b"transfer-encoding", b"date", b"keep-alive", b"upgrade", b"proxy-connection")
)


def read_head(fields: Iterable[tuple[bytes, bytes]], limits: HttpLimits, peer: str) -> RequestHead:
    """Return the checked head of a request. Raise `TopicsError` for what this server does not accept."""
    special: dict[bytes, bytes] = {}
    headers: dict[bytes, bytes] = {}
    count = size_bytes = 0
    repeated = False
    for name, value in fields:
        size_bytes += len(name) + len(value)
        if name.startswith(b":"):
            special[name] = value
            continue
        count += 1
        value = value.strip(b" \t")
        if name in headers:
            repeated = repeated or name in SINGLE
            value = b"%b, %b" % (headers[name], value)
        headers[name] = value
    if (authority := special.get(b":authority")) is not None:
        headers[b"host"] = authority
    check_fields(headers, limits, count, size_bytes, repeated=repeated)
    method, target = special.get(b":method", b""), special.get(b":path", b"")
    if method == b"CONNECT":
        raise invalid("CONNECT is not supported: this server is not a proxy")
    if _METHOD.fullmatch(method) is None or _TARGET.fullmatch(target) is None:
        raise invalid("the method or the request target is malformed")
    return check(method=method.decode(), version="1.1", url=target, headers=headers, peer=peer, keep_alive=True)


def answer_head(response: Response, date: bytes, length: int | None) -> list[Header]:
    """Return the head of an answer; `length` is None for one without end. Raise ValueError for a bad field."""
    head: list[Header] = [(b":status", b"%d" % response.status), (b"date", date)]
    if response.status not in BODILESS:
        head.append((b"content-type", response.content_type))
        head.append((b"x-content-type-options", b"nosniff"))
        if response.content_type == JSON:
            head.append((b"cache-control", b"no-store"))
        if length is not None:
            head.append((b"content-length", b"%d" % length))
    for name, value in response.headers:
        name = name.lower()
        if name in _TRANSPORT_FIELDS:
            continue
        if b"\r" in value or b"\n" in value:
            raise ValueError("a header field is one line")
        head.append((name, value))
    return head
