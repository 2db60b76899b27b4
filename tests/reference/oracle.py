"""The reference model: what topics promise about records, in the simplest code.

The model keeps one Python object per record, with its fate, and computes every figure from these objects. It is slow
and shares only the vocabulary with the engine, so the two agree only if both are right. Verbs take effect at once, in
order, at the current time of the clock.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, replace

import jsonschema
from msgspec import UNSET

from tests.reference import oracle_consumers
from tests.reference.model_topic import DELETED, Fact, Key, ModelTopic
from topics.clock import Clock
from topics.errors import Code, TopicsError, topic_not_found
from topics.model.consumer import ConsumerRequest
from topics.model.records import STORED_FORM, Projection, TagMatch, WriteRequest
from topics.model.topic import ConfigPatch, configure


@dataclass
class ModelGap:
    """A lost range, as a tombstone reports it."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int


@dataclass
class ModelPage:
    """The result of one read."""

    records: list[bytes]
    next_from_seq: int
    scanned: int
    tombstone: ModelGap | None


@dataclass
class Landed:
    """The result of a write."""

    first: int
    last: int
    head: int
    created: bool = False
    deduped: bool = False


class Oracle:
    """All topics by name."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.topics: dict[str, ModelTopic] = {}

    # --- topics

    def put(self, name: str, patch: ConfigPatch) -> bool:
        """Create or configure a topic. Return whether it was created."""
        topic = self.topics.get(name)
        if topic is None:
            self.topics[name] = ModelTopic(name, configure(name, patch))
            return True
        config = configure(name, patch, topic.config)
        if config != topic.config:
            topic.expire(self.clock.now_ms())
            if not (topic.config.idempotency_window_ms and config.idempotency_window_ms):
                topic.keys = {}
            topic.config = config
            topic.expire(self.clock.now_ms())
            topic.enforce_caps()
        return False

    def archive(self, name: str, seq: int) -> int:
        """Report that everything up to `seq` is archived. Return the archived position."""
        if name not in self.topics:
            raise topic_not_found(name)
        topic = self.topics[name]
        if seq > topic.head:
            raise TopicsError(Code.INVALID_REQUEST, "seq is beyond the head")
        topic.archived = max(topic.archived, seq)
        return topic.archived

    def drop(self, name: str, *, if_empty: bool = False) -> bool:
        """Delete a topic. Return whether it existed."""
        topic = self.topics.get(name)
        if topic is None:
            return False
        topic.expire(self.clock.now_ms())
        if if_empty and topic.count:
            raise TopicsError(Code.TOPIC_NOT_EMPTY, "the topic has records")
        del self.topics[name]
        return True

    def topic(self, name: str) -> ModelTopic:
        """Return the topic, with expired records removed."""
        if name not in self.topics:
            raise topic_not_found(name)
        self.topics[name].expire(self.clock.now_ms())
        return self.topics[name]

    # --- consumers

    @property
    def elapsed_ms(self) -> int:
        """The time that decides which consumers are unused: it does not jump with the wall clock."""
        return self.clock.monotonic_ns() // 1_000_000

    def put_consumer(self, name: str, consumer: str, wanted: ConsumerRequest) -> tuple[int, bool]:
        """Store a consumer. Return its position, and whether it was created."""
        return oracle_consumers.put(self.topic(name), consumer, wanted, self.elapsed_ms)

    def commit(self, name: str, consumer: str, seq: int) -> tuple[int, bool]:
        """Read as a consumer, after a commit of `seq`. Return its position, and whether it was created."""
        return oracle_consumers.commit(self.topic(name), consumer, seq, self.elapsed_ms)

    def drop_consumer(self, name: str, consumer: str) -> bool:
        """Delete a consumer. Return whether it existed."""
        return self.topic(name).consumers.pop(consumer, None) is not None

    def forget_unused(self) -> None:
        """Remove the consumers of all topics that were not used for too long."""
        for topic in self.topics.values():
            oracle_consumers.forget_unused(topic, self.elapsed_ms)

    def restarted(self) -> None:
        """Count all consumers as used: time without a server does not count."""
        for topic in self.topics.values():
            for name, one in topic.consumers.items():
                topic.consumers[name] = replace(one, used_ms=self.elapsed_ms)

    # --- records

    def append(self, name: str, request: WriteRequest) -> Landed:
        topic = self.topics.get(name)
        created = topic is None
        if topic is None:
            topic = ModelTopic(name, configure(name, request.config or ConfigPatch()))
            if not (topic.config.auto_create if request.create is None else request.create):
                raise topic_not_found(name)
        now = self.clock.now_ms()
        key = request.idempotency_key
        if key is not None and (seen := topic.written_with(key, now)) is not None:
            return Landed(seen.first, seen.last, topic.head, deduped=True)
        _check_schema(topic, request)
        topic.expire(now)
        ts = max([now, *(fact.ts for fact in topic.facts[-1:])])
        added = _facts(request, topic.head + 1, ts)
        _check_room(topic, added)
        self.topics[name] = topic
        topic.facts += added
        if key is not None and topic.config.idempotency_window_ms:
            self._remember(topic, key, Key(added[0].seq, added[-1].seq, ts))
        topic.expire(ts)
        topic.enforce_caps()
        return Landed(added[0].seq, added[-1].seq, topic.head, created=created)

    def delete(self, name: str, *, before_seq: int | None, match: TagMatch | None) -> int:
        """Delete records. Return their number."""
        deleted = [
            fact
            for fact in self.topic(name).live
            if (before_seq is None or fact.seq < before_seq) and (match is None or _matches(match, fact.tag))
        ]
        for fact in deleted:
            fact.fate = DELETED
        return len(deleted)

    def read(
        self,
        name: str,
        *,
        from_seq: int = 0,
        limit: int,
        max_bytes: int,
        nodes: Collection[str] = (),
        match: TagMatch | None = None,
        projection: Projection = STORED_FORM,
        from_ts: int | None = None,
        other_epoch: bool = False,
        examine: int,
    ) -> ModelPage:
        """Return one page. `other_epoch` says that the cursor belongs to another epoch of the topic."""
        topic = self.topic(name)
        start, tombstone = _start(topic, from_seq, from_ts, other_epoch)
        page = ModelPage([], start - 1, 0, tombstone)
        used_bytes = 0
        for fact in topic.facts[start - 1 : start - 1 + examine]:
            if _wanted(fact, topic, nodes, match):
                if page.records and used_bytes + fact.size_bytes > max_bytes:
                    break
                page.records.append(fact.rendered(projection))
                used_bytes += fact.size_bytes
            page.next_from_seq = fact.seq
            page.scanned += 1
            if len(page.records) == limit or used_bytes >= max_bytes:
                break
        return page

    @staticmethod
    def _remember(topic: ModelTopic, key: str, seen: Key) -> None:
        """Store a key, and remove the keys outside the current window."""
        oldest_ms = seen.at_ms - topic.config.idempotency_window_ms
        topic.keys = {other: old for other, old in topic.keys.items() if old.at_ms >= oldest_ms}
        topic.keys[key] = seen


def _check_schema(topic: ModelTopic, request: WriteRequest) -> None:
    """Raise if a record does not match the schema. Another library than the server's decides that."""
    schema, mode = topic.config.schema, topic.config.schema_mode
    if schema is not None and mode == "reject":
        validator = jsonschema.Draft202012Validator(schema)
        if not all(validator.is_valid(json.loads(bytes(record.data))) for record in request.records):
            raise TopicsError(Code.SCHEMA_VIOLATION, "a record does not match")


