"""The reference model of named consumers. `ModelTopic` has them by name."""

from __future__ import annotations

from dataclasses import replace

from msgspec import UNSET

from tests.reference.model_topic import ModelConsumer, ModelTopic
from topics.errors import Code, TopicsError
from topics.model.consumer import ConsumerRequest


def forget_unused(topic: ModelTopic, now_ms: int) -> None:
    """Remove the consumers that were not used for too long."""
    topic.consumers = {
        name: one for name, one in topic.consumers.items() if not one.expire_ms or now_ms - one.used_ms <= one.expire_ms
    }


def put(topic: ModelTopic, name: str, wanted: ConsumerRequest, now_ms: int) -> tuple[int, bool]:
    """Store a consumer. Return its position, and whether it was created."""
    before = topic.consumers.get(name)
    if wanted.if_seq is not UNSET and wanted.if_seq != (None if before is None else before.seq):
        raise TopicsError(Code.CONSUMER_MOVED, "the consumer has moved")
    if wanted.seq is not UNSET and wanted.seq > topic.head:
        raise TopicsError(Code.INVALID_REQUEST, "seq is beyond the head")
    after = replace(before or ModelConsumer(0, now_ms), used_ms=now_ms)
    if wanted.seq is not UNSET:
        after = replace(after, seq=wanted.seq)
    if wanted.expire_ms is not UNSET:
        after = replace(after, expire_ms=wanted.expire_ms)
    if wanted.hold is not UNSET:
        after = replace(after, hold=wanted.hold)
    if wanted.max_hold_bytes is not UNSET:
        after = replace(after, max_hold_bytes=wanted.max_hold_bytes)
    if after.hold and not after.max_hold_bytes:
        raise TopicsError(Code.INVALID_REQUEST, "a hold has a limit")
    topic.consumers[name] = after
    return after.seq, before is None


def commit(topic: ModelTopic, name: str, seq: int, now_ms: int) -> tuple[int, bool]:
    """Move a consumer to `seq`, never back; 0 only reads. Return its position, and whether it was created."""
    known = topic.consumers.get(name)
    if seq > topic.head:
        raise TopicsError(Code.INVALID_REQUEST, "seq is beyond the head")
    before = known or ModelConsumer(0, now_ms)
    topic.consumers[name] = replace(before, seq=max(before.seq, seq), used_ms=now_ms)
    return max(before.seq, seq), known is None


def lag(topic: ModelTopic, name: str, now_ms: int) -> tuple[int, int]:
    """Return the number of unread live records, and the age of the oldest one."""
    unread = [fact for fact in topic.live if fact.seq > topic.consumers[name].seq]
    return len(unread), max(now_ms - unread[0].ts, 0) if unread else 0


def lost(topic: ModelTopic, name: str) -> list[int]:
    """Return the seqs behind the position that were lost."""
    return [fact.seq for fact in topic.facts if fact.lost and fact.seq > topic.consumers[name].seq]
