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

    __slots__ = ("_cursor", "_match", "_topic", "entry")

    def __init__(self, topic: Topic, entry: Delete) -> None:
        self.entry = entry
        self._topic = topic
        self._match = None if entry.op is None else TagMatch("Eq" if entry.op == "Eq" else "Glob", entry.text)
        self._cursor: int | None = None  # the first job that the cursor of the queue passed because of this delete

    def takes(self, seq: int) -> bool:
        """Return whether a delete without `seqs` takes the record with this seq. Raises `Cold` like a read."""
        if seq >= self.entry.before_seq or self._match is None:
            return seq < self.entry.before_seq
        segment = self._topic.segments[self._topic.index_of(seq)]
        return seq >= segment.first and self._match.covers(segment.columns.tag_at(seq - segment.first))

    def skip(self, seq: int) -> int:
        """Return the first seq from `seq` on that a delete below a seq does not take."""
        if self._match is not None or seq >= self.entry.before_seq:
            return seq
        self.passed(seq)
        return self.entry.before_seq

    def passed(self, seq: int) -> None:
        """Note that the cursor of the queue passes this job."""
        self._cursor = seq if self._cursor is None else min(self._cursor, seq)

    def end(self) -> None:
        """Forget the delete: it takes effect now."""
        staged: StagedDeletes = self._topic.staged_deletes
        staged.remove(self)
        if not staged.count:
            self._topic.staged_deletes = None

    def refuse(self) -> None:
        """Make the jobs that verbs have skipped claimable again: the log did not take the delete."""
        self.end()
        queue = self._topic.queue
        if queue is not None:
            if (
                self._cursor is not None
            ):  # let the cursor look again at jobs that are claimable again, and at all others
                queue.cursor = min(queue.cursor, self._cursor)
                queue.check_upto = max(queue.check_upto, self._topic.head)
            queue.freed()


class StagedDeletes:
    __slots__ = ("_by_seq", "_others", "count")

    def __init__(self) -> None:
        self.count = 0
        # Of two deletes that name a seq, the first counts: if the log refuses it, it refuses the second as well.
        self._by_seq: dict[int, StagedDelete] = {}
        self._others: list[StagedDelete] = []

    def add(self, staged: StagedDelete) -> None:
        self.count += 1
        if staged.entry.seqs is None:
            self._others.append(staged)
        for seq in staged.entry.seqs or ():
            self._by_seq.setdefault(seq, staged)

    def remove(self, staged: StagedDelete) -> None:
        self.count -= 1
        if staged.entry.seqs is None:
            self._others.remove(staged)
        for seq in staged.entry.seqs or ():
            if self._by_seq.get(seq) is staged:
                del self._by_seq[seq]

    def taking(self, seq: int) -> StagedDelete | None:
        """Return the delete that takes the record with this seq, if there is one. Raises `Cold` like a read."""
        if (staged := self._by_seq.get(seq)) is not None:
            return staged
        return next((staged for staged in self._others if staged.takes(seq)), None)

    def skip(self, seq: int) -> int:
        """Return the first seq from `seq` on that no delete below a seq takes."""
        for staged in self._others:
            seq = staged.skip(seq)
        return seq


def stage(topic: Topic, entry: Delete) -> StagedDelete:
    if topic.staged_deletes is None:
        topic.staged_deletes = StagedDeletes()
    staged = StagedDelete(topic, entry)
    topic.staged_deletes.add(staged)
    return staged


def is_leaving(topic: Topic, seq: int) -> bool:
    """Return whether a staged delete takes the record with this seq. Raises `Cold` like a read."""
    return topic.staged_deletes is not None and topic.staged_deletes.taking(seq) is not None
