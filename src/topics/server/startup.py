"""A server before its data is recovered: what it can say of itself without an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.clock import Clock
from topics.errors import Code, TopicsError

if TYPE_CHECKING:
    from topics.server.api.route import Route
    from topics.server.http.server import HttpServer

RETRY_AFTER_MS = 1000


class Startup:
    """What requests may look at while the log is replayed. Nothing here belongs to the engine.

    `progress` is written by the thread that recovers and by no other; it is replaced as a whole, so any thread may
    read it.
    """

    __slots__ = ("_clock", "_started_ns", "http", "progress", "routes")

    def __init__(self, clock: Clock, routes: list[Route]) -> None:
        self.routes = routes
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self.progress = 0.0  # share of the log that has been replayed, 0 to 1
        self.http: HttpServer | None = None  # the transport, where it wants to be counted

    def uptime_ms(self) -> int:
        return (self._clock.monotonic_ns() - self._started_ns) // 1_000_000

    def not_ready(self) -> TopicsError:
        return TopicsError(
            Code.NOT_READY,
            "the log is being replayed",
            detail={"replay_progress": self.progress},
            retry_after_ms=RETRY_AFTER_MS,
        )
