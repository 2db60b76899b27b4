"""One HTTP/1.1 connection without I/O: bytes in, requests out; answers in, bytes out in order.

The caller passes input to `receive`, calls `next_request` until it returns None, and passes each answer back. Then it
writes what `output` holds, calls `rest`, and does what `state` asks for: close, shut, open the stream.

Requests that have to wait are parked. While a request is parked no further input is parsed or wanted, so a client that
does not read its answers can send no new requests.
"""

from collections.abc import Callable
from enum import Enum, IntEnum, auto

from topics.errors import Code, TopicsError
from topics.server.http.answers import BODILESS, CONNECTION_CLOSE, CONTINUE, KEEP_ALIVE, UPGRADE, AnswerHeads, failure
from topics.server.http.exchange import Exchange, Exchanges, Service
from topics.server.http.http1.intake import Intake
from topics.server.http.messages import Body, Deferred, Request, Response, Stream, Upgrade, body_bytes, error_response
from topics.server.http.request.head import RequestHead
from topics.server.http.request.parser import BETWEEN, IN_HEAD
from topics.server.limits.budget import ANSWERS, STREAMS


class ConnectionState(IntEnum):
    """What a connection is doing. An IntEnum, because the hash of an Enum's member is computed in Python."""

    IDLE = auto()  # no request is in progress: the fast path may take the next read
    AWAITING = auto()  # one request of the fast path waits for a deferred answer, and nothing else has happened since
    ACTIVE = auto()  # requests are parsed, handled and answered by the pipeline
    FINISHING = auto()  # no further request is read; the answers that are due still go out
    UPGRADING = auto()  # an upgrade was granted and waits for the answers before it; input is kept for the new protocol
    STREAMING = auto()  # a stream or an upgraded protocol owns the connection
    LINGERING = auto()  # the last answer is written and our side is shut; input is discarded until the client closes
    CLOSING = auto()  # the transport closes once everything written has left
    ABORTED = auto()  # the transport is to be reset: a hook failed, or the client was too slow
    CLOSED = auto()  # the connection is lost


# Other modules use these names: `ConnectionState.IDLE` takes 0.2 µs in Python 3.11, and a request needs a dozen.
IDLE, AWAITING, ACTIVE, FINISHING, UPGRADING, STREAMING, LINGERING, CLOSING, ABORTED, CLOSED = ConnectionState


class ConnectionEvent(IntEnum):
    DEFER = auto()  # the answer to a request of the fast path comes later
    ANSWER = auto()  # that answer is written
    WORK = auto()  # something happens that the fast path cannot do
    REST = auto()  # everything is answered, and the next request has not begun
    LAST = auto()  # no request after those in the queue is read
    GRANT = auto()  # an upgrade is granted
    OPEN = auto()  # the answer of the stream is next in order
    SHUT = auto()  # the last answer is written, and the client may still be sending
    CLOSE = auto()  # the connection ends once everything written has left
    ABORT = auto()  # the connection ends at once
    LOSE = auto()  # the transport has ended


DEFER, ANSWER, WORK, REST, LAST, GRANT, OPEN, SHUT, CLOSE, ABORT, LOSE = ConnectionEvent


class Ending(IntEnum):
    """Why a connection ends after the requests that have begun. A later member outranks an earlier one."""

    NOT_ENDING = 0
    DRAIN = 1  # the server stops: a request that has begun is still read to its end
    EOF = 2  # the client has shut its side: nothing more can come


NOT_ENDING, DRAIN, EOF = Ending


_OPEN_STATES = (IDLE, AWAITING, ACTIVE, FINISHING, UPGRADING, STREAMING, LINGERING, CLOSING)

