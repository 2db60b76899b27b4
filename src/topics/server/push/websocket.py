"""`/v0/ws`: subscribe and publish over one connection, as JSON text messages (RFC 6455; frames by `wsproto`).

The engine's verbs and the delivery loop are those of HTTP and of event streams. What is particular to a WebSocket:
every command is checked against the key's rights by itself, and a client that sends faster than the disk takes it, or
reads too slowly, is not read from until it has caught up.

Input is handled in turns of bounded frames, bytes and time. Then the other connections get the loop, and this one is
not read from until its input was handled.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from wsproto import events
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.extensions import Extension
from wsproto.frame_protocol import CloseReason

from topics import logs
from topics.errors import Code, TopicsError, invalid
from topics.model.watch import (
    DEFAULT_HEARTBEAT_MS,
    Command,
    Ping,
    Publish,
    RequestId,
    Subscribe,
    Unsubscribe,
    check_name,
    is_pattern,
)
from topics.server.access.caller import authorise
from topics.server.access.operations import operation_of
from topics.server.http.messages import Response, Upgrade
from topics.server.http.write_body import LARGE_BYTES
from topics.server.limits.budget import MESSAGES, SMALL_BYTES
from topics.server.loop.loads import Loading, unreadable
from topics.server.push.commands import address_of, decode_long, decode_short
from topics.server.push.live_stream import LiveConnection
from topics.server.push.sessions import Watched, lanes_of, resolve
from topics.server.push.subscription import Event, Lane, Rendered, socket_payload
from topics.storage.segments.cold import Cold

if TYPE_CHECKING:
    from topics.engine.state.topic import Topic
    from topics.engine.write.commit import Ticket
    from topics.server.access.caller import Caller
    from topics.server.app import TopicsApp

log = logs.Log("websocket")

MAX_UNACKED = 1024  # publishes under way, above which the client is not read from
MAX_UNACKED_BYTES = 8 << 20  # of their messages
UNANSWERED_PINGS = 3
FRAMES_A_TURN = 64  # as many as HTTP requests of one connection: `HttpLimits.max_pipelined`
BYTES_A_TURN = 64 << 10
TURN_NS = 2_000_000  # of work on one connection's input, after which the others come first
PACKED_PIECE_BYTES = 1 << 10  # of compressed input, which can grow a thousandfold, between two looks at the clock
MAX_FRAGMENTS = 1 << 16  # of one message: fragments of 1 KiB are enough for the largest

_encode = msgspec.json.encode


def text_frame(payload: bytes) -> bytes:
    """One unmasked text message (RFC 6455 section 5.2), made once for all connections; the library makes one each."""
    size = len(payload)
    if size < 126:
        return b"\x81%c%b" % (size, payload)
    if size < 1 << 16:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), payload)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), payload)


class Input(Enum):
    """What happens to a connection's input. The client is read from in the first state alone."""

    READING = 0  # everything that came was handled
    HANDLING = 1  # right now, further up the stack
    NEXT_TURN = 2  # frames may be left, and the next turn is scheduled
    BLOCKED = 3  # frames may be left, and wait until the connection may go on


