"""Deletes that name their records one by one, for who knows seqs and no tag: copies without tags are erased so."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from topics.engine import retention
from topics.engine.engine import Deleted
from topics.engine.state.topic import Topic
from topics.engine.write import apply, removal
from topics.engine.write.commit import Ticket
from topics.engine.write.removal import Removal
from topics.errors import Code, TopicsError
from topics.storage.log import entry as log

if TYPE_CHECKING:
    from topics.engine.engine import Engine


def delete_seqs(engine: Engine, name: str, seqs: Sequence[int], *, dry_run: bool = False) -> Ticket:
    """Removes those of `seqs` that are there; or only counts them. Ends with `Deleted`. Raises `Cold` like a read."""
    topic = engine.topic(name)
    limit = engine.limits.max_batch_records
    if len(seqs) > limit:
        raise TopicsError(Code.BATCH_TOO_LARGE, f"{len(seqs)} seqs; a request may name {limit}", detail={"max": limit})
    wanted = sorted(set(seqs))
    found = removal.by_seq(topic, wanted)
    now = engine.clock.now_ms()
    if dry_run:
        if topic.config.ttl_ms:
            retention.expire(topic, now)
        return Ticket.of(_deleted(topic, count_live(topic, wanted, found)))
    entry = log.Delete(topic.topic_id, 0, None, "", now, wanted)
    ticket = Ticket(topic=topic, apply=lambda _: _deleted(topic, apply.delete(topic, entry, found.chosen)))
    if engine.logged and topic.config.durability != "ephemeral":
        ticket.frame = log.encode(entry)
        ticket.gated = topic.config.durability == "fsync"
    engine.commits.stage(ticket)
    return ticket


def count_live(topic: Topic, seqs: list[int], known: Removal) -> int:
    """How many of these, ascending, are live."""
    found = 0
    for segment, low, high in list(topic.spans(topic.earliest, topic.head + 1)):
        mine = seqs[bisect_left(seqs, segment.first + low) : bisect_left(seqs, segment.first + high)]
        chosen = known.chosen.get(segment.first)
        if mine and chosen is not None and chosen.fits(segment, mine[-1] + 1 - segment.first, len(mine)):
            found += chosen.count
        elif mine and segment.live and retention.ready(topic, segment):
            marks = segment.marks
            found += len(mine) if marks is None else sum(not marks[seq - segment.first] for seq in mine)
    return found


def _deleted(topic: Topic, deleted: int) -> Deleted:
    return Deleted(topic, deleted, topic.earliest, topic.head, topic.count, topic.bytes)
