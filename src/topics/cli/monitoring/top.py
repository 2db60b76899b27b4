"""`topics top`: one live screen of a server: what changed between two samples of its metrics."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain, repeat
from math import inf
from typing import Any, NamedTuple

from topics.cli.command import Call, Command
from topics.cli.connect import get
from topics.cli.options import option
from topics.cli.output.screen import Columns, Styled, highlighted, table
from topics.cli.output.units import count, duration, rate, size
from topics.errors import TopicsError

FIRST_INTERVAL_S = 0.5
SORTS = ("rate", "topic", "records", "bytes", "lag", "ready", "lost")
HEADER_LINES = 7
Metrics = Mapping[str, Any]
TopicRow = Mapping[str, Any]  # one topic between two samples
Overview = Mapping[str, Any]  # the server between two samples


@Command(
    "top",
    options=(
        option("--every DURATION", "time between two looks [1s]", default=1000),
        option("--sort", "order of the topics [rate]", choices=SORTS, default="rate"),
        option("--filter TEXT", "only topics whose name contains this", default=""),
        option("-n --count N", "stop after N looks"),
    ),
    request=lambda args: get("/v0/metrics"),
    details="Ctrl-C quits. In a pipe, each look is a line of JSON.",
    examples="  topics top\n  topics top --sort lag --filter orders\n  topics top --count 1 | jq .rate\n",
)
def top(call: Call) -> None:
    before = _look(call)
    if call.screen.is_human:
        _run_live(call, before)
        return
    for _ in repeat(None) if call.args.count is None else range(call.args.count):
        time.sleep(call.args.every / 1000)
        now = _look(call)
        found = rows(before, now)
        shown = sort_rows(found, call.args.sort, call.args.filter)
        call.screen.json({**overview(before, now, found), "by_topic": shown})
        call.screen.flush()
        before = now


def _look(call: Call) -> Sample:
    metrics = call.ask()
    return Sample(at_s=time.monotonic(), metrics=metrics, lags=call.server.lags())


def _run_live(call: Call, before: Sample) -> None:
    from rich.console import Console
    from rich.live import Live

    console, view, every_s = Console(file=sys.stdout), View(call), call.args.every / 1000
    if call.args.count is not None:  # the looks are printed one below the other, and stay on the terminal
        for _ in range(call.args.count):
            time.sleep(every_s)
            before = view.look(before)
            console.print(view.draw(console.size.height))
        return
    with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        for wait_s in chain([min(FIRST_INTERVAL_S, every_s)], repeat(every_s)):
            time.sleep(wait_s)
            before = view.look(before)
            live.update(view.draw(console.size.height), refresh=True)


class View:
    """What the screen shows now: the last look."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.total: Overview | None = None
        self._rows: list[TopicRow] = []
        self._problem = ""

    def look(self, before: Sample) -> Sample:
        """Look at the server. If it does not answer, keep the last look and show why."""
        try:
            now = _look(self._call)
        except TopicsError as error:
            self._problem = str(error)
            return before
        self._problem = ""
        self._rows = rows(before, now)
        self.total = overview(before, now, self._rows)
        return now

    def draw(self, height: int) -> Any:
        """Return the screen for a terminal of `height` lines: totals above, topics below."""
        from rich.console import Group
        from rich.text import Text

        total = self.total
        if total is None:
            return self._problem
        room, url = max(height - HEADER_LINES - 2, 3), self._call.server.target.url
        read_only = "   READ-ONLY" if total["read_only"] else ""
        lines = [
            Text.assemble(("topics top  ", "bold"), (url, "cyan"), f"  up {duration(total['uptime_ms'])}"),
            Text.assemble(
                ("writes ", "dim"), rate(total["rate"]), ("   requests ", "dim"), rate(total["requests"]),
                ("   records ", "dim"), f"{count(total['records'])} ({size(total['bytes'])})",
                ("   topics ", "dim"), count(total["topics"]),
            ),
            Text.assemble(
                ("connections ", "dim"), count(total["connections"]), ("   streams ", "dim"), count(total["streams"]),
                ("   client memory ", "dim"), size(total["memory_bytes"]),
                f" of {size(total['budget_bytes'])}" if total["budget_bytes"] else "",
                ("   lost ", "dim"), (count(total["lost"]), "red" if total["lost"] else ""),
            ),
            Text.assemble(("log sync ", "dim"), _syncs(total), (read_only, "bold red"), _behind(total)),
            Text(self._problem, style="red"),
        ]  # fmt: skip
        shown = sort_rows(self._rows, self._call.args.sort, self._call.args.filter)
        more = len(shown) - room
        end = f"{more:,} more topics: see --filter and --sort" if more > 0 else "Ctrl-C quits"
        return Group(*lines, table(COLUMNS, shown[:room]), Text(""), Text(end, style="dim"))


