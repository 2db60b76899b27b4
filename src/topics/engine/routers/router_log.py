"""Routers beside live writes: which are due, which entries are logged for them, and what they give up. See `copy`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from topics.clock import Clock
from topics.engine import retention
from topics.engine.consumers.verbs import ConsumerBatch
from topics.engine.routers import replay
from topics.engine.routers.copy import count_lost, mark
from topics.engine.routers.graph import Edge, Links, Router, out_of, upstream
from topics.engine.state.topic import Topic
from topics.engine.write.commit import Ticket
from topics.engine.write.staging import Staging
from topics.engine.write.uploads import GATES
from topics.storage.log import entry as entries
from topics.storage.log.router_entry import Copies, Resume, Trim

# Entries about a destination that leave the routers out of it alone.
PARTIES = (Trim, Resume, Copies, ConsumerBatch)

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
        self.waiting: dict[Edge, None] = {}  # held, or behind entries that wait for the log

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

    def wait(self, edge: Edge) -> None:
        """Make the edge due again once its `held_until_ms` has passed."""
        self.waiting[edge] = None

    def elapsed_ms(self) -> int:
        """Return the time that `held_until_ms` is measured in."""
        return self._clock.monotonic_ns() // 1_000_000

    def back_off(self, edge: Edge) -> None:
        """Hold the edge, for twice as long as the last time."""
        edge.backoff_ms = min(max(edge.backoff_ms * 2, FIRST_BACKOFF_MS), MAX_BACKOFF_MS)
        edge.held_until_ms = self.elapsed_ms() + edge.backoff_ms
        self.wait(edge)

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


class LiveRouters:
    """Stages the log entries from which recovery restores the position of each router."""

    def __init__(self, staging: Staging, due: DueEdges) -> None:
        self._staging = staging
        self._due = due

    def staging(self, links: Links, ticket: Ticket) -> None:
        """Put a mark before an entry whose replay must find the routers where they are now."""
        entry = ticket.entry
        if type(entry) is entries.Ceiling:
            return  # no router depends on it
        if ticket.count and links.outgoing:
            upto = self.pushes_out(links, entry)
            if upto is not None:
                self.losing(links, upto, entry, begun=ticket.frame is not None)
        leaves_sources = bool(ticket.count) or type(entry) in PARTIES
        # The position of the routers into the topic follows from the log without a mark if their copies are in it.
        copies_are_logged = links.incoming is None or links.incoming.cyclic
        if ticket.frame is not None and not (leaves_sources and copies_are_logged):
            head = (ticket.first or links.topic.next_seq) - 1
            before = entries.encode_begun([mark(links, head=head, out=not leaves_sources, holds=True)])
            ticket.frame = before + ticket.frame
        if not leaves_sources:
            self.freeze(links, ticket)

    def pin(self, links: Links) -> bytes:
        """Return a mark for an entry about another topic that takes records out of this one."""
        return entries.encode_begun([mark(links, head=links.topic.next_seq - 1, out=True, holds=True)])

    def freeze(self, links: Links, ticket: Ticket) -> None:
        """Keep routers out of the topic from moving until the ticket is resolved."""
        links.frozen += 1
        act, undo = ticket.apply, ticket.undo
        assert act is not None

        def thaw() -> None:
            links.frozen -= 1
            if links.incoming is not None:
                links.incoming.held_until_ms = 0  # there may be room now
                self._due.add(links.incoming)
            self._due.source_grew(links.topic)

        def take_effect(ticket: Ticket) -> Any:
            try:
                return act(ticket)
            finally:
                thaw()

        def refused() -> None:
            thaw()
            if undo is not None:
                undo()

        ticket.apply, ticket.undo = take_effect, refused

    def losing(self, links: Links, upto: int, coming: entries.Append | None = None, *, begun: bool = False) -> None:
        """Let routers give up the records below `upto` that they have not forwarded: these are lost now.

        With `begun`, they are lost with the write `coming`: a replay without it does not find the trims either.
        """
        if links.low < upto - 1 and links.slowest() < upto - 1:
            for router in list(links.routers()):
                if router.reached < upto - 1:
                    self.trim(router, upto - 1, coming, begun=begun)

    def deleting(self, links: Links) -> None:
        """Do nothing: a delete comes with a mark, see `staging`."""

    def pushes_out(self, links: Links, entry: entries.Append) -> int | None:
        """Return the seq below which the entry evicts all records, if a router has not forwarded all of these."""
        topic, config = links.topic, links.topic.config
        if not (config.cap_records or config.cap_bytes or config.ttl_ms):
            return None
        upto = retention.reach(
            topic, first=entry.first, sizes=entry.sizes, ts=entry.ts, before_bytes=topic.staged_bytes
        )
        return upto if links.low < upto - 1 and links.slowest() < upto - 1 else None

    def trim(self, router: Router, upto: int, coming: entries.Append | None = None, *, begun: bool = False) -> None:
        """Stage that the router gives up all records up to `upto`.

        Some may not have landed yet: the first ones of a write (`coming`) that is larger than its topic.
        """
        dest, source, match = router.edge.dest, router.edge.source, router.config.filter
        lost = count_lost(router, min(upto, source.head))
        for seq in range(max(source.head, router.reached) + 1, upto + 1):
            if match is None or coming is None or not coming.first <= seq <= coming.last:
                lost += 1  # records of other writes count
            else:
                lost += coming.tags is not None and match.covers(coming.tags[seq - coming.first])
        self.stage_trim(router, Trim(dest.topic_id, router.router_id, upto, dest.next_seq, lost), begun=begun)

    def stage_trim(self, router: Router, entry: Trim, *, begun: bool = False) -> None:
        dest = router.edge.dest
        ticket = Ticket(topic=dest, entry=entry, first=entry.first, skips=entry.lost)
        if self._staging.logged:
            ticket.frame = entries.encode_begun([entry]) if begun else entries.encode(entry)
            ticket.gated = gate_of(router.edge)
            if dest.config.durability == "ephemeral":
                self._staging.ceilings.guard(dest, ticket, entry.first + entry.lost)
        self.stage_step(ticket, router, entry.upto, lambda: replay.trim(self._staging.state, entry))

    def stage_step(self, ticket: Ticket, router: Router, upto: int, act: Callable[[], None]) -> None:
        """Stage a step that moves the router to `upto` once it is in the log."""
        edge, was = router.edge, router.staged_cursor

        def take_effect(_: Ticket) -> None:
            edge.busy -= 1
            before = edge.dest.head
            act()
            if router.staged_cursor <= upto:
                router.staged_cursor = 0
            if edge.last_error is None:
                edge.backoff_ms = 0
            if edge.dest.head != before:
                self.landed(edge.dest)
            self._due.add(edge)

        def undo() -> None:
            edge.busy -= 1
            router.staged_cursor = was
            if (links := edge.source.links) is not None:
                links.low = 0  # it included this step
            self._due.back_off(edge)  # the log refused the step

        ticket.apply, ticket.undo = take_effect, undo
        self._staging.commits.stage(ticket)
        router.staged_cursor = upto
        edge.busy += 1

    def landed(self, dest: Topic) -> None:
        """Notify the readers of `dest`, and the edges out of it: copies have landed there."""
        self._staging.grew(dest)
        self._due.source_grew(dest)


def gate_of(edge: Edge) -> int:
    """Return the gate of a step that decides the seqs or times of copies: that of the records they follow from."""
    return max(GATES[topic.config.durability] for topic in upstream(edge.source))
