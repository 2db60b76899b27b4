"""One socket with HTTP/2: the asyncio protocol that drives a `Http2Session`. One write for each turn of the loop."""

import asyncio

from h2.errors import ErrorCodes

from topics.errors import Code, TopicsError
from topics.server.http.exchange import ExchangeConnection, Service
from topics.server.http.http2.session import Http2Session
from topics.server.http.http2.stream import Http2Stream, Input
from topics.server.http.messages import Stream, error_response
from topics.server.limits.budget import ANSWERS, STREAMS

WRITE_BYTES = 256 << 10  # of answers that are written at once; the transport may pause after them


class Http2Connection(ExchangeConnection[Http2Stream]):
    def __init__(self, server: Service, transport: asyncio.Transport, peer: str) -> None:
        super().__init__(server)
        self.transport = transport
        self._loop = asyncio.get_running_loop()
        self.session = self.exchanges = Http2Session(server, peer, self._loop.time())
        self.high_water_bytes = server.limits.high_water_bytes
        self._turn: asyncio.Handle | None = None  # reads, answers and writes more
        self._pumping = False
        # For the deadlines: what the client has not read, and when that last changed.
        self._seen: object = None
        self._seen_at = self._loop.time()

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
        self.closed = True
        if self._turn is not None:
            self._turn.cancel()
        self.session.lose()
        self.note_memory()
        self._server.closed(self)

    def pause_writing(self) -> None:
        self.session.paused = True
        self.pace(wanted=self.session.wants_input)

    def resume_writing(self) -> None:
        self.session.paused = False
        self.proceed()

    def proceed(self) -> None:
        """Read, answer and write more in the next turn of the event loop."""
        if self._turn is None and not self.closed:
            self._turn = self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn = None
        self.session.input.begin_turn()
        self.pump()

    def pump(self) -> None:
        if self._pumping or self.closed:
            return
        self._pumping = True
        session = self.session
        try:
            # Bound: the share of the connection in one turn, see `Http2Session.next_request`.
            while (stream := session.next_request()) is not None:
                self.handle(stream)
            # Bound: each round opens an answer that was granted.
            while session.opened:
                stream = session.opened.pop(0)
                if isinstance(stream.answer, Stream):
                    session.call(stream.answer.opened, Http2Sink(self, self._server, stream))
                    if session.draining:
                        session.output.end(stream)
            if not session.paused or session.ended:
                data = session.fill(WRITE_BYTES)
                if data:
                    self.transport.write(data)
        finally:
            self._pumping = False
        self._follow()

    def _follow(self) -> None:
        session = self.session
        has_output = bool(session.output or session.goaway)
        if session.ended or (session.draining and not session.streams and not has_output):
            self.close()
            return
        if session.packed:
            self.unpack_in_thread()
        if session.needs_turn or (has_output and not session.paused) or session.opened:
            self.proceed()
        self.pace(wanted=self.session.wants_input)
        self.note_memory()

    def note_memory(self) -> None:
        session, charges = self.session, self.session.charges
        charges.note_input(self, session.input.unparsed_bytes)
        charges.note(ANSWERS, session.output.unsent[ANSWERS] + self.unsent_bytes())
        charges.note(STREAMS, session.output.unsent[STREAMS])

    def is_short_of_memory(self, stream: Http2Stream) -> bool:
        """Return whether the client has not taken what it was sent, while the budget is full."""
        return self._server.budget.full and bool(stream.unsent_bytes or self.unsent_bytes())

    def sweep(self, now: float) -> None:
        limits, session = self._server.limits, self.session
        unsent_bytes = self.transport.get_write_buffer_size()
        seen: object = unsent_bytes or (session.served, bool(session.streams))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        quiet_ms = (now - self._seen_at) * 1000
        if unsent_bytes:
            if quiet_ms > (limits.linger_timeout_ms if session.ended else limits.write_timeout_ms):
                self.transport.abort()
            return
        if not session.streams and quiet_ms > limits.idle_timeout_ms:
            session.drain()
        if self._time_out(now) or session.draining:
            self.proceed()

    def _time_out(self, now: float) -> bool:
        """End what the client has not done in time: send the rest of a frame or of a body, or take an answer.

        Return whether anything was ended. A stream that is open and has nothing to send waits for nothing. One that is
        full has a deadline of its own.
        """
        session, limits, ended = self.session, self._server.limits, False
        since = session.input.waits_since(now)
        if since is not None and not session.paused and (now - since) * 1000 > limits.header_timeout_ms:
            session.fail(ErrorCodes.PROTOCOL_ERROR)
            ended = True
        for number, answered_at in list(session.unwanted.items()):
            if (now - answered_at) * 1000 > limits.linger_timeout_ms:
                session.stop_body(number)
                ended = True
        for stream in list(session.streams.values()):
            if stream.input is Input.COMING:
                if (now - stream.begun_at) * 1000 > limits.body_timeout_ms:
                    error = TopicsError(Code.REQUEST_TIMEOUT, "the request did not arrive completely in time")
                    session.refuse(stream, error_response(error))
                    ended = True
            elif stream.unsent_bytes != stream.seen or not stream.ends:
                stream.seen, stream.seen_at = stream.unsent_bytes, now
            else:
                timeout_ms = limits.linger_timeout_ms if stream.given_up else limits.write_timeout_ms
                if (now - stream.seen_at) * 1000 > timeout_ms:
                    session.reset(stream, ErrorCodes.CANCEL)
                    ended = True
        return ended

    def idle_since(self) -> float | None:
        session = self.session
        if session.streams or self._seen != (session.served, False) or self.unsent_bytes():
            return None
        return self._seen_at

    def drain(self) -> None:
        self.session.drain()
        for stream in list(self.session.streams.values()):
            if stream.is_live:
                self.session.output.end(stream)
        self.proceed()

    def close(self) -> None:
        if not self.closed:
            if not self.session.draining and not self.session.ended:
                self.session.drain()
                self.transport.write(self.session.fill(0))
            self.transport.close()


class Http2Sink:
    __slots__ = ("_connection", "_high_water_bytes", "_server", "_stream", "held")

    def __init__(self, connection: Http2Connection, server: Service, stream: Http2Stream) -> None:
        self._connection = connection
        self._server = server
        self._stream = stream
        own_bytes = stream.answer.high_water_bytes if isinstance(stream.answer, Stream) else None
        self._high_water_bytes = own_bytes or connection.high_water_bytes
        self.held = False

    def write(self, data: bytes) -> bool:
        connection, stream = self._connection, self._stream
        short = connection.is_short_of_memory(stream)
        if not stream.dropped and not stream.ends:
            connection.session.output.queue(stream, data)
            stream.full = stream.full or stream.unsent_bytes > self._high_water_bytes
        connection.proceed()
        if stream.dropped or stream.ends or stream.full:
            return False
        if short:
            self._server.block(self.unblock)
        return not short

    def close(self) -> None:
        self._connection.session.output.end(self._stream)
        self._connection.proceed()

    def give_up(self) -> None:
        self._stream.given_up = True

    def hold(self, held: bool, /) -> None:
        """Do nothing: an answer without end reads nothing from the client."""
        self.held = held

    def unblock(self) -> bool:
        stream, connection = self._stream, self._connection
        if stream.ends or stream.full or not isinstance(stream.answer, Stream):
            return True
        if connection.is_short_of_memory(stream):
            return False
        connection.session.call(stream.answer.drained)
        return True
