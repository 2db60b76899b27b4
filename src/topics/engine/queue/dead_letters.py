"""Dead letters: jobs that were delivered too often move to the dead-letter topic, and `redrive` moves them back.

A move is one entry of the log, so a crash finds a job in one topic or in the other. A job that cannot be moved (the
other topic is full, or missing and may not be created) stays where it is and rests for a moment. The queue reports why,
and no job is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import Struct, UnsetType

from topics import logs
from topics.engine import retention
from topics.engine.queue import letter_records, pick
from topics.engine.queue.letter_records import Letter
from topics.engine.state.jobs.job import Job
from topics.engine.state.jobs.job_terms import Terms, pack_terms
from topics.engine.state.staged_deletes import StagedDelete
from topics.engine.state.topic import FIRST_CEILING, Topic, leases_of
from topics.engine.state.topics import State
from topics.engine.write import apply, removal
from topics.engine.write.commit import Ticket
from topics.engine.write.removal import Removal
from topics.engine.write.staging import Staging
from topics.engine.write.uploads import GATES
from topics.errors import TopicsError, invalid, topic_not_found
from topics.model import record_bytes
from topics.model.record_bytes import META, node_part
from topics.model.records import TagMatch
from topics.model.topic import ConfigPatch, configure
from topics.storage.log import entry as entries

logger = logs.Log("queue")

RETRY_MS = 1000


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
        return {self.topic_id} if self.append is None else {self.topic_id, self.append.topic_id}


def stage_move(
    staging: Staging,
    source: Topic,
    name: str,
    move: Moved,
    letters: list[Letter],
    leaving: Removal,
    *,
    result: Any = None,
    undo: Callable[[], object] = lambda: None,
) -> Ticket:
    """Stage that the seqs of `move` leave `source` and enter the topic `name` as `letters`. Raise if they cannot.

    A topic that does not exist is created. `leaving` is what a delete of the seqs has found beforehand. Ends with
    `result`; `undo` is called if the log refuses.
    """
    now_ms, dest = move.at_ms, staging.topics.get(name)
    if dest is None and not source.config.auto_create:
        raise topic_not_found(name)
    config = configure(name, ConfigPatch()) if dest is None else dest.config
    first, ts = (1, now_ms) if dest is None else (dest.next_seq, max(now_ms, dest.last_ts))
    move.append = append = _render(letters, 0 if dest is None else dest.topic_id, first, ts)
    staging.check_room(config, dest, append, now_ms)
    create = staging.new_topic(name, config) if dest is None else None
    if create is not None:
        append.topic_id = create.topic_id

    def take_effect(_: Ticket) -> Any:
        staged.end()
        _leave(source, move, leaving)
        staging.land(apply.create(staging.state, create) if dest is None else dest, append)  # type: ignore[arg-type]
        return result

    def refused() -> None:
        staged.refuse()
        undo()

    frame = _frame(source, config.durability, move) if staging.logged else b""
    gated = max(GATES[source.config.durability], GATES[config.durability]) if frame else 0
    size_bytes = len(append.blob)
    if create is not None:
        # With its first records, in one entry, if these are logged; synced if they pass the ceiling that it implies.
        ticket = staging.stage_create(
            create,
            take_effect,
            undo=refused,
            gated=max(gated, staging.commits.uploads.gate * (bool(frame) and append.last > FIRST_CEILING)),
            frame=entries.encode_begun([create]) + frame if frame else b"",
            size_bytes=size_bytes,
            ceiling=append.last + FIRST_CEILING,
            also=[source],
            at_ms=now_ms,
        )
    else:
        ticket = Ticket(
            dest, frame or None, take_effect, append, append.first, len(letters), size_bytes,
            gated=gated, also=[source], at_ms=now_ms, undo=refused,
        )  # fmt: skip
        staging.commits.stage(ticket)
    staged = StagedDelete(source, _delete(move))
    if source.links is not None:
        source.links.table.hooks.freeze(source.links, ticket)
    return ticket


def _frame(source: Topic, durability: str, move: Moved) -> bytes:
    """Return the frame of a move, behind a mark for the routers out of `source`; b"" if neither topic is logged."""
    if source.config.durability == "ephemeral":
        assert move.append is not None
        return b"" if durability == "ephemeral" else entries.encode(move.append)
    if durability == "ephemeral":
        move = Moved(move.topic_id, move.seqs, move.at_ms, move.dead)
    pin: bytes = b"" if source.links is None else source.links.table.hooks.pin(source.links)
    return pin + entries.encode(move)


def _render(letters: list[Letter], topic_id: int, first: int, ts: int) -> entries.Append:
    rows, metas = [], []
    for seq, letter in enumerate(letters, first):
        meta = b"" if isinstance(letter.meta, UnsetType) else META + bytes(letter.meta)
        rows.append(record_bytes.write(seq, ts, node_part(letter.node), letter.data, meta))
        metas.append(len(meta))
    tags, nodes = [letter.tag for letter in letters], [letter.node for letter in letters]
    extras = {at: pack_terms(Terms(letter.priority)) for at, letter in enumerate(letters) if letter.priority}
    return entries.Append(
        topic_id, first, ts, [len(row) for row in rows], b"".join(rows),
        tags=tags if any(tag is not None for tag in tags) else None,
        nodes=nodes if any(node is not None for node in nodes) else None,
        metas=metas if any(metas) else None,
        extras=extras or None,
    )  # fmt: skip


def _delete(move: Moved) -> entries.Delete:
    return entries.Delete(move.topic_id, 0, None, "", move.at_ms, sorted(move.seqs))


def _leave(source: Topic, move: Moved, leaving: Removal) -> None:
    apply.delete(source, _delete(move), leaving.chosen)
    if move.dead and source.queue is not None:
        source.queue.dead_lettered += len(move.seqs)


def replay_moved(state: State, entry: Moved) -> None:
    dest = None if entry.append is None else state.by_id.get(entry.append.topic_id)
    if entry.append is not None and dest is None:
        return  # the log lost the creation of the other topic: the jobs stay where they are
    if (source := state.by_id.get(entry.topic_id)) is not None:
        _leave(source, entry, Removal())
    if entry.append is not None and dest is not None:
        apply.replay_append(state, dest, entry.append)


class Redriven(Struct):
    """The jobs that a redrive moved, or would move."""

    topic: Topic
    dead_letter: str
    seqs: list[int]  # in the dead-letter topic
    next_from_seq: int
    caught_up: bool


class DeadLetters:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging

    def prepare(self, topic: Topic) -> None:
        """Wait for pending changes of the dead-letter topic, before a pass picks jobs."""
        name = topic.config.dead_letter
        if name is not None and topic.config.max_deliveries:
            dest = self._staging.topics.get(name)
            if name in self._staging.commits.creating or (dest is not None and dest.changing):
                self._staging.resolve(name)

    def bury(
        self, topic: Topic, jobs: list[Job], rendered: dict[int, pick.StoredRecord], leaving: Removal, now_ms: int
    ) -> Ticket | None:
        """Move jobs that the caller has taken out of the queue. Jobs that cannot be moved rest in it for a while.

        Return the ticket of the last move, if there is one.
        """
        letters = []
        for job in jobs:
            [letter] = letter_records.decode(record_bytes.as_object(*rendered[job.seq]))
            letter.meta = letter_records.stamp(letter.meta, topic.name, job)
            letter.priority = job.priority or 0
            letters.append(letter)
        leases_of(topic).leaving.update((job.seq, job) for job in jobs)
        return self._bury(topic, jobs, letters, leaving, now_ms)

    def _bury(
        self, topic: Topic, jobs: list[Job], letters: list[Letter], leaving: Removal, now_ms: int
    ) -> Ticket | None:
        """Move all jobs together; if that is refused, one half after the other."""
        queue = leases_of(topic)

        def rest() -> None:
            queue.release(jobs, due_ms=now_ms + RETRY_MS, now_ms=now_ms)

        name = topic.config.dead_letter
        assert name is not None
        if name in self._staging.commits.creating:  # by the move of the other half: a later pass moves this one
            rest()
            return None
        try:
            move = Moved(topic.topic_id, [job.seq for job in jobs], now_ms, True)
            ticket = stage_move(self._staging, topic, name, move, letters, leaving, undo=rest)
        except TopicsError as error:
            if len(jobs) > 1:
                half = len(jobs) // 2
                first = self._bury(topic, jobs[:half], letters[:half], leaving, now_ms)
                return self._bury(topic, jobs[half:], letters[half:], leaving, now_ms) or first
            queue.dead_letter_error = error.code.wire
            logger.warning(
                "dead_letter_blocked", topic=topic.name, dead_letter=name, seq=jobs[0].seq, reason=error.code.wire
            )
            rest()
            return None
        queue.dead_letter_error = None
        return ticket

    def redrive(
        self,
        topic: Topic,
        *,
        dead_letter: str | None,
        match: TagMatch | None,
        seqs: list[int] | None,
        from_seq: int,
        limit: int,
        dry_run: bool,
    ) -> Ticket:
        """Return dead jobs of this queue to it, with new seqs and no deliveries. Ends with `Redriven`."""
        name = topic.config.dead_letter if dead_letter is None else dead_letter
        if name is None:
            raise invalid(f'queue "{topic.name}" has no dead_letter topic', field="dead_letter")
        if name == topic.name:
            raise invalid("dead_letter must name another topic", field="dead_letter")
        source = self._staging.topics.get(name)
        if source is None or source.changing:
            source = self._staging.resolve(name)
        if source is None:
            if dead_letter is None:  # the queue's own, which the first dead job creates: there was none
                return Ticket.of(Redriven(topic, name, [], 0, True))
            raise topic_not_found(name)
        now = self._staging.clock.now_ms()
        found = letter_records.find(
            source, topic.name, match=match, seqs=seqs, from_seq=from_seq, limit=limit, now_ms=now
        )
        expiring_before = retention.expiring_before(source, now)
        rows = [row for row in found.letters if row.seq >= expiring_before]
        result = Redriven(topic, name, [row.seq for row in rows], found.upto, found.caught_up)
        if dry_run or not rows:
            return Ticket.of(result)
        for row in rows:
            row.meta, row.priority = letter_records.unstamp(row.meta), pick.terms_at(source, row.seq).priority
        leaving = removal.by_seq(source, sorted(result.seqs))
        move = Moved(source.topic_id, result.seqs, now, False)
        return stage_move(self._staging, source, topic.name, move, rows, leaving, result=result)
