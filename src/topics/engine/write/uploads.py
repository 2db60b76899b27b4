"""The second gate of a commit: tickets that take effect only once the replica has them.

An entry of a `replicated` topic waits until the log is uploaded as far as its sync reached, and so does one that gives
out seqs above a ceiling that is not uploaded yet. Later entries of the same topics wait behind it. All that wait at a
moment share one upload. If the bucket does not answer, callers get 503 with an unknown outcome after a while; the
tickets stay, and take effect when they are uploaded, in the log or in a checkpoint. New ones are refused then, before
they are written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from topics.engine.state.topic import Topic
from topics.engine.write.ticket import Ticket, callback_failed
from topics.errors import Code, TopicsError
from topics.storage.log.background import LogRefused, ReplicaRefused
from topics.storage.log.frame import parts_of

AT_SYNC, AT_UPLOAD = 1, 2  # see `Ticket.gated`
GATES = {"ephemeral": 0, "memory": 0, "disk": 0, "fsync": AT_SYNC, "replicated": AT_UPLOAD}  # by class
UNKNOWN = "the write is in the log of this server, and takes effect once the replica has it, too"

Position = tuple[int, int]  # of the log: file number, and offset in that file


class Replica:
    """The copy of the log elsewhere. All calls happen on the thread that owns the engine.

    This one is that of a server without a replica: it takes no entry that promises one. `Replication` has a copy.
    """

    @property
    def covered(self) -> Position:
        """The position up to which the copy has the log. `Uploads.ended` is called when it has moved."""
        return 0, 0

    @property
    def refusal(self) -> LogRefused | None:
        """Why tickets that wait for an upload are refused now; None if they are not."""
        return ReplicaRefused("this server has no replica; set TOPICS_REPLICA, or change the durability of the topic")

    @property
    def is_cut_off(self) -> bool:
        """Whether another server may have taken over by now: then nothing is taken at all."""
        return False

    def hurry(self) -> None:
        """Upload everything that is synced: a ticket waits for it."""


class Commits(Protocol):
    """What the second gate needs of the first one, which imports it."""

    wal: Any
    tick_ns: Callable[[], int]

    def release(self, tickets: list[Ticket]) -> None: ...

    def refuse(self, tickets: list[Ticket], failure: LogRefused) -> None: ...


class Waiting(NamedTuple):
    upto: Position
    ticket: Ticket
    since_ns: int


class Uploads:
    """The tickets of one engine that wait for an upload, or behind such a ticket."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self.replica = Replica()
        self.are_staged = False  # whether a ticket that waits for an upload is staged, or nothing is taken at all
        self.on_released: Callable[[], None] = lambda: None  # called when tickets have taken effect
        self._waiting: deque[Waiting] = deque()
        self._callbacks: deque[tuple[Position, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        """Return how many tickets wait."""
        return len(self._waiting)

    @property
    def writers(self) -> int:
        """How many callers wait: those of single appends to one topic share a ticket."""
        return sum(1 + len(ticket.followers or ()) for ticket in self.tickets())

    @property
    def gate(self) -> int:
        """The gate of an entry that only a copy elsewhere makes safe: the sync, without a replica."""
        return AT_SYNC if type(self.replica) is Replica else AT_UPLOAD

    def tickets(self) -> Iterator[Ticket]:
        return (one.ticket for one in self._waiting)

    def topics(self) -> set[Topic | None]:
        """Return the topics of the tickets that wait."""
        return {topic for ticket in self.tickets() for topic in _topics_of(ticket)}

    def take(self, synced: list[Ticket]) -> list[Ticket]:
        """Let those of the synced tickets wait that need an upload, or are behind one that does. Return the others."""
        blocked, upto, now_ns = self.topics(), self._commits.wal.synced_to, self._commits.tick_ns()
        free = []
        for ticket in synced:
            if must_wait(ticket, AT_UPLOAD, blocked):
                self._waiting.append(Waiting(upto, ticket, now_ns))
            else:
                free.append(ticket)
        self.replica.hurry()
        return free

    def ended(self) -> None:
        """Release what waits for an upload, as far as the replica has the log."""
        covered = self.replica.covered
        while self._callbacks and self._callbacks[0][0] <= covered:
            self._callbacks.popleft()[1]()
        if not self._waiting or self._waiting[0].upto > covered:
            return
        released, held, blocked = [], deque[Waiting](), set[Topic | None]()
        for one in self._waiting:
            # A ticket that only waited behind others goes with them: later ones of its topic no longer wait.
            if one.upto > covered and must_wait(one.ticket, AT_UPLOAD, blocked):
                held.append(one)
            else:
                released.append(one.ticket)
        self._waiting = held
        self._commits.release(released)
        self.on_released()

    def after(self, done: Callable[[], None]) -> None:
        """Call `done` once everything written so far is durable, and in the replica if there is one."""
        if self.gate == AT_SYNC:
            self._commits.wal.after_sync(done)
            return

        def synced() -> None:
            self._callbacks.append((self._commits.wal.synced_to, done))
            self.ended()

        self._commits.wal.after_sync(synced)

    def frames(self) -> bytes:
        """Return the entries that wait. A snapshot needs them: it replaces the log, and its state lacks them."""
        return b"".join(part for one in self.tickets() if one.frame is not None for part in parts_of([one.frame]))

    def report(self, why: str, *, waited_ns: int = -1) -> None:
        """Report to the callers of all tickets that have waited for so long that the outcome is unknown.

        The tickets take effect once the log, or a checkpoint that has them, is uploaded.
        """
        now_ns = self._commits.tick_ns()
        for one in list(self._waiting):
            if now_ns - one.since_ns > waited_ns:
                _report(one.ticket, ReplicaRefused(f"{why}; {UNKNOWN}"))

    def refuse(self, failure: LogRefused) -> None:
        """Refuse all that wait: the replica is known to lack it, and the log of this server ends here."""
        tickets = list(self.tickets())
        self._waiting.clear()
        self._commits.refuse(tickets, failure)

    def without_refused(self, batch: list[Ticket]) -> list[Ticket]:
        """Refuse tickets that the replica does not take now, and later ones of their topics. Return the others."""
        self.are_staged = cut_off = self.replica.is_cut_off
        if (failure := self.replica.refusal) is None:
            return batch
        if cut_off:
            self._commits.refuse(batch, failure)
            return []
        blocked: set[Topic | None] = set()
        refused, others = list[Ticket](), list[Ticket]()
        for ticket in batch:
            (refused if must_wait(ticket, AT_UPLOAD, blocked) else others).append(ticket)
        self._commits.refuse(refused, failure)
        return others


def busy(what: str) -> TopicsError:
    """Return the error for a request that depends on a change which waits for the replica."""
    message = f"{what} waits for the replica; send the request again"
    return TopicsError(Code.REPLICA_UNAVAILABLE, message, detail={"outcome": "refused"}, retry_after_ms=100)


def _topics_of(ticket: Ticket) -> set[Topic | None]:
    """Return the topics that the ticket changes; none for the creation of a topic."""
    topics = {ticket.topic, *(ticket.also or ())}
    topics.discard(None)
    return topics


def must_wait(ticket: Ticket, gate: int, blocked: set[Topic | None]) -> bool:
    """Return whether the ticket has this gate, or changes a topic of `blocked`. Then add its topics to these."""
    topics = _topics_of(ticket)
    waits = ticket.gated >= gate or not blocked.isdisjoint(topics)
    if waits:
        blocked |= topics
    return waits


def _report(ticket: Ticket, failure: LogRefused) -> None:
    """Report to the callers of a ticket that its outcome is unknown. The ticket stays as it is."""
    error = TopicsError(failure.code, str(failure), detail={"outcome": "unknown"}, retry_after_ms=1000)
    for one in (ticket, *(ticket.followers or ())):
        then, one.then = one.then, None
        if then is not None:
            one.error = error
            try:
                then(one)
            except Exception as fault:
                callback_failed(one, fault)
            one.error = None
