"""The verbs of named consumers: store, commit, read by name, list, delete, expire.

A verb decides by what the consumer will be once all pending changes have taken effect. All changes of one turn to the
consumers of topics of one durability class are a `ConsumerBatch`: one ticket and one log entry, however many topics and
requests there were. The ticket of each request follows that of its batch. So does a request that changes nothing, if a
batch is pending: its answer must not be sent before that change is durable, nor at all if the log refuses it.

Entries of a topic must take effect in the order of the log: a hold decides what an append evicts. So a topic gets a
batch of its own if a router is linked to it, because its entry may need a mark before it, or if an earlier entry of the
topic waits for a sync that its class does not need. In a topic with `fsync` and no router every entry waits for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec import UNSET, Struct, UnsetType, structs

from topics.engine.consumers.consumer_log import ConsumersChanged, change_consumers, consumers_of
from topics.engine.state.consumers import Consumer, TopicConsumers
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.write.archived import check_epoch, check_seq
from topics.engine.write.commit import Ticket
from topics.engine.write.staging import Staging, server_full
from topics.engine.write.uploads import GATES
from topics.errors import invalid
from topics.model.consumer import ConsumerRequest, consumer_moved, consumer_not_found, encode_meta
from topics.model.names import check_consumer
from topics.model.topic import SYNCED
from topics.storage.log import entry as entries


class StoredConsumer(Struct):
    topic: Topic
    name: str
    seq: int
    created: bool


class BatchPart(Struct, eq=False, gc=False):
    """The changes to the consumers of one topic in a batch. Most are one move.

    Not for the garbage collector: `ConsumerBatch.leave` ends the circle with the batch.
    """

    batch: ConsumerBatch
    topic: Topic
    own: TopicConsumers
    after: dict[str, Consumer | None]  # what each will be; None if it ends
    put: set[str] | None = None  # those that begin, or change in more than their position
    gone: list[int] | None = None


class ConsumerBatch:
    """The changes of one turn that share a ticket."""

    __slots__ = ("at_ms", "joinable", "parts", "state", "ticket", "turn")

    def __init__(
        self, state: State, joinable: dict[str, ConsumerBatch], topic: Topic | None, *, turn: int, at_ms: int
    ) -> None:
        self.state = state
        self.joinable = joinable
        self.turn = turn
        self.at_ms = at_ms
        self.parts: list[BatchPart] = []
        self.ticket = Ticket(topic, None, self.take_effect, self, followers=[], undo=self.leave, close=self.close)

    def follow(self, outcome: object) -> Ticket:
        """Return a ticket that ends with `outcome` when this batch takes effect, and fails if the batch is refused."""
        follower = Ticket(result=outcome)
        assert self.ticket.followers is not None
        self.ticket.followers.append(follower)
        return follower

    def close(self, _: Ticket) -> None:
        """Write all changes into the entry and the frame: the turn ends. See `Commits.flush`."""
        self.joinable.clear()
        entry = ConsumersChanged(self.parts[0].topic.topic_id, self.at_ms)
        moved = entry.moved
        for part in self.parts:
            topic_id, put = part.topic.topic_id, part.put
            for name, consumer in part.after.items():
                if consumer is None:
                    continue
                if put is not None and name in put:
                    entry.put.append((topic_id, consumer))
                else:
                    moved += (topic_id, consumer.number, consumer.seq)
            for number in part.gone or ():
                entry.gone += (topic_id, number)
        self.ticket.entry = entry
        if isinstance(self.ticket.frame, bytes):
            self.ticket.frame = entries.encode(entry, after=self.ticket.frame)

    def take_effect(self, ticket: Ticket) -> None:
        self.leave()
        change_consumers(self.state, ticket.entry)

    def leave(self) -> None:
        for part in self.parts:
            part.own.pending.remove(part)
        self.parts.clear()


class Consumers:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._joinable: dict[str, ConsumerBatch] = {}  # by durability class: those that take changes of any topic
        self._began_ns = staging.clock.monotonic_ns()  # time in which the server was down does not count as unused

    # --- changes

    def put(self, topic_name: str, name: str, wanted: ConsumerRequest) -> Ticket:
        """Store or change a consumer. Ends with `StoredConsumer`. Raises `consumer_moved` if `if_seq` does not hold."""
        topic, own, before = self._latest(topic_name, name)
        if wanted.epoch is not None:
            check_epoch(topic, wanted.epoch)
        if wanted.if_seq is not UNSET and wanted.if_seq != (None if before is None else before.seq):
            raise consumer_moved(topic.name, name, None if before is None else before.seq)
        if wanted.seq is not UNSET:
            check_seq(topic, wanted.seq)
        meta: bytes | UnsetType | None = UNSET if wanted.meta is UNSET else encode_meta(wanted.meta)
        given = {"meta": meta, "expire_ms": wanted.expire_ms, "hold": wanted.hold,
                 "max_hold_bytes": wanted.max_hold_bytes}  # fmt: skip
        changes = {field: value for field, value in given.items() if value is not UNSET}
        after = structs.replace(self._new(topic, own, name) if before is None else before, **changes)
        if after.hold and not after.max_hold_bytes:
            raise invalid("hold needs max_hold_bytes: how many bytes may be held", field="max_hold_bytes")
        if wanted.seq is not UNSET:
            after.seq = wanted.seq
            own.delivered.pop(name, None)
        batch = self._stage(topic, own, after, put=before is None or bool(changes))
        return batch.follow(StoredConsumer(topic, name, after.seq, before is None))

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
        check_seq(topic, upto, field="commit")
        if before is None:
            after = self._new(topic, own, name)
            after.seq = upto
            return self._stage(topic, own, after, put=True).follow(StoredConsumer(topic, name, upto, True))
        batch = self._advance(topic, own, before, upto)
        outcome = StoredConsumer(topic, name, max(before.seq, upto), False)
        return Ticket.of(outcome) if batch is None else batch.follow(outcome)

    def move(self, topic_name: str, name: str, seq: int) -> ConsumerBatch | None:
        """Move a consumer that exists to `seq`, never back. Raises `consumer_not_found`.

        Return the batch that the answer has to wait for, if any: a request with many moves follows each batch once.
        """
        topic, own, before = self._latest(topic_name, name)
        if before is None:
            raise consumer_not_found(topic.name, name)
        check_seq(topic, seq)
        return self._advance(topic, own, before, seq)

    def drop(self, topic_name: str, name: str) -> Ticket:
        """Delete a consumer; one that does not exist is no error. Ends with whether it existed."""
        topic, own, before = self._latest(topic_name, name)
        if before is not None:
            return self._end(topic, own, before).follow(True)
        part = _last_part(own, name)
        return Ticket.of(False) if part is None else part.batch.follow(False)

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
                if self._unused(own, consumer) and _ahead(own, consumer.name) is consumer:
                    self._end(topic, own, consumer)

    def note_delivered(self, topic: Topic, name: str, seq: int) -> None:
        """Remember that an answer to this name had all records up to `seq`: a commit acknowledges these."""
        own = topic.consumers
        if own is not None and name in own.by_name:
            own.delivered[name] = seq

    def note_reader(self, topic: Topic, name: str, reader: object) -> None:
        """Remember who has read or committed last."""
        own = topic.consumers
        if own is not None and name in own.by_name:
            own.readers[name] = reader

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
        found = _ahead(own, name) if own.pending else own.by_name.get(name)
        if found is None:
            check_consumer(name)
        elif found.expire_ms and self._unused(own, found):
            self._end(topic, own, found)
            found = None
        return topic, own, found

    def _unused(self, own: TopicConsumers, consumer: Consumer) -> bool:
        """Return whether the consumer was not used for its `expire_ms`: elapsed time, whatever the wall clock does."""
        if not consumer.expire_ms or self._staging.follows:
            return False
        used_ns = own.used_ns.get(consumer.number, self._began_ns)
        return self._staging.clock.monotonic_ns() - used_ns > consumer.expire_ms * 1_000_000

    def _new(self, topic: Topic, own: TopicConsumers, name: str) -> Consumer:
        """Return a consumer that begins at 0. Raises `throttled` if the topic has as many as it may have."""
        limit = self._staging.limits.max_consumers
        coming = {other for part in own.pending for other, one in part.after.items() if one is not None}
        if limit and len(own.by_name.keys() | coming) >= limit:
            what = f'topic "{topic.name}" has {limit} consumers, as many as max_consumers allows; delete unused ones'
            raise server_full("max_consumers", limit, what)
        number = own.next_number
        own.next_number += 1
        return Consumer(number, name, 0, self._staging.clock.now_ms())

    def _advance(self, topic: Topic, own: TopicConsumers, before: Consumer, seq: int) -> ConsumerBatch | None:
        """Move a consumer to `seq` unless it is there already. Return the batch that the answer has to wait for."""
        if seq <= before.seq:
            if before.expire_ms:
                own.used_ns[before.number] = self._staging.clock.monotonic_ns()
            part = _last_part(own, before.name)
            return None if part is None else part.batch
        after: Consumer = before.__copy__()  # type: ignore[attr-defined]  # `copy.copy` takes three times as long
        after.seq = seq
        return self._stage(topic, own, after)

    def _stage(self, topic: Topic, own: TopicConsumers, after: Consumer, *, put: bool = False) -> ConsumerBatch:
        """Add a change to the batch of this turn. With `put` the consumer begins, or not only its position changes."""
        part = self._part(topic, own)
        after.at_ms = part.batch.at_ms
        part.after[after.name] = after
        if after.expire_ms:
            own.used_ns[after.number] = self._staging.clock.monotonic_ns()
        if put:
            part.put = part.put or set()
            part.put.add(after.name)
        return part.batch

    def _end(self, topic: Topic, own: TopicConsumers, consumer: Consumer) -> ConsumerBatch:
        part = self._part(topic, own)
        part.after[consumer.name] = None
        part.gone = part.gone or []
        part.gone.append(consumer.number)
        return part.batch

    def _part(self, topic: Topic, own: TopicConsumers) -> BatchPart:
        """Return the part for changes to the consumers `own` of the topic. It takes effect at the end of the turn."""
        commits = self._staging.commits
        parts: list[BatchPart] = own.pending
        if parts and parts[-1].batch.turn == commits.turn:
            return parts[-1]
        durability = topic.config.durability
        if topic.links is not None or (topic.waiting and durability not in SYNCED):
            batch = self._begin(durability, topic)
        else:
            shared = self._joinable.get(durability)
            if shared is None or shared.turn != commits.turn:  # of an earlier turn if that was refused
                self._joinable[durability] = shared = self._begin(durability, None)
            batch = shared
            commits.include(batch.ticket, topic)
        part = BatchPart(batch, topic, own, {})
        parts.append(part)
        batch.parts.append(part)
        return part

    def _begin(self, durability: str, topic: Topic | None) -> ConsumerBatch:
        """Stage a batch for changes to `topic` alone, or to any topics of the class."""
        staging = self._staging
        commits = staging.commits
        batch = ConsumerBatch(staging.state, self._joinable, topic, turn=commits.turn, at_ms=staging.clock.now_ms())
        if staging.logged and durability != "ephemeral":
            batch.ticket.frame = b""  # `close` adds the entry, behind what routers need
            batch.ticket.gated = GATES[durability]
        commits.stage(batch.ticket)
        return batch


def _last_part(own: TopicConsumers, name: str) -> BatchPart | None:
    """Return the part of the newest pending batch that changes this consumer."""
    return next((part for part in reversed(own.pending) if name in part.after), None)


def _ahead(own: TopicConsumers, name: str) -> Consumer | None:
    """Return the consumer as it will be once all changes have taken effect."""
    part = _last_part(own, name)
    return own.by_name.get(name) if part is None else part.after[name]
