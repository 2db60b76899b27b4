"""Consumers in the log and in snapshots. Changes of one turn share one entry, also those of several topics."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Struct

from topics.engine.state import snapshot_parts
from topics.engine.state.consumers import Consumer, TopicConsumers
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.storage.log import entry as entries


@entries.known
class ConsumersChanged(Struct, array_like=True):
    """Consumers of topics ended (`gone`), began or changed (`put`) or moved, in this order.

    `gone` has topic ids and numbers of consumers in turn, `moved` has topic ids, numbers and seqs in turn. `topic_id`
    is one of these topics.
    """

    kind: ClassVar[int] = entries.CONSUMERS_CHANGED
    topic_id: int
    at_ms: int
    moved: list[int] = []
    put: list[tuple[int, Consumer]] = []
    gone: list[int] = []

    def topic_ids(self) -> set[int]:
        return {*self.moved[::3], *(topic_id for topic_id, _ in self.put), *self.gone[::2]}


@entries.known
class Consumed(Struct, array_like=True):
    """The same for the consumers of one topic, without its id in the lists: written by earlier versions."""

    kind: ClassVar[int] = entries.CONSUMED
    topic_id: int
    at_ms: int
    moved: list[int] = []
    put: list[Consumer] = []
    gone: list[int] = []


_Saved = tuple[int, list[Consumer]]  # the next number, and the consumers


def consumers_of(topic: Topic) -> TopicConsumers:
    """Return the consumers of the topic, to add some."""
    if topic.consumers is None:
        topic.consumers = TopicConsumers()
    return topic.consumers


def change_consumers(state: State, entry: ConsumersChanged) -> None:
    """Change the consumers of topics. A topic that no longer exists is left out."""
    by_id, at_ms = state.by_id, entry.at_ms
    fields = iter(entry.gone)
    for topic_id, number in zip(fields, fields, strict=True):
        if (topic := by_id.get(topic_id)) is not None:
            consumers_of(topic).remove(number)
            state.note_consumers(topic)
    for topic_id, consumer in entry.put:
        if (topic := by_id.get(topic_id)) is not None:
            consumers_of(topic).put(consumer)
            state.note_consumers(topic)
    fields = iter(entry.moved)
    for topic_id, number, seq in zip(fields, fields, fields, strict=True):
        topic = by_id.get(topic_id)
        if topic is None or topic.consumers is None:
            continue
        one = topic.consumers.by_number.get(number)
        if one is not None:
            one.seq = seq
            one.at_ms = at_ms


def replay_consumed(state: State, topic: Topic, entry: Consumed) -> None:
    """Change the consumers of one topic, as earlier versions logged it."""
    topic_id, fields = topic.topic_id, iter(entry.moved)
    moved = [field for number, seq in zip(fields, fields, strict=True) for field in (topic_id, number, seq)]
    put = [(topic_id, consumer) for consumer in entry.put]
    gone = [field for number in entry.gone for field in (topic_id, number)]
    change_consumers(state, ConsumersChanged(topic_id, entry.at_ms, moved, put, gone))


def recovered(state: State, topic: Topic) -> None:
    """Move consumers back to the head: after damage the log may lack records that they had processed.

    Those of an ephemeral topic end with the process: their last changes were not logged.
    """
    if topic.consumers is None:
        return
    if topic.config.durability == "ephemeral":
        topic.consumers = None
        state.note_consumers(topic)
        return
    for consumer in topic.consumers.by_name.values():
        consumer.seq = min(consumer.seq, topic.head)


def _save(state: State, topic: Topic) -> _Saved | None:
    own = topic.consumers
    if own is None or not own.by_name or topic.config.durability == "ephemeral":
        return None
    return own.next_number, list(own.by_name.values())


def _load(state: State, topic: Topic, raw: msgspec.Raw) -> None:
    next_number, consumers = msgspec.msgpack.decode(raw, type=_Saved)
    own = consumers_of(topic)
    for consumer in consumers:
        own.put(consumer)
    own.next_number = max(own.next_number, next_number)
    state.note_consumers(topic)


snapshot_parts.TOPIC_PARTS.append(snapshot_parts.Part("consumers", _save, _load))
