"""The verbs that delete records: below a seq, by tag, or one by one. A delete leaves no tombstone.

Readers see the records of a staged delete until the log has its entry. A verb of a queue skips them: its own entry
follows the delete in the log, so it must not deliver, acknowledge or move what the delete takes. A move to another
topic is a staged delete, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from topics.engine import retention
from topics.engine.state.losses import NOTHING
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


# --- deletes that are staged


class StagedDelete:
    """One delete on its way to the log. The caller calls `end` when it takes effect, or `refuse`."""

    __slots__ = ("_before_seq", "_cursor", "_match", "_seqs", "_topic")

    def __init__(self, topic: Topic, entry: entries.Delete) -> None:
        self._topic = topic
        self._before_seq = entry.before_seq
        self._seqs = None if entry.seqs is None else frozenset(entry.seqs)
        self._match = None if entry.op is None else TagMatch("Eq" if entry.op == "Eq" else "Glob", entry.text)
        self._cursor: int | None = None  # the first job that the cursor of the queue passed because of this delete
        topic.staged_deletes = topic.staged_deletes or []
        topic.staged_deletes.append(self)

    def takes(self, seq: int) -> bool:
        """Return whether the delete takes the record with this seq. Raises `Cold` like a read."""
        if self._seqs is not None:
            return seq in self._seqs
        if seq >= self._before_seq or self._match is None:
            return seq < self._before_seq
        segment = self._topic.segment_of(seq)
        return seq >= segment.first and self._match.covers(segment.columns.tag_at(seq - segment.first))

    def skip(self, seq: int) -> int:
        """Return the first seq from `seq` on that a delete below a seq does not take."""
        if self._match is not None or seq >= self._before_seq:
            return seq
        self.passed(seq)
        return self._before_seq

    def passed(self, seq: int) -> None:
        """Note that the cursor of the queue passes this job."""
        self._cursor = seq if self._cursor is None else min(self._cursor, seq)

    def end(self) -> None:
        """Forget the delete: it takes effect now."""
        topic = self._topic
        topic.staged_deletes.remove(self)
        topic.staged_deletes = topic.staged_deletes or NOTHING

    def refuse(self) -> None:
        """Make the jobs that verbs have skipped claimable again: the log did not take the delete."""
        self.end()
        queue = self._topic.queue
        if queue is not None:
            if self._cursor is not None:  # the cursor looks again at these jobs, and at all others
                queue.cursor = min(queue.cursor, self._cursor)
                queue.check_upto = max(queue.check_upto, self._topic.head)
            queue.freed()


def taking(topic: Topic, seq: int) -> StagedDelete | None:
    """Return the first staged delete that takes the record with this seq, if there is one. Raises `Cold` like a read.

    Of two deletes that take it, the first counts: if the log refuses it, it refuses the second as well.
    """
    return next((staged for staged in topic.staged_deletes if staged.takes(seq)), None)
