"""Seq ceilings: no seq above the ceiling of a topic is acknowledged before a higher ceiling is durable.

After a crash the log may lack the last records of a topic; of an ephemeral topic it has none. A log file that is cut
short or missing lacks those of any topic, which is why the ceiling is in the ledger, too. The ceiling bounds the seqs
that may have been given out, so a start goes on above it and reports the range between as lost. It is raised a few
thousand seqs at a time, well before the seqs reach it, so that hardly any write waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.engine.state.topic import Topic
from topics.engine.write import apply
from topics.engine.write.commit import Ticket
from topics.storage.log import entry as log

if TYPE_CHECKING:
    from topics.engine.engine import Engine

MAX_STEP = 1 << 20


def guard(engine: Engine, topic: Topic, ticket: Ticket, end: int) -> None:
    """Raise the ceiling if seqs below `end` come near it; let `ticket`, which gives them out, wait if they pass it."""
    margin = topic.ceiling_step // 2
    if end > topic.ceiling - margin:
        if end > topic.ceiling_staged - margin:
            engine.commits.stage(_ticket(engine, topic, end))
        if end > topic.ceiling:
            ticket.gated = True


def stage_gated(engine: Engine, topic: Topic, end: int, refused: Callable[[], None]) -> None:
    """Stage a ceiling above `end` as a change of the topic itself, for a caller without a ticket that could wait."""
    ticket = _ticket(engine, topic, end)
    ticket.topic, ticket.gated = topic, True
    undo = ticket.undo
    assert undo is not None

    def undo_both() -> None:
        undo()
        refused()

    ticket.undo = undo_both
    engine.commits.stage(ticket)


def _ticket(engine: Engine, topic: Topic, end: int) -> Ticket:
    """A ceiling above `end`; further above while the seqs come faster than ceilings are synced."""
    if end > topic.ceiling_staged or topic.ceiling < topic.ceiling_staged:
        topic.ceiling_step = min(topic.ceiling_step * 4, MAX_STEP)
    before, ceiling = topic.ceiling_staged, end + topic.ceiling_step
    topic.ceiling_staged = ceiling
    apply.note(engine.state, topic)
    entry = log.Ceiling(topic.topic_id, ceiling)

    def synced() -> None:
        if ceiling <= topic.ceiling_staged:  # else a last snapshot has lowered it meanwhile
            topic.ceiling = max(topic.ceiling, ceiling)

    def take_effect(ticket: Ticket) -> None:
        if ticket.gated:
            synced()
        else:
            engine.commits.log.after_sync(synced)

    def undo() -> None:
        topic.ceiling_staged = before

    return Ticket(frame=log.encode(entry), apply=take_effect, entry=entry, undo=undo)
