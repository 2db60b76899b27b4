"""Tickets: pending verbs, and what is called once they are resolved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from topics import logs
from topics.engine.state.topic import Topic
from topics.errors import TopicsError
from topics.storage.log.frame import Frames

log = logs.Log("engine")


class Halted(Exception):
    """The log has failed or differs from the state. Nothing may be read or written until a start replays the log."""


class Ticket(Struct, eq=False):
    """One pending verb: frames that take effect together, or not at all. It is resolved with a `result` or an `error`.

    It assigns the seqs from `first` on, to `count` records or to none (`skips`).
    """

    topic: Topic | None = None
    frame: Frames | None = None  # None if nothing is logged
    apply: Callable[[Ticket], Any] | None = None
    entry: Any = None  # for `apply`
    first: int = 0  # 0 if it assigns no seqs
    count: int = 0
    size_bytes: int = 0
    ts: int = 0  # of an append that others of this turn may follow: the commit time
    followers: list[Ticket] | None = None  # tickets that become part of this entry
    gated: int = 0  # takes effect once it is written (0), synced (`AT_SYNC`) or in the replica (`AT_UPLOAD`)
    behind: bool = False  # whether it takes effect only after one that is gated
    undo: Callable[[], object] | None = None
    done: bool = False
    result: Any = None
    error: TopicsError | None = None
    then: Callable[[Ticket], None] | None = None
    wal_ns: int = 0
    sync_ns: int = 0
    also: list[Topic] | None = None  # other topics that it changes
    at_ms: int | None = None  # no record of its topics expires after this time before the ticket takes effect
    skips: int = 0
    close: Callable[[Ticket], None] | None = None  # makes the `frame` with that of the followers when the turn ends

    @classmethod
    def of(cls, result: Any) -> Ticket:
        """Return a resolved ticket, for a verb that needed no commit."""
        return cls(result=result, done=True)

    def on_done(self, then: Callable[[Ticket], None]) -> None:
        """Call `then` once the ticket is resolved, after the callbacks that were added before."""
        if self.done:
            then(self)
        elif (before := self.then) is None:
            self.then = then
        else:

            def call_both(ticket: Ticket) -> None:
                try:
                    before(ticket)
                finally:
                    then(ticket)

            self.then = call_both

    def resolve(self, result: Any, error: TopicsError | None = None) -> None:
        """Set the outcome and call `then`. An exception of a callback is logged."""
        self.result = result
        self.error = error
        self.done = True
        if self.then is not None:
            try:
                self.then(self)
            except Exception as failure:
                callback_failed(self, failure)

    def value(self) -> Any:
        """Return the result of a resolved ticket, or raise its error."""
        assert self.done, "the ticket is still pending"
        if self.error is not None:
            raise self.error
        return self.result


def callback_failed(ticket: Ticket, failure: Exception) -> None:
    """Log the exception of a callback: the ticket is resolved, and the callbacks after this one are called."""
    if isinstance(failure, Halted):
        raise failure
    log.failure("callback_failed", failure, topic="" if ticket.topic is None else ticket.topic.name)
