"""What a standby does with each object, and when it takes over. Pure: no bucket, no clock.

    object      of the followed term                     of a later term
    bytes       APPLY                                    PASS: a term without a checkpoint does not count
    checkpoint  PASS; END if it is that of an orderly    CONTINUE if it has the files of the END before it: the writer
                stop                                     has started again. Else LOAD: the state begins with it
    term        -                                        PASS
    alive       PASS                                     PASS

An object whose term is lower than one before it is void. Times are elapsed milliseconds of this process: a standby
takes over if the bucket answered for `takeover_after_ms`, and never with a new object. No clocks are compared.
"""

from __future__ import annotations

from enum import Enum, auto

from topics.storage.replica.objects import Checkpoint, FileRef, Head, Object, Promote


class Step(Enum):
    PASS = auto()
    APPLY = auto()
    END = auto()
    CONTINUE = auto()
    LOAD = auto()


class Following:
    """The sequence as a standby follows it."""

    def __init__(
        self, *, last: Head, term: int, name: str, takes_over: bool, takeover_after_ms: int, now_ms: int
    ) -> None:
        self.number = last.number  # of the last object that is applied
        self.term = term  # of the objects that are applied
        self.name = name
        self.takes_over = takes_over
        self.writer = last  # the head of the last object
        self.as_of_ms = last.as_of_ms  # the time of the state, by the clock of the writer
        self.ended: list[FileRef] | None = None  # the files of the last checkpoint, if the writer has stopped in order
        self.promote: Promote | None = None  # the last request of an operator
        self.last_failure = ""
        self._newest_term = last.term
        self._after_ms = takeover_after_ms
        # A writer that is idle notices a new standby after a while: see `Replication.note_standbys`.
        self._armed_ms = now_ms + 2 * takeover_after_ms
        self._quiet_since_ms: int | None = None  # since when the bucket has answered, and had no new object
        self._at_end_ms = now_ms  # when there was no further object

    def take(self, found: Object) -> Step:
        """Note the next object. Return what becomes of it."""
        head = found.head
        self.number, self._quiet_since_ms, self.last_failure = head.number, None, ""
        if head.term < self._newest_term:
            return Step.PASS
        self._newest_term, self.writer = head.term, head
        if head.followed:
            self._armed_ms = 0
        if head.kind == "checkpoint":
            return self._checkpoint(head, found.checkpoint)
        if head.term != self.term:
            return Step.PASS
        self.as_of_ms = max(self.as_of_ms, head.as_of_ms)
        if head.kind != "bytes":
            return Step.PASS
        self.ended = None
        return Step.APPLY

    def _checkpoint(self, head: Head, checkpoint: Checkpoint) -> Step:
        if head.term == self.term:
            return Step.END if checkpoint.clean else Step.PASS
        if self.ended is None or self.ended != checkpoint.files:
            return Step.LOAD
        self.term, self.number = head.term, checkpoint.since - 1  # from its first bytes on: they were passed
        return Step.CONTINUE

    def nothing(self, now_ms: int) -> None:
        """Note that the bucket has no further object."""
        self._at_end_ms, self.last_failure = now_ms, ""
        if self._quiet_since_ms is None:
            self._quiet_since_ms = now_ms

    def failed(self, error: str) -> None:
        """Note that the bucket did not answer: the writer may be unable to reach it, too."""
        self._quiet_since_ms, self.last_failure = None, error

    def lag_ms(self, now_ms: int) -> int:
        """Return for how long there may have been an object that is not applied."""
        return now_ms - self._at_end_ms

    def is_silent(self, now_ms: int) -> bool:
        """Return whether the writer has given no sign of life for long."""
        return self._quiet_since_ms is not None and now_ms - self._quiet_since_ms >= self._after_ms

    def must_take_over(self, now_ms: int) -> bool:
        """Return whether to begin a term now."""
        promote = self.promote
        if self._quiet_since_ms is None:
            return False
        if promote is not None and promote.standby == self.name and promote.term == self._newest_term:
            return promote.now or self.ended is not None or self.is_silent(now_ms)
        return self.takes_over and now_ms >= self._armed_ms and self.is_silent(now_ms)

    def looked(self, now_ms: int) -> None:
        """Note that the end of the sequence was looked for after a silence, and that nothing was found."""
        self._quiet_since_ms = now_ms
