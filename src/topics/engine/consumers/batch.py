"""Changes to consumers that have not taken effect yet.

All changes of one turn to the consumers of topics of one durability class are a `ConsumerBatch`: one ticket and one log
entry, however many topics and requests there were. The ticket of each request follows that of its batch.

Entries of a topic must take effect in the order of the log: a hold decides what an append evicts. So a topic gets a
batch of its own if a router is linked to it, because its entry may need a mark before it, or if an earlier entry of the
topic waits for a sync that its class does not need. In a topic with `fsync` and no router every entry waits for one.
"""

from __future__ import annotations

from msgspec import Struct

from topics.engine.consumers.consumer_log import ConsumersChanged, change_consumers
from topics.engine.state.consumers import Consumer, TopicConsumers
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.write.commit import Ticket
from topics.engine.write.staging import Staging
from topics.storage.log import entry as entries


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
        """Count the changes no longer as pending."""
        for part in self.parts:
            part.own.pending.remove(part)
        self.parts.clear()


class ConsumerBatches:
    """The batches of one engine that take changes in this turn."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._joinable: dict[str, ConsumerBatch] = {}  # by durability class: those that take changes of any topic

    def part(self, topic: Topic, own: TopicConsumers) -> BatchPart:
        """Return the part for changes to the consumers `own` of the topic. It takes effect at the end of the turn."""
        commits = self._staging.commits
        parts: list[BatchPart] = own.pending
        if parts and parts[-1].batch.turn == commits.turn:
            return parts[-1]
        durability = topic.config.durability
        if topic.links is not None or (topic.waiting and durability != "fsync"):
            batch = self._begin(durability, topic)
        else:
            shared = self._joinable.get(durability)
            if shared is None or shared.turn != commits.turn:  # of an earlier turn if that was refused
                self._joinable[durability] = shared = self._begin(durability, None)
            batch = shared
        if batch.ticket.topic is not topic:
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
            batch.ticket.gated = durability == "fsync"
        commits.stage(batch.ticket)
        return batch
