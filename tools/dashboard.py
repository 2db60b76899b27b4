"""Write the Grafana dashboard `deploy/grafana/topics.json`. `--check` only compares the file.

The dashboard is a list of rows of panels: title, unit, and the queries with their legends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parents[1] / "deploy" / "grafana" / "topics.json"
SOURCE = {"type": "prometheus", "uid": "prometheus"}
COLUMNS = 24  # the width of a Grafana dashboard


class Panel(NamedTuple):
    """One plot, or with `kind` "stat" one number."""

    title: str
    unit: str
    queries: dict[str, str]  # legend → query
    kind: str = "timeseries"
    help: str = ""


ON = '{instance=~"$instance"}'
TOPIC = '{instance=~"$instance",topic=~"$topic"}'

ROWS: dict[str, list[Panel]] = {
    "Health": [
        Panel("Ready", "none", {"ready": f"topics_ready{ON}"}, "stat", "1 when the server answers all requests."),
        Panel(
            "Read-only", "none", {"read-only": f"topics_wal_read_only{ON}"}, "stat", "1 while the disk takes no writes."
        ),
        Panel("Uptime", "s", {"uptime": f"topics_uptime_seconds{ON}"}, "stat"),
        Panel("Topics", "short", {"topics": f"topics_topics{ON}"}, "stat"),
        Panel("Live records", "short", {"records": f"topics_records_live{ON}"}, "stat"),
        Panel("Live bytes", "bytes", {"bytes": f"topics_bytes_live{ON}"}, "stat"),
    ],
    "Traffic": [
        Panel(
            "Requests per second",
            "reqps",
            {"{{method}} {{route}} {{status}}": f"rate(topics_http_request_duration_seconds_count{ON}[1m]) > 0"},
        ),
        Panel(
            "Time of a request",
            "s",
            {
                f"p{share}": f"histogram_quantile({share / 100:g}, sum by (le) "
                f"(rate(topics_http_request_duration_seconds_bucket{ON}[5m])))"
                for share in (50, 99)
            },
            help="Without the time that the client asked the server to wait.",
        ),
        Panel(
            "Records per second, 10 busiest topics",
            "short",
            {"{{topic}}": f"topk(10, rate(topics_topic_head_seq{TOPIC}[1m]))"},
        ),
        Panel(
            "Connections",
            "short",
            {
                "open": f"topics_http_connections{ON}",
                "streams": f"topics_sse_connections{ON}",
                "limit": f"topics_http_connections_max{ON}",
            },
        ),
    ],
    "Losses and lag": [
        Panel(
            "Records lost per minute",
            "short",
            {"{{topic}}: {{reason}}": f"60 * deriv(topics_topic_lost_records{TOPIC}[5m]) > 0"},
            help="Each reader that missed them gets a tombstone. Caps and TTLs remove records as configured.",
        ),
        Panel("Consumer lag, records", "short", {"{{topic}}/{{consumer}}": f"topics_consumer_lag_records{TOPIC}"}),
        Panel("Consumer lag, seconds", "s", {"{{topic}}/{{consumer}}": f"topics_consumer_lag_seconds{TOPIC}"}),
        Panel("Router lag, records", "short", {"{{router}}": f"topics_router_lag{ON}"}),
        Panel("Not archived, records", "short", {"{{topic}}": f"topics_topic_archive_unarchived{TOPIC}"}),
    ],
    "Queues": [
        Panel("Ready jobs", "short", {"{{topic}}": f"topics_topic_queue_ready{TOPIC}"}),
        Panel("Jobs in flight", "short", {"{{topic}}": f"topics_topic_queue_in_flight{TOPIC}"}),
        Panel("Age of the oldest job", "s", {"{{topic}}": f"topics_topic_queue_oldest_seconds{TOPIC}"}),
    ],
    "Disk": [
        Panel(
            "Time of a sync",
            "s",
            {
                f"p{share}": f"histogram_quantile({share / 100:g}, "
                f"rate(topics_wal_fsync_duration_seconds_bucket{ON}[5m]))"
                for share in (50, 99)
            },
        ),
        Panel("Written to the log per second", "Bps", {"bytes": f"rate(topics_wal_bytes_written_total{ON}[1m])"}),
        Panel(
            "Free, and to return",
            "bytes",
            {"free": f"topics_disk_free_bytes{ON}", "removed records": f"topics_rewrite_waiting_bytes{ON}"},
        ),
        Panel(
            "Age of checkpoint, backup and scrub",
            "s",
            {
                "checkpoint": f"topics_checkpoint_age_seconds{ON}",
                "backup": f"topics_backup_age_seconds{ON}",
                "scrub": f"topics_scrub_round_age_seconds{ON}",
                "replica": f"topics_replica_lag_seconds{ON}",
            },
        ),
        Panel(
            "Damaged places",
            "none",
            {"places": f"topics_damaged_places{ON}"},
            "stat",
            "Found before a reader met them.",
        ),
        Panel("Entries that wait for a sync", "short", {"entries": f"topics_wal_queue_depth{ON}"}),
    ],
    "Memory": [
        Panel("Process", "bytes", {"resident": f"process_resident_memory_bytes{ON}"}),
        Panel("Processor", "percentunit", {"cores": f"rate(process_cpu_seconds_total{ON}[1m])"}),
        Panel("Descriptors", "short", {"open": f"process_open_fds{ON}", "limit": f"process_max_fds{ON}"}),
        Panel("Version", "none", {"{{version}}": f"topics_build_info{ON}"}, "stat"),
        Panel(
            "Memory of clients",
            "bytes",
            {"{{account}}": f"topics_memory_charged_bytes{ON}", "budget": f"topics_memory_budget_bytes{ON}"},
            help="Bodies, answers, sessions and idempotency keys. Past the budget new requests are refused.",
        ),
    ],
}


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana stores it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row, some in ROWS.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": row, "gridPos": _at(0, y, COLUMNS, 1)})
        y += 1
        height = 4 if some[0].kind == "stat" else 8
        width = COLUMNS // min(len(some), 6 if some[0].kind == "stat" else 3)
        per_line = COLUMNS // width
        for at, panel in enumerate(some):
            place = _at(at % per_line * width, y + at // per_line * height, width, height)
            panels.append(_panel(len(panels) + 1, panel, place))
        y += -(-len(some) // per_line) * height
    return {
        "uid": "topics",
        "title": "topics",
        "tags": ["topics"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_variable("instance", "topics_ready"), _variable("topic", "topics_topic_head_seq")]},
        "panels": panels,
    }


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": query, "legendFormat": legend}
        for at, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def _variable(label: str, metric: str) -> dict[str, Any]:
    return {
        "name": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({metric}, {label})", "refId": label},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def main(arguments: list[str]) -> int:
    text = json.dumps(dashboard(), indent=2) + "\n"
    if "--check" not in arguments:
        FILE.write_text(text)
        return 0
    if FILE.exists() and FILE.read_text() == text:
        return 0
    print(f"{FILE.name} is out of date: run python tools/dashboard.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
