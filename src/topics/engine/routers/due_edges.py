"""The edges of routers that have something to forward, and when those that wait may go on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from topics.clock import Clock
from topics.engine.routers.graph import Edge, out_of
from topics.engine.state.topic import Topic

FIRST_BACKOFF_MS = 20
MAX_BACKOFF_MS = 1000
SOON_MS = 1  # when entries of a topic wait for the log


class DueEdges:
    """The edges of one engine that are due, in the order in which they became due. Waits are in elapsed time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.wake: Callable[[], None] = lambda: None  # called when an edge becomes due
        self._due: deque[Edge] = deque()
        self._queued: set[Edge] = set()  # the edges in `_due`
        self.grown: dict[Topic, None] = {}  # sources whose edges are not in `_due` yet
        self.waiting: dict[Edge, None] = {}  # until `held_until_ms`: held, or behind entries that wait for the log

    def __bool__(self) -> bool:
        return bool(self._due)

    def add(self, edge: Edge, *, first: bool = False) -> None:
        """Make the edge due, unless one of its topics was dropped."""
        if edge not in self._queued and not edge.source.gone and not edge.dest.gone:
            self.waiting.pop(edge, None)
            self._queued.add(edge)
            (self._due.appendleft if first else self._due.append)(edge)
            self.wake()

    def pop(self) -> Edge:
        """Take out the edge that has been due for longest."""
        edge = self._due.popleft()
        self._queued.discard(edge)
        return edge

    def source_grew(self, topic: Topic) -> None:
        """Make the edges out of the topic due with the next `collect`."""
        if out_of(topic):
            self.grown[topic] = None
            self.wake()

    def elapsed_ms(self) -> int:
        """Return the time that `held_until_ms` is measured in."""
        return self._clock.monotonic_ns() // 1_000_000

    def back_off(self, edge: Edge) -> None:
        """Hold the edge, for twice as long as the last time."""
        edge.backoff_ms = min(max(edge.backoff_ms * 2, FIRST_BACKOFF_MS), MAX_BACKOFF_MS)
        edge.held_until_ms = self.elapsed_ms() + edge.backoff_ms
        self.waiting[edge] = None

    def retry(self) -> None:
        """Let edges that wait go on before the next write: clients that were just answered write again at once."""
        if self.waiting:
            self.wake()

    def collect(self) -> None:
        """Make the edges due whose sources grew, and those that need not wait any longer."""
        grown, self.grown = self.grown, {}
        for topic in grown:
            for edge in out_of(topic):
                self.add(edge)
        now_ms = self.elapsed_ms()
        for edge in list(self.waiting):
            if edge.held_until_ms <= now_ms:
                del self.waiting[edge]
                self.add(edge)

    def next_ms(self) -> int | None:
        """Return in how many ms an edge is due; None if no edge waits."""
        if self._due or self.grown:
            return 0
        if not self.waiting:
            return None
        return max(min(edge.held_until_ms for edge in self.waiting) - self.elapsed_ms(), SOON_MS)
