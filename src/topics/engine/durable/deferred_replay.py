"""Records of `memory` topics that a start finds in the log: replayed after the server is ready, not before.

The class promises nothing across a restart, so its records must not hold up those that were promised. During recovery
they are set aside. Once the server serves, they are replayed a few at a time; a topic that is asked for earlier is
replayed to its end first. The engine finds topics only through `CurrentTopics` until nothing waits any more, so no verb
meets a topic of which a part is missing. The old log stays until then: it is the only place that has these records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from topics import logs
from topics.engine import retention
from topics.engine.durable import entry_kinds
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.errors import Corrupt
from topics.storage.log import entry as entries
from topics.storage.log import frame

log = logs.Log("recovery")

PER_STEP = 64  # entries replayed per step while the server answers requests
STEP_BYTES = 256 << 10  # of entries after which a step ends: about a millisecond


class Backlog:
    """Appends that wait to be replayed, by topic id in the order of the log.

    They are kept as bytes: a hundred thousand objects would cost the garbage collector more than their replay.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, deque[bytes]] = {}
        self._heads: dict[int, int] = {}  # the last seq that waits

    def __contains__(self, topic: Topic) -> bool:
        return topic.topic_id in self._waiting

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def defer(self, state: State, found: frame.Frame, data: bytes) -> bool:
        """Defer the entry of a frame and return True, or replay what it may depend on and return False.

        `data` is the whole frame.
        """
        kind, topic_id, first, count = found.head
        topic = state.by_id.get(topic_id)
        if kind != entries.APPEND:
            if self._waiting:
                self._replay_touched(state, found)
            return False
        if (
            topic is None
            or topic.config.durability != "memory"
            or topic.config.type != "log"
            or topic.links is not None
        ):
            return False
        head = self._heads.get(topic_id, topic.head)
        if first > head + 1:  # seqs are missing, which recovery has to report
            self.replay(state, topic)
            return False
        if first > head:  # otherwise the log repeats an entry, as it does after a failed sync
            self._waiting.setdefault(topic_id, deque()).append(data)
            self._heads[topic_id] = first + count - 1
        return True

    def replay(self, state: State, topic: Topic) -> None:
        self._heads.pop(topic.topic_id, None)
        for data in self._waiting.pop(topic.topic_id, ()):
            _replay(state, topic, data)

    def _replay_touched(self, state: State, found: frame.Frame) -> None:
        """Replay the topics that an entry touches: it must find the records that were there."""
        try:
            touched = entry_kinds.touched_by(entries.decode(found, path="", at=0))
        except Corrupt:
            return  # recovery reports it when it replays the entry, and then replays everything that waits
        if touched is None:
            self.replay_all(state)
            return
        for topic_id in touched:
            if (topic := state.by_id.get(topic_id)) is not None:
                self.replay(state, topic)

    def replay_all(self, state: State) -> None:
        for topic_id in list(self._waiting):
            if (topic := state.by_id.get(topic_id)) is not None:
                self.replay(state, topic)
        self._waiting, self._heads = {}, {}  # the rest belongs to topics that recovery has dropped

    def replay_some(self, state: State, limit: int, topic: Topic | None = None) -> None:
        """Replay at most `limit` entries, and about `STEP_BYTES`, of `topic` or of the one that has waited longest."""
        topic_id = next(iter(self._waiting)) if topic is None else topic.topic_id
        waiting = self._waiting[topic_id]
        size_bytes = 0
        for _ in range(min(limit, len(waiting))):
            data = waiting.popleft()
            _replay(state, state.by_id[topic_id], data)
            size_bytes += len(data)
            if size_bytes >= STEP_BYTES:
                break
        if not waiting:
            del self._waiting[topic_id], self._heads[topic_id]


def _replay(state: State, topic: Topic, data: bytes) -> None:
    whole = frame.decode(memoryview(data), 0)
    assert whole is not None, "the frame was whole when it was set aside"
    found = whole[0]
    try:
        entry_kinds.replay_or_lose(state, entries.decode(found, path="", at=0))
    except Corrupt as error:  # the checksum is right, so another version of topics wrote it
        last = found.head.first + found.head.count - 1
        log.error("entry_unreadable", topic=topic.name, first_seq=found.head.first, last_seq=last, reason=error.what)
        retention.skip_to(topic, last + 1, "corrupt")


class CurrentTopics(Mapping[str, Topic]):
    """All topics by name, each replayed to its end before it is returned. Names alone replay nothing."""

    def __init__(self, state: State, backlog: Backlog) -> None:
        self._state = state
        self._backlog = backlog

    def __getitem__(self, name: str) -> Topic:
        topic = self._state.by_name[name]
        if topic in self._backlog:
            self._backlog.replay(self._state, topic)
        return topic

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._state.by_name

    def __len__(self) -> int:
        return len(self._state.by_name)
