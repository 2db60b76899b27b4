"""One socket that speaks HTTP/2: the asyncio protocol that drives a `Http2Session`.

`http/server.py` hands the transport over after the preface. Everything that a turn of the event loop has
for the client goes out with one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from h2.errors import ErrorCodes

from topics.errors import TopicsError
from topics.server.http.answers import failure, gzip
from topics.server.http.http2.deadlines import time_out
from topics.server.http.http2.session import Http2Session
from topics.server.http.http2.stream import Http2Stream
from topics.server.http.messages import Answer, Deferred, Response
from topics.server.http.request.gunzip import Gunzip

if TYPE_CHECKING:
    from topics.server.http.service import ConnectionService

WRITE_BYTES = 256 << 10  # of answers that are written at once; the transport may pause after them
T = TypeVar("T")


class Http2Connection(asyncio.Protocol):
    """The protocol object of one socket, after the preface."""

    def __init__(self, server: ConnectionService, transport: asyncio.Transport, peer: str) -> None:
        self._server = server
        self._log = server.request_log
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self.session = Http2Session(server, peer, self._loop.time())
        self.high_water_bytes = server.limits.high_water_bytes
        self._turn: asyncio.Handle | None = None  # reads, answers and writes more
        self._pumping = False
        self._closed = False
        # For the deadlines: what the client has not read, and when that last changed.
        self._seen: object = None
        self._seen_at = self._loop.time()

    @property
    def served(self) -> int:
        """Requests whose head was understood."""
        return self.session.served

    # --- the transport

    def data_received(self, data: bytes) -> None:
        session = self.session
        session.receive(data, self._loop.time())
        if self._turn is None:
            session.input.begin_turn()
            self.pump()

    def eof_received(self) -> bool:
        """Close: HTTP/2 has no use for a connection that is shut on one side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        if self._turn is not None:
            self._turn.cancel()
        self.session.lose()
        self._server.closed(self)

    def pause_writing(self) -> None:
        self.session.paused = True
        self._pace_reading()

    def resume_writing(self) -> None:
        self.session.paused = False
        self.wake()

    # --- work

    def wake(self) -> None:
        """Read, answer and write more in the next turn of the event loop."""
        if self._turn is None and not self._closed:
            self._turn = self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn = None
        self.session.input.begin_turn()
        self.pump()

    def pump(self) -> None:
        """Handle the requests that have come, and write what there is for the client."""
        if self._pumping or self._closed:
            return
        self._pumping = True
        session = self.session
        try:
            # Bound: the share of the connection in one turn, see `Http2Session.next_request`.
            while (stream := session.next_request()) is not None:
                self._handle(stream)
            self._open_streams()
            self._write()
        finally:
            self._pumping = False
        self._follow()

    def _handle(self, stream: Http2Stream) -> None:
        request = stream.head.request
        if self._log.noted_ns:
            self._log.begin(request)
        try:
            answer: Answer = self._server.handle(request)
        except Exception as error:
            answer = failure(request, error)
        self._take(stream, answer)

    def _take(self, stream: Http2Stream, answer: Answer) -> None:
        """Pass the application's answer to the session, now or when it is there."""
        if self._log.noted_ns and not isinstance(answer, Deferred):
            self._log.note(stream.head.request, answer)
        if isinstance(answer, Response):
            if not self.session.answer(stream, answer):
                self._run_in_thread(partial(gzip, answer.body), partial(self._compressed, stream, answer))
        elif isinstance(answer, Deferred):
            self.session.defer(stream, answer)
            answer.then(partial(self._resolved, stream))
        else:
            self.session.grant(stream, answer)

    def _resolved(self, stream: Http2Stream, response: Response) -> None:
        self._take(stream, response)
        self.wake()

    def _compressed(self, stream: Http2Stream, response: Response, done: asyncio.Future[bytes]) -> None:
        if done.cancelled() or stream.over:
            self.session.never_sent(response)
        else:
            self.session.answer_compressed(stream, response, done.result())
        self.wake()

    def _open_streams(self) -> None:
        session = self.session
        # Bound: each round opens an answer that was granted.
        while session.opened:
            stream = session.opened.pop(0)
            if stream.answer is not None and not stream.over:
                session.call(stream.answer.opened, Http2Sink(self, stream))
                if session.draining:
                    session.end_stream(stream)

    def _write(self) -> None:
        """Write what there is for the client: at most `WRITE_BYTES` of answers, and nothing while it reads nothing."""
        session = self.session
        if not session.paused or session.ended:
            data = session.fill(WRITE_BYTES)
            if data:
                self._transport.write(data)

    def _follow(self) -> None:
        """See to what is left: unpack bodies, begin the next turn, close, read on or stop reading."""
        session = self.session
        if session.ended or (session.is_drained and not session.has_output):
            self.close()
            return
        for stream, gunzip in session.packed:
            self._server.unpacking_slots.begin(partial(self._unpack, stream, gunzip))
        session.packed.clear()
        if session.needs_turn or (session.has_output and not session.paused) or session.opened:
            self.wake()
        self._pace_reading()
        self._note_memory()

    def _pace_reading(self) -> None:
        """Read from the client only while there is room for what it sends."""
        wanted, transport = self.session.wants_input, self._transport
        if wanted is transport.is_reading() or transport.is_closing():
            return
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # --- gzip bodies, as in `gzip_threads.py`

    def _unpack(self, stream: Http2Stream, gunzip: Gunzip) -> bool:
        """Begin to unpack a body in a thread; return False if the request was dropped, or has to be refused."""
        if stream.over or not stream.unpacking:
            return False
        if self._server.budget.full:
            self.session.unpack_failed(stream, self._server.budget.error())
            self.wake()
            return False
        self._run_in_thread(gunzip.advance, partial(self._advanced, stream, gunzip))
        return True

    def _advanced(self, stream: Http2Stream, gunzip: Gunzip, done: asyncio.Future[bytes | None]) -> None:
        error = None if done.cancelled() else done.exception()
        body = None if done.cancelled() or error is not None else done.result()
        if body is None and error is None and not stream.over and stream.unpacking and not done.cancelled():
            self.session.charges.unpacking(stream, gunzip.size_bytes)
            self._note_memory()
            self._run_in_thread(gunzip.advance, partial(self._advanced, stream, gunzip))
            return
        self._server.unpacking_slots.end()
        if not stream.over and stream.unpacking:
            if body is not None:
                self.session.unpacked(stream, body)
            elif error is not None:
                self.session.unpack_failed(stream, error)
            self.wake()

    def _run_in_thread(self, work: Callable[[], T], then: Callable[[asyncio.Future[T]], None]) -> None:
        self._loop.run_in_executor(self._server.pool, work).add_done_callback(then)

    # --- memory

    def unsent_bytes(self) -> int:
        """Return the bytes that were written and that the operating system has not taken."""
        return 0 if self._closed else self._transport.get_write_buffer_size()

    def _note_memory(self) -> None:
        if not self._closed:
            self.session.charges.note(self, self.session.input.unparsed_bytes, self.unsent_bytes())

    def give_up_input(self, error: TopicsError) -> None:
        """Refuse the requests that are still being received: the memory budget is exhausted."""
        self.session.give_up_input(error)
        self._note_memory()
        self.wake()

    def is_short_of_memory(self, stream: Http2Stream) -> bool:
        """Return whether the client has not taken what it was sent, while the budget is full."""
        return self._server.budget.full and bool(stream.unsent_bytes or self.unsent_bytes())

    def block(self, sink: Http2Sink) -> None:
        """Have `sink.unblock` called when the memory budget may have room again."""
        self._server.block(sink)

    # --- for the server

    def sweep(self, now: float) -> None:
        """End what the client has not done in time: the connection, or single streams."""
        limits, session = self._server.limits, self.session
        unsent_bytes = self._transport.get_write_buffer_size()
        seen: object = unsent_bytes or (session.served, bool(session.streams))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        quiet_ms = (now - self._seen_at) * 1000
        if unsent_bytes:
            if quiet_ms > (limits.linger_timeout_ms if session.ended else limits.write_timeout_ms):
                self._transport.abort()
            return
        if not session.streams and quiet_ms > limits.idle_timeout_ms:
            session.drain()
        if time_out(session, limits, now) or session.draining:
            self.wake()

    def idle_since(self) -> float | None:
        """Return when the connection was found idle after its last request; None while it is not idle."""
        session = self.session
        if session.streams or self._seen != (session.served, False) or self.unsent_bytes():
            return None
        return self._seen_at

    def refuse(self, error: TopicsError) -> None:
        """End a connection that has no room."""
        self.session.fail(ErrorCodes.ENHANCE_YOUR_CALM)
        self.pump()

    def drain(self) -> None:
        """Finish what has begun, then close."""
        self.session.drain()
        for stream in list(self.session.streams.values()):
            if stream.is_live:
                self.session.end_stream(stream)
        self.wake()

    def close(self) -> None:
        """Close once everything written has left."""
        if not self._closed:
            if not self.session.draining and not self.session.ended:
                self.session.drain()
                self._transport.write(self.session.fill(0))
            self._transport.close()

    def abort(self) -> None:
        """Reset the connection."""
        self._transport.abort()


