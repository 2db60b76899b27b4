"""All topics of a server: by name, by id, and the sums over them."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from topics.engine.state.name_index import NamedRows, NameIndex
from topics.engine.state.topic import Topic, Totals
from topics.model.access import Revocation, StoredKey
from topics.model.names import AUDIT
from topics.model.schedule import Schedule
from topics.model.topic import DEFAULT_CONFIG, TopicConfig
from topics.storage.log.ledger import Ledger
from topics.storage.segments.segment import MemorySegment


class SegmentLimits(Struct, frozen=True, kw_only=True):
    """Limits at which the open segment of a topic is closed and a new one begun."""

    max_events: int = 65_536
    max_bytes: int = 64 << 20
    max_age_ms: int = 3_600_000


class State:
    """All topics by name and by id, and the sums over them. `add` and `remove` keep these in step.

    Maps and sums are raw: after a start, records of `memory` topics may still wait to be replayed. Verbs find topics
    through `Staging.topics`, which replays them first; only recovery, `apply` and the store use these maps.
    """

    def __init__(self, *, segments: SegmentLimits | None = None, max_keys: int = 1_000_000) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.names = NameIndex()  # of `by_name`, without the audit topic
        self.queues: dict[int, Topic] = {}  # the queues of `by_id`
        self.consumed = NameIndex()  # topics with named consumers
        self.expiring: dict[Topic, None] = {}  # topics with consumers that may expire, in the order of a sweep
        self._config = DEFAULT_CONFIG  # see `shared`
        self.by_class: dict[str, int] = {}  # how many topics have each durability
        self.totals = Totals()
        self.next_topic_id = 1
        self.last_epoch = 0
        self.segment_limits = segments or SegmentLimits()
        self.max_keys = max_keys
        self.keyed: dict[Topic, None] = {}  # topics that remember idempotency keys, in the order of `idempotency.sweep`
        self.created: list[Callable[[Topic], None]] = []  # called with every new topic
        self.rolled: Callable[[Topic, MemorySegment], None] = lambda topic, segment: None  # gets a closed segment
        # The topics of `names` that were written last, in order: others were written before. None until `keep_written`.
        self.written: OrderedDict[Topic, None] | None = None
        self._max_written = 0
        self.routers: Any = None  # `routers.graph.Table`, see `table_of`
        self.schedules = NamedRows[Schedule](Schedule)
        self.access = NamedRows[StoredKey | Revocation](StoredKey | Revocation)  # keys, and tokens that are not valid
        self.ledger: Ledger | None = None  # of a running server: has the topics and their ceilings
        self.left_ephemeral: set[int] = set()  # topics whose class left `ephemeral` in the log that was replayed
        self.needed_snapshots = 0  # how many changes of class promised more than the log has, see `apply.promises_more`

    def shared(self, config: TopicConfig) -> TopicConfig:
        """Return the configuration of the topic before if that is equal: topics that are alike have one object."""
        if config != self._config:
            self._config = config
        return self._config

    def add(self, topic: Topic, *, index: bool = True) -> None:
        """Add a topic. Without `index` the caller calls `index_all` once it has added all."""
        if index:
            if topic.name not in self.by_name and topic.name != AUDIT:
                self.names.add(topic.name)
            self.count_class(topic.config, 1)
        self.by_name[topic.name] = topic
        self.by_id[topic.topic_id] = topic
        if topic.queue is not None:
            self.queues[topic.topic_id] = topic

    def index_all(self) -> None:
        """Rebuild `names` and `by_class`."""
        self.names.rebuild(name for name in self.by_name if name != AUDIT)
        self.by_class = dict(Counter(topic.config.durability for topic in self.by_id.values()))

    def remove(self, topic: Topic) -> None:
        del self.by_id[topic.topic_id]
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]
            if topic.name != AUDIT:
                self.names.remove(topic.name)
        self.queues.pop(topic.topic_id, None)
        if self.written is not None:
            self.written.pop(topic, None)
        self.count_class(topic.config, -1)

    def keep_written(self, limit: int) -> None:
        """Keep the last topics that are written from now on in `written`, up to `limit`."""
        self._max_written = limit
        if self.written is None:
            self.written = OrderedDict()

    def add_written(self, latest: Iterable[Topic]) -> None:
        """Add topics that were written before those in `written`, the last one first."""
        assert self.written is not None
        for topic in latest:
            if topic not in self.written and len(self.written) < self._max_written:
                self.written[topic] = None
                self.written.move_to_end(topic, last=False)

    def note_write(self, topic: Topic) -> None:
        written = self.written
        assert written is not None
        if topic in written:
            written.move_to_end(topic)
        elif topic.name != AUDIT:
            written[topic] = None
            if len(written) > self._max_written:
                written.popitem(last=False)

    def note_consumers(self, topic: Topic) -> None:
        """Update the indexes of topics with consumers, after the first or the last one of a topic came or went."""
        own = topic.consumers
        known, has_some = topic.name in self.consumed, own is not None and bool(own.by_name)
        if has_some and not known:
            self.consumed.add(topic.name)
        elif known and not has_some:
            self.consumed.remove(topic.name)
        if own is not None and own.expiring:
            self.expiring[topic] = None
        else:
            self.expiring.pop(topic, None)

    def count_class(self, config: TopicConfig, delta: int) -> None:
        self.by_class[config.durability] = self.by_class.get(config.durability, 0) + delta

    def roll(self, topic: Topic, *, opened_ms: int) -> MemorySegment:
        """Close the open segment of the topic and begin the next."""
        closed = topic.open
        segment = MemorySegment(closed.end, opened_ms=opened_ms)
        topic.segments.append(segment)
        self.rolled(topic, closed)
        return segment
