"""Group commit: the entries of one turn go to the log with one write, and take effect once they are there.

docs/invariants.md, section Log and effect, says what holds here. Single records that are appended to one topic in one
turn share an entry: the first leads, and the others follow it into the log and into the topic, at a fraction of the
cost. A batch with a large append is written on another thread; entries that are staged meanwhile form the next batch.

With a replica there is a second gate, after the sync: see `uploads`. No call waits for it.

If the log fails during a write or a sync, or an entry in the log cannot be applied, the engine halts: it answers
nothing more, and a new start replays the log. The exception is an entry without records, such as a delete,
that cannot read the disk: see `_not_applied`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import NoReturn

from topics import logs
from topics.engine.state.topic import Topic
from topics.engine.write.ticket import Halted as Halted
from topics.engine.write.ticket import Ticket as Ticket
from topics.engine.write.ticket import callback_failed
from topics.engine.write.uploads import AT_SYNC, AT_UPLOAD, Uploads, must_wait
from topics.errors import Code, TopicsError
from topics.model.topic import SYNCED
from topics.storage.log.background import Log as Log
from topics.storage.log.background import LogRefused
from topics.storage.log.frame import Frames

log = logs.Log("engine")


class Commits:
    """The tickets of this turn, and those that wait for a sync."""

    def __init__(
        self,
        wal: Log,
        *,
        schedule: Callable[[Callable[[], None]], object],
        tick_ns: Callable[[], int],
    ) -> None:
        self.schedule = schedule
        self.tick_ns = tick_ns
        self.creating: dict[str, Ticket] = {}  # by name: staged creations of topics
        self.turn_ms = 0  # the time of all writes of this turn; 0 before the first
        self.turn = 0  # how often a batch was closed: a ticket that collects changes is complete once this moves on
        self.batch_writes = 0  # entries of the last batch, followers included
        # Called with a topic before the first change of it, while a snapshot is being taken.
        self.before_change: Callable[[Topic], None] | None = None
        self.guard: Callable[[Topic, Ticket, int], None]  # `Ceilings.guard`: raises a ceiling that a ticket comes near
        self.pending_bytes = 0  # of accepted records of all topics that have not taken effect yet
        self.has_large = False  # whether a large append is staged
        self._staged: list[Ticket] = []
        self._writing: list[Ticket] | None = None  # the batch that is written on another thread
        self._written: list[Ticket] = []  # in the log; they wait for the next sync, or behind a ticket that does
        self._syncing: list[Ticket] = []  # waiting for the sync that runs
        self.uploads = Uploads(self)
        self._landing: deque[Ticket] = deque()  # about to take effect
        self._sync_began_ns = 0
        self._generation = 0
        self.gather_turns = 0  # how many turns the next sync waits after one has ended: see `engine/delays.py`
        self._gathering = 0  # how many of these turns are left
        self.halted: Exception | None = None  # why nothing more is answered
        self.on_halt: Callable[[Exception], object] = lambda error: None  # ends the process of a server
        # Makes the copies that follow from this turn if they are few, before the next request is read.
        self.copy_now: Callable[[], None] | None = None
        self.attach(wal)

    def attach(self, wal: Log) -> None:
        self.wal = wal
        wal.failed = self._halt

    def stage(self, ticket: Ticket) -> None:
        """Add the ticket to this turn, assign its seqs, and count it for all its topics until it takes effect.

        A plain append may lead others until another entry of its topic is staged.
        """
        if self.halted is not None:
            self._halt(self.halted)
        topic, count = ticket.topic, ticket.count
        if topic is not None:
            end = ticket.first + count + ticket.skips
            if count and end > topic.ceiling - topic.ceiling_step // 2:
                self.guard(topic, ticket, end)
            if topic.links is not None:
                topic.links.table.hooks.staging(topic.links, ticket)
            if self.before_change is not None:
                self.before_change(topic)
        if not self._staged:
            self.schedule(self.end_turn)
        self._staged.append(ticket)
        self.pending_bytes += ticket.size_bytes
        if ticket.also is not None:
            also, ticket.also = ticket.also, []
            if any(one.waiting for one in (topic, *also) if one is not None):
                ticket.gated = ticket.gated or AT_SYNC  # to keep its place in the order of each of its topics
            for one in also:
                self.include(ticket, one)
        if topic is not None:
            if topic.waiting and not ticket.gated:
                ticket.behind = True
            topic.enter(ticket)
        if ticket.gated == AT_UPLOAD:
            self.uploads.are_staged = True

    def include(self, ticket: Ticket, topic: Topic) -> None:
        """Count a staged ticket for another topic that it changes. It must wait if a ticket of that topic waits."""
        self.will_change(topic)
        topic.enter(ticket)
        if ticket.also is None:
            ticket.also = []
        ticket.also.append(topic)

    def will_change(self, topic: Topic) -> None:
        """Announce a change of `topic` that is not logged. `stage` announces those that a ticket names."""
        if self.before_change is not None:
            self.before_change(topic)

    def end_turn(self) -> None:
        """Flush, and make the copies that follow, if they are few. No verb calls this: copies change other topics."""
        self.flush()
        if self.copy_now is not None:
            self.copy_now()

    def flush(self) -> None:
        """Write all staged frames, and apply the tickets that need not wait for a sync.

        While a large write is pending, what is staged waits for its end. `flush_now` waits, too.
        """
        batch = self._staged
        if not batch:
            return
        self.turn_ms = 0
        if self._writing is not None:
            return
        self._staged = []
        if self.uploads.are_staged:
            batch = self.uploads.without_refused(batch)
        self.turn += 1
        frames: list[Frames] = []
        self.batch_writes = len(batch)
        try:
            for ticket in batch:
                if ticket.topic is not None:
                    ticket.topic.leader = None  # the batch is closed: later appends must not join this leader
                if ticket.followers is not None:
                    self.batch_writes += len(ticket.followers)
                if ticket.close is not None:
                    ticket.close(ticket)
                if ticket.frame is not None:
                    frames.append(ticket.frame)
            began = self.tick_ns()
            has_large, self.has_large = self.has_large, False
            try:
                if frames and has_large:
                    self._writing = batch
                    self.wal.write_large(frames, lambda: self._large_written(batch, began))
                    return
                if frames:
                    self.wal.write(frames)
            except LogRefused as failure:
                self._writing = None
                # Tickets without a frame are refused if their seqs follow those of a ticket with one.
                self.refuse([one for one in batch if one.frame is not None or one.gated or one.behind], failure)
                batch = [ticket for ticket in batch if not ticket.done]
            self._logged(batch, self.tick_ns() - began)
        except Exception as failure:  # what the log has of this batch is unknown
            self._halt(failure)

    def _large_written(self, batch: list[Ticket], began_ns: int) -> None:
        self._writing = None
        self._logged(batch, self.tick_ns() - began_ns)
        self.flush_soon()

    def _logged(self, batch: list[Ticket], took_ns: int) -> None:
        """Apply the tickets of the batch that was just written, except for those that wait for a sync."""
        for ticket in batch:
            ticket.wal_ns = took_ns
            # `topic.waiting` counts later tickets, too.
            if ticket.gated or (
                ticket.behind
                and any(
                    one.gated and (one.topic is ticket.topic or (one.also is not None and ticket.topic in one.also))
                    for one in chain(self.uploads.tickets(), self._syncing, self._written)
                )
            ):
                self._written.append(ticket)
            else:
                self._landing.append(ticket)
        self._land()
        if self._written and not self._gathering:
            self._gather()

    def flush_now(self) -> None:
        """Write everything that is staged, and wait for large writes."""
        self.wal.finish_large()
        self.flush()
        self.wal.finish_large()

    def sync(self) -> None:
        """Write and sync everything that is staged, now. All tickets are done afterwards, or wait for an upload."""
        self._land()
        self.flush_now()
        if self._syncing or self._written:
            waiting = self._syncing + self._written
            self._syncing, self._written = [], []
            self._generation += 1
            began = self.tick_ns()
            self.wal.sync_now()
            self._synced(waiting, self.tick_ns() - began)
        if self._staged:  # by the callback of a ticket: a nack moves exhausted jobs
            self.sync()

    def refuse(self, tickets: list[Ticket], failure: LogRefused) -> None:
        """Undo these tickets and resolve them with an error. A topic's next seq goes back to the first unused seq."""
        detail = {"reason": str(failure), "outcome": "refused"}
        error = TopicsError(failure.code, f"nothing can be written: {failure}", detail=detail, retry_after_ms=1000)
        for ticket in reversed(tickets):
            self.pending_bytes -= ticket.size_bytes
            for topic in ticket.also or ():
                topic.leave(ticket)
            if ticket.topic is not None:
                ticket.topic.give_back(ticket)
            if ticket.undo is not None:
                ticket.undo()
        for ticket in tickets:
            ticket.resolve(None, error)
            for follower in ticket.followers or ():
                follower.resolve(None, error)

    def _gather(self, *, passed: int = 0) -> None:
        """Begin the next sync if tickets wait for one and no turns are left to wait, now that some have `passed`."""
        if passed and not self._gathering:
            return  # a sync has begun in between
        self._gathering -= passed
        if self._syncing or not self._written:
            self._gathering = 0
        elif self._gathering:
            self.schedule(partial(self._gather, passed=1))
        else:
            self._syncing, self._written = self._written, []
            self._generation += 1
            generation = self._generation
            self._sync_began_ns = self.tick_ns()
            self.wal.sync(lambda: self._sync_ended(generation))

    def _sync_ended(self, generation: int) -> None:
        if generation != self._generation:
            return  # `sync` was quicker
        waiting, self._syncing = self._syncing, []
        self._synced(waiting, self.tick_ns() - self._sync_began_ns)
        if self._written:
            self._gathering = self.gather_turns
            self._gather()
        if self.copy_now is not None:
            self.copy_now()

    def _synced(self, waiting: list[Ticket], took_ns: int) -> None:
        for ticket in waiting:
            # Writes of the other classes wait for a ceiling once in a while; they promise no sync, and report none.
            if ticket.topic is None or ticket.topic.config.durability in SYNCED:
                ticket.sync_ns = took_ns
        if self.uploads or any(ticket.gated == AT_UPLOAD for ticket in waiting):
            waiting = self.uploads.take(waiting)
        self.release(waiting)
        if self.uploads:
            self.uploads.ended()  # another sync may have covered them, and its upload may be over

    def release(self, tickets: list[Ticket]) -> None:
        """Apply tickets that need not wait any longer, and those behind them."""
        self._landing.extend(tickets)
        if self._written or self._syncing:
            self._release()
        self._land()

    def flush_soon(self) -> None:
        """Write what is staged at the end of this turn: it was held back."""
        if self._staged:
            self.schedule(self.end_turn)

    def _release(self) -> None:
        """Release tickets that only waited behind a gated ticket of the same topic.

        An upload can end while a sync is in flight: tickets behind it may be among those that are being synced.
        """
        blocked = self.uploads.topics()
        for queue in (self._syncing, self._written):
            held: list[Ticket] = []
            for ticket in queue:
                (held if must_wait(ticket, AT_SYNC, blocked) else self._landing).append(ticket)
            queue[:] = held

    def _land(self) -> None:
        """Apply and resolve tickets in order, even if a callback of a ticket stages or syncs more.

        Raise `Halted` if an entry cannot be applied: no ticket after it may be answered.
        """
        landing = self._landing
        # Bound: the tickets that are ready. Tickets that a callback stages land here only if it also syncs them.
        while landing:
            ticket = landing.popleft()
            followers = ticket.followers
            self.pending_bytes -= ticket.size_bytes
            if ticket.topic is not None:
                ticket.topic.leave(ticket)
            for topic in ticket.also or ():
                topic.leave(ticket)
            try:
                if ticket.apply is not None:
                    ticket.result = ticket.apply(ticket)
            except Exception as failure:
                if ticket.count or not isinstance(failure, OSError):
                    self._halt(failure, ticket)
                ticket.error = _not_applied(ticket, failure)
            ticket.done = True
            if ticket.then is not None:  # as in `Ticket.resolve`, without a call
                try:
                    ticket.then(ticket)
                except Exception as failure:
                    callback_failed(ticket, failure)
            for one in followers or ():
                one.error, one.wal_ns, one.sync_ns, one.done = ticket.error, ticket.wal_ns, ticket.sync_ns, True
                if one.then is not None:
                    try:
                        one.then(one)
                    except Exception as failure:
                        callback_failed(one, failure)

    def _halt(self, failure: Exception, ticket: Ticket | None = None) -> NoReturn:
        """End all work: the log has failed, or the state differs from it. A server ends its process here."""
        if self.halted is None:
            self.halted = failure
            topic = None if ticket is None else ticket.topic
            log.failure("halted", failure, topic="" if topic is None else topic.name)
            self.on_halt(failure)
        raise Halted(f"a new start must replay the log: {failure or type(failure).__name__}") from failure


def _not_applied(ticket: Ticket, failure: OSError) -> TopicsError:
    """Log a change that the log has and the disk prevents, and return the error that says what becomes of it."""
    name = "" if ticket.topic is None else ticket.topic.name
    reason = failure.strerror or str(failure)
    log.error("entry_not_applied", topic=name, reason=reason, file=failure.filename or "")
    message = (
        f"the change is in the log, but not all of it is applied, because stored records cannot be read: {reason}; "
        "the rest is applied at the next start, or when the same request is sent again"
    )
    return TopicsError(Code.READ_ONLY, message, detail={"reason": reason, "outcome": "logged"}, retry_after_ms=1000)
