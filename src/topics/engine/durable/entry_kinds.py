"""All kinds of log entries: how each is replayed, and which topics must be complete before that.

A module that reads a log imports this one, which imports the module of every kind. An entry of a kind without a row is
reported as damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from topics import logs
from topics.engine import access, retention
from topics.engine.access import AccessChanged
from topics.engine.consumers import consumer_log
from topics.engine.consumers.consumer_log import Consumed, ConsumersChanged
from topics.engine.queue import dead_letters, lease_log
from topics.engine.queue.dead_letters import Moved
from topics.engine.queue.lease_log import Extended, Leased, Released
from topics.engine.routers import replay as routers
from topics.engine.schedules import verbs as schedules
from topics.engine.schedules.verbs import ScheduleChanged, Ticked
from topics.engine.state.jobs.leases import left_range
from topics.engine.state.topics import State
from topics.engine.write import apply, archived
from topics.engine.write.archived import Archived
from topics.storage.log import entry as entries
from topics.storage.log.router_entry import Copies, Mark, Resume, RouterDrop, RouterPut, Trim

log = logs.Log("recovery")

Touches = Callable[[Any], Iterable[int]]


class Kind(NamedTuple):
    """One kind of entry."""

    entry: type[entries.Entry]
    replay: Callable[..., object]  # takes the state and the entry; with `own` the topic in between, if it exists
    # Returns the ids of the topics whose records must be complete before its replay, and whose readers a standby wakes.
    touches: Touches | None  # None: any topic


def own(entry: entries.Entry) -> Iterable[int]:
    return (entry.topic_id,)


KINDS = (
    Kind(entries.Create, apply.replay_create, lambda entry: (entry.topic_id,)),  # not `own`: there is no topic yet
    Kind(entries.Configure, apply.replay_configure, own),
    Kind(entries.Drop, lambda state, topic, _: apply.drop(state, topic), own),
    Kind(entries.Append, apply.replay_append, own),
    Kind(entries.Delete, apply.replay_delete, own),
    Kind(entries.Ceiling, apply.replay_ceiling, own),
    # A router that moves makes the topics before it catch up, and the routers behind it.
    Kind(RouterPut, routers.put_router, None),
    Kind(RouterDrop, routers.drop_router, None),
    Kind(Mark, routers.replay_mark, None),
    Kind(Trim, routers.trim, None),
    Kind(Resume, routers.resume, None),
    Kind(Copies, routers.replay_copies, None),
    Kind(Moved, dead_letters.replay_moved, Moved.topic_ids),
    Kind(Leased, lease_log.replay_leased, own),
    Kind(Released, lease_log.replay_released, own),
    Kind(Extended, lease_log.replay_extended, own),
    Kind(Archived, lambda _, topic, entry: archived.archived(topic, entry), own),
    Kind(Consumed, consumer_log.replay_consumed, own),
    Kind(AccessChanged, access.change, lambda entry: ()),
    Kind(ScheduleChanged, schedules.change, lambda entry: ()),
    Kind(Ticked, schedules.replay_ticked, Ticked.topic_ids),
    Kind(ConsumersChanged, consumer_log.change_consumers, ConsumersChanged.topic_ids),
)
_BY_ENTRY = {kind.entry: kind for kind in KINDS}


def replay(state: State, entry: entries.Entry) -> None:
    kind = _BY_ENTRY[type(entry)]
    try:
        if kind.touches is not own:
            kind.replay(state, entry)
        elif (topic := state.by_id.get(entry.topic_id)) is not None:  # else its topic was dropped
            kind.replay(state, topic, entry)
    finally:
        if state.routers is not None and type(entry) is not Mark:
            state.routers.pinned = None  # a mark applies to the entry after it alone


def replay_or_lose(state: State, entry: entries.Entry) -> str:
    """Replay one entry of the log. If it cannot be applied, lose its records, and return what failed; "" otherwise.

    Raise errors of the machine: the next start may succeed.
    """
    try:
        replay(state, entry)
        return ""
    except (OSError, MemoryError):
        raise
    except Exception as error:
        topic = state.by_id.get(entry.topic_id)
        lost = _lose(state, entries.records_of(entry)) or ("" if topic is None else f"; topic {topic.name}")
        what = f"an entry of kind {type(entry).kind} cannot be applied ({type(error).__name__}){lost}"
        log.failure("entry_not_applied", error, what=what)
        return what


def _lose(state: State, made: entries.Append | None) -> str:
    """Count records as lost whose append failed. Return their topic and seqs, for a report."""
    topic = None if made is None else state.by_id.get(made.topic_id)
    if made is None or topic is None or made.last <= topic.head:
        return ""
    topic.open.drop_uncounted()
    if topic.queue is not None:
        left_range(topic.queue, made.first, made.last + 1)
    retention.skip_to(topic, made.last + 1, "corrupt")
    return f"; topic {topic.name}, seqs {made.first} to {made.last}"


def touched_by(entry: entries.Entry) -> Iterable[int] | None:
    """Return the ids of the topics that must be complete before the entry is replayed; None for all topics."""
    touches = _BY_ENTRY[type(entry)].touches
    return None if touches is None else touches(entry)
