"""What HTTP/1.1 and HTTP/2 have in common: a request and its answer, their charges, and the way between application
and connection. `Exchanges` is without I/O, `ExchangeConnection` has the socket, and `Service` is what both use of the
server, which imports them.
"""

import asyncio
import time
import zlib
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from topics.errors import Code, TopicsError, invalid
from topics.server.http.answers import INLINE_BYTES, MIN_GZIP_BYTES, AnswerHeads, failure, gzip, log, may_compress
from topics.server.http.http_limits import HttpLimits
from topics.server.http.messages import (
    REQUEST_ID,
    Answer,
    App,
    Deferred,
    Header,
    Response,
    Stream,
    body_bytes,
    changed,
    with_request_id,
)
from topics.server.http.request.head import HeadCache, RequestHead
from topics.server.http.request_log import RequestLog
from topics.server.limits.budget import ANSWERS, BODIES, EXCHANGE_BYTES, STREAMS, UNPACKING, MemoryBudget, Receiver

_GZIP_WINDOW = 31  # zlib's code for a 32 KiB window in a gzip wrapper
_STEP_BYTES = 256 * 1024  # output of one step
_INPUT_BYTES = 16 * 1024  # input of one step: zlib copies what a member leaves unused
_MAX_MEMBERS = 4096


def gunzip(packed: bytes, limit_bytes: int) -> Generator[int, None, bytes]:
    """Unpack a body (RFC 9110 section 8.4.1.3) in steps, each with the size so far. Raise for damage or size."""
    unpacker, members, size_bytes = zlib.decompressobj(_GZIP_WINDOW), 1, 0
    parts: list[bytes] = []  # joined at the end: many buffers that grow at the same time fragment the heap
    data, at = b"", 0
    # Bound: each round takes some of the input, or adds to the output, which has a limit.
    while True:
        if not data:
            data = packed[at : at + _INPUT_BYTES]
            at += len(data)
        is_starved = not data
        try:
            got = unpacker.decompress(data, min(_STEP_BYTES, limit_bytes + 1 - size_bytes))
        except zlib.error:
            raise invalid("the body is not valid gzip") from None
        parts.append(got)
        size_bytes += len(got)
        if size_bytes > limit_bytes:
            raise TopicsError(Code.PAYLOAD_TOO_LARGE, f"the body unpacks to more than {limit_bytes} bytes")
        data = unpacker.unconsumed_tail
        if unpacker.eof:  # of a member. A body may have several (RFC 1952 section 2.2).
            data = unpacker.unused_data
            if not data and at == len(packed):
                return b"".join(parts)
            members += 1
            if members > _MAX_MEMBERS:  # an empty member costs the server far more than the client
                raise invalid(f"the gzip body has more than {_MAX_MEMBERS} members")
            unpacker = zlib.decompressobj(_GZIP_WINDOW)
        elif is_starved and not got:
            raise invalid("the gzip body is cut short")
        yield size_bytes


_GZIP_THREADS = 2
_UNBLOCK_S = 0.05  # how often streams that wait for the memory budget are tried again
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # the first bytes of a client of HTTP/2 (RFC 9113 section 3.4)


