"""`/v0/ws`: subscribe and publish over one connection, as JSON text messages (RFC 6455; frames by `wsproto`).

The engine and the dispatcher are those of HTTP and of event streams. Particular to a WebSocket: every command is
authorised by itself, and a client that sends faster than the disk can write, or reads too slowly, is not read from
until it has caught up.

    bytes -> input.py -> commands.py -> engine, dispatcher -> connection.py -> bytes
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from wsproto import events
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.extensions import Extension
from wsproto.frame_protocol import CloseReason

from topics.errors import Code, TopicsError
from topics.model.watch import DEFAULT_HEARTBEAT_MS, Command, PublishAck, RequestId
from topics.server.http.messages import Response, Upgrade
from topics.server.push.live_stream import LiveConnection
from topics.server.push.rendering import Event, RenderedFrame, socket_payload
from topics.server.push.subscription import Subscription
from topics.server.push.websocket.commands import SocketCommands, SocketServices
from topics.server.push.websocket.input import SocketInput

if TYPE_CHECKING:
    from topics.server.access.caller import Caller

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
    """One connection."""

    __slots__ = ("_deflated", "_pings", "_ws", "commands", "input")

    reports_too_old = False
    kind = "WebSocket"

    def __init__(
        self,
        services: SocketServices,
        head: Response,
        caller: Caller,
        *,
        deflate: Extension | None,
        release: Callable[[], None],
    ) -> None:
        super().__init__(services.runtime, head, release=release, heartbeat_ms=DEFAULT_HEARTBEAT_MS)
        self._ws = Connection(ConnectionType.SERVER, [] if deflate is None else [deflate])
        self._deflated = deflate is not None
        self._pings = 0  # sent since the client last sent anything
        self.input = SocketInput(services, self._ws, self, deflated=self._deflated)
        self.commands = SocketCommands(services, caller, self)

    # --- the connection

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
        self.commands.resume(stale=full_ms > self.runtime.settings.buffer_grace_ms)
        self.unblock()

    def ended(self) -> None:
        self.commands.detach()
        self.input.drop()
        self.commands.end()

    def closed(self) -> None:
        super().closed()
        # Break the reference cycles, so that the connection is freed now and not by a full garbage collection. The
        # frame protocol of wsproto has a generator that refers to it, and the library offers no way to close it.
        self._ws._proto._parse_more.close()
        del self.input, self.commands

    def fail(self, code: int, message: str) -> None:
        going = code == Code.SHUTTING_DOWN.status
        error = Code.SHUTTING_DOWN if going else Code.REQUEST_TIMEOUT
        self._send_json({"op": "error", "code": error.wire, "message": message})
        self.close(CloseReason.GOING_AWAY if going else CloseReason.POLICY_VIOLATION, message)

    def close(self, code: int, reason: str) -> None:
        """Send a close frame, then close the connection."""
        if self.open and self._ws.state is ConnectionState.OPEN:
            self.send(self._ws.send(events.CloseConnection(code=code, reason=reason[:120])))
        self.finish()

    def finish(self) -> None:
        if self.open:
            self.commands.detach()
        super().finish()

    # --- for the input

    def is_blocked(self) -> bool:
        """Return whether the client does not read its answers, or has as much in progress as it may."""
        return self.full or self.commands.is_blocked() or self.input.is_decoding()

    def unblock(self) -> None:
        """Read on if nothing else blocks the connection. Do nothing after its end."""
        if self.open:
            self.input.unblock()

    def hold(self, *, held: bool) -> None:
        """Stop or continue reading from the client."""
        sink = self._sink
        if sink is not None and sink.held is not held:
            sink.hold(held)

    def command(self, command: Command, size_bytes: int, warnings: list[str] | None) -> None:
        """Carry out a command. Its answer has the warnings."""
        self.commands.begin(command, size_bytes, warnings)

    def control(self, event: events.Event) -> None:
        """Handle an event of the protocol that is no text message."""
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

    # --- for the commands

    def answer(self, answer: dict[str, Any], request_id: RequestId, warnings: list[str] | None = None) -> None:
        """Send the answer to a command, with its `request_id` and its warnings if it has any."""
        if request_id is not None:
            answer["request_id"] = request_id
        if warnings is not None:
            answer["warnings"] = warnings
        self._send_json(answer)

    def acknowledge(self, ack: PublishAck) -> None:
        """Send the answer to a publish."""
        self._send_text(_encode(ack))

    def refuse(self, error: TopicsError, request_id: RequestId, **more: Any) -> None:
        """Send an error."""
        answer: dict[str, Any] = {"op": "error", "code": error.code.wire, "message": error.message, **more}
        if error.detail is not None:
            answer["detail"] = error.detail
        if error.retry_after_ms is not None:
            answer["retry_after_ms"] = error.retry_after_ms
        self.answer(answer, request_id)

    def _send_json(self, answer: dict[str, Any]) -> None:
        self._send_text(_encode(answer))

    def _send_text(self, payload: bytes) -> None:
        if not self._deflated:
            self.send(text_head(len(payload)) + payload)
        elif self.open and self._ws.state is ConnectionState.OPEN:
            self.send(self._ws.send(events.TextMessage(data=payload.decode())))

    # --- for the dispatcher

    def push(self, subscription: Subscription, frame: RenderedFrame) -> None:
        if self._deflated:
            self._send_text(socket_payload(Event.RECORD, frame.payload))
        else:
            self.send(frame.socket_frame or frame.socket(text_head))

    def notify(self, subscription: Subscription, event: Event, data: bytes) -> None:
        self._send_text(socket_payload(event, data))

    def topic_deleted(self, subscription: Subscription) -> None:
        """Unsubscribe from the deleted topic."""
        self.commands.topic_deleted(subscription)

    def topics_paused(self, names: list[str], retry_after_ms: int) -> None:
        error = TopicsError(Code.THROTTLED, "watch throttled under CPU pressure", retry_after_ms=retry_after_ms)
        self.refuse(error, None, topics=names)
