"""Copies for a snapshot what it needs of every topic, a few topics at a time, while the server goes on.

A snapshot has the state at the beginning of a log file, and a start replays that file on top of it. So a topic must be
captured before the first change that this file holds takes effect. `Commits.before_change` reports each topic before
such a change is staged; a topic whose turn has not come is then captured at once.

Changes that are not logged, as by a TTL, may be in the snapshot or not. The exception is a router, which copies without
a log entry. The snapshot has the cursors of all routers from the beginning, so a router reports its source and its
destination, too, before it copies.
"""

from __future__ import annotations

from collections.abc import Iterator

from topics.engine.state import snapshot_parts
from topics.engine.state.snapshot_parts import Captured
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.steps import Steps
from topics.storage import snapshot as snap

# A garbage collection goes through every young list and dict in one go, so none of them has an entry for each topic.
TOPICS_A_LIST = 256


class Capture:
    """The topics of snapshot `number`. It is complete once all steps have run."""

    def __init__(self, state: State, number: int) -> None:
        self.awaited: list[tuple[Topic, int]] = []  # topics that wait for this snapshot, see `Topic.needs_snapshot`
        self._state = state
        self._number = number
        self._ids = tuple(state.by_id)
        self._next_topic_id = state.next_topic_id
        self._early: dict[int, Captured] = {}
        self._lists: list[list[Captured]] = []

    def __iter__(self) -> Iterator[Captured]:
        """Yield the captured topics in the order of `State.by_id`."""
        for some in self._lists:
            yield from some

    def __len__(self) -> int:
        return sum(map(len, self._lists))

    def tails(self) -> Iterator[bytes]:
        """Yield the parts of the tails file, and note in each topic where its part is."""
        at = 0
        for one in self:
            if one.tail is None:
                continue
            part = b"".join(one.tail.encode(one.snapshot.topic_id, one.snapshot.epoch))
            one.snapshot.tail = snap.TailRef(
                self._number, at, len(part), one.tail.segment.opened_ms, one.tail.live, one.tail.live_bytes
            )
            at += len(part)
            yield part

    def drain(self) -> Iterator[Captured]:
        """Yield the captured topics and forget them, one at a time: to free them all at once would take long."""
        # Bound: the captured topics. Each round forgets one.
        while self._lists:
            if self._lists[-1]:
                yield self._lists[-1].pop()
            else:
                self._lists.pop()

    def before_change(self, topic: Topic) -> None:
        """Capture the topic now, unless it was captured before or is younger than the snapshot."""
        if topic.captured_in != self._number and topic.topic_id < self._next_topic_id:
            self._early[topic.topic_id] = self._capture(topic)

    def steps(self) -> Steps[None]:
        """Capture every topic that is left, one topic per step of about 10 µs."""
        for at, topic_id in enumerate(self._ids):
            if not at % TOPICS_A_LIST:
                self._lists.append([])
            captured = self._early.pop(topic_id, None)
            self._lists[-1].append(self._capture(self._state.by_id[topic_id]) if captured is None else captured)
            yield None

    def _capture(self, topic: Topic) -> Captured:
        topic.captured_in = self._number
        if topic.needs_snapshot:
            self.awaited.append((topic, topic.needs_snapshot))
        return snapshot_parts.capture(self._state, topic)