class Service:
    """The server, as its connections use it. `HttpServer` overrides the hooks."""

    def __init__(
        self, app: App, limits: HttpLimits | None, budget: MemoryBudget | None, request_log: RequestLog | None
    ) -> None:
        # Bound once and shared: a connection needs neither the lookup nor bound methods of its own.
        self.admit = app.admit
        self.handle = app.handle
        self.answer = app.answer
        self.abandon = app.abandon
        self.limits = limits or HttpLimits()
        self.budget = budget or MemoryBudget()
        self.request_log = request_log or RequestLog()
        self.heads = HeadCache()
        self.answers = AnswerHeads(time.time)
        self.clock_ns = time.perf_counter_ns
        # Threads start when there is something to do. One unpacks: several bodies would all be half unpacked at a time.
        self.pool = ThreadPoolExecutor(max_workers=_GZIP_THREADS, thread_name_prefix="topics-gzip")
        self.unpacker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="topics-gunzip")
        self.unpacking_bytes = 0  # of the body that it unpacks now
        self.budget.count(UNPACKING, lambda: self.unpacking_bytes)
        self.draining = False
        self._blocked: dict[Callable[[], bool], None] = {}  # of streams that wait for the budget

    def opened(self, connection: Any) -> None: ...
    def closed(self, connection: Any) -> None: ...
    def begin_http2(self, connection: Any) -> None: ...  # its first bytes are its `opening`

    def block(self, unblock: Callable[[], bool]) -> None:
        """Have `unblock` called until it returns True."""
        if not self._blocked:
            asyncio.get_running_loop().call_later(_UNBLOCK_S, self._unblock)
        self._blocked[unblock] = None

    def _unblock(self) -> None:
        waiting, self._blocked = self._blocked, {}
        for unblock in waiting:
            if not unblock():
                self.block(unblock)


VARY: Header = (b"vary", b"accept-encoding")
GZIPPED: Header = (b"content-encoding", b"gzip")


class Exchange(msgspec.Struct, eq=False):
    head: RequestHead
    answer: Response | Stream | None = None
    deferred: Deferred | None = None
    held_bytes: int = 0  # size of an answer that waits for the answers before it
    input_bytes: int = 0  # size of the request, charged to the memory budget until the answer is there
    begun: bool = False  # the application has the request
    unpacking: bool = False  # a thread unpacks the body, or will
    dropped: bool = False  # no client waits for the answer


E = TypeVar("E", bound=Exchange)


class Charges:
    """The bytes that one connection holds, as charged to the memory budget. Pure.

    A request that comes whole and small, and whose answer the operating system takes at once, is covered by the flat
    charge of the connection: nothing here is called for it.
    """

    __slots__ = ("_budget", "_held_bytes", "_parked_bytes", "charged")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.charged = {BODIES: 0, ANSWERS: 0, STREAMS: 0}
        self._held_bytes = self._parked_bytes = 0  # of all requests, and of those that are not begun

    def park(self, exchange: Exchange, size_bytes: int) -> None:
        """Count a request that is not begun; count it again with its new size when more of its body is there."""
        delta_bytes = EXCHANGE_BYTES + size_bytes - exchange.input_bytes
        exchange.input_bytes += delta_bytes
        self._held_bytes += delta_bytes
        self._parked_bytes += delta_bytes

    def begin(self, exchange: Exchange) -> None:
        exchange.begun = True
        self._parked_bytes -= exchange.input_bytes

    def release(self, exchange: Exchange) -> None:
        self._held_bytes -= exchange.input_bytes
        if not exchange.begun:
            self._parked_bytes -= exchange.input_bytes
        exchange.input_bytes = 0

    def finish(self, exchange: Exchange) -> None:
        """Free the body of a request: its answer does not need it any more."""
        self.release(exchange)
        exchange.head.request.body = b""

    def note_input(self, receiver: Receiver, unparsed_bytes: int) -> None:
        """Charge for requests, and bytes of requests that are not whole. `receiver` is the connection."""
        if self.note(BODIES, self._held_bytes + unparsed_bytes):
            self._budget.receive(receiver, self._parked_bytes + unparsed_bytes)

    def note(self, account: str, held_bytes: int) -> bool:
        """Charge an account with what is held now. Return whether that differs from before."""
        delta_bytes = held_bytes - self.charged[account]
        if delta_bytes:
            self.charged[account] = held_bytes
            self._budget.charge(account, delta_bytes)
        return delta_bytes != 0