class Http2Sink:
    """The `Sink` of one stream of a connection."""

    __slots__ = ("_connection", "_high_water_bytes", "_stream", "held")

    def __init__(self, connection: Http2Connection, stream: Http2Stream) -> None:
        self._connection = connection
        self._stream = stream
        answer = stream.answer
        default_bytes = connection.high_water_bytes
        self._high_water_bytes = (answer.high_water_bytes if answer is not None else None) or default_bytes
        self.held = False

    def write(self, data: bytes) -> bool:
        connection = self._connection
        short = connection.is_short_of_memory(self._stream)
        room = connection.session.write(self._stream, data, self._high_water_bytes)
        connection.wake()
        if room and short:
            connection.block(self)
            return False
        return room

    def close(self) -> None:
        self._connection.session.end_stream(self._stream)
        self._connection.wake()

    def give_up(self) -> None:
        self._stream.given_up = True

    def buffered(self) -> int:
        return self._stream.unsent_bytes

    def hold(self, held: bool, /) -> None:
        """Do nothing: an answer without end reads nothing from the client."""
        self.held = held

    def unblock(self) -> bool:
        """Let an answer go on that was short of memory; return False if it still is."""
        stream, connection = self._stream, self._connection
        if stream.over or stream.ends or stream.full or stream.answer is None:
            return True
        if connection.is_short_of_memory(stream):
            return False
        connection.session.call(stream.answer.drained)
        return True
