"""Routers beside live writes: which entries are logged for them, and what they give up. See `copy`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topics.engine import retention
from topics.engine.consumers.batch import ConsumerBatch
from topics.engine.routers import replay
from topics.engine.routers.copy import count_lost, mark
from topics.engine.routers.graph import Links, Router, links_of
from topics.engine.routers.schedule import DueEdges
from topics.engine.state.topic import Topic
from topics.engine.write.commit import Ticket
from topics.engine.write.staging import Staging
from topics.model.records import TagMatch
from topics.storage.log import entry as log
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
        if type(entry) is log.Ceiling:
            return  # no router depends on it
        if ticket.count and links.outgoing:
            upto = self.pushes_out(links, entry, before_bytes=topic.staged_bytes - ticket.size_bytes)
            if upto is not None:
                self.losing(links, upto, entry)
        leaves_sources = bool(ticket.count) or type(entry) in PARTIES
        if ticket.frame is not None and not (leaves_sources and (links.incoming is None or links.incoming.cyclic)):
            head = (ticket.first or topic.next_seq) - 1
            pin = mark(links, head=head, out=not leaves_sources, holds=True)
            ticket.frame = log.encode(pin) + ticket.frame
        if not leaves_sources:
            self.freeze(links, ticket)

    def pin(self, links: Links) -> bytes:
        """Return a mark for an entry about another topic that takes records out of this one."""
        return log.encode(mark(links, head=links.topic.next_seq - 1, out=True, holds=True))

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

    def losing(self, links: Links, upto: int, coming: log.Append | None = None) -> None:
        """Let routers give up the records below `upto` that they have not forwarded: these are lost now.

        Some may not have landed yet: the first records of a write that is larger than its topic.
        """
        if links.low < upto - 1 and links.slowest() < upto - 1:
            for router in list(links.routers()):
                if router.reached < upto - 1:
                    self.trim(router, upto - 1, coming)

    def pushes_out(self, links: Links, entry: log.Append, *, before_bytes: int = 0) -> int | None:
        """Return the seq below which the entry evicts all records, if a router has not forwarded all of these."""
        config = links.topic.config
        if not (config.cap_records or config.cap_bytes or config.ttl_ms):
            return None
        upto = retention.reach(
            links.topic, first=entry.first, sizes=entry.sizes, ts=entry.ts, before_bytes=before_bytes
        )
        return upto if links.low < upto - 1 and links.slowest() < upto - 1 else None

    def trim(self, router: Router, upto: int, coming: log.Append | None = None) -> None:
        edge, dest = router.edge, router.edge.dest
        source = edge.source
        lost = count_lost(router, min(upto, source.head))
        for seq in range(max(source.head, router.reached) + 1, upto + 1):
            lost += router.config.filter is None or _matches(router.config.filter, coming, seq)
        self.stage_trim(router, Trim(dest.topic_id, router.router_id, upto, dest.next_seq, lost))

    def stage_trim(self, router: Router, entry: Trim) -> None:
        dest = router.edge.dest
        ticket = Ticket(topic=dest, entry=entry, first=dest.next_seq)
        if self._staging.logged:
            ticket.frame = log.encode(entry)
            if dest.config.durability == "ephemeral":
                self._staging.ceilings.guard(dest, ticket, dest.next_seq + entry.lost)
        self.stage_step(ticket, router, entry.upto, lambda: replay.trim(self._staging.state, entry))
        dest.next_seq += entry.lost

    def stage_step(self, ticket: Ticket, router: Router, upto: int, act: Callable[[], None]) -> None:
        """Stage a step that moves the router to `upto` once it is in the log."""
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
        self._staging.commits.stage(ticket)
        router.under_way = upto
        edge.busy += 1

    def landed(self, dest: Topic) -> None:
        """Notify the readers of `dest`, and the edges out of it: copies have landed there."""
        self._staging.grew(dest)
        self._due.source_grew(dest)


def _matches(match: TagMatch, coming: log.Append | None, seq: int) -> bool:
    """Return whether a record that has not landed yet would be forwarded. Records of other writes count."""
    if coming is None or not coming.first <= seq <= coming.last:
        return True
    return coming.tags is not None and match.covers(coming.tags[seq - coming.first])