TRANSITIONS: dict[tuple[ConnectionState, ConnectionEvent], ConnectionState] = {
    (IDLE, DEFER): AWAITING,
    (AWAITING, ANSWER): IDLE,
    (IDLE, WORK): ACTIVE,
    (AWAITING, WORK): ACTIVE,
    (ACTIVE, WORK): ACTIVE,
    (ACTIVE, REST): IDLE,
    (ACTIVE, LAST): FINISHING,
    (UPGRADING, LAST): FINISHING,
    (FINISHING, LAST): FINISHING,
    (ACTIVE, GRANT): UPGRADING,
    (FINISHING, GRANT): FINISHING,  # the request asked to close after it
    (FINISHING, OPEN): STREAMING,
    (UPGRADING, OPEN): STREAMING,
    (IDLE, SHUT): LINGERING,
    (ACTIVE, SHUT): LINGERING,
    (FINISHING, SHUT): LINGERING,
    (UPGRADING, SHUT): LINGERING,
    (STREAMING, SHUT): LINGERING,  # the upgraded protocol has ended
    **{(state, CLOSE): CLOSING for state in _OPEN_STATES},
    **{(state, ABORT): ABORTED for state in _OPEN_STATES},
    # A hook may fail in the middle of anything: whatever follows changes nothing more.
    **{(ABORTED, event): ABORTED for event in ConnectionEvent},
    **{(CLOSED, event): CLOSED for event in ConnectionEvent},
    **{(state, LOSE): CLOSED for state in ConnectionState},
}

# Input that arrives in these states is dropped.
DISCARDING = frozenset((FINISHING, LINGERING, CLOSING, ABORTED, CLOSED))


class Wait(Enum):
    READ = "read its answers"
    CLOSE = "close its side"
    BEGIN = "begin a request"
    END_HEAD = "send the rest of a head"
    END_BODY = "send the rest of a body"


