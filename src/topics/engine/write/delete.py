"""The verbs that delete records: below a seq, by tag, or one by one. A delete leaves no tombstone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from topics.engine import retention
from topics.engine.state.staged_deletes import StagedDelete
from topics.engine.state.topic import Topic
from topics.engine.steps import Steps, once_loaded
from topics.engine.write import apply, removal
from topics.engine.write.commit import Ticket
from topics.engine.write.removal import Removal
from topics.engine.write.staging import Staging
from topics.errors import Code, TopicsError, topic_not_found
from topics.model.records import TagMatch
from topics.storage.log import entry as entries


class Deleted(Struct):
    """How many records a delete took, and the topic right after it."""

    topic: Topic
    deleted: int
    earliest: int
    head: int
    count: int
    bytes: int


def delete_records(
    staging: Staging, name: str, *, before_seq: int | None, match: TagMatch | None, dry_run: bool = False
) -> Steps[Ticket]:
    """Delete the records that are there now, for every reader at once. Ends with `Deleted`. With `dry_run`, only count.

    By tag, in steps of one segment each, see `removal`: then it takes effect within some 50 µs per segment.
    """
    topic = staging.topic(name)
    bound = topic.next_seq if before_seq is None else min(before_seq, topic.next_seq)
    if match is None:
        found = yield from once_loaded(partial(removal.below, topic, bound))
    else:
        found = yield from removal.by_tag(topic, match, bound)
    if staging.find(name) is not topic:
        raise topic_not_found(name)
    now = staging.clock.now_ms()
    if dry_run:
        retention.expire(topic, now)
        if match is None:
            count = retention.live_between(topic, topic.earliest, min(bound, topic.head + 1))[0]
        else:
            count = sum(known.count for _, known in apply.tagged(topic, match, bound, found.chosen))
        return Ticket.of(_deleted(topic, count))
    op, text = (None, "") if match is None else (match.op, match.text)
    return _stage(staging, topic, entries.Delete(topic.topic_id, bound, op, text, now), found)


def delete_seqs(staging: Staging, name: str, seqs: Sequence[int], *, dry_run: bool = False) -> Ticket:
    """Delete the records with these seqs, as far as they exist. Ends with `Deleted`. Raises `Cold` like a read.

    Bounded by `max_batch_records`.
    """
    topic = staging.topic(name)
    limit = staging.limits.max_batch_records
    if len(seqs) > limit:
        what = f"{len(seqs)} seqs; a request may name {limit}"
        raise TopicsError(Code.BATCH_TOO_LARGE, what, detail={"max": limit})
    wanted = sorted({seq for seq in seqs if seq < topic.next_seq})  # a later write may get the others
    found = removal.by_seq(topic, wanted)  # which has the marks loaded that `is_live` needs
    now = staging.clock.now_ms()
    if dry_run:
        retention.expire(topic, now)
        return Ticket.of(_deleted(topic, sum(map(topic.is_live, wanted))))
    return _stage(staging, topic, entries.Delete(topic.topic_id, 0, None, "", now, wanted), found)


def _stage(staging: Staging, topic: Topic, entry: entries.Delete, found: Removal) -> Ticket:
    staged = StagedDelete(topic, entry)

    def take_effect(_: Ticket) -> Deleted:
        staged.end()
        return _deleted(topic, apply.delete(topic, entry, found.chosen))

    return staging.stage(topic, [entry], take_effect, undo=staged.refuse, at_ms=entry.at_ms)


def _deleted(topic: Topic, deleted: int) -> Deleted:
    return Deleted(topic, deleted, topic.earliest, topic.head, topic.count, topic.bytes)
