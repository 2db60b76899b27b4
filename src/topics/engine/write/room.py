"""Writes that can never fit, however long a client waits."""

from __future__ import annotations

from topics.errors import Code, TopicsError
from topics.model.topic import TopicConfig
from topics.storage.log.entry import Append


def check_possible(config: TopicConfig, entry: Append, quota_bytes: int) -> None:
    """Raise a 400 for a write that the topic or the server could not hold if it were empty.

    `topic_full` and `throttled` tell a client to try again later, which cannot help here. A topic that discards old
    records takes a batch larger than its caps: it evicts the first records of the batch.
    """
    largest, size_bytes, count = max(entry.sizes), len(entry.blob), len(entry.sizes)
    if config.cap_bytes and largest > config.cap_bytes:
        raise _record_too_large(largest, "cap_bytes", config.cap_bytes)
    if config.discard == "reject":
        if config.cap_records and count > config.cap_records:
            raise _batch_too_large(f"{count} records", "cap_records", config.cap_records, {"records": count})
        if config.cap_bytes and size_bytes > config.cap_bytes:
            raise _batch_too_large(f"{size_bytes} bytes", "cap_bytes", config.cap_bytes, {"size_bytes": size_bytes})
    if quota_bytes and largest > quota_bytes:
        raise _record_too_large(largest, "max_total_bytes", quota_bytes)
    if quota_bytes and size_bytes > quota_bytes:
        raise _batch_too_large(f"{size_bytes} bytes", "max_total_bytes", quota_bytes, {"size_bytes": size_bytes})


def _record_too_large(size_bytes: int, limit: str, most: int) -> TopicsError:
    whole = "server" if limit == "max_total_bytes" else "topic"
    return TopicsError(
        Code.RECORD_TOO_LARGE,
        f"a record takes {size_bytes} bytes; the whole {whole} may hold {most}",
        detail={"size_bytes": size_bytes, "max": most, "limit": limit},
    )


def _batch_too_large(what: str, limit: str, most: int, detail: dict[str, int]) -> TopicsError:
    return TopicsError(
        Code.BATCH_TOO_LARGE,
        f"the write has {what}; {limit} allows {most} in all, so it can never fit: send smaller batches",
        detail={**detail, "max": most, "limit": limit},
    )
