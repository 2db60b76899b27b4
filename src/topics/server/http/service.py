"""What the connections of one server use of it, and the server of them. Both import this module, not each other."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from topics.errors import TopicsError
from topics.server.http.answers import AnswerHeads
from topics.server.http.http_limits import HttpLimits
from topics.server.http.messages import Answer, Request, Response
from topics.server.http.request.gunzip import WorkSlots
from topics.server.http.request.head import HeadCache
from topics.server.http.request_log import RequestLog
from topics.server.limits.budget import MemoryBudget

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
    def refuse(self, error: TopicsError) -> None: ...
    def drain(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class OpeningConnection(ServedConnection, Protocol):
    """A new connection, whose client may use HTTP/2."""

    transport: asyncio.Transport
    peer: str
    opening: bytes | None  # what may be a preface; None once it is HTTP/1.1


class Service(Protocol):
    """The server, as its connections use it."""

    limits: HttpLimits
    budget: MemoryBudget
    heads: HeadCache
    answers: AnswerHeads
    request_log: RequestLog
    unpacking_slots: WorkSlots
    draining: bool

    def clock_ns(self) -> int: ...
    def admit(self, request: Request, content_length: int | None) -> Response | None: ...
    def abandon(self, request: Request) -> None: ...
    def handle(self, request: Request) -> Answer: ...
    def answer(self, request: Request, /) -> Answer: ...
    @property
    def pool(self) -> ThreadPoolExecutor: ...
    def opened(self, connection: ServedConnection) -> None: ...
    def closed(self, connection: ServedConnection) -> None: ...
    def block(self, sink: BlockedSink) -> None: ...
    def begin_http2(self, connection: OpeningConnection) -> None:
        """Serve the connection, whose first bytes are its `opening`, with HTTP/2."""
