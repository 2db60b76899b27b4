"""One WebSocket: the handshake (RFC 6455 section 4) and the connection."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from hashlib import sha1
from typing import Any

import msgspec
from wsproto import events
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.frame_protocol import CloseReason

from topics.errors import Code, TopicsError, invalid
from topics.model.watch import DEFAULT_HEARTBEAT_MS, RequestId
from topics.server.access.caller import UNKNOWN, Caller, Slot
from topics.server.http.browser_origin import Pages, chosen_protocol
from topics.server.http.messages import Request, Response, Upgrade
from topics.server.push.dispatcher import PushServices
from topics.server.push.live_stream import LiveConnection
from topics.server.push.rendering import Event, RenderedFrame, socket_payload
from topics.server.push.subscription_set import Subscription
from topics.server.push.websocket.commands import SocketCommands
from topics.server.push.websocket.input import SocketInput

UNANSWERED_PINGS = 3

_encode = msgspec.json.encode


def text_head(size_bytes: int) -> bytes:
    """Return the head of an unmasked text message (RFC 6455 section 5.2). `wsproto` would make one per connection."""
    if size_bytes < 126:
        return b"\x81%c" % size_bytes
    if size_bytes < 1 << 16:
        return b"\x81\x7e" + size_bytes.to_bytes(2, "big")
    return b"\x81\x7f" + size_bytes.to_bytes(8, "big")


class WebSocket(LiveConnection, Upgrade):
    __slots__ = ("_authenticate", "_deadline", "_pings", "_services", "_ws", "commands", "input")

    reports_too_old = False
    kind = "WebSocket"

    def __init__(
        self, services: PushServices, head: Response, slot: Slot, authenticate: Callable[[bytes], Caller] | None = None
    ) -> None:
        super().__init__(services.runtime, head, slot=slot, heartbeat_ms=DEFAULT_HEARTBEAT_MS)
        self._services = services
        self._authenticate = authenticate  # None on a server without keys
        self._ws = Connection(ConnectionType.SERVER)
        self._pings = 0  # sent since the client last sent anything
        self.input = SocketInput(services, self._ws, self)
        self.commands = SocketCommands(services, self)

    def begin(self) -> None:
        if self.slot.caller is UNKNOWN:
            self._deadline = self.runtime.call_later(self.runtime.settings.header_timeout_ms, self._check_known)

    def _check_known(self) -> None:
        if self.slot.caller is UNKNOWN and self.open:
            self.revoke("no key came in time")

    def authenticate(self, token: str, request_id: RequestId) -> None:
        """Go on as the caller with this key or token. Raise unless it may continue what the one before began."""
        before, caller = self.slot.caller, self.slot.caller
        if self._authenticate is not None:
            try:
                caller = self._authenticate(token.encode())
                if before is not UNKNOWN and not caller.owns(before):
                    what = "an open connection goes on with a token of the same key, subject and rights only"
                    raise TopicsError(Code.FORBIDDEN, what)
                self.slot.move(caller)
            except TopicsError as error:
                if before is UNKNOWN:
                    self.revoke(error.message)
                raise
        self.answer({"op": "authenticated", "expires_at": caller.expires_ms}, request_id)

    def received(self, data: bytes) -> None:
        if self.open:
            self._pings = 0
            self.input.received(data)

    def beat(self) -> None:
        if self._pings >= UNANSWERED_PINGS:
            self.finish()
        else:
            self._pings += 1
            self.send(self._ws.send(events.Ping()))

    def resume(self, full_ms: float) -> None:
        stale = full_ms > self.runtime.settings.buffer_grace_ms
        self._services.dispatcher.resume_all(self.commands.subscriptions.subscriptions, stale=stale)
        self.unblock()

    def ended(self) -> None:
        self._detach()
        self.input.drop()
        self.commands.subscriptions.discharge()

    def closed(self) -> None:
        super().closed()
        # Break the reference cycles, so that the connection is freed now and not by a full garbage collection. The
        # frame protocol of wsproto has a generator that refers to it, and the library offers no way to close it.
        self._ws._proto._parse_more.close()
        del self.input, self.commands

    def fail(self, code: int, message: str) -> None:
        going = code == Code.SHUTTING_DOWN.status
        error = Code.SHUTTING_DOWN if going else Code.REQUEST_TIMEOUT
        self.send_texts([_encode({"op": "error", "code": error.wire, "message": message})])
        self.close(CloseReason.GOING_AWAY if going else CloseReason.POLICY_VIOLATION, message)

    def revoke(self, reason: str) -> None:
        self.refuse(TopicsError(Code.UNAUTHORIZED, reason), None)
        self.close(CloseReason.POLICY_VIOLATION, reason)

    def close(self, code: int, reason: str) -> None:
        if self.open and self._ws.state is ConnectionState.OPEN:
            self.send(self._ws.send(events.CloseConnection(code=code, reason=reason[:120])))
        self.finish()

    def finish(self) -> None:
        if self.open:
            self._detach()
        super().finish()

    def _detach(self) -> None:
        self._services.pattern_waiters.remove(self)
        self._services.dispatcher.detach_all(self.commands.subscriptions.subscriptions, self)

    def is_blocked(self) -> bool:
        """Return whether the client does not read its answers, or has as much in progress as it may."""
        return self.full or self.commands.is_blocked() or self.input.decoding is not None

    def unblock(self) -> None:
        """Read on if nothing else blocks the connection. Do nothing after its end."""
        if self.open:
            self.input.unblock()

    def hold(self, *, held: bool) -> None:
        sink = self._sink
        if sink is not None and sink.held is not held:
            sink.hold(held)

    def control(self, event: events.Event) -> None:
        if isinstance(event, events.Ping):
            self.send(self._ws.send(event.response()))
        elif isinstance(event, events.CloseConnection):
            # The client sent this, or the library did because of what the client sent.
            if self._ws.state is ConnectionState.REMOTE_CLOSING:
                self.send(self._ws.send(event.response()))
                self.finish()
            else:
                self.close(event.code, event.reason or "")
        elif isinstance(event, events.BytesMessage):
            self.close(CloseReason.UNSUPPORTED_DATA, "commands are text messages")

    def answer(self, answer: dict[str, Any], request_id: RequestId, warnings: list[str] | None = None) -> None:
        if request_id is not None:
            answer["request_id"] = request_id
        if warnings is not None:
            answer["warnings"] = warnings
        self.send_texts([_encode(answer)])

    def refuse(self, error: TopicsError, request_id: RequestId, **more: Any) -> None:
        answer: dict[str, Any] = {"op": "error", "code": error.code.wire, "message": error.message, **more}
        if error.detail is not None:
            answer["detail"] = error.detail
        if error.retry_after_ms is not None:
            answer["retry_after_ms"] = error.retry_after_ms
        self.answer(answer, request_id)

    def send_texts(self, texts: Iterable[bytes]) -> None:
        """Send messages with one write."""
        self.send(b"".join([part for text in texts for part in (text_head(len(text)), text)]))

    def push(self, subscription: Subscription, frame: RenderedFrame) -> None:
        if self.open and (sink := self._sink) is not None:  # as `send` does it, without a call
            self.last_sent_s = frame.sent_s
            if not sink.write(frame.socket_frame or frame.socket(text_head)):
                self.fill()

    def notify(self, subscription: Subscription, event: Event, data: bytes) -> None:
        payload = socket_payload(event, data)
        self.send(text_head(len(payload)) + payload)

    def topic_deleted(self, subscription: Subscription) -> None:
        self.commands.subscriptions.remove(subscription)
        self.commands.subscriptions.charge()

    def topics_paused(self, names: list[str], retry_after_ms: int) -> None:
        error = TopicsError(Code.THROTTLED, "watch throttled under CPU pressure", retry_after_ms=retry_after_ms)
        self.refuse(error, None, topics=names)


ACCEPT_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 section 1.3


def accept(
    services: PushServices,
    request: Request,
    caller: Caller,
    open_stream: Callable[[Caller], Slot],
    authenticate: Callable[[bytes], Caller] | None = None,
) -> WebSocket:
    """Return the connection. Raise if the handshake is invalid, or if a page of this origin may not connect."""
    key = _check_handshake(request)
    if caller is not UNKNOWN:
        check_origin(services, request, caller)
    token = b64encode(sha1(key + ACCEPT_GUID, usedforsecurity=False).digest())
    fields = [(b"upgrade", b"websocket"), (b"sec-websocket-accept", token)]
    if (protocol := chosen_protocol(request.headers)) is not None:
        fields.append((b"sec-websocket-protocol", protocol))
    return WebSocket(services, Response(101, headers=tuple(fields)), open_stream(caller), authenticate)


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


def check_origin(services: PushServices, request: Request, caller: Caller) -> None:
    """Raise `forbidden` unless the page may connect. A caller with origins of its own was checked with its key.

    Browsers let any page open a WebSocket anywhere. Of a server with keys, no other request is checked for that.
    """
    if not caller.rights.origins:
        Pages(hosts=None, origins=services.runtime.settings.cors_origins, has_keys=True).check(request.headers)
