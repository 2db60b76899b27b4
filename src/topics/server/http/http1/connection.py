"""One socket: the asyncio protocol that drives a `Pipeline`, and what a stream writes to.

`data_received` answers the common case by itself (the fast path): one whole request in one read, with a head that was
seen before, answered at once. The pipeline does everything else.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from topics.errors import TopicsError
from topics.server.http.answers import MIN_GZIP_BYTES, VARY, compressible, failure
from topics.server.http.exchange import PREFACE, Exchange, ExchangeConnection, Service
from topics.server.http.http1 import pipeline as states
from topics.server.http.http1.pipeline import AWAITING, CLOSED, IDLE, STREAMING, Pipeline, Wait
from topics.server.http.messages import JSON, Deferred, Request, Response, Upgrade, body_bytes
from topics.server.http.request.head import Known
from topics.server.limits.budget import BODIES, SMALL_BYTES

# Below it one joined write is cheaper than passing two buffers; above it the copy costs more. Measured on uvloop,
# µs an answer, joined and in two buffers: 8 KiB 6.4, 6.8; 32 KiB 7.9, 6.7; 100 kB 12.8, 11.2. Two writes always lose.
JOIN_BYTES = 16 * 1024
MAX_OWN, MAX_OWN_BYTES = 4, 1024  # heads with credentials: up to 10 KiB, which the flat charge of a connection covers
_perf_counter_ns = time.perf_counter_ns


class Connection(ExchangeConnection[Exchange]):
    __slots__ = (
        "_answer", "_entered", "_known", "_late", "_own", "_prefixes", "_pumping", "_seen", "_seen_at", "_sink",
        "_turn", "_usual", "_written_bytes", "opening", "peer", "pipeline",
    )  # fmt: skip

    pipeline: Pipeline

    def __init__(self, server: Service) -> None:
        super().__init__(server)
        self._answer = server.answer
        self._prefixes, self._usual = server.answers.prefixes, server.answers.usual
        self._known = server.heads.known
        self._own: dict[bytes, Known] = {}  # the last heads with credentials
        self._written_bytes = 0  # written while the transport was above its high-water mark
        self.opening: bytes | None = b""  # what may be a preface of HTTP/2; None once it is HTTP/1.1
        self.peer = ""
        # The deferred answer to a request of the fast path, the request, and whether the answer may be gzipped; set
        # in state AWAITING alone.
        self._late: tuple[Deferred, Request, bool] | None = None
        self._pumping, self._entered = False, IDLE  # the last state whose entry `follow` has acted on
        self._turn: asyncio.Handle | None = None  # begins the next turn of the pipeline
        self._sink: StreamSink | None = None
        # For the deadlines: a value that changes whenever the client does something, and when it last changed.
        self._seen, self._seen_at = cast(object, None), 0.0

    # --- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else ""
        self.pipeline = self.exchanges = Pipeline(self._server, self.peer)
        self.transport.set_write_buffer_limits(self._server.limits.high_water_bytes)
        self._seen_at = asyncio.get_running_loop().time()
        self._server.opened(self)
        if self._server.draining:
            self.drain()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._adopt_late()
        self.pipeline.lose()
        self._sink = None
        self._written_bytes = 0
        self.note_memory()
        self._server.closed(self)

    def eof_received(self) -> bool:
        """Return whether our side stays open: a client may shut its side after it has asked, and gets its answers."""
        self._adopt_late()
        stays_open = self.pipeline.receive_eof()
        if self.pipeline.state is states.ABORTED:
            self.transport.abort()
        return stays_open

    def pause_writing(self) -> None:
        pipeline = self.pipeline
        pipeline.paused = True
        self._adopt_late()
        if pipeline.state is IDLE:
            pipeline.change(states.WORK)
        self.note_output()
        if pipeline.stream is not None:
            self.pace_reading()

    def resume_writing(self) -> None:
        pipeline = self.pipeline
        pipeline.paused = False
        self._written_bytes = 0
        self._report_sent()
        if pipeline.stream is None:
            self.proceed()
            return
        self.note_output()
        self.guard(pipeline.stream.drained)
        self.pace_reading()

    # --- the fast path

    def data_received(self, data: bytes) -> None:
        """Answer a request that comes whole and whose head was seen before; leave everything else to the pipeline.

        One long function, because a call costs as much as a line of it, and there are 80,000 requests a second.
        """
        pipeline = self.pipeline
        if pipeline.state is not IDLE:
            self._receive(data)
            return
        head, blank, body = data.partition(b"\r\n\r\n")
        known = self._known.get(head) or self._own.get(head) or self._compose(head)
        if known is None or not blank or len(body) != known[4]:
            self._receive(data)
            return
        method, path, query, headers, _, may_gzip, memo = known
        pipeline.served += 1
        request = Request(method, path, query, headers, body, self.peer, _perf_counter_ns(), memo=memo)
        try:
            answer = self._answer(request)
        except Exception as error:
            answer = failure(request, error)
        if type(answer) is Response:
            if self._write_plain(answer, may_gzip):
                took_ns = _perf_counter_ns() - request.started_ns
                counts = request.timings[answer.status]
                counts[0] += took_ns
                counts[took_ns.bit_length()] += 1
                if took_ns > self._noted_ns:
                    self._log.log(request, answer)
                return
        elif isinstance(answer, Deferred):
            pipeline.state = AWAITING  # as the table has it for DEFER, without the call
            self._late = (answer, request, may_gzip)
            answer.then(self._late_answered)
            if len(body) > SMALL_BYTES and answer.keeps_request:
                self._adopt_late()  # the queue charges its body to the memory budget
                self.note_memory()
            return
        self.take(pipeline.adopt(request, may_gzip=may_gzip), answer)
        self.proceed()

    def _compose(self, head: bytes) -> Known | None:
        """Return a head that is made of known parts. One with a credential is remembered on this connection alone."""
        known = self._server.heads.compose(head)
        if known is not None and known[6] is not None and len(head) <= MAX_OWN_BYTES:
            if len(self._own) >= MAX_OWN:
                self._own.clear()
            self._own[head] = known
        return known

    def _late_answered(self, response: Response) -> None:
        late, self._late = self._late, None
        assert late is not None
        pipeline = self.pipeline
        pipeline.state = IDLE  # as the table has it for ANSWER, without the call
        request = late[1]
        if not self._write_plain(response, late[2]):
            self.take(pipeline.adopt(request, may_gzip=late[2]), response)
            self.proceed()
            return
        took_ns = _perf_counter_ns() - request.started_ns
        spent_ns = took_ns - request.waited_ns
        counts = request.timings[response.status]
        counts[0] += spent_ns
        counts[spent_ns.bit_length()] += 1
        if took_ns > self._noted_ns:
            self._log.log(request, response)

    def _write_plain(self, answer: Response, may_gzip: bool) -> bool:
        """Write an answer that needs no more than the usual head; return False if this one does."""
        body = answer.body
        size = len(body) if type(body) is bytes else body_bytes(body)
        usual = size < MIN_GZIP_BYTES and answer.status == 200 and answer.content_type is JSON and answer.sent is None
        if usual and not answer.headers and type(body) is bytes and (head := self._usual.get(size)) is not None:
            self.transport.write(head + body)
            return True
        prefix = self._prefixes.get((answer.status, answer.content_type))
        if prefix is None or answer.headers:
            return False
        if usual:
            self._usual[size] = b"%b%d\r\n\r\n" % (prefix, size)
        packs = size >= MIN_GZIP_BYTES and compressible(answer.content_type)
        if packs and may_gzip:
            return False
        start = b"%b%d\r\n%b\r\n" % (prefix, size, VARY if packs else b"")
        parts = [start, body] if isinstance(body, bytes) else [start, *body]
        if size > JOIN_BYTES:
            self.transport.writelines(parts)
            if self.pipeline.paused:
                self.note_written(size)
        else:
            self.transport.write(b"".join(parts))
        if answer.sent is not None:
            self.pipeline.output.sent_hooks.append(answer.sent)
            if not self.pipeline.paused:
                self._report_sent()
        return True

    def _adopt_late(self) -> None:
        """Pass the request that waits for a deferred answer to the pipeline: something else happens."""
        late, self._late = self._late, None
        if late is not None:
            deferred, request, may_gzip = late
            exchange = self.pipeline.adopt(request, may_gzip=may_gzip, deferred=deferred)
            deferred.then(partial(self.resolved, exchange))

    # --- the pipeline

    def _receive(self, data: bytes) -> None:
        if self._late is not None:
            self._adopt_late()
        stream = self.pipeline.stream
        if stream is None:
            if self.opening is not None:  # it may be the preface of HTTP/2
                before, data = len(self.opening), self.opening + data
                if not self.served and PREFACE.startswith(data[: len(PREFACE)]):
                    self.opening = data
                    if len(data) >= len(PREFACE) > before:
                        self._server.begin_http2(self)
                    return
                self.opening = None
            self.pipeline.receive(data)
            self.proceed()
        elif isinstance(stream, Upgrade) and self.pipeline.state is STREAMING:
            self.guard(stream.received, data)

    def proceed(self) -> None:
        """Handle the requests that the pipeline has, write its output, and do what its state asks for."""
        if self._pumping or self.pipeline.state is CLOSED:
            return
        self._pumping = True
        pipeline, full_bytes = self.pipeline, self._server.limits.high_water_bytes
        try:
            # Bound: the received requests. A round handles one, or writes the output and ends unless that was full.
            while True:
                exchange = pipeline.next_request()
                if exchange is not None:
                    self.handle(exchange)
                else:
                    was_full = pipeline.output.size_bytes > full_bytes
                    self._write_output()
                    if not was_full:
                        break
        finally:
            self._pumping = False
        self.follow()

    def _write_output(self) -> None:
        pipeline = self.pipeline
        output = pipeline.output
        parts, size_bytes = output.parts, output.size_bytes
        output.parts, output.size_bytes = [], 0
        if parts and pipeline.state is not CLOSED:
            if size_bytes <= JOIN_BYTES:
                self.transport.write(b"".join(parts))
            else:
                self.transport.writelines(parts)
                if pipeline.paused:
                    self.note_written(size_bytes)
        if output.sent_hooks and not pipeline.paused:
            self._report_sent()

    def follow(self) -> None:
        """Do what the pipeline asks for after its output is written: each state's part once, when it is entered."""
        pipeline = self.pipeline
        pipeline.rest()
        state = pipeline.state
        if state is not self._entered:
            self._entered = state
            if state is STREAMING:
                self._open_stream()
            elif state is states.CLOSING:
                self.transport.close()
            elif state is states.LINGERING:
                # Send the end of the answers and read on. TLS has no half-closed connections: its close does the same.
                if self.transport.can_write_eof():
                    self.transport.write_eof()
                else:
                    self.transport.close()
            elif state is states.ABORTED:
                self.transport.abort()
        if pipeline.packed:
            self.unpack_in_thread()
        if self._turn is None and pipeline.needs_turn:
            self._turn = asyncio.get_running_loop().call_soon(self._next_turn)
        if state is not IDLE or not self.transport.is_reading():
            self.pace_reading()
        charged = pipeline.charges.charged
        # An idle connection holds no input, so there is nothing to note if it did not before.
        if state is not IDLE or charged[BODIES] or charged[pipeline.account] or self.transport.get_write_buffer_size():
            self.note_memory()

    def _next_turn(self) -> None:
        self._turn = None
        self.pipeline.intake.begin_turn()
        if self.pipeline.state is not IDLE:
            self.proceed()

    def _open_stream(self) -> None:
        stream = self.pipeline.stream
        assert stream is not None
        self._sink = StreamSink(self, self._server)
        if stream.high_water_bytes is not None:
            self.transport.set_write_buffer_limits(stream.high_water_bytes)
        self.guard(stream.opened, self._sink)
        if self.pipeline.ending is states.DRAIN:
            self._sink.close()
        elif isinstance(stream, Upgrade):
            asyncio.get_running_loop().call_soon(self._sink.hand_over)

    # --- for streams

    def pace_reading(self) -> None:
        pipeline, wanted = self.pipeline, self.pipeline.wants_input
        owned = pipeline.state is STREAMING and isinstance(pipeline.stream, Upgrade)
        if owned and (pipeline.paused or (self._sink is not None and self._sink.held)):
            wanted = False  # the protocol has enough input, or there is no room for what it would answer
        if pipeline.state is not CLOSED and pipeline.ending is not states.EOF:  # else it cannot be read any more
            self.pace(wanted=wanted)

    def guard(self, hook: Callable[..., None], *arguments: Any) -> None:
        """Call into the application where no client waits for an answer. Abort the connection if that raises."""
        self.pipeline.call(hook, *arguments)
        if self.pipeline.state is states.ABORTED:
            self.transport.abort()

    def _report_sent(self) -> None:
        """Report answers as delivered: the system has taken all but a little of them."""
        for hook in self.pipeline.output.take_sent_hooks():
            self.guard(hook)

    # --- memory

    def note_memory(self) -> None:
        self.note_output()
        self.pipeline.charges.note_input(self, self.pipeline.intake.held_bytes)

    def note_output(self) -> None:
        """Charge for answers that the client has not taken: those still queued, and those in the transport."""
        pipeline = self.pipeline
        held_bytes = pipeline.held_bytes + max(self._written_bytes, self.unsent_bytes())
        pipeline.charges.note(pipeline.account, held_bytes if held_bytes > SMALL_BYTES else 0)

    def note_written(self, size_bytes: int) -> None:
        """Count bytes that the transport could not pass on at once. It keeps a write until its last byte has left."""
        self._written_bytes += size_bytes
        self.note_output()

    # --- for the server

    def sweep(self, now: float) -> None:
        pipeline = self.pipeline
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes or pipeline.charges.charged[pipeline.account]:
            self.note_output()
        deadline = pipeline.deadline(unsent_bytes)
        if deadline is None:
            self._seen = None
            return
        wait, limit_ms = deadline
        seen = unsent_bytes if wait is Wait.READ else (wait, self.served)
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
            return
        self._own.clear()
        if (now - self._seen_at) * 1000 > limit_ms:
            self._adopt_late()
            pipeline.time_out(wait)
            self.proceed()

    def idle_since(self) -> float | None:
        if self.pipeline.state is not IDLE or self._seen != (Wait.BEGIN, self.served) or self.unsent_bytes():
            return None
        return self._seen_at

    def refuse(self, error: TopicsError) -> None:
        self.pipeline.refuse(error)
        self.proceed()

    def drain(self) -> None:
        self._adopt_late()
        self.pipeline.drain()
        if self._sink is not None:
            self._sink.close()
        else:
            self.follow()

    def close(self) -> None:
        self.pipeline.change(states.CLOSE)
        self.transport.close()


