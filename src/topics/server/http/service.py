"""What the connections of one server use of it, and the server of them. Both import this module, not each other."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from topics.errors import TopicsError
from topics.server.http.answers import AnswerHeads
from topics.server.http.http_limits import HttpLimits
from topics.server.http.messages import App, answer_of
from topics.server.http.request.gunzip import WorkSlots
from topics.server.http.request.head import HeadCache
from topics.server.http.request_log import RequestLog
from topics.server.limits.budget import MemoryBudget

_GZIP_THREADS = 2
_UNBLOCK_S = 0.05  # how often streams that wait for the memory budget are tried again
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # the first bytes of a client of HTTP/2 (RFC 9113 section 3.4)


class BlockedSink(Protocol):
    """A stream that waits for the memory budget."""

    def unblock(self) -> bool: ...


class ServedConnection(Protocol):
    """A connection of either protocol, as the server uses it."""

    @property
    def served(self) -> int: ...
    def sweep(self, now: float) -> None: ...
    def idle_since(self) -> float | None: ...
    def drain(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class OpeningConnection(ServedConnection, Protocol):
    """A new connection, whose client may use HTTP/2."""

    transport: asyncio.Transport
    peer: str
    opening: bytes | None  # what may be a preface; None once it is HTTP/1.1

    def refuse(self, error: TopicsError) -> None: ...


class Service:
    """The server, as its connections use it."""

    def __init__(
        self, app: App, limits: HttpLimits | None, budget: MemoryBudget | None, request_log: RequestLog | None
    ) -> None:
        # Bound once and shared: a connection needs neither the lookup nor bound methods of its own.
        self.admit = app.admit
        self.handle = app.handle
        self.answer = answer_of(app)
        self.abandon = app.abandon
        self.limits = limits or HttpLimits()
        self.budget = budget or MemoryBudget()
        self.request_log = request_log or RequestLog()
        self.heads = HeadCache()
        self.answers = AnswerHeads(time.time)
        self.clock_ns = time.perf_counter_ns
        self.unpacking_slots = WorkSlots(_GZIP_THREADS)
        self.draining = False
        self._pool: ThreadPoolExecutor | None = None
        self._blocked: dict[BlockedSink, None] = {}  # streams that wait for the budget

    def opened(self, connection: OpeningConnection) -> None: ...
    def closed(self, connection: ServedConnection) -> None: ...
    def begin_http2(self, connection: OpeningConnection) -> None: ...  # its first bytes are its `opening`

    def block(self, sink: BlockedSink) -> None:
        """Have `sink.unblock` called until it returns True."""
        if not self._blocked:
            asyncio.get_running_loop().call_later(_UNBLOCK_S, self._unblock)
        self._blocked[sink] = None

    def _unblock(self) -> None:
        waiting, self._blocked = self._blocked, {}
        for sink in waiting:
            if not sink.unblock():
                self.block(sink)

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Threads for gzip, started when first needed: most servers never compress anything."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=_GZIP_THREADS, thread_name_prefix="topics-gzip")
        return self._pool
