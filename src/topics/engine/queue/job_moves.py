"""Moves of jobs between topics: one entry of the log, so a crash finds a job in one topic or in the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import Struct

from topics.engine.state import staged_deletes
from topics.engine.state.jobs.job_terms import Terms, pack_terms
from topics.engine.state.topic import FIRST_CEILING, Topic
from topics.engine.state.topics import State
from topics.engine.write import apply, removal
from topics.engine.write.commit import Ticket
from topics.engine.write.removal import Removal
from topics.engine.write.staging import Staging
from topics.errors import topic_not_found
from topics.model import record_bytes
from topics.model.record_bytes import meta_part, node_part
from topics.model.topic import ConfigPatch, configure
from topics.storage.log import entry as entries


@entries.known
class Moved(Struct, array_like=True):
    """Records leave one topic and enter another. `append` is None if the other one keeps nothing on disk."""

    kind: ClassVar[int] = 24
    topic_id: int  # of the topic that they leave
    seqs: list[int]
    at_ms: int
    dead: bool  # whether they count as dead letters of the queue that they leave
    append: entries.Append | None = None

    def topic_ids(self) -> set[int]:
        """Return the ids of both topics."""
        return {self.topic_id} if self.append is None else {self.topic_id, self.append.topic_id}


class Copy(Struct):
    """A record on its way to another topic."""

    data: bytes
    tag: str | None
    node: str | None
    meta: bytes | None
    priority: int


class Moves:
    """Stages moves between the topics of one engine."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging

    def stage(
        self,
        source: Topic,
        name: str,
        move: Moved,
        copies: list[Copy],
        leaving: Removal,
        *,
        result: Any = None,
    ) -> Ticket:
        """Stage that the seqs of `move` leave `source` and enter the topic `name` as `copies`. Raise if they cannot.

        A topic that does not exist is created. `leaving` is what a delete of the seqs has found beforehand. Ends with
        `result`.
        """
        staging, now_ms = self._staging, move.at_ms
        dest, create = staging.topics.get(name), None
        if dest is not None:
            config = dest.config
            move.append = append = _render(copies, dest.topic_id, dest.next_seq, max(now_ms, dest.last_ts))
            staging.check_room(config, dest, append, now_ms)
        elif source.config.auto_create:
            config = configure(name, ConfigPatch())
            move.append = append = _render(copies, 0, 1, now_ms)
            staging.check_room(config, None, append, now_ms)
            create = staging.new_topic(name, config)  # with its first records, in one entry
            append.topic_id = create.topic_id
        else:
            raise topic_not_found(name)

        def take_effect(_: Ticket) -> Any:
            _leave(source, move, leaving)
            staging.land(apply.create(staging.state, create) if dest is None else dest, append)  # type: ignore[arg-type]
            return result

        frame = self._frame(source, config.durability, move)
        gated = frame is not None and "fsync" in (source.config.durability, config.durability)
        size_bytes = len(append.blob)
        if create is not None:
            above = frame is not None and append.last > FIRST_CEILING  # the ceiling that the creation implies
            ticket = staging.stage_create(
                create,
                take_effect,
                gated=gated or above,
                frame=entries.encode(create) if frame is None else entries.encode_begun([create]) + frame,
                size_bytes=size_bytes,
                ceiling=append.last + FIRST_CEILING,
                also=[source],
                at_ms=now_ms,
            )
        else:
            assert dest is not None
            ticket = Ticket(dest, frame, take_effect, append, append.first, len(copies), size_bytes, also=[source])
            ticket.gated, ticket.at_ms = gated, now_ms
            staging.commits.stage(ticket)
        return _hold(source, ticket, move)

    def _frame(self, source: Topic, durability: str, move: Moved) -> bytes | None:
        """Return the frame of a move; None if neither topic keeps anything on disk."""
        if not self._staging.logged or (source.config.durability == durability == "ephemeral"):
            return None
        if durability == "ephemeral":
            return _pinned(source, entries.encode(Moved(move.topic_id, move.seqs, move.at_ms, move.dead)))
        if source.config.durability == "ephemeral":
            assert move.append is not None
            return entries.encode(move.append)
        return _pinned(source, entries.encode(move))


def _hold(source: Topic, ticket: Ticket, move: Moved) -> Ticket:
    """Note the move as a staged delete in the topic that the jobs leave, and keep the routers out of it from moving."""
    take_effect = ticket.apply
    assert take_effect is not None
    staged = staged_deletes.stage(source, _delete(move))

    def end(done: Ticket) -> Any:
        staged.end()
        return take_effect(done)

    ticket.apply = end
    undo_also(ticket, staged.refuse)
    if source.links is not None:
        source.links.table.hooks.freeze(source.links, ticket)
    return ticket


def _pinned(source: Topic, frame: bytes) -> bytes:
    """Return the frame behind a mark that says how far the routers out of `source` are."""
    pin: bytes = b"" if source.links is None else source.links.table.hooks.pin(source.links)
    return pin + frame


def _render(copies: list[Copy], topic_id: int, first: int, ts: int) -> entries.Append:
    rows, metas = [], []
    extras = {at: pack_terms(Terms(copy.priority)) for at, copy in enumerate(copies) if copy.priority}
    for seq, copy in enumerate(copies, first):
        meta = meta_part(copy.meta)
        rows.append(record_bytes.write(seq, ts, node_part(copy.node), copy.data, meta))
        metas.append(len(meta))
    return entries.Append(
        topic_id, first, ts, [len(row) for row in rows], b"".join(rows),
        tags=[copy.tag for copy in copies] if any(copy.tag is not None for copy in copies) else None,
        nodes=[copy.node for copy in copies] if any(copy.node is not None for copy in copies) else None,
        metas=metas if any(metas) else None,
        extras=extras or None,
    )  # fmt: skip


def _delete(move: Moved) -> entries.Delete:
    return entries.Delete(move.topic_id, 0, None, "", move.at_ms, sorted(move.seqs))


def _leave(source: Topic, move: Moved, leaving: Removal) -> None:
    apply.delete(source, _delete(move), leaving.chosen)
    if move.dead and source.queue is not None:
        source.queue.dead_lettered += len(move.seqs)


def undo_also(ticket: Ticket, more: Callable[[], object]) -> None:
    """Call `more`, too, if the log refuses the ticket."""
    before = ticket.undo

    def undo() -> None:
        if before is not None:
            before()
        more()

    ticket.undo = undo


def replay_moved(state: State, entry: Moved) -> None:
    if entry.append is not None and entry.append.topic_id not in state.by_id:
        return  # the log lost the creation of the other topic: the jobs stay where they are
    if (source := state.by_id.get(entry.topic_id)) is not None:
        _leave(source, entry, removal.nothing())
    if entry.append is not None:
        apply.replay_append(state, entry.append)
