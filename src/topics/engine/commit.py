"""Group commit: what the verbs of one turn decided goes to the log with one write, and takes effect once it is there.

A verb stages an entry and gets a ticket. At the end of the turn `flush` writes all staged frames. Most entries take effect
right then; an entry of an `fsync` topic waits until the log is synced, so that nothing is ever visible that could be refused
afterwards. What the log does not take is refused as a whole, in order, and leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from topics.engine.state import Topic
from topics.errors import Code, TopicsError
from topics.storage.wal import LogFailed

class Log(Protocol):
    """Where frames go. All calls and callbacks happen on the thread that owns the engine."""

    def write(self, frames: list[bytes]) -> None:
        """All frames, in order, to the operating system; or `LogFailed` and none of them."""

    def sync(self, done: Callable[[LogFailed | None], None]) -> None:
        """Makes everything written so far durable, then calls `done`."""

    def sync_now(self) -> None:
        """The same, waiting for it; raises `LogFailed`."""

    def after_sync(self, done: Callable[[], None]) -> None:
        """Calls `done` once everything written so far has become durable in the course of things."""

    def void(self, frames: list[bytes]) -> None:
        """These frames were written, but the sync after them failed: they must never take effect."""


class NoLog:
    """For a server without a data directory: memory is all there is."""

    def write(self, frames: list[bytes]) -> None:
        pass

    def sync(self, done: Callable[[LogFailed | None], None]) -> None:
        done(None)

    def sync_now(self) -> None:
        pass

    def after_sync(self, done: Callable[[], None]) -> None:
        done()

    def void(self, frames: list[bytes]) -> None:
        pass


class Ticket:
    """One verb under way: ends with a `result` or an `error`, then calls whoever asked to be told."""

    __slots__ = (
        "apply", "count", "done", "error", "first", "frame", "gated", "result", "size_bytes", "sync_ns", "then", "topic",
        "undo", "wal_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.topic: Topic | None = None
        self.frame: bytes | None = None  # None where nothing is logged
        self.gated = False  # whether it takes effect only once synced
        self.apply: Callable[[], Any] | None = None
        self.undo: Callable[[], None] | None = None
        self.first = 0  # of an append: its seqs, to give them back if it is refused
        self.count = 0
        self.size_bytes = 0
        self.done = False
        self.result: Any = None
        self.error: TopicsError | None = None
        self.then: Callable[[Ticket], None] | None = None
        self.wal_ns = 0
        self.sync_ns = 0

    @classmethod
    def of(cls, result: Any) -> Ticket:
        """One that needed no commit."""
        ticket = cls()
        ticket.result = result
        ticket.done = True
        return ticket

    def on_done(self, then: Callable[[Ticket], None]) -> None:
        if self.done:
            then(self)
        else:
            self.then = then

    def settle(self, result: Any, error: TopicsError | None = None) -> None:
        self.result = result
        self.error = error
        self.done = True
        if self.then is not None:
            self.then(self)

    def value(self) -> Any:
        """The result, for callers that know it is there; raises the error."""
        assert self.done, "the ticket is still under way"
        if self.error is not None:
            raise self.error
        return self.result


class Commits:
    """The tickets of this turn, and those that wait for a sync."""

    def __init__(self, log: Log, *, schedule: Callable[[Callable[[], None]], object], tick_ns: Callable[[], int]) -> None:
        self.log = log
        self.schedule = schedule
        self.tick_ns = tick_ns
        self.creating: dict[str, Ticket] = {}  # names that a staged entry brings into being
        self._staged: list[Ticket] = []
        self._written: list[Ticket] = []  # in the log, waiting for the next sync to begin
        self._syncing: list[Ticket] = []  # waiting for the sync under way
        self._sync_began_ns = 0
        self._generation = 0

    def stage(self, ticket: Ticket) -> None:
        if not self._staged:
            self.schedule(self.flush)
        self._staged.append(ticket)
        if ticket.topic is not None:
            ticket.topic.pending += 1

    def flush(self) -> None:
        """Writes what is staged, and lets it take effect unless it waits for a sync."""
        batch = self._staged
        if not batch:
            return
        self._staged = []
        frames = [ticket.frame for ticket in batch if ticket.frame is not None]
        began = self.tick_ns()
        if frames:
            try:
                self.log.write(frames)
            except LogFailed as failure:
                self.refuse(batch, failure)
                return
        took = self.tick_ns() - began
        for ticket in batch:
            ticket.wal_ns = took
            if ticket.gated:
                self._written.append(ticket)
            else:
                self._take_effect(ticket)
        if self._written and not self._syncing:
            self._begin_sync()

    def settle(self) -> None:
        """Everything staged or waiting takes effect or is refused before this returns. Waits for the disk if it must."""
        self.flush()
        if self._syncing or self._written:
            waiting = self._syncing + self._written
            self._syncing, self._written = [], []
            self._generation += 1
            began = self.tick_ns()
            try:
                self.log.sync_now()
            except LogFailed as failure:
                self._sync_failed(waiting, failure)
            else:
                self._synced(waiting, self.tick_ns() - began)

    def refuse(self, tickets: list[Ticket], failure: LogFailed) -> None:
        """None of these happened. A topic's next seq goes back to the first that was not used."""
        error = TopicsError(
            Code.READ_ONLY, f"nothing can be written: {failure}", detail={"reason": str(failure)}, retry_after_ms=1000
        )
        for ticket in reversed(tickets):
            self._leave(ticket)
            if ticket.topic is not None and ticket.first:
                ticket.topic.next_seq = ticket.first
            if ticket.undo is not None:
                ticket.undo()
        for ticket in tickets:
            ticket.settle(None, error)

    def _begin_sync(self) -> None:
        self._syncing, self._written = self._written, []
        self._generation += 1
        generation = self._generation
        self._sync_began_ns = self.tick_ns()
        self.log.sync(lambda failure: self._sync_ended(generation, failure))

    def _sync_ended(self, generation: int, failure: LogFailed | None) -> None:
        if generation != self._generation:
            return  # `settle` was quicker
        waiting, self._syncing = self._syncing, []
        if failure is None:
            self._synced(waiting, self.tick_ns() - self._sync_began_ns)
            if self._written and not self._syncing:
                self._begin_sync()
        else:
            waiting += self._written
            self._written = []
            self._sync_failed(waiting, failure)

    def _synced(self, waiting: list[Ticket], took_ns: int) -> None:
        for ticket in waiting:
            ticket.sync_ns = took_ns
            self._take_effect(ticket)

    def _sync_failed(self, waiting: list[Ticket], failure: LogFailed) -> None:
        """What waited for the sync is refused; what is staged, whose seqs may come after, with it."""
        staged, self._staged = self._staged, []
        self.log.void([ticket.frame for ticket in waiting if ticket.frame is not None])
        self.refuse(waiting + staged, failure)

    def _take_effect(self, ticket: Ticket) -> None:
        self._leave(ticket)
        assert ticket.apply is not None
        ticket.settle(ticket.apply())

    def _leave(self, ticket: Ticket) -> None:
        topic = ticket.topic
        if topic is not None:
            topic.pending -= 1
            topic.staged_count -= ticket.count
            topic.staged_bytes -= ticket.size_bytes
