"""Which edges have something to forward, and when the others may."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from topics.clock import Clock
from topics.engine.routers.graph import Edge, links_of
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
        self._grown: dict[Topic, None] = {}  # sources whose edges are not in `_due` yet
        self._waiting: dict[Edge, None] = {}  # held, or behind entries that wait for the log

    def __bool__(self) -> bool:
        return bool(self._due)

    @property
    def has_grown(self) -> bool:
        """Whether sources grew since `collect`."""
        return bool(self._grown)

    def add(self, edge: Edge) -> None:
        """Make the edge due, unless one of its topics was dropped."""
        if edge not in self._queued and not edge.source.gone and not edge.dest.gone:
            self._waiting.pop(edge, None)
            self._queued.add(edge)
            self._due.append(edge)
            self.wake()

    def pop(self) -> Edge:
        """Take out the edge that has been due for longest."""
        edge = self._due.popleft()
        self._queued.discard(edge)
        return edge

    def put_first(self, edge: Edge) -> None:
        """Move the edge to the front, if it is due."""
        if edge in self._queued:
            self._due.remove(edge)
            self._due.appendleft(edge)

    def source_grew(self, topic: Topic) -> None:
        """Make the edges out of the topic due with the next `collect`."""
        if (links := links_of(topic)) is not None and links.outgoing:
            self._grown[topic] = None
            self.wake()

    def wait(self, edge: Edge) -> None:
        """Make the edge due again once its `held_until_ms` has passed."""
        self._waiting[edge] = None

    def waits(self, edge: Edge) -> bool:
        return edge in self._waiting

    def elapsed_ms(self) -> int:
        """Return the time that `held_until_ms` is measured in."""
        return self._clock.monotonic_ns() // 1_000_000

    def is_held(self, edge: Edge) -> bool:
        return edge.held_until_ms > self.elapsed_ms()

    def back_off(self, edge: Edge) -> None:
        """Hold the edge, for twice as long as the last time."""
        edge.backoff_ms = min(max(edge.backoff_ms * 2, FIRST_BACKOFF_MS), MAX_BACKOFF_MS)
        edge.held_until_ms = self.elapsed_ms() + edge.backoff_ms
        self.wait(edge)

    def collect(self) -> None:
        """Make the edges due whose sources grew, and those that need not wait any longer."""
        grown, self._grown = self._grown, {}
        for topic in grown:
            if (links := links_of(topic)) is not None:
                for edge in links.outgoing.values():
                    self.add(edge)
        now_ms = self.elapsed_ms()
        for edge in list(self._waiting):
            if edge.held_until_ms <= now_ms:
                del self._waiting[edge]
                self.add(edge)

    def next_ms(self) -> int | None:
        """Return in how many ms an edge is due; None if no edge waits."""
        if self._due or self._grown:
            return 0
        if not self._waiting:
            return None
        return max(min(edge.held_until_ms for edge in self._waiting) - self.elapsed_ms(), SOON_MS)