class WebSocket(LiveConnection, Upgrade):
    """One connection: its subscriptions, and the publishes that wait for the log."""

    __slots__ = (
        "_caller", "_charged_bytes", "_decoding", "_decoding_bytes", "_deflated", "_fragments", "_input", "_loading",
        "_message", "_pings", "_unacked", "_unacked_bytes", "_unfed", "_watched", "_ws",
    )  # fmt: skip

    reports_too_old = False

    def __init__(
        self,
        app: TopicsApp,
        head: Response,
        caller: Caller,
        *,
        deflate: Extension | None,
        release: Callable[[], None],
    ) -> None:
        super().__init__(app, head, release=release, heartbeat_ms=DEFAULT_HEARTBEAT_MS)
        self._caller = caller
        self._watched = Watched(app.budget)
        extensions: list[Extension] = [] if deflate is None else [deflate]
        self._ws = Connection(ConnectionType.SERVER, extensions)
        self._deflated = deflate is not None
        self._message = bytearray()  # what has come of a message in parts
        self._fragments = 0  # of that message
        self._input = Input.READING
        self._unfed = b""  # input that `_ws` has not seen yet
        self._decoding: Generator[None, None, Command] | None = None  # of a long message
        self._decoding_bytes = 0
        self._unacked = self._unacked_bytes = 0
        self._charged_bytes = 0  # for input
        self._loading: Loading | None = None  # for a command that needs the disk
        self._pings = 0  # sent since the client was last heard

    # --- the connection's life

    def received(self, data: bytes) -> None:
        if not self.open:
            return
        self._pings = 0
        self._unfed += data
        if self._input is Input.READING:
            self._handle_input()
        self._note_input()

    def _note_input(self) -> None:
        """Charge the memory budget for input that was not obeyed yet. May close the connection."""
        held_bytes = len(self._message) + len(self._unfed) + self._decoding_bytes
        if held_bytes != self._charged_bytes:
            self.app.budget.charge(MESSAGES, held_bytes - self._charged_bytes)
            self._charged_bytes = held_bytes
            self.app.budget.receive(self, held_bytes)

    def give_up_input(self, error: TopicsError) -> None:
        self._drop_input()
        self._refuse(error, None)
        self._close(CloseReason.TRY_AGAIN_LATER, error.message)

    def _drop_input(self) -> None:
        self._message, self._unfed = bytearray(), b""
        if self._decoding is not None:
            self._decoding.close()
        self._end_decoding()

    def _handle_input(self) -> None:
        """Handle input for one turn: at most `FRAMES_A_TURN` and `BYTES_A_TURN`, and no frame after `TURN_NS`.

        What is left waits for the next turn, or, where the connection is blocked, for `_unblock`.
        """
        self._input = Input.HANDLING
        ws, tick_ns = self._ws, self.app.clock.monotonic_ns
        frames, ends_ns = 0, tick_ns() + TURN_NS
        fed_bytes, piece_bytes = 0, PACKED_PIECE_BYTES if self._deflated else BYTES_A_TURN
        # Bound: each round but the last feeds a piece, and `BYTES_A_TURN` of them end the turn.
        while True:
            for event in ws.events():
                self._take(event)
                if not self.open:
                    return
                if self._is_blocked():
                    self._read_later(Input.BLOCKED)
                    return
                frames += 1
                if frames == FRAMES_A_TURN or tick_ns() > ends_ns:
                    self._read_later(Input.NEXT_TURN)
                    return
            if not self._unfed:
                self._input = Input.READING
                self._pace()
                return
            if fed_bytes >= BYTES_A_TURN:
                self._read_later(Input.NEXT_TURN)
                return
            fed_bytes += piece_bytes
            ws.receive_data(self._unfed[:piece_bytes])
            self._unfed = self._unfed[piece_bytes:]

    def _next_turn(self) -> None:
        """Handle more input. A failure ends this connection and nothing else, as in `Connection._guard`."""
        if self.open and self._is_blocked():
            self._input = Input.BLOCKED
        elif self.open:
            try:
                self._handle_input()
                self._note_input()
            except Exception as error:
                log.failure("input_not_handled", error)
                self._close(CloseReason.INTERNAL_ERROR, "internal error")

    def _read_later(self, state: Input) -> None:
        self._input = state
        if state is Input.NEXT_TURN:
            self.app.loop.call_soon(self._next_turn)
        self._pace()

    def _is_blocked(self) -> bool:
        """Whether the client does not take its answers, or has as much under way as it may."""
        if self.full or self._unacked >= MAX_UNACKED or self._unacked_bytes > MAX_UNACKED_BYTES:
            return True
        return self._decoding is not None or self._loading is not None

    def _unblock(self) -> None:
        if self._input is Input.BLOCKED and self.open and not self._is_blocked():
            self._read_later(Input.NEXT_TURN)

    def _pace(self) -> None:
        held, sink = self._input is not Input.READING, self._sink
        if sink is not None and sink.held is not held:
            sink.hold(held)

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.TextMessage):
            self._take_text(event)
        elif isinstance(event, events.Ping):
            self.send(self._ws.send(event.response()))
        elif isinstance(event, events.CloseConnection):
            # Asked for by the client, or by the library because of what the client sent.
            if self._ws.state is ConnectionState.REMOTE_CLOSING:
                self.send(self._ws.send(event.response()))
                self.finish()
            else:
                self._close(event.code, event.reason or "")
        elif isinstance(event, events.BytesMessage):
            self._close(CloseReason.UNSUPPORTED_DATA, "commands are text messages")

    def _take_text(self, event: events.TextMessage) -> None:
        """Put a message together, bounded in bytes and in fragments, and obey it once it is whole."""
        text, message = event.data.encode(), self._message
        self._fragments += event.frame_finished
        if len(message) + len(text) > self.app.settings.max_body_bytes:
            self._close(CloseReason.MESSAGE_TOO_BIG, "the message is too long")
        elif self._fragments > MAX_FRAGMENTS:
            self._close(CloseReason.MESSAGE_TOO_BIG, f"the message has more than {MAX_FRAGMENTS} fragments")
        elif not event.message_finished:
            message += text
        else:
            if message:
                message += text
                text = bytes(message)
                message.clear()
            self._fragments = 0
            self._obey(text)

    def beat(self) -> None:
        if self._pings >= UNANSWERED_PINGS:
            self.finish()
        else:
            self._pings += 1
            self.send(self._ws.send(events.Ping()))

    def resume(self, full_ms: float) -> None:
        stale = full_ms > self.app.settings.buffer_grace_ms
        for lane in list(self._watched.lanes.values()):
            if lane.group is None:
                lane.stale = stale
                self.app.hub.resume(lane)
        self._unblock()

    def ended(self) -> None:
        self._let_go()
        self._drop_input()
        if self._loading is not None:
            self._loading.cancel()
        self._watched.discharge()

    def fail(self, code: int, message: str) -> None:
        going = code == Code.SHUTTING_DOWN.status
        error = Code.SHUTTING_DOWN if going else Code.REQUEST_TIMEOUT
        self._say({"op": "error", "code": error.wire, "message": message})
        self._close(CloseReason.GOING_AWAY if going else CloseReason.POLICY_VIOLATION, message)

    def _close(self, code: int, reason: str) -> None:
        if self.open and self._ws.state is ConnectionState.OPEN:
            self.send(self._ws.send(events.CloseConnection(code=code, reason=reason[:120])))
        self.finish()

    def finish(self) -> None:
        if self.open:
            self._let_go()
        super().finish()

    def _let_go(self) -> None:
        self.app.sessions.picking.remove(self)
        for lane in self._watched.lanes.values():
            if lane.watcher is self:
                self.app.hub.detach(lane)

    # --- commands

    def _obey(self, text: bytes) -> None:
        try:
            if len(text) > SMALL_BYTES:
                self.app.budget.check(len(text))
            if len(text) > LARGE_BYTES:
                self._decode_in_slices(text)
                return
            command: Command = decode_short(text)
        except TopicsError as error:
            self._refuse(error, address_of(text))
        else:
            self._begin(command, len(text))

    def _begin(self, command: Command, size_bytes: int) -> None:
        """Carry out a command. What comes behind it waits if it needs the disk."""
        try:
            self._carry_out(command, size_bytes=size_bytes)
        except Cold as cold:
            self._loading = self.app.loads.load(cold, partial(self._loaded, command, size_bytes))

    def _decode_in_slices(self, text: bytes) -> None:
        """Decode a long message while others are served. What comes behind it waits."""

        def finish(command: Command) -> None:
            self._end_decoding()
            self._begin(command, len(text))
            self._unblock()

        def fail(error: TopicsError) -> None:
            self._end_decoding()
            self._refuse(error, address_of(text))
            self._unblock()

        self._decoding, self._decoding_bytes = decode_long(text, self.app.engine.limits), len(text)
        self.app.slices.run(self._decoding, finish, fail)

    def _end_decoding(self) -> None:
        self._decoding, self._decoding_bytes = None, 0
        self._note_input()

    def _carry_out(self, command: Command, *, size_bytes: int) -> None:
        """Answer a command. Raises `Cold` before anything has happened."""
        request_id = command.request_id
        try:
            operation, targets = operation_of(command)
            authorise(self.app.engine, self._caller, operation, *targets, wanted=command)
            if isinstance(command, Publish):
                self._publish(command, size_bytes=size_bytes)
            elif isinstance(command, Subscribe):
                self._subscribe(command)
            elif isinstance(command, Unsubscribe):
                self._unsubscribe(command)
            elif isinstance(command, Ping):
                self._answer({"op": "pong"}, request_id)
        except TopicsError as error:
            self._refuse(error, request_id)

    def _loaded(self, command: Command, size_bytes: int, failure: BaseException | None) -> None:
        if not self.open:
            return
        loading, self._loading = self._loading, None
        if failure is not None:
            self._refuse(unreadable(failure), command.request_id)
        else:
            try:
                self._carry_out(command, size_bytes=size_bytes)
            except Cold:
                self._loading = loading
                raise
        self._unblock()

    def _subscribe(self, command: Subscribe) -> None:
        wanted = resolve(self.app, command.watched(), command, self._caller, lenient=command.lenient)
        watched, most = self._watched, self.app.settings.max_watch_topics
        others = sum(1 for lane in watched.lanes.values() if lane.topic.name not in wanted.lanes)
        if others + len(wanted.lanes) > most:
            raise invalid(f"the connection would watch more than {most} topics", field="topics")
        if wanted.patterns and len(watched.patterns.keys() | wanted.patterns.keys()) > most:
            raise invalid(f"the connection would have more than {most} patterns", field="topics")
        self.app.budget.check(wanted.size_bytes())
        topics = wanted.answer()
        self._answer({"op": "subscribed", "topics": topics}, command.request_id)
        for name, lane in wanted.lanes.items():
            self._forget(name)
            watched.add(lane)
            self.app.hub.attach(lane, self)
        if wanted.patterns:
            watched.patterns |= wanted.patterns
        watched.charge()
        if wanted.patterns:
            self.app.sessions.picking.put(self, watched.prefixes(), self._pick)

    def _unsubscribe(self, command: Unsubscribe) -> None:
        name = command.topic
        check_name(name)
        if is_pattern(name):
            self._watched.patterns.pop(name, None)
            for lane in list(self._watched.lanes.values()):
                if lane.topic.name.startswith(name[:-1]):
                    self._forget(lane.topic.name)
            self.app.sessions.picking.put(self, self._watched.prefixes(), self._pick)
        else:
            self._forget(name)
        self._watched.charge()
        self._answer({"op": "unsubscribed", "topic": name}, command.request_id)

    def _forget(self, name: str) -> None:
        for lane in lanes_of(self._watched, name):
            self.app.hub.detach(lane)
            self._watched.remove(lane)

    def _pick(self, topic: Topic) -> None:
        lane = self._watched.pick(topic)
        if lane is None:
            return
        most = self.app.settings.max_watch_topics
        if len(self._watched.lanes) >= most:
            error = invalid(f"more than {most} topics match; this one is not watched")
            self._refuse(error, None, topics=[topic.name])
            return
        self._watched.add_picked(lane)
        self.app.hub.attach(lane, self)

    def _publish(self, command: Publish, *, size_bytes: int) -> None:
        write = command.write()
        if self.app.pressed and not write.disable_backpressure:
            self.app.throttle.check(command.topic)
        ticket = self.app.engine.append(command.topic, write)
        self._unacked += 1
        self._unacked_bytes += size_bytes
        with_seqs, request_id, name = command.return_seqs, command.request_id, command.topic

        def finish(done: Ticket) -> None:
            self._unacked -= 1
            self._unacked_bytes -= size_bytes
            self._published(done, request_id, name, with_seqs=with_seqs)

        ticket.on_done(finish)

    def _published(self, ticket: Ticket, request_id: RequestId, name: str, *, with_seqs: bool) -> None:
        if ticket.error is not None:
            self._refuse(ticket.error, request_id)
        else:
            done = ticket.result
            ack = {
                "op": "ack", "topic": name, "first_seq": done.first, "last_seq": done.last, "head_seq": done.head,
                "created": done.created, "deduped": done.deduped,
                "performance": {
                    "wal_append_ms": round(ticket.wal_ns / 1e6, 3), "fsync_ms": round(ticket.sync_ns / 1e6, 3),
                },
            }  # fmt: skip
            if with_seqs:
                ack["seqs"] = list(range(done.first, done.last + 1))
            self._answer(ack, request_id)
        self._unblock()

    # --- what the client is told

    def _answer(self, answer: dict[str, Any], request_id: RequestId) -> None:
        if request_id is not None:
            answer["request_id"] = request_id
        self._say(answer)

    def _refuse(self, error: TopicsError, request_id: RequestId, **more: Any) -> None:
        said: dict[str, Any] = {"op": "error", "code": error.code.wire, "message": error.message, **more}
        if error.detail is not None:
            said["detail"] = error.detail
        if error.retry_after_ms is not None:
            said["retry_after_ms"] = error.retry_after_ms
        self._answer(said, request_id)

    def _say(self, answer: dict[str, Any]) -> None:
        self._send_text(_encode(answer))

    def _send_text(self, payload: bytes) -> None:
        if not self._deflated:
            self.send(text_frame(payload))
        elif self.open and self._ws.state is ConnectionState.OPEN:
            self.send(self._ws.send(events.TextMessage(data=payload.decode())))

    # --- what the loop has for the client

    def push(self, lane: Lane, rendered: Rendered) -> None:
        if self._deflated:
            self._send_text(socket_payload(Event.RECORD, rendered.payload))
        else:
            self.send(rendered.socket(text_frame))

    def tell(self, lane: Lane, event: Event, data: bytes) -> None:
        self._send_text(socket_payload(event, data))

    def lost(self, lane: Lane) -> None:
        """Over a WebSocket a topic that is gone is no longer subscribed to."""
        self._watched.remove(lane)
        self._watched.charge()

    def advise(self, names: list[str], retry_after_ms: int) -> None:
        error = TopicsError(Code.THROTTLED, "watch throttled under CPU pressure", retry_after_ms=retry_after_ms)
        self._refuse(error, None, topics=names)