class Exchanges(Generic[E]):
    """The exchanges of one connection, without I/O. Subclasses override the hooks below."""

    __slots__ = ("_service", "charges", "packed", "served")

    def __init__(self, service: Service) -> None:
        self._service = service
        self.charges = Charges(service.budget)
        self.served = 0  # requests whose head was understood
        self.packed: list[
            tuple[E, Generator[int, None, bytes]]
        ] = []  # whole requests whose bodies take too long to unpack here

    # --- hooks of subclasses

    def send(self, exchange: E, response: Response) -> None: ...  # when it is its turn
    def hold(self, exchange: E, size_bytes: int) -> None: ...  # counts an answer that cannot be sent yet
    def grant(self, exchange: E, stream: Stream) -> None: ...  # takes an answer without end
    def unpack_failed(self, exchange: E, error: BaseException) -> None: ...
    def _hook_failed(self) -> None: ...  # ends the connection at once: a hook of the application has raised

    def give_up_input(self, error: TopicsError) -> None:
        """Drop requests that were not begun, whole or not, and answer them with `error`: the memory is exhausted."""

    def answer(self, exchange: E, response: Response) -> bool:
        """Take the answer to a request. Return False if compressing its body takes too long here: then
        `answer_compressed` must follow."""
        exchange.deferred = None
        if exchange.dropped:
            self.never_sent(response)
            return True
        self.charges.finish(exchange)
        size_bytes = body_bytes(response.body)
        if size_bytes >= MIN_GZIP_BYTES and may_compress(response):
            if exchange.head.gzip:
                if size_bytes > INLINE_BYTES:
                    self.hold(exchange, size_bytes)
                    return False
                self.answer_compressed(exchange, response, gzip(response.body))
                return True
            response = response.with_fields(VARY)
        self.send(exchange, response)
        return True

    def answer_compressed(self, exchange: E, response: Response, packed: bytes) -> None:
        answer = response.with_fields(VARY, GZIPPED)
        answer.body = packed
        self.send(exchange, answer)

    def defer(self, exchange: E, deferred: Deferred) -> None:
        exchange.deferred = deferred
        if not deferred.keeps_request:
            self.charges.finish(exchange)

    def unpack(self, exchange: E) -> None:
        """Unpack a short body at once. Put a long one into `packed`."""
        steps = gunzip(exchange.head.request.body, self._service.limits.max_body_bytes)
        try:
            next(steps)
        except StopIteration as whole:
            self.unpacked(exchange, whole.value)
        except TopicsError as error:
            self.unpack_failed(exchange, error)
        else:
            exchange.unpacking = True
            self.packed.append((exchange, steps))

    def unpacked(self, exchange: E, body: bytes) -> None:
        exchange.unpacking = False
        exchange.head.request.body = body
        self.charges.park(exchange, len(body))

    def call(self, hook: Callable[..., Any], *arguments: Any) -> None:
        """Call into the application where no client waits for an answer. End the connection if that raises."""
        try:
            hook(*arguments)
        except Exception as error:
            log.failure("hook_failed", error, hook=getattr(hook, "__qualname__", ""))
            self._hook_failed()

    def never_sent(self, response: Response) -> None:
        """Report an answer as delivered: all of it was sent, or nothing of it is held any more."""
        if response.sent is not None:
            self.call(response.sent)


