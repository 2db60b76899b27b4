"""Seq ceilings: no seq above the ceiling of a topic is acknowledged before a higher ceiling is durable.

After a crash the log may lack the last records of a topic; of an ephemeral topic it has none. A log file that is cut
short or missing lacks those of any topic, which is why the ledger has the ceiling, too. The ceiling bounds the seqs
that may have been given out, so a start goes on above it and reports the range between as lost. It is raised a few
thousand seqs at a time, or as many as a busy topic assigns while four syncs run if these are slow, and well before the
seqs reach it. So hardly any write waits for it.

With a replica another server may continue the topic: a ceiling counts only once it is uploaded. It is raised by about
ten minutes of the topic's writes then, so a topic goes on for that long while the bucket is away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topics.engine.state.topic import FIRST_CEILING, UNKNOWN_STEP, Topic
from topics.engine.state.topics import State
from topics.engine.write import apply
from topics.engine.write.commit import Commits, Ticket
from topics.engine.write.uploads import AT_SYNC, AT_UPLOAD
from topics.storage.log import entry as entries

MAX_STEP = 1 << 20
BUSY_SEQS_PER_MS = 100  # of a busy topic
AWAY_NS = 600_000_000_000  # how long a topic shall go on without its replica
BURST_NS = 60_000_000_000
MAX_AWAY_STEP = 1 << 26


class Ceilings:
    def __init__(self, state: State, commits: Commits) -> None:
        self._state = state
        self._commits = commits

    def first_step(self) -> int:
        """Return how far above the head of a topic its ceiling is at first.

        Half of that is used up before it is raised. The raise waits for the sync that is running, and then for its own.
        With a replica, the step follows from what the topic has written: a lost machine costs no small topic more.
        """
        if self._commits.uploads.gate == AT_UPLOAD:
            return FIRST_CEILING
        return max(FIRST_CEILING, min(4 * BUSY_SEQS_PER_MS * self._commits.wal.sync_ms, MAX_STEP))

    def guard(self, topic: Topic, ticket: Ticket, end: int) -> None:
        """Raise the ceiling if seqs below `end` come near it; gate `ticket`, which gives them out, if they pass it."""
        margin = self._step(topic) // 2
        if end > topic.ceiling - margin:
            if end > topic.ceiling_staged - margin:
                self._commits.stage(self.ticket(topic, end))
            if end > topic.ceiling:
                ticket.gated = max(ticket.gated, self._commits.uploads.gate)

    def allow(self, topic: Topic, end: int, refused: Callable[[], Any]) -> bool:
        """Return whether seqs below `end` may be given out at once; if not, stage a higher ceiling for them."""
        if end <= topic.ceiling:
            return True
        ticket = self.ticket(topic, end)
        ticket.topic, ticket.gated = topic, AT_SYNC
        ticket.on_done(lambda done: None if done.error is None else refused())
        self._commits.stage(ticket)
        return False

    def _step(self, topic: Topic) -> int:
        """Return the step of a topic, which its first write since the start determines."""
        step = self.first_step()
        if topic.ceiling_step == UNKNOWN_STEP or topic.ceiling_step < step:
            topic.ceiling_step = step
        return topic.ceiling_step

    def ticket(self, topic: Topic, end: int) -> Ticket:
        """Return a ticket for a ceiling above `end`; further above while seqs come faster than ceilings are synced."""
        step = self._step(topic)
        if self._commits.uploads.gate == AT_UPLOAD:
            topic.ceiling_step = self._away_step(topic, end)
        elif end > topic.ceiling_staged or topic.ceiling < topic.ceiling_staged:
            topic.ceiling_step = max(step, min(step * 4, MAX_STEP))
        before, ceiling = topic.ceiling_staged, end + topic.ceiling_step
        topic.ceiling_staged = ceiling
        apply.note(self._state, topic)
        entry = entries.Ceiling(topic.topic_id, ceiling)

        def synced() -> None:
            if ceiling <= topic.ceiling_staged:  # else a last snapshot has lowered it in between
                topic.ceiling = max(topic.ceiling, ceiling)

        def take_effect(ticket: Ticket) -> None:
            if ticket.gated:
                synced()
            else:
                self._commits.uploads.after(synced)

        def undo() -> None:
            topic.ceiling_staged = before

        return Ticket(frame=entries.encode(entry), apply=take_effect, entry=entry, undo=undo)

    def _away_step(self, topic: Topic, end: int) -> int:
        """Return about as many seqs as the topic gives out in `AWAY_NS`, as fast as it did since the last raise.

        A burst counts as if it had taken `BURST_NS`: a few large writes are no sign of a topic that stays busy.
        """
        now_ns = self._commits.tick_ns()
        before_ns, before = topic.ceiling_raised or (now_ns - AWAY_NS, end)
        topic.ceiling_raised = now_ns, end
        step = (end - before) * AWAY_NS // max(now_ns - before_ns, BURST_NS)
        return max(FIRST_CEILING, min(step, MAX_AWAY_STEP))