class StreamSink:
    """The `Sink` of one connection, while a stream, or the protocol of an upgrade, owns it."""

    __slots__ = ("_connection", "_pipeline", "_server", "_transport", "held")

    def __init__(self, connection: Connection, server: Service) -> None:
        self._connection = connection
        self._pipeline = connection.pipeline
        self._transport = connection.transport
        self._server = server
        self.held = False

    def write(self, data: bytes) -> bool:
        pipeline = self._pipeline
        if pipeline.state is not STREAMING:
            return False
        # The client has not taken what it was sent, while the budget is full: `unblock` follows.
        short = self._server.budget.full and not pipeline.paused and self._connection.unsent_bytes() > 0
        if short:
            self._server.block(self.unblock)
        self._transport.write(data)
        if pipeline.paused:
            self._connection.note_written(len(data))
            return False
        return not short

    def close(self) -> None:
        pipeline, connection = self._pipeline, self._connection
        if pipeline.state is not STREAMING:
            return
        if isinstance(pipeline.stream, Upgrade) and pipeline.ending is not states.EOF:
            # The client may still send. A close with unread input resets the connection: its last message is lost.
            pipeline.change(states.SHUT)
            connection.follow()
        else:
            connection.close()

    def hand_over(self) -> None:
        """Pass the input that came right behind the request for an upgrade to its protocol."""
        pipeline, connection = self._pipeline, self._connection
        data = pipeline.intake.take_rest()
        if data and isinstance(pipeline.stream, Upgrade):
            connection.guard(pipeline.stream.received, data)
        connection.pace_reading()
        connection.note_memory()

    def give_up(self) -> None:
        self._pipeline.close_timeout_ms = self._server.limits.linger_timeout_ms

    def hold(self, held: bool, /) -> None:
        self.held = held
        self._connection.pace_reading()

    def unblock(self) -> bool:
        """Let a stream go on that was short of memory; return False if it still is."""
        pipeline = self._pipeline
        if pipeline.state is not STREAMING or pipeline.paused:
            return True  # it has ended, or the connection calls `drained` when it may write again
        if self._server.budget.full and self._connection.unsent_bytes():
            return False
        if pipeline.stream is not None:
            self._connection.guard(pipeline.stream.drained)
        return True
