"""The HTTP server: accepts connections as long as it has room, enforces their deadlines, and drains them at the end.

The event loop's own server accepts every connection of the backlog in one turn, and reports one with TLS only after its
handshake. Until then such connections would be in no limit, and a flood of them could take the descriptors of files. So
an `Acceptor` accepts, and a connection counts, and is charged, from then on.
"""

import asyncio
import contextlib
import heapq
import socket
import ssl
from functools import partial
from typing import Any

from topics import logs
from topics.server.http.exchange import ExchangeConnection, Service
from topics.server.http.http1.connection import Connection
from topics.server.http.http_limits import HttpLimits
from topics.server.http.messages import App
from topics.server.http.request_log import RequestLog
from topics.server.http.tls import Certificate, TlsTransport
from topics.server.limits.budget import CONNECTIONS, MemoryBudget, throttled
from topics.server.limits.loop_holds import Cause, LoopHolds

log = logs.Log("http")

_SHED_SHARE = 32  # one in 32 connections is shed at a time, because finding idle ones takes a look at all
_SHED_AFTER_S = 1.0  # a younger connection is not shed: its first request may be on the way
_HANDSHAKE_S = 0.25  # without room for another connection, TLS handshakes that take longer are cut off
_LOOK_AGAIN_S = 0.25  # pause after a search that found no idle connection
_SWEPT_AT_ONCE = 500  # connections whose deadlines are checked in one turn; each takes about 2 µs
CUT_OFF_S = 5  # how long a drain waits for aborted connections to be reported as lost

AnyConnection = ExchangeConnection[Any]