def _syncs(total: Overview) -> str:
    bounds = {share: total[f"fsync_{share}_us"] for share in ("p50", "p99")}
    if None in bounds.values():
        return "none in this interval"
    return ", ".join(f"{share} ≤ {'more' if us == inf else duration(us / 1000)}" for share, us in bounds.items())


def _behind(total: Overview) -> str:
    """Return how far a standby is behind, or the servers that follow this one."""
    lags = {"standby": total["replica_lag_ms"]} if total["standby"] else total["followers"]
    return "".join(f"   {name} {duration(lag_ms)} behind" for name, lag_ms in lags.items())


COLUMNS: Columns = {
    "topic": lambda row: Styled(row["topic"], "bold"),
    "rate>": lambda row: Styled(rate(row["rate"]), "green" if row["rate"] else "dim"),
    "head>": lambda row: count(row["head"]),
    "records>": lambda row: count(row["records"]),
    "size>": lambda row: size(row["bytes"]),
    "lag>": lambda row: "" if row["lag"] is None else highlighted(row["lag"], "yellow"),
    "ready>": lambda row: "" if row["ready"] is None else count(row["ready"]),
    "in flight>": lambda row: "" if row["in_flight"] is None else count(row["in_flight"]),
    "lost>": lambda row: Styled(count(row["lost"]), "red" if row["losing"] else "yellow") if row["lost"] else "",
}


# --- figures; no I/O


class Sample(NamedTuple):
    """The metrics and the routers of a server at one moment."""

    at_s: float
    metrics: Metrics
    lags: Mapping[str, int]  # by topic: that of its slowest reader


def rows(before: Sample, now: Sample) -> list[TopicRow]:
    """Return the topics of a sample. `losing` is the number of records lost per second."""
    took_s = max(now.at_s - before.at_s, 1e-3)
    heads, old_heads = _named(now.metrics, "head_seq"), _named(before.metrics, "head_seq")
    names = ("records_live", "bytes_live", "queue_ready", "queue_in_flight", "lost")
    live, sizes, ready, in_flight, lost = (_named(now.metrics, name) for name in names)
    old_lost = _named(before.metrics, "lost")
    return [
        {
            "topic": topic, "head": head, "records": live.get(topic, 0), "bytes": sizes.get(topic, 0),
            "rate": max(head - old_heads.get(topic, head), 0) / took_s, "lag": now.lags.get(topic),
            "ready": ready.get(topic), "in_flight": in_flight.get(topic), "lost": lost.get(topic, 0),
            "losing": max(lost.get(topic, 0) - old_lost.get(topic, lost.get(topic, 0)), 0) / took_s,
        }
        for topic, head in heads.items()
    ]  # fmt: skip


def overview(before: Sample, now: Sample, found: Iterable[TopicRow]) -> Overview:
    took_s = max(now.at_s - before.at_s, 1e-3)
    metrics, topics = now.metrics, list(found)
    fsync, old_fsync = _buckets(metrics), _buckets(before.metrics)
    requests = metrics.get("topics_http_requests_total", 0) - before.metrics.get("topics_http_requests_total", 0)
    gauges = {
        "records": "records_live", "bytes": "bytes_live", "topics": "topics", "connections": "http_connections",
        "streams": "sse_connections", "budget_bytes": "memory_budget_bytes", "uptime_ms": "uptime_ms",
    }  # fmt: skip
    return {
        "rate": sum(row["rate"] for row in topics),
        "requests": max(requests, 0) / took_s,
        **{name: int(metrics.get(f"topics_{gauge}", 0)) for name, gauge in gauges.items()},
        "memory_bytes": int(sum((metrics.get("topics_memory_charged_bytes") or {}).values())),
        "fsync_p50_us": _of_buckets(old_fsync, fsync, 0.5),
        "fsync_p99_us": _of_buckets(old_fsync, fsync, 0.99),
        "standby": bool(metrics.get("topics_replica_standby", 0)),
        "replica_lag_ms": int(metrics.get("topics_replica_lag_ms", 0)),
        "followers": metrics.get("topics_replica_follower_lag_ms") or {},
        "read_only": bool(metrics.get("topics_wal_read_only", 0)),
        "lost": sum(row["lost"] for row in topics),
        "truncated": bool(metrics.get("topics_topic_metrics_truncated", 0)),
    }


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
    counts = sorted((float(name), now[name] - before.get(name, 0)) for name in now)  # `+Inf` is a number, too
    total = counts[-1][1] if counts else 0
    if total <= 0:
        return None
    return next(bound for bound, count in counts if count >= total * share)


def sort_rows(found: list[TopicRow], order: str, needle: str) -> list[TopicRow]:
    """Return the topics whose names contain the filter, in an order of `SORTS`."""
    kept = [row for row in found if needle in row["topic"]]
    if order == "topic":
        return sorted(kept, key=lambda row: row["topic"])
    return sorted(kept, key=lambda row: (-(row[order] or 0), row["topic"]))


register = top.register
