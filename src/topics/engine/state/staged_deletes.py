"""Deletes of one topic that are staged: their records are still there, and leave once the log has the entry.

Readers see these records until then. A verb of a queue skips them: its own entry follows the delete in the log,
so it must not deliver, acknowledge or move what the delete takes. A move to another topic is a staged delete, too.
"""

from __future__ import annotations

from topics.engine.state.topic import Topic
from topics.model.records import TagMatch
from topics.storage.log.entry import Delete


class StagedDelete:
    """One delete on its way to the log. The caller calls `end` when it takes effect, or `refuse`."""

    __slots__ = ("_before_seq", "_cursor", "_match", "_seqs", "_topic")

    def __init__(self, topic: Topic, entry: Delete) -> None:
        self._topic = topic
        self._before_seq = entry.before_seq
        self._seqs = None if entry.seqs is None else frozenset(entry.seqs)
        self._match = None if entry.op is None else TagMatch("Eq" if entry.op == "Eq" else "Glob", entry.text)
        self._cursor: int | None = None  # the first job that the cursor of the queue passed because of this delete
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
        self._topic.staged_deletes.remove(self)

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
