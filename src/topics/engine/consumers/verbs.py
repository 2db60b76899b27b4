"""The verbs of named consumers: store, commit, read by name, list, delete, expire.

A verb decides by what the consumer will be once all pending changes have taken effect. The changes of one turn are
collected, see `batch`, and the ticket of each request follows that of its batch. So does a request that changes nothing
because of a pending batch: its answer must not be sent before that change is durable, nor at all if the log refuses
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec import UNSET, Struct, UnsetType, structs

from topics.engine.consumers.batch import BatchPart, ConsumerBatch, ConsumerBatches
from topics.engine.consumers.consumer_log import consumers_of
from topics.engine.state.consumers import Consumer, TopicConsumers
from topics.engine.state.topic import Topic
from topics.engine.write.archived import check_epoch
from topics.engine.write.commit import Ticket
from topics.engine.write.staging import Staging
from topics.errors import Code, TopicsError, invalid
from topics.model.consumer import ConsumerRequest, consumer_moved, consumer_not_found, encode_meta
from topics.model.names import check_consumer


class StoredConsumer(Struct):
    """A consumer as a request left it."""

    topic: Topic
    name: str
    seq: int
    created: bool


class Removed(Struct):
    """The outcome of a delete."""

    topic: str
    name: str
    deleted: bool


Outcome = StoredConsumer | Removed


class Consumers:
    """The named consumers of all topics."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._batches = ConsumerBatches(staging)
        self._began_ns = staging.clock.monotonic_ns()  # time in which the server was down does not count as unused

    # --- changes

    def put(self, topic_name: str, name: str, wanted: ConsumerRequest) -> Ticket:
        """Store or change a consumer. Ends with `StoredConsumer`. Raises `consumer_moved` if `if_seq` does not hold."""
        topic, own, before = self._latest(topic_name, name)
        if wanted.epoch is not None:
            check_epoch(topic, wanted.epoch)
        if wanted.if_seq is not UNSET and wanted.if_seq != (None if before is None else before.seq):
            raise consumer_moved(topic.name, name, None if before is None else before.seq)
        if wanted.seq is not UNSET and wanted.seq > topic.head:
            raise invalid(f"seq {wanted.seq} is beyond the head of the topic ({topic.head})", field="seq")
        if before is not None and _only_moves(wanted):
            if wanted.seq is not UNSET:
                own.delivered.pop(name, None)
            seq = before.seq if wanted.seq is UNSET else wanted.seq
            return self._move(topic, own, before, seq).follow(StoredConsumer(topic, name, seq, False))
        meta: bytes | UnsetType | None = UNSET if wanted.meta is UNSET else encode_meta(wanted.meta)
        created = before is None
        if before is None:
            before = self._new(topic, own, name)
        given = {"seq": wanted.seq, "meta": meta, "expire_ms": wanted.expire_ms, "hold": wanted.hold,
                 "max_hold_bytes": wanted.max_hold_bytes}  # fmt: skip
        after = structs.replace(before, **{field: value for field, value in given.items() if value is not UNSET})
        if after.hold and not after.max_hold_bytes:
            raise invalid("hold needs max_hold_bytes: how many bytes may be held", field="max_hold_bytes")
        if wanted.seq is not UNSET:
            own.delivered.pop(name, None)
        return self._stage(topic, own, after).follow(StoredConsumer(topic, name, after.seq, created))

    def open(
        self, topic_name: str, name: str, *, commit: bool | int, epoch: int | None = None, create: bool = True
    ) -> Ticket:
        """Return the position of a consumer that is about to read. Ends with `StoredConsumer`.

        A consumer that does not exist is created at 0, or without `create` raises `consumer_not_found`. `commit` first
        moves it: to a seq, or with true to the last record that an answer to this name had. It never moves back.
        """
        topic, own, before = self._latest(topic_name, name)
        if before is None and not create:
            raise consumer_not_found(topic.name, name)
        if epoch is not None:
            check_epoch(topic, epoch)
        upto = own.delivered.get(name, 0) if commit is True else int(commit)
        if upto > topic.head:
            raise invalid(f"seq {upto} is beyond the head of the topic ({topic.head})", field="commit")
        if before is None:
            after = self._new(topic, own, name)
            after.seq = upto
            return self._stage(topic, own, after).follow(StoredConsumer(topic, name, upto, True))
        batch = self._advance(topic, own, before, upto)
        return _follow(batch, StoredConsumer(topic, name, max(before.seq, upto), False))

    def move(self, topic_name: str, name: str, seq: int) -> ConsumerBatch | None:
        """Move a consumer that exists to `seq`, never back. Raises `consumer_not_found`.

        Return the batch that the answer has to wait for, if any: a request with many moves follows each batch once.
        """
        topic, own, before = self._latest(topic_name, name)
        if before is None:
            raise consumer_not_found(topic.name, name)
        if seq > topic.head:
            raise invalid(f"seq {seq} is beyond the head of the topic ({topic.head})", field="seq")
        return self._advance(topic, own, before, seq)

    def drop(self, topic_name: str, name: str) -> Ticket:
        """Delete a consumer; one that does not exist is no error. Ends with `Removed`."""
        topic, own, before = self._latest(topic_name, name)
        batch = _changing(own, name) if before is None else self._end(topic, own, before)
        return _follow(batch, Removed(topic.name, name, before is not None))

    def sweep(self, *, topics: int) -> None:
        """Delete the consumers that were not used for their `expire_ms`, in at most so many topics."""
        expiring = self._staging.state.expiring
        for topic in list(islice(expiring, topics)):
            del expiring[topic]
            expiring[topic] = None  # to the end of the line
            own = topic.consumers
            if topic.changing or own is None:
                continue
            for consumer in [one for one in own.by_name.values() if one.expire_ms]:
                if self._unused(own, consumer) and self._ahead(own, consumer.name) is consumer:
                    self._end(topic, own, consumer)

    def note_delivered(self, topic: Topic, name: str, seq: int) -> None:
        """Remember that an answer to this name had all records up to `seq`: a commit acknowledges these."""
        own = topic.consumers
        if own is not None and name in own.by_name:
            own.delivered[name] = seq

    # --- reading

    def get(self, topic_name: str, name: str) -> tuple[Topic, Consumer]:
        """Return a consumer and its topic. Raises `consumer_not_found`."""
        topic = self._staging.topic(topic_name)
        own = topic.consumers
        consumer = None if own is None else own.by_name.get(name)
        if own is None or consumer is None or self._unused(own, consumer):
            check_consumer(name)
            raise consumer_not_found(topic.name, name)
        return topic, consumer

    def of_topic(self, topic: Topic, *, after: str = "") -> Iterator[tuple[Topic, Consumer]]:
        """Yield the consumers of a topic by name, behind the name `after`."""
        own = topic.consumers
        if own is None:
            return
        for name in sorted(own.by_name):
            consumer = own.by_name.get(name)
            if name > after and consumer is not None and not self._unused(own, consumer):
                yield topic, consumer

    def everywhere(
        self, *, prefix: str = "", prefixes: tuple[str, ...] = (), after: tuple[str, str] = ("", "")
    ) -> Iterator[tuple[Topic, Consumer]]:
        """Yield the consumers of all topics by name, of those that `prefix` and one of `prefixes` cover.

        `after` is the topic and the name of the last consumer that the caller has. Looks at no topic without consumers.
        """
        index, topics = self._staging.state.consumed, self._staging.topics
        first, name = after
        visible = not prefixes or first.startswith(prefixes)
        if first in index and first.startswith(prefix) and visible and first in topics:
            yield from self.of_topic(topics[first], after=name)
        for found in index.visible(prefixes, prefix=prefix, after=first):
            if found in topics:
                yield from self.of_topic(topics[found])

    # --- inside

    def _latest(self, topic_name: str, name: str) -> tuple[Topic, TopicConsumers, Consumer | None]:
        """Return the topic, its consumers, and the consumer as it will be once all changes have taken effect."""
        topic = self._staging.topics.get(topic_name)
        if topic is None or topic.changing:
            topic = self._staging.topic(topic_name)
        own = topic.consumers or consumers_of(topic)
        found = self._ahead(own, name) if own.pending else own.by_name.get(name)
        if found is None:
            check_consumer(name)
        elif found.expire_ms and self._unused(own, found):
            self._end(topic, own, found)
            found = None
        return topic, own, found

    @staticmethod
    def _ahead(own: TopicConsumers, name: str) -> Consumer | None:
        for part in reversed(own.pending):
            if name in part.after:
                found: Consumer | None = part.after[name]
                return found
        return own.by_name.get(name)

    def _unused(self, own: TopicConsumers, consumer: Consumer) -> bool:
        """Return whether the consumer was not used for its `expire_ms`: elapsed time, whatever the wall clock does."""
        if not consumer.expire_ms:
            return False
        used_ns = own.used_ns.get(consumer.number, self._began_ns)
        return self._staging.clock.monotonic_ns() - used_ns > consumer.expire_ms * 1_000_000

    def _note_use(self, own: TopicConsumers, consumer: Consumer) -> None:
        if consumer.expire_ms:
            own.used_ns[consumer.number] = self._staging.clock.monotonic_ns()

    def _new(self, topic: Topic, own: TopicConsumers, name: str) -> Consumer:
        """Return a consumer that begins at 0. Raises `throttled` if the topic has as many as it may have."""
        limit = self._staging.limits.max_consumers
        coming = {other for part in own.pending for other, one in part.after.items() if one is not None}
        if limit and len(own.by_name.keys() | coming) >= limit:
            raise TopicsError(
                Code.THROTTLED,
                f'topic "{topic.name}" has {limit} consumers, as many as max_consumers allows; delete unused ones',
                detail={"limit": "max_consumers", "max": limit},
                retry_after_ms=1000,
            )
        number = own.next_number
        own.next_number += 1
        return Consumer(number, name, 0, self._staging.clock.now_ms())

    def _advance(self, topic: Topic, own: TopicConsumers, before: Consumer, seq: int) -> ConsumerBatch | None:
        """Move a consumer to `seq` unless it is there already. Return the batch that the answer has to wait for."""
        if seq <= before.seq:
            self._note_use(own, before)
            return _changing(own, before.name)
        return self._move(topic, own, before, seq)

    def _move(self, topic: Topic, own: TopicConsumers, before: Consumer, seq: int) -> ConsumerBatch:
        """Add a change of the position alone to the batch of this turn."""
        after: Consumer = before.__copy__()  # type: ignore[attr-defined]  # `copy.copy` takes three times as long
        part = self._batches.part(topic, own)
        batch = part.batch
        after.seq, after.at_ms = seq, batch.at_ms
        part.after[after.name] = after
        self._note_use(own, after)
        return batch

    def _stage(self, topic: Topic, own: TopicConsumers, after: Consumer) -> ConsumerBatch:
        """Add a consumer that begins, or changes in more than its position, to the batch of this turn."""
        part = self._batches.part(topic, own)
        after.at_ms = part.batch.at_ms
        part.after[after.name] = after
        self._note_use(own, after)
        if part.put is None:
            part.put = set()
        part.put.add(after.name)
        return part.batch

    def _end(self, topic: Topic, own: TopicConsumers, consumer: Consumer) -> ConsumerBatch:
        part = self._batches.part(topic, own)
        part.after[consumer.name] = None
        if part.gone is None:
            part.gone = []
        part.gone.append(consumer.number)
        return part.batch


def _changing(own: TopicConsumers, name: str) -> ConsumerBatch | None:
    """Return the newest pending batch that changes this consumer."""
    part: BatchPart | None = next((part for part in reversed(own.pending) if name in part.after), None)
    return None if part is None else part.batch


def _follow(batch: ConsumerBatch | None, outcome: Outcome) -> Ticket:
    return Ticket.of(outcome) if batch is None else batch.follow(outcome)


def _only_moves(wanted: ConsumerRequest) -> bool:
    return (
        wanted.meta is UNSET and wanted.expire_ms is UNSET and wanted.hold is UNSET and wanted.max_hold_bytes is UNSET
    )
