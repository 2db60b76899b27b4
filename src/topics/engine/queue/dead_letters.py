"""Jobs that change topics: to the dead-letter topic when they were delivered too often, and back again.

A move is one entry of the log, so a crash finds a job in one topic or in the other, never in both and never in none.
What cannot be moved (the other topic is full, or gone and may not be made) stays where it is, rests a moment, and the
queue tells why: nothing is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from topics import logs
from topics.engine.queue import pick
from topics.engine.read.read import Query, Reading, expire_and_read
from topics.engine.state.leases import Job, Leases, Terms, leases_of, pack_terms, terms_of
from topics.engine.state.topic import FIRST_CEILING, Topic
from topics.engine.state.topics import State
from topics.engine.write import apply, ceilings, removal
from topics.engine.write.commit import Ticket
from topics.engine.write.removal import Removal
from topics.errors import TopicsError, invalid, topic_not_found
from topics.model import surrogates
from topics.model.nesting import decode_again
from topics.model.records import MAX_BATCH_BYTES, MAX_EXAMINED, Projection, TagMatch
from topics.model.topic import ConfigPatch, configure
from topics.storage.log import entry as log
from topics.storage.segments.cold import Cold

if TYPE_CHECKING:
    from topics.engine.engine import Engine

logger = logs.Log("queue")

RETRY_MS = 1000
MAX_FIND_EXAMINED = 5 * MAX_EXAMINED  # seqs of the dead-letter topic that one redrive examines
STAMP_FROM, STAMP_DELIVERIES, STAMP_SEQ = "$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq"
_STAMPS = (STAMP_FROM, STAMP_DELIVERIES, STAMP_SEQ)

_encode_json = msgspec.json.encode


@log.known
class Moved(Struct, array_like=True):
    """Records leave one topic and enter another. `append` is None where the other one keeps nothing on disk."""

    kind: ClassVar[int] = 24
    topic_id: int  # the one they leave
    seqs: list[int]
    at_ms: int
    dead: bool  # whether they count as dead letters of the queue that they leave
    append: log.Append | None = None


class Letter(Struct, rename={"seq": "$seq", "node": "$node", "tag": "$tag"}):
    """A record as it was rendered, its payload untouched."""

    seq: int
    data: Raw
    node: str | None = None
    tag: str | None = None
    meta: Raw | UnsetType = UNSET


class Copy(Struct):
    """A record on its way to another topic."""

    data: bytes
    tag: str | None
    node: str | None
    meta: bytes | None
    priority: int


class Redriven(Struct):
    """What a redrive moved, or would have."""

    topic: Topic
    dead_letter: str
    seqs: list[int]  # in the dead-letter topic
    next_from_seq: int
    caught_up: bool


class Found(Struct):
    """Dead letters of one queue, the last seq examined, and whether the search reached its end."""

    letters: list[Letter]
    upto: int
    caught_up: bool


_decode_rows = msgspec.json.Decoder(list[Letter]).decode


# --- to the dead-letter topic


def prepare(engine: Engine, topic: Topic) -> None:
    """Lets everything that is under way with the dead-letter topic itself take effect, before a pass picks jobs."""
    name = topic.config.dead_letter
    if name is not None and topic.config.max_deliveries:
        dest = engine.topics.get(name)
        if name in engine.commits.creating or (dest is not None and dest.changing):
            engine._settled(name)


def bury(
    engine: Engine, topic: Topic, jobs: list[Job], rendered: dict[int, pick.Stored], leaving: Removal, now_ms: int
) -> None:
    """Moves jobs that are in no place of the queue any more; those that cannot be moved rest there for a while."""
    queue = leases_of(topic)
    copies = []
    for job in jobs:
        [row] = _letters(rendered[job.seq].whole())
        meta = stamp(None if row.meta is UNSET else bytes(row.meta), topic.name, job)
        copies.append(Copy(bytes(row.data), row.tag, row.node, meta, job.priority or 0))
    for job in jobs:
        queue.leaving[job.seq] = job
    _bury(engine, topic, jobs, copies, leaving, now_ms)


def _bury(engine: Engine, topic: Topic, jobs: list[Job], copies: list[Copy], leaving: Removal, now_ms: int) -> None:
    """All of them together; where that is too much, one half after the other."""
    queue = leases_of(topic)

    def rest() -> None:
        queue.release(jobs, due_ms=now_ms + RETRY_MS, now_ms=now_ms)

    name = topic.config.dead_letter
    assert name is not None
    try:
        move = Moved(topic.topic_id, [job.seq for job in jobs], now_ms, True)
        ticket = _move(engine, topic, name, move, copies, leaving)
    except TopicsError as error:
        if len(jobs) > 1:
            half = len(jobs) // 2
            _bury(engine, topic, jobs[:half], copies[:half], leaving, now_ms)
            _bury(engine, topic, jobs[half:], copies[half:], leaving, now_ms)
            return
        queue.dead_letter_error = error.code.wire
        logger.warning(
            "dead_letter_blocked", topic=topic.name, dead_letter=name, seq=jobs[0].seq, reason=error.code.wire
        )
        rest()
    else:
        queue.dead_letter_error = None
        _undo_also(ticket, rest)


def stamp(meta: bytes | None, source: str, job: Job) -> bytes:
    """The meta of a dead letter: what it was, and where the job came from."""
    stamps = b'"%b":%b,"%b":%d,"%b":%d' % (
        STAMP_FROM.encode(), _encode_json(source), STAMP_DELIVERIES.encode(), job.deliveries,
        STAMP_SEQ.encode(), job.seq,
    )  # fmt: skip
    meta = unstamp(meta)
    if meta is None or not meta[1:-1].strip():
        return b"{%b}" % stamps
    return b"%b,%b}" % (meta.rstrip()[:-1], stamps)


def unstamp(meta: bytes | None) -> bytes | None:
    """The meta without the stamps of a dead letter; None where nothing else was in it."""
    if meta is None or b'"$dead_letter_' not in meta:
        return meta
    kept = {key: value for key, value in surrogates.members(meta).items() if key not in _STAMPS}
    return surrogates.object_of(kept) if kept else None


def _letters(rows: bytes) -> list[Letter]:
    """Stored records, with a comma between each two. What half a surrogate pair is in stays as it is."""
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


# --- and back


def redrive(
    engine: Engine,
    topic: Topic,
    *,
    dead_letter: str | None,
    match: TagMatch | None,
    seqs: list[int] | None,
    from_seq: int,
    limit: int,
    dry_run: bool,
) -> Ticket:
    """Jobs that died in this queue return to it, with new seqs and as if never delivered. Ends with `Redriven`."""
    name = topic.config.dead_letter if dead_letter is None else dead_letter
    if name is None:
        raise invalid(f'queue "{topic.name}" has no dead_letter topic', field="dead_letter")
    if name == topic.name:
        raise invalid("dead_letter must name another topic", field="dead_letter")
    source = engine.topics.get(name)
    if source is None or source.changing:
        source = engine._settled(name)
    if source is None:
        if dead_letter is None:  # the queue's own, which is made when the first job dies: none did
            return Ticket.of(Redriven(topic, name, [], 0, True))
        raise topic_not_found(name)
    now = engine.clock.now_ms()
    found = _find(source, topic.name, match=match, seqs=seqs, from_seq=from_seq, limit=limit, now_ms=now)
    rows = found.letters
    result = Redriven(topic, name, [row.seq for row in rows], found.upto, found.caught_up)
    if dry_run or not rows:
        return Ticket.of(result)
    copies = [
        Copy(bytes(row.data), row.tag, row.node, unstamp(bytes(row.meta)), _priority(source, row.seq))
        for row in rows
        if row.meta is not UNSET
    ]
    leaving = removal.by_seq(source, sorted(result.seqs))
    move = Moved(source.topic_id, result.seqs, now, False)
    ticket = _move(engine, source, topic.name, move, copies, leaving, result=result)
    if source.queue is not None:
        _undo_also(ticket, _reserve(source.queue, result.seqs, now))
    return ticket


def _find(
    source: Topic,
    origin: str,
    *,
    match: TagMatch | None,
    seqs: list[int] | None,
    from_seq: int,
    limit: int,
    now_ms: int,
) -> Found:
    """Return dead letters of `origin` that no worker holds.

    Stop at `limit` letters, `MAX_BATCH_BYTES` of them, or `MAX_FIND_EXAMINED` seqs. A `from_seq` past the head finds
    nothing and continues at the head: the letters that arrive next have the seqs behind it.
    """
    if seqs is not None:
        return _find_seqs(source, origin, sorted(set(seqs)), match=match, limit=limit, now_ms=now_ms)
    found = Found([], min(from_seq, source.head), caught_up=False)
    examined = size_bytes = 0
    while (
        found.upto < source.head
        and len(found.letters) < limit
        and size_bytes < MAX_BATCH_BYTES
        and examined < MAX_FIND_EXAMINED
    ):
        query = Query(
            from_seq=found.upto, limit=limit - len(found.letters), max_bytes=MAX_BATCH_BYTES - size_bytes, match=match,
            projection=Projection(tags=True),
        )  # fmt: skip
        try:
            reading = expire_and_read(source, query, now_ms)
        except Cold:
            if not examined:
                raise
            break  # what was found goes first; the answer says where to go on
        letters = _letters_of(source, origin, reading)
        found.letters += letters
        size_bytes += sum(len(letter.data) for letter in letters)
        assert reading.next_from_seq > found.upto, "a read below the head moves its cursor"
        examined += reading.next_from_seq - found.upto
        found.upto = reading.next_from_seq
    found.caught_up = found.upto >= source.head
    return found


def _find_seqs(
    source: Topic, origin: str, seqs: list[int], *, match: TagMatch | None, limit: int, now_ms: int
) -> Found:
    """The same for single seqs, ascending. `caught_up` says whether all of them were examined."""
    found = Found([], 0, caught_up=True)
    size_bytes = 0
    for seq in seqs:
        if not 0 < seq <= source.head:
            continue
        if len(found.letters) >= limit or size_bytes >= MAX_BATCH_BYTES:
            found.caught_up = False
            break
        query = Query(
            from_seq=seq - 1,
            limit=1,
            max_bytes=MAX_BATCH_BYTES,
            match=match,
            projection=Projection(tags=True),
            upto=seq,
        )
        try:
            reading = expire_and_read(source, query, now_ms)
        except Cold:
            pick.rows(source, [seq for seq in seqs if seq > found.upto and source.is_live(seq)])
            raise
        letters = _letters_of(source, origin, reading)
        found.letters += letters
        size_bytes += sum(len(letter.data) for letter in letters)
        found.upto = seq
    return found


def _letters_of(source: Topic, origin: str, reading: Reading) -> list[Letter]:
    rows = _letters(b"".join(reading.body()))
    return [row for row in rows if _is_from(row, origin) and not _is_out(source, row.seq)]


def _is_from(row: Letter, origin: str) -> bool:
    if row.meta is UNSET or b'"$dead_letter_from"' not in bytes(row.meta):
        return False
    return bytes(surrogates.members(row.meta).get(STAMP_FROM, Raw(b"null"))) == _encode_json(origin)


def _is_out(topic: Topic, seq: int) -> bool:
    queue = topic.queue
    return queue is not None and (seq in queue.leases or seq in queue.leaving)


def _priority(topic: Topic, seq: int) -> int:
    segment = topic.segments[topic.index_of(seq)]
    extra = segment.columns.extras.get(seq - segment.first)
    terms = None if extra is None else terms_of(extra)
    return 0 if terms is None else terms.priority


def _reserve(queue: Leases, seqs: list[int], now_ms: int) -> Any:
    """Keeps workers of the dead-letter topic, which is a queue itself, off these jobs; the answer undoes that."""
    jobs = [queue.find(seq) or Job(seq) for seq in seqs]
    queue.left(seqs)
    queue.leaving.update({job.seq: job for job in jobs})
    queue.check_upto = max(queue.check_upto, *seqs)
    return lambda: queue.release(jobs, due_ms=0, now_ms=now_ms)


# --- the move itself


def _move(
    engine: Engine,
    source: Topic,
    name: str,
    move: Moved,
    copies: list[Copy],
    leaving: Removal,
    *,
    result: Any = None,
) -> Ticket:
    """Stages that the seqs of `move` leave `source` and enter the topic `name` as `copies`, or raises why they cannot.

    `leaving` is what a delete of the seqs has to know beforehand.
    """
    engine.commits.will_change(source)
    dest = engine.topics.get(name)
    if dest is None:
        return _move_creating(engine, source, name, move, copies, leaving, result=result)
    now_ms = move.at_ms
    move.append = append = _render(copies, dest.topic_id, dest.next_seq, max(now_ms, dest.last_ts))
    engine._check_room(dest.config, dest, append, now_ms)

    def take_effect(_: Ticket) -> Any:
        _leave(source, move, leaving)
        engine._land(dest, append)
        return result

    frame = _frame(engine, source, dest.config.durability, move)
    ticket = Ticket(dest, frame, take_effect, append, append.first, len(copies), len(append.blob))
    ticket.gated = frame is not None and "fsync" in (source.config.durability, dest.config.durability)
    _take_seqs(engine, dest, ticket)
    engine.commits.stage(ticket)
    return _hold(source, ticket)


def _move_creating(
    engine: Engine,
    source: Topic,
    name: str,
    move: Moved,
    copies: list[Copy],
    leaving: Removal,
    *,
    result: Any,
) -> Ticket:
    """The same where the other topic has to be made first: its first records come with it."""
    if not source.config.auto_create:
        raise topic_not_found(name)
    config = configure(name, ConfigPatch())
    move.append = append = _render(copies, 0, 1, move.at_ms)
    engine._check_room(config, None, append, move.at_ms)
    create = engine._new_topic(name, config)
    append.topic_id = create.topic_id

    def take_effect(_: Ticket) -> Any:
        _leave(source, move, leaving)
        engine._land(apply.create(engine.state, create), append)
        return result

    frame = _frame(engine, source, config.durability, move)
    above = append.last > FIRST_CEILING  # the ceiling that the creation implies
    gated = frame is not None and (above or "fsync" in (source.config.durability, config.durability))
    size_bytes = len(append.blob)
    ticket = engine._stage_create(
        create, take_effect, gated=gated, then=frame or b"", size_bytes=size_bytes, ceiling=append.last + FIRST_CEILING
    )
    return _hold(source, ticket)


def _hold(source: Topic, ticket: Ticket) -> Ticket:
    """While the move is under way, so is something with the topic that is left."""
    take_effect = ticket.apply
    assert take_effect is not None

    def over() -> None:
        source.pending -= 1

    def end(done: Ticket) -> Any:
        over()
        return take_effect(done)

    source.pending += 1
    ticket.apply = end
    _undo_also(ticket, over)
    if source.links is not None:
        source.links.freeze(ticket)
    return ticket


def _take_seqs(engine: Engine, dest: Topic, ticket: Ticket) -> None:
    """The seqs of a write are its own from here on, and never given out again once it was acknowledged."""
    end = ticket.first + ticket.count
    if engine.logged:
        ceilings.guard(engine, dest, ticket, end)
    dest.next_seq = end
    dest.staged_count += ticket.count
    dest.staged_bytes += ticket.size_bytes


def _frame(engine: Engine, source: Topic, durability: str, move: Moved) -> bytes | None:
    """What outlives the process of a move between topics that may keep nothing."""
    if not engine.logged or (source.config.durability == durability == "ephemeral"):
        return None
    if durability == "ephemeral":
        return _pinned(source, log.encode(Moved(move.topic_id, move.seqs, move.at_ms, move.dead)))
    if source.config.durability == "ephemeral":
        assert move.append is not None
        return log.encode(move.append)
    return _pinned(source, log.encode(move))


def _pinned(source: Topic, frame: bytes) -> bytes:
    """Return the frame with what a replay must know before it: how far routers out of `source` had come."""
    pin: bytes = b"" if source.links is None else source.links.pin()
    return pin + frame


def _render(copies: list[Copy], topic_id: int, first: int, ts: int) -> log.Append:
    rows, metas = [], []
    extras = {at: pack_terms(Terms(copy.priority)) for at, copy in enumerate(copies) if copy.priority}
    for seq, copy in enumerate(copies, first):
        node = b"" if copy.node is None else b',"$node":%b' % _encode_json(copy.node)
        meta = b"" if copy.meta is None else b',"meta":%b' % copy.meta
        rows.append(b'{"$seq":%d,"$ts":%d%b,"data":%b%b},' % (seq, ts, node, copy.data, meta))
        metas.append(len(meta))
    return log.Append(
        topic_id, first, ts, [len(row) for row in rows], b"".join(rows),
        tags=[copy.tag for copy in copies] if any(copy.tag is not None for copy in copies) else None,
        nodes=[copy.node for copy in copies] if any(copy.node is not None for copy in copies) else None,
        metas=metas if any(metas) else None,
        extras=extras or None,
    )  # fmt: skip


def _leave(source: Topic, move: Moved, leaving: Removal) -> None:
    apply.delete(source, log.Delete(source.topic_id, 0, None, "", move.at_ms, sorted(move.seqs)), leaving.chosen)
    if move.dead and source.queue is not None:
        source.queue.dead_lettered += len(move.seqs)


def _undo_also(ticket: Ticket, more: Any) -> None:
    """`more` happens too when the log refuses the ticket."""
    before = ticket.undo

    def undo() -> None:
        if before is not None:
            before()
        more()

    ticket.undo = undo


@apply.replays(Moved)
def _replay_moved(state: State, entry: Moved) -> None:
    if entry.append is not None and entry.append.topic_id not in state.by_id:
        return  # damage to the log took the topic that was made for them: they stay where they are
    if (source := state.by_id.get(entry.topic_id)) is not None:
        _leave(source, entry, removal.nothing())
    if entry.append is not None:
        apply.replay(state, entry.append)
