"""The screen of `topics top`: what changed between two samples of the metrics, and how `rich` draws it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from topics.cli.output.screen import Cell, Styled, table
from topics.cli.output.units import count, duration, rate, size

SORTS = ("rate", "topic", "records", "bytes", "lag", "ready", "lost")
HEADER_LINES = 7

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
        fsync_p50_us=_of_buckets(old_fsync, fsync, 0.5),
        fsync_p99_us=_of_buckets(old_fsync, fsync, 0.99),
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


def _of_buckets(before: Mapping[str, float], now: Mapping[str, float], share: float) -> float | None:
    """Return the upper bound of the bucket that a share of the new values lies in; None if there are none.

    The buckets are cumulative counts by upper bound, with `+Inf` last.
    """
    counts = [(float("inf") if name == "+Inf" else float(name), now[name] - before.get(name, 0)) for name in now]
    counts.sort()
    total = counts[-1][1] if counts else 0
    if total <= 0:
        return None
    return next(bound for bound, count in counts if count >= total * share)


# --- drawing


def sort_rows(found: list[TopicRow], order: str, needle: str) -> list[TopicRow]:
    """Return the topics whose names contain the filter, in an order of `SORTS`."""
    kept = [row for row in found if needle in row.topic]
    if order == "topic":
        return sorted(kept, key=lambda row: row.topic)
    return sorted(kept, key=lambda row: (-(getattr(row, order) or 0), row.topic))


def draw(
    total: Overview,
    found: list[TopicRow],
    *,
    url: str,
    order: str,
    needle: str,
    typing: bool,
    height: int,
    problem: str,
) -> Any:
    """Return the screen for a terminal of `height` lines."""
    from rich.console import Group
    from rich.text import Text

    room = max(height - HEADER_LINES - 2, 3)
    lines = [
        Text.assemble(("topics top  ", "bold"), (url, "cyan"), f"  up {duration(total.uptime_ms)}"),
        Text.assemble(
            ("writes ", "dim"), rate(total.rate), ("   requests ", "dim"), rate(total.requests),
            ("   records ", "dim"), f"{count(total.records)} ({size(total.bytes)})",
            ("   topics ", "dim"), count(total.topics),
        ),
        Text.assemble(
            ("connections ", "dim"), count(total.connections), ("   streams ", "dim"), count(total.streams),
            ("   client memory ", "dim"), size(total.memory_bytes),
            f" of {size(total.budget_bytes)}" if total.budget_bytes else "",
            ("   lost ", "dim"), (count(total.lost), "red" if total.lost else ""),
        ),
        Text.assemble(("log sync ", "dim"), _syncs(total), ("   READ-ONLY" if total.read_only else "", "bold red")),
        Text(problem or "", style="red"),
    ]  # fmt: skip
    shown = sort_rows(found, order, needle)
    columns = ("topic", "rate>", "head>", "records>", "size>", "lag>", "ready>", "in flight>", "lost>")
    more = len(shown) - room
    keys = f"filter: {needle}█  (Enter keeps it, Esc clears it)" if typing else (
        f"q quit   s sort ({order})   / filter{f' ({needle})' if needle else ''}"
    )  # fmt: skip
    if more > 0:
        keys += f"   {more:,} more topics"
    return Group(*lines, table(columns, [_cells(row) for row in shown[:room]]), Text(""), Text(keys, style="dim"))


def _syncs(total: Overview) -> str:
    if total.fsync_p50_us is None or total.fsync_p99_us is None:
        return "none in this interval"
    return f"p50 ≤ {_bound(total.fsync_p50_us)}, p99 ≤ {_bound(total.fsync_p99_us)}"


def _bound(us: float) -> str:
    return "more" if us == float("inf") else duration(us / 1000)


def _cells(row: TopicRow) -> list[Cell]:
    return [
        Styled(row.topic, "bold"),
        Styled(rate(row.rate), "green" if row.rate else "dim"),
        count(row.head),
        count(row.records),
        size(row.bytes),
        "" if row.lag is None else Styled(count(row.lag), "yellow" if row.lag else "dim"),
        "" if row.ready is None else count(row.ready),
        "" if row.in_flight is None else count(row.in_flight),
        "" if not row.lost else Styled(count(row.lost), "red" if row.losing else "yellow"),
    ]
