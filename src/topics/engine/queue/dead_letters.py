"""Dead letters: jobs that were delivered too often move to the dead-letter topic, and `redrive` moves them back.

A move is one entry of the log, so a crash finds a job in one topic or in the other. A job that cannot be moved (the
other topic is full, or missing and may not be created) stays where it is and rests for a moment. The queue reports why,
and no job is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from topics import logs
from topics.engine import past_damage, retention
from topics.engine.queue import pick
from topics.engine.read.read import Query, expire_and_read
from topics.engine.state.jobs.job import Job
from topics.engine.state.topic import Topic, leases_of
from topics.engine.state.topics import State
from topics.engine.write import apply, removal
from topics.engine.write.commit import Ticket
from topics.engine.write.delete import StagedDelete, taking
from topics.engine.write.removal import Removal
from topics.engine.write.staging import Staging
from topics.engine.write.uploads import GATES
from topics.errors import TopicsError, invalid, topic_not_found
from topics.model import record_bytes, surrogates
from topics.model.queue import Reason
from topics.model.record_bytes import META, encode_json, node_part
from topics.model.records import MAX_BATCH_BYTES, MAX_EXAMINED, Projection, TagMatch
from topics.model.topic import ConfigPatch, configure
from topics.nesting import decode_again
from topics.storage.log import entry as entries
from topics.storage.segments.cold import Cold
from topics.storage.segments.extras import Terms, pack

logger = logs.Log("queue")

RETRY_MS = 1000
MOVES_MAX = 256  # jobs that one move may have


# --- dead letters as records: how they are stamped with their origin, and found by it


MAX_FIND_EXAMINED = 5 * MAX_EXAMINED  # seqs of the dead-letter topic that one redrive examines
STAMP_FROM, STAMP_DELIVERIES, STAMP_SEQ = "$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq"
STAMP_REASON, STAMP_HISTORY = "$dead_letter_reason", "$dead_letter_history"
_STAMPS = (STAMP_FROM, STAMP_DELIVERIES, STAMP_SEQ, STAMP_REASON, STAMP_HISTORY)


class Letter(Struct, rename={"seq": "$seq", "node": "$node", "tag": "$tag", "key": "$key", "priority": "$priority"}):
    """A stored record, with its payload untouched."""

    seq: int
    data: Raw
    node: str | None = None
    tag: str | None = None
    key: str | None = None
    meta: Raw | UnsetType = UNSET
    priority: int = 0  # not in the record: see `pick.terms_at`


class FoundLetters(Struct):
    """Dead letters of one queue, the last seq examined, and whether the search reached its end."""

    letters: list[Letter]
    upto: int
    caught_up: bool


_decode_rows = msgspec.json.Decoder(list[Letter]).decode


def stamp(meta: Raw | UnsetType, source: str, job: Job, reasons: tuple[Reason, ...]) -> Raw:
    """Return the meta of a dead letter: the meta of the job, where the job came from, and why it failed."""
    stamps = b'"%b":%b,"%b":%d,"%b":%d' % (
        STAMP_FROM.encode(), encode_json(source), STAMP_DELIVERIES.encode(), job.deliveries,
        STAMP_SEQ.encode(), job.seq,
    )  # fmt: skip
    if reasons:
        last, history = encode_json(reasons[-1].reason), encode_json(reasons)
        stamps += b',"%b":%b,"%b":%b' % (STAMP_REASON.encode(), last, STAMP_HISTORY.encode(), history)
    return record_bytes.with_members(unstamp(meta), stamps)


def unstamp(meta: Raw | UnsetType) -> Raw | UnsetType:
    """Return the meta without the stamps of a dead letter; UNSET if it has nothing else."""
    if isinstance(meta, UnsetType) or b'"$dead_letter_' not in bytes(meta):
        return meta
    kept = {key: value for key, value in surrogates.members(meta).items() if key not in _STAMPS}
    return Raw(surrogates.object_of(kept)) if kept else UNSET


def decode_letters(rows: bytes) -> list[Letter]:
    """Decode stored records with a comma between each two. A payload with half a surrogate pair stays as it is."""
    text = b"[%b]" % rows
    try:
        return decode_again(_decode_rows, text)
    except msgspec.DecodeError:
        masked = surrogates.mask(text)
        if masked is None:
            raise
    letters = decode_again(_decode_rows, masked.text)
    for letter in letters:
        letter.data = masked.restore(letter.data)
        if not isinstance(letter.meta, UnsetType):
            letter.meta = masked.restore(letter.meta)
    return letters


def find_letters(
    source: Topic,
    origin: str,
    *,
    match: TagMatch | None,
    seqs: list[int] | None,
    from_seq: int,
    limit: int,
    now_ms: int,
) -> FoundLetters:
    """Return dead letters of `origin` that no worker holds and no staged delete takes.

    Look at all behind `from_seq`, or at those in `seqs`. Stop at `limit` letters, `MAX_BATCH_BYTES` of them, or
    `MAX_FIND_EXAMINED` seqs. A `from_seq` past the head finds
    nothing and continues at the head: the letters that arrive next have the seqs behind it.
    """
    head = source.head
    asked = None if seqs is None else sorted({seq for seq in seqs if 0 < seq <= head})
    ranges = [(min(from_seq, head), head)] if asked is None else [(seq - 1, seq) for seq in asked]
    found = FoundLetters([], ranges[0][0] if asked is None else 0, caught_up=False)
    examined = size_bytes = 0
    for at, stop in ranges:
        while at < stop:
            if len(found.letters) >= limit or size_bytes >= MAX_BATCH_BYTES or examined >= MAX_FIND_EXAMINED:
                return found
            query = Query(
                from_seq=at, limit=limit - len(found.letters), max_bytes=MAX_BATCH_BYTES - size_bytes, match=match,
                projection=Projection(tags=True), upto=stop,
            )  # fmt: skip
            try:
                reading = expire_and_read(source, query, now_ms)
            except Cold:
                if asked is not None:  # one load for all of them
                    pick.rows(source, [seq for seq in asked if seq > found.upto and source.is_live(seq)])
                elif examined:
                    return found  # with the letters so far; the next call continues behind them
                raise
            letters = [
                row
                for row in decode_letters(b"".join(reading.body()))
                if _is_from(row, origin)
                and not (source.queue is not None and pick.state_of(source.queue, row.seq) == "in_flight")
                and taking(source, row.seq) is None
            ]
            found.letters += letters
            size_bytes += sum(len(letter.data) for letter in letters)
            assert reading.next_from_seq > at, "a read below the head moves its cursor"
            examined += reading.next_from_seq - at
            at = found.upto = min(reading.next_from_seq, stop)
    found.caught_up = True
    return found


def _is_from(row: Letter, origin: str) -> bool:
    if row.meta is UNSET or b'"$dead_letter_from"' not in bytes(row.meta):
        return False
    return bytes(surrogates.members(row.meta).get(STAMP_FROM, Raw(b"null"))) == encode_json(origin)


# --- moves


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

    def take_effect(into: Topic) -> Any:
        staged.end()
        _leave(source, move, leaving)
        staging.land(into, append)
        return result

    def refused() -> None:
        staged.refuse()
        undo()

    frame = _frame(source, config.durability, move) if staging.logged else b""
    gated = max(GATES[source.config.durability], GATES[config.durability]) if frame else 0
    if dest is None:
        assert create is not None
        ticket = staging.stage_create(
            create, take_effect, append=append, move=frame, gated=gated, undo=refused, also=[source], at_ms=now_ms
        )
    else:
        ticket = Ticket(
            dest, frame or None, lambda _: take_effect(dest), append, append.first, len(letters), len(append.blob),
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
    pin: bytes = b"" if source.links is None else source.links.table.hooks.pin(source.links, source.next_seq - 1)
    return pin + entries.encode(move)


def _render(letters: list[Letter], topic_id: int, first: int, ts: int) -> entries.Append:
    rows, metas = [], []
    for seq, letter in enumerate(letters, first):
        meta = b"" if isinstance(letter.meta, UnsetType) else META + bytes(letter.meta)
        rows.append(record_bytes.write(seq, ts, node_part(letter.node), letter.data, meta))
        metas.append(len(meta))
    tags, nodes = [letter.tag for letter in letters], [letter.node for letter in letters]
    terms = [Terms(letter.priority, 0, letter.key) for letter in letters]
    extras = {at: pack(one) for at, one in enumerate(terms) if one.priority or one.key is not None}
    return entries.Append(
        topic_id, first, ts, [len(row) for row in rows], b"".join(rows),
        tags=tags if any(tag is not None for tag in tags) else None,
        nodes=nodes if any(node is not None for node in nodes) else None,
        metas=metas if any(metas) else None,
        extras=extras or None,
    )  # fmt: skip


def _delete(move: Moved) -> entries.Delete:
    return entries.Delete(move.topic_id, 0, None, "", move.at_ms, sorted(move.seqs), done=True)


def _leave(source: Topic, move: Moved, leaving: Removal) -> None:
    apply.delete(source, _delete(move), leaving.chosen)
    if move.dead and source.queue is not None:
        source.queue.dead_lettered += len(move.seqs)


def replay_moved(state: State, entry: Moved) -> None:
    dest = None if entry.append is None else state.by_id.get(entry.append.topic_id)
    if entry.append is not None and dest is None:
        return  # the log lost the creation of the other topic: the jobs stay where they are
    if (source := state.by_id.get(entry.topic_id)) is not None:
        if source.queue is not None:
            source.queue.take_out(source.queue.leased(entry.seqs))  # leases that had ended: no entry says so
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

    def move(self, topic: Topic, now_ms: int) -> Ticket | None:
        """Move exhausted jobs of the queue, up to `MOVES_MAX`. Return the ticket of the last move, if there is one.

        Jobs that cannot be moved stay exhausted; the next attempt is after `RETRY_MS`. Raises `Cold` like a read.
        """
        queue, name = leases_of(topic), topic.config.dead_letter
        if name is None or now_ms < queue.move_after_ms:
            return None
        dest = self._staging.topics.get(name)
        if name in self._staging.commits.creating or (dest is not None and dest.changing):
            self._staging.resolve(name)
        if topic.config.ttl_ms:
            retention.expire_loaded(topic, now_ms)
        expiring_before = retention.expiring_before(topic, now_ms)
        seqs = [
            seq
            for seq in sorted(islice(queue.exhausted, MOVES_MAX))
            if seq >= expiring_before and (not topic.staged_deletes or taking(topic, seq) is None)
        ]
        if not seqs:
            return None
        letters, leaving = past_damage.read(topic, lambda: self._read(topic, seqs))
        queue.dead_letter_error = None
        return self._move(topic, letters, leaving, now_ms)  # no letters if their records turned out to be damaged

    def _read(self, topic: Topic, seqs: list[int]) -> tuple[list[Letter], Removal]:
        """Return the dead letters of as many of the jobs as one move may have, and what a delete of them finds."""
        queue, letters = leases_of(topic), []
        for seq, fields in pick.fitting(topic, [seq for seq in seqs if seq in queue.exhausted]).items():
            [letter] = decode_letters(record_bytes.with_seq(seq, fields))
            job = queue.exhausted[seq]
            letter.meta = stamp(letter.meta, topic.name, job, queue.reasons_of(job))
            letter.priority = job.priority or 0
            letters.append(letter)
        leaving = removal.by_seq(topic, [letter.seq for letter in letters])
        return [letter for letter in letters if letter.seq in queue.exhausted], leaving  # it may have found damage

    def _move(self, topic: Topic, letters: list[Letter], leaving: Removal, now_ms: int) -> Ticket | None:
        """Move all jobs together; if that is refused, one half after the other."""
        queue, name, seqs = leases_of(topic), topic.config.dead_letter, [letter.seq for letter in letters]
        if name is None or not letters or name in self._staging.commits.creating:
            return None  # the move of the other half creates the topic: a later call moves this one
        queue.leaving.update((seq, queue.exhausted.pop(seq)) for seq in seqs)

        def put_back() -> None:
            queue.move_after_ms = now_ms + RETRY_MS
            queue.exhausted.update((seq, job) for seq in seqs if (job := queue.leaving.pop(seq, None)) is not None)

        try:
            move = Moved(topic.topic_id, seqs, now_ms, True)
            return stage_move(self._staging, topic, name, move, letters, leaving, undo=put_back)
        except TopicsError as error:
            put_back()
            if (half := len(letters) // 2) > 0:
                first = self._move(topic, letters[:half], leaving, now_ms)
                return self._move(topic, letters[half:], leaving, now_ms) or first
            queue.dead_letter_error = code = error.code.wire
            logger.warning("dead_letter_blocked", topic=topic.name, dead_letter=name, seq=seqs[0], reason=code)
            return None

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
        found = find_letters(source, topic.name, match=match, seqs=seqs, from_seq=from_seq, limit=limit, now_ms=now)
        expiring_before = retention.expiring_before(source, now)
        rows = [row for row in found.letters if row.seq >= expiring_before]
        result = Redriven(topic, name, [row.seq for row in rows], found.upto, found.caught_up)
        if dry_run or not rows:
            return Ticket.of(result)
        for row in rows:
            row.meta, row.priority = unstamp(row.meta), pick.terms_at(source, row.seq).priority
        leaving = removal.by_seq(source, sorted(result.seqs))
        move = Moved(source.topic_id, result.seqs, now, False)
        return stage_move(self._staging, source, topic.name, move, rows, leaving, result=result)