class Pipeline(Exchanges[Exchange]):
    __slots__ = (
        "account", "begun", "close_timeout_ms", "ending", "held_bytes", "intake", "output", "paused", "queue", "state",
        "stream",
    )  # fmt: skip

    def __init__(self, service: Service, peer: str) -> None:
        super().__init__(service)
        self.state = IDLE
        self.ending = NOT_ENDING  # why the connection ends after the requests that have begun
        self.paused = False  # the transport holds more than the high-water mark
        # Exchanges in the order in which the requests came, until their answers have gone out. The first `begun` ones
        # are with the application, or ready; the others are parked.
        self.queue: list[Exchange] = []
        self.begun = 0
        self.held_bytes = 0  # of answers that wait for the answers before them
        self.account = ANSWERS  # what the output is charged to
        self.output = AnswerOutput(service.answers)
        self.stream: Stream | None = None  # the stream that owns the connection
        self.intake = Intake(service, self.queue, self, peer)
        self.close_timeout_ms = service.limits.write_timeout_ms  # shorter for a client that was slow for long enough

    def change(self, event: ConnectionEvent) -> None:
        """Change the state as the table says. Raise KeyError for a change that it does not have: that is a bug."""
        self.state = TRANSITIONS[self.state, event]

    # --- bytes in

    def receive(self, data: bytes) -> None:
        """Take bytes of the client. `next_request` parses them as far as there is room for what they hold."""
        state = self.state
        if state is IDLE:
            self.change(WORK)
        elif state in DISCARDING:
            return
        self.intake.add(data)

    def receive_eof(self) -> bool:
        """Take the end of the client's input. Return whether the connection stays open for the answers still due."""
        self.ending = EOF
        if self.state is IDLE:
            self.change(WORK)
        if self.stream is not None or self.state is LINGERING:
            return False
        for exchange in tuple(self.queue):
            if exchange.deferred is not None:
                # It may wait for minutes, and a client that has left for good looks no different from here.
                self.call(exchange.deferred.hurry)
        return bool(self.queue) or self.intake.data is not None

    @property
    def wants_input(self) -> bool:
        """Whether to read from the client: all that was read is parsed, or input is discarded anyway."""
        return self.intake.data is None or self.state in DISCARDING

    # --- requests out

    def next_request(self) -> Exchange | None:
        """Begin the next request and return it; return None if there is none, or it has to wait."""
        queue, intake = self.queue, self.intake
        # Bound: each round takes an exchange out of the queue, begins one, or parses input that is there.
        while True:
            if queue:
                first = queue[0]
                if self.begun and first.answer is not None:
                    del queue[0]
                    self.begun -= 1
                    self.hold(first, 0)
                    if first.input_bytes:
                        self.charges.finish(first)
                    self._emit(first, first.answer)
                    continue
                if self.begun < len(queue):
                    exchange = queue[self.begun]
                    if not self._may_begin(exchange):
                        break
                    self.begun += 1
                    self.charges.begin(exchange)
                    if exchange.answer is None:
                        return exchange
                    # Refused before the application could handle it.
                    self._service.request_log.note(exchange.head.request, exchange.answer)
                    continue
            if self.state is not ACTIVE or self.paused or self.held_bytes > self._service.limits.high_water_bytes:
                break
            if not intake.parse_piece():
                break
            if intake.ended:
                self._stop_reading()
        intake.trim()
        if not queue and self.state is ACTIVE and intake.take_continue():
            self.output.append(CONTINUE, b"")
        return None

    @property
    def needs_turn(self) -> bool:
        """Whether `intake.begin_turn` and `next_request` must be called in the next turn of the event loop."""
        if self.intake.turn_ends_ns:
            return True
        if self.state is not ACTIVE or self.intake.data is None or self.paused or self.begun < len(self.queue):
            return False
        return self.held_bytes <= self._service.limits.high_water_bytes

    def _may_begin(self, exchange: Exchange) -> bool:
        limits = self._service.limits
        if self.paused or exchange.unpacking or self.state not in (ACTIVE, FINISHING):
            return False
        if self.begun >= limits.max_pipelined or self.held_bytes > limits.high_water_bytes:
            return False
        if self.output.size_bytes > limits.high_water_bytes:  # it must be written first: the client may not read it
            return False
        return exchange.answer is not None or self.intake.take_share()

    def _stop_reading(self) -> None:
        self.change(LAST)
        self.intake.stop()
        self.intake.discard()

    def unpack_failed(self, exchange: Exchange, error: BaseException) -> None:
        request = exchange.head.request
        self.call(self._service.abandon, request)
        exchange.answer = failure(request, error)
        self.unpacked(exchange, b"")

    # --- answers in

    def adopt(self, request: Request, *, may_gzip: bool, deferred: Deferred | None = None) -> Exchange:
        self.change(WORK)
        exchange = Exchange(RequestHead(request, True, may_gzip), deferred=deferred)
        self.queue.append(exchange)
        self.charges.park(exchange, len(request.body))
        self.begun += 1
        self.charges.begin(exchange)
        return exchange

    def send(self, exchange: Exchange, response: Response) -> None:
        exchange.answer = response
        waits = bool(self.queue) and self.queue[0] is not exchange
        self.hold(exchange, body_bytes(response.body) if waits else 0)

    def hold(self, exchange: Exchange, size_bytes: int) -> None:
        self.held_bytes += size_bytes - exchange.held_bytes
        exchange.held_bytes = size_bytes

    def defer(self, exchange: Exchange, deferred: Deferred) -> None:
        super().defer(exchange, deferred)
        if self.ending is EOF:
            self.call(deferred.hurry)

    def grant(self, exchange: Exchange, stream: Stream) -> None:
        """Take a stream as the answer to a request. No request after it is handled."""
        exchange.answer = stream
        self.charges.finish(exchange)
        self._drop_from(self.begun)
        if isinstance(stream, Upgrade):
            self.change(GRANT)
        else:
            self._stop_reading()

    # --- bytes out

    def _emit(self, exchange: Exchange, answer: Response | Stream) -> None:
        """Move the answer that is next in order to the output."""
        if isinstance(answer, Stream):
            self._open_stream(exchange, answer)
            return
        last = not exchange.head.keep_alive
        if self.ending is not NOT_ENDING and not self.queue and self.intake.data is None:
            last = last or self.ending is EOF or self.intake.phase == BETWEEN
        if self.output.add(exchange, answer, last=last):
            self._finish()

    def _open_stream(self, exchange: Exchange, stream: Stream) -> None:
        """Make the stream the owner of the connection: what came after its request is never handled."""
        self._drop_from(0)
        try:
            self.output.add_stream(exchange, stream)
        except Exception as error:
            self.call(stream.closed)
            self.output.add_last(failure(exchange.head.request, error))
            self._finish()
            return
        if exchange.head.head_only or self.ending is EOF:
            self.call(stream.closed)
            self._finish()
            return
        if not isinstance(stream, Upgrade):
            self.intake.take_rest()  # there is no protocol that wants it
        self.charges.note(self.account, 0)
        self.account = STREAMS
        self.stream = stream
        self.change(OPEN)

    def _finish(self) -> None:
        """End the connection after its last answer so that the client can still read it.

        Closing a socket with unread input resets it, and a reset can destroy an answer on its way. So where input may
        follow, only our side is shut, and input is discarded until the client closes too, or for a while.
        """
        self._drop_from(0)
        whole = self.intake.data is None and self.intake.phase == BETWEEN
        self.intake.stop()
        self.intake.discard()
        self.change(CLOSE if whole or self.ending is EOF else SHUT)

    def refuse(self, error: TopicsError) -> None:
        self.output.add_last(error_response(error))
        self.change(SHUT)

    # --- deadlines

    def deadline(self, unsent_bytes: int) -> tuple[Wait, int] | None:
        """Return what the client must do next and within how many ms; None while nothing is expected of it."""
        state, limits = self.state, self._service.limits
        if state in (STREAMING, ABORTED, CLOSED):
            return None  # a stream finds out by its own heartbeat, and costs nothing while its reader sleeps
        if unsent_bytes:
            return Wait.READ, self.close_timeout_ms
        if state is LINGERING:
            return Wait.CLOSE, limits.linger_timeout_ms
        if state is CLOSING:
            return Wait.CLOSE, self.close_timeout_ms
        if state is AWAITING or self.queue or self.intake.data is not None:
            return None
        phase = self.intake.phase
        if phase == BETWEEN:
            return Wait.BEGIN, limits.idle_timeout_ms
        if phase == IN_HEAD:
            return Wait.END_HEAD, limits.header_timeout_ms
        return Wait.END_BODY, limits.body_timeout_ms

    def time_out(self, wait: Wait) -> None:
        reader = self.intake.reader
        if wait is Wait.BEGIN:
            self.change(CLOSE)
        elif wait in (Wait.READ, Wait.CLOSE) or reader is None or not reader.wanted:
            self.change(ABORT)
        else:
            self.change(LAST)
            self.intake.fail(TopicsError(Code.REQUEST_TIMEOUT, "the request did not arrive completely in time"))

    # --- the end

    def rest(self) -> None:
        """After the output is written: become idle if everything is done, or close if the connection is to end."""
        intake = self.intake
        if self.state is not ACTIVE or self.queue or intake.data is not None:
            return
        between = intake.phase == BETWEEN
        if between and intake.reader is not None:
            intake.reader.rest()
        if self.ending is EOF or (self.ending is DRAIN and between):
            self.change(CLOSE)
        elif between and not self.paused:
            self.change(REST)

    def drain(self) -> None:
        self.ending = max(self.ending, DRAIN)
        if self.state is IDLE:
            self.change(WORK)

    def give_up_input(self, error: TopicsError) -> None:
        if self.intake.reader is None or self.state not in (ACTIVE, UPGRADING, FINISHING):
            return
        self._drop_from(self.begun)
        if self.state is UPGRADING:  # the new protocol would miss the input that is dropped here
            self._drop_from(len(self.queue) - 1)
        self.change(LAST)
        self.intake.fail(error)

    def lose(self) -> None:
        self.change(LOSE)
        self._drop_from(0)
        stream, self.stream = self.stream, None
        if stream is not None:
            self.call(stream.closed)
        self.intake.release()
        for hook in self.output.take_sent_hooks():
            self.call(hook)

    def _hook_failed(self) -> None:
        self.change(ABORT)

    def _drop_from(self, at: int) -> None:
        """Drop the exchanges from position `at` on, and report each to the application, as far as it has come."""
        dropped = self.queue[at:]
        del self.queue[at:]
        self.begun = min(self.begun, at)
        for exchange in dropped:
            exchange.dropped = True
            self.hold(exchange, 0)
            self.charges.release(exchange)
        for exchange in dropped:
            if exchange.deferred is not None:
                self.call(exchange.deferred.cancel)
            if isinstance(exchange.answer, Stream):
                self.call(exchange.answer.closed)
            elif exchange.answer is not None:
                self.never_sent(exchange.answer)
            elif not exchange.begun:
                self.call(self._service.abandon, exchange.head.request)


