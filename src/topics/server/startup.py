"""State of a server that requests may read before the data is recovered: uptime, replay progress, transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.clock import Clock
from topics.engine.steps import Steps
from topics.errors import Code, TopicsError

if TYPE_CHECKING:
    from topics.server.http.server import HttpServer

RETRY_AFTER_MS = 1000


class Startup:
    """What requests may read while the log is replayed. Nothing here belongs to the engine.

    Only the thread that recovers the data writes `progress`. It assigns a new float, so any thread may read it.
    """

    __slots__ = ("_clock", "_document", "_render", "_started_ns", "console", "http", "progress")

    def __init__(self, clock: Clock, render: Callable[[], Steps[bytes]], *, console: bool = True) -> None:
        self._render = render  # renders the OpenAPI document
        self._document: bytes | None = None
        self.console = console  # whether the console is served
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self.progress = 0.0  # share of the log that has been replayed, 0 to 1
        self.http: HttpServer | None = None  # the transport whose connections and requests metrics count

    def document(self) -> Steps[bytes]:
        """Return the OpenAPI document, which the first request renders."""
        if self._document is None:
            self._document = yield from self._render()
        return self._document

    def note_progress(self, share: float) -> None:
        """Note how much of the log has been replayed, 0 to 1."""
        self.progress = share

    def requests_total(self) -> int:
        """Return how many requests the transport has received."""
        return 0 if self.http is None else self.http.requests_total

    def uptime_ms(self) -> int:
        """Return the milliseconds since the process started."""
        return (self._clock.monotonic_ns() - self._started_ns) // 1_000_000

    def not_ready(self) -> TopicsError:
        """Return the 503 for a request that needs the recovered data, with the replay progress."""
        return TopicsError(
            Code.NOT_READY,
            "the log is being replayed",
            detail={"replay_progress": self.progress},
            retry_after_ms=RETRY_AFTER_MS,
        )
