"""Changes of durability that are acknowledged only once a snapshot has the records from before the change.

A topic that leaves `ephemeral` promises to keep records, deletes and leases that the log never had. The change itself
takes effect with its entry, so that everything after it is logged; its answer waits for the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.engine.state.topic import Topic
from topics.engine.write.commit import Ticket
from topics.errors import Code, TopicsError

# Calls back once a snapshot has all that the topic's class promises, or with the error that prevents it.
Saver = Callable[[Topic, Callable[[Exception | None], None]], None]


def when_saved(saver: Saver | None, topic: Topic, changed: Ticket) -> Ticket:
    """Return a ticket that is resolved like `changed`, once a snapshot has everything that the class promises."""
    if saver is None:
        return changed
    ticket = Ticket()

    def end(failure: Exception | None) -> None:
        ticket.resolve(changed.result, None if failure is None else _not_saved(failure))

    def landed(_: Ticket) -> None:
        ticket.wal_ns, ticket.sync_ns = changed.wal_ns, changed.sync_ns
        if changed.error is not None or not topic.needs_snapshot:
            ticket.resolve(changed.result, changed.error)
        else:
            saver(topic, end)

    changed.on_done(landed)
    return ticket


def _not_saved(failure: Exception) -> TopicsError:
    """Return the error for a change that is in effect, but whose earlier records are not saved."""
    return TopicsError(
        Code.READ_ONLY,
        f"what the topic holds could not be written to the disk: {failure}; send the same request again",
        detail={"reason": str(failure), "outcome": "unsaved"},
        retry_after_ms=1000,
    )