class ExchangeConnection(asyncio.Protocol, Generic[E]):
    __slots__ = ("_log", "_noted_ns", "_server", "closed", "exchanges", "transport")

    exchanges: Exchanges[E]
    transport: asyncio.Transport

    def __init__(self, server: Service) -> None:
        self._server = server
        self.closed = False
        self._log, self._noted_ns = server.request_log, server.request_log.noted_ns

    # --- hooks of subclasses

    def proceed(self) -> None: ...  # writes, and handles further requests: an answer or a body has come
    def note_memory(self) -> None: ...  # charges what this connection holds now. May end the connection's input
    def sweep(self, now: float) -> None: ...  # ends the connection if its client has not done in time what it had to
    def drain(self) -> None: ...  # finishes what has begun
    def close(self) -> None: ...

    def idle_since(self) -> float | None:
        """Return when the connection was found idle after its last request; None while it is not idle."""

    @property
    def served(self) -> int:
        return self.exchanges.served

    def unsent_bytes(self) -> int:
        """Return the bytes that were written and that the operating system has not taken."""
        return 0 if self.closed else self.transport.get_write_buffer_size()

    def pace(self, *, wanted: bool) -> None:
        """Read from the client only while there is room for what it sends."""
        if wanted is not self.transport.is_reading() and not self.transport.is_closing():
            if wanted:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def give_up_input(self, error: TopicsError) -> None:
        self.exchanges.give_up_input(error)
        self.note_memory()
        self.proceed()

    def abort(self) -> None:
        self.transport.abort()

    def handle(self, exchange: E) -> None:
        request = exchange.head.request
        self._log.begin(request)
        try:
            answer = self._server.handle(request)
        except Exception as error:
            answer = failure(request, error)
        self.take(exchange, answer)

    def take(self, exchange: E, answer: Answer) -> None:
        if REQUEST_ID in exchange.head.request.headers and not isinstance(answer, Deferred):
            answer = changed(answer, partial(with_request_id, exchange.head.request))
        if not isinstance(answer, Deferred):
            self._log.note(exchange.head.request, answer)
        if isinstance(answer, Response):
            if not self.exchanges.answer(exchange, answer):
                packing = asyncio.get_running_loop().run_in_executor(self._server.pool, gzip, answer.body)
                packing.add_done_callback(partial(self._compressed, exchange, answer))
        elif isinstance(answer, Deferred):
            self.exchanges.defer(exchange, answer)
            answer.then(partial(self.resolved, exchange))
        else:
            self.exchanges.grant(exchange, answer)

    def resolved(self, exchange: E, response: Response) -> None:
        if exchange.dropped:
            self.exchanges.never_sent(response)
        else:
            self.take(exchange, response)
        self.proceed()

    def _compressed(self, exchange: E, response: Response, done: asyncio.Future[bytes]) -> None:
        if done.cancelled() or exchange.dropped:
            self.exchanges.never_sent(response)
        else:
            self.exchanges.answer_compressed(exchange, response, done.result())
        self.proceed()

    def unpack_in_thread(self) -> None:
        """Have a thread unpack the bodies in `packed`."""
        packed, server = self.exchanges.packed, self._server
        # Bound: each round takes one body out of the list.
        while packed:
            exchange, steps = packed.pop(0)
            unpacking = asyncio.get_running_loop().run_in_executor(server.unpacker, self._unpack, exchange, steps)
            unpacking.add_done_callback(partial(self._unpacked, exchange))

    def _unpack(self, exchange: E, steps: Generator[int, None, bytes]) -> bytes | None:
        """Return the body, on a thread; None if no client waits any more. Raise `throttled` without memory for it.

        While the memory budget is full every body is refused, because it may grow a thousandfold.
        """
        budget, server = self._server.budget, self._server
        if budget.full:
            raise budget.error()
        try:
            # Bound: the steps of the body.
            while exchange.unpacking and not exchange.dropped:
                server.unpacking_bytes = next(steps)
                if budget.limit_bytes and budget.charged_bytes + server.unpacking_bytes > budget.limit_bytes:
                    raise budget.error()
            return None
        except StopIteration as whole:
            body: bytes = whole.value
            return body
        finally:
            server.unpacking_bytes = 0

    def _unpacked(self, exchange: E, done: asyncio.Future[bytes | None]) -> None:
        if exchange.unpacking and not exchange.dropped and not done.cancelled():
            if (error := done.exception()) is not None:
                self.exchanges.unpack_failed(exchange, error)
            elif (body := done.result()) is not None:
                self.exchanges.unpacked(exchange, body)
            self.proceed()
