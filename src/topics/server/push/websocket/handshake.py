"""The WebSocket handshake (RFC 6455 section 4): its checks, and the negotiation of compression."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import sha1
from typing import TYPE_CHECKING, Any

from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import CloseReason

from topics.errors import Code, TopicsError, invalid
from topics.server.http.messages import Header, Request, Response
from topics.server.http.request.browser_origin import may_call
from topics.server.push.websocket.connection import WebSocket

if TYPE_CHECKING:
    from topics.config import Settings
    from topics.server.access.caller import Caller
    from topics.server.push.websocket.commands import SocketServices

ACCEPT_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 section 1.3


def accept(
    services: SocketServices, request: Request, caller: Caller, open_stream: Callable[[Caller], Callable[[], None]]
) -> WebSocket:
    """Return the connection. Raise if the handshake is invalid, or if a page of this origin may not connect."""
    key = _check_handshake(request)
    settings = services.runtime.settings
    _check_origin(settings, request)
    fields: list[Header] = [(b"upgrade", b"websocket"), (b"sec-websocket-accept", _accept_token(key))]
    deflate = _negotiate(settings, request, fields)
    head = Response(101, headers=tuple(fields))
    return WebSocket(services, head, caller, deflate=deflate, release=open_stream(caller))


def _check_handshake(request: Request) -> bytes:
    """Return the `Sec-WebSocket-Key`. Raise unless the request is a handshake (RFC 6455 section 4.2.1)."""
    headers = request.headers
    tokens = [token.strip() for token in headers.get(b"connection", b"").lower().split(b",")]
    if b"upgrade" not in tokens or headers.get(b"upgrade", b"").strip().lower() != b"websocket":
        raise invalid(
            "this path is a WebSocket: use HTTP/1.1, and send connection: upgrade and upgrade: websocket",
            field="Upgrade",
        )
    if headers.get(b"sec-websocket-version", b"").strip() != b"13":
        raise invalid("Sec-WebSocket-Version must be 13", field="Sec-WebSocket-Version")
    key = headers.get(b"sec-websocket-key", b"").strip()
    try:
        if len(b64decode(key, validate=True)) != 16:
            raise ValueError
    except (binascii.Error, ValueError):
        raise invalid("Sec-WebSocket-Key must be 16 bytes in base64", field="Sec-WebSocket-Key") from None
    return key


def _check_origin(settings: Settings, request: Request) -> None:
    """Raise `forbidden` unless the page comes from this server or from an allowed origin.

    Browsers let any page open a WebSocket anywhere: without this check a page on the internet could use the server on
    its reader's own machine. Programs send no `Origin`.
    """
    origin = request.headers.get(b"origin", b"").decode("latin-1")
    if not origin or "*" in settings.cors_origins:
        return
    allowed = frozenset(one.lower() for one in settings.cors_origins)
    if not may_call(origin, request.headers.get(b"host"), allowed):
        raise TopicsError(
            Code.FORBIDDEN,
            "pages of this origin may not connect; add the origin to TOPICS_CORS_ORIGINS to allow it",
            detail={"origin": origin[:256]},
        )


def _accept_token(key: bytes) -> bytes:
    return b64encode(sha1(key + ACCEPT_GUID, usedforsecurity=False).digest())


def _negotiate(settings: Settings, request: Request, fields: list[Header]) -> BoundedDeflate | None:
    """Return the compression if it is configured and the client offers it. No window outlives a message."""
    if not settings.ws_deflate:
        return None
    for offer in request.headers.get(b"sec-websocket-extensions", b"").decode("latin-1").split(","):
        if offer.partition(";")[0].strip() != PerMessageDeflate.name:
            continue
        deflate = BoundedDeflate(settings.max_body_bytes)
        try:
            accepted = deflate.accept(offer.strip())
        except ValueError:  # the window is not a number
            continue
        if isinstance(accepted, str):
            fields.append((b"sec-websocket-extensions", f"{PerMessageDeflate.name}; {accepted}".encode()))
            return deflate
    return None


class BoundedDeflate(PerMessageDeflate):
    """permessage-deflate (RFC 7692) that refuses a message as soon as its unpacked size exceeds the limit."""

    def __init__(self, max_message_bytes: int) -> None:
        super().__init__(client_no_context_takeover=True, server_no_context_takeover=True)
        self._max_bytes = max_message_bytes
        self._left_bytes = max_message_bytes

    def frame_inbound_payload_data(self, proto: Any, data: bytes) -> bytes | CloseReason:
        if not self._inbound_compressed or not self._inbound_is_compressible:
            return data
        assert self._decompressor is not None
        try:
            unpacked = self._decompressor.decompress(bytes(data), self._left_bytes + 1)
        except Exception:
            return CloseReason.INVALID_FRAME_PAYLOAD_DATA
        self._left_bytes -= len(unpacked)
        return CloseReason.MESSAGE_TOO_BIG if self._left_bytes < 0 else unpacked

    def frame_inbound_complete(self, proto: Any, fin: bool) -> bytes | CloseReason | None:
        if fin and self._inbound_is_compressible:
            self._left_bytes = self._max_bytes
        return super().frame_inbound_complete(proto, fin)
