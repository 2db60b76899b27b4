"""Routers beside live writes: which entries are logged for them, and what they give up. See `copy`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topics.engine import retention
from topics.engine.consumers.batch import ConsumerBatch
from topics.engine.routers import replay
from topics.engine.routers.copy import count_lost, mark
from topics.engine.routers.graph import Edge, Links, Router, linked, links_of, upstream
from topics.engine.routers.schedule import DueEdges
from topics.engine.state.topic import Topic
from topics.engine.write.commit import Ticket
from topics.engine.write.staging import Staging
from topics.model.records import TagMatch
from topics.storage.log import entry as entries
from topics.storage.log.router_entry import Copies, Resume, Trim

# Entries about a destination that leave the routers out of it alone.
PARTIES = (Trim, Resume, Copies, ConsumerBatch)


class LiveRouters:
    """Stages the log entries from which recovery restores the position of each router. Implements `graph.Live`."""

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
            into = linked(dest)
            if not _copies_are_logged(into):
                before.append(mark(into, head=dest.next_seq - 1, out=False, holds=True))
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
            ticket.gated = survives_power_loss(router.edge)
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
            if (links := links_of(edge.source)) is not None:
                links.low = 0  # it included this step
            self._due.back_off(edge)  # the log refused the step

        ticket.apply, ticket.undo = take_effect, undo
        return ticket

    def landed(self, dest: Topic) -> None:
        """Notify the readers of `dest`, and the edges out of it: copies have landed there."""
        self._staging.grew(dest)
        self._due.source_grew(dest)


def survives_power_loss(edge: Edge) -> bool:
    """Return whether copies follow from synced records. A step that decides their seqs or times must be synced, too."""
    return any(topic.config.durability == "fsync" for topic in upstream(edge.source))


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
