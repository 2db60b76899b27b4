"""What `topics top` knows: two samples of the metrics of a server, and what changed between them. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from topics.cli.looking.percentiles import of_buckets

Metrics = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The metrics and the routers of a server at one moment."""

    at_s: float
    metrics: Metrics
    lags: Mapping[str, int]  # by topic: that of its slowest reader


@dataclass(frozen=True, kw_only=True)
class TopicRow:
    """One topic between two samples."""

    topic: str
    head: int
    records: int
    bytes: int
    rate: float
    lag: int | None
    ready: int | None
    in_flight: int | None
    lost: int
    losing: float  # records lost per second


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The server between two samples."""

    rate: float
    requests: float
    records: int
    bytes: int
    topics: int
    connections: int
    streams: int
    memory_bytes: int
    budget_bytes: int
    fsync_p50_us: float | None
    fsync_p99_us: float | None
    uptime_ms: int
    read_only: bool
    lost: int
    truncated: bool


def rows(before: Sample, now: Sample) -> list[TopicRow]:
    """Return the topics of a sample."""
    took_s = max(now.at_s - before.at_s, 1e-3)
    heads, old_heads = _named(now.metrics, "head_seq"), _named(before.metrics, "head_seq")
    live, size = _named(now.metrics, "records_live"), _named(now.metrics, "bytes_live")
    ready, in_flight = _named(now.metrics, "queue_ready"), _named(now.metrics, "queue_in_flight")
    lost, old_lost = _named(now.metrics, "lost"), _named(before.metrics, "lost")
    return [
        TopicRow(
            topic=topic, head=head, records=live.get(topic, 0), bytes=size.get(topic, 0),
            rate=max(head - old_heads.get(topic, head), 0) / took_s, lag=now.lags.get(topic),
            ready=ready.get(topic), in_flight=in_flight.get(topic), lost=lost.get(topic, 0),
            losing=max(lost.get(topic, 0) - old_lost.get(topic, lost.get(topic, 0)), 0) / took_s,
        )
        for topic, head in heads.items()
    ]  # fmt: skip


def overview(before: Sample, now: Sample, found: Iterable[TopicRow]) -> Overview:
    """Return the totals of a sample."""
    took_s = max(now.at_s - before.at_s, 1e-3)
    metrics, topics = now.metrics, list(found)
    fsync, old_fsync = _buckets(metrics), _buckets(before.metrics)
    requests = metrics.get("topics_http_requests_total", 0) - before.metrics.get("topics_http_requests_total", 0)
    return Overview(
        rate=sum(row.rate for row in topics),
        requests=max(requests, 0) / took_s,
        records=int(metrics.get("topics_records_live", 0)),
        bytes=int(metrics.get("topics_bytes_live", 0)),
        topics=int(metrics.get("topics_topics", 0)),
        connections=int(metrics.get("topics_http_connections", 0)),
        streams=int(metrics.get("topics_sse_connections", 0)),
        memory_bytes=int(sum((metrics.get("topics_memory_charged_bytes") or {}).values())),
        budget_bytes=int(metrics.get("topics_memory_budget_bytes", 0)),
        fsync_p50_us=of_buckets(old_fsync, fsync, 0.5),
        fsync_p99_us=of_buckets(old_fsync, fsync, 0.99),
        uptime_ms=int(metrics.get("topics_uptime_ms", 0)),
        read_only=bool(metrics.get("topics_wal_read_only", 0)),
        lost=sum(row.lost for row in topics),
        truncated=bool(metrics.get("topics_topic_metrics_truncated", 0)),
    )


def _named(metrics: Metrics, name: str) -> dict[str, int]:
    found = metrics.get(f"topics_topic_{name}")
    return found if isinstance(found, dict) else {}


def _buckets(metrics: Metrics) -> dict[str, float]:
    histogram = metrics.get("topics_wal_fsync_latency_us")
    return histogram["buckets"] if isinstance(histogram, dict) else {}
