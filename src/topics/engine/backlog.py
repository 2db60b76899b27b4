"""Records of `memory` topics that a start finds in the log: taken up after the server is ready, not before.

The class promises nothing across a restart, so its records must not hold up those that were promised. What the log held
of such a topic is laid aside during recovery and written to the new log, entry by entry, once the server serves: a
little at a time, or all at once as soon as somebody asks for the topic. The old log stays until that is done.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from topics.engine import apply
from topics.engine.commit import Ticket
from topics.engine.state import Topic
from topics.storage import entry as entries
from topics.storage import frame

if TYPE_CHECKING:
    from topics.engine.engine import Engine

PER_TURN = 64  # entries taken up in one go while others are served


class Backlog:
    """Frames by topic id, in the order of the log."""

    def __init__(self) -> None:
        self._frames: dict[int, deque[bytes]] = {}

    def __contains__(self, topic: Topic) -> bool:
        return topic.topic_id in self._frames

    def __bool__(self) -> bool:
        return bool(self._frames)

    def defer(self, state: apply.State, found: frame.Frame, data: bytes) -> bool:
        """Lays an entry aside if it may wait. An entry of another kind brings what waits before it into effect."""
        topic = state.by_id.get(found.head.topic_id)
        if found.head.kind == entries.APPEND:
            if (
                topic is None
                or topic.config.durability != "memory"
                or topic.config.type != "log"
                or topic.links is not None
            ):
                return False
            self._frames.setdefault(topic.topic_id, deque()).append(data)
            return True
        if entries.CEILING < found.head.kind < entries.ARCHIVED:  # of routers or queues: it may name any topic
            self.apply_all(state)
        elif topic is not None:
            self._apply(state, topic.topic_id)
        return False

    def apply_all(self, state: apply.State) -> None:
        """Everything takes effect here and now, as on a start that has to know where each topic ends."""
        for topic_id in list(self._frames):
            self._apply(state, topic_id)

    def take_up(self, engine: Engine, topic: Topic, limit: int | None = None) -> None:
        """Writes up to `limit` entries of the topic (all of them without one) to the log and into effect."""
        waiting = self._frames[topic.topic_id]
        for _ in range(len(waiting) if limit is None else min(limit, len(waiting))):
            engine.commits.stage(self._ticket(engine.state, topic, waiting.popleft()))
        if not waiting:
            del self._frames[topic.topic_id]
            topic.changing = False
        engine.commits.settle()

    def some(self, engine: Engine) -> None:
        """A little of it, of whichever topic comes first."""
        topic = engine.state.by_id.get(next(iter(self._frames)))
        if topic is None:
            del self._frames[next(iter(self._frames))]
        else:
            self.take_up(engine, topic, PER_TURN)

    def hold(self, state: apply.State) -> None:
        """From now on a verb that wants such a topic has it taken up first."""
        for topic_id in self._frames:
            if (topic := state.by_id.get(topic_id)) is not None:
                topic.changing = True

    def _apply(self, state: apply.State, topic_id: int) -> None:
        for data in self._frames.pop(topic_id, ()):
            apply.replay(state, _entry(data))

    def _ticket(self, state: apply.State, topic: Topic, data: bytes) -> Ticket:
        entry = _entry(data)
        return Ticket(topic=topic, frame=data, apply=lambda _: apply.replay(state, entry))


def _entry(data: bytes) -> entries.Entry:
    found = frame.decode(memoryview(data), 0)
    assert found is not None, "the frame was whole when it was laid aside"
    return entries.decode(found[0], path="", at=0)
