"""Forwarding at run time, in steps. See `copy` for what is copied, and why copies need no entry in the log.

A server calls `run` when it has time, with a budget, and `run` returns when to call it again. A write to a source makes
its edges due; one that evicts records which they have not forwarded is preceded by a `Trim` (`staging`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

from topics.clock import Clock
from topics.engine import retention
from topics.engine.consumers.verbs import ConsumerBatch
from topics.engine.delays import FEW_RECORDS, FEW_STEPS, STARVED_NS
from topics.engine.routers import copy, replay
from topics.engine.routers.graph import Edge, Links, Router, Table, out_of
from topics.engine.state.topic import Topic
from topics.engine.write.commit import Ticket
from topics.engine.write.staging import Staging
from topics.engine.write.uploads import AT_SYNC, GATES
from topics.storage.log import entry as entries
from topics.storage.log.router_entry import Copies, Resume, Trim
from topics.storage.segments.cold import Cold
from topics.storage.segments.segment import Damaged

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
        self.queue: OrderedDict[Edge, None] = OrderedDict()
        self.grown: dict[Topic, None] = {}  # sources whose edges are not in `queue` yet
        self.waiting: dict[Edge, None] = {}  # until `held_until_ms`: held, or behind entries that wait for the log

    def add(self, edge: Edge, *, first: bool = False) -> None:
        """Make the edge due, unless one of its topics was dropped."""
        if edge not in self.queue and not edge.source.gone and not edge.dest.gone:
            self.waiting.pop(edge, None)
            self.queue[edge] = None
            if first:
                self.queue.move_to_end(edge, last=False)
            self.wake()

    def source_grew(self, topic: Topic) -> None:
        """Make the edges out of the topic due with the next `collect`."""
        if out_of(topic):
            self.grown[topic] = None
            self.wake()

    @property
    def are_few(self) -> bool:
        """Whether a turn may end with the copies of what has grown in it: see `FEW_STEPS`."""
        left = FEW_STEPS
        for topic in self.grown:
            for edge in out_of(topic):
                left -= 1
                if left < 0 or topic.head - edge.routers[0].cursor > FEW_RECORDS:
                    return False
        return not self.queue

    def elapsed_ms(self) -> int:
        """Return the time that `held_until_ms` is measured in."""
        return self._clock.monotonic_ns() // 1_000_000

    def hold(self, edge: Edge, why: str | None = None) -> int:
        """Hold the edge, for twice as long as the last time. Return that it takes no copies."""
        edge.last_error = why or edge.last_error
        edge.backoff_ms = min(max(edge.backoff_ms * 2, FIRST_BACKOFF_MS), MAX_BACKOFF_MS)
        edge.held_until_ms = self.elapsed_ms() + edge.backoff_ms
        self.waiting[edge] = None
        return 0

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
        if self.queue or self.grown:
            return 0
        if not self.waiting:
            return None
        return max(min(edge.held_until_ms for edge in self.waiting) - self.elapsed_ms(), SOON_MS)


class Forwarder:
    """Forwards records, and stages the log entries from which recovery restores the position of each router."""

    def __init__(self, staging: Staging, table: Table, due: DueEdges) -> None:
        self._staging = staging
        self._table = table
        self._due = due
        self.source_grew = due.source_grew
        self._gathered: tuple[Any, copy.Gathered] | None = None
        self.steps = 0  # of the last `run`
        self._may_sync = True

    def run(self, budget_ns: int, *, most: int = 0) -> int | None:
        """Forward until nothing is left or the budget is spent. Return in how many ms to call again; None for never.

        `most` limits the steps instead of the time: answers wait for them, so none waits for a sync. Raises `Cold` if
        records are not in memory.
        """
        clock = self._staging.clock
        began = clock.monotonic_ns()
        self.steps = 0
        self._may_sync = not most
        due = self._due
        due.collect()
        # Bound: `budget_ns` or `most`. Without both, a step that leaves its edge due forwards or gives up some record.
        while due.queue:
            edge, _ = due.queue.popitem(last=False)
            self.steps += 1
            try:
                more = self._step(edge)
            except Cold:
                due.add(edge, first=True)
                raise
            if more:
                due.add(edge)
            if due.grown:
                due.collect()
            if (self.steps == most or clock.monotonic_ns() - began >= budget_ns > 0) and due.queue:
                return 0
        return due.next_ms()

    def skip_cold(self, why: str) -> None:
        """Hold the edge whose records the disk did not give: it is the first one due. Others go on."""
        for edge in list(self._due.queue)[:1]:
            self._due.hold(edge, why)

    def _step(self, edge: Edge) -> bool:
        """Forward one batch of one router. Return whether there may be more at once."""
        if edge.source.gone or edge.dest.gone or edge.next(edge.source.head) is None:
            return False
        now = self._staging.clock.now_ms()
        # `_quiet` may wait for the log; a step that the log refuses then holds the edge.
        now_ms = self._due.elapsed_ms()
        if edge.held_until_ms > now_ms or not self._quiet(edge) or edge.held_until_ms > now_ms:
            self._due.waiting[edge] = None
            return False
        turn = edge.next(edge.source.head)
        if turn is None:
            return False
        # A snapshot that is being taken has the cursors from before this step, and needs both topics from then.
        self._staging.commits.will_change(edge.source)
        self._staging.commits.will_change(edge.dest)
        if self._table.moved is not None:
            self._table.moved[edge] = None
        router, source = turn[0], edge.source
        upto, passed = copy.next_part(*turn)
        if passed == "" or (passed == "source_trim" and edge.cyclic):  # else the loss would go round without end
            self._pass(router, upto)
            return True
        if passed is not None:
            self._trim(router, upto, copy.count_lost(router, upto))
            return True
        try:
            return self._copy(edge, router, self._gather(source, router, upto), now)
        except Damaged as damage:
            retention.lose_range(source if damage.segment in source.segments else edge.dest, damage)
            return True

    def _quiet(self, edge: Edge) -> bool:
        """Write what waits for the log, and return whether no entry keeps the edge from going on.

        An edge that has waited for `STARVED_NS` waits here for a sync.
        """
        commits = self._staging.commits
        for attempt in (None, commits.flush, commits.sync):
            if attempt is not None:
                attempt()
            dest, links = edge.dest, edge.source.links
            if not (links is None or links.frozen or dest.pending) and dest.next_seq == dest.head + 1:
                edge.starved_ns = 0
                return True
            if attempt is None:
                continue
            if edge.busy:
                break  # its own steps land soon
            now_ns = self._staging.clock.monotonic_ns()
            edge.starved_ns = edge.starved_ns or now_ns
            if not self._may_sync or now_ns - edge.starved_ns <= STARVED_NS:
                break
        return False

    def _gather(self, source: Topic, router: Router, upto: int) -> copy.Gathered:
        """Gather records, once for all routers of a fan-out: they are mostly at the same cursor."""
        match = router.config.filter
        key = source.topic_id, router.cursor, upto, source.head, source.count, match
        if self._gathered is None or self._gathered[0] != key:
            self._gathered = key, copy.gather(source, match, router.cursor, upto)
        return self._gathered[1]

    def _copy(self, edge: Edge, router: Router, gathered: copy.Gathered, now: int) -> bool:
        """Copy the gathered records as far as the destination takes them. Return whether to try this edge again now."""
        dest = edge.dest
        copier = copy.Copier(self._table, router)
        pieces, end = gathered
        made = copier.entries(pieces, dest.next_seq)
        # On a cycle, or if the log lacks the records of the source, the copies have to be logged.
        derived = not edge.cyclic and (replay.derives(edge) or dest.config.durability == "ephemeral")
        logs = self._staging.logged and not derived
        passes_on = bool(out_of(dest))
        for entry, piece in made:
            if not logs:
                router.cursor = max(router.cursor, piece.seqs[0] - 1)
            if dest.config.ttl_ms and edge.busy and entry.ts - made[0][0].ts > dest.config.ttl_ms:
                return False  # it would evict copies that have not landed yet
            fits = self._fits(edge, entry, now)
            if fits <= 0:
                return False
            if dest.config.ttl_ms and dest.evict_floor != edge.room_floor:
                # Records have expired since the last `Resume`, and a replay does not know when.
                fits = min(fits, copy.room(dest, entry.sizes, edge.replayed))
            if edge.last_error is not None or not fits:
                self._resume(edge, now)
                return True
            if not logs and dest.config.durability == "ephemeral" and self._staging.logged:
                # The log lacks the head of such a topic. Copies into others follow from the log of their source.
                if not self._staging.ceilings.allow(dest, entry.last + 1, partial(self._due.hold, edge)):
                    return True
            n, can_be_stored = copy.storable(dest, entry.sizes)
            if logs and not can_be_stored:  # give seqs to these copies, and record them as lost
                self._trim(router, piece.seqs[n - 1], n, "cap")
                return True
            fits = min(fits, n)
            # No copy may evict another one of the same step before that was forwarded further.
            while passes_on and fits > 1 and copy.reach(dest, entry, fits) > entry.first:
                fits //= 2
            if passes_on and can_be_stored and not self._make_way(edge, entry, fits, logs=logs):
                return False
            is_whole = fits == len(entry.sizes)
            if not logs:
                is_whole = copier.land(entry, piece, fits)
                edge.grew(fits, sum(entry.sizes[:fits]))
                self._landed(dest)
            else:
                upto = end if is_whole and piece is made[-1][1] else piece.seqs[fits - 1]
                self._log_step(router, upto, copier.part(entry, piece, fits))
            if not is_whole or dest.next_seq != entry.last + 1:
                return True  # the entries after it have to be made again
        self._pass(router, end)
        return edge.next(edge.source.head) is not None

    def _pass(self, router: Router, upto: int) -> None:
        """Move the cursor to `upto`: there is nothing more to copy."""
        if not (router.edge.cyclic and self._staging.logged):
            router.cursor = max(router.cursor, upto)
        elif upto > router.reached:
            self._log_step(router, upto)

    def _make_way(self, edge: Edge, entry: entries.Append, fits: int, *, logs: bool) -> bool:
        """Let routers out of the destination go first if `fits` copies would evict what they have not forwarded.

        Routers that are held give these records up, and so do all on a cycle, where each would wait for the other.
        """
        links = edge.dest.links
        upto = self._pushes_out(links, entry, fits)
        if upto is None:
            return True
        if edge.busy:
            return False  # retried once the copies before it have landed
        able = [other for other in {one.edge: None for one in links.behind(upto)} if other.last_error is None]
        if not able or edge.cyclic:
            if not logs:  # a logged step has the losses in its own frames
                self.losing(links, upto, entry)
                self._staging.commits.flush_now()
            return True
        ahead = [other for other in able if other not in self._due.waiting]
        for other in ahead:
            self._due.add(other)
        if ahead:
            self._due.add(edge)  # behind them
        else:
            edge.held_until_ms = min(other.held_until_ms for other in able)
            self._due.waiting[edge] = None
        return False

    def _log_step(self, router: Router, upto: int, made: entries.Append | None = None) -> None:
        """Stage that the router has come to `upto`, and the copies that it made."""
        dest = router.edge.dest
        step = logged = Copies(dest.topic_id, router.router_id, upto)
        ticket = Ticket(topic=dest, entry=made or step)
        if made is not None:
            step = Copies.of(router.router_id, upto, made)
            ticket.first, ticket.count, ticket.size_bytes = made.first, len(made.sizes), len(made.blob)
            ticket.gated = GATES[dest.config.durability]
        ticket.frame = entries.encode(logged if dest.config.durability == "ephemeral" else step)
        self._move(ticket, router, upto, lambda: replay.copies(self._staging.state, step))

    # --- entries for a replay: hooks that are called before a topic with routers changes

    def staging(self, links: Links, ticket: Ticket) -> None:
        """Put a mark before an entry whose replay must find the routers where they are now."""
        entry = ticket.entry
        if type(entry) is entries.Ceiling:
            return  # no router depends on it
        if ticket.count and links.incoming is not None:
            links.incoming.grew(ticket.count, ticket.size_bytes)
        if ticket.count and links.outgoing:
            upto = self._pushes_out(links, entry, ticket.count)
            if upto is not None:
                self.losing(links, upto, entry, begun=ticket.frame is not None)
        leaves_sources = bool(ticket.count) or type(entry) in PARTIES
        # The position of the routers into the topic follows from the log without a mark if their copies are in it.
        copies_are_logged = links.incoming is None or links.incoming.cyclic
        if ticket.frame is not None and not (leaves_sources and copies_are_logged):
            head = (ticket.first or links.topic.next_seq) - 1
            ticket.frame = self.pin(links, head, out=not leaves_sources) + ticket.frame
            if ticket.count and not links.written:
                # After any crash the log shows whether there was a direct write: copies skip the seqs of lost ones.
                ticket.gated = ticket.gated or AT_SYNC
        if not leaves_sources:
            self.freeze(links, ticket)

    def pin(self, links: Links, head: int, *, out: bool = True) -> bytes:
        """Return a mark for the entry behind it, which may be about another topic and take records out of this one."""
        return entries.encode_begun([copy.mark(links, head=head, out=out, holds=True)])

    def freeze(self, links: Links, ticket: Ticket) -> None:
        """Keep routers out of the topic from moving until the ticket takes effect or is refused."""
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
        for router in links.behind(upto):
            self._trim(router, upto - 1, copy.count_lost(router, upto - 1, coming), begun=begun)

    def deleting(self, links: Links) -> None:
        """Do nothing: a delete comes with a mark, see `staging`."""

    def _pushes_out(self, links: Links, entry: entries.Append, n: int) -> int | None:
        """Return the seq below which `n` records evict all others, if a router has not forwarded all of these."""
        topic, config = links.topic, links.topic.config
        if not (config.cap_records or config.cap_bytes or config.ttl_ms):
            return None
        upto = copy.reach(topic, entry, n)
        return upto if links.behind(upto) else None

    def _trim(self, router: Router, upto: int, lost: int, reason: str = "source_trim", *, begun: bool = False) -> None:
        """Stage that the router gives up all records up to `upto`: `lost` copies."""
        dest = router.edge.dest
        entry = Trim(dest.topic_id, router.router_id, upto, dest.next_seq, lost, reason)
        ticket = Ticket(topic=dest, entry=entry, first=entry.first, skips=lost)
        if self._staging.logged:
            ticket.frame = entries.encode_begun([entry]) if begun else entries.encode(entry)
            ticket.gated = copy.gate_of(router.edge)
            if dest.config.durability == "ephemeral":
                self._staging.ceilings.guard(dest, ticket, entry.first + lost)
        self._move(ticket, router, upto, lambda: replay.trim(self._staging.state, entry))

    def _move(self, ticket: Ticket, router: Router, upto: int, act: Callable[[], None]) -> None:
        """Stage a step that moves the router to `upto` once it is in the log."""
        was = router.staged_cursor

        def undo() -> None:
            router.staged_cursor = was
            if (links := router.edge.source.links) is not None:
                links.low = 0  # it included this step

        self._stage(ticket, router.edge, act, undo)
        router.staged_cursor = upto

    def _stage(self, ticket: Ticket, edge: Edge, act: Callable[[], None], undo: Callable[[], None]) -> None:
        """Stage a step of an edge. The edge goes on once the step has taken effect."""

        def take_effect(_: Ticket) -> None:
            before = edge.dest.head
            act()
            if edge.last_error is None:
                edge.backoff_ms = 0
            if edge.dest.head != before:
                self._landed(edge.dest)
            self._due.add(edge)

        def refused() -> None:
            undo()
            self._due.hold(edge)

        ticket.apply, ticket.undo = take_effect, refused
        self._staging.commits.stage(ticket)

    def _landed(self, dest: Topic) -> None:
        """Notify the readers of `dest`, and the edges out of it: copies have landed there."""
        self._staging.grew(dest)
        self._due.source_grew(dest)

    # --- a full destination

    def _fits(self, edge: Edge, entry: entries.Append, now: int) -> int:
        """Return how many of the copies the destination takes now; 0 holds the edge."""
        dest, quota = edge.dest, self._staging.limits.max_total_bytes
        if quota and self._staging.state.totals.bytes + self._staging.commits.pending_bytes + len(entry.blob) > quota:
            return self._due.hold(edge, "throttled: the server holds as much as max_total_bytes allows")
        fits = copy.room(dest, entry.sizes, copy.used(dest))
        if not fits and dest.config.ttl_ms:
            retention.expire(dest, now)
            fits = copy.room(dest, entry.sizes, copy.used(dest))
        if fits:
            return fits
        if not copy.storable(dest, entry.sizes)[1]:
            return self._due.hold(
                edge,
                f'record_too_large: a copy takes {entry.sizes[0]} bytes; topic "{dest.name}" may hold '
                f'{dest.config.cap_bytes} (cap_bytes): raise its cap, or delete the record from "{edge.source.name}"',
            )  # fmt: skip
        return self._due.hold(edge, f'topic_full: topic "{dest.name}" rejects what would pass its caps')

    def _resume(self, edge: Edge, now: int) -> None:
        """Log that the destination takes copies again: their commit time is not before now."""
        entry, was = Resume(edge.dest.topic_id, now), edge.last_error
        edge.last_error, edge.held_until_ms = None, 0

        def act() -> None:
            replay.resume(self._staging.state, entry)
            edge.room_floor, edge.replayed = edge.dest.evict_floor, copy.used(edge.dest)

        def undo() -> None:
            edge.last_error = was

        ticket = Ticket(topic=edge.dest, entry=entry, at_ms=now)  # until it takes effect, nothing younger expires
        if self._staging.logged:
            ticket.frame, ticket.gated = entries.encode(entry), copy.gate_of(edge)
        self._stage(ticket, edge, act, undo)