class HttpServer(Service):
    def __init__(
        self,
        app: App,
        limits: HttpLimits | None = None,
        *,
        budget: MemoryBudget | None = None,
        request_log: RequestLog | None = None,
        holds: LoopHolds | None = None,
    ) -> None:
        super().__init__(app, limits, budget, request_log)
        self._holds = holds or LoopHolds()
        self.connections: set[AnyConnection] = set()
        # Accepted connections that are not in `connections` yet, oldest first, with the time; and those of them that
        # shake hands for TLS. Without TLS, the next turn opens the connection.
        self._opening: dict[AnyConnection, float] = {}
        self._handshakes: dict[AnyConnection, TlsTransport] = {}
        self.shed_total = 0  # idle connections that were closed to make room
        self.refused_total = 0  # connections that were refused because there was no room
        self._refused: dict[AnyConnection, None] = {}  # refused connections that are still open, oldest first
        self._look_at = 0.0  # when the next search for idle connections may begin
        self._closed_requests = 0
        self._sweeping: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None

    @property
    def requests_total(self) -> int:
        """Requests whose head was understood. Each connection counts its own: the fast path touches only one object."""
        return self._closed_requests + sum(connection.served for connection in self.connections)

    def has_room(self) -> bool:
        """Return whether another socket may be open: a connection, one that is refused, or one that shakes hands."""
        most = self.limits.max_connections
        return not most or len(self.connections) + len(self._opening) < most + self.limits.max_refused

    def make_room(self) -> bool:
        """Abort handshakes that take long, or else the oldest refused connection. Return whether there was any."""
        before = asyncio.get_running_loop().time() - _HANDSHAKE_S
        slow = [handshake for connection, handshake in self._handshakes.items() if self._opening[connection] < before]
        for handshake in slow:
            handshake.abort()
        self.refused_total += len(slow)
        if not slow and self._refused:
            next(iter(self._refused)).abort()
        return bool(slow or self._refused)

    def accept(self, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        connection = Connection(self)
        protocol: asyncio.Protocol = connection
        if tls is not None:
            handshake_s = self.limits.header_timeout_ms / 1000
            lost = partial(self._forget, connection)
            protocol = TlsTransport(connection, tls, handshake_s=handshake_s, lost=lost)
            self._handshakes[connection] = protocol
        self._opening[connection] = loop.time()
        self.budget.charge(CONNECTIONS, self.limits.connection_bytes)
        opening = loop.create_task(loop.connect_accepted_socket(lambda: protocol, sock))
        opening.add_done_callback(partial(self._accepted, connection))

    def _accepted(self, connection: AnyConnection, opening: asyncio.Task[Any]) -> None:
        if not opening.cancelled() and (error := opening.exception()) is not None:
            log.failure("cannot_accept", error)
            self._forget(connection)

    def _forget(self, connection: AnyConnection) -> None:
        """Uncount a connection that was not opened."""
        self._handshakes.pop(connection, None)
        if self._opening.pop(connection, None) is not None:
            self.budget.charge(CONNECTIONS, -self.limits.connection_bytes)

    def opened(self, connection: Connection) -> None:
        """Count a new connection. Shed idle ones if there are too many, or refuse it if none is idle."""
        self.connections.add(connection)
        self._handshakes.pop(connection, None)
        if self._opening.pop(connection, None) is None:
            self.budget.charge(CONNECTIONS, self.limits.connection_bytes)
        if self._sweeping is None:
            self._sweep()
        most = self.limits.max_connections
        if most and len(self.connections) - len(self._refused) > most and not self._shed_idle():
            self.refused_total += 1
            if len(self._refused) >= self.limits.max_refused:
                next(iter(self._refused)).abort()
            self._refused[connection] = None
            connection.refuse(throttled("max_connections", most))

    def begin_http2(self, connection: Connection) -> None:
        """Hand a connection over to HTTP/2."""
        from topics.server.http.http2.connection import Http2Connection  # takes 35 ms, the first time

        transport = connection.transport
        http2 = Http2Connection(self, transport, connection.peer)
        self.connections.discard(connection)
        self.connections.add(http2)
        transport.set_protocol(http2)
        http2.data_received(connection.opening or b"")
        if self.draining:
            http2.drain()

    def _shed_idle(self) -> bool:
        """Close the connections that have been idle longest; return whether there were any."""
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            return False
        idle = [
            (since, id(connection), connection)
            for connection in self.connections
            if (since := connection.idle_since()) is not None and now - since >= _SHED_AFTER_S
        ]
        for _, _, connection in heapq.nsmallest(1 + self.limits.max_connections // _SHED_SHARE, idle):
            connection.close()
            self.shed_total += 1
        if not idle:
            self._look_at = now + _LOOK_AGAIN_S
        return bool(idle)

    def closed(self, connection: AnyConnection) -> None:
        self.connections.discard(connection)
        self.budget.charge(CONNECTIONS, -self.limits.connection_bytes)
        self._refused.pop(connection, None)
        self._closed_requests += connection.served
        if not self.connections and self._emptied is not None:
            self._emptied.set()

    def _sweep(self) -> None:
        """Check all deadlines until the last connection has ended. A timer for each would cost as much as a request."""
        self.answers.refresh()
        if not self.connections:
            self._sweeping = None
            return
        self._sweep_some(tuple(self.connections), 0)

    def _sweep_some(self, connections: tuple[AnyConnection, ...], at: int) -> None:
        """Check the deadlines of some connections, then those of the others in the next turns of the loop."""
        began_ns, loop = self.clock_ns(), asyncio.get_running_loop()
        now, end = loop.time(), at + _SWEPT_AT_ONCE
        for connection in connections[at:end]:
            if connection in self.connections:
                connection.sweep(now)
        self._holds.note(Cause.SWEEP, self.clock_ns() - began_ns)
        if end < len(connections):
            self._sweeping = loop.call_later(0, self._sweep_some, connections, end)
        else:
            self._sweeping = loop.call_later(self.limits.sweep_ms / 1000, self._sweep)

    async def drain(self, timeout_ms: int) -> int:
        """Let every connection finish what it has begun. Return how many had not by the deadline and were aborted.

        The caller has stopped listening, and its application has answered the requests that would wait without limit.
        """
        self.draining = True
        self._emptied = asyncio.Event()
        for handshake in self._handshakes.values():
            handshake.abort()
        for connection in tuple(self.connections):
            connection.drain()
        left = 0
        await asyncio.sleep(0)  # idle connections report their end in the next turn of the loop
        if self.connections:
            try:
                await asyncio.wait_for(self._emptied.wait(), timeout_ms / 1000)
            except TimeoutError:
                left = len(self.connections)
                for connection in tuple(self.connections):
                    connection.abort()
                # The transports report the loss in a later turn; the application is stopped only after that.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._emptied.wait(), CUT_OFF_S)
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for pool in (self.pool, self.unpacker):
            pool.shutdown(wait=False, cancel_futures=True)
        return left


_ACCEPTED_AT_ONCE = 32  # connections that are accepted in one turn of the loop
_TRY_AGAIN_S = 0.02  # pause when there is no room, or when the system cannot accept


class Acceptor:
    """Passes new connections to an `HttpServer`. The clients that it has no room for wait in the backlog."""

    def __init__(self, http: HttpServer, sock: socket.socket, certificate: Certificate | None) -> None:
        self._http = http
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.TimerHandle | None = None
        self._tls = None if certificate is None else certificate.context
        self._begin()

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _begin(self) -> None:
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        try:
            for _ in range(_ACCEPTED_AT_ONCE):
                if not self._http.has_room():
                    if not self._http.make_room():
                        self._pause()
                    return
                self._http.accept(self._sock.accept()[0], self._tls)
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # the backlog is empty, or a client has left it
        except OSError:
            self._pause()  # the system lacks descriptors or memory

    def _pause(self) -> None:
        self._loop.remove_reader(self._sock)
        self._waiting = self._loop.call_later(_TRY_AGAIN_S, self._begin)
