"""One HTTP/1.1 connection: input to requests, answers in order, and never more memory than the limits say.

The common case is one whole request in one read, with a head that was seen before, answered at once: `data_received`
does that by itself, in a few calls. All else goes through a queue of exchanges, which keeps the order of answers:

    parked   the request is whole; it is not handled yet, because too much is in the works or the client does not read
    running  the application has it, and will answer later (or a thread packs its answer)
    ready    the answer is there; it goes out when those before it have

While anything is parked the connection reads no more: a client that does not take its answers sends no new requests.

One turn of the loop handles `max_pipelined` requests of a connection's queue, and begins none after `TURN_NS`: the rest
stay parked until the other connections had their turn.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from topics.errors import Code, TopicsError
from topics.server.http import response_head
from topics.server.http.charges import Charges
from topics.server.http.exchange import Exchange, failure, log, may_pack
from topics.server.http.gzip_body import INLINE_BYTES, MIN_GZIP_BYTES, Gunzip, compressible, gzip
from topics.server.http.messages import (
    JSON,
    Answer,
    Body,
    Deferred,
    Request,
    Response,
    Stream,
    Upgrade,
    body_bytes,
    error_response,
)
from topics.server.http.request_head import Head
from topics.server.http.request_parser import IDLE, IN_BODY, IN_HEAD, RequestReader
from topics.server.limits.budget import SMALL_BYTES

if TYPE_CHECKING:
    from topics.server.http.server import HttpServer

# Input is parsed in pieces of this size: the parser cannot be paused, so a piece bounds how many requests it finds.
PIECE_BYTES = 16 * 1024
HEAD_PIECE_BYTES = 4 * 1024  # the same between requests: they may follow each other every 30 bytes
FULL_PIECE_BYTES = 256  # and while the memory budget is full
MAX_PIECES = 2048  # of a chunked body, parsed in one turn of the loop
TURN_NS = 2_000_000  # of work on one connection's queue in one turn of the loop
# Below it one joined write is cheaper than handing over two buffers; above it the copy costs more. Measured on uvloop,
# µs an answer, joined and in two buffers: 8 KiB 6.4, 6.8; 32 KiB 7.9, 6.7; 100 kB 12.8, 11.2. Two writes always lose.
JOIN_BYTES = 16 * 1024
_perf_counter_ns = time.perf_counter_ns
T = TypeVar("T")


class ConnectionSink:
    """What a stream writes to."""

    __slots__ = ("_connection", "closing", "gave_up", "held")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.closing = False
        self.gave_up = False
        self.held = False

    def write(self, data: bytes) -> bool:
        connection = self._connection
        if self.closing or not connection.is_open:
            return False
        short = connection.is_short_of_memory()
        connection.transport.write(data)
        if connection.paused:
            connection.note_written(len(data))
            return False
        return not short

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._connection.close()

    def give_up(self) -> None:
        self.gave_up = True

    def buffered(self) -> int:
        return self._connection.unsent_bytes()

    def hold(self, held: bool, /) -> None:
        self.held = held
        self._connection.pace_input(held)


class Connection(asyncio.Protocol):
    """The protocol object of one socket."""

    __slots__ = (
        "_admit",
        "_advancing",
        "_answer",
        "_answers",
        "_charges",
        "_continue",
        "_deaf",
        "_draining",
        "_eof",
        "_handle",
        "_held_bytes",
        "_known",
        "_lingering",
        "_lone",
        "_lone_gzip",
        "_lone_request",
        "_long",
        "_out",
        "_out_bytes",
        "_peer",
        "_pending",
        "_prefixes",
        "_queue",
        "_reader",
        "_ready",
        "_seen",
        "_seen_at",
        "_sent_hooks",
        "_server",
        "_sink",
        "_started",
        "_stream",
        "_turn_ends_ns",
        "_turn_left",
        "_usual",
        "_written_bytes",
        "is_open",
        "paused",
        "served",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._admit = server.admit
        self._handle = server.handle
        self._answer = server.answer
        self._answers = server.answers
        self._prefixes = server.answers.prefixes
        self._usual = server.answers.usual
        self._known = server.heads.known
        self._peer = ""
        self.served = 0
        self.is_open = False
        self.paused = False  # the transport holds more than the high-water mark
        self._ready = False  # nothing is under way: the next read can take the short way
        self._reader: RequestReader | None = None
        self._pending: bytes | None = None  # input that was read but must not be parsed yet
        self._queue: list[Exchange] = []
        self._started = 0  # the first so many of the queue are no longer parked
        # An answer under way to a request that came by the short way, while nothing else has happened since: in that
        # case there is no queue, and its answer takes the short way, too.
        self._lone: Deferred | None = None
        self._lone_request: Request | None = None
        self._lone_gzip = False
        self._turn_ends_ns = 0  # when this turn's share is used up; 0 while nothing was handled in it
        self._turn_left = 0  # requests that may still be begun in this turn
        self._held_bytes = 0
        self._charges = Charges(server.budget)
        self._written_bytes = 0  # written while the transport was above its mark
        self._sent_hooks: list[Callable[[], None]] = []  # of answers that the system has not taken yet
        self._out: list[bytes | memoryview] = []  # answers gathered for one write
        self._out_bytes = 0
        self._advancing = False
        self._continue = False  # the client waits for 100 Continue
        self._long = False  # a stream was answered: no request after it is handled
        self._stream: Stream | None = None  # the stream that has the connection
        self._sink: ConnectionSink | None = None
        self._deaf = False  # input is thrown away
        self._lingering = False
        self._eof = False
        self._draining = False
        # For the sweep: something that changes with every sign of life, and when it last did.
        self._seen: object = None
        self._seen_at = 0.0

    # --- the socket's life ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self._peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else ""
        self.transport.set_write_buffer_limits(self._server.limits.high_water_bytes)
        self.is_open = True
        self._ready = True
        self._seen_at = asyncio.get_running_loop().time()
        self._server.opened(self)
        if self._server.draining:
            self.drain()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._ready = False
        self._deaf = True
        self._pending = None
        self._drop_queue()
        stream, self._stream = self._stream, None
        if stream is not None:
            self._guard(stream.closed)
        self._give_up_body()
        if self._reader is not None:
            self._reader.release()
        self._reader = self._sink = None
        self._written_bytes = 0
        self._call_sent_hooks()
        self._note_memory()
        self._server.closed(self)

    def close(self) -> None:
        """Once everything written has left."""
        self._ready = False
        self._deaf = True
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def refuse(self, error: TopicsError) -> None:
        """Answer a new connection that has no place, whatever it was about to ask, and end it."""
        answer = error_response(error)
        self._ready = False
        self._gather(self._answers.whole(answer, body_bytes(answer.body), response_head.CLOSE), answer.body)
        self._flush()
        self._linger()

    def idle_since(self) -> float | None:
        """Return when the connection was found idle after its last request; None while it is not idle."""
        if not self._ready or self._seen != ("idle", self.served) or self.unsent_bytes():
            return None
        return self._seen_at

    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size() if self.is_open else 0

    def _drop_queue(self) -> None:
        self._join_queue()
        queue, self._queue = self._queue, []
        parked = queue[self._started :]
        self._started = self._held_bytes = 0
        self._charges.drop_all()
        self._drop_parked(parked)
        for exchange in queue:
            exchange.dropped = True
            if exchange.deferred is not None:
                self._guard(exchange.deferred.cancel)
            if isinstance(exchange.answer, Stream):
                self._guard(exchange.answer.closed)
            elif exchange.answer is not None:
                self._never_sent(exchange.answer)

    def _drop_parked(self, parked: list[Exchange]) -> None:
        for exchange in parked:
            exchange.dropped = True
            if exchange.answer is None:
                self._guard(self._server.abandon, exchange.head.request)

    def _never_sent(self, response: Response) -> None:
        """Report an answer that nobody waits for any more as delivered: nothing of it is held."""
        if response.sent is not None:
            self._guard(response.sent)

    def _give_up_body(self) -> None:
        """Tell the application that a request it has admitted will not come to its end."""
        reader = self._reader
        if reader is not None and reader.phase == IN_BODY and reader.wanted and reader.head is not None:
            reader.wanted = False
            self._guard(self._server.abandon, reader.head.request)

    def _guard(self, hook: Callable[..., None], *arguments: Any) -> None:
        """Call into the application where nobody waits for an answer."""
        try:
            hook(*arguments)
        except Exception as error:
            log.failure("hook_failed", error, hook=getattr(hook, "__qualname__", ""))
            self.transport.abort()

    # --- input ---

    def data_received(self, data: bytes) -> None:
        """The hot path: ugly because a call costs as much as a line of it, and there are 80,000 of these a second."""
        if not self._ready:
            self._receive(data)
            return
        head, blank, body = data.partition(b"\r\n\r\n")
        known = self._known.get(head) or self._server.heads.compose(head)
        if known is None or not blank or len(body) != known[4]:
            self._receive(data)
            return
        method, path, query, headers, _, may_gzip = known
        self.served += 1
        request = Request(method, path, query, headers, body, self._peer, _perf_counter_ns())
        try:
            answer = self._answer(request)
        except Exception as error:
            answer = failure(request, error)
        if type(answer) is Response:
            if self._answer_plainly(answer, may_gzip):
                return
        elif isinstance(answer, Deferred):
            self._ready = False
            self._lone, self._lone_request, self._lone_gzip = answer, request, may_gzip
            answer.then(self._answered)
            if len(body) > SMALL_BYTES and answer.keeps_request:
                self._join_queue()  # where its body is charged to the memory budget
                self._note_memory()
            return
        self._enqueue(Exchange(Head(request, True, may_gzip)), answer)

    def _answered(self, response: Response) -> None:
        """The answer of a request that is still alone here."""
        request, self._lone, self._lone_request = self._lone_request, None, None
        if not self.is_open:
            self._never_sent(response)
            return
        self._ready = not self.paused
        if not self._answer_plainly(response, self._lone_gzip):
            assert request is not None
            self._enqueue(Exchange(Head(request, True, self._lone_gzip)), response)

    def _enqueue(self, exchange: Exchange, answer: Answer) -> None:
        """The long way for the one exchange there is."""
        self._ready = False
        self._queue.append(exchange)
        self._started = 1
        self._begin_input(exchange)
        self._accept(exchange, answer)
        self._wake()

    def _begin_input(self, exchange: Exchange) -> None:
        """Count a request that came by the short way as one that was begun."""
        self._charges.park(exchange, len(exchange.head.request.body))
        self._charges.begin(exchange)

    def _join_queue(self) -> None:
        """A request that was alone is so no more: it takes its place in the queue, whatever comes next."""
        lone, request, self._lone, self._lone_request = self._lone, self._lone_request, None, None
        if lone is not None:
            assert request is not None
            exchange = Exchange(Head(request, True, self._lone_gzip), deferred=lone)
            self._queue.append(exchange)
            self._started = 1
            self._begin_input(exchange)
            lone.then_instead(partial(self._resolved, exchange))

    def _answer_plainly(self, answer: Response, may_gzip: bool) -> bool:
        """The hot path's other half: write an answer that needs no more than the usual head. False: this one does."""
        body = answer.body
        if type(body) is bytes and len(body) < MIN_GZIP_BYTES and answer.status == 200 and answer.content_type is JSON:
            if answer.headers or answer.sent is not None:
                return False
            size = len(body)
            self.transport.write((self._usual.get(size) or self._answers.usual_head(size)) + body)
            return True
        prefix = self._prefixes.get((answer.status, answer.content_type))
        if prefix is None or answer.headers:
            return False
        size = len(body) if isinstance(body, bytes) else sum(map(len, body))
        if size < MIN_GZIP_BYTES:
            return False
        packs = compressible(answer.content_type)
        if packs and may_gzip:
            return False
        start = b"%b%d\r\n%b\r\n" % (prefix, size, response_head.VARY if packs else b"")
        parts = [start, body] if isinstance(body, bytes) else [start, *body]
        if size > JOIN_BYTES:
            self.transport.writelines(parts)
            if self.paused:
                self.note_written(size)
        else:
            self.transport.write(b"".join(parts))
        if answer.sent is not None:
            self._sent_hooks.append(answer.sent)
            if not self.paused:
                self._call_sent_hooks()
        return True

    def _call_sent_hooks(self) -> None:
        """Report answers as delivered: the system has taken them but for a little, or the connection is gone."""
        hooks, self._sent_hooks = self._sent_hooks, []
        for hook in hooks:
            self._guard(hook)

    def _receive(self, data: bytes) -> None:
        """Input that takes the long way."""
        self._join_queue()
        if self._deaf:
            return
        stream = self._stream
        if stream is not None:
            assert isinstance(stream, Upgrade)
            self._guard(stream.received, data)
            return
        if self._pending is not None:
            self._pending += data
            return
        self._ready = False
        reader = self._reader
        if reader is None:
            reader = self._reader = RequestReader(self, self._server.limits, self._peer)
        fresh = reader.phase == IDLE
        served = self.served
        self._consume(data, reader)
        head = reader.head
        if fresh and head is not None and self.served == served + 1 and reader.phase == IDLE and self._pending is None:
            self._server.heads.learn(data, head, fields=reader.fields)
        self._settle()
        self._note_memory()

    def _consume(self, data: bytes, reader: RequestReader) -> None:
        """Parse piece by piece, as long as there is room for what comes out and others are not kept waiting."""
        view = memoryview(data)
        at = 0
        turn_ends = self.served + self._server.limits.max_pipelined
        pieces_end = reader.pieces + MAX_PIECES
        # `feed` uses all that it gets, or ends behind the head of an upgrade: never nothing.
        while at < len(data) and not self._deaf:
            full = self._stream is not None or self._is_full()
            if full or self.served >= turn_ends or reader.pieces >= pieces_end:
                self._pending = data[at:]
                self.transport.pause_reading()
                if not full:
                    # One read can hold thousands of requests, or of chunks; the other connections come first now.
                    asyncio.get_running_loop().call_soon(self._wake)
                break
            size = max(self._piece_bytes(reader), reader.body_left_bytes)
            at += reader.feed(view[at : at + size])
            self._advance()
        self._send_continue()

    def _piece_bytes(self, reader: RequestReader) -> int:
        if reader.phase == IN_BODY:
            return PIECE_BYTES
        return FULL_PIECE_BYTES if self._server.budget.full else HEAD_PIECE_BYTES

    def _send_continue(self) -> None:
        """Tell a client that waits to send its body, if it still waits and no other answer is before this one."""
        reader = self._reader
        if self._continue and reader is not None and not self._queue:
            self._continue = False
            if reader.phase == IN_BODY and not reader.body_bytes and not self._deaf:
                self.transport.write(response_head.CONTINUE)

    def _is_full(self) -> bool:
        return (
            self.paused
            or self._long
            or self._started < len(self._queue)
            or self._held_bytes > self._server.limits.high_water_bytes
        )

    def eof_received(self) -> bool:
        """A client may shut its side once it has asked; it still gets its answers. True keeps our side open."""
        self._eof = True
        self._ready = False
        self._join_queue()
        if self._stream is not None or self._lingering:
            return False
        for exchange in tuple(self._queue):
            if exchange.deferred is not None:
                # It may wait for minutes, and a client that is gone for good looks no different from here.
                self._guard(exchange.deferred.hurry)
        return bool(self._queue) or self._pending is not None

    # --- what the reader finds ---

    def take_head(self, head: Head) -> bool:
        self.served += 1
        request = head.request
        length = None if head.chunked else head.content_length
        try:
            refused = self._admit(request, length)
        except Exception as error:
            refused = failure(request, error)
        if refused is None:
            self._continue = head.expects
            return True
        # Whoever was told to wait may send the body or not: only closing makes clear where the next request begins.
        if head.expects or length is None or length > self._server.limits.skip_body_bytes:
            head.keep_alive = False
        self._park(Exchange(head, refused))
        if not head.keep_alive:
            self._stop_reading_requests()
        return False

    def _park(self, exchange: Exchange) -> None:
        self._queue.append(exchange)
        self._charges.park(exchange, len(exchange.head.request.body))

    def take_request(self, head: Head, body: bytes) -> None:
        self._continue = False
        head.request.body = body
        exchange = Exchange(head)
        self._park(exchange)
        if not head.keep_alive:
            self._stop_reading_requests()
        if head.packed and body:
            self._unpack(exchange)

    def take_error(self, error: TopicsError) -> None:
        self._give_up_body()
        request = Request("", b"", b"", {}, b"", self._peer, 0)
        self._park(Exchange(Head(request, keep_alive=False), error_response(error)))
        self._stop_reading_requests()

    def give_up_input(self, error: TopicsError) -> None:
        """Drop requests that were not begun, whole or not; answer the first of them with `error`, and end."""
        parked = self._queue[self._started :]
        del self._queue[self._started :]
        self._charges.drop_parked()
        self._drop_parked(parked)
        self._pending = b""  # not None: the client may still send, and must get its answer all the same
        self.take_error(error)
        self._advance()
        self._note_memory()

    def _stop_reading_requests(self) -> None:
        self._deaf = True
        if self._reader is not None:
            self._reader.stop()

    def _unpack(self, exchange: Exchange) -> None:
        """A short body at once, a long one in a thread; the request stays parked meanwhile."""
        packing = Gunzip(exchange.head.request.body, self._server.limits.max_body_bytes)
        try:
            body = packing.step()
        except TopicsError as error:
            self._guard(self._server.abandon, exchange.head.request)
            exchange.answer = error_response(error)
            return
        if body is not None:
            self._take_unpacked(exchange, body)
            return
        exchange.unpacking = True
        self._server.unpacking.begin(partial(self._begin_unpacking, exchange, packing))

    def _begin_unpacking(self, exchange: Exchange, packing: Gunzip) -> bool:
        """Unpack a long body now that it is its turn, unless the memory budget is full: it may grow a thousandfold."""
        budget = self._server.budget
        if not budget.full or not self.is_open or exchange.dropped:
            return self._unpack_more(exchange, packing)
        self._guard(self._server.abandon, exchange.head.request)
        exchange.answer = error_response(budget.error())
        exchange.unpacking = False
        self._take_unpacked(exchange, b"")
        asyncio.get_running_loop().call_soon(self._wake)  # and not here: the request may still be being parsed
        return False

    def _take_unpacked(self, exchange: Exchange, body: bytes) -> None:
        exchange.head.request.body = body
        self._charges.park(exchange, len(body))

    def _unpack_more(self, exchange: Exchange, packing: Gunzip) -> bool:
        """Have a thread unpack some of a body; return False if nobody waits for it any more."""
        if not self.is_open or exchange.dropped:
            return False
        self._in_thread(packing.advance, partial(self._unpacked, exchange, packing))
        return True

    def _unpacked(self, exchange: Exchange, packing: Gunzip, done: "asyncio.Future[bytes | None]") -> None:
        """Take what a thread has unpacked, and have it go on if that is not all and the budget has room for it."""
        if done.cancelled() or not self.is_open or exchange.dropped:
            self._server.unpacking.end()
            return
        error = done.exception()
        body = done.result() if error is None else None
        if error is None and body is None:
            self._charges.park(exchange, len(exchange.head.request.body) + packing.size_bytes)
            self._note_memory()
            if not self._unpack_more(exchange, packing):
                self._server.unpacking.end()
            return
        self._server.unpacking.end()
        if error is not None:
            self._guard(self._server.abandon, exchange.head.request)
            exchange.answer = failure(exchange.head.request, error)
        elif body is not None:
            self._take_unpacked(exchange, body)
        exchange.unpacking = False
        self._wake()

    def _in_thread(self, work: Callable[[], T], then: "Callable[[asyncio.Future[T]], None]") -> None:
        asyncio.get_running_loop().run_in_executor(self._server.pool, work).add_done_callback(then)

    # --- the queue ---

    def _advance(self) -> None:
        """Write what is next in order, handle what may be handled, until neither is possible."""
        if self._advancing:
            return
        self._advancing = True
        try:
            # Bound: each round takes an exchange out of the queue or starts the next one, and none joins meanwhile.
            while self._queue:
                first = self._queue[0]
                if self._started and first.answer is not None:
                    del self._queue[0]
                    self._started -= 1
                    self._emit(first, first.answer)
                elif not self._start_next():
                    break
            self._flush()
        finally:
            self._advancing = False

    def _start_next(self) -> bool:
        if self._started >= len(self._queue):
            return False
        limits = self._server.limits
        if self._out_bytes > limits.high_water_bytes:
            self._flush()
        exchange = self._queue[self._started]
        if exchange.unpacking or self._long or self.paused:
            return False
        if self._started >= limits.max_pipelined or self._held_bytes > limits.high_water_bytes:
            return False
        if exchange.answer is None and not self._has_share():
            return False
        self._started += 1
        self._charges.begin(exchange)
        if exchange.answer is None:
            request = exchange.head.request
            try:
                answer = self._handle(request)
            except Exception as error:
                answer = failure(request, error)
            self._accept(exchange, answer)
        return True

    def _has_share(self) -> bool:
        """Whether one more request may be handled in this turn of the loop. What is parked then comes with the next."""
        if not self._turn_ends_ns:
            self._turn_ends_ns = _perf_counter_ns() + TURN_NS
            self._turn_left = self._server.limits.max_pipelined
            asyncio.get_running_loop().call_soon(self._next_turn)
        elif self._turn_left <= 0 or _perf_counter_ns() > self._turn_ends_ns:
            return False
        self._turn_left -= 1
        return True

    def _next_turn(self) -> None:
        self._turn_ends_ns = 0
        if self._started < len(self._queue) and self.is_open:
            self._wake()

    def _accept(self, exchange: Exchange, answer: Answer) -> None:
        """What the application answered, on its way to being ready."""
        if isinstance(answer, Response):
            self._pack(exchange, answer)
        elif isinstance(answer, Deferred):
            exchange.deferred = answer
            if not answer.keeps_request:
                self._charges.finish(exchange)
            answer.then(partial(self._resolved, exchange))
            if self._eof:
                answer.hurry()
        else:
            self._long = True
            exchange.answer = answer
            self._charges.finish(exchange)
            if not isinstance(answer, Upgrade):
                self._stop_reading_requests()

    def _resolved(self, exchange: Exchange, response: Response) -> None:
        exchange.deferred = None
        if not self.is_open or exchange.dropped:
            self._never_sent(response)
            return
        self._pack(exchange, response)
        self._wake()

    def _pack(self, exchange: Exchange, response: Response) -> None:
        """Gzip where it was asked for and pays; a long body in a thread."""
        self._charges.finish(exchange)
        size = body_bytes(response.body)
        if size < MIN_GZIP_BYTES or not may_pack(response):
            self._make_ready(exchange, response, size)
            return
        exchange.vary = response_head.VARY
        if not exchange.head.gzip:
            self._make_ready(exchange, response, size)
        elif size <= INLINE_BYTES:
            self._make_packed(exchange, response, gzip(response.body))
        else:
            self._hold(exchange, size)
            self._in_thread(partial(gzip, response.body), partial(self._packed, exchange, response))

    def _packed(self, exchange: Exchange, response: Response, done: "asyncio.Future[bytes]") -> None:
        if done.cancelled() or not self.is_open or exchange.dropped:
            self._never_sent(response)
            return
        self._make_packed(exchange, response, done.result())
        self._wake()

    def _make_packed(self, exchange: Exchange, response: Response, packed: bytes) -> None:
        exchange.vary = response_head.VARY + response_head.GZIPPED
        answer = Response(response.status, packed, response.content_type, response.headers, response.sent)
        self._make_ready(exchange, answer, len(packed))

    def _make_ready(self, exchange: Exchange, answer: Response, size: int) -> None:
        exchange.answer = answer
        waits = self._queue and self._queue[0] is not exchange
        self._hold(exchange, size if waits else 0)

    def _hold(self, exchange: Exchange, size: int) -> None:
        """Count an answer that cannot be written yet."""
        self._held_bytes += size - exchange.held_bytes
        exchange.held_bytes = size

    def _wake(self) -> None:
        """Something the queue waited for has happened."""
        self._advance()
        self._send_continue()
        pending, reader = self._pending, self._reader
        if pending is not None and reader is not None and self._stream is None and not self._is_full():
            self._pending = None
            self._consume(pending, reader)
            if self._pending is None and not self._eof:
                self.transport.resume_reading()
        self._settle()
        self._note_memory()

    def _note_memory(self) -> None:
        """Charge the memory budget with what this connection holds now. May end the connection's input."""
        reader, pending = self._reader, self._pending
        unparsed = (0 if reader is None else reader.held_bytes) + (0 if pending is None else len(pending))
        self._note_output()
        self._charges.note_input(self, unparsed)

    def note_written(self, size: int) -> None:
        """Count bytes that the transport could not hand on at once. It keeps a write until its last byte has left."""
        self._written_bytes += size
        self._note_output()

    def _note_output(self) -> None:
        self._charges.note_output(self._held_bytes + max(self._written_bytes, self.unsent_bytes()))

    def is_short_of_memory(self) -> bool:
        """Whether the budget is full and the client has not taken what it was sent. `unblock` is called later."""
        if self.paused or not self._server.budget.full or not self.unsent_bytes():
            return False
        self._server.block(self)
        return True

    def unblock(self) -> bool:
        """Let a stream go on that was short of memory; return False if it still is."""
        stream = self._stream
        if not self.is_open or self.paused or stream is None:
            return True  # it is over, or `resume_writing` comes
        if self._server.budget.full and self.unsent_bytes():
            return False
        self._guard(stream.drained)
        return True

    def _settle(self) -> None:
        """After the long way: whether the next read may take the short one, and whether this is the end."""
        busy = self._queue or self._pending is not None or self._stream is not None
        if busy or not self.is_open:
            return
        between = self._reader is None or self._reader.phase == IDLE
        if between and self._reader is not None:
            self._reader.rest()
        self._ready = between and not (self.paused or self._deaf or self._eof or self._draining)
        if not self._deaf and (self._eof or (self._draining and between)):
            self.close()

    # --- output ---

    def _emit(self, exchange: Exchange, answer: Response | Stream) -> None:
        """Send the answer that is next in order."""
        self._hold(exchange, 0)
        self._charges.finish(exchange)
        if isinstance(answer, Stream):
            self._open_stream(exchange, answer)
            return
        if answer.sent is not None:
            self._sent_hooks.append(answer.sent)
        head = exchange.head
        last = not head.keep_alive or self._is_last()
        extra = exchange.vary
        if last:
            extra += response_head.CLOSE
        elif head.old:
            extra += response_head.KEEP_ALIVE
        try:
            start = self._answers.whole(answer, body_bytes(answer.body), extra)
        except Exception as error:
            # An application's header field that cannot be sent; its own error answer has none.
            answer = failure(head.request, error)
            start = self._answers.whole(answer, body_bytes(answer.body), response_head.CLOSE)
            last = True
        bodiless = head.head_only or answer.status in response_head.BODILESS
        self._gather(start, b"" if bodiless else answer.body)
        if last:
            self._finish()

    def _is_last(self) -> bool:
        """Nothing follows, because the server or the client wants to end."""
        if not (self._draining or self._eof) or self._queue or self._pending is not None:
            return False
        return self._eof or self._reader is None or self._reader.phase == IDLE

    def _gather(self, start: bytes, body: Body) -> None:
        parts = [body] if isinstance(body, bytes) else body
        size = len(start) + body_bytes(body)
        if not self._queue and not self._out and size > JOIN_BYTES:
            self._write(start, *parts, size=size)
            return
        self._out.append(start)
        self._out += parts
        self._out_bytes += size

    def _flush(self) -> None:
        out, self._out = self._out, []
        size, self._out_bytes = self._out_bytes, 0
        if out and self.is_open:
            if size <= JOIN_BYTES:
                self.transport.write(b"".join(out))
            else:
                self._write(*out, size=size)
        if self._sent_hooks and not self.paused:
            self._call_sent_hooks()

    def _write(self, *parts: bytes | memoryview, size: int) -> None:
        self.transport.writelines(parts)
        if self.paused:
            self.note_written(size)

    def _finish(self) -> None:
        """The last answer is written: end the connection so that the client can still read it.

        Closing a socket with unread input resets it, and a reset can destroy an answer on its way. So where input may
        follow, our side is shut first and input is thrown away until the client closes too, or for a while.
        """
        self._flush()
        self._drop_queue()
        self._stop_reading_requests()
        self._ready = False
        reader = self._reader
        whole = (reader is None or reader.phase == IDLE) and self._pending is None
        self._pending = None
        if whole or self._eof or not self.is_open:
            self.transport.close()
            return
        self._linger()
        self.transport.resume_reading()

    def _linger(self) -> None:
        """Shut our side and throw away what comes, until the client has read the answer and closes, or for a while."""
        self._deaf = True
        self._lingering = True
        self.transport.write_eof()

    def _open_stream(self, exchange: Exchange, stream: Stream) -> None:
        """The connection is the stream's from here on: what came after its request is never handled."""
        self._drop_queue()
        heads = self._answers
        upgrade = isinstance(stream, Upgrade)
        try:
            start = heads.switching(stream.head) if upgrade else heads.endless(stream.head)
        except Exception as error:
            self._guard(stream.closed)
            failed = failure(exchange.head.request, error)
            self._gather(heads.whole(failed, body_bytes(failed.body), response_head.CLOSE), failed.body)
            self._finish()
            return
        if exchange.head.head_only:  # nothing will come, and the connection ends: it must not be taken for kept
            start = start.replace(response_head.KEEP_ALIVE, response_head.CLOSE)
        self._gather(start, b"")
        if exchange.head.head_only or self._eof:
            self._guard(stream.closed)
            self._finish()
            return
        self._flush()
        self._charges.become_stream()
        self._stream = stream
        self._sink = ConnectionSink(self)
        if stream.high_water_bytes is not None:
            self.transport.set_write_buffer_limits(stream.high_water_bytes)
        self._guard(stream.opened, self._sink)
        if self._draining:
            self._sink.close()
        elif upgrade:
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """Give an upgraded connection the input that came right behind its request."""
        pending, self._pending = self._pending, None
        if pending and isinstance(self._stream, Upgrade):
            self._guard(self._stream.received, pending)
        held = self._sink is not None and self._sink.held
        if self.is_open and not (self.paused or held):
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.paused = True
        self._ready = False
        self._note_output()
        if isinstance(self._stream, Upgrade):
            # What it would answer to more input has no room either.
            self.transport.pause_reading()

    def pace_input(self, held: bool, /) -> None:
        """Stop reading for an upgraded connection, or read on unless something else is in the way."""
        if not self.is_open:
            return
        if held:
            self.transport.pause_reading()
        elif not self.paused and self._pending is None:
            self.transport.resume_reading()

    def resume_writing(self) -> None:
        self.paused = False
        self._written_bytes = 0
        self._call_sent_hooks()
        stream = self._stream
        if stream is None:
            self._wake()
            return
        self._note_output()
        self._guard(stream.drained)
        held = self._sink is not None and self._sink.held
        if isinstance(stream, Upgrade) and not (self.paused or held) and self._pending is None:
            self.transport.resume_reading()

    # --- deadlines and the end ---

    def sweep(self, now: float) -> None:
        """Called every so often: end what has waited too long."""
        limits = self._server.limits
        unsent = self.transport.get_write_buffer_size()
        if unsent or self._charges.output_bytes:
            self._note_output()
        reader = self._reader
        phase = IDLE if reader is None else reader.phase
        if unsent or self._deaf:
            # A stream is told by its own heartbeat; it costs nothing while its reader sleeps.
            if self._stream is not None and not (self._sink and self._sink.closing):
                return
            gave_up = self._sink is not None and self._sink.gave_up
            brief = gave_up or (self._lingering and not unsent)
            limit_ms = limits.linger_timeout_ms if brief else limits.write_timeout_ms
            if self._queue and not unsent:
                return
            if self._waited_ms(now, unsent if unsent else "ending") > limit_ms:
                self.transport.abort()
        elif self._stream is not None or self._queue or self._lone is not None or self._pending is not None:
            self._seen = None
        elif phase == IDLE:
            if self._waited_ms(now, ("idle", self.served)) > limits.idle_timeout_ms:
                self.close()
        else:
            limit_ms = limits.header_timeout_ms if phase == IN_HEAD else limits.body_timeout_ms
            if self._waited_ms(now, (phase, self.served)) <= limit_ms:
                return
            if reader is not None and not reader.wanted:
                self.transport.abort()  # it has its answer, and is only being read past
            else:
                self.take_error(TopicsError(Code.REQUEST_TIMEOUT, "the request did not come to its end in time"))
                self._advance()

    def _waited_ms(self, now: float, sign: object) -> float:
        """How long there has been no other sign than this one."""
        if sign != self._seen:
            self._seen = sign
            self._seen_at = now
        return (now - self._seen_at) * 1000

    def drain(self) -> None:
        """Finish what has begun, then close."""
        self._draining = True
        self._ready = False
        self._join_queue()
        if self._sink is not None:
            self._sink.close()
        elif not self._deaf:
            self._settle()