class AnswerOutput:
    """Answers as bytes, in order, gathered for one write, and the hooks of the answers among them.

    A caller that writes `parts` replaces them with an empty list, and sets `size_bytes` to 0.
    """

    __slots__ = ("_heads", "parts", "sent_hooks", "size_bytes")

    def __init__(self, heads: AnswerHeads) -> None:
        self._heads = heads
        self.parts: list[bytes | memoryview] = []
        self.size_bytes = 0  # of all parts
        self.sent_hooks: list[Callable[[], None]] = []  # of answers that the system has not taken yet

    def add(self, exchange: Exchange, answer: Response, *, last: bool) -> bool:
        """Add an answer. Return whether the connection ends after it: if it is the `last`, or cannot be sent as it is.

        Without its body if the request was a HEAD or the status has none.
        """
        if answer.sent is not None:
            self.sent_hooks.append(answer.sent)
        head = exchange.head
        after = CONNECTION_CLOSE if last else KEEP_ALIVE if head.old else b""
        try:
            start = self._heads.whole(answer, body_bytes(answer.body), after)
        except Exception as error:
            # The application set a header field that cannot be sent. The error answer has no fields of its own.
            self.add_last(failure(head.request, error), head_only=head.head_only)
            return True
        bodiless = head.head_only or answer.status in BODILESS
        self.append(start, b"" if bodiless else answer.body)
        return last

    def add_last(self, answer: Response, *, head_only: bool = False) -> None:
        start = self._heads.whole(answer, body_bytes(answer.body), CONNECTION_CLOSE)
        self.append(start, b"" if head_only else answer.body)

    def add_stream(self, exchange: Exchange, stream: Stream) -> None:
        """Add the head of a stream. Raise ValueError for a header field that cannot be sent."""
        heads = self._heads
        start = (
            heads.without_length(stream.head, UPGRADE) if isinstance(stream, Upgrade) else heads.endless(stream.head)
        )
        if exchange.head.head_only:  # nothing follows and the connection ends: the client must not keep it
            start = start.replace(KEEP_ALIVE, CONNECTION_CLOSE)
        self.append(start, b"")

    def take_sent_hooks(self) -> list[Callable[[], None]]:
        """Return the hooks of the answers that were added, and forget them."""
        hooks, self.sent_hooks = self.sent_hooks, []
        return hooks

    def append(self, start: bytes, body: Body) -> None:
        self.parts.append(start)
        if isinstance(body, bytes):
            if body:
                self.parts.append(body)
            self.size_bytes += len(start) + len(body)
        else:
            self.parts += body
            self.size_bytes += len(start) + body_bytes(body)
