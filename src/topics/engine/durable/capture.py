"""Copies for a snapshot what it needs of every topic, a few topics at a time, while the server goes on.

A snapshot has the state at the beginning of a log file, and a start replays that file on top of it. So a topic must be
captured before the first change that this file holds takes effect. `Commits.before_change` reports each topic before
such a change is staged; a topic whose turn has not come is then captured at once.

Changes that are not logged may be in the snapshot or not, because they follow from the topic itself and the time: a
TTL, for example. The exception is a router, which copies from one topic to another without a log entry. All topics
with routers, and the routers, are captured in the first step, in which no router runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from topics.engine.state import snapshot_parts
from topics.engine.state.snapshot_parts import Captured, Look
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.steps import Steps
from topics.storage.snapshot import TailRef

KnownTails = dict[int, tuple[TailRef, Look]]  # by topic id: the tails of the last snapshot, and how they looked


class Capture:
    """The topics of one snapshot. `topics` is complete once all steps have run."""

    def __init__(self, state: State, known_tails: KnownTails) -> None:
        self.topics: list[Captured] = []  # in the order of `State.by_id`
        self.rises: list[tuple[Topic, int]] = []  # topics that wait for this snapshot, see `Topic.needs_snapshot`
        self._state = state
        self._known_tails = known_tails
        self._all = list(state.by_id.values())
        self._left = dict(state.by_id)
        self._early: dict[int, Captured] = {}

    def linked(self, topics: Iterable[Topic]) -> None:
        """Capture topics that only make sense together."""
        for topic in topics:
            self.before_change(topic)

    def before_change(self, topic: Topic) -> None:
        """Capture the topic now, unless it was captured before or is younger than the snapshot."""
        if self._left.pop(topic.topic_id, None) is not None:
            self._early[topic.topic_id] = self._capture(topic)

    def steps(self) -> Steps[None]:
        """Capture every topic that is left, one topic per step of about 10 µs."""
        for topic in self._all:
            if self._left.pop(topic.topic_id, None) is None:
                self.topics.append(self._early.pop(topic.topic_id))
            else:
                self.topics.append(self._capture(topic))
            yield None

    def _capture(self, topic: Topic) -> Captured:
        if topic.needs_snapshot:
            self.rises.append((topic, topic.needs_snapshot))
        return snapshot_parts.capture(self._state, topic, self._known_tails.get(topic.topic_id))
