"""Room for a write: in its topic, by the caps, and in the server, by the quota."""

from __future__ import annotations

from topics.engine import retention
from topics.engine.state.topic import Topic
from topics.errors import Code, TopicsError
from topics.model.topic import TopicConfig
from topics.storage.log.entry import Append


def check(
    config: TopicConfig, topic: Topic | None, entry: Append, now_ms: int, *, quota_bytes: int, used_bytes: int
) -> None:
    """Raise if the write can never fit, if the topic is full and rejects, or if the server is full.

    `used_bytes` is what all topics hold, with the writes that are under way. `quota_bytes` is 0 for no quota.
    """
    size_bytes, new = len(entry.blob), len(entry.sizes)
    check_possible(config, entry, quota_bytes)
    count = topic_bytes = 0
    if topic is not None:
        if config.ttl_ms:
            retention.expire(topic, now_ms)
        count, topic_bytes = topic.count + topic.staged_count, topic.bytes + topic.staged_bytes
    if config.discard == "reject" and (cap := _passed_cap(config, count + new, topic_bytes + size_bytes)):
        # A topic that holds for an archive evicts archived records instead, if that makes room.
        records, spare_bytes = (0, 0) if topic is None else retention.spare(topic)
        if not records or _passed_cap(config, count + new - records, topic_bytes + size_bytes - spare_bytes):
            what = f"the topic is full and rejects new records; delete records, or raise {cap}"
            raise TopicsError(Code.TOPIC_FULL, what, detail={"limit": cap, "count": count, "bytes": topic_bytes})
    if quota_bytes:
        total = used_bytes + size_bytes
        if total > quota_bytes and topic is not None and (config.discard == "old" or retention.makes_room(topic)):
            # The topic evicts records in return, so a topic that trims itself can grow in a full server.
            total -= _would_free(topic, count + new, topic_bytes + size_bytes)
        if total > quota_bytes:
            raise server_full("max_total_bytes", quota_bytes)


def _passed_cap(config: TopicConfig, count: int, used_bytes: int) -> str:
    """Return the name of the cap that so many records pass; "" if they pass none."""
    if config.cap_records and count > config.cap_records:
        return "cap_records"
    return "cap_bytes" if config.cap_bytes and used_bytes > config.cap_bytes else ""


def server_full(name: str, limit: int) -> TopicsError:
    """Return the error for a cap on the whole server. Room may come back, so the client may try again."""
    return TopicsError(
        Code.THROTTLED,
        f"the server has reached {name} ({limit}); delete data, or raise the setting",
        detail={"limit": name, "max": limit},
        retry_after_ms=1000,
    )


def check_possible(config: TopicConfig, entry: Append, quota_bytes: int) -> None:
    """Raise a 400 for a write that the topic or the server could not hold if it were empty.

    `topic_full` and `throttled` ask a client to try again later, which cannot help here. A topic that discards old
    records takes a batch larger than its caps: it evicts the first records of the batch.
    """
    largest, size_bytes, count = max(entry.sizes), len(entry.blob), len(entry.sizes)
    if config.cap_bytes and largest > config.cap_bytes:
        raise _record_too_large(largest, "cap_bytes", config.cap_bytes)
    if config.discard == "reject":
        if config.cap_records and count > config.cap_records:
            raise _batch_too_large("records", count, "cap_records", config.cap_records)
        if config.cap_bytes and size_bytes > config.cap_bytes:
            raise _batch_too_large("bytes", size_bytes, "cap_bytes", config.cap_bytes)
    if quota_bytes and largest > quota_bytes:
        raise _record_too_large(largest, "max_total_bytes", quota_bytes)
    if quota_bytes and size_bytes > quota_bytes:
        raise _batch_too_large("bytes", size_bytes, "max_total_bytes", quota_bytes)


def _record_too_large(size_bytes: int, limit: str, most: int) -> TopicsError:
    whole = "server" if limit == "max_total_bytes" else "topic"
    return TopicsError(
        Code.RECORD_TOO_LARGE,
        f"a record takes {size_bytes} bytes; the whole {whole} may hold {most}",
        detail={"size_bytes": size_bytes, "max": most, "limit": limit},
    )


def _batch_too_large(unit: str, n: int, limit: str, most: int) -> TopicsError:
    return TopicsError(
        Code.BATCH_TOO_LARGE,
        f"the write has {n} {unit}; {limit} allows {most} in all, so it can never fit: send smaller batches",
        detail={"size_bytes" if unit == "bytes" else unit: n, "max": most, "limit": limit},
    )


def _would_free(topic: Topic, count: int, used_bytes: int) -> int:
    """Return at most how many bytes of its present records the topic would evict if it came to hold this much."""
    config = topic.config
    freed = 0
    if config.cap_bytes and used_bytes > config.cap_bytes:
        freed = min(used_bytes - config.cap_bytes, topic.bytes)
    if config.cap_records and count > config.cap_records:
        upto = retention.after_oldest(topic, min(count - config.cap_records, topic.count))
        freed = max(freed, retention.live_between(topic, topic.earliest, upto)[1])
    if topic.consumers is not None and topic.consumers.holders:
        freed = min(freed, retention.live_between(topic, topic.earliest, retention.released(topic, topic.head + 1))[1])
    return freed
