"""A pipeline and a server for it, driven by hand: what the asyncio adapter does, without a socket."""

from typing import Any

from tests.server.harness import request
from topics.server.http.answers import AnswerHeads
from topics.server.http.exchange import Exchange
from topics.server.http.http1.pipeline import (
    ConnectionState,
    Pipeline,
)
from topics.server.http.http_limits import HttpLimits
from topics.server.http.messages import Request, Response, Stream, Upgrade
from topics.server.http.request.head import HeadCache
from topics.server.http.request_log import RequestLog
from topics.server.limits.budget import MemoryBudget

CHUNKED = (
    b"POST /echo?a=1 HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nX-Trailer: t\r\n\r\n"
)
EXPECT = b"POST /echo HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
UPGRADE = request("/upgrade", "Connection: Upgrade", "Upgrade: echo")


class FakeService:
    """What a server shares with its pipelines; refuses requests for `/refuse`."""

    def __init__(self, budget_bytes: int = 0, **limits: int) -> None:
        self.limits = HttpLimits(**limits)
        self.budget = MemoryBudget(budget_bytes)
        self.heads = HeadCache()
        self.answers = AnswerHeads(lambda: 0.0)
        self.request_log = RequestLog()
        self.now_ns = 1
        self.abandoned: list[bytes] = []

    def admit(self, request: Request, content_length: int | None) -> Response | None:
        return Response(401, b"no") if request.path == b"/refuse" else None

    def abandon(self, request: Request) -> None:
        if request.path == b"/broken":
            raise RuntimeError("a hook that fails")
        self.abandoned.append(request.path)

    def clock_ns(self) -> int:
        return self.now_ns


class Driver:
    """Does what the asyncio adapter does, by hand."""

    def __init__(self, service: FakeService | None = None, **limits: int) -> None:
        self.service = service or FakeService(**limits)
        self.pipeline = Pipeline(self.service, "peer")
        self.begun: list[Exchange] = []
        self.written = b""

    @property
    def state(self) -> ConnectionState:
        return self.pipeline.state

    def feed(self, data: bytes) -> "list[bytes]":
        """Pass input and return the targets of the requests that were begun."""
        self.pipeline.receive(data)
        return self.begin()

    def begin(self) -> "list[bytes]":
        """Begin requests until one has to wait, and return their targets."""
        targets = []
        while (exchange := self.next_request()) is not None:
            self.begun.append(exchange)
            asked = exchange.head.request
            targets.append(asked.path + (b"?" + asked.query if asked.query else b""))
        return targets

    def answer(self, number: int, body: bytes = b"{}", **fields: Any) -> None:
        self.pipeline.answer(self.begun[number], Response(200, body, **fields))

    def next_request(self) -> Exchange | None:
        """Return the next request; write the output first if it is above the mark."""
        exchange = self.pipeline.next_request()
        if exchange is None and self.pipeline.output.size_bytes > self.service.limits.high_water_bytes:
            self._write()
            exchange = self.pipeline.next_request()
        return exchange

    def _write(self) -> None:
        output = self.pipeline.output
        self.written += b"".join(output.parts)
        output.parts, output.size_bytes = [], 0

    def output(self) -> bytes:
        """Write: return the output and let the pipeline rest."""
        self.begin()
        self._write()
        self.pipeline.rest()
        written, self.written = self.written, b""
        return written

    def exchange(self, data: bytes) -> bytes:
        """Answer every request in `data` with its own body, and return the output."""
        self.pipeline.receive(data)
        while (exchange := self.pipeline.next_request()) is not None:
            self.pipeline.answer(exchange, Response(200, exchange.head.request.body or b"none", b"text/plain"))
        return self.output()


def bodies(written: bytes) -> list[bytes]:
    """Return the bodies of a sequence of answers, in order."""
    found = []
    while written:
        head, _, written = written.partition(b"\r\n\r\n")
        size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        found.append(written[:size])
        written = written[size:]
    return found


class FakeEnding:
    """Counts how often the end was reported."""

    ended = 0

    def closed(self) -> None:
        self.ended += 1


class SilentStream(FakeEnding, Stream):
    pass


class SilentUpgrade(FakeEnding, Upgrade):
    pass
