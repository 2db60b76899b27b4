"""`topics top`: one live screen of a server: what changed between two samples of its metrics."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from itertools import chain, repeat
from math import inf
from typing import Any, NamedTuple

from topics.cli.command import Args, Call, Command
from topics.cli.connect import get
from topics.cli.options import option
from topics.cli.output.screen import Columns, Styled, highlighted, table
from topics.cli.output.units import count, duration, rate, size
from topics.errors import TopicsError

FIRST_INTERVAL_S = 0.5
SORTS = ("rate", "topic", "records", "bytes", "lag", "ready", "lost")
HEADER_LINES = 7
Metrics = Mapping[str, Any]
Overview = dict[str, Any]  # the server between two samples, with a row for each topic in `by_topic`


class Sample(NamedTuple):
    """The metrics and the routers of a server at one moment."""

    at_s: float
    metrics: Metrics
    lags: Mapping[str, int]  # by topic: that of its slowest reader


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
    before, every_s, screen = _sample(call), call.args.every / 1000, call.screen
    looks = repeat(every_s) if call.args.count is None else repeat(every_s, call.args.count)
    if screen.is_human:
        _draw_looks(call, before, looks)
        return
    for wait_s in looks:
        time.sleep(wait_s)
        now = _sample(call)
        screen.json(overview(before, now, call.args))
        screen.flush()
        before = now


def _sample(call: Call) -> Sample:
    metrics = call.ask()
    return Sample(at_s=time.monotonic(), metrics=metrics, lags=call.server.lags())


def _draw_looks(call: Call, before: Sample, looks: repeat[float]) -> None:
    """Draw each look: one below the other with `--count`, otherwise on one screen until Ctrl-C.

    If the server does not answer, the last look stays, with the reason.
    """
    from rich.console import Console
    from rich.live import Live

    console, shown, problem = Console(file=sys.stdout), Overview(), ""
    live = Live(console=console, screen=True, auto_refresh=False) if call.args.count is None else None
    with ExitStack() as screen:
        if live is not None:
            screen.enter_context(suppress(KeyboardInterrupt))
            screen.enter_context(live)
        for wait_s in chain([min(FIRST_INTERVAL_S, next(looks))], looks):
            time.sleep(wait_s)
            try:
                now = _sample(call)
                before, shown, problem = now, overview(before, now, call.args), ""
            except TopicsError as error:
                problem = str(error)
            drawn = _drawn(call, shown, problem, console.size.height) if shown else problem
            if live is None:
                console.print(drawn)
            else:
                live.update(drawn, refresh=True)


def _drawn(call: Call, total: Overview, problem: str, height: int) -> Any:
    """Return the screen for a terminal of `height` lines: totals above, topics below."""
    from rich.console import Group
    from rich.text import Text

    room, url = max(height - HEADER_LINES - 2, 3), call.server.target.url
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
        Text(problem, style="red"),
    ]  # fmt: skip
    more = len(total["by_topic"]) - room
    end = f"{more:,} more topics: see --filter and --sort" if more > 0 else "Ctrl-C quits"
    return Group(*lines, table(COLUMNS, total["by_topic"][:room]), Text(""), Text(end, style="dim"))


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

# The figures of the server by their gauges, and those of a topic, with the value of a topic that has none.
GAUGES = {
    "records": "records_live", "bytes": "bytes_live", "topics": "topics", "connections": "http_connections",
    "streams": "sse_connections", "budget_bytes": "memory_budget_bytes", "uptime_ms": "uptime_ms",
    "replica_lag_ms": "replica_lag_ms",
}  # fmt: skip
OF_TOPIC = {
    "records": ("records_live", 0), "bytes": ("bytes_live", 0), "ready": ("queue_ready", None),
    "in_flight": ("queue_in_flight", None), "lost": ("lost", 0),
}  # fmt: skip


def overview(before: Sample, now: Sample, args: Args) -> Overview:
    """Return the figures of the server, and those of the topics that the options choose, in their order."""
    took_s, metrics = max(now.at_s - before.at_s, 1e-3), now.metrics
    topics = _topics(before, now, took_s)
    shown = [row for row in topics if args.filter in row["topic"]]
    shown.sort(key=lambda row: (0 if args.sort == "topic" else -(row[args.sort] or 0), row["topic"]))
    requests = metrics.get("topics_http_requests_total", 0) - before.metrics.get("topics_http_requests_total", 0)
    return {
        "rate": sum(row["rate"] for row in topics),
        "requests": max(requests, 0) / took_s,
        **{name: int(metrics.get(f"topics_{gauge}", 0)) for name, gauge in GAUGES.items()},
        "memory_bytes": int(sum((metrics.get("topics_memory_charged_bytes") or {}).values())),
        "fsync_p50_us": _of_buckets(before.metrics, metrics, 0.5),
        "fsync_p99_us": _of_buckets(before.metrics, metrics, 0.99),
        "standby": bool(metrics.get("topics_replica_standby", 0)),
        "followers": metrics.get("topics_replica_follower_lag_ms") or {},
        "read_only": bool(metrics.get("topics_wal_read_only", 0)),
        "lost": sum(row["lost"] for row in topics),
        "truncated": bool(metrics.get("topics_topic_metrics_truncated", 0)),
        "by_topic": shown,
    }


def _topics(before: Sample, now: Sample, took_s: float) -> list[dict[str, Any]]:
    """Return the topics of a sample. `losing` is the number of records lost per second."""
    heads, old_heads, old_lost = (_named(*of) for of in ((now, "head_seq"), (before, "head_seq"), (before, "lost")))
    figures: dict[str, tuple[dict[str, int], Any]] = {
        name: (_named(now, metric), none) for name, (metric, none) in OF_TOPIC.items()
    }
    rows = []
    for topic, head in heads.items():
        row: dict[str, Any] = {"topic": topic, "head": head, "lag": now.lags.get(topic)}
        row |= {name: values.get(topic, none) for name, (values, none) in figures.items()}
        row["rate"] = max(head - old_heads.get(topic, head), 0) / took_s
        rows.append(row | {"losing": max(row["lost"] - old_lost.get(topic, row["lost"]), 0) / took_s})
    return rows


def _named(sample: Sample, name: str) -> dict[str, int]:
    found = sample.metrics.get(f"topics_topic_{name}")
    return found if isinstance(found, dict) else {}


def _of_buckets(before: Metrics, now: Metrics, share: float) -> float | None:
    """Return the upper bound of the bucket that a share of the new syncs lies in; None if there are none.

    The buckets are cumulative counts by upper bound, with `+Inf` last.
    """
    old, new = ((one.get("topics_wal_fsync_latency_us") or {}).get("buckets", {}) for one in (before, now))
    counts = sorted((float(name), new[name] - old.get(name, 0)) for name in new)  # `+Inf` is a number, too
    total = counts[-1][1] if counts else 0
    if total <= 0:
        return None
    return next(bound for bound, count in counts if count >= total * share)


register = top.register
