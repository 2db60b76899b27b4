"""Metrics as rows, and their two formats: Prometheus text and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec
from msgspec import Struct

from topics.engine.steps import Steps
from topics.server.http.messages import Request
from topics.server.loop.answer import elapsed_ms

# Suffix of the name, labels and their values, each separated by spaces (empty for none), value. Not a dictionary: there
# are thousands of samples, and every long-lived container makes the pauses of the garbage collector longer.
Sample = tuple[str, str, str, float]
Row = TypeVar("Row")

ROWS_PER_STEP = 250  # one takes about 2 µs
SAMPLES_PER_STEP = 500
_encode = msgspec.json.encode


class Metric(Struct):
    name: str
    help: str
    samples: list[Sample]
    kind: str = "gauge"  # a name that ends with `_total` is a counter

    def __post_init__(self) -> None:
        if self.name.endswith("_total"):
            self.kind = "counter"


def batches(rows: Iterable[Row], size: int = ROWS_PER_STEP) -> Iterator[list[Row]]:
    """Return the present rows in batches. The caller must handle topics that are deleted between two batches."""
    now = list(rows)
    for at in range(0, len(now), size):
        yield now[at : at + size]


# Metrics with other units than Prometheus has: their names for it. The old names go with the next release.
RENAMED = {
    "topics_uptime_ms": "topics_uptime_seconds",
    "topics_loop_lag_ms": "topics_loop_lag_seconds",
    "topics_loop_hold_max_ms": "topics_loop_hold_max_seconds",
    "topics_wal_fsync_latency_us": "topics_wal_fsync_duration_seconds",
    "topics_replica_lag_ms": "topics_replica_lag_seconds",
    "topics_replica_follower_lag_ms": "topics_replica_follower_lag_seconds",
}


def renamed(rows: list[Metric], *, old_names: bool) -> list[Metric]:
    """Add the metrics with names and units for Prometheus, and leave out those with old names if asked to."""
    found: list[Metric] = []
    for row in rows:
        name = RENAMED.get(row.name)
        if name is None or old_names:
            found.append(row)
        if name is not None:
            share = 1_000_000 if row.name.endswith("_us") else 1000
            samples: list[Sample] = []
            for suffix, label, text, value in row.samples:
                if suffix == "_bucket":
                    samples.append((suffix, label, text if text == "+Inf" else f"{float(text) / share:.9g}", value))
                else:
                    samples.append((suffix, label, text, value if suffix == "_count" else value / share))
            found.append(
                Metric(
                    name, row.help.replace("Milliseconds", "Time").replace("Microseconds", "Time"), samples, row.kind
                )
            )
    return found


def as_text(rows: Iterable[Metric]) -> Steps[list[bytes | memoryview]]:
    """Print Prometheus text exposition, `SAMPLES_PER_STEP` samples a step.

    Topic names need no escaping: their charset has no quote, backslash or line break.
    """
    parts: list[bytes | memoryview] = []
    for row in rows:
        lines = [f"# HELP {row.name} {row.help}\n# TYPE {row.name} {row.kind}\n"]
        for some in batches(row.samples, SAMPLES_PER_STEP):
            for suffix, label, text, value in some:
                # A request without a route has an empty method.
                pairs = zip(label.split(), text.split(" ") if label else (), strict=True)
                labels = ",".join([f'{name}="{one}"' for name, one in pairs])
                lines.append(f"{row.name}{suffix}{labels and f'{{{labels}}}'} {value}\n")
            parts.append("".join(lines).encode())
            lines = []
            yield None
        if lines:
            parts.append(lines[0].encode())
    return parts


def as_json(rows: Iterable[Metric], request: Request) -> Steps[list[bytes | memoryview]]:
    """One key a metric: a number, or an object by label (several with a slash between them), or a histogram's parts."""
    parts: list[bytes | memoryview] = [b"{"]
    for row in rows:
        parts.append(b'"%b":' % row.name.encode())
        if row.name == "topics_http_request_duration_seconds":
            ends: dict[str, dict[str, float]] = {}
            for suffix, _, text, value in row.samples:
                if suffix != "_bucket":
                    ends.setdefault(text, {})[suffix[1:]] = value
            parts.append(_encode(ends))
        elif row.kind == "histogram":
            buckets = {text: value for suffix, _, text, value in row.samples if suffix == "_bucket"}
            parts.append(_encode({"buckets": buckets, "sum": row.samples[-2][3], "count": row.samples[-1][3]}))
        elif row.samples and not row.samples[0][1]:
            parts.append(_encode(row.samples[0][3]))
        else:
            objects = []
            for some in batches(row.samples, SAMPLES_PER_STEP):
                objects.append(_encode({text.replace(" ", "/"): value for _, _, text, value in some})[1:-1])
                yield None
            parts.append(b"{%b}" % b",".join(objects))
        parts.append(b",")
        yield None
    parts.append(b'"performance":%b}\n' % _encode({"server_total_ms": elapsed_ms(request)}))
    return parts
