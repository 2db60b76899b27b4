"""Consumers in the log and in snapshots. All changes to the consumers of a topic in one turn share one entry."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Struct

from topics.engine.state import snapshot_parts
from topics.engine.state.consumers import Consumer, TopicConsumers
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.write import apply
from topics.storage.log import entry as log


@log.known
class Consumed(Struct, array_like=True):
    """Consumers of a topic ended (`gone`), began or changed (`put`) or moved, in this order.

    `gone` has numbers of consumers, `moved` has numbers and seqs in turn.
    """

    kind: ClassVar[int] = log.CONSUMED
    topic_id: int
    at_ms: int
    moved: list[int] = []
    put: list[Consumer] = []
    gone: list[int] = []


class _Saved(Struct, array_like=True):
    """What a snapshot has of the consumers of a topic."""

    next_number: int
    consumers: list[Consumer]


def consumers_of(topic: Topic) -> TopicConsumers:
    """Return the consumers of the topic, to add some."""
    if topic.consumers is None:
        topic.consumers = TopicConsumers()
    return topic.consumers


@apply.replays(Consumed)
def consumed(state: State, entry: Consumed) -> None:
    """Change the consumers of a topic."""
    topic = state.by_id.get(entry.topic_id)
    if topic is None:
        return
    own = topic.consumers or consumers_of(topic)
    if entry.put or entry.gone:
        for number in entry.gone:
            own.remove(number)
        for consumer in entry.put:
            own.put(consumer)
        state.note_consumers(topic)
    moved = entry.moved
    for at in range(0, len(moved), 2):
        one = own.by_number.get(moved[at])
        if one is not None:
            one.seq, one.at_ms = moved[at + 1], entry.at_ms


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
    return _Saved(own.next_number, list(own.by_name.values()))


def _load(state: State, topic: Topic, raw: msgspec.Raw) -> None:
    saved = msgspec.msgpack.decode(raw, type=_Saved)
    own = consumers_of(topic)
    for consumer in saved.consumers:
        own.put(consumer)
    own.next_number = max(own.next_number, saved.next_number)
    state.note_consumers(topic)


snapshot_parts.TOPIC_PARTS.append(snapshot_parts.Part("consumers", _save, _load))