def _start(topic: ModelTopic, from_seq: int, from_ts: int | None, other_epoch: bool) -> tuple[int, ModelGap | None]:
    """Return the first seq to read, and the tombstone before it."""

    def first_since(seq: int) -> int:
        """Return the first seq from `seq` on that was committed at or after `from_ts`."""
        return next(
            (fact.seq for fact in topic.facts[seq - 1 :] if from_ts is None or fact.ts >= from_ts), topic.head + 1
        )

    if other_epoch or from_seq > topic.head:
        return first_since(topic.earliest), ModelGap(
            1, topic.head, "recreated", sum(fact.fate != DELETED for fact in topic.facts)
        )
    lost = [fact for fact in topic.facts[from_seq:] if fact.lost]
    # Who asks for a time on does not miss what is older than that.
    if not any(from_ts is None or fact.ts >= from_ts for fact in lost):
        return first_since(max(from_seq + 1, topic.earliest)), None
    older = [fact.seq for fact in lost if from_ts is not None and fact.ts < from_ts]
    lost = lost[len(older) :]
    reasons = sorted({fact.fate for fact in lost})
    reason = reasons[0] if len(reasons) == 1 else "mixed"
    gap_from = older[-1] + 1 if older else from_seq + 1
    return first_since(topic.earliest), ModelGap(gap_from, topic.earliest - 1, reason, len(lost))


def _wanted(fact: Fact, topic: ModelTopic, nodes: Collection[str], match: TagMatch | None) -> bool:
    own = topic.config.dedupe_node and fact.node is not None and fact.node in nodes
    return fact.live and not own and (match is None or _matches(match, fact.tag))


def _matches(match: TagMatch, tag: str | None) -> bool:
    if tag is None:
        return False
    return tag == match.text if match.op == "Eq" else tag[: len(match.text)] == match.text


def _facts(request: WriteRequest, first: int, ts: int) -> list[Fact]:
    facts = []
    for seq, record in enumerate(request.records, first):
        node = request.node if record.node is None else record.node
        meta = None if record.meta is UNSET or bytes(record.meta) == b"null" else _one_line(bytes(record.meta))
        facts.append(Fact(seq, ts, _one_line(bytes(record.data)), node, record.tag, meta))
    return facts


def _check_room(topic: ModelTopic, added: list[Fact]) -> None:
    config = topic.config
    sizes = [fact.size_bytes for fact in added]
    if config.cap_bytes and max(sizes) > config.cap_bytes:
        raise TopicsError(Code.RECORD_TOO_LARGE, "the record is larger than the topic")
    if config.discard == "reject" and (
        (config.cap_records and len(added) > config.cap_records) or (config.cap_bytes and sum(sizes) > config.cap_bytes)
    ):
        raise TopicsError(Code.BATCH_TOO_LARGE, "the batch is larger than the topic")
    keeps = [fact for fact in topic.live if fact not in topic.spare]
    if config.discard == "reject" and (
        (config.cap_records and len(keeps) + len(added) > config.cap_records)
        or (config.cap_bytes and sum(fact.size_bytes for fact in keeps) + sum(sizes) > config.cap_bytes)
    ):
        raise TopicsError(Code.TOPIC_FULL, "the topic is full")


def _one_line(raw: bytes) -> bytes:
    return raw.replace(b"\n", b" ").replace(b"\r", b" ")
