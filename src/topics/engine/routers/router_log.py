"""Routers beside live writes: which are due, which entries are logged for them, and what they give up. See `copy`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from topics.clock import Clock
from topics.engine import retention
from topics.engine.consumers.batch import ConsumerBatch
from topics.engine.routers import replay
from topics.engine.routers.copy import count_lost, mark
from topics.engine.routers.graph import Edge, Links, Router, out_of, upstream
from topics.engine.state.topic import Topic
from topics.engine.write.commit import Ticket
from topics.engine.write.staging import Staging
from topics.engine.write.uploads import GATES
from topics.model.records import TagMatch
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
        if out_of(topic):
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
            for edge in out_of(topic):
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


class LiveRouters:
    """Stages the log entries from which recovery restores the position of each router."""

    def __init__(self, staging: Staging, due: DueEdges) -> None:
        self._staging = staging
        self._due = due

    def staging(self, links: Links, ticket: Ticket) -> None:
        """Put a mark before an entry whose replay must find the routers where they are now."""
        topic, entry = links.topic, ticket.entry
        if type(entry) is entries.Ceiling:
            return  # no router depends on it
        before: list[entries.Entry] = []
        if ticket.count and links.outgoing:
            upto = self.pushes_out(links, entry, before_bytes=topic.staged_bytes - ticket.size_bytes)
            if upto is not None:
                before = self._lose_with(links, upto, ticket)
        leaves_sources = bool(ticket.count) or type(entry) in PARTIES
        if ticket.frame is not None and not (leaves_sources and _copies_are_logged(links)):
            head = (ticket.first or topic.next_seq) - 1
            before.append(mark(links, head=head, out=not leaves_sources, holds=True))
        if before and self._staging.logged:
            begun = ticket.frame is not None  # not if the topic is ephemeral: the marks and trims are all there is
            ticket.frame = entries.encode_begun(before) + ticket.frame if begun else entries.encode_all(before)  # type: ignore[operator]
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

    def losing(self, links: Links, upto: int, coming: entries.Append | None = None) -> None:
        """Let routers give up the records below `upto` that they have not forwarded: these are lost now."""
        if links.low < upto - 1 and links.slowest() < upto - 1:
            for router in list(links.routers()):
                if router.reached < upto - 1:
                    self.trim(router, upto - 1, coming)

    def deleting(self, links: Links) -> None:
        """Do nothing: a delete comes with a mark, see `staging`."""

    def _lose_with(self, links: Links, upto: int, ticket: Ticket) -> list[entries.Entry]:
        """Do the same as a part of the write that evicts the records: routers lose them if the write takes effect.

        Return the entries that precede the write in its frames.
        """
        steps: list[Ticket] = []
        before: list[entries.Entry] = []
        for router in list(links.routers()):
            if router.reached >= upto - 1:
                continue
            dest = router.edge.dest
            if not _copies_are_logged(dest.links):
                before.append(mark(dest.links, head=dest.next_seq - 1, out=False, holds=True))
            entry = self._trim_entry(router, upto - 1, ticket.entry)
            before.append(entry)
            steps.append(self._trim_step(router, entry))
            if dest.config.durability == "ephemeral" and self._staging.logged:
                self._staging.ceilings.guard(dest, ticket, dest.next_seq + entry.lost)
            self._begin_step(router, entry.upto)
            dest.next_seq += entry.lost
        _attach(ticket, steps)
        return before

    def pushes_out(self, links: Links, entry: entries.Append, *, before_bytes: int = 0) -> int | None:
        """Return the seq below which the entry evicts all records, if a router has not forwarded all of these."""
        config = links.topic.config
        if not (config.cap_records or config.cap_bytes or config.ttl_ms):
            return None
        upto = retention.reach(
            links.topic, first=entry.first, sizes=entry.sizes, ts=entry.ts, before_bytes=before_bytes
        )
        return upto if links.low < upto - 1 and links.slowest() < upto - 1 else None

    def trim(self, router: Router, upto: int, coming: entries.Append | None = None) -> None:
        """Stage that the router gives up all records up to `upto`."""
        self.stage_trim(router, self._trim_entry(router, upto, coming))

    def _trim_entry(self, router: Router, upto: int, coming: entries.Append | None) -> Trim:
        """Some records may not have landed yet: the first ones of a write that is larger than its topic."""
        edge, dest = router.edge, router.edge.dest
        source = edge.source
        lost = count_lost(router, min(upto, source.head))
        for seq in range(max(source.head, router.reached) + 1, upto + 1):
            lost += router.config.filter is None or _matches(router.config.filter, coming, seq)
        return Trim(dest.topic_id, router.router_id, upto, dest.next_seq, lost)

    def _trim_step(self, router: Router, entry: Trim) -> Ticket:
        dest = router.edge.dest
        ticket = Ticket(topic=dest, entry=entry, first=dest.next_seq)
        return self._step(ticket, router, entry.upto, lambda: replay.trim(self._staging.state, entry))

    def stage_trim(self, router: Router, entry: Trim) -> None:
        dest = router.edge.dest
        ticket = self._trim_step(router, entry)
        if self._staging.logged:
            ticket.frame = entries.encode(entry)
            ticket.gated = gate_of(router.edge)
            if dest.config.durability == "ephemeral":
                self._staging.ceilings.guard(dest, ticket, dest.next_seq + entry.lost)
        self._staging.commits.stage(ticket)
        self._begin_step(router, entry.upto)
        dest.next_seq += entry.lost

    def stage_step(self, ticket: Ticket, router: Router, upto: int, act: Callable[[], None]) -> None:
        """Stage a step that moves the router to `upto` once it is in the log."""
        self._staging.commits.stage(self._step(ticket, router, upto, act))
        self._begin_step(router, upto)

    def _begin_step(self, router: Router, upto: int) -> None:
        router.under_way = upto
        router.edge.busy += 1

    def _step(self, ticket: Ticket, router: Router, upto: int, act: Callable[[], None]) -> Ticket:
        """Return the ticket with what it does once it is in the log, and with what it does if the log refuses it."""
        edge, was = router.edge, router.under_way

        def take_effect(_: Ticket) -> None:
            edge.busy -= 1
            before = edge.dest.head
            act()
            if router.under_way <= upto:
                router.under_way = 0
            if edge.last_error is None:
                edge.backoff_ms = 0
            if edge.dest.head != before:
                self.landed(edge.dest)
            self._due.add(edge)

        def undo() -> None:
            edge.busy -= 1
            router.under_way = was
            if (links := edge.source.links) is not None:
                links.low = 0  # it included this step
            self._due.back_off(edge)  # the log refused the step

        ticket.apply, ticket.undo = take_effect, undo
        return ticket

    def landed(self, dest: Topic) -> None:
        """Notify the readers of `dest`, and the edges out of it: copies have landed there."""
        self._staging.grew(dest)
        self._due.source_grew(dest)


def gate_of(edge: Edge) -> int:
    """Return the gate of a step that decides the seqs or times of copies: that of the records they follow from."""
    return max(GATES[topic.config.durability] for topic in upstream(edge.source))


def _copies_are_logged(links: Links) -> bool:
    """Return whether the position of the routers into the topic follows from the log without a mark."""
    return links.incoming is None or links.incoming.cyclic


def _attach(ticket: Ticket, steps: list[Ticket]) -> None:
    """Let the steps take effect right before the ticket, and be refused with it."""
    act, undo = ticket.apply, ticket.undo
    assert act is not None

    def take_effect(done: Ticket) -> Any:
        for step in steps:
            step.apply(step)  # type: ignore[misc]  # `_step` has set it
        return act(done)

    def refused() -> None:
        if undo is not None:
            undo()
        for step in reversed(steps):
            step.topic.next_seq = step.first  # type: ignore[union-attr]
            step.undo()  # type: ignore[misc]

    ticket.apply, ticket.undo = take_effect, refused
    dests = dict.fromkeys(step.topic for step in steps if step.topic is not None)
    ticket.also = [*(ticket.also or ()), *dests]


def _matches(match: TagMatch, coming: entries.Append | None, seq: int) -> bool:
    """Return whether a record that has not landed yet would be forwarded. Records of other writes count."""
    if coming is None or not coming.first <= seq <= coming.last:
        return True
    return coming.tags is not None and match.covers(coming.tags[seq - coming.first])
