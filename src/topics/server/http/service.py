"""What the connections of one server use of it. They do not import the server, which imports them."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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


class Service:
    """The server, as its connections use it. `HttpServer` overrides the hooks."""

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

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Threads for gzip, started when first needed: most servers never compress anything."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=_GZIP_THREADS, thread_name_prefix="topics-gzip")
        return self._pool
